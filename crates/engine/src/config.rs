//! What can be chosen when an engine is opened.

/// Chosen when an [`Engine`](crate::Engine) is opened. `segment_bytes` is taken when the directory is made and ignored later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The length of each of the two journal areas, in bytes, at least 1 MiB: bounds recovery time and the index's lag.
    pub segment_bytes: u64,
    /// The extent space never grows beyond this, in bytes.
    pub capacity_bytes: u64,
    /// How much the extent space grows at a time, in bytes.
    pub growth_bytes: u64,
    /// Free bytes of the file system that values never take, so that the index can grow and deletes always work.
    pub reserve_bytes: u64,
    /// Values kept in memory, in bytes of buffers; 0 keeps none.
    pub cache_bytes: u64,
    /// Memory for pages of the index, in bytes.
    pub index_cache_bytes: usize,
    /// Rows looked up lately that are kept beside the index, in bytes.
    pub recent_bytes: u64,
    /// An index of at most so many bytes is compared with its checksums when the store is opened; of a larger one, which would
    /// take long, each row that is read.
    pub index_check_bytes: u64,
    /// The group of the journal whose damage is accepted, which [`OpenError::Journal`](crate::OpenError::Journal) names: the store
    /// opens as it was before that group, and what came after is lost. Any other damage is refused.
    pub lose_journal_from: Option<u64>,
    /// Opens a store although its index does not match its checksums, or cannot be read in some place, which
    /// [`OpenError::Index`](crate::OpenError::Index) refuses: what is damaged in it is refused when it is read, what it does not tell of
    /// space and usage is found again, and namespaces and quotas whose rows are damaged are lost. Findings say which.
    pub accept_damaged_index: bool,
    /// Writes in flight of one upload.
    pub upload_depth: usize,
    /// Reads in flight of one body.
    pub read_depth: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segment_bytes: 32 << 20,
            capacity_bytes: u64::MAX,
            growth_bytes: 128 << 20,
            reserve_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            index_cache_bytes: 64 << 20,
            recent_bytes: 128 << 20,
            index_check_bytes: 256 << 20,
            lose_journal_from: None,
            accept_damaged_index: false,
            upload_depth: 4,
            read_depth: 3,
        }
    }
}
