//! Short functions run in the task that calls them: to hand one to a thread, and what it says back, takes longer than it runs.
//!
//! Nobody can tell how long a function will run. One that was short lately, and whose inputs are at hand, is tried in the task; when it
//! needs more than that gives, it starts again on a thread, and nobody sees that it had begun: it sees nothing but what the call
//! gave it, and nothing that it wrote has left. A task is held for two ticks of a millisecond at most, or for one long instruction
//! more, and seldom: each try that took too long doubles how often a module has to be short before the next.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::time::Duration;

use forebay_io::Clock;

use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::host::{Done, Host};
use crate::runtime::Program;

/// How often in a row a module has to be short before it is tried again, at most.
const WANTED_MAX: u32 = 1024;

/// A module that is ready to run, and what is known of its calls.
pub(crate) struct Prepared {
    program: Arc<dyn Program>,
    /// What takes longer is not short.
    limit: Duration,
    /// Short calls in a row.
    short: AtomicU32,
    /// How many there have to be.
    wanted: AtomicU32,
}

impl Prepared {
    /// Nothing is known yet.
    pub fn new(program: Arc<dyn Program>, limit: Duration) -> Prepared {
        Prepared {
            program,
            limit,
            short: AtomicU32::new(0),
            wanted: AtomicU32::new(1),
        }
    }

    /// Whether a call is worth a try in the task.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed) >= self.wanted.load(Relaxed)
    }

    /// Runs a function on this thread, and learns from it.
    pub fn run(&self, function: &str, host: Host, clock: &dyn Clock) -> Ran {
        let here = host.exchange.is_here();
        let begun = clock.monotonic();
        let (host, ending) = match host.exchange.patience.left() {
            Ok(_) => self.program.run(function, host),
            Err(ending) => (host, Err(ending)),
        };
        let took = clock.monotonic().saturating_sub(begun);
        let too_long = here && matches!(ending, Err(Ending::TooLong));
        if here && (too_long || took >= self.limit) {
            let wanted = self.wanted.load(Relaxed);
            self.wanted
                .store(wanted.saturating_mul(2).min(WANTED_MAX), Relaxed);
        }
        if too_long {
            self.short.store(0, Relaxed);
            return Ran::Not(host);
        }
        match took < self.limit {
            true if self.is_short() => {}
            true => drop(self.short.fetch_add(1, Relaxed)),
            false => self.short.store(0, Relaxed),
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let (exchange, done) = host.end(ending, nanos);
        Ran::Done(exchange, done)
    }
}

/// What came of a run.
pub(crate) enum Ran {
    /// This, and whom to tell.
    Done(Exchange<Done>, Done),
    /// It has to run on a thread, from its beginning.
    Not(Host),
}

/// How many calls may run in their tasks at a time: each takes an instance.
pub(crate) struct Places {
    free: AtomicUsize,
}

/// One of them.
pub(crate) struct Place<'p>(&'p Places);

impl Places {
    pub fn new(count: usize) -> Places {
        Places {
            free: AtomicUsize::new(count),
        }
    }

    pub fn take(&self) -> Option<Place<'_>> {
        let less = |free: usize| free.checked_sub(1);
        let taken = self.free.fetch_update(AcqRel, Relaxed, less);
        taken.ok().map(|_| Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, AcqRel);
    }
}
