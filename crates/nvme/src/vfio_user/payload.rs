//! The data of one command, where the client's driver put it or wants it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_mem::{Buf, BufMut, CopySite, RegionSlice, count_copy};
use forebay_proto::nvme::Status;

use super::asking::Asker;
use super::far::Far;
use super::memory::{Memory, Unmapped};
use super::transfer::Segments;
use crate::target::Payload;

/// A command in progress.
pub(super) struct Ticket {
    /// Its queue.
    pub(super) qid: u16,
    /// Its identifier.
    pub(super) cid: u16,
    /// Its data.
    pub(super) data: Data,
}

/// The data of one command.
pub(super) enum Data {
    Near(Near),
    /// The short way pays nothing for its length.
    Far(Box<Far>),
}

/// Goes through the pieces of memory in order.
pub(super) struct Near {
    segments: Segments,
    /// What its list counts as.
    held: Option<Held>,
    /// None of them can vanish.
    steady: bool,
    /// The piece that the next byte lies in, and where.
    part: usize,
    offset: usize,
}

/// A list of pieces that is not counted is at most this long.
const FEW_PIECES: usize = 32;

/// How many pieces of memory the long lists of commands in progress have.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces(Arc<AtomicUsize>);

/// Some of them, until this is dropped.
pub(super) struct Held {
    of: Pieces,
    pieces: usize,
}

impl Pieces {
    pub(super) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn hold(&self, pieces: usize) -> Option<Held> {
        (pieces > FEW_PIECES).then(|| {
            self.0.fetch_add(pieces, Relaxed);
            let of = self.clone();
            Held { of, pieces }
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.pieces, Relaxed);
    }
}

impl Data {
    /// What lies in `segments`, which count among `pieces`.
    pub(super) fn new(segments: Segments, pieces: &Pieces) -> Data {
        Data::Near(Near {
            held: pieces.hold(segments.parts.len()),
            steady: segments.parts.iter().all(|part| part.region().is_steady()),
            segments,
            part: 0,
            offset: 0,
        })
    }

    /// The list of pieces, to be used again.
    pub(super) fn into_segments(self) -> Option<Segments> {
        match self {
            Data::Near(near) => Some(near.segments),
            Data::Far(_) => None,
        }
    }

    pub(super) fn is_far(&self) -> bool {
        matches!(self, Data::Far(_))
    }

    /// The most that it takes in memory of ours, in bytes: of data, and of the list of where that lies. What is near is the client's, and
    /// its lists are counted by their pieces.
    pub(super) fn most(&self) -> (u32, u32) {
        let bounded = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        match self {
            Data::Near(_) => (0, 0),
            Data::Far(far) => {
                let (bytes, list_bytes) = far.most();
                (bounded(bytes), bounded(list_bytes))
            }
        }
    }

    /// Whether it holds memory that was taken away.
    pub(super) fn holds(&self, unmapped: &Unmapped) -> bool {
        match self {
            Data::Near(near) => near.segments.parts.iter().any(|part| unmapped.holds(part)),
            Data::Far(_) => false,
        }
    }

    /// Finds out where it lies, if that takes questions.
    pub(super) async fn locate(&mut self) -> Result<(), Status> {
        match self {
            Data::Near(_) => Ok(()),
            Data::Far(far) => far.locate().await,
        }
    }

    /// The same by its addresses: nothing of the client's memory is held any more. `None` when some of it was unmapped.
    pub(super) fn by_address(self, asker: &Asker, memory: &Memory) -> Option<Data> {
        let near = match self {
            Data::Near(near) => near,
            far @ Data::Far(_) => return Some(far),
        };
        let runs = near.segments.parts.iter().map(|part| {
            let address = memory.address_of(part)?;
            Some((address, part.len() as u64))
        });
        let runs: Option<Arc<[_]>> = runs.collect();
        let far = Far::at(asker.clone(), runs?, near.held);
        Some(Data::Far(Box::new(far)))
    }
}

impl Near {
    /// The next bytes that lie side by side: at most `len`. They are taken by this.
    fn next(&mut self, len: u64) -> Option<RegionSlice> {
        let part = self.segments.parts.get(self.part)?;
        let rest = part.len() - self.offset;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest);
        let piece = part.slice(self.offset..self.offset + len)?;
        if len == rest {
            self.part += 1;
            self.offset = 0;
        } else {
            self.offset += len;
        }
        Some(piece)
    }

    /// As `next`, where the memory may be given to a device: what may vanish fails its transfer, which is then to blame on the
    /// client and not on the device.
    fn in_place(&mut self, len: u64) -> Option<RegionSlice> {
        match len > 0 && self.steady {
            true => self.next(len),
            false => None,
        }
    }

    fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        let mut done = 0;
        while done < len {
            let piece = self.next((len - done) as u64);
            let piece = piece.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
            let room = &mut into.spare()[done..done + piece.len()];
            if !piece.read(0, room) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            done += piece.len();
        }
        into.set_len(into.len() + len);
        count_copy(CopySite::ReadFrom, len);
        Ok(())
    }

    fn send(&mut self, buf: &Buf) -> Result<(), Status> {
        let mut done = 0;
        while done < buf.len() {
            let piece = self.next((buf.len() - done) as u64);
            let piece = piece.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
            if !piece.write(0, &buf[done..done + piece.len()]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            done += piece.len();
        }
        count_copy(CopySite::RetrieveInto, buf.len());
        Ok(())
    }
}

impl Payload for Data {
    fn len(&self) -> u64 {
        match self {
            Data::Near(near) => near.segments.len,
            Data::Far(far) => far.len(),
        }
    }

    async fn ready(&mut self) -> Result<(), Status> {
        match self {
            // It lies in the client's memory already.
            Data::Near(_) => Ok(()),
            Data::Far(far) => Box::pin(far.ready()).await,
        }
    }

    async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        if len > into.room() {
            return Err(Status::INTERNAL_ERROR);
        }
        match self {
            Data::Near(near) => near.receive(into, len),
            Data::Far(far) => Box::pin(far.receive(into, len)).await,
        }
    }

    fn source(&mut self, len: u64) -> Option<RegionSlice> {
        match self {
            Data::Near(near) => near.in_place(len),
            Data::Far(_) => None,
        }
    }

    fn target(&mut self, len: u64) -> Option<RegionSlice> {
        self.source(len)
    }

    fn turn(&mut self) {
        match self {
            Data::Near(near) => (near.part, near.offset) = (0, 0),
            Data::Far(far) => far.turn(),
        }
    }

    async fn send(&mut self, buf: Buf) -> Result<(), Status> {
        match self {
            Data::Near(near) => near.send(&buf),
            Data::Far(far) => Box::pin(far.send(&buf)).await,
        }
    }
}
