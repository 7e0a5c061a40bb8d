//! What asynchronous I/O did since the process began, for metrics.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::striped::Striped;

/// A reading of all counters; each only grows, except `rings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Asynchronous reads and writes that finished on a ring.
    pub ring_operations: u64,
    /// Asynchronous reads and writes that finished on worker threads.
    pub worker_operations: u64,
    /// Bytes read by either.
    pub read_bytes: u64,
    /// Bytes written by either.
    pub written_bytes: u64,
    /// `io_uring_enter` calls that submitted something.
    pub submissions: u64,
    /// Submissions whose buffer was registered with the ring.
    pub registered_buffer_operations: u64,
    /// Submissions whose buffer was not: heap memory, a full table, or locked memory refused.
    pub plain_buffer_operations: u64,
    /// Rings open now.
    pub rings: u64,
}

#[derive(Default)]
pub(crate) struct Cells {
    pub(crate) ring_operations: AtomicU64,
    pub(crate) worker_operations: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) submissions: AtomicU64,
    pub(crate) registered_buffer_operations: AtomicU64,
    pub(crate) plain_buffer_operations: AtomicU64,
    /// Opened, and closed, which another thread may do.
    pub(crate) rings_opened: AtomicU64,
    pub(crate) rings_closed: AtomicU64,
}

static CELLS: LazyLock<Striped<Cells>> = LazyLock::new(Striped::default);

/// Where this thread counts.
pub(crate) fn cells() -> &'static Cells {
    CELLS.mine()
}

/// Reads all counters; they are not read at one instant.
pub fn counters() -> Counters {
    let sum = |of: fn(&Cells) -> &AtomicU64| {
        let each = CELLS.all().map(|cells| of(cells).load(Relaxed));
        each.sum::<u64>()
    };
    let closed = sum(|cells| &cells.rings_closed);
    Counters {
        ring_operations: sum(|cells| &cells.ring_operations),
        worker_operations: sum(|cells| &cells.worker_operations),
        read_bytes: sum(|cells| &cells.read_bytes),
        written_bytes: sum(|cells| &cells.written_bytes),
        submissions: sum(|cells| &cells.submissions),
        registered_buffer_operations: sum(|cells| &cells.registered_buffer_operations),
        plain_buffer_operations: sum(|cells| &cells.plain_buffer_operations),
        rings: sum(|cells| &cells.rings_opened).saturating_sub(closed),
    }
}
