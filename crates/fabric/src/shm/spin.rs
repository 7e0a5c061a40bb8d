//! How long to look for the peer's next step before going to sleep.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// The longest look: waking a sleeper costs both sides about as much.
pub(super) const LONGEST: Duration = Duration::from_micros(50);

/// The shortest; below it there is none.
const SHORTEST: Duration = Duration::from_micros(10);

/// Looks in a row before others get their turn; about half a microsecond.
const LOOKS: usize = 16;

/// Remembers whether looking was worth it. Under traffic it is; an idle link learns in three waits to sleep at once.
#[derive(Debug, Default)]
pub(super) struct Spin {
    patience: Duration,
}

impl Spin {
    /// How long the next wait may look.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// A wait is over, and took this long.
    pub(super) fn learn(&mut self, waited: Duration) {
        let looking_was_enough = waited <= self.patience;
        let would_have_been = self.patience.is_zero() && waited <= LONGEST;
        self.patience = if looking_was_enough || would_have_been {
            (self.patience * 2).clamp(SHORTEST, LONGEST)
        } else if self.patience > SHORTEST {
            self.patience / 2
        } else {
            Duration::ZERO
        };
    }
}

/// Looks by `look` until it finds something or `patience` after `since` is over; whether it found something. In between, other tasks of
/// the thread run, and other threads of the processor: one of them may be the peer.
pub(super) async fn look_for<E>(
    patience: Duration,
    since: Instant,
    mut look: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    while since.elapsed() < patience {
        for _ in 0..LOOKS {
            if look()? {
                return Ok(true);
            }
            spin_loop();
        }
        thread::yield_now();
        yield_now().await;
    }
    Ok(false)
}
