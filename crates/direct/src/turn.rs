//! How much is done for one link before other links of its thread get their turn.

use std::cell::Cell;

use tokio::task::yield_now;

/// So many bytes are copied and summed in half a millisecond.
const TURN_BYTES: u64 = 4 << 20;

/// To find one of many keys, or to tell of it, takes about as long as to move so many bytes.
const KEY_BYTES: u64 = 4 << 10;

/// What was done in this turn, in bytes moved into mapped memory and out of it, or in what takes as long: what is at hand lets nobody wait,
/// however much it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    done: Cell<u64>,
}

impl Turn {
    /// The next one begins.
    pub(crate) fn begin(&self) {
        self.done.set(0);
    }

    /// Notes bytes that were moved.
    pub(crate) fn moved(&self, bytes: u64) {
        self.done.set(self.done.get() + bytes);
    }

    /// Notes keys of one request that are looked for, or told of.
    pub(crate) fn keys(&self, count: usize) {
        self.moved(count as u64 * KEY_BYTES);
    }

    /// Whether it is enough for one turn.
    pub(crate) fn is_over(&self) -> bool {
        self.done.get() >= TURN_BYTES
    }

    /// Whoever does more waits until others had theirs.
    pub(crate) async fn wait(&self) {
        while self.is_over() {
            yield_now().await;
        }
    }
}
