//! Buffers that values hold while they move: each has room for all that it will hold before it begins, so none waits for what another
//! one waits with.

use std::sync::Arc;

use forebay_mem::BLOCK_MAX_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bucket::PART_BYTES;

/// What a store reads ahead of what it gave, at most, and the block that is being filled.
const BESIDE_BYTES: u64 = 4 * BLOCK_MAX_BYTES as u64;

/// A part of the buffers, for values that go the same way. Those of another way wait for none of it.
pub(super) struct Buffers {
    blocks: Arc<Semaphore>,
    all: u32,
}

impl Buffers {
    /// One of `parts` equal parts of so many bytes: enough for one value where they are 64 MiB.
    pub fn part(bytes: usize, parts: usize) -> Buffers {
        let all = (bytes / BLOCK_MAX_BYTES / parts).max(1);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        Buffers {
            blocks: Arc::new(Semaphore::new(all as usize)),
            all,
        }
    }

    /// Room for a value on its way, once there is some.
    pub async fn for_value(&self, size: u64) -> Option<OwnedSemaphorePermit> {
        // Never closed.
        let blocks = self.blocks.clone();
        blocks.acquire_many_owned(self.held(size)).await.ok()
    }

    /// The same at once, or not.
    pub fn try_for_value(&self, size: u64) -> Option<OwnedSemaphorePermit> {
        let blocks = self.blocks.clone();
        blocks.try_acquire_many_owned(self.held(size)).ok()
    }

    /// The blocks that a value holds, of which a store or the bucket gathers no more than a part before that goes on. One that wants
    /// more than there are moves alone.
    fn held(&self, size: u64) -> u32 {
        let held = (size + BLOCK_MAX_BYTES as u64).min(PART_BYTES as u64 + BESIDE_BYTES);
        let blocks = held.div_ceil(BLOCK_MAX_BYTES as u64) as u32;
        blocks.min(self.all)
    }
}
