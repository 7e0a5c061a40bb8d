//! Where a command's data lies: PRP entries and lists (Base 2.0, section 4.1.1), and SGLs (4.1.2), walked over the client's memory.
//!
//! Lists lie in memory that the client may change at any moment: every entry is read once, and what was read is checked.

use forebay_mem::{PAGE_BYTES, RegionSlice};
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry};

use super::memory::{Direction, Memory, Piece};

/// Descriptors of one command, counting those of lists: so many for each page of its data, and some beside. More would be work without an
/// end, or out of all proportion to what it moves.
const DESCRIPTORS_A_PAGE: usize = 2;
const DESCRIPTORS_BESIDE: usize = 1024;
const DESCRIPTORS_MAX: usize = 65_536;

const PAGE: u64 = PAGE_BYTES as u64;
const ENTRY_BYTES: u64 = 8;

/// The pieces of memory that hold a command's data, in order.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub(super) parts: Vec<RegionSlice>,
    /// Bytes of all.
    pub(super) len: u64,
    /// Pieces and entries of lists that were looked at since somebody asked.
    walked: usize,
}

/// Why the pieces are not all there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The status to answer.
    Status(Status),
    /// Some of it, or a list, is far: the client has to be asked.
    Far,
}

impl From<Status> for Stop {
    fn from(status: Status) -> Stop {
        Stop::Status(status)
    }
}

impl Segments {
    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// How much work its walks were since the last time, however they ended: pieces and entries of lists.
    pub(super) fn take_walked(&mut self) -> usize {
        std::mem::take(&mut self.walked)
    }

    /// Finds the first `len` bytes of a command's data, all of which are near.
    ///
    /// # Errors
    /// See [`Stop`]; nothing of the client's memory is held then.
    pub(super) fn walk(
        &mut self,
        memory: &Memory,
        entry: &SubmissionQueueEntry,
        len: u64,
        direction: Direction,
    ) -> Result<(), Stop> {
        self.clear();
        let walked = match len {
            0 => Ok(()),
            len => self.walk_lists(memory, entry, len, direction),
        };
        if walked.is_err() {
            self.clear();
        }
        walked
    }

    fn walk_lists(
        &mut self,
        memory: &Memory,
        entry: &SubmissionQueueEntry,
        len: u64,
        direction: Direction,
    ) -> Result<(), Stop> {
        let mut entries = 0;
        let mut find = |address, len| self.find(memory, address, len, direction);
        let walked = Walk::new(entry, len, &mut find).and_then(|mut walk| {
            if walk.list().is_some() {
                read_lists(memory, &mut walk, &mut entries, &mut find)?;
            }
            walk.finish(&mut find)
        });
        self.walked += entries;
        walked
    }

    /// Copies them into `bytes`, which are no fewer than they hold.
    pub(super) fn read(&self, bytes: &mut [u8]) -> Result<(), Status> {
        let mut at = 0;
        for part in &self.parts {
            let end = at + part.len();
            if !part.read(0, &mut bytes[at..end]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            at = end;
        }
        Ok(())
    }

    /// Copies `bytes` into them, which are no fewer than they hold.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), Status> {
        let mut at = 0;
        for part in &self.parts {
            let end = at + part.len();
            if !part.write(0, &bytes[at..end]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            at = end;
        }
        Ok(())
    }

    fn find(
        &mut self,
        memory: &Memory,
        mut address: u64,
        mut len: u64,
        direction: Direction,
    ) -> Result<(), Stop> {
        while len > 0 {
            let piece = match memory.piece(address, len, direction) {
                Some(Piece::Near(piece)) => piece,
                Some(Piece::Far(_)) => return Err(Stop::Far),
                None => return Err(Status::DATA_TRANSFER_ERROR.into()),
            };
            let taken = piece.len() as u64;
            address = address.wrapping_add(taken);
            len -= taken;
            self.len += taken;
            self.parts.push(piece);
            self.walked += 1;
        }
        Ok(())
    }
}

/// Reads the lists of a walk, all of which are near; counts their entries.
fn read_lists(
    memory: &Memory,
    walk: &mut Walk,
    entries: &mut usize,
    find: &mut impl FnMut(u64, u64) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut page = [0; PAGE_BYTES];
    while let Some((address, len)) = walk.list() {
        let bytes = &mut page[..len];
        *entries += len.div_ceil(SglDescriptor::BYTES);
        match memory.piece(address, len as u64, Direction::ToController) {
            Some(Piece::Far(_)) => return Err(Stop::Far),
            Some(Piece::Near(list)) if list.read(0, bytes) => {}
            _ => return Err(Status::DATA_TRANSFER_ERROR.into()),
        }
        walk.take(bytes, find)?;
    }
    Ok(())
}

/// A walk along the lists of one command. It reads no memory: whoever walks reads the next piece of a [`list`](Walk::list), from
/// wherever that lies, and is told by `find` of addresses that follow each other, and how many bytes lie there.
pub(super) struct Walk {
    list: List,
    /// Addresses that follow each other, not told of yet: where, and how many bytes.
    run: Option<(u64, u64)>,
    /// Bytes that no address is known for yet.
    wanted: u64,
    descriptors: usize,
    descriptors_max: usize,
}

/// How many descriptors, and so pieces of memory, data of so many bytes has at most.
pub(super) fn descriptors_max(len: u64) -> usize {
    let pages = usize::try_from(len.div_ceil(PAGE)).unwrap_or(DESCRIPTORS_MAX);
    let many = pages.saturating_mul(DESCRIPTORS_A_PAGE);
    DESCRIPTORS_MAX.min(many.saturating_add(DESCRIPTORS_BESIDE))
}

enum List {
    None,
    /// Where it goes on.
    Prps(u64),
    Sgl {
        segment: Segment,
        /// Bytes of it that were read.
        done: u32,
        /// The one that follows it.
        next: Option<Segment>,
    },
}

impl Walk {
    /// Begins with what is in the command itself: for its first `len` bytes, which are some.
    pub(super) fn new<E: From<Status>>(
        entry: &SubmissionQueueEntry,
        len: u64,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<Walk, E> {
        let mut walk = Walk {
            list: List::None,
            run: None,
            wanted: len,
            descriptors: 1,
            descriptors_max: descriptors_max(len),
        };
        match entry.psdt() {
            0 => walk.prps(entry.prp1(), entry.prp2(), find)?,
            1 => {
                if let Next::Segment(segment) = walk.descriptor(entry.sgl(), find)? {
                    walk.begin(segment);
                }
            }
            // Metadata by an SGL of its own: there is none here.
            _ => return Err(Status::INVALID_FIELD.into()),
        }
        Ok(walk)
    }

    /// Where the next piece of a list lies, and how many bytes of at most a page; `None` when there is none to be read.
    pub(super) fn list(&self) -> Option<(u64, usize)> {
        match self.list {
            List::None => None,
            List::Prps(at) => Some((at, (self.entries(at) * ENTRY_BYTES) as usize)),
            List::Sgl { segment, done, .. } => {
                let len = (segment.length - done).min(PAGE_BYTES as u32);
                let address = segment.address.wrapping_add(done.into());
                Some((address, len as usize))
            }
        }
    }

    /// The piece of a list that was asked for.
    pub(super) fn take<E: From<Status>>(
        &mut self,
        bytes: &[u8],
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.list {
            List::None => Ok(()),
            List::Prps(at) => self.take_prps(at, bytes, find),
            List::Sgl {
                segment,
                done,
                next,
            } => self.take_descriptors(segment, done, next, bytes, find),
        }
    }

    /// All lists were read.
    pub(super) fn finish<E: From<Status>>(
        mut self,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.tell(find)?;
        match self.wanted {
            0 => Ok(()),
            _ => Err(Status::DATA_SGL_LENGTH_INVALID.into()),
        }
    }

    /// The next bytes lie there: as many as are wanted, at most `len`.
    fn push<E>(
        &mut self,
        address: u64,
        len: u64,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = len.min(self.wanted);
        if len == 0 {
            return Ok(());
        }
        self.wanted -= len;
        match &mut self.run {
            Some((begin, so_far)) if begin.checked_add(*so_far) == Some(address) => *so_far += len,
            _ => {
                self.tell(find)?;
                self.run = Some((address, len));
            }
        }
        Ok(())
    }

    fn tell<E>(&mut self, find: &mut impl FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
        match self.run.take() {
            Some((address, len)) => find(address, len),
            None => Ok(()),
        }
    }

    fn prps<E: From<Status>>(
        &mut self,
        prp1: u64,
        prp2: u64,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if !prp1.is_multiple_of(4) {
            return Err(Status::PRP_OFFSET_INVALID.into());
        }
        self.push(prp1, PAGE - prp1 % PAGE, find)?;
        if self.wanted == 0 {
            return Ok(());
        }
        if self.wanted <= PAGE {
            return self.page(prp2, find);
        }
        if !prp2.is_multiple_of(ENTRY_BYTES) {
            return Err(Status::PRP_OFFSET_INVALID.into());
        }
        self.list = List::Prps(prp2);
        Ok(())
    }

    /// Entries of the list at `at` that matter: up to the end of its page, or of the data.
    fn entries(&self, at: u64) -> u64 {
        let room = (PAGE - at % PAGE) / ENTRY_BYTES;
        room.min(self.wanted.div_ceil(PAGE))
    }

    fn take_prps<E: From<Status>>(
        &mut self,
        at: u64,
        bytes: &[u8],
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let entries = self.entries(at);
        // The last entry of a list that ends too early is where the next one begins.
        let chained = entries < self.wanted.div_ceil(PAGE);
        let entry = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let mut pages = bytes.as_chunks::<8>().0.iter().map(entry);
        for _ in 0..entries - u64::from(chained) {
            self.page(pages.next().unwrap_or_default(), find)?;
        }
        self.list = match pages.next() {
            Some(next) if !next.is_multiple_of(PAGE) => {
                return Err(Status::PRP_OFFSET_INVALID.into());
            }
            Some(next) => List::Prps(next),
            None => List::None,
        };
        Ok(())
    }

    fn page<E: From<Status>>(
        &mut self,
        address: u64,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if !address.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET_INVALID.into());
        }
        self.push(address, PAGE, find)
    }

    fn begin(&mut self, segment: Segment) {
        self.list = List::Sgl {
            segment,
            done: 0,
            next: None,
        };
    }

    fn take_descriptors<E: From<Status>>(
        &mut self,
        segment: Segment,
        done: u32,
        mut next: Option<Segment>,
        bytes: &[u8],
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        for descriptor in bytes.as_chunks::<{ SglDescriptor::BYTES }>().0 {
            // Only the last descriptor of a segment may name a further one.
            if next.is_some() {
                return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.into());
            }
            self.descriptors += 1;
            if self.descriptors > self.descriptors_max {
                return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.into());
            }
            let descriptor = SglDescriptor::decode(descriptor);
            if let Next::Segment(further) = self.descriptor(descriptor, find)? {
                if segment.last {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.into());
                }
                next = Some(further);
            }
            if self.wanted == 0 {
                self.list = List::None;
                return Ok(());
            }
        }
        let done = done + bytes.len() as u32;
        match next {
            _ if done < segment.length => {
                self.list = List::Sgl {
                    segment,
                    done,
                    next,
                };
            }
            Some(further) => self.begin(further),
            None => self.list = List::None,
        }
        Ok(())
    }

    fn descriptor<E: From<Status>>(
        &mut self,
        descriptor: SglDescriptor,
        find: &mut impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<Next, E> {
        let SglDescriptor {
            kind,
            subtype,
            address,
            length,
        } = descriptor;
        if subtype != SglSubtype::Address {
            return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.into());
        }
        match kind {
            SglKind::DataBlock => {
                self.push(address, u64::from(length), find)?;
                Ok(Next::Data)
            }
            SglKind::Segment | SglKind::LastSegment => {
                if length == 0 || !(length as usize).is_multiple_of(SglDescriptor::BYTES) {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.into());
                }
                if address.checked_add(length.into()).is_none() {
                    return Err(Status::DATA_TRANSFER_ERROR.into());
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
            | SglKind::Other(_) => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.into()),
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
