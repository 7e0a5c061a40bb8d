//! Values kept in memory, in the registered buffers that they were read into.

use forebay_mem::{Buf, Pool};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::Arc;

/// What a cached buffer holds. Bodies never change and ids are never reused: nothing is ever stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub body: u64,
    /// Which of its extents.
    pub extent: u32,
    /// The first block held, if not the whole extent is.
    pub block: Option<u8>,
}

#[derive(Clone)]
struct HeldBytes;

impl Weighter<Piece, Buf> for HeldBytes {
    fn weight(&self, _: &Piece, buf: &Buf) -> u64 {
        buf.held_bytes() as u64
    }
}

/// The cache; without capacity it holds nothing.
#[derive(Clone)]
pub(crate) struct ValueCache {
    cache: Option<Arc<Cache<Piece, Buf, HeldBytes>>>,
}

impl ValueCache {
    /// A cache of at most `bytes` of buffers of `pool`, and at most half of what the pool may hold.
    pub fn new(bytes: u64, pool: &Pool) -> ValueCache {
        let bytes = bytes.min(pool.usage().limit as u64 / 2);
        if bytes == 0 {
            return ValueCache { cache: None };
        }
        let items = (bytes / (64 << 10)).clamp(64, 1 << 20) as usize;
        let cache = Arc::new(Cache::with_weighter(items, bytes, HeldBytes));
        let shrink = Arc::downgrade(&cache);
        pool.on_pressure(move |wanted| {
            let Some(cache) = shrink.upgrade() else {
                return false;
            };
            let held = cache.weight();
            let step = (wanted as u64 * 4).max(held / 16);
            cache.set_capacity(held.saturating_sub(step));
            cache.set_capacity(bytes);
            cache.weight() < held
        });
        ValueCache { cache: Some(cache) }
    }

    pub fn get(&self, piece: &Piece) -> Option<Buf> {
        self.cache.as_ref()?.get(piece)
    }

    pub fn insert(&self, piece: Piece, buf: Buf) {
        if let Some(cache) = &self.cache {
            cache.insert(piece, buf);
        }
    }

    /// Drops what is kept whole of the `extents` extents of a body that nobody can find any more. Smaller pieces leave in their turn.
    pub fn forget(&self, body: u64, extents: usize) {
        if let Some(cache) = &self.cache {
            for extent in 0..extents as u32 {
                cache.remove(&Piece {
                    body,
                    extent,
                    block: None,
                });
            }
        }
    }

    /// Whether anything is kept at all.
    pub fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    pub fn held_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.weight())
    }
}
