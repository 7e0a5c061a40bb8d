//! A bounded pool of power-of-two blocks, carved from slabs of one region each.
//!
//! Slabs are mapped many together, so that they may lie on huge pages; memory is taken from the system when a slab is first used.
//!
//! Every slab is [`BLOCK_MAX_BYTES`] long and holds blocks of one size. A slab whose blocks are all free goes back to the
//! common list and may next serve another size, so a change of workload cannot strand memory. Because a cache may hold
//! one small block of every slab, exhaustion calls the pressure hooks, which drop cached buffers until a slab is free.
#![expect(
    unsafe_code,
    reason = "blocks are addresses inside a region; each is handed out once"
)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::vec;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::{BLOCK_MAX_BYTES, BLOCK_MIN_BYTES, BufMut, Region, RegionId};

const SLAB_BYTES: usize = BLOCK_MAX_BYTES;
/// Slabs that are mapped together: enough huge pages that those which do not fit at either end hardly count.
const SLABS_A_ROW: usize = 32;
/// Cold blocks come from so many slabs in turn: more than the second-level caches of a few processors hold.
const SLABS_IN_TURN: usize = 8;
const CLASSES: usize = (BLOCK_MAX_BYTES / BLOCK_MIN_BYTES).ilog2() as usize + 1;

type PressureHook = Box<dyn Fn(usize) -> bool + Send + Sync>;

/// Why [`Pool::try_take`] gave nothing: every block is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all buffer memory is in use")]
pub struct Exhausted;

/// What a pool holds at a moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUsage {
    /// The configured bound.
    pub limit: usize,
    /// Of slabs that were used: what may have been taken from the system.
    pub mapped: usize,
    /// In blocks that are handed out.
    pub in_use: usize,
}

/// A bounded source of registered buffers, shared by doors and leaves.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    limit: usize,
    slabs: Mutex<Slabs>,
    freed: Notify,
    pressure: RwLock<Vec<PressureHook>>,
}

#[derive(Default)]
struct Slabs {
    slabs: Vec<Slab>,
    /// Mapped for slabs to come.
    unused: vec::IntoIter<Arc<Region>>,
    /// Slabs with no block handed out.
    empty: Vec<usize>,
    /// For each class, slabs of that class with at least one free block.
    partial: [Vec<usize>; CLASSES],
    /// How many slabs in `partial` have no block handed out: they wait for their turn.
    idle: usize,
    in_use: usize,
    /// How many wait for a block: nobody else is told of one.
    waiting: usize,
    /// Counts cold blocks.
    turn: usize,
}

struct Slab {
    region: Arc<Region>,
    class: usize,
    /// Offsets of free blocks, the longest free first.
    free: VecDeque<u32>,
    /// Where this slab stands in its `partial` list, if it does.
    partial_at: Option<usize>,
}

/// Which of the free blocks is given.
#[derive(Clone, Copy)]
enum Wanted {
    /// The one given back last: for a processor to fill.
    Warm,
    /// One given back long ago: for a device to fill.
    Cold,
}

/// One block, returned to its pool when dropped.
pub(crate) struct Block {
    pool: Weak<Inner>,
    region: Arc<Region>,
    slab: usize,
    offset: u32,
    len: u32,
}

impl Pool {
    /// A pool that maps at most `limit` bytes (rounded down to whole slabs of [`BLOCK_MAX_BYTES`], at least one).
    pub fn new(limit: usize) -> Pool {
        let limit = (limit / SLAB_BYTES).max(1) * SLAB_BYTES;
        let inner = Inner {
            limit,
            slabs: Mutex::default(),
            freed: Notify::new(),
            pressure: RwLock::default(),
        };
        Pool {
            inner: Arc::new(inner),
        }
    }

    /// Registers a hook that is asked to drop buffers (at least the given bytes, if it can) when the pool is exhausted.
    /// It returns whether it dropped anything, and must not take from the pool.
    pub fn on_pressure(&self, hook: impl Fn(usize) -> bool + Send + Sync + 'static) {
        self.inner.pressure.write().push(Box::new(hook));
    }

    /// A block of at least `min(len, BLOCK_MAX_BYTES)` bytes, waiting while all memory is in use.
    pub async fn take(&self, len: usize) -> BufMut {
        self.block(len, Wanted::Warm).await
    }

    /// The same for a device to fill: memory that no processor has touched for a while, if there is some. What a device writes to is
    /// first taken out of their caches, and the far side of a virtual disk waits for it (32 checked reads of 4 KiB at a time: a
    /// tenth fewer than unchecked ones when 32 blocks are used over and over, a fiftieth fewer with 512).
    pub async fn take_cold(&self, len: usize) -> BufMut {
        self.block(len, Wanted::Cold).await
    }

    /// A block of at least `min(len, BLOCK_MAX_BYTES)` bytes now, after asking the pressure hooks.
    ///
    /// # Errors
    /// [`Exhausted`] when every block is in use.
    pub fn try_take(&self, len: usize) -> Result<BufMut, Exhausted> {
        self.try_block(len, Wanted::Warm)
    }

    async fn block(&self, len: usize, wanted: Wanted) -> BufMut {
        if let Ok(buf) = self.try_block(len, wanted) {
            return buf;
        }
        let _waiting = Waiting::new(&self.inner);
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Ok(buf) = self.try_block(len, wanted) {
                return buf;
            }
            freed.await;
        }
    }

    fn try_block(&self, len: usize, wanted: Wanted) -> Result<BufMut, Exhausted> {
        let class = class_of(len);
        loop {
            if let Some(block) = self.inner.block(class, wanted) {
                return Ok(BufMut::new(block));
            }
            let hooks = self.inner.pressure.read();
            if !hooks.iter().any(|hook| hook(SLAB_BYTES)) {
                return Err(Exhausted);
            }
        }
    }

    /// What it holds now.
    pub fn usage(&self) -> PoolUsage {
        let slabs = self.inner.slabs.lock();
        PoolUsage {
            limit: self.inner.limit,
            mapped: slabs.slabs.len() * SLAB_BYTES,
            in_use: slabs.in_use,
        }
    }
}

/// Somebody waits for a block. Counted before the look that finds none, so that whoever gives one back after that look sees it.
struct Waiting<'p>(&'p Inner);

impl Waiting<'_> {
    fn new(inner: &Inner) -> Waiting<'_> {
        inner.slabs.lock().waiting += 1;
        Waiting(inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.slabs.lock().waiting -= 1;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.usage()).finish()
    }
}

impl Inner {
    fn block(self: &Arc<Self>, class: usize, wanted: Wanted) -> Option<Block> {
        let mut slabs = self.slabs.lock();
        let found = match wanted {
            Wanted::Warm => slabs.partial[class].last().copied(),
            Wanted::Cold => slabs.in_turn(class, self.limit),
        };
        let index = match found {
            Some(index) => index,
            None => slabs.assign(class, self.limit).ok()??,
        };
        let slab = &mut slabs.slabs[index];
        let was_idle = slab.is_idle();
        let offset = match wanted {
            Wanted::Warm => slab.free.pop_back(),
            Wanted::Cold => slab.free.pop_front(),
        }?;
        let region = slab.region.clone();
        if slab.free.is_empty() {
            slabs.leave_partial(index);
        }
        slabs.idle -= usize::from(was_idle);
        let len = block_len(class);
        slabs.in_use += len;
        Some(Block {
            pool: Arc::downgrade(self),
            region,
            slab: index,
            offset,
            len: len as u32,
        })
    }
}

impl Slabs {
    /// The slab of `class` whose turn it is, of several while half of the pool is free.
    fn in_turn(&mut self, class: usize, limit: usize) -> Option<usize> {
        let all = limit / SLAB_BYTES;
        let free = self.empty.len() + (all - self.slabs.len());
        if self.partial[class].len() < SLABS_IN_TURN && 2 * free > all {
            // Where the system has no memory for one more, those that are there do.
            let _ = self.assign(class, limit);
        }
        self.turn = self.turn.wrapping_add(1);
        let slabs = &self.partial[class];
        slabs.get(self.turn % slabs.len().max(1)).copied()
    }

    /// Gives an empty or new slab to `class`, at the limit one that another class leaves idle; `None` when there is none.
    fn assign(&mut self, class: usize, limit: usize) -> io::Result<Option<usize>> {
        let index = match self.empty.pop() {
            Some(index) => index,
            None if (self.slabs.len() + 1) * SLAB_BYTES <= limit => {
                let region = self.next_region(limit)?;
                self.slabs.push(Slab {
                    region,
                    class,
                    free: VecDeque::new(),
                    partial_at: None,
                });
                self.slabs.len() - 1
            }
            None => match self.take_idle() {
                Some(index) => index,
                None => return Ok(None),
            },
        };
        let slab = &mut self.slabs[index];
        if slab.class != class || slab.free.is_empty() {
            slab.class = class;
            slab.free.clear();
            slab.free
                .extend((0..SLAB_BYTES as u32).step_by(block_len(class)).rev());
        }
        self.enter_partial(index);
        self.idle += 1;
        Ok(Some(index))
    }

    fn take_idle(&mut self) -> Option<usize> {
        if self.idle == 0 {
            return None;
        }
        let mut partial = self.partial.iter().flatten().copied();
        let index = partial.find(|index| self.slabs[*index].is_idle())?;
        self.leave_partial(index);
        self.idle -= 1;
        Some(index)
    }

    /// Memory for one more slab, which the limit has room for.
    fn next_region(&mut self, limit: usize) -> io::Result<Arc<Region>> {
        // Neighbours are used one after the other: they may share a huge page.
        if let Some(region) = self.unused.next() {
            return Ok(region);
        }
        let row = SLABS_A_ROW.min(limit / SLAB_BYTES - self.slabs.len());
        self.unused = Region::anonymous_row(row, SLAB_BYTES)?.into_iter();
        self.unused.next().ok_or(io::ErrorKind::OutOfMemory.into())
    }

    fn enter_partial(&mut self, index: usize) {
        let list = &mut self.partial[self.slabs[index].class];
        self.slabs[index].partial_at = Some(list.len());
        list.push(index);
    }

    fn leave_partial(&mut self, index: usize) {
        let class = self.slabs[index].class;
        if let Some(at) = self.slabs[index].partial_at.take() {
            self.partial[class].swap_remove(at);
            if let Some(moved) = self.partial[class].get(at).copied() {
                self.slabs[moved].partial_at = Some(at);
            }
        }
    }

    fn put_back(&mut self, index: usize, offset: u32) {
        let slab = &mut self.slabs[index];
        slab.free.push_back(offset);
        self.in_use -= block_len(slab.class);
        if slab.is_idle() {
            self.leave_partial(index);
            self.empty.push(index);
        } else if slab.free.len() == 1 {
            self.enter_partial(index);
        }
    }
}

impl Slab {
    /// Whether no block of it is handed out.
    fn is_idle(&self) -> bool {
        self.free.len() * block_len(self.class) == SLAB_BYTES
    }
}

impl Block {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: offset + len lie inside the region, by construction of the slab.
        unsafe { self.region.base().as_ptr().add(self.offset as usize) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn is_from(&self, pool: &Pool) -> bool {
        self.pool.as_ptr() == Arc::as_ptr(&pool.inner)
    }

    pub(crate) fn place(&self) -> (RegionId, usize) {
        (self.region.id(), self.offset as usize)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let waiting = {
                let mut slabs = pool.slabs.lock();
                slabs.put_back(self.slab, self.offset);
                slabs.waiting
            };
            if waiting > 0 {
                pool.freed.notify_waiters();
            }
        }
    }
}

fn class_of(len: usize) -> usize {
    let len = len
        .clamp(BLOCK_MIN_BYTES, BLOCK_MAX_BYTES)
        .next_power_of_two();
    (len / BLOCK_MIN_BYTES).ilog2() as usize
}

fn block_len(class: usize) -> usize {
    BLOCK_MIN_BYTES << class
}
