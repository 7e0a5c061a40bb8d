//! Mapping what clients give files of: how much of this process that may take, and where it is done when it may take its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use forebay_io::apart;
use forebay_io::passing::Passed;
use forebay_io::unmapping::unmapped_apart;
use forebay_mem::{Region, RegionSlice};
use forebay_proto::vfio_user::DmaMap;
use tokio::sync::{Semaphore, mpsc};

use super::errno::Errno;

/// Bytes of one range, and of all that this process has mapped: address space is bounded, too.
const MAP_BYTES_MAX: u64 = 1 << 40;
const MAPPED_BYTES_MAX: u64 = 1 << 44;

/// Mappings of this process, over all clients; the system has a bound (`vm.max_map_count`, 65,530) that other parts need, too.
const MAPPED_MAX: usize = 16_384;

/// Files of file systems that are mapped at once, over all clients: each has a thread. One client has half of them.
const MAPPING_MAX: usize = 16;

static MAPPED: AtomicUsize = AtomicUsize::new(0);
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);
static TURNS: Semaphore = Semaphore::const_new(MAPPING_MAX);

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

/// Turns of one client to have files of file systems mapped.
#[derive(Clone)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    pub(super) fn new() -> Turns {
        Turns(Arc::new(Semaphore::new(MAPPING_MAX / 2)))
    }
}

/// A range that a client wants mapped, with room for it.
pub(super) struct Offered {
    map: DmaMap,
    pin: Pin,
}

impl Offered {
    /// `name`: tells of its end, by `released`.
    pub(super) fn new(
        map: &DmaMap,
        name: u64,
        released: mpsc::UnboundedSender<u64>,
    ) -> Result<Offered, Errno> {
        if map.size > MAP_BYTES_MAX {
            return Err(Errno::NO_SPACE);
        }
        let pin = Pin {
            name,
            released,
            _room: Room::take(map.size).ok_or(Errno::NO_SPACE)?,
        };
        Ok(Offered { map: *map, pin })
    }

    /// Maps it. Until it is known what the file is, that may take as long as the client likes.
    pub(super) fn map(self, file: Passed) -> Result<Mapped, Errno> {
        let Offered { map, pin } = self;
        let len = usize::try_from(map.size).map_err(|_| Errno::INVALID)?;
        let name = pin.name;
        let memory = Region::received(&file, map.offset, len, map.writable, Box::new(pin))
            .map_err(|_| Errno::INVALID)?;
        // Memory or a local file, which stays open with the mapping.
        drop(file.into_known());
        Ok(Mapped {
            map,
            name,
            memory: unmapped_apart(memory),
        })
    }

    /// As [`Offered::map`], in its turn, on a thread that may wait.
    pub(super) async fn map_apart(self, file: Passed, own: Turns) -> Result<Mapped, Errno> {
        let mapped = apart::in_turn(Some(own.0), &TURNS, move || self.map(file));
        mapped.await.unwrap_or(Err(Errno::BUSY))
    }
}

/// A range that is mapped.
pub(super) struct Mapped {
    pub(super) map: DmaMap,
    /// Tells of its end.
    pub(super) name: u64,
    pub(super) memory: RegionSlice,
}
