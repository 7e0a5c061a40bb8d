//! The client's memory, by the addresses that the device knows it by: near what it gave a file of, far what only it reaches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::{Context, Poll};

use forebay_io::unmapping::let_go;
use forebay_mem::{PAGE_BYTES, RegionId, RegionSlice};
use forebay_proto::vfio_user::{DmaMap, DmaUnmap};
use tokio::sync::mpsc;

use super::errno::Errno;
use super::mapping::{Mapped, Offered, Turns};

/// Ranges that one client may have mapped.
pub(super) const MAPS_MAX: usize = 4096;

struct Mapping {
    size: u64,
    readable: bool,
    writable: bool,
    /// What tells of its end; `None` for memory without a file, which is far.
    mapped: Option<(u64, RegionSlice)>,
}

/// Bytes that lie side by side.
pub(super) enum Piece {
    Near(RegionSlice),
    /// So many; only the client reaches them.
    Far(u64),
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToController,
    ToHost,
    /// The same bytes both ways.
    Both,
}

/// Memory that a queue uses as long as it is mapped. The client may take it away and give it back: a virtual machine does so when its
/// firmware moves things about.
#[derive(Debug)]
pub(super) struct Place {
    address: u64,
    len: u64,
    direction: Direction,
    at: At,
}

#[derive(Debug)]
enum At {
    Near(RegionSlice),
    Far,
    Gone,
}

/// Memory that the client took away, or does not let us reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

impl Place {
    /// The memory, if it is near.
    pub(super) fn memory(&self) -> Result<&RegionSlice, Gone> {
        match &self.at {
            At::Near(memory) => Ok(memory),
            At::Far | At::Gone => Err(Gone),
        }
    }

    pub(super) fn is_far(&self) -> bool {
        matches!(self.at, At::Far)
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.at, At::Gone)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Lets go of memory that was unmapped.
    pub(super) fn let_go(&mut self, unmapped: &Unmapped) {
        let gone = match &self.at {
            At::Near(memory) => unmapped.holds(memory),
            At::Far => unmapped.overlaps(self.address, self.len),
            At::Gone => false,
        };
        if gone {
            self.at = At::Gone;
        }
    }

    /// Finds it again, if it was let go.
    pub(super) fn find(&mut self, memory: &Memory) {
        if self.is_gone() {
            self.at = memory.at(self.address, self.len, self.direction);
        }
    }

    #[cfg(test)]
    pub(super) fn fixed(memory: RegionSlice) -> Place {
        Place {
            address: 0,
            len: memory.len() as u64,
            direction: Direction::ToHost,
            at: At::Near(memory),
        }
    }
}

/// Ranges that were taken away.
#[derive(Debug, Default)]
pub(super) struct Unmapped {
    /// What is still to be [released](Memory::poll_released).
    pub(super) names: Vec<u64>,
    /// What was near. It goes with this, when its users have let go of it.
    near: Leaving,
    /// What was far.
    far: Vec<Range<u64>>,
}

/// Memory on its way out; of much, wherever it is dropped, the thread goes on.
#[derive(Debug, Default)]
struct Leaving(Vec<RegionSlice>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let bytes = memory.iter().map(RegionSlice::len);
        let bytes = bytes.fold(0, usize::saturating_add);
        let_go(memory, bytes);
    }
}

impl Unmapped {
    /// Whether this memory was taken away.
    pub(super) fn holds(&self, memory: &RegionSlice) -> bool {
        let id = memory.region().id();
        self.near.0.iter().any(|near| near.region().id() == id)
    }

    /// Whether far memory among these bytes was taken away.
    pub(super) fn overlaps(&self, address: u64, len: u64) -> bool {
        let end = address.saturating_add(len);
        self.far
            .iter()
            .any(|range| range.start < end && address < range.end)
    }
}

/// What one client has mapped.
pub(super) struct Memory {
    by_address: BTreeMap<u64, Mapping>,
    /// Where each of those begins that are near.
    by_region: BTreeMap<RegionId, u64>,
    last_name: u64,
    turns: Turns,
    /// There is far memory, or was.
    any_far: bool,
    tell: mpsc::UnboundedSender<u64>,
    released: mpsc::UnboundedReceiver<u64>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        let (tell, released) = mpsc::unbounded_channel();
        Memory {
            by_address: BTreeMap::new(),
            by_region: BTreeMap::new(),
            last_name: 0,
            turns: Turns::new(),
            any_far: false,
            tell,
            released,
        }
    }

    /// Whether the client ever gave memory without a file: who did not pays nothing for it.
    pub(super) fn any_far(&self) -> bool {
        self.any_far
    }

    /// Whether a range may be mapped beside those that are.
    fn check(&self, map: &DmaMap) -> Result<(), Errno> {
        let pages = [map.address, map.size, map.offset];
        if pages.iter().any(|&value| value % PAGE_BYTES as u64 != 0) {
            return Err(Errno::INVALID);
        }
        let end = map.address.checked_add(map.size).ok_or(Errno::INVALID)?;
        let before = self.by_address.range(..end).next_back();
        if before.is_some_and(|(&address, mapping)| address + mapping.size > map.address) {
            return Err(Errno::EXISTS);
        }
        if self.by_address.len() >= MAPS_MAX {
            return Err(Errno::NO_SPACE);
        }
        Ok(())
    }

    /// Takes room for a range that the client gives a file of, which is then to be mapped and [kept](Memory::keep).
    pub(super) fn offer(&mut self, map: &DmaMap) -> Result<Offered, Errno> {
        self.check(map)?;
        self.last_name += 1;
        Offered::new(map, self.last_name, self.tell.clone())
    }

    /// The client's turns to have files mapped that may have to be waited for.
    pub(super) fn turns(&self) -> Turns {
        self.turns.clone()
    }

    /// Keeps a range that was offered and mapped, unless there are too many of others by now.
    pub(super) fn keep(&mut self, mapped: Mapped) -> Result<(), Errno> {
        let Mapped { map, name, memory } = mapped;
        self.check(&map)?;
        self.insert(&map, Some((name, memory)));
        Ok(())
    }

    /// Keeps a range without a file.
    pub(super) fn keep_far(&mut self, map: &DmaMap) -> Result<(), Errno> {
        self.check(map)?;
        self.any_far = true;
        self.insert(map, None);
        Ok(())
    }

    fn insert(&mut self, map: &DmaMap, mapped: Option<(u64, RegionSlice)>) {
        if let Some((_, memory)) = &mapped {
            self.by_region.insert(memory.region().id(), map.address);
        }
        let mapping = Mapping {
            size: map.size,
            readable: map.readable,
            writable: map.writable,
            mapped,
        };
        self.by_address.insert(map.address, mapping);
    }

    /// Takes a range away: exactly one that was mapped, or all.
    pub(super) fn unmap(&mut self, unmap: &DmaUnmap) -> Result<Unmapped, Errno> {
        let gone: Vec<(u64, Mapping)> = if unmap.all {
            std::mem::take(&mut self.by_address).into_iter().collect()
        } else {
            match self.by_address.get(&unmap.address) {
                Some(mapping) if mapping.size == unmap.size => {}
                _ => return Err(Errno::MISSING),
            }
            self.by_address
                .remove_entry(&unmap.address)
                .into_iter()
                .collect()
        };
        let mut unmapped = Unmapped::default();
        for (address, mapping) in gone {
            match mapping.mapped {
                Some((name, memory)) => {
                    self.by_region.remove(&memory.region().id());
                    unmapped.names.push(name);
                    unmapped.near.0.push(memory);
                }
                // The sum was checked when it was mapped.
                None => unmapped.far.push(address..address + mapping.size),
            }
        }
        Ok(unmapped)
    }

    /// The name of a mapping that nothing uses any more.
    pub(super) fn poll_released(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        match self.released.poll_recv(cx) {
            Poll::Ready(Some(name)) => Poll::Ready(name),
            // We hold a sender.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// `len` bytes at `address` for a queue, if they lie side by side and can be reached.
    pub(super) fn place(&self, address: u64, len: u64, direction: Direction) -> Option<Place> {
        let at = self.at(address, len, direction);
        let place = Place {
            address,
            len,
            direction,
            at,
        };
        (!place.is_gone()).then_some(place)
    }

    fn at(&self, address: u64, len: u64, direction: Direction) -> At {
        match self.piece(address, len, direction) {
            Some(Piece::Near(memory)) if memory.len() as u64 == len => At::Near(memory),
            Some(Piece::Far(there)) if there == len => At::Far,
            _ => At::Gone,
        }
    }

    /// Whether all of `len` bytes at `address` can be reached.
    pub(super) fn reaches(&self, mut address: u64, mut len: u64, direction: Direction) -> bool {
        while len > 0 {
            let there = match self.piece(address, len, direction) {
                Some(Piece::Near(memory)) => memory.len() as u64,
                Some(Piece::Far(there)) => there,
                None => return false,
            };
            address = address.wrapping_add(there);
            len -= there;
        }
        true
    }

    /// As many bytes from `address` on as lie side by side, at most `len`.
    pub(super) fn piece(&self, address: u64, len: u64, direction: Direction) -> Option<Piece> {
        let (&begin, mapping) = self.by_address.range(..=address).next_back()?;
        let offset = address - begin;
        let len = len.min(mapping.size.checked_sub(offset)?);
        let allowed = match direction {
            Direction::ToController => mapping.readable,
            Direction::ToHost => mapping.writable,
            Direction::Both => mapping.readable && mapping.writable,
        };
        if len == 0 || !allowed {
            return None;
        }
        match &mapping.mapped {
            // A mapping is no longer than a usize says.
            Some((_, memory)) => memory
                .slice(offset as usize..(offset + len) as usize)
                .map(Piece::Near),
            None => Some(Piece::Far(len)),
        }
    }

    /// The address of bytes that are mapped.
    pub(super) fn address_of(&self, piece: &RegionSlice) -> Option<u64> {
        let begin = *self.by_region.get(&piece.region().id())?;
        let (_, memory) = self.by_address.get(&begin)?.mapped.as_ref()?;
        let offset = piece.range().start.checked_sub(memory.range().start)?;
        Some(begin + offset as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut self.by_address).into_values();
        let near = mapped.filter_map(|mapping| Some(mapping.mapped?.1));
        drop(Leaving(near.collect()));
    }
}
