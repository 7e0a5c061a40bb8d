//! A value read into memory that a peer may also touch: from the cache by one copy, from the device without any.
//!
//! Whole granules of blocks that are wanted whole go from the device to the target; what is left at either end, and small pieces, goes
//! by way of a buffer of ours. Checksums are made from what landed; where they do not match, the store is not blamed before its bytes
//! were looked at in a buffer that nobody else can touch.

use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_io::{Disk, File, Hold};
use forebay_mem::{CopySite, PAGE_BYTES, RegionSlice, count_copy};
use forebay_store::{ErrorKind, Placing, Result, StoreError};
use tokio::task::yield_now;

use crate::body::{Label, Memory, Remembered, Segment, in_memory, mismatch, read, row_mismatch};
use crate::cache::Piece;
use crate::core::Core;
use crate::extent::{BLOCK_BYTES, Extent, GRANULE_BYTES};
use crate::segments::Segments;

/// Shorter pieces are read by way of the cache: the next reader finds them there.
const DIRECT_BYTES_MIN: usize = BLOCK_BYTES;
/// Segments in memory are placed without a wait: after so many others of the thread get their turn.
const TURN: usize = 4;
/// Pieces remembered as read straight from the device once.
const SEEN: usize = 4096;

/// Which pieces went past the cache lately: whoever comes a second time is worth keeping.
pub(crate) struct SeenOnce {
    marks: Box<[AtomicU64]>,
}

impl Default for SeenOnce {
    fn default() -> SeenOnce {
        SeenOnce {
            marks: (0..SEEN).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl SeenOnce {
    /// Whether `piece` was seen before; remembers it if not.
    fn again(&self, piece: &Piece) -> bool {
        let mut hasher = DefaultHasher::new();
        piece.hash(&mut hasher);
        let hash = hasher.finish() | 1;
        self.marks[hash as usize / 2 % SEEN].swap(hash, Relaxed) == hash
    }
}

type Landing = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Puts the segments one after the other into `target`, which has room for them. `pins` keep their bodies from being reused.
pub(crate) async fn land<D: Disk>(
    core: &Arc<Core<D>>,
    label: Label,
    mut segments: Segments,
    pins: Hold,
    target: &RegionSlice,
) -> Result<()> {
    let mut at = 0;
    let mut begin = |segment: Segment| {
        let len = segment.len();
        let part = target.slice(at..at + len);
        at += len;
        let (core, label, pins) = (core.clone(), label.clone(), pins.clone());
        async move {
            let part = part.ok_or_else(too_short)?;
            match segment {
                Segment::Ready(buf) => place(&part, 0, &buf),
                Segment::Stored {
                    piece,
                    extent,
                    want,
                } => land_stored(core, label, piece, extent, want, pins, part).await,
            }
        }
    };
    if segments.is_short() {
        // The common case needs no box.
        return match segments.pop(core)? {
            Some(segment) => begin(segment).await,
            None => Ok(()),
        };
    }
    let depth = core.config.read_depth.max(1);
    let mut landing: Vec<Landing> = Vec::with_capacity(depth);
    let mut failed = None;
    poll_fn(|context| {
        let mut landed = 0;
        loop {
            while landing.len() < depth
                && let Some(segment) = segments.pop(core).transpose()
            {
                match segment {
                    Ok(segment) => landing.push(Box::pin(begin(segment))),
                    Err(error) => {
                        failed.get_or_insert(row_mismatch(core, &label, error));
                    }
                }
            }
            let before = landing.len();
            let mut at = 0;
            while let Some(future) = landing.get_mut(at) {
                match future.as_mut().poll(context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(done) => {
                        landed += 1;
                        drop(landing.swap_remove(at));
                        if let Err(error) = done {
                            // What is under way ends first: whoever is told of the error may use the memory again.
                            segments.clear();
                            failed.get_or_insert(error);
                        }
                    }
                }
            }
            match (landing.is_empty(), segments.is_empty()) {
                (true, true) => return Poll::Ready(failed.take().map_or(Ok(()), Err)),
                (_, false) if landed >= TURN => {
                    let _ = pin!(yield_now()).poll(context);
                    return Poll::Pending;
                }
                (_, false) if landing.len() < before => {}
                _ => return Poll::Pending,
            }
        }
    })
    .await
}

/// Bytes `want` of an extent into `part`, which is as long.
async fn land_stored<D: Disk>(
    core: Arc<Core<D>>,
    label: Label,
    piece: Piece,
    extent: Extent,
    want: Range<usize>,
    pins: Hold,
    part: RegionSlice,
) -> Result<()> {
    if let Some(whole) = in_memory(&core, &piece, &extent) {
        let held = Remembered {
            extent,
            whole,
            want,
        };
        return held.place(&part, |block| mismatch(&core, &label, &extent, block));
    }
    // In a box: whoever finds the bytes in memory must not move the length of the other way about.
    Box::pin(land_missing(core, label, piece, extent, want, pins, part)).await
}

/// The same of an extent that is not in memory.
async fn land_missing<D: Disk>(
    core: Arc<Core<D>>,
    label: Label,
    piece: Piece,
    extent: Extent,
    want: Range<usize>,
    pins: Hold,
    part: RegionSlice,
) -> Result<()> {
    let bytes = extent.bytes as usize;
    let straight = blocks_within(&want, bytes).filter(|blocks| {
        let offset = blocks.start - want.start;
        blocks.len() >= DIRECT_BYTES_MIN
            && part
                .as_ptr()
                .addr()
                .wrapping_add(offset)
                .is_multiple_of(PAGE_BYTES)
            && part.region().is_writable()
            && !(core.cache.is_on() && core.seen_once.again(&piece))
    });
    let Some(blocks) = straight else {
        return by_buffer(&core, &label, piece, extent, want, Memory::NotWhole, &part).await;
    };
    let head = want.start..blocks.start;
    let tail = blocks.end..want.end;
    let within = |range: &Range<usize>| {
        let range = range.start - want.start..range.end - want.start;
        part.slice(range).ok_or_else(too_short)
    };
    if !head.is_empty() {
        let part = within(&head)?;
        by_buffer(&core, &label, piece, extent, head, Memory::NotWhole, &part).await?;
    }
    let middle = within(&blocks)?;
    if !land_blocks(&core, &label, &extent, blocks.clone(), pins, middle.clone()).await? {
        // Damaged, or changed by whoever owns the memory: what the store holds is judged in a buffer of ours.
        by_buffer(&core, &label, piece, extent, blocks, Memory::First, &middle).await?;
    }
    if !tail.is_empty() {
        let part = within(&tail)?;
        by_buffer(&core, &label, piece, extent, tail, Memory::First, &part).await?;
    }
    Ok(())
}

/// The blocks that lie in `want` whole; the extent's last one may be short.
fn blocks_within(want: &Range<usize>, bytes: usize) -> Option<Range<usize>> {
    let start = want.start.next_multiple_of(BLOCK_BYTES);
    let end = match want.end == bytes {
        true => bytes,
        false => want.end - want.end % BLOCK_BYTES,
    };
    (start < end).then_some(start..end)
}

/// From the cache or the device by way of a buffer, to the start of `part`.
async fn by_buffer<D: Disk>(
    core: &Arc<Core<D>>,
    label: &Label,
    piece: Piece,
    extent: Extent,
    want: Range<usize>,
    memory: Memory,
    part: &RegionSlice,
) -> Result<()> {
    let buf = read(core, label, piece, extent, want, memory).await?;
    place(part, 0, &buf)
}

impl Remembered {
    /// Copies it to the start of `target`, and checks block by block on the way. The error of a `mismatch` leaves bytes of the damaged block
    /// in the target, as one that comes straight from the device does.
    pub(crate) fn place(
        &self,
        target: &RegionSlice,
        mismatch: impl FnOnce(usize) -> StoreError,
    ) -> Result<()> {
        let mut placing = Placing::new(target, 0);
        for block in self.want.start / BLOCK_BYTES..self.want.end.div_ceil(BLOCK_BYTES) {
            let begin = block * BLOCK_BYTES;
            let end = self.whole.len().min(begin + BLOCK_BYTES);
            let wanted = self.want.start.max(begin) - begin..self.want.end.min(end) - begin;
            placing.put(&self.whole[begin..end], wanted)?;
            if !self.extent.is_block(block, placing.end_block()) {
                return Err(mismatch(block));
            }
        }
        Ok(())
    }
}

/// Whole blocks straight from the device; tells whether they match their checksums where they landed.
async fn land_blocks<D: Disk>(
    core: &Arc<Core<D>>,
    label: &Label,
    extent: &Extent,
    blocks: Range<usize>,
    pins: Hold,
    part: RegionSlice,
) -> Result<bool> {
    let first = blocks.start / BLOCK_BYTES;
    let offset = core.space.offset(extent.start) + blocks.start as u64;
    // The device moves whole granules; the target ends with the value.
    let whole = part.len() - part.len() % GRANULE_BYTES;
    let pages = part.slice(0..whole).ok_or_else(too_short)?;
    // A body may not be overwritten while the device reads it for somebody's memory, even when nobody waits any more.
    let landed = core.data.read_into(offset, pages, pins).await;
    if landed.map_err(|error| label.unread(error))? < whole {
        return Ok(false);
    }
    let rest = part.len() - whole;
    if rest > 0 {
        let into = core.pool.take(GRANULE_BYTES).await;
        let at = offset + whole as u64;
        let (done, mut buf) = core.data.read_at(at, into, GRANULE_BYTES).await;
        done.map_err(|error| label.unread(error))?;
        if buf.len() < rest {
            return Ok(false);
        }
        buf.set_len(rest);
        place(&part, whole, &buf)?;
    }
    for at in (0..part.len()).step_by(BLOCK_BYTES) {
        let block = first + at / BLOCK_BYTES;
        let landed = part
            .slice(at..part.len().min(at + BLOCK_BYTES))
            .ok_or_else(too_short)?;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let there = landed.for_each_chunk(|chunk| digest.update(chunk));
        if !there || !extent.is_block(block, digest.finalize() as u32) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn place(part: &RegionSlice, at: usize, bytes: &[u8]) -> Result<()> {
    count_copy(CopySite::RetrieveInto, bytes.len());
    if part.write(at, bytes) {
        Ok(())
    } else {
        Err(too_short())
    }
}

/// The target has not the room that was promised: too short, or its owner took its pages away.
pub(crate) fn too_short() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "the target does not hold the range")
}
