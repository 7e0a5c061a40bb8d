//! Buffers that values hold while they move: each has room for all that it will hold before it begins, so none waits for what another
//! one waits with.

use forebay_mem::{BLOCK_MAX_BYTES, Pool};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::bucket::PART_BYTES;

/// What a store reads ahead of what it gave, at most, and the block that is being filled.
const BESIDE_BYTES: u64 = 4 * BLOCK_MAX_BYTES as u64;

/// A part of a pool, for values that go the same way. Those of another way wait for none of it.
pub(super) struct Buffers {
    blocks: Semaphore,
    all: u32,
}

impl Buffers {
    /// One of `parts` equal parts of a pool: enough for one value where the pool has 64 MiB.
    pub fn part(pool: &Pool, parts: usize) -> Buffers {
        let all = (pool.usage().limit / BLOCK_MAX_BYTES / parts).max(1);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        Buffers {
            blocks: Semaphore::new(all as usize),
            all,
        }
    }

    /// Room for a value on its way, of which a store or the bucket gathers no more than a part before that goes on. One that wants more
    /// than there is moves alone.
    pub async fn for_value(&self, size: u64) -> Option<SemaphorePermit<'_>> {
        let held = (size + BLOCK_MAX_BYTES as u64).min(PART_BYTES as u64 + BESIDE_BYTES);
        let blocks = held.div_ceil(BLOCK_MAX_BYTES as u64) as u32;
        // Never closed.
        self.blocks.acquire_many(blocks.min(self.all)).await.ok()
    }
}
