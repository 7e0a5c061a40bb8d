//! The client's memory, by the addresses that the device knows it by: near what it gave a file of, far what only it reaches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use forebay_io::passing::Passed;
use forebay_mem::{PAGE_BYTES, Region, RegionId, RegionSlice};
use forebay_proto::vfio_user::{DmaMap, DmaUnmap};
use tokio::sync::mpsc;

use super::errno::Errno;

/// Ranges that one client may have mapped.
pub(super) const MAPS_MAX: usize = 4096;

/// Bytes of one range, and of all that this process has mapped: address space is bounded, too.
const MAP_BYTES_MAX: u64 = 1 << 40;
const MAPPED_BYTES_MAX: u64 = 1 << 44;

/// Mappings of this process, over all clients; the system has a bound (`vm.max_map_count`, 65,530) that other parts need, too.
const MAPPED_MAX: usize = 16_384;

static MAPPED: AtomicUsize = AtomicUsize::new(0);
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// A share of what this process may map; given back when dropped.
struct Room(u64);

impl Room {
    fn take(bytes: u64) -> Option<Room> {
        let room = Room(bytes);
        let count = MAPPED.fetch_add(1, Relaxed);
        let total = MAPPED_BYTES.fetch_add(bytes, Relaxed);
        (count < MAPPED_MAX && total.saturating_add(bytes) <= MAPPED_BYTES_MAX).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Relaxed);
        MAPPED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

/// What goes when the last use of a mapping goes.
struct Pin {
    name: u64,
    released: mpsc::UnboundedSender<u64>,
    _room: Room,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Nobody is told any more when the client is gone.
        let _ = self.released.send(self.name);
    }
}

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
    regions: Vec<RegionId>,
    /// What was far.
    far: Vec<Range<u64>>,
}

impl Unmapped {
    /// Whether this memory was taken away.
    pub(super) fn holds(&self, memory: &RegionSlice) -> bool {
        self.regions.contains(&memory.region().id())
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
    last_name: u64,
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
            last_name: 0,
            any_far: false,
            tell,
            released,
        }
    }

    /// Whether the client ever gave memory without a file: who did not pays nothing for it.
    pub(super) fn any_far(&self) -> bool {
        self.any_far
    }

    /// Maps a range; without a file it is far.
    pub(super) fn map(&mut self, map: &DmaMap, file: Option<Passed>) -> Result<(), Errno> {
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
        let mapped = match file {
            None => None,
            Some(file) => {
                if map.size > MAP_BYTES_MAX {
                    return Err(Errno::NO_SPACE);
                }
                self.last_name += 1;
                let pin = Pin {
                    name: self.last_name,
                    released: self.tell.clone(),
                    _room: Room::take(map.size).ok_or(Errno::NO_SPACE)?,
                };
                let len = usize::try_from(map.size).map_err(|_| Errno::INVALID)?;
                let memory = Region::received(&file, map.offset, len, map.writable, Box::new(pin))
                    .map_err(|_| Errno::INVALID)?;
                // Memory or a local file, which stays open with the mapping.
                drop(file.into_known());
                Some((self.last_name, memory))
            }
        };
        let mapping = Mapping {
            size: map.size,
            readable: map.readable,
            writable: map.writable,
            mapped,
        };
        self.any_far |= mapping.mapped.is_none();
        self.by_address.insert(map.address, mapping);
        Ok(())
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
                    unmapped.names.push(name);
                    unmapped.regions.push(memory.region().id());
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
        let id = piece.region().id();
        self.by_address.iter().find_map(|(begin, mapping)| {
            let (_, memory) = mapping.mapped.as_ref()?;
            let offset = piece.range().start.checked_sub(memory.range().start)?;
            (memory.region().id() == id).then(|| begin + offset as u64)
        })
    }
}
