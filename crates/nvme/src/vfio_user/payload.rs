//! The data of one command, where the client's driver put it or wants it.

use forebay_mem::{Buf, BufMut, CopySite, RegionSlice, count_copy};
use forebay_proto::nvme::Status;

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

/// Goes through the pieces of memory in order.
pub(super) struct Data {
    segments: Segments,
    /// None of them can vanish.
    steady: bool,
    /// The piece that the next byte lies in, and where.
    part: usize,
    offset: usize,
}

impl Data {
    pub(super) fn new(segments: Segments) -> Data {
        Data {
            steady: segments.parts.iter().all(|part| part.region().is_steady()),
            segments,
            part: 0,
            offset: 0,
        }
    }

    /// The list of pieces, to be used again.
    pub(super) fn into_segments(self) -> Segments {
        self.segments
    }

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
}

impl Payload for Data {
    fn len(&self) -> u64 {
        self.segments.len
    }

    async fn ready(&mut self) -> Result<(), Status> {
        // It lies in the client's memory already.
        Ok(())
    }

    async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        if len > into.room() {
            return Err(Status::INTERNAL_ERROR);
        }
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

    fn source(&mut self, len: u64) -> Option<RegionSlice> {
        self.in_place(len)
    }

    fn target(&mut self, len: u64) -> Option<RegionSlice> {
        self.in_place(len)
    }

    fn turn(&mut self) {
        (self.part, self.offset) = (0, 0);
    }

    async fn send(&mut self, buf: Buf) -> Result<(), Status> {
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
