//! A value leaving: its pieces, read ahead, checked block by block whether they come from memory or from the device.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use bytes::Bytes;
use forebay_io::{Disk, File};
use forebay_mem::Buf;
use forebay_store::{Body, ErrorKind, NamespaceInfo, Result, StoreError};

use crate::cache::Piece;
use crate::core::Core;
use crate::entry::{Entry, Place};
use crate::extent::{BLOCK_BYTES, Extent, GRANULE_BYTES};
use crate::findings::Finding;
use crate::keys::{self, Table};
use crate::view::{View, malformed};

/// So much of what is in memory is checked and given out at a time: what was just summed is still in the processor's cache when it is
/// sent.
const STEP_BYTES: usize = 2 * BLOCK_BYTES;

/// Whose bytes are read, for the words of an error.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    pub namespace: Arc<NamespaceInfo>,
    pub key: Bytes,
    pub version: u64,
}

impl Label {
    pub fn new(namespace: &Arc<NamespaceInfo>, key: &[u8], version: u64) -> Label {
        Label {
            namespace: namespace.clone(),
            key: Bytes::copy_from_slice(key),
            version,
        }
    }

    fn error(&self, kind: ErrorKind, what: &str) -> StoreError {
        let (namespace, key) = (&self.namespace.name, String::from_utf8_lossy(&self.key));
        StoreError::new(kind, format!("{namespace}/{key}: {what}"))
    }

    /// The device did not give bytes of this value.
    pub fn unread(&self, cause: io::Error) -> StoreError {
        self.error(ErrorKind::Io, "reading a value failed")
            .with_source(cause)
    }

    /// What is wrong with a row of this value.
    pub fn finding(&self, what: String) -> Finding {
        Finding::of_row(&self.namespace.name, self.key.clone(), self.version, what)
    }
}

/// Part of a body, in order.
#[derive(Debug)]
pub(crate) enum Segment {
    /// An inline value.
    Ready(Buf),
    /// Bytes `want` of an extent.
    Stored {
        piece: Piece,
        extent: Extent,
        want: Range<usize>,
    },
}

impl Segment {
    /// How many bytes of the value it is.
    pub fn len(&self) -> usize {
        match self {
            Segment::Ready(buf) => buf.len(),
            Segment::Stored { want, .. } => want.len(),
        }
    }
}

/// Bytes `want` of an extent that is in memory whole. They stay what they are whatever becomes of the value meanwhile, for a body never
/// changes and its number is given to no other: nothing has to be pinned for them.
pub(crate) struct Remembered {
    pub piece: Piece,
    pub extent: Extent,
    pub whole: Buf,
    pub want: Range<usize>,
}

impl Remembered {
    /// Bytes `range` of a value, if it is one extent that is in memory: most small values that are read often are, and whoever finds them
    /// so allocates nothing.
    pub fn find<D: Disk>(
        core: &Core<D>,
        entry: &Entry,
        range: &Range<u64>,
    ) -> Result<Option<Remembered>> {
        let Some((body, extent)) = entry.only_extent().map_err(malformed)? else {
            return Ok(None);
        };
        if range.is_empty() || range.end > u64::from(extent.bytes) {
            return Ok(None);
        }
        let piece = Piece {
            body,
            extent: 0,
            block: None,
        };
        Ok(in_memory(core, &piece, &extent).map(|whole| Remembered {
            piece,
            extent,
            whole,
            want: range.start as usize..range.end as usize,
        }))
    }
}

/// Bodies kept from being reused while they are read.
pub(crate) struct Pins<D: Disk> {
    core: Arc<Core<D>>,
    bodies: Vec<u64>,
}

impl<D: Disk> Pins<D> {
    fn none(core: &Arc<Core<D>>) -> Pins<D> {
        Pins {
            core: core.clone(),
            bodies: Vec::new(),
        }
    }
}

impl<D: Disk> Drop for Pins<D> {
    fn drop(&mut self) {
        for body in self.bodies.drain(..) {
            for run in self.core.reclaim.unpin(body) {
                self.core.space.put(run);
            }
        }
    }
}

/// Where the bytes `range` of a value are; `None` when the value went away meanwhile, none when they were let go.
pub(crate) fn resolve<D: Disk>(
    core: &Arc<Core<D>>,
    view: View<'_>,
    place: Place,
    range: Range<u64>,
) -> Result<Option<(VecDeque<Segment>, Pins<D>)>> {
    let mut segments = VecDeque::new();
    let mut pins = Pins::none(core);
    if range.is_empty() || matches!(place, Place::Away(_)) {
        return Ok(Some((segments, pins)));
    }
    let parts = match place {
        Place::Joined(body) => match view.parts(body)? {
            Some(parts) => parts,
            None => return Ok(None),
        },
        place => vec![(u64::MAX, place)],
    };
    let mut begin = 0_u64;
    for (size, place) in parts {
        let end = begin.saturating_add(size);
        let wanted = begin.max(range.start)..end.min(range.end);
        if wanted.start < wanted.end {
            let wanted = wanted.start - begin..wanted.end - begin;
            if !resolve_part(view, place, wanted, &mut segments, &mut pins)? {
                return Ok(None);
            }
        }
        begin = end;
    }
    // The parts of a value that went away may be fewer already, from the end on.
    Ok((begin >= range.end).then_some((segments, pins)))
}

fn resolve_part<D: Disk>(
    view: View<'_>,
    place: Place,
    wanted: Range<u64>,
    segments: &mut VecDeque<Segment>,
    pins: &mut Pins<D>,
) -> Result<bool> {
    if let Place::Inline(body) = place {
        let Some(bytes) = view.get(Table::Inline, &keys::body(body))? else {
            return Ok(false);
        };
        let end = bytes.len().min(wanted.end as usize);
        let start = end.min(wanted.start as usize);
        segments.push_back(Segment::Ready(Buf::from(bytes.slice(start..end))));
        return Ok(true);
    }
    let Some((body, extents)) = view.extents(place)? else {
        return Ok(false);
    };
    pins.core.reclaim.pin(body);
    pins.bodies.push(body);
    let mut begin = 0;
    for (number, extent) in extents.into_iter().enumerate() {
        let end = begin + u64::from(extent.bytes);
        let part = begin.max(wanted.start)..end.min(wanted.end);
        if part.start < part.end {
            segments.push_back(Segment::Stored {
                piece: Piece {
                    body,
                    extent: number as u32,
                    block: None,
                },
                extent,
                want: (part.start - begin) as usize..(part.end - begin) as usize,
            });
        }
        begin = end;
    }
    Ok(true)
}

/// Notes that a block is not what was stored, and says so.
pub(crate) fn mismatch<D: Disk>(
    core: &Core<D>,
    label: &Label,
    extent: &Extent,
    block: usize,
) -> StoreError {
    let what = format!(
        "block {block} of the extent at granule {} does not match its checksum",
        extent.start
    );
    let error = label.error(ErrorKind::Corrupt, &what);
    core.note(Finding {
        granule: extent.start,
        block,
        ..label.finding(what)
    });
    error
}

/// Notes that a row of the index is not what was stored, if that is what `error` says, and names the value that it was looked up for.
pub(crate) fn row_mismatch<D: Disk>(
    core: &Core<D>,
    label: &Label,
    error: StoreError,
) -> StoreError {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    let what = error.message().to_owned();
    let named = label.error(error.kind(), &what).with_source(error);
    core.note(label.finding(what));
    named
}

/// All bytes of an extent, if they are in memory.
pub(crate) fn in_memory<D: Disk>(core: &Core<D>, piece: &Piece, extent: &Extent) -> Option<Buf> {
    let found = core.cache.get(piece);
    let whole = found.filter(|whole| whole.len() == extent.bytes as usize)?;
    core.counters.cache_hits.fetch_add(1, Relaxed);
    Some(whole)
}

/// What a read has to do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// It looks there first, and leaves there what it read.
    First,
    /// The same; the extent was looked for, and is not there whole.
    NotWhole,
    /// Nothing.
    Passed,
}

/// Reads bytes `want` of an extent, from memory if they are there.
pub(crate) async fn read<D: Disk>(
    core: &Core<D>,
    label: &Label,
    piece: Piece,
    extent: Extent,
    want: Range<usize>,
    memory: Memory,
) -> Result<Buf> {
    let bytes = extent.bytes as usize;
    let first = want.start / BLOCK_BYTES;
    let last = (want.end - 1) / BLOCK_BYTES;
    let mismatch = |block: usize| mismatch(core, label, &extent, block);
    let part = Piece {
        block: Some(first as u8),
        ..piece
    };
    if memory != Memory::Passed && core.cache.is_on() {
        if memory == Memory::First
            && let Some(whole) = in_memory(core, &piece, &extent)
        {
            let blocks = first * BLOCK_BYTES..bytes.min((last + 1) * BLOCK_BYTES);
            extent.check(first, &whole[blocks]).map_err(mismatch)?;
            return Ok(whole.slice(want));
        }
        if first == last
            && let Some(block) = core.cache.get(&part)
            && block.len() == bytes.min((first + 1) * BLOCK_BYTES) - first * BLOCK_BYTES
        {
            core.counters.cache_hits.fetch_add(1, Relaxed);
            extent.check(first, &block).map_err(mismatch)?;
            let begin = first * BLOCK_BYTES;
            return Ok(block.slice(want.start - begin..want.end - begin));
        }
        core.counters.cache_misses.fetch_add(1, Relaxed);
    }
    // Most of an extent is read whole, so that the next reader finds it whole.
    let whole = (last - first + 1) * BLOCK_BYTES * 2 >= bytes;
    let (from, to) = match whole {
        true => (0, bytes),
        false => (first * BLOCK_BYTES, bytes.min((last + 1) * BLOCK_BYTES)),
    };
    let padded = (to - from).next_multiple_of(GRANULE_BYTES);
    let into = core.pool.take_cold(padded).await;
    let offset = core.space.offset(extent.start) + from as u64;
    let (done, mut buf) = core.data.read_at(offset, into, padded).await;
    done.map_err(|error| label.unread(error))?;
    if buf.len() < to - from {
        return Err(mismatch(first));
    }
    buf.set_len(to - from);
    let buf = buf.freeze();
    extent.check(from / BLOCK_BYTES, &buf).map_err(mismatch)?;
    if memory != Memory::Passed {
        if whole {
            core.cache.insert(piece, buf.clone());
        } else if first == last {
            core.cache.insert(part, buf.clone());
        }
    }
    Ok(buf.slice(want.start - from..want.end - from))
}

type Reading = Pin<Box<dyn Future<Output = Result<Buf>> + Send>>;

enum Ahead {
    Reading(Reading),
    Done(Result<Buf>),
}

/// The bytes of a value in an [`Engine`](crate::Engine).
pub struct EngineBody<D: Disk> {
    label: Label,
    segments: VecDeque<Segment>,
    /// The extent of the first segment, when it is in memory.
    held: Option<Buf>,
    ahead: VecDeque<Ahead>,
    /// Held until the body is dropped.
    pins: Pins<D>,
}

impl<D: Disk> std::fmt::Debug for EngineBody<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineBody({} segments left)", self.segments.len())
    }
}

impl<D: Disk> EngineBody<D> {
    pub(crate) fn new(label: Label, segments: VecDeque<Segment>, pins: Pins<D>) -> EngineBody<D> {
        EngineBody {
            label,
            segments,
            held: None,
            ahead: VecDeque::new(),
            pins,
        }
    }

    pub(crate) fn remembered(
        core: &Arc<Core<D>>,
        label: Label,
        found: Remembered,
    ) -> EngineBody<D> {
        let segment = Segment::Stored {
            piece: found.piece,
            extent: found.extent,
            want: found.want,
        };
        EngineBody {
            held: Some(found.whole),
            ..EngineBody::new(label, VecDeque::from([segment]), Pins::none(core))
        }
    }

    /// The next bytes, if they are in memory and nothing before them is being read.
    fn next_held(&mut self) -> Result<Option<Buf>> {
        let (
            true,
            Some(Segment::Stored {
                piece,
                extent,
                want,
            }),
        ) = (self.ahead.is_empty(), self.segments.front_mut())
        else {
            return Ok(None);
        };
        if self.held.is_none() {
            self.held = in_memory(&self.pins.core, piece, extent);
        }
        let Some(whole) = &self.held else {
            return Ok(None);
        };
        let end = (want.start / STEP_BYTES + 1) * STEP_BYTES;
        let step = want.start..want.end.min(end);
        let first = step.start / BLOCK_BYTES;
        let blocks = first * BLOCK_BYTES..whole.len().min(step.end.next_multiple_of(BLOCK_BYTES));
        extent
            .check(first, &whole[blocks])
            .map_err(|block| mismatch(&self.pins.core, &self.label, extent, block))?;
        let buf = whole.slice(step.clone());
        want.start = step.end;
        if want.start == want.end {
            self.segments.pop_front();
            self.held = None;
        }
        Ok(Some(buf))
    }

    fn begin(&self, segment: Segment, memory: Memory) -> Ahead {
        match segment {
            Segment::Ready(buf) => Ahead::Done(Ok(buf)),
            Segment::Stored {
                piece,
                extent,
                want,
            } => {
                let (core, label) = (self.pins.core.clone(), self.label.clone());
                Ahead::Reading(Box::pin(async move {
                    read(&core, &label, piece, extent, want, memory).await
                }))
            }
        }
    }
}

impl<D: Disk> Body for EngineBody<D> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        if let Some(buf) = self.next_held()? {
            return Ok(Some(buf));
        }
        // What comes next was just looked for, unless it is being read already.
        let mut memory = match self.ahead.is_empty() {
            true => Memory::NotWhole,
            false => Memory::First,
        };
        if self.ahead.is_empty() && self.segments.len() == 1 {
            // The common case of a small value needs no box.
            return match self.segments.pop_front() {
                Some(Segment::Stored {
                    piece,
                    extent,
                    want,
                }) => {
                    let (core, label) = (&self.pins.core, &self.label);
                    let reading = read(core, label, piece, extent, want, memory);
                    reading.await.map(Some)
                }
                Some(Segment::Ready(buf)) => Ok(Some(buf)),
                None => Ok(None),
            };
        }
        while self.ahead.len() < self.pins.core.config.read_depth.max(1)
            && let Some(segment) = self.segments.pop_front()
        {
            let reading = self.begin(segment, memory);
            self.ahead.push_back(reading);
            memory = Memory::First;
        }
        let ahead = &mut self.ahead;
        poll_fn(|context| {
            for reading in ahead.iter_mut() {
                if let Ahead::Reading(future) = reading
                    && let Poll::Ready(done) = future.as_mut().poll(context)
                {
                    *reading = Ahead::Done(done);
                }
            }
            match ahead.pop_front() {
                None => Poll::Ready(Ok(None)),
                Some(Ahead::Done(done)) => Poll::Ready(done.map(Some)),
                Some(reading) => {
                    ahead.push_front(reading);
                    Poll::Pending
                }
            }
        })
        .await
    }
}
