//! What a cache counts; the node exports it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        /// What a cache did, since it was made, and holds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64,)*
            /// Buffers held in memory, in bytes.
            pub memory_bytes: u64,
            /// Of those, pinned.
            pub pinned_bytes: u64,
            /// Values' bytes held on the local disk.
            pub disk_bytes: u64,
            /// Values of which something is held.
            pub objects: u64,
            /// Bytes acknowledged that the store has not committed yet: what a crash at this moment would lose.
            pub write_back_bytes: u64,
        }

        impl Counters {
            pub fn read(&self) -> Metrics {
                Metrics {
                    $($name: self.$name.load(Relaxed),)*
                    ..Metrics::default()
                }
            }
        }
    };
}

counters! {
    /// Pieces found in memory.
    memory_hits,
    /// Pieces found on the local disk.
    disk_hits,
    /// Pieces that had to come from the store.
    misses,
    /// Reads of the store's bytes on behalf of the cache.
    fills,
    /// Readers that shared another's fill.
    joined,
    /// Calls passed on: another version, a staged part, a range too long, a value being changed.
    passed,
    /// Looks at the store's metadata before a hit.
    checks,
    /// Of those, the ones that found another value.
    outdated,
    /// Pieces that left memory.
    evictions,
    /// Pieces written to the local disk.
    spills,
    /// Pieces that would have been, had the disk kept pace.
    spills_dropped,
    /// Pieces that did not match their checksum; none was given out.
    corrupt,
    /// Notices of changes by others.
    notices,
    /// Times that notices were lost, and everything held was in doubt.
    notices_lost,
    /// Values answered before the store had committed them.
    write_backs,
    /// Of those, the ones that the store then refused: lost.
    write_backs_lost,
}

/// Counts one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
