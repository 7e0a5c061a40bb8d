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
use crate::entry::Entry;
use crate::extent::{BLOCK_BYTES, Extent, GRANULE_BYTES};
use crate::findings::Finding;
use crate::segments::{Pins, Segments};
use crate::view::malformed;

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
            extent,
            whole,
            want: range.start as usize..range.end as usize,
        }))
    }

    /// The next of the bytes, which are wanted no more; or the number of a block that does not match.
    fn step(&mut self) -> std::result::Result<Buf, usize> {
        let start = self.want.start;
        let end = self.want.end.min((start / STEP_BYTES + 1) * STEP_BYTES);
        let first = start / BLOCK_BYTES;
        let blocks = first * BLOCK_BYTES..self.whole.len().min(end.next_multiple_of(BLOCK_BYTES));
        self.extent.check(first, &self.whole[blocks])?;
        self.want.start = end;
        Ok(self.whole.slice(start..end))
    }
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
    core.counters.cache.mine().hits.fetch_add(1, Relaxed);
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
            core.counters.cache.mine().hits.fetch_add(1, Relaxed);
            extent.check(first, &block).map_err(mismatch)?;
            let begin = first * BLOCK_BYTES;
            return Ok(block.slice(want.start - begin..want.end - begin));
        }
        core.counters.cache.mine().misses.fetch_add(1, Relaxed);
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
    /// What comes first, or the rest of it, when it is in memory.
    held: Option<Remembered>,
    /// What follows.
    segments: Segments,
    ahead: VecDeque<Ahead>,
    /// Held until the body is dropped.
    pins: Pins<D>,
}

impl<D: Disk> std::fmt::Debug for EngineBody<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineBody({} segments at hand)", self.segments.len())
    }
}

impl<D: Disk> EngineBody<D> {
    pub(crate) fn new(label: Label, segments: Segments, pins: Pins<D>) -> EngineBody<D> {
        EngineBody {
            label,
            held: None,
            segments,
            ahead: VecDeque::new(),
            pins,
        }
    }

    pub(crate) fn remembered(
        core: &Arc<Core<D>>,
        label: Label,
        found: Remembered,
    ) -> EngineBody<D> {
        EngineBody {
            held: Some(found),
            ..EngineBody::new(label, Segments::default(), Pins::none(core))
        }
    }

    /// The next bytes, if they are in memory and nothing before them is being read.
    fn next_held(&mut self) -> Result<Option<Buf>> {
        if !self.ahead.is_empty() {
            return Ok(None);
        }
        let (core, label) = (&self.pins.core, &self.label);
        if self.held.is_none() {
            let front = self.segments.front(core);
            let Some(Segment::Stored {
                piece,
                extent,
                want,
            }) = front.map_err(|error| row_mismatch(core, label, error))?
            else {
                return Ok(None);
            };
            let Some(whole) = in_memory(core, piece, extent) else {
                return Ok(None);
            };
            self.held = Some(Remembered {
                extent: *extent,
                whole,
                want: want.clone(),
            });
            self.segments.drop_front();
        }
        let Some(held) = &mut self.held else {
            return Ok(None);
        };
        let step = held.step();
        let buf = step.map_err(|block| mismatch(core, label, &held.extent, block))?;
        if held.want.is_empty() {
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
        if self.ahead.is_empty() && self.segments.is_short() {
            // The common case of a small value needs no box.
            return match self.segments.pop(&self.pins.core)? {
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
            && let Some(segment) = self.segments.pop(&self.pins.core).transpose()
        {
            let reading = match segment {
                Ok(segment) => self.begin(segment, memory),
                Err(error) => Ahead::Done(Err(row_mismatch(&self.pins.core, &self.label, error))),
            };
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
