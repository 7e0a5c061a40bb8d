//! How much one link moves before other links of its thread get their turn.

use std::cell::Cell;

use tokio::task::yield_now;

/// So many bytes are copied and summed in half a millisecond.
const TURN_BYTES: u64 = 4 << 20;

/// What was moved in this turn into mapped memory and out of it: what is at hand lets nobody wait, however much it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    moved: Cell<u64>,
}

impl Turn {
    /// The next one begins.
    pub(crate) fn begin(&self) {
        self.moved.set(0);
    }

    /// Notes bytes that were moved.
    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.set(self.moved.get() + bytes);
    }

    /// Whether it is enough for one turn.
    pub(crate) fn is_over(&self) -> bool {
        self.moved.get() >= TURN_BYTES
    }

    /// Whoever moves more waits until others had theirs.
    pub(crate) async fn wait(&self) {
        while self.is_over() {
            yield_now().await;
        }
    }
}
