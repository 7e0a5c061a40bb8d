//! The tables as readers see them: memtables over the index.
//!
//! Rows committed since the last checkpoint are in the active memtable; while a checkpoint runs, those it writes are in the frozen
//! one; all others are in a snapshot of the index, but for those whose places there cannot be read. All of them are replaced together, so
//! that one look sees one moment.

mod past;

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use forebay_store::listing::next_key;
use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::extent::Run;
use crate::index::{Row, Snapshot, is_outdated};
use crate::keys::Table;
use crate::recent::RecentRows;

/// An index that failed is opened again in less time than this, if it can be: so long whoever looks into it waits.
const REPLACED_WITHIN: Duration = Duration::from_millis(250);

/// Removals that one step of a scan passes: they show nothing, and whoever publishes waits until it has looked at the rows in memory.
const REMOVALS_MAX: usize = 1024;

type Rows = BTreeMap<Bytes, Option<Bytes>>;

/// Some rows in memory, removals among them, and where those that follow begin, if there may be any.
type Fresh = (Vec<(Bytes, Option<Bytes>)>, Option<Vec<u8>>);

/// Granules that a committed change took or gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceChange {
    Taken(Run),
    Freed(Run),
}

/// Committed rows that are not in the index yet; `None` is a removal.
#[derive(Debug, Default, Clone)]
pub(crate) struct Memtable {
    rows: [Rows; Table::ALL.len()],
    /// In the order of commits.
    pub space: Vec<SpaceChange>,
}

impl Memtable {
    pub fn is_empty(&self) -> bool {
        self.space.is_empty() && self.rows.iter().all(BTreeMap::is_empty)
    }

    pub fn set(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        self.rows[table as usize].insert(key, value);
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Option<&Option<Bytes>> {
        self.rows[table as usize].get(key)
    }

    pub fn rows(&self, table: Table) -> &Rows {
        &self.rows[table as usize]
    }

    /// How many rows it removes.
    pub fn removals(&self) -> u64 {
        let removals = |rows: &Rows| rows.values().filter(|row| row.is_none()).count() as u64;
        self.rows.iter().map(removals).sum()
    }

    /// Both, the rows of `newer` over its own.
    pub fn below(&self, newer: &Memtable) -> Memtable {
        let mut both = self.clone();
        both.absorb(newer.clone());
        both
    }

    /// How many rows it holds.
    pub fn len(&self) -> usize {
        self.rows.iter().map(BTreeMap::len).sum()
    }

    /// Takes the rows of `newer` over its own.
    pub fn absorb(&mut self, newer: Memtable) {
        for (rows, newer) in self.rows.iter_mut().zip(newer.rows) {
            if rows.is_empty() {
                *rows = newer;
            } else {
                rows.extend(newer);
            }
        }
        self.space.extend(newer.space);
    }
}

struct Layers {
    active: Memtable,
    frozen: Option<Arc<Memtable>>,
    /// Rows whose places in the index could not be read.
    unplaced: Arc<Memtable>,
    snapshot: Arc<Snapshot>,
    /// How many snapshots there were.
    generation: u64,
}

impl Layers {
    fn replace(&mut self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.generation += 1;
        std::mem::replace(&mut self.snapshot, snapshot)
    }

    /// The row of `key`, or its removal, if it is not in the snapshot: it changed since the last checkpoint, or has no place there.
    fn fresh(&self, table: Table, key: &[u8]) -> Option<&Option<Bytes>> {
        let frozen = || self.frozen.as_ref()?.get(table, key);
        let unplaced = || self.unplaced.get(table, key);
        self.active
            .get(table, key)
            .or_else(frozen)
            .or_else(unplaced)
    }

    /// The snapshot, and the generation that a look at it is of.
    fn shown(&self, generation: &mut u64) -> Arc<Snapshot> {
        *generation = self.generation;
        self.snapshot.clone()
    }

    /// Rows from `from` (included) to `until` (excluded) that are not in the snapshot, those of `over` above them: at most `limit`, and removals.
    fn fresh_range(
        &self,
        over: Option<&Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Fresh {
        let sources = [
            over,
            Some(&self.active),
            self.frozen.as_deref(),
            Some(&self.unplaced),
        ];
        let mut rows = Vec::new();
        let mut removals = 0;
        for (key, value) in Merge::new(sources.into_iter().flatten(), table, from, until) {
            rows.push((key.clone(), value.clone()));
            removals += usize::from(value.is_none());
            if rows.len() - removals == limit || removals == REMOVALS_MAX {
                return (rows, Some(next_key(key)));
            }
        }
        (rows, None)
    }
}

/// Part of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub rows: Vec<(Bytes, Bytes)>,
    /// Keys of rows that do not match their checksums.
    pub damaged: Vec<(Bytes, StoreError)>,
    /// Where the scan goes on; `None` at its end.
    pub next: Option<Vec<u8>>,
}

/// All tables.
pub(crate) struct Tables {
    layers: RwLock<Layers>,
    /// Whoever waits for another snapshot.
    waiting: Mutex<()>,
    replaced: Condvar,
    /// For which snapshot no other came while somebody waited: nobody else waits for that.
    awaited: AtomicU64,
    recent: RecentRows,
}

impl Tables {
    /// Over this state of the index, in which some rows are `unplaced`; at most `recent_bytes` of rows looked up lately are kept.
    pub fn new(snapshot: Snapshot, unplaced: Memtable, recent_bytes: u64) -> Tables {
        Tables {
            recent: RecentRows::new(recent_bytes),
            waiting: Mutex::default(),
            replaced: Condvar::default(),
            awaited: AtomicU64::new(u64::MAX),
            layers: RwLock::new(Layers {
                active: Memtable::default(),
                frozen: None,
                unplaced: Arc::new(unplaced),
                snapshot: Arc::new(snapshot),
                generation: 0,
            }),
        }
    }

    /// The row of `key`.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        match self.recent.get(table, key) {
            Some(row) => Ok(Some(row)),
            None => self.get_stored(table, key),
        }
    }

    /// The same, although the row may have been looked up lately: from the index unless it has yet to get there.
    pub fn get_stored(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        self.again(|generation| self.look_up(table, key, generation))
    }

    fn look_up(&self, table: Table, key: &[u8], generation: &mut u64) -> Result<Option<Bytes>> {
        let snapshot = {
            let layers = self.layers.read();
            if let Some(row) = layers.fresh(table, key) {
                return Ok(row.clone());
            }
            layers.shown(generation)
        };
        let row = snapshot.get(table, key)?;
        drop(snapshot);
        if let Some(row) = &row
            && self.recent.keeps(table)
        {
            // A change published meanwhile is among the fresh rows, or the snapshot is another; none can come while this is held.
            let layers = self.layers.read();
            if layers.generation == *generation && layers.fresh(table, key).is_none() {
                self.recent.put(table, key, Some(row));
            }
        }
        Ok(row)
    }

    /// At most `limit` rows from `from` (included) to `until` (excluded), in order of key; fewer, and perhaps none, where many were removed lately.
    pub fn scan(
        &self,
        over: Option<&Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan> {
        let mut scan = self.survey(over, table, from, until, limit)?;
        match scan.damaged.pop() {
            Some((_, error)) => Err(error),
            None => Ok(scan),
        }
    }

    /// The same, going on after damaged rows.
    pub fn survey(
        &self,
        over: Option<&Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan> {
        self.again(|generation| self.look_through(over, table, from, until, limit, generation))
    }

    fn look_through(
        &self,
        over: Option<&Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
        generation: &mut u64,
    ) -> Result<Scan> {
        if until.is_some_and(|until| until <= from) {
            return Ok(Scan::default());
        }
        let layers = self.layers.read();
        let (fresh, cut) = layers.fresh_range(over, table, from, until, limit);
        let snapshot = layers.shown(generation);
        drop(layers);
        let until = cut.as_deref().or(until);
        let mut scan = Scan {
            next: cut.clone(),
            ..Scan::default()
        };
        let mut fresh = fresh.into_iter().peekable();
        let mut settled = snapshot.range(table, from, until)?.peekable();
        loop {
            let from_fresh = match (fresh.peek(), settled.peek()) {
                (None, None) => return Ok(scan),
                (Some(_), None) => true,
                (None, Some(_)) | (Some(_), Some(Err(_))) => false,
                (Some((newer, _)), Some(Ok(older))) => {
                    if older.is_of(newer) {
                        // The row in memory is newer.
                        drop(settled.next());
                        continue;
                    }
                    newer < older.place()
                }
            };
            let row = if from_fresh {
                fresh.next().and_then(|(key, value)| Some((key, value?)))
            } else {
                match settled.next().transpose()? {
                    Some(Row::Damaged { key, error, .. }) => {
                        scan.damaged.push((key, error));
                        None
                    }
                    Some(Row::Whole(key, value)) => Some((key, value)),
                    None => None,
                }
            };
            if let Some(row) = row {
                let next = next_key(&row.0);
                scan.rows.push(row);
                if scan.rows.len() == limit {
                    scan.next = Some(next);
                    return Ok(scan);
                }
            }
        }
    }

    /// Looks again where that failed in tables that are not shown any more, or will not be soon: the index was opened again, or has to be.
    fn again<T>(&self, look: impl Fn(&mut u64) -> Result<T>) -> Result<T> {
        loop {
            let mut seen = 0;
            match look(&mut seen) {
                Err(error) if error.kind() == ErrorKind::Io => {
                    let is_shown = self.generation() == seen;
                    let is_awaited = || is_outdated(&error) && self.may_be_replaced(seen);
                    if is_shown && !(is_awaited() && self.is_replaced(seen)) {
                        return Err(error);
                    }
                }
                found => return found,
            }
        }
    }

    fn generation(&self) -> u64 {
        self.layers.read().generation
    }

    /// Whether nobody has waited in vain for a later snapshot.
    fn may_be_replaced(&self, generation: u64) -> bool {
        self.awaited.load(Relaxed) != generation
    }

    /// Waits for a later snapshot, for a while.
    fn is_replaced(&self, generation: u64) -> bool {
        let mut waiting = self.waiting.lock();
        while self.generation() == generation {
            let waited = self.replaced.wait_for(&mut waiting, REPLACED_WITHIN);
            if waited.timed_out() {
                self.awaited.store(generation, Relaxed);
                return false;
            }
        }
        true
    }

    fn tell(&self) {
        drop(self.waiting.lock());
        self.replaced.notify_all();
    }

    /// Makes committed rows visible, all at once.
    pub fn publish(&self, newer: Memtable) {
        let mut layers = self.layers.write();
        for table in Table::ALL {
            if self.recent.keeps(table) {
                // What was written is often read soon.
                for (key, row) in newer.rows(table) {
                    self.recent.put(table, key, row.as_deref());
                }
            }
        }
        layers.active.absorb(newer);
    }

    /// Whether the active memtable has nothing to write.
    pub fn is_settled(&self) -> bool {
        self.layers.read().active.is_empty()
    }

    /// Freezes the active memtable; there must be no frozen one.
    pub fn freeze(&self) {
        let mut layers = self.layers.write();
        debug_assert!(layers.frozen.is_none());
        let frozen = std::mem::take(&mut layers.active);
        layers.frozen = Some(Arc::new(frozen));
    }

    /// The frozen memtable.
    pub fn frozen(&self) -> Option<Arc<Memtable>> {
        self.layers.read().frozen.clone()
    }

    /// Some of the frozen rows may be in the index, of which this is a snapshot: they are the same in both.
    pub fn refresh(&self, snapshot: Snapshot) {
        let old = self.layers.write().replace(Arc::new(snapshot));
        self.tell();
        drop(old);
    }

    /// The rows that are not in the index for want of a place.
    pub fn unplaced(&self) -> Arc<Memtable> {
        self.layers.read().unplaced.clone()
    }

    /// The frozen rows are in the index, of which this is a snapshot, but for those that are `unplaced`.
    pub fn thaw(&self, snapshot: Snapshot, unplaced: Memtable) {
        let mut layers = self.layers.write();
        let frozen = layers.frozen.take();
        let unplaced = std::mem::replace(&mut layers.unplaced, Arc::new(unplaced));
        let old = layers.replace(Arc::new(snapshot));
        drop(layers);
        self.tell();
        // Freeing a large map takes its time: not under the lock.
        drop((frozen, unplaced, old));
    }

    /// Replaces the snapshot by one that `work` gives, while which there is none.
    pub fn renew(&self, work: impl FnOnce() -> Result<Snapshot>) -> Result<()> {
        let mut layers = self.layers.write();
        // Those who read one have it for a look or a step of a scan, and wait for nothing meanwhile.
        while Arc::get_mut(&mut layers.snapshot)
            .map(Snapshot::close)
            .is_none()
        {
            std::thread::yield_now();
        }
        drop(layers.replace(Arc::new(work()?)));
        drop(layers);
        self.tell();
        Ok(())
    }
}

/// Several memtables as one, the first having the last word.
struct Merge<'a> {
    sources: Vec<Peekable<btree_map::Range<'a, Bytes, Option<Bytes>>>>,
}

impl<'a> Merge<'a> {
    fn new(
        sources: impl Iterator<Item = &'a Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Merge<'a> {
        let bounds = (
            Bound::Included(from),
            until.map_or(Bound::Unbounded, Bound::Excluded),
        );
        Merge {
            sources: sources
                .map(|memtable| memtable.rows(table).range::<[u8], _>(bounds).peekable())
                .collect(),
        }
    }
}

impl<'a> Iterator for Merge<'a> {
    type Item = (&'a Bytes, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let least = self
            .sources
            .iter_mut()
            .filter_map(|source| source.peek().map(|(key, _)| *key))
            .min()?;
        let mut found = None;
        for source in &mut self.sources {
            if let Some(row) = source.next_if(|(key, _)| *key == least) {
                found = found.or(Some(row));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use forebay_io::sim::SimDisk;
    use forebay_io::{Disk, OpenOptions};

    use super::*;
    use crate::group::Position;
    use crate::index::{Index, outdated};

    #[test]
    fn an_index_that_is_not_opened_again_is_waited_for_once() {
        let options = OpenOptions {
            create: true,
            read_only: false,
            direct: false,
        };
        let file = SimDisk::new(1).open("index", options).unwrap();
        let index = Index::open(file, 0, false).unwrap();
        index.create([1; 16], Position::FIRST).unwrap();
        let tables = Tables::new(index.snapshot().unwrap(), Memtable::default(), 0);
        for _ in 0..2 {
            let seen = tables.generation();
            assert!(tables.may_be_replaced(seen));
            let looked = tables.again(|generation| {
                *generation = seen;
                Err::<(), _>(outdated())
            });
            assert_eq!(looked.unwrap_err().kind(), ErrorKind::Io);
            assert!(!tables.may_be_replaced(seen));
            // It is opened after all, and fails once more.
            tables.refresh(index.snapshot().unwrap());
        }
    }
}
