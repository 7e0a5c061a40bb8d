//! What is held of which value: the one place that knows, and that decides what leaves.
//!
//! Values are spread over shards by their hash; a shard is one lock around tables, and nothing waits inside it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_store::{ByteRange, Meta, NamespaceInfo};
use parking_lot::Mutex;

use crate::config::Config;
use crate::metrics::{Counters, Metrics, count};
use crate::piece::{Piece, pieces_of};
use crate::policy::PolicyKind;
use crate::shard::{Level, Part, Seat, Seated, Shard, weight_of};

/// A shard is worth a lock of its own from this much memory on: a small cache divided further would hold less of what is wanted.
const SHARD_BYTES_MIN: u64 = 512 << 20;
const SHARDS_MAX: u64 = 16;
/// What an item on the disk costs there at least.
const DISK_ITEM_BYTES_MIN: u64 = 4096;
/// So many of a disk that was given up are forgotten in one turn with the lock.
const FORGOTTEN_AT_ONCE: usize = 1024;

/// Where a value is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub namespace: Arc<NamespaceInfo>,
    pub key: Arc<[u8]>,
    pub hash: u64,
}

/// What a place is called in tables: the namespace's number and the key.
pub(crate) type PlaceId = (u32, Arc<[u8]>);

impl Place {
    pub fn id(&self) -> PlaceId {
        (self.namespace.id, self.key.clone())
    }
}

/// What is held of a value, for a range of it.
#[derive(Debug)]
pub(crate) struct Found {
    pub meta: Meta,
    /// The number of this value in the index: another value of the same key has another.
    pub value: u64,
    /// When it was last known to be current.
    pub known: u64,
    /// The bytes asked for; `None` when the value has none such.
    pub range: Option<Range<u64>>,
    /// Each piece that they touch.
    pub pieces: Vec<(u32, Held)>,
}

/// Where one piece is.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    Memory(Piece),
    Disk,
    Nowhere,
}

/// A piece that left memory.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub place: Place,
    pub number: u32,
    pub meta: Meta,
    /// From when on it was held.
    pub since: u64,
    pub piece: Piece,
}

impl Evicted {
    /// What it takes of memory.
    pub fn weight(&self) -> u64 {
        weight_of(&self.place, &self.meta, &self.piece)
    }
}

/// What has to be done outside the lock after a change of the index.
#[derive(Debug, Default)]
pub(crate) struct Fallout {
    /// To be written to the disk.
    pub spill: Vec<Evicted>,
    /// To be removed from the disk.
    pub discard: Vec<(Place, u32)>,
}

pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    config: Arc<Config>,
    counters: Arc<Counters>,
    values: AtomicU64,
}

impl Index {
    pub fn new(config: Arc<Config>, counters: Arc<Counters>) -> Index {
        let shards = (config.memory_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let part = |bytes: u64| bytes / shards;
        let shard = || {
            Mutex::new(Shard {
                namespaces: HashMap::new(),
                objects: 0,
                tenants: Vec::new(),
                disk: Level::new(config.policy, part(config.disk_bytes)),
                memory_bytes: part(config.memory_bytes),
                disk_bytes: part(config.disk_bytes),
                index_bytes: 0,
                pinned: Level::new(PolicyKind::Lru, part(config.memory_bytes)),
                unpinned_bytes: 0,
            })
        };
        Index {
            shards: (0..shards).map(|_| shard()).collect(),
            config: config.clone(),
            counters,
            values: AtomicU64::new(1),
        }
    }

    /// What is held, for a range. What is past its time is not.
    pub fn find(&self, place: &Place, range: ByteRange, now: u64) -> Option<Found> {
        let mut shard = self.shard(place.hash).lock();
        let shard = &mut *shard;
        let object = shard
            .namespaces
            .get(&place.namespace.id)?
            .get(&place.key[..])?;
        if object.is_over(now, self.config.ttl_ms) {
            return None;
        }
        let mut pieces = Vec::new();
        let resolved = range.resolve(object.meta.size);
        if let Some(range) = &resolved
            && range.end - range.start <= self.config.span_bytes_max
        {
            for number in pieces_of(range) {
                let held = match object.part(number) {
                    Some(Part {
                        memory: Some(Seated { piece, seat, .. }),
                        ..
                    }) => {
                        if let Seat::Slot(slot) = seat {
                            shard.tenants[object.tenant].memory.policy.touch(*slot);
                        }
                        Held::Memory(piece.clone())
                    }
                    Some(Part {
                        disk: Some(slot), ..
                    }) => {
                        shard.disk.policy.touch(*slot);
                        Held::Disk
                    }
                    _ => Held::Nowhere,
                };
                pieces.push((number, held));
            }
        }
        Some(Found {
            meta: object.meta.clone(),
            value: object.value,
            known: object.known,
            range: resolved,
            pieces,
        })
    }

    /// The metadata alone, and when it was last known to be current.
    pub fn meta(&self, place: &Place, now: u64) -> Option<(Meta, u64)> {
        let shard = self.shard(place.hash).lock();
        let objects = shard.namespaces.get(&place.namespace.id)?;
        let object = objects.get(&place.key[..])?;
        (!object.is_over(now, self.config.ttl_ms)).then(|| (object.meta.clone(), object.known))
    }

    /// Holds pieces of the value of `meta`, which was current at `known`, if `still` says so with the lock held. Pieces of
    /// another value of the key leave.
    pub fn put(
        &self,
        place: &Place,
        meta: &Meta,
        known: u64,
        pieces: impl IntoIterator<Item = (u32, Piece)>,
        still: impl FnOnce() -> bool,
    ) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        if !still() {
            return fallout;
        }
        let fresh = || self.values.fetch_add(1, Relaxed);
        if !shard.enter(place, meta, known, &self.config, fresh, &mut fallout) {
            return fallout;
        }
        let pinned = self.is_pinned(place);
        for (number, piece) in pieces {
            shard.seat(place, number, piece, pinned, &self.config, &mut fallout);
        }
        self.settle(&mut shard, &mut fallout);
        shard.leave_empty(place);
        fallout
    }

    /// Brings a piece back from the disk to memory, if its value is still held.
    pub fn promote(&self, place: &Place, value: u64, number: u32, piece: Piece) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        if shard
            .object(place)
            .is_some_and(|object| object.value == value)
        {
            let pinned = self.is_pinned(place);
            shard.seat(place, number, piece, pinned, &self.config, &mut fallout);
            self.settle(&mut shard, &mut fallout);
        }
        fallout
    }

    /// A piece is on the disk now, of a value that is held `since` then. Whoever comes for it asks the store first, unless its value
    /// is held and known.
    pub fn landed(
        &self,
        place: &Place,
        number: u32,
        meta: &Meta,
        since: u64,
        bytes: u64,
    ) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        match shard.object(place) {
            Some(object) if !is_same(&object.meta, meta) || since < object.since => {
                fallout.discard.push((place.clone(), number));
                return fallout;
            }
            Some(_) => {}
            None => {
                let fresh = || self.values.fetch_add(1, Relaxed);
                shard.enter(place, meta, 0, &self.config, fresh, &mut fallout);
                if let Some(object) = shard.object_mut(place) {
                    object.since = since;
                }
            }
        }
        shard.shelve(place, number, bytes.max(DISK_ITEM_BYTES_MIN));
        self.settle(&mut shard, &mut fallout);
        shard.leave_empty(place);
        fallout
    }

    /// A piece is not where it was thought to be, or not what it should be.
    pub fn forget_piece(&self, place: &Place, value: u64, number: u32) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        if shard
            .object(place)
            .is_some_and(|object| object.value == value)
        {
            shard.drop_part(place, number, &mut fallout);
            shard.leave_empty(place);
        }
        fallout
    }

    /// The value held was current at `known`, if `still` says so, with these attributes; what is known of a later time stays.
    pub fn confirm(
        &self,
        place: &Place,
        value: u64,
        meta: &Meta,
        known: u64,
        still: impl FnOnce() -> bool,
    ) -> Fallout {
        let mut fallout = Fallout::default();
        let now = (self.config.clock)();
        let mut shard = self.shard(place.hash).lock();
        if let Some(object) = shard.object(place)
            && object.value == value
            && object.known_by(now) <= known
            && still()
        {
            shard.renew(place, meta, known);
            self.settle(&mut shard, &mut fallout);
        }
        fallout
    }

    /// The store has to be asked before the next hit.
    pub fn doubt(&self, place: &Place) {
        let mut shard = self.shard(place.hash).lock();
        if let Some(object) = shard.object_mut(place) {
            object.known = 0;
        }
    }

    /// The store has to be asked before the next hit of each value.
    pub fn doubt_all(&self) {
        for shard in &self.shards {
            for objects in shard.lock().namespaces.values_mut() {
                objects.values_mut().for_each(|object| object.known = 0);
            }
        }
    }

    /// Nothing of a value is held any more; `value` given: if it is that one.
    pub fn remove(&self, place: &Place, value: Option<u64>) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        if shard
            .object(place)
            .is_some_and(|object| value.is_none_or(|value| object.value == value))
        {
            shard.remove(place, &mut fallout);
        }
        fallout
    }

    /// Nothing of a namespace is held any more.
    pub fn remove_namespace(&self, id: u32) -> Fallout {
        let mut fallout = Fallout::default();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let places: Vec<Place> = match shard.namespaces.get(&id) {
                Some(objects) => objects.values().map(|o| o.place.clone()).collect(),
                None => Vec::new(),
            };
            for place in &places {
                shard.remove(place, &mut fallout);
            }
        }
        fallout
    }

    /// Nothing is on the disk any more, nor is anything known of it.
    pub async fn forget_disk(&self) {
        for shard in &self.shards {
            // Removing it from a disk that is given up would be in vain.
            while shard.lock().forget_disk(FORGOTTEN_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Gives memory back: at least `wanted` bytes, if so much is held. Nothing of it goes to the disk.
    pub fn shrink(&self, wanted: u64) -> bool {
        let mut freed = 0;
        for shard in &self.shards {
            let mut fallout = Fallout::default();
            let mut shard = shard.lock();
            while freed < wanted {
                let before = shard.held();
                if !shard.evict(&mut fallout) {
                    break;
                }
                count(&self.counters.evictions);
                freed += before - shard.held();
            }
        }
        freed > 0
    }

    /// Adds what is held.
    pub fn measure(&self, metrics: &mut Metrics) {
        for shard in &self.shards {
            let shard = shard.lock();
            metrics.memory_bytes += shard.held();
            metrics.pinned_bytes += shard.pinned.policy.weight();
            metrics.disk_bytes += shard.disk.policy.weight();
            metrics.objects += shard.objects;
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 32) as usize % self.shards.len()]
    }

    fn is_pinned(&self, place: &Place) -> bool {
        self.config
            .pins
            .iter()
            .any(|pin| pin.namespace == place.namespace.name && place.key.starts_with(&pin.prefix))
    }

    /// Evicts until everything fits.
    fn settle(&self, shard: &mut Shard, fallout: &mut Fallout) {
        while shard.held() > shard.memory_bytes && shard.evict(fallout) {
            count(&self.counters.evictions);
        }
        while shard.is_disk_over() && shard.evict_disk(fallout) {}
    }
}

/// Whether two values of a key are the same bytes.
pub(crate) fn is_same(one: &Meta, other: &Meta) -> bool {
    one.size == other.size
        && one.crc64nvme == other.crc64nvme
        && one.version == other.version
        && one.modified == other.modified
        && one.etag == other.etag
}
