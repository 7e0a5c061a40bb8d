//! What the cold tier did.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Values whose bytes went.
    pub moved: u64,
    /// Those bytes.
    pub moved_bytes: u64,
    /// Values whose bytes came back.
    pub recalled: u64,
    /// Those bytes.
    pub recalled_bytes: u64,
    /// Reads of values whose bytes were cold.
    pub reads: u64,
    /// Bytes given to readers from the far side, without those of values that came back first.
    pub read_bytes: u64,
    /// Copies deleted after their values ended or came back.
    pub deleted: u64,
    /// Copies deleted by the sweep: nothing referred to them.
    pub swept: u64,
    /// Calls to the far side that failed.
    pub failed: u64,
    /// Copies that wait to be deleted.
    pub waiting: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub moved: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub recalled: AtomicU64,
    pub recalled_bytes: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub deleted: AtomicU64,
    pub swept: AtomicU64,
    pub failed: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

impl Counters {
    pub fn read(&self, waiting: usize) -> Metrics {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Metrics {
            moved: of(&self.moved),
            moved_bytes: of(&self.moved_bytes),
            recalled: of(&self.recalled),
            recalled_bytes: of(&self.recalled_bytes),
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            deleted: of(&self.deleted),
            swept: of(&self.swept),
            failed: of(&self.failed),
            waiting: waiting as u64,
        }
    }
}
