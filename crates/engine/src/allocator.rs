//! Which granules are free, in memory; what is taken is in the index and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use forebay_io::{Disk, File};
use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::Mutex;

use crate::extent::{GRANULE_BYTES, Run};

/// Below this the extent space does not grow: the file system is as good as full.
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// The extent space: free granules, and growth.
pub(crate) struct Allocator<F> {
    file: F,
    /// Where granule 0 lies in the file.
    base: u64,
    capacity_bytes: u64,
    growth_bytes: u64,
    reserve_bytes: u64,
    free: Mutex<Free>,
}

/// Free runs by start and by length.
#[derive(Debug, Default)]
struct Free {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// Granules that are free.
    granules: u64,
    /// Granules that the file holds.
    end: u64,
    /// From here on nothing was written since the store was opened.
    unwritten: u64,
}

/// What the extent space holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUsage {
    /// Taken from the file system.
    pub total_bytes: u64,
    /// Of that, free for values.
    pub free_bytes: u64,
}

impl<F: File> Allocator<F> {
    /// All of the file from `base` on is free.
    pub fn new(file: F, base: u64, config: &crate::Config) -> Result<Allocator<F>> {
        let len = file.len().map_err(failed)?;
        let end = len.saturating_sub(base) / GRANULE_BYTES as u64;
        let mut free = Free::default();
        free.add(0, end);
        free.end = end;
        free.unwritten = end;
        Ok(Allocator {
            file,
            base,
            capacity_bytes: config.capacity_bytes,
            growth_bytes: config.growth_bytes.max(GROWTH_BYTES_MIN),
            reserve_bytes: config.reserve_bytes,
            free: Mutex::new(free),
        })
    }

    /// Where a granule lies in the file, in bytes.
    pub fn offset(&self, granule: u64) -> u64 {
        self.base + granule * GRANULE_BYTES as u64
    }

    /// Marks granules as taken when a store is opened; false when they are not all free.
    pub fn claim(&self, start: u64, count: u64) -> bool {
        self.free.lock().claim(start, count)
    }

    /// Takes a run of at most `max` and at least `min` granules, telling whether it is new space of the file, of which the file system has
    /// yet to note that it is written.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::Io`].
    pub fn take<D: Disk>(&self, disk: &D, min: u32, max: u32) -> Result<(Run, bool)> {
        let mut free = self.free.lock();
        let unwritten = free.unwritten;
        let run = self.take_from(disk, &mut free, min, max)?;
        free.unwritten = unwritten.max(run.end());
        Ok((run, run.start >= unwritten))
    }

    fn take_from<D: Disk>(&self, disk: &D, free: &mut Free, min: u32, max: u32) -> Result<Run> {
        if let Some(run) = free.take_exact(max) {
            return Ok(run);
        }
        let grown = self.grow(disk, free, max);
        if let Some(run) = free.take_exact(max).or_else(|| free.take_longest(min, max)) {
            return Ok(run);
        }
        grown?;
        Err(StoreError::new(
            ErrorKind::NoSpace,
            "no space left for values",
        ))
    }

    /// Gives a run back.
    pub fn put(&self, run: Run) {
        self.free.lock().add(run.start, u64::from(run.granules));
    }

    pub fn usage(&self) -> SpaceUsage {
        let free = self.free.lock();
        SpaceUsage {
            total_bytes: free.end * GRANULE_BYTES as u64,
            free_bytes: free.granules * GRANULE_BYTES as u64,
        }
    }

    /// The free runs: start and count.
    pub fn free_runs(&self) -> Vec<(u64, u64)> {
        let free = self.free.lock();
        free.by_start
            .iter()
            .map(|(start, len)| (*start, *len))
            .collect()
    }

    fn grow<D: Disk>(&self, disk: &D, free: &mut Free, granules: u32) -> Result<()> {
        let needed = u64::from(granules) * GRANULE_BYTES as u64;
        let held = free.end * GRANULE_BYTES as u64;
        let room = self.capacity_bytes.saturating_sub(held);
        let room = room - room % GRANULE_BYTES as u64;
        let available = disk.free_bytes().map_err(failed)?;
        let mut step = self.growth_bytes.max(needed).min(room);
        while step >= needed.min(GROWTH_BYTES_MIN) && step > 0 {
            if available.saturating_sub(self.reserve_bytes) >= step {
                match self.file.allocate(self.base + held, step) {
                    Ok(()) => {
                        let count = step / GRANULE_BYTES as u64;
                        free.add(free.end, count);
                        free.end += count;
                        return Ok(());
                    }
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            step = (step / 2).next_multiple_of(GRANULE_BYTES as u64);
            if step == GRANULE_BYTES as u64 {
                break;
            }
        }
        Ok(())
    }
}

impl Free {
    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Adds a run, joined with its neighbours.
    fn add(&mut self, start: u64, len: u64) {
        self.granules += len;
        let (mut start, mut len) = (start, len);
        if let Some((before, before_len)) = self.by_start.range(..start).next_back() {
            let (before, before_len) = (*before, *before_len);
            debug_assert!(before + before_len <= start, "granules freed twice");
            if before + before_len == start {
                self.remove(before, before_len);
                start = before;
                len += before_len;
            }
        }
        if let Some(after_len) = self.by_start.get(&(start + len)).copied() {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.insert(start, len);
    }

    fn claim(&mut self, start: u64, count: u64) -> bool {
        let Some((at, len)) = self.by_start.range(..=start).next_back() else {
            return false;
        };
        let (at, len) = (*at, *len);
        if start + count > at + len {
            return false;
        }
        self.remove(at, len);
        self.insert(at, start - at);
        self.insert(start + count, at + len - start - count);
        self.granules -= count;
        true
    }

    /// The shortest run that is long enough, cut.
    fn take_exact(&mut self, granules: u32) -> Option<Run> {
        let (_, start) = *self.by_len.range((u64::from(granules), 0)..).next()?;
        self.claim(start, u64::from(granules))
            .then_some(Run { start, granules })
    }

    fn take_longest(&mut self, min: u32, max: u32) -> Option<Run> {
        let (len, start) = *self.by_len.last()?;
        let granules = u32::try_from(len).unwrap_or(max).min(max);
        (granules >= min && self.claim(start, u64::from(granules)))
            .then_some(Run { start, granules })
    }
}

fn failed(error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    StoreError::new(kind, "the extent space cannot grow").with_source(error)
}
