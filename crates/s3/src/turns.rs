//! How many copies inside the server move bytes at once.
//!
//! A copy holds buffers of its source while its upload waits for one to pack them into. Were all memory held by copies that wait like
//! this, none of them would ever go on. So a copy waits for its turn before it holds anything, and all that have one find what they
//! need in the pool: a long copy holds at most five buffers of 1 MiB (three read ahead, one being packed, one to pack into), a short one
//! three.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of the pool for each long copy, which holds less.
const LONG_SHARE: u64 = 8 << 20;
/// And for each short one. These have turns of their own: they do not wait for somebody's gigabytes.
const SHORT_SHARE: u64 = 10 << 20;
/// The longest short copy.
const SHORT_BYTES: u64 = 1 << 20;
/// Up to here a value is kept with its record, and its commit needs no buffer.
const SMALL_BYTES: u64 = 32 << 10;

/// The turns of a door.
pub(crate) struct Turns {
    long: Semaphore,
    short: Semaphore,
}

/// A copy's turn.
pub(crate) struct Turn<'a> {
    permit: Option<SemaphorePermit<'a>>,
    small: bool,
}

impl Turns {
    /// With a pool of so many bytes.
    pub(crate) fn new(pool_bytes: u64) -> Turns {
        let turns = |share: u64| Semaphore::new((pool_bytes / share).clamp(1, 1 << 16) as usize);
        Turns {
            long: turns(LONG_SHARE),
            short: turns(SHORT_SHARE),
        }
    }

    /// Waits until a copy of so many bytes may hold buffers.
    pub(crate) async fn next(&self, bytes: u64) -> Turn<'_> {
        let turns = match bytes <= SHORT_BYTES {
            true => &self.short,
            false => &self.long,
        };
        Turn {
            // Nobody closes them.
            permit: turns.acquire().await.ok(),
            small: bytes <= SMALL_BYTES,
        }
    }
}

impl Turn<'_> {
    /// All bytes are with the upload. Until that is committed it may need one more buffer, unless they are few: what waits for a sync
    /// only is no reason for others to wait.
    pub(crate) fn moved(&mut self) {
        if self.small {
            self.permit = None;
        }
    }
}
