//! Payload copies are named and counted, so that "zero copy" is a figure and not a claim.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where payload bytes were copied; the `where` label of `forebay_copied_bytes_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum CopySite {
    /// From an HTTP body frame into a registered buffer (a TCP stream cannot place bytes).
    HttpBody,
    /// A value kept beside its record.
    EngineInline,
    /// Buffers that arrived unaligned, packed again for the device.
    EngineRepack,
    /// A device read into memory that a client registered, without a ring.
    ReadBounce,
    /// A value copied into memory that a client registered.
    RetrieveInto,
    /// A value copied out of memory that a client registered.
    ReadFrom,
    /// A small value copied into or out of a gRPC message.
    RpcMessage,
    /// Short segments of a TCP link, received many at once, and all of one that checks CRCs.
    LinkStaging,
    /// Payload of a link that is encrypted: into the buffer that is encrypted from, out of the one that was decrypted into.
    LinkTls,
    /// The in-memory leaf.
    MemoryStore,
    /// Short-lived memory of a message, into memory of its own for what a cache keeps of it.
    CacheKeep,
    /// Into and out of the memory of a function that is executed.
    Execute,
    /// Handed to librados, which copies what it writes.
    RadosWrite,
    /// Taken from librados, which receives into memory of its own.
    RadosRead,
    /// Many short pieces, packed for librados.
    RadosRepack,
    /// A client's own payload handling (command line, benchmarks).
    Client,
}

impl CopySite {
    /// Every site, in label order.
    pub const ALL: [CopySite; 16] = [
        CopySite::HttpBody,
        CopySite::EngineInline,
        CopySite::EngineRepack,
        CopySite::ReadBounce,
        CopySite::RetrieveInto,
        CopySite::ReadFrom,
        CopySite::RpcMessage,
        CopySite::LinkStaging,
        CopySite::LinkTls,
        CopySite::MemoryStore,
        CopySite::CacheKeep,
        CopySite::Execute,
        CopySite::RadosWrite,
        CopySite::RadosRead,
        CopySite::RadosRepack,
        CopySite::Client,
    ];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            CopySite::HttpBody => "http_body",
            CopySite::EngineInline => "engine_inline",
            CopySite::EngineRepack => "engine_repack",
            CopySite::ReadBounce => "read_bounce",
            CopySite::RetrieveInto => "retrieve_into",
            CopySite::ReadFrom => "read_from",
            CopySite::RpcMessage => "rpc_message",
            CopySite::LinkStaging => "link_staging",
            CopySite::LinkTls => "link_tls",
            CopySite::MemoryStore => "memory_store",
            CopySite::CacheKeep => "cache_keep",
            CopySite::Execute => "execute",
            CopySite::RadosWrite => "rados_write",
            CopySite::RadosRead => "rados_read",
            CopySite::RadosRepack => "rados_repack",
            CopySite::Client => "client",
        }
    }
}

static COPIED: [AtomicU64; CopySite::ALL.len()] =
    [const { AtomicU64::new(0) }; CopySite::ALL.len()];

/// Copies `source` into `target` and counts it.
///
/// # Panics
/// When the lengths differ, as `copy_from_slice` does.
pub fn copy(site: CopySite, target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
    count_copy(site, source.len());
}

/// Counts a copy of `bytes` that a library made on our behalf.
pub fn count_copy(site: CopySite, bytes: usize) {
    COPIED[site as usize].fetch_add(bytes as u64, Relaxed);
}

/// Bytes copied at `site` since the process began.
pub fn copied_bytes(site: CopySite) -> u64 {
    COPIED[site as usize].load(Relaxed)
}
