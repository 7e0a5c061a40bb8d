//! Which granules are free, in memory; what is taken is in the index and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use forebay_io::{Disk, File};
use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::Mutex;

use crate::core::device_failed;
use crate::extent::{GRANULE_BYTES, Run};

/// Below this the extent space does not grow: the file system is as good as full.
pub(crate) const GROWTH_BYTES_MIN: u64 = 1 << 20;
/// Granules given back to the file system with one call.
const GIVEN_BACK_MAX: u32 = (64 << 20) / GRANULE_BYTES as u32;

/// The extent space: free granules, and growth.
pub(crate) struct Allocator<F> {
    file: F,
    /// Where granule 0 lies in the file.
    base: u64,
    capacity_bytes: u64,
    growth_bytes: u64,
    reserve_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Runs,
    /// Given back after a write to them failed: taken when nothing else is left.
    suspect: Runs,
    /// Holes of the file: nobody has them, and a value gets them only once the file system gave space for them again.
    holes: Runs,
    /// What was free when the store was opened, where any of it may be a hole: a value gets it as it gets a hole.
    doubtful: Runs,
    /// Granules that the file holds, holes among them.
    end: u64,
    /// From here on nothing was written since the store was opened.
    unwritten: u64,
}

/// Runs by start and by length.
#[derive(Debug, Default)]
struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// Granules in all of them.
    granules: u64,
}

/// What the extent space holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUsage {
    /// Taken from the file system.
    pub total_bytes: u64,
    /// Of that, free for values.
    pub free_bytes: u64,
    /// Free for values too, and taken from the file system or not.
    pub doubtful_bytes: u64,
}

impl<F: File> Allocator<F> {
    /// All of the file from `base` on is free.
    pub fn new(file: F, base: u64, config: &crate::Config) -> Result<Allocator<F>> {
        let len = file.len().map_err(failed)?;
        let end = len.saturating_sub(base) / GRANULE_BYTES as u64;
        let mut free = Runs::default();
        free.add(0, end);
        Ok(Allocator {
            file,
            base,
            capacity_bytes: config.capacity_bytes,
            growth_bytes: config.growth_bytes.max(GROWTH_BYTES_MIN),
            reserve_bytes: config.reserve_bytes,
            state: Mutex::new(State {
                free,
                suspect: Runs::default(),
                holes: Runs::default(),
                doubtful: Runs::default(),
                end,
                unwritten: end,
            }),
        })
    }

    /// Where a granule lies in the file, in bytes.
    pub fn offset(&self, granule: u64) -> u64 {
        self.base + granule * GRANULE_BYTES as u64
    }

    /// How many granules there are, free or not.
    pub fn granules(&self) -> u64 {
        self.state.lock().end
    }

    /// Marks granules as taken when a store is opened; false when they are not all free.
    pub fn claim(&self, start: u64, count: u64) -> bool {
        self.state.lock().free.claim(start, count)
    }

    /// Any of what is free may be a hole of the file: which parts are, no call tells cheaply and for certain.
    pub fn doubt(&self) {
        let mut state = self.state.lock();
        state.doubtful = std::mem::take(&mut state.free);
    }

    /// Takes a run of at most `max` and at least `min` granules, telling whether it is new space of the file, of which the file system has
    /// yet to note that it is written.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::Io`].
    pub fn take<D: Disk>(&self, disk: &D, min: u32, max: u32) -> Result<(Run, bool)> {
        let mut state = self.state.lock();
        let unwritten = state.unwritten;
        let run = self.take_from(disk, &mut state, min, max)?;
        state.unwritten = unwritten.max(run.end());
        Ok((run, run.start >= unwritten))
    }

    fn take_from<D: Disk>(&self, disk: &D, state: &mut State, min: u32, max: u32) -> Result<Run> {
        loop {
            if let Some(run) = state.free.take_exact(max) {
                return Ok(run);
            }
            let grown = self.grow(disk, state, max);
            let free = &mut state.free;
            if let Some(run) = free.take_exact(max).or_else(|| free.take_longest(min, max)) {
                return Ok(run);
            }
            if grown? {
                continue;
            }
            return state
                .suspect
                .take_longest(min, max)
                .ok_or_else(|| StoreError::new(ErrorKind::NoSpace, "no space left for values"));
        }
    }

    /// Gives a run back.
    pub fn put(&self, run: Run) {
        self.state.lock().free.add_run(run);
    }

    /// Gives a run back that could not be written: others are tried before it.
    pub fn put_suspect(&self, run: Run) {
        self.state.lock().suspect.add_run(run);
    }

    /// Gives at least `bytes` of free space back to the file system, or all there is: values get it again as they get new space, beyond
    /// what the file system keeps in reserve. Where files cannot have holes nothing happens.
    pub fn give_back(&self, bytes: u64) {
        let mut left = bytes.div_ceil(GRANULE_BYTES as u64);
        while left > 0 {
            let most = u32::try_from(left).unwrap_or(u32::MAX).min(GIVEN_BACK_MAX);
            // What is punched is not under the lock, and nobody has the run meanwhile.
            let doubtful = self.state.lock().doubtful.take_longest(1, GIVEN_BACK_MAX);
            if let Some(run) = doubtful {
                let before = self.file.held_bytes();
                let punched = self.punch(run);
                let after = self.file.held_bytes();
                if !self.state.lock().settle(run, punched) {
                    return;
                }
                // A hole gave nothing.
                let given = before.and_then(|before| Ok(before.saturating_sub(after?)));
                left = left.saturating_sub(given.unwrap_or(0) / GRANULE_BYTES as u64);
                continue;
            }
            let Some(run) = self.state.lock().free.take_longest(1, most) else {
                return;
            };
            let punched = self.punch(run);
            let mut state = self.state.lock();
            if punched.is_err() {
                state.free.add_run(run);
                return;
            }
            state.holes.add_run(run);
            left -= u64::from(run.granules);
        }
    }

    fn punch(&self, run: Run) -> io::Result<()> {
        let len = u64::from(run.granules) * GRANULE_BYTES as u64;
        let punched = self.file.punch(self.offset(run.start), len);
        if let Err(error) = &punched
            && error.kind() != io::ErrorKind::Unsupported
        {
            tracing::warn!(%error, "free space does not go back to the file system");
        }
        punched
    }

    pub fn usage(&self) -> SpaceUsage {
        let state = self.state.lock();
        SpaceUsage {
            total_bytes: state.held_bytes(),
            free_bytes: (state.free.granules + state.suspect.granules) * GRANULE_BYTES as u64,
            doubtful_bytes: state.doubtful.granules * GRANULE_BYTES as u64,
        }
    }

    /// The runs that no value has: start and count.
    pub fn unused_runs(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let runs = [&state.free, &state.suspect, &state.holes, &state.doubtful];
        let runs = runs.into_iter().flat_map(|runs| &runs.by_start);
        runs.map(|(start, len)| (*start, *len)).collect()
    }

    /// Gets space for more granules; tells whether there are more now.
    fn grow<D: Disk>(&self, disk: &D, state: &mut State, granules: u32) -> Result<bool> {
        while !self.grow_once(disk, state, granules)? {
            // What is no hole may give the file system the room that it lacks.
            let Some(run) = state.doubtful.take_longest(1, GIVEN_BACK_MAX) else {
                return Ok(false);
            };
            if !state.settle(run, self.punch(run)) {
                return Ok(state.doubtful.granules == 0);
            }
        }
        Ok(true)
    }

    /// The same, with the room that the file system has: for what may be a hole first, then for holes.
    fn grow_once<D: Disk>(&self, disk: &D, state: &mut State, granules: u32) -> Result<bool> {
        let hole = state.doubtful.longest();
        let hole = hole.or_else(|| state.holes.longest());
        let (start, most) = match hole {
            Some((start, len)) => (start, len * GRANULE_BYTES as u64),
            None => (state.end, u64::MAX),
        };
        let needed = u64::from(granules) * GRANULE_BYTES as u64;
        let room = self.capacity_bytes.saturating_sub(state.held_bytes());
        let room = room - room % GRANULE_BYTES as u64;
        let available = disk.free_bytes().map_err(failed)?;
        let mut step = self.growth_bytes.max(needed).min(room).min(most);
        while step >= needed.min(GROWTH_BYTES_MIN).min(most) && step > 0 {
            if available.saturating_sub(self.reserve_bytes) >= step {
                match self.file.allocate(self.offset(start), step) {
                    Ok(()) => {
                        let count = step / GRANULE_BYTES as u64;
                        // It is in one of them, or at the end.
                        if !state.doubtful.claim(start, count) && !state.holes.claim(start, count) {
                            state.end += count;
                        }
                        state.free.add(start, count);
                        return Ok(true);
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
        Ok(false)
    }
}

impl State {
    /// What the file has from the file system.
    fn held_bytes(&self) -> u64 {
        (self.end - self.holes.granules - self.doubtful.granules) * GRANULE_BYTES as u64
    }

    /// A run of what was doubtful is a hole now; false when it could not be made one. Where a file cannot have holes there are none.
    fn settle(&mut self, run: Run, punched: io::Result<()>) -> bool {
        match punched {
            Ok(()) => self.holes.add_run(run),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.free.add_run(run);
                for (start, len) in std::mem::take(&mut self.doubtful).by_start {
                    self.free.add(start, len);
                }
                return false;
            }
            Err(_) => {
                self.doubtful.add_run(run);
                return false;
            }
        }
        true
    }
}

impl Runs {
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

    fn add_run(&mut self, run: Run) {
        self.add(run.start, u64::from(run.granules));
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

    /// Takes granules out; false when they are not all there.
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

    /// The longest run: start and count.
    fn longest(&self) -> Option<(u64, u64)> {
        self.by_len.last().map(|(len, start)| (*start, *len))
    }

    /// The shortest run that is long enough, cut.
    fn take_exact(&mut self, granules: u32) -> Option<Run> {
        let (_, start) = *self.by_len.range((u64::from(granules), 0)..).next()?;
        self.claim(start, u64::from(granules))
            .then_some(Run { start, granules })
    }

    fn take_longest(&mut self, min: u32, max: u32) -> Option<Run> {
        let (start, len) = self.longest()?;
        let granules = u32::try_from(len).unwrap_or(max).min(max);
        (granules >= min && self.claim(start, u64::from(granules)))
            .then_some(Run { start, granules })
    }
}

fn failed(error: io::Error) -> StoreError {
    device_failed("the extent space cannot grow")(error)
}
