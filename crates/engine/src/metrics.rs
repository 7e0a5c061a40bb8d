//! What the engine counts; the node exports it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_io::Striped;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub groups: AtomicU64,
    pub records: AtomicU64,
    pub syncs: AtomicU64,
    pub journal_bytes: AtomicU64,
    pub checkpoints: AtomicU64,
    pub cache: Striped<Looks>,
    pub corrupt_blocks: AtomicU64,
    pub replayed_groups: AtomicU64,
}

/// Looks for pieces of values in memory.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

/// What an engine did and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Journal groups written.
    pub groups: u64,
    /// Changes in them.
    pub records: u64,
    /// Syncs of the data file.
    pub syncs: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Times that a memtable was written to the index.
    pub checkpoints: u64,
    /// Pieces of values found in memory.
    pub cache_hits: u64,
    /// Pieces of values read from the device.
    pub cache_misses: u64,
    /// Buffers held by the cache, in bytes.
    pub cache_bytes: u64,
    /// Times that something stored was found damaged or unreadable, or mended with a loss: blocks of values, and rows and pages of the index.
    pub corrupt_blocks: u64,
    /// Journal groups replayed when the store was opened.
    pub replayed_groups: u64,
    /// The extent space, in bytes.
    pub space_bytes: u64,
    /// Of that, free.
    pub space_free_bytes: u64,
    /// Of the space, what values had that are no more, and that whoever began to read them earlier keeps.
    pub space_kept_bytes: u64,
    /// Memory that tells those readers where it is: some 16 bytes for each 4 KiB of it at most, and 76 for each MiB that lies in one piece.
    pub kept_layout_bytes: u64,
    /// Whether changes are refused until the store is opened again: a sync failed, a group that was not written could not be withdrawn, the
    /// index is not what was written, or a thread panicked.
    pub read_only: bool,
}

impl Counters {
    pub fn read(&self) -> Metrics {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Metrics {
            groups: read(&self.groups),
            records: read(&self.records),
            syncs: read(&self.syncs),
            journal_bytes: read(&self.journal_bytes),
            checkpoints: read(&self.checkpoints),
            cache_hits: self.cache.all().map(|looks| read(&looks.hits)).sum(),
            cache_misses: self.cache.all().map(|looks| read(&looks.misses)).sum(),
            corrupt_blocks: read(&self.corrupt_blocks),
            replayed_groups: read(&self.replayed_groups),
            ..Metrics::default()
        }
    }
}
