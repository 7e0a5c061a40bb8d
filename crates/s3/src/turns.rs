//! How many copies inside the server move bytes at once.
//!
//! A copy holds buffers of its source while its upload waits for one to pack them into. Were all memory held by copies that wait like
//! this, none of them would ever go on. So a copy waits for its turn before it holds anything, and all that have one find what they
//! need in the pool: a long copy holds at most five buffers of 1 MiB (three read ahead, one being packed, one to pack into), a short one
//! three. Those of one tenant have no more turns than are left to others.

use std::pin::pin;
use std::sync::Arc;

use forebay_store::shares::{Held, Shares};
use tokio::sync::Notify;

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
    long: Line,
    short: Line,
}

/// Turns of one kind.
struct Line {
    shares: Arc<Shares>,
    ended: Notify,
}

/// A copy's turn.
pub(crate) struct Turn<'a> {
    line: &'a Line,
    held: Option<Held>,
    small: bool,
}

impl Turns {
    /// With a pool of so many bytes.
    pub(crate) fn new(pool_bytes: u64) -> Turns {
        let line = |share: u64| Line {
            shares: Shares::new((pool_bytes / share).clamp(1, 1 << 16) as usize),
            ended: Notify::new(),
        };
        Turns {
            long: line(LONG_SHARE),
            short: line(SHORT_SHARE),
        }
    }

    /// Waits until a copy of so many bytes of this tenant's may hold buffers.
    pub(crate) async fn next(&self, tenant: &str, bytes: u64) -> Turn<'_> {
        let line = match bytes <= SHORT_BYTES {
            true => &self.short,
            false => &self.long,
        };
        Turn {
            line,
            held: Some(line.turn(tenant).await),
            small: bytes <= SMALL_BYTES,
        }
    }
}

impl Line {
    async fn turn(&self, tenant: &str) -> Held {
        let mut held = self.shares.of(tenant);
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if held.grow(1) {
                return held;
            }
            ended.await;
        }
    }
}

impl Turn<'_> {
    /// All bytes are with the upload. Until that is committed it may need one more buffer, unless they are few: what waits for a sync
    /// only is no reason for others to wait.
    pub(crate) fn moved(&mut self) {
        if self.small {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(held) = self.held.take() {
            drop(held);
            self.line.ended.notify_waiters();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
