//! Looking for the peer's next step before going to sleep.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// Looks in a row before others get their turn; about half a microsecond.
const LOOKS: usize = 16;

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
