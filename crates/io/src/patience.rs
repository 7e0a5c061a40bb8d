//! How long to look for a peer's next step before going to sleep.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Waits that sleep at once after a look that was in vain, at most. The count doubles up to this while looking stays in vain: the two
/// ends then share a processor, or the peer is slow.
const ASLEEP_MAX: u32 = 256;

/// Remembers whether looking was worth it. Under traffic it is; who waits for an idle peer sleeps at once.
#[derive(Debug)]
pub struct Patience {
    patience: Duration,
    /// The first look after sleeping, and the longest one.
    first: Duration,
    longest: Duration,
    /// After a wait that was no longer than this looking is tried.
    worth: Duration,
    /// How many more waits sleep at once.
    asleep: u32,
    /// How many did after the last look in vain.
    penalty: u32,
}

impl Default for Patience {
    /// For a peer that writes to our memory: waking a sleeper costs both sides about as much as the longest look.
    fn default() -> Patience {
        Patience::new(Patience::SHORTEST, 2 * Patience::SHORTEST)
    }
}

impl Patience {
    /// The shortest look at memory; below it there is none.
    pub const SHORTEST: Duration = Duration::from_micros(25);

    /// Looks that last `first` when the last wait was no longer than `longest`, and `longest` at most.
    pub fn new(first: Duration, longest: Duration) -> Patience {
        Patience {
            patience: Duration::ZERO,
            first,
            longest,
            worth: longest,
            asleep: 0,
            penalty: 0,
        }
    }

    /// How long the next wait may look.
    pub fn get(&self) -> Duration {
        self.patience
    }

    /// A wait is over, and took this long.
    pub fn learn(&mut self, waited: Duration) {
        if self.patience.is_zero() {
            self.asleep = self.asleep.saturating_sub(1);
            if self.asleep == 0 && waited <= self.worth {
                self.patience = self.first;
            }
        } else if waited <= self.patience {
            self.patience = (self.patience * 2).min(self.longest);
            self.penalty = 0;
        } else if self.patience > self.first {
            self.patience /= 2;
        } else {
            self.patience = Duration::ZERO;
            self.penalty = (self.penalty * 2 + 1).min(ASLEEP_MAX);
            self.asleep = self.penalty;
        }
    }
}

thread_local! {
    /// Who looks on this thread, and when it did last.
    static LOOKS: Cell<Option<(u64, Instant)>> = const { Cell::new(None) };
}

/// Waits for a peer behind a connection, among other tasks of its thread: one of them looks at a time, so that what looking costs is
/// at most one task's share.
#[derive(Debug)]
pub struct Watch {
    id: u64,
    patience: Patience,
    /// Since when there was nothing to do.
    since: Option<Instant>,
}

impl Default for Watch {
    fn default() -> Watch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Watch {
            id: NEXT.fetch_add(1, Relaxed),
            patience: Patience {
                worth: Watch::WORTH,
                ..Patience::new(Watch::LONGEST, Watch::LONGEST)
            },
            since: None,
        }
    }
}

impl Watch {
    /// How long looks are.
    const LONGEST: Duration = Duration::from_micros(200);
    /// Two ends that both sleep wait for each other longer than two that look: neither would begin to, were they held to that.
    const WORTH: Duration = Duration::from_micros(500);
    /// Who has not looked for this long looks no more.
    const TURN: Duration = Duration::from_micros(50);

    /// There is nothing to do: whether to look again soon instead of sleeping.
    pub fn looks_on(&mut self) -> bool {
        if self.since.is_some() {
            // The peer may wait for this very processor: where it was woken is where its waker was just then.
            thread::yield_now();
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= self.patience.get() {
            return false;
        }
        let other = LOOKS.get().is_some_and(|(id, at)| {
            id != self.id && now.saturating_duration_since(at) < Watch::TURN
        });
        if !other {
            LOOKS.set(Some((self.id, now)));
        }
        !other
    }

    /// What was waited for has come, or nothing is any more.
    pub fn came(&mut self) {
        if let Some(since) = self.since.take() {
            self.patience.learn(since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_worth_it_while_waits_are_short() {
        let (short, long) = (Duration::from_micros(10), Duration::from_secs(1));
        let mut patience = Patience::new(2 * short, 4 * short);
        assert!(patience.get().is_zero());
        patience.learn(long);
        assert!(patience.get().is_zero());
        for expected in [2, 4, 4] {
            patience.learn(short);
            assert_eq!(patience.get(), expected * short);
        }
        for expected in [2, 0, 0, 0] {
            patience.learn(long);
            assert_eq!(patience.get(), expected * short);
        }
        // Each time that it was in vain it sleeps for longer.
        let mut asleep = Vec::new();
        for _ in 0..4 {
            let mut waits = 0;
            while patience.get().is_zero() {
                patience.learn(short);
                waits += 1;
            }
            asleep.push(waits);
            patience.learn(long);
        }
        assert!(asleep.is_sorted() && asleep[3] > 3, "{asleep:?}");
    }

    #[test]
    fn one_looks_at_a_time() {
        let mut watches = [(); 2].map(|()| Watch::default());
        for watch in &mut watches {
            watch.patience = Patience::new(Duration::MAX / 4, Duration::MAX / 4);
            assert!(!watch.looks_on());
            watch.came();
        }
        assert!(watches[0].looks_on());
        // The other one may look when this one has not for a while, which a test cannot tell.
        assert!(watches[0].looks_on());
        assert!(LOOKS.get().is_some_and(|(id, _)| id == watches[0].id));
    }
}
