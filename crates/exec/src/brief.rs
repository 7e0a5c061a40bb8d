//! Short functions run in the task that calls them: to hand one to a thread, and what it says back, takes longer than it runs.
//!
//! Nobody can tell how long a function will run. One that was short lately, and whose inputs are at hand, is tried in the task; when it
//! needs more than that gives, it starts again on a thread, and nobody sees that it had begun: it sees nothing but what the call
//! gave it, and what it wrote was thrown away, or lies in the caller's memory, where it writes the same again. A task is held for two
//! ticks of a millisecond at most, or for one long instruction more, or for some code without loops and calls, and seldom: a try that took
//! too long takes away the credit of hundreds of short calls. A call that only ends a little late takes away that of twenty: a machine that
//! gives its time to somebody else now and then makes nothing long that is short.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicI32, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::time::Duration;

use forebay_io::Clock;

use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::host::{Done, Host};
use crate::runtime::Program;

/// What a short call gives a module, which is tried in tasks while it has any.
const SHORT: i32 = 1;
/// What one takes that ends late: where more than one call in twenty does, there are no tries.
const LATE: i32 = -20;
/// What a try takes that has to start again, or that held its task for so long.
const TOO_LONG: i32 = -256;
/// A task that a call held for longer than this was not given back at a tick: nothing looks at the time in code without loops and calls.
const HELD: Duration = Duration::from_millis(8);
/// Calls of a module are not tried when one of its functions has more code than this: all of it may come between two looks at the time.
const BODY_BYTES_MAX: u64 = 128 << 10;
/// The most and the least credit: enough for a few late calls one after the other, and little enough to be regained.
const CREDIT_MAX: i32 = 64;
const CREDIT_MIN: i32 = -1024;

/// A module that is ready to run, and what is known of its calls.
pub(crate) struct Prepared {
    program: Arc<dyn Program>,
    /// What takes longer is not short.
    limit: Duration,
    /// What its calls so far speak for.
    credit: AtomicI32,
}

impl Prepared {
    /// Nothing is known yet.
    pub fn new(program: Arc<dyn Program>, limit: Duration) -> Prepared {
        Prepared {
            program,
            limit,
            credit: AtomicI32::new(0),
        }
    }

    /// Whether a call is worth a try in the task.
    pub fn is_short(&self) -> bool {
        self.credit.load(Relaxed) > 0 && self.program.longest() <= BODY_BYTES_MAX
    }

    /// Learns from a call.
    fn learn(&self, call: i32) {
        let sum = |credit: i32| {
            let sum = (credit + call).clamp(CREDIT_MIN, CREDIT_MAX);
            (sum != credit).then_some(sum)
        };
        // Nothing is written while nothing changes: all shards look at it.
        let _ = self.credit.fetch_update(Relaxed, Relaxed, sum);
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
        if here && matches!(ending, Err(Ending::TooLong)) {
            self.learn(TOO_LONG);
            return Ran::Not(host);
        }
        self.learn(match took {
            _ if took < self.limit => SHORT,
            _ if here && took > HELD => TOO_LONG,
            _ => LATE,
        });
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
