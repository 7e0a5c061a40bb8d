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
use crate::policy::{Policy, PolicyKind, Slot};

/// A shard is worth a lock of its own from this much memory on: a small cache divided further would hold less of what is wanted.
const SHARD_BYTES_MIN: u64 = 512 << 20;
const SHARDS_MAX: u64 = 16;
/// Of its memory, what pins may hold.
const PINNED_PART: u64 = 2;
/// What an item on the disk costs there at least.
const DISK_ITEM_BYTES_MIN: u64 = 4096;

/// Where a value is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub namespace: Arc<NamespaceInfo>,
    pub key: Arc<[u8]>,
    pub hash: u64,
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
    pub piece: Piece,
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
    clock_ttl: Option<u64>,
    config: Arc<Config>,
    counters: Arc<Counters>,
    values: AtomicU64,
}

struct Shard {
    namespaces: HashMap<u32, HashMap<Arc<[u8]>, Object>>,
    objects: u64,
    tenants: Vec<Tenant>,
    disk: Level,
    memory_bytes: u64,
    disk_bytes: u64,
    pinned_bytes: u64,
}

struct Tenant {
    name: String,
    weight: u64,
    memory: Level,
}

/// A policy and what its slots stand for.
struct Level {
    policy: Box<dyn Policy>,
    items: Vec<Option<(Place, u32)>>,
}

struct Object {
    place: Place,
    meta: Meta,
    value: u64,
    known: u64,
    since: u64,
    tenant: usize,
    /// In order of their number.
    parts: Vec<(u32, Part)>,
}

#[derive(Default)]
struct Part {
    memory: Option<(Piece, Seat)>,
    disk: Option<Slot>,
}

#[derive(Clone, Copy)]
enum Seat {
    Slot(Slot),
    Pinned(u64),
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
                pinned_bytes: 0,
            })
        };
        Index {
            shards: (0..shards).map(|_| shard()).collect(),
            clock_ttl: config.ttl_ms,
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
        if self.is_over(object, now) {
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
                        memory: Some((piece, seat)),
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
        (!self.is_over(object, now)).then(|| (object.meta.clone(), object.known))
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
            shard.seat(place, number, piece, pinned);
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
            shard.seat(place, number, piece, pinned);
            self.settle(&mut shard, &mut fallout);
        }
        fallout
    }

    /// A piece is on the disk now. Whoever comes for it asks the store first, unless its value is held and known.
    pub fn landed(&self, place: &Place, number: u32, meta: &Meta, bytes: u64) -> Fallout {
        let mut fallout = Fallout::default();
        let mut shard = self.shard(place.hash).lock();
        match shard.object(place) {
            Some(object) if !is_same(&object.meta, meta) => {
                fallout.discard.push((place.clone(), number));
                return fallout;
            }
            Some(_) => {}
            None => {
                let fresh = || self.values.fetch_add(1, Relaxed);
                shard.enter(place, meta, 0, &self.config, fresh, &mut fallout);
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

    /// The value held was current at `known`, if `still` says so, with these attributes.
    pub fn confirm(
        &self,
        place: &Place,
        value: u64,
        meta: &Meta,
        known: u64,
        still: impl FnOnce() -> bool,
    ) {
        let mut shard = self.shard(place.hash).lock();
        if let Some(object) = shard.object_mut(place)
            && object.value == value
            && still()
        {
            object.meta.clone_from(meta);
            object.known = object.known.max(known);
        }
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
            metrics.pinned_bytes += shard.pinned_bytes;
            metrics.disk_bytes += shard.disk.policy.weight();
            metrics.objects += shard.objects;
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 32) as usize % self.shards.len()]
    }

    fn is_over(&self, object: &Object, now: u64) -> bool {
        object.meta.expires.is_some_and(|at| at <= now)
            || self
                .clock_ttl
                .is_some_and(|ttl| now < object.since || now - object.since >= ttl)
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
        while shard.disk.policy.weight() > shard.disk_bytes && shard.evict_disk(fallout) {}
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

impl Level {
    fn new(kind: PolicyKind, capacity: u64) -> Level {
        Level {
            policy: kind.make(capacity),
            items: Vec::new(),
        }
    }

    fn insert(&mut self, place: &Place, number: u32, weight: u64) -> Slot {
        let print = place.hash ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = self.policy.insert(print, weight);
        if self.items.len() <= slot.index() {
            self.items.resize(slot.index() + 1, None);
        }
        self.items[slot.index()] = Some((place.clone(), number));
        slot
    }

    fn remove(&mut self, slot: Slot) {
        self.policy.remove(slot);
        self.items[slot.index()] = None;
    }

    fn evict(&mut self) -> Option<(Place, u32, u8)> {
        let (slot, uses) = self.policy.evict()?;
        let (place, number) = self.items[slot.index()].take()?;
        Some((place, number, uses))
    }
}

impl Object {
    fn part(&self, number: u32) -> Option<&Part> {
        let at = self.parts.binary_search_by_key(&number, |part| part.0);
        at.ok().map(|at| &self.parts[at].1)
    }

    fn part_mut(&mut self, number: u32) -> &mut Part {
        let at = match self.parts.binary_search_by_key(&number, |part| part.0) {
            Ok(at) => at,
            Err(at) => {
                self.parts.insert(at, (number, Part::default()));
                at
            }
        };
        &mut self.parts[at].1
    }
}

impl Shard {
    fn held(&self) -> u64 {
        let unpinned: u64 = self.tenants.iter().map(|t| t.memory.policy.weight()).sum();
        unpinned + self.pinned_bytes
    }

    fn object(&self, place: &Place) -> Option<&Object> {
        let objects = self.namespaces.get(&place.namespace.id)?;
        objects.get(&place.key[..])
    }

    fn object_mut(&mut self, place: &Place) -> Option<&mut Object> {
        let objects = self.namespaces.get_mut(&place.namespace.id)?;
        objects.get_mut(&place.key[..])
    }

    fn tenant(&mut self, name: &str, config: &Config) -> usize {
        if let Some(at) = self.tenants.iter().position(|tenant| tenant.name == name) {
            return at;
        }
        let share = config.shares.iter().find(|share| share.tenant == name);
        self.tenants.push(Tenant {
            name: name.to_owned(),
            weight: share.map_or(1, |share| u64::from(share.weight.max(1))),
            memory: Level::new(config.policy, self.memory_bytes),
        });
        self.tenants.len() - 1
    }

    /// Makes the value of `meta` the one that is held of its key, unless another was current later.
    fn enter(
        &mut self,
        place: &Place,
        meta: &Meta,
        known: u64,
        config: &Config,
        fresh: impl FnOnce() -> u64,
        fallout: &mut Fallout,
    ) -> bool {
        let tenant = self.tenant(&place.namespace.config.tenant, config);
        if let Some(object) = self.object_mut(place) {
            if is_same(&object.meta, meta) {
                if known > object.known {
                    object.meta.clone_from(meta);
                    object.known = known;
                }
                return true;
            }
            if object.known > known {
                return false;
            }
            self.remove(place, fallout);
        }
        let object = Object {
            place: place.clone(),
            meta: meta.clone(),
            value: fresh(),
            known,
            since: (config.clock)(),
            tenant,
            parts: Vec::new(),
        };
        let objects = self.namespaces.entry(place.namespace.id).or_default();
        objects.insert(place.key.clone(), object);
        self.objects += 1;
        true
    }

    /// Puts a piece into memory; its value is held.
    fn seat(&mut self, place: &Place, number: u32, piece: Piece, pinned: bool) {
        let weight = piece.held_bytes() + place.key.len() as u64;
        let Some(object) = self.object(place) else {
            return;
        };
        if object
            .part(number)
            .is_some_and(|part| part.memory.is_some())
        {
            return;
        }
        let tenant = object.tenant;
        let pinned = pinned && self.pinned_bytes + weight <= self.memory_bytes / PINNED_PART;
        let seat = match pinned {
            true => {
                self.pinned_bytes += weight;
                Seat::Pinned(weight)
            }
            false => Seat::Slot(self.tenants[tenant].memory.insert(place, number, weight)),
        };
        if let Some(object) = self.object_mut(place) {
            object.part_mut(number).memory = Some((piece, seat));
        }
    }

    /// Notes a piece on the disk; its value is held.
    fn shelve(&mut self, place: &Place, number: u32, weight: u64) {
        let slot = self.disk.insert(place, number, weight);
        let Some(object) = self.object_mut(place) else {
            self.disk.remove(slot);
            return;
        };
        if let Some(before) = object.part_mut(number).disk.replace(slot) {
            self.disk.remove(before);
        }
    }

    fn remove(&mut self, place: &Place, fallout: &mut Fallout) {
        let numbers: Vec<u32> = match self.object(place) {
            Some(object) => object.parts.iter().map(|part| part.0).collect(),
            None => return,
        };
        for number in numbers {
            self.drop_part(place, number, fallout);
        }
        self.leave_empty(place);
    }

    fn drop_part(&mut self, place: &Place, number: u32, fallout: &mut Fallout) {
        let Some(object) = self.object_mut(place) else {
            return;
        };
        let Ok(at) = object.parts.binary_search_by_key(&number, |part| part.0) else {
            return;
        };
        let (_, part) = object.parts.remove(at);
        let tenant = object.tenant;
        match part.memory {
            Some((_, Seat::Slot(slot))) => self.tenants[tenant].memory.remove(slot),
            Some((_, Seat::Pinned(weight))) => self.pinned_bytes -= weight,
            None => {}
        }
        if let Some(slot) = part.disk {
            self.disk.remove(slot);
            fallout.discard.push((place.clone(), number));
        }
    }

    /// Forgets a value of which nothing is held.
    fn leave_empty(&mut self, place: &Place) {
        let Some(objects) = self.namespaces.get_mut(&place.namespace.id) else {
            return;
        };
        if objects
            .get(&place.key[..])
            .is_some_and(|object| object.parts.is_empty())
        {
            objects.remove(&place.key[..]);
            self.objects -= 1;
            if objects.is_empty() {
                self.namespaces.remove(&place.namespace.id);
            }
        }
    }

    /// Takes a piece out of memory: of the tenant that holds most for its weight.
    fn evict(&mut self, fallout: &mut Fallout) -> bool {
        let over = |tenant: &Tenant| u128::from(tenant.memory.policy.weight()) << 32;
        let most = (0..self.tenants.len()).max_by_key(|at| {
            let tenant = &self.tenants[*at];
            over(tenant) / u128::from(tenant.weight)
        });
        let Some((place, number, uses)) =
            most.and_then(|tenant| self.tenants[tenant].memory.evict())
        else {
            return false;
        };
        // What was used once only is worth a write while the disk has room for everything.
        let room = self.disk.policy.weight() + (self.disk_bytes >> 4) < self.disk_bytes;
        let wanted = self.disk_bytes > 0 && (uses > 0 || room);
        if let Some(object) = self.object_mut(&place) {
            let meta = object.meta.clone();
            let part = object.part_mut(number);
            let piece = part.memory.take();
            let on_disk = part.disk.is_some();
            if !on_disk {
                object.parts.retain(|part| part.0 != number);
            }
            if let Some((piece, _)) = piece.filter(|_| !on_disk && wanted) {
                fallout.spill.push(Evicted {
                    place: place.clone(),
                    number,
                    meta,
                    piece,
                });
            }
        }
        self.leave_empty(&place);
        true
    }

    /// Takes a piece off the disk.
    fn evict_disk(&mut self, fallout: &mut Fallout) -> bool {
        let Some((place, number, _)) = self.disk.evict() else {
            return false;
        };
        if let Some(object) = self.object_mut(&place) {
            let part = object.part_mut(number);
            part.disk = None;
            if part.memory.is_none() {
                object.parts.retain(|part| part.0 != number);
            }
        }
        fallout.discard.push((place.clone(), number));
        self.leave_empty(&place);
        true
    }
}
