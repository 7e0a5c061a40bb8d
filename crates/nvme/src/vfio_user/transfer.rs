//! Where a command's data lies: PRP entries and lists (Base 2.0, section 4.1.1), and SGLs (4.1.2), walked over the client's memory.
//!
//! Lists lie in memory that the client may change at any moment: every entry is read once, and what was read is checked.

use forebay_mem::{PAGE_BYTES, RegionSlice};
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry};

use super::memory::{Direction, Memory};

/// Descriptors of one command, counting those of lists; more would be work without an end.
const DESCRIPTORS_MAX: usize = 65_536;

const PAGE: u64 = PAGE_BYTES as u64;
const ENTRY_BYTES: u64 = 8;

/// The pieces of memory that hold a command's data, in order.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub(super) parts: Vec<RegionSlice>,
    /// Bytes of all.
    pub(super) len: u64,
}

impl Segments {
    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// Finds the first `len` bytes of a command's data.
    ///
    /// # Errors
    /// The status to answer.
    pub(super) fn walk(
        &mut self,
        memory: &Memory,
        entry: &SubmissionQueueEntry,
        len: u64,
        direction: Direction,
    ) -> Result<(), Status> {
        self.clear();
        if len == 0 {
            return Ok(());
        }
        let mut walk = Walk {
            memory,
            direction,
            segments: self,
            run: None,
            wanted: len,
        };
        match entry.psdt() {
            0 => walk.prps(entry.prp1(), entry.prp2())?,
            1 => walk.sgl(entry.sgl())?,
            // Metadata by an SGL of its own: there is none here.
            _ => return Err(Status::INVALID_FIELD),
        }
        walk.resolve()?;
        match self.len == len {
            true => Ok(()),
            false => Err(Status::DATA_SGL_LENGTH_INVALID),
        }
    }
}

struct Walk<'a> {
    memory: &'a Memory,
    direction: Direction,
    segments: &'a mut Segments,
    /// Addresses that follow each other, not looked up yet: where, and how many bytes.
    run: Option<(u64, u64)>,
    /// Bytes that no address is known for yet.
    wanted: u64,
}

impl Walk<'_> {
    /// The next bytes lie there: as many as are wanted, at most `len`.
    fn push(&mut self, address: u64, len: u64) -> Result<(), Status> {
        let len = len.min(self.wanted);
        if len == 0 {
            return Ok(());
        }
        self.wanted -= len;
        match &mut self.run {
            Some((begin, so_far)) if begin.checked_add(*so_far) == Some(address) => *so_far += len,
            _ => {
                self.resolve()?;
                self.run = Some((address, len));
            }
        }
        Ok(())
    }

    fn resolve(&mut self) -> Result<(), Status> {
        let Some((mut address, mut len)) = self.run.take() else {
            return Ok(());
        };
        while len > 0 {
            let piece = self.memory.piece(address, len, self.direction);
            let piece = piece.ok_or(Status::DATA_TRANSFER_ERROR)?;
            let taken = piece.len() as u64;
            address = address.wrapping_add(taken);
            len -= taken;
            self.segments.len += taken;
            self.segments.parts.push(piece);
        }
        Ok(())
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Status> {
        let list = self
            .memory
            .slice(address, into.len() as u64, Direction::ToController);
        match list.is_some_and(|list| list.read(0, into)) {
            true => Ok(()),
            false => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    fn prps(&mut self, prp1: u64, prp2: u64) -> Result<(), Status> {
        if !prp1.is_multiple_of(4) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        self.push(prp1, PAGE - prp1 % PAGE)?;
        if self.wanted == 0 {
            return Ok(());
        }
        if self.wanted <= PAGE {
            return self.page(prp2);
        }
        if !prp2.is_multiple_of(ENTRY_BYTES) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let mut list = prp2;
        let mut bytes = [0; PAGE_BYTES];
        while self.wanted > 0 {
            let room = (PAGE - list % PAGE) / ENTRY_BYTES;
            let entries = room.min(self.wanted.div_ceil(PAGE));
            // The last entry of a list that ends too early is where the next one begins.
            let chained = entries < self.wanted.div_ceil(PAGE);
            let bytes = &mut bytes[..(entries * ENTRY_BYTES) as usize];
            self.read(list, bytes)?;
            let mut pages = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|entry| u64::from_le_bytes(*entry));
            for _ in 0..entries - u64::from(chained) {
                self.page(pages.next().unwrap_or_default())?;
            }
            if let Some(next) = pages.next() {
                if !next.is_multiple_of(PAGE) {
                    return Err(Status::PRP_OFFSET_INVALID);
                }
                list = next;
            }
        }
        Ok(())
    }

    fn page(&mut self, address: u64) -> Result<(), Status> {
        if !address.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        self.push(address, PAGE)
    }

    fn sgl(&mut self, first: SglDescriptor) -> Result<(), Status> {
        let mut descriptors = 1;
        let mut segment = match self.descriptor(first)? {
            Next::Data => return Ok(()),
            Next::Segment(segment) => segment,
        };
        let mut bytes = [0; PAGE_BYTES];
        'segments: loop {
            let mut next = None;
            for offset in (0..segment.length).step_by(PAGE_BYTES) {
                let len = (segment.length - offset).min(PAGE_BYTES as u32);
                let bytes = &mut bytes[..len as usize];
                let address = segment.address.checked_add(u64::from(offset));
                self.read(address.ok_or(Status::DATA_TRANSFER_ERROR)?, bytes)?;
                for descriptor in bytes.as_chunks::<{ SglDescriptor::BYTES }>().0 {
                    // Only the last descriptor of a segment may name a further one.
                    if next.is_some() {
                        return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
                    }
                    descriptors += 1;
                    if descriptors > DESCRIPTORS_MAX {
                        return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS);
                    }
                    if let Next::Segment(further) =
                        self.descriptor(SglDescriptor::decode(descriptor))?
                    {
                        if segment.last {
                            return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
                        }
                        next = Some(further);
                    }
                    if self.wanted == 0 {
                        return Ok(());
                    }
                }
            }
            match next {
                Some(further) => segment = further,
                None => break 'segments,
            }
        }
        Ok(())
    }

    fn descriptor(&mut self, descriptor: SglDescriptor) -> Result<Next, Status> {
        let SglDescriptor {
            kind,
            subtype,
            address,
            length,
        } = descriptor;
        if subtype != SglSubtype::Address {
            return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID);
        }
        match kind {
            SglKind::DataBlock => {
                self.push(address, u64::from(length))?;
                Ok(Next::Data)
            }
            SglKind::Segment | SglKind::LastSegment => {
                if length == 0 || !(length as usize).is_multiple_of(SglDescriptor::BYTES) {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
                }
                Ok(Next::Segment(Segment {
                    address,
                    length,
                    last: kind == SglKind::LastSegment,
                }))
            }
            SglKind::BitBucket
            | SglKind::KeyedDataBlock
            | SglKind::TransportDataBlock
            | SglKind::Other(_) => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
    }
}

enum Next {
    Data,
    Segment(Segment),
}

#[derive(Clone, Copy)]
struct Segment {
    address: u64,
    length: u32,
    last: bool,
}
