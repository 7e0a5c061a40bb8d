//! How long to look for the next message before going to sleep.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// A wait that ends within this is better spent looking: waking a sleeper costs both sides as much.
const WORTH: Duration = Duration::from_micros(50);

/// Below this there is no looking at all.
const LEAST: Duration = Duration::from_micros(10);

/// Looks in a row before other tasks of the thread get their turn; about a microsecond.
const LOOKS: usize = 24;

/// Remembers whether looking was worth it. Under traffic it is; an idle link learns in three waits to sleep at once.
#[derive(Debug, Default)]
pub(super) struct Spin {
    patience: Duration,
}

impl Spin {
    /// A wait took this long.
    pub(super) fn learn(&mut self, waited: Duration) {
        self.patience = if waited <= WORTH {
            WORTH
        } else {
            Some(self.patience / 2)
                .filter(|patience| *patience >= LEAST)
                .unwrap_or_default()
        };
    }

    /// How long the next wait may look.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }
}

/// Looks by `look` until it finds something or `patience` is over, letting other tasks run in between; whether it found something.
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
        yield_now().await;
    }
    Ok(false)
}
