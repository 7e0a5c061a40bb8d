//! Values acknowledged before the store has committed them, in namespaces that allow it.
//!
//! The store has every byte already: only its commit is still under way. Until it is done the value is read from here, and whatever
//! would notice that it is missing from the store waits for it. Of a key that is changed in the store itself nothing waits: what was
//! acknowledged first would be read after what replaced it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_store::Meta;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::index::{Place, PlaceId};
use crate::metrics::{Counters, count};
use crate::piece::Piece;
use crate::shard::attributes_bytes;

/// What a value takes of the room at least: one of no bytes has a key, metadata and a task.
const ROOM_LEAST: u64 = 4096;

/// A value that is whole in memory and not yet in the store.
#[derive(Debug)]
pub(crate) struct Pending {
    pub meta: Meta,
    pub pieces: Vec<Piece>,
}

/// What waits, of at most so many bytes.
#[derive(Debug)]
pub(crate) struct WriteBack {
    most: u64,
    /// Bytes of values that wait.
    waiting: AtomicU64,
    table: Mutex<Table>,
    landed: Notify,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Table {
    /// Values that ever waited: their numbers are in the order in which they began.
    begun: u64,
    /// Changes of keys that are the store's own affair, and how many of each.
    direct: HashMap<PlaceId, usize>,
    pending: HashMap<PlaceId, Numbered>,
    /// Their numbers: of all, and of each namespace's that has any.
    numbers: BTreeSet<u64>,
    numbers_of: HashMap<u32, BTreeSet<u64>>,
    /// What they take of the room.
    taken: u64,
    /// Whether no more may wait.
    closed: bool,
    /// What the store has refused since then.
    refused: Unlanded,
}

/// Values that were acknowledged and that the store does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unlanded {
    /// How many.
    pub values: u64,
    /// Of them all.
    pub bytes: u64,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    pending: Arc<Pending>,
}

impl Pending {
    fn room(&self) -> u64 {
        self.meta.size.max(ROOM_LEAST) + attributes_bytes(&self.meta)
    }
}

impl Table {
    /// Lets one more wait.
    fn add(&mut self, id: &PlaceId, pending: Arc<Pending>) {
        let number = self.begun;
        self.begun += 1;
        self.taken += pending.room();
        self.numbers.insert(number);
        self.numbers_of.entry(id.0).or_default().insert(number);
        let numbered = Numbered { number, pending };
        self.pending.insert(id.clone(), numbered);
    }

    /// Takes out one that waits.
    fn take(&mut self, id: &PlaceId) -> Option<Arc<Pending>> {
        let Numbered { number, pending } = self.pending.remove(id)?;
        self.taken -= pending.room();
        self.numbers.remove(&number);
        if let Some(numbers) = self.numbers_of.get_mut(&id.0) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.numbers_of.remove(&id.0);
            }
        }
        Some(pending)
    }

    /// Whether one waits that began before number `end`: of a namespace's, or of all. Everybody who waits for that asks whenever one
    /// has landed, so the first number has to be at hand.
    fn has(&self, end: u64, namespace: Option<u32>) -> bool {
        let numbers = match namespace {
            Some(id) => self.numbers_of.get(&id),
            None => Some(&self.numbers),
        };
        let first = numbers.and_then(BTreeSet::first);
        first.is_some_and(|first| *first < end)
    }
}

impl WriteBack {
    /// Nothing waits. With no bytes nothing ever does.
    pub fn new(most: u64, counters: Arc<Counters>) -> WriteBack {
        WriteBack {
            most,
            waiting: AtomicU64::new(0),
            table: Mutex::default(),
            landed: Notify::new(),
            counters,
        }
    }

    pub fn is_on(&self) -> bool {
        self.most > 0
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.load(SeqCst)
    }

    /// From now on no more wait.
    pub fn close(&self) {
        self.table.lock().closed = true;
    }

    /// What waits, and what the store has refused since nothing more may.
    pub fn unlanded(&self) -> Unlanded {
        let table = self.table.lock();
        Unlanded {
            values: table.refused.values + table.pending.len() as u64,
            bytes: table.refused.bytes + self.waiting_bytes(),
        }
    }

    /// Lets a value wait; `None` when none may any more, when there is no room, or when one of its key waits already.
    pub fn begin(self: &Arc<Self>, place: &Place, pending: Arc<Pending>) -> Option<Waiting> {
        let mut table = self.table.lock();
        let id = place.id();
        let is_full = table.taken + pending.room() > self.most;
        if table.closed || is_full || table.pending.contains_key(&id) {
            return None;
        }
        if table.direct.contains_key(&id) {
            return None;
        }
        self.waiting.fetch_add(pending.meta.size, SeqCst);
        table.add(&id, pending);
        Some(Waiting {
            write_back: self.clone(),
            id,
            stored: false,
        })
    }

    fn end(&self, id: &PlaceId, stored: bool) {
        let mut table = self.table.lock();
        if let Some(pending) = table.take(id) {
            let bytes = pending.meta.size;
            self.waiting.fetch_sub(bytes, SeqCst);
            if table.closed && !stored {
                table.refused.values += 1;
                table.refused.bytes += bytes;
            }
        }
        drop(table);
        if !stored {
            count(&self.counters.write_backs_lost);
        }
        self.landed.notify_waiters();
    }

    /// What waits under a key. When its time is over, nothing, once the store has it: it has what was before until then.
    pub async fn find(&self, place: &Place, now: u64) -> Option<Arc<Pending>> {
        let found = self.pending(place)?;
        if found.meta.expires.is_none_or(|at| at > now) {
            return Some(found);
        }
        self.settle(place).await;
        None
    }

    fn pending(&self, place: &Place) -> Option<Arc<Pending>> {
        if !self.is_on() {
            return None;
        }
        let id = place.id();
        let table = self.table.lock();
        table.pending.get(&id).map(|found| found.pending.clone())
    }

    /// Returns when nothing waits under a key, and lets nothing begin to before it is dropped: whoever changes it in the store is then
    /// neither overtaken nor hidden.
    pub async fn pass(self: &Arc<Self>, place: &Place) -> Option<Direct> {
        if !self.is_on() {
            return None;
        }
        let id = place.id();
        self.until(|table| {
            let free = !table.pending.contains_key(&id);
            if free {
                *table.direct.entry(id.clone()).or_default() += 1;
            }
            free
        })
        .await;
        Some(Direct {
            write_back: self.clone(),
            id,
        })
    }

    /// Returns when nothing waits under a key.
    pub async fn settle(&self, place: &Place) {
        let id = place.id();
        self.until(|table| !table.pending.contains_key(&id)).await;
    }

    /// Returns when what waits in a namespace at this moment has landed. There may be more by then: whoever stores on and on
    /// holds nobody up.
    pub async fn settle_namespace(&self, id: u32) {
        let end = self.table.lock().begun;
        self.until(|table| !table.has(end, Some(id))).await;
    }

    /// Returns when everything that waits at this moment has landed.
    pub async fn settle_all(&self) {
        let end = self.table.lock().begun;
        self.until(|table| !table.has(end, None)).await;
    }

    async fn until(&self, mut done: impl FnMut(&mut Table) -> bool) {
        if !self.is_on() {
            return;
        }
        loop {
            let landed = self.landed.notified();
            tokio::pin!(landed);
            landed.as_mut().enable();
            if done(&mut self.table.lock()) {
                return;
            }
            landed.await;
        }
    }
}

/// A value that waits, until it is dropped. Unless it was [`stored`](Waiting::stored) then it is lost.
#[derive(Debug)]
pub(crate) struct Waiting {
    write_back: Arc<WriteBack>,
    id: PlaceId,
    stored: bool,
}

impl Waiting {
    /// The store has it.
    pub fn stored(&mut self) {
        self.stored = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.write_back.end(&self.id, self.stored);
    }
}

/// A change of a key that goes to the store itself, until it is dropped.
#[derive(Debug)]
pub(crate) struct Direct {
    write_back: Arc<WriteBack>,
    id: PlaceId,
}

impl Drop for Direct {
    fn drop(&mut self) {
        let mut table = self.write_back.table.lock();
        if let Some(changes) = table.direct.get_mut(&self.id) {
            *changes -= 1;
            if *changes == 0 {
                table.direct.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{Attributes, Etag, VersionId};

    use super::*;

    #[test]
    fn what_began_first_is_at_hand_for_each_namespace() {
        let pending = Arc::new(Pending {
            meta: Meta {
                size: 0,
                etag: Etag::of_value(0, 0),
                modified: 1,
                version: VersionId::NULL,
                crc64nvme: 0,
                expires: None,
                attributes: Attributes::EMPTY,
            },
            pieces: Vec::new(),
        });
        let id = |namespace: u32, key: &[u8]| (namespace, Arc::<[u8]>::from(key));
        let mut table = Table::default();
        for (namespace, key) in [(1, b"a"), (2, b"a"), (1, b"b")] {
            table.add(&id(namespace, key), pending.clone());
        }
        assert!(table.has(1, Some(1)) && !table.has(1, Some(2)) && table.has(2, Some(2)));
        assert!(!table.has(3, Some(3)) && table.has(1, None) && !table.has(0, None));
        assert!(table.take(&id(1, b"a")).is_some() && table.take(&id(1, b"a")).is_none());
        assert!(!table.has(2, Some(1)) && table.has(3, Some(1)) && !table.has(1, None));
        assert!(table.take(&id(2, b"a")).is_some() && table.take(&id(1, b"b")).is_some());
        assert!(!table.has(u64::MAX, None) && table.taken == 0);
        assert!(
            table.numbers.is_empty() && table.numbers_of.is_empty(),
            "nothing is left"
        );
    }
}
