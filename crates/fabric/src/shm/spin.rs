//! How long to look for the peer's next step before going to sleep.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// The longest look: waking a sleeper costs both sides about as much.
const LONGEST: Duration = Duration::from_micros(50);

/// The shortest; below it there is none.
pub(super) const SHORTEST: Duration = Duration::from_micros(25);

/// Looks in a row before others get their turn; about half a microsecond.
const LOOKS: usize = 16;

/// Waits that sleep at once after a look that was in vain, at most. The count doubles up to this while looking stays in vain: the two
/// ends then share a processor, or the peer is slow.
const ASLEEP_MAX: u32 = 256;

/// Remembers whether looking was worth it. Under traffic it is; an idle link sleeps at once.
#[derive(Debug, Default)]
pub(super) struct Spin {
    patience: Duration,
    /// How many more waits sleep at once.
    asleep: u32,
    /// How many did after the last look in vain.
    penalty: u32,
}

impl Spin {
    /// How long the next wait may look.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// A wait is over, and took this long.
    pub(super) fn learn(&mut self, waited: Duration) {
        if self.patience.is_zero() {
            self.asleep = self.asleep.saturating_sub(1);
            if self.asleep == 0 && waited <= LONGEST {
                self.patience = SHORTEST;
            }
        } else if waited <= self.patience {
            self.patience = (self.patience * 2).min(LONGEST);
            self.penalty = 0;
        } else if self.patience > SHORTEST {
            self.patience /= 2;
        } else {
            self.patience = Duration::ZERO;
            self.penalty = (self.penalty * 2 + 1).min(ASLEEP_MAX);
            self.asleep = self.penalty;
        }
    }
}

/// What a look found.
pub(super) enum Seen {
    /// What was looked for.
    Found,
    Nothing,
    /// Nothing, and the peer cannot do anything about it while this thread runs.
    InTheWay,
}

/// Looks by `look` until it finds something or `patience` after `since` is over; whether it found something. In between, other tasks of
/// the thread run. (Other threads of the processor only where one of them is the peer: on a busy machine that gives away milliseconds.)
pub(super) async fn look_for<E>(
    patience: Duration,
    since: Instant,
    mut look: impl FnMut() -> Result<Seen, E>,
) -> Result<bool, E> {
    while since.elapsed() < patience {
        for _ in 0..LOOKS {
            match look()? {
                Seen::Found => return Ok(true),
                Seen::Nothing => spin_loop(),
                Seen::InTheWay => {
                    thread::yield_now();
                    break;
                }
            }
        }
        yield_now().await;
    }
    Ok(false)
}
