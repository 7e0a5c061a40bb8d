//! A disk in memory that does everything a real one may do.
//!
//! A write is seen by readers at once and is on the medium after [`File::sync_data`](crate::File::sync_data); a created file is
//! there for certain after [`Disk::sync`]. [`SimDisk::crash`] gives the disk as found after power loss: of everything else any
//! subset has reached the medium, in any order, torn at 512 bytes. All choices come from seeds.
//!
//! Beyond that it fails on request ([`Faults`]), fills up, and rots. Asynchronous I/O completes after a few turns of the
//! executor, some of it before and some after it takes effect, so that tasks interleave. Asynchronous I/O on a file opened `direct`
//! must be aligned as the contract says, or fails with `InvalidInput`.

mod clock;
mod content;
mod file;
mod inode;
mod rng;
mod space;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{Disk, OpenOptions};
pub use clock::SimClock;
pub use file::SimFile;
use inode::{Fate, Inode, SECTOR_BYTES};
use rng::Rng;

/// What [`Disk::free_bytes`] starts from when no capacity is set.
const UNBOUNDED_BYTES: u64 = 1 << 50;

/// What goes wrong from now on. Operations are numbered from 0 as in [`SimDisk::operations`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// `EIO` on the operation of this number, once.
    pub error_at: Option<u64>,
    /// The power goes during the operation of this number: it and all later ones fail. What remains is told by
    /// [`SimDisk::crash`].
    pub power_off_at: Option<u64>,
    /// Probability of `EIO` on each read.
    pub read_error: f64,
    /// Probability of `EIO` on each write, allocation and change of length; a part of the write may have happened.
    pub write_error: f64,
    /// Probability of `EIO` on each sync of a file or the directory. As on Linux, a later sync that succeeds does not
    /// bring what this one lost.
    pub sync_error: f64,
}

/// How many operations of each kind were asked for, including those that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Operations {
    /// Opens, with or without creation.
    pub opens: u64,
    /// Reads, asynchronous or blocking.
    pub reads: u64,
    /// Writes, asynchronous or blocking.
    pub writes: u64,
    /// Allocations and changes of length.
    pub resizes: u64,
    /// Syncs of a file.
    pub syncs: u64,
    /// Syncs of the directory.
    pub directory_syncs: u64,
}

impl Operations {
    /// All of them: the number of the next operation.
    pub fn total(&self) -> u64 {
        self.opens + self.reads + self.writes + self.resizes + self.syncs + self.directory_syncs
    }
}

/// A simulated [`Disk`]. Cloning shares it.
#[derive(Debug, Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Debug)]
struct World {
    rng: Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    capacity: Option<u64>,
    used: u64,
    faults: Faults,
    operations: Operations,
    powered: bool,
    locked: bool,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Open,
    Read,
    Write,
    Resize,
    Sync,
    DirectorySync,
}

impl SimDisk {
    /// An empty disk of no bounded size; `seed` decides failures by probability and the order of completions.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::of(World {
            rng: Rng::new(seed),
            inodes: Vec::new(),
            names: BTreeMap::new(),
            capacity: None,
            used: 0,
            faults: Faults::default(),
            operations: Operations::default(),
            powered: true,
            locked: false,
        })
    }

    fn of(world: World) -> SimDisk {
        SimDisk {
            world: Arc::new(Mutex::new(world)),
        }
    }

    /// Replaces what goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.world.lock().faults = faults;
    }

    /// Bounds the bytes that files may take; `None` for no bound. It may be less than is taken already.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world.lock().capacity = bytes;
    }

    /// What was asked of this disk since it was made.
    pub fn operations(&self) -> Operations {
        self.world.lock().operations
    }

    /// The names of all files, in order.
    pub fn names(&self) -> Vec<String> {
        self.world.lock().names.keys().cloned().collect()
    }

    /// Flips one bit (0 to 7) of byte `offset` of a file, on the medium and for readers.
    ///
    /// # Errors
    /// `NotFound` when there is no such file, `InvalidInput` when there is no such byte or bit.
    pub fn rot(&self, name: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut world = self.world.lock();
        let index = *world.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let inode = &mut world.inodes[index];
        if bit > 7 || offset >= inode.current.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        inode.flip(offset, bit);
        Ok(())
    }

    /// Makes the sector that holds byte `offset` of a file unreadable until it is written: `EIO`.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn spoil(&self, name: &str, offset: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        let index = *world.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        world.inodes[index].spoil(offset);
        Ok(())
    }

    /// Makes the sector that holds byte `offset` of a file one that no write gets to: `EIO`.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn wear(&self, name: &str, offset: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        let index = *world.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        world.inodes[index].wear(offset);
        Ok(())
    }

    /// The disk as found when power comes back, one of many possible ones chosen by `seed`: unlocked, without faults, of the same
    /// capacity. This one is not changed.
    pub fn crash(&self, seed: u64) -> SimDisk {
        let world = self.world.lock();
        let mut rng = Rng::new(seed);
        // The two extremes are worth more than their share.
        let all = match rng.below(8) {
            0 => Some(Fate::Lost),
            1 => Some(Fate::Kept),
            _ => None,
        };
        let mut inodes = Vec::new();
        let mut names = BTreeMap::new();
        for (name, index) in &world.names {
            let inode = &world.inodes[*index];
            let survives = match all {
                _ if inode.linked => true,
                Some(Fate::Lost) => false,
                Some(Fate::Kept) => true,
                _ => rng.coin(),
            };
            if survives {
                names.insert(name.clone(), inodes.len());
                inodes.push(inode.crash(all, &mut rng));
            }
        }
        let used = inodes.iter().map(|inode| inode.space.bytes()).sum();
        SimDisk::of(World {
            rng,
            inodes,
            names,
            capacity: world.capacity,
            used,
            faults: Faults::default(),
            operations: Operations::default(),
            powered: true,
            locked: false,
        })
    }
}

impl World {
    /// Counts an operation and says whether it may happen.
    fn begin(&mut self, kind: Kind) -> io::Result<()> {
        let number = self.operations.total();
        let (count, probability) = match kind {
            Kind::Open => (&mut self.operations.opens, 0.0),
            Kind::Read => (&mut self.operations.reads, self.faults.read_error),
            Kind::Write => (&mut self.operations.writes, self.faults.write_error),
            Kind::Resize => (&mut self.operations.resizes, self.faults.write_error),
            Kind::Sync => (&mut self.operations.syncs, self.faults.sync_error),
            Kind::DirectorySync => (&mut self.operations.directory_syncs, self.faults.sync_error),
        };
        *count += 1;
        if !self.powered {
            return Err(io::Error::other("the power is off"));
        }
        if self.faults.power_off_at.is_some_and(|at| number >= at) {
            self.powered = false;
            return Err(io::Error::other("the power went off"));
        }
        if self.faults.error_at == Some(number) || self.rng.chance(probability) {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    /// Takes space for a part of a file, or `StorageFull`.
    fn take_space(&mut self, index: usize, offset: u64, len: u64) -> io::Result<()> {
        let space = &self.inodes[index].space;
        if len == 0 || space.has(offset, len) {
            return Ok(());
        }
        let before = space.bytes();
        let space = space.with(offset, len);
        let used = self.used - before + space.bytes();
        if self.capacity.is_some_and(|capacity| used > capacity) {
            return Err(Errno::NOSPC.into());
        }
        self.used = used;
        self.inodes[index].space = space;
        Ok(())
    }

    /// Reads what there is; says how many bytes that is.
    fn read(&mut self, index: usize, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.begin(Kind::Read)?;
        let inode = &self.inodes[index];
        match inode.is_readable(offset, into.len()) {
            true => Ok(inode.current.read(offset, into)),
            false => Err(Errno::IO.into()),
        }
    }

    fn write(&mut self, index: usize, offset: u64, from: &[u8]) -> io::Result<()> {
        let was_powered = self.powered;
        let may = self.begin(Kind::Write);
        if may.is_err() && !was_powered {
            return may;
        }
        self.take_space(index, offset, from.len() as u64)?;
        if let Err(error) = may {
            let sectors = (from.len() as u64).div_ceil(SECTOR_BYTES);
            let happened = self.rng.below(sectors + 1) * SECTOR_BYTES;
            let happened = from.len().min(happened as usize);
            self.inodes[index].write(offset, &from[..happened]);
            return Err(error);
        }
        if !self.inodes[index].is_writable(offset, from.len()) {
            return Err(Errno::IO.into());
        }
        self.inodes[index].write(offset, from);
        Ok(())
    }

    /// A hole reads as zeroes, and comes to the medium as these would.
    fn punch(&mut self, index: usize, offset: u64, len: u64) {
        let inode = &mut self.inodes[index];
        let len = len.min(inode.current.len().saturating_sub(offset));
        inode.write(offset, &vec![0; len as usize]);
        let before = inode.space.bytes();
        inode.space.punch(offset, len);
        self.used = self.used - before + inode.space.bytes();
    }

    fn set_len(&mut self, index: usize, len: u64) {
        let inode = &mut self.inodes[index];
        let before = inode.space.bytes();
        inode.set_len(len);
        self.used = self.used - before + inode.space.bytes();
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<SimFile> {
        let mut world = self.world.lock();
        world.begin(Kind::Open)?;
        if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let index = match world.names.get(name) {
            Some(index) => *index,
            None if options.create && !options.read_only => {
                let index = world.inodes.len();
                world.inodes.push(Inode::default());
                world.names.insert(name.to_owned(), index);
                index
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(SimFile::new(self.world.clone(), index, options))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.world.lock().names.contains_key(name))
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        world.begin(Kind::DirectorySync)?;
        for inode in &mut world.inodes {
            inode.linked = true;
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let world = self.world.lock();
        Ok(world
            .capacity
            .unwrap_or(UNBOUNDED_BYTES)
            .saturating_sub(world.used))
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let mut world = self.world.lock();
        if world.locked {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "the disk is in use",
            ));
        }
        world.locked = true;
        Ok(Box::new(Lock {
            world: self.world.clone(),
        }))
    }
}

struct Lock {
    world: Arc<Mutex<World>>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.world.lock().locked = false;
    }
}
