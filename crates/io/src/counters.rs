//! What asynchronous I/O did since the process began, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

pub(crate) struct Cells {
    pub(crate) ring_operations: AtomicU64,
    pub(crate) worker_operations: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) submissions: AtomicU64,
    pub(crate) registered_buffer_operations: AtomicU64,
    pub(crate) plain_buffer_operations: AtomicU64,
    pub(crate) rings: AtomicU64,
}

pub(crate) static CELLS: Cells = Cells {
    ring_operations: AtomicU64::new(0),
    worker_operations: AtomicU64::new(0),
    read_bytes: AtomicU64::new(0),
    written_bytes: AtomicU64::new(0),
    submissions: AtomicU64::new(0),
    registered_buffer_operations: AtomicU64::new(0),
    plain_buffer_operations: AtomicU64::new(0),
    rings: AtomicU64::new(0),
};

/// Reads all counters; they are not read at one instant.
pub fn counters() -> Counters {
    Counters {
        ring_operations: CELLS.ring_operations.load(Relaxed),
        worker_operations: CELLS.worker_operations.load(Relaxed),
        read_bytes: CELLS.read_bytes.load(Relaxed),
        written_bytes: CELLS.written_bytes.load(Relaxed),
        submissions: CELLS.submissions.load(Relaxed),
        registered_buffer_operations: CELLS.registered_buffer_operations.load(Relaxed),
        plain_buffer_operations: CELLS.plain_buffer_operations.load(Relaxed),
        rings: CELLS.rings.load(Relaxed),
    }
}
