//! One segment on its way, gathered by reference.

use std::io;

use forebay_io::socket::Parts;
use forebay_mem::Buf;
use forebay_proto::iwarp::HEAD_BYTES_MAX;
use forebay_proto::iwarp::fpdu::{Crc, Trailer};

use super::regions::Regions;

/// Places that one segment may take: head, payload, trailer.
pub(super) const PLACES_PER_FPDU: usize = 3;

/// One segment, ready to go.
pub(super) struct Fpdu {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    pub(super) payload: Payload,
    trailer: Trailer,
    /// Room that is free again when it is sent.
    pub(super) room: u32,
}

/// What a segment carries.
pub(super) enum Payload {
    None,
    Bytes(Buf),
    Message(Vec<u8>),
    /// The peer reads memory that was exposed to it.
    Exposed(Piece),
}

/// Some of an answer's memory.
pub(super) struct Piece {
    pub(super) stag: u32,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// The answer ends, and its memory is pinned no longer.
    pub(super) last: bool,
}

impl Payload {
    /// How long it is.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Message(bytes) => bytes.len(),
            Payload::Exposed(piece) => piece.bytes,
        }
    }
}

impl Fpdu {
    /// A segment of this head and payload, whose ULPDU is so long.
    pub(super) fn new(
        head: &[u8],
        payload: Payload,
        ulpdu_bytes: usize,
        room: u32,
        crc: bool,
    ) -> Fpdu {
        let crc = crc.then(|| {
            let mut crc = Crc::new();
            crc.update(head);
            match &payload {
                Payload::Bytes(bytes) => crc.update(bytes),
                Payload::Message(bytes) => crc.update(bytes),
                // Exposed memory is staged when CRCs are in use.
                Payload::None | Payload::Exposed(_) => {}
            }
            crc
        });
        let mut fpdu = Fpdu {
            head: [0; HEAD_BYTES_MAX],
            head_bytes: head.len(),
            payload,
            trailer: Trailer::new(ulpdu_bytes, crc),
            room,
        };
        fpdu.head[..head.len()].copy_from_slice(head);
        fpdu
    }

    /// How long it is in all.
    pub(super) fn bytes(&self) -> usize {
        self.head_bytes + self.payload.bytes() + self.trailer.as_bytes().len()
    }

    /// Adds all but the first `skip` bytes.
    pub(super) fn gather<'a>(
        &'a self,
        gather: &mut impl Parts<'a>,
        mut skip: usize,
        regions: &'a Regions,
    ) -> io::Result<()> {
        let head = &self.head[..self.head_bytes];
        gather.bytes(rest(head, &mut skip));
        match &self.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => {
                gather.bytes(rest(bytes, &mut skip));
            }
            Payload::Message(bytes) => {
                gather.bytes(rest(bytes, &mut skip));
            }
            Payload::Exposed(piece) => {
                let memory = regions.memory(piece.stag).ok_or_else(gone)?;
                let over = skip.min(piece.bytes);
                skip -= over;
                let named = gather.region(memory, piece.offset + over, piece.bytes - over);
                named.ok_or_else(gone)?;
            }
        }
        gather.bytes(rest(self.trailer.as_bytes(), &mut skip));
        Ok(())
    }
}

fn rest<'a>(bytes: &'a [u8], skip: &mut usize) -> &'a [u8] {
    let over = (*skip).min(bytes.len());
    *skip -= over;
    &bytes[over..]
}

pub(super) fn gone() -> io::Error {
    io::Error::other("memory that the peer reads is gone")
}
