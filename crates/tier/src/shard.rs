//! The tables of a part of the index: values, their pieces, and the policies that say which of those leaves.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_store::Meta;

use crate::config::{Config, Trust};
use crate::index::{Evicted, Fallout, Place, is_same};
use crate::piece::Piece;
use crate::policy::{GHOST_BYTES, Policy, PolicyKind, Slot};

/// Of its memory, and of its disk, what the prints of items that left may take beside.
const MEMORY_PART: u64 = 32;
const DISK_PART: u64 = 1024;
/// Of its memory, what pins may hold.
const PINNED_PART: u64 = 2;
/// What is pinned and was not known to be current for so long may give way to another pin: a value that ended elsewhere is asked
/// for no more, and nothing else would end its pin.
const PIN_UNSEEN_MS: u64 = 600_000;
/// So many are looked at for one that has no room.
const PIN_LOOKS: usize = 8;

/// One of them.
pub(crate) struct Shard {
    pub namespaces: HashMap<u32, HashMap<Arc<[u8]>, Object>>,
    pub objects: u64,
    pub tenants: Vec<Tenant>,
    pub disk: Level,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// What is known of values on the disk takes so much memory.
    pub index_bytes: u64,
    /// In the order in which they are looked at when there is no room for another.
    pub pinned: Level,
    pub unpinned_bytes: u64,
}

/// Whose memory it is.
pub(crate) struct Tenant {
    pub name: String,
    pub weight: u64,
    pub memory: Level,
    /// How many values are held of it.
    pub objects: u64,
}

/// A policy and what its slots stand for.
pub(crate) struct Level {
    pub policy: Box<dyn Policy>,
    pub items: Vec<Option<(Place, u32)>>,
}

/// A value of which something is held.
pub(crate) struct Object {
    pub place: Place,
    pub meta: Meta,
    pub value: u64,
    pub known: u64,
    pub since: u64,
    pub tenant: usize,
    /// How many of its pieces are on the disk.
    pub shelved: u64,
    /// In order of their number.
    pub parts: Vec<(u32, Part)>,
}

#[derive(Default)]
pub(crate) struct Part {
    pub memory: Option<Seated>,
    pub disk: Option<Slot>,
}

/// A piece in memory.
pub(crate) struct Seated {
    pub piece: Piece,
    pub seat: Seat,
    /// What it counts there.
    weight: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Seat {
    Slot(Slot),
    Pinned(Slot),
}

/// What a piece counts: any of a value's keeps all of its metadata.
pub(crate) fn weight_of(place: &Place, meta: &Meta, piece: &Piece) -> u64 {
    piece.held_bytes() + place.key.len() as u64 + attributes_bytes(meta)
}

pub(crate) fn attributes_bytes(meta: &Meta) -> u64 {
    meta.attributes.encoded().len() as u64
}

impl Level {
    pub fn new(kind: PolicyKind, capacity: u64) -> Level {
        Level {
            policy: kind.make(capacity),
            items: Vec::new(),
        }
    }

    pub fn insert(&mut self, place: &Place, number: u32, weight: u64) -> Slot {
        let print = place.hash ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = self.policy.insert(print, weight);
        if self.items.len() <= slot.index() {
            self.items.resize(slot.index() + 1, None);
        }
        self.items[slot.index()] = Some((place.clone(), number));
        slot
    }

    pub fn remove(&mut self, slot: Slot) {
        self.policy.remove(slot);
        self.items[slot.index()] = None;
    }

    pub fn evict(&mut self) -> Option<(Place, u32, u8)> {
        let (slot, uses) = self.policy.evict()?;
        let (place, number) = self.items[slot.index()].take()?;
        Some((place, number, uses))
    }
}

impl Object {
    /// When it was last known to be current. A clock that went back since proves nothing.
    pub fn known_by(&self, now: u64) -> u64 {
        match self.known <= now {
            true => self.known,
            false => 0,
        }
    }

    /// Whether its time is over: the value's own, or that of anything that is held.
    pub fn is_over(&self, now: u64, ttl_ms: Option<u64>) -> bool {
        self.meta.expires.is_some_and(|at| at <= now)
            || ttl_ms.is_some_and(|ttl| now < self.since || now - self.since >= ttl)
    }

    pub fn part(&self, number: u32) -> Option<&Part> {
        let at = self.parts.binary_search_by_key(&number, |part| part.0);
        at.ok().map(|at| &self.parts[at].1)
    }

    pub fn part_mut(&mut self, number: u32) -> &mut Part {
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
    pub fn held(&self) -> u64 {
        self.unpinned_bytes + self.pinned.policy.weight()
    }

    pub fn object(&self, place: &Place) -> Option<&Object> {
        let objects = self.namespaces.get(&place.namespace.id)?;
        objects.get(&place.key[..])
    }

    pub fn object_mut(&mut self, place: &Place) -> Option<&mut Object> {
        let objects = self.namespaces.get_mut(&place.namespace.id)?;
        objects.get_mut(&place.key[..])
    }

    pub fn tenant(&mut self, name: &str, config: &Config) -> usize {
        if let Some(at) = self.tenants.iter().position(|tenant| tenant.name == name) {
            return at;
        }
        let share = config.shares.iter().find(|share| share.tenant == name);
        let tenant = Tenant {
            name: name.to_owned(),
            weight: share.map_or(1, |share| u64::from(share.weight.max(1))),
            memory: Level::new(config.policy, self.memory_bytes),
            objects: 0,
        };
        // In place of one of which nothing is held, so that those who were here once take no memory for ever.
        let left = self.tenants.iter().position(|tenant| tenant.objects == 0);
        let at = left.unwrap_or(self.tenants.len());
        match left {
            Some(at) => self.tenants[at] = tenant,
            None => self.tenants.push(tenant),
        }
        self.share_memory_of_what_left();
        at
    }

    /// All that remember what left them have one bound together, however many tenants there are.
    fn share_memory_of_what_left(&mut self) {
        let all = self.memory_bytes / MEMORY_PART + self.disk_bytes / DISK_PART;
        let all = all / GHOST_BYTES;
        let each = all as usize / (self.tenants.len() + 1);
        self.disk.policy.remember(each);
        for tenant in &mut self.tenants {
            tenant.memory.policy.remember(each);
        }
    }

    /// Makes the value of `meta` the one that is held of its key, unless another was current later.
    pub fn enter(
        &mut self,
        place: &Place,
        meta: &Meta,
        known: u64,
        config: &Config,
        fresh: impl FnOnce() -> u64,
        fallout: &mut Fallout,
    ) -> bool {
        let tenant = self.tenant(&place.namespace.config.tenant, config);
        let now = (config.clock)();
        if let Some(object) = self.object_mut(place) {
            // What is over begins anew: its pieces would never be hits again.
            if is_same(&object.meta, meta) && !object.is_over(now, config.ttl_ms) {
                if known > object.known_by(now) {
                    self.renew(place, meta, known);
                }
                return true;
            }
            if object.known_by(now) > known {
                return false;
            }
            self.remove(place, fallout);
        }
        let object = Object {
            place: place.clone(),
            meta: meta.clone(),
            value: fresh(),
            known,
            since: now,
            tenant,
            shelved: 0,
            // Most values have one.
            parts: Vec::with_capacity(1),
        };
        let objects = self.namespaces.entry(place.namespace.id).or_default();
        objects.insert(place.key.clone(), object);
        self.objects += 1;
        self.tenants[tenant].objects += 1;
        true
    }

    /// The metadata of the value that is held, as it was at `known`. What its pieces count changes with its attributes.
    pub fn renew(&mut self, place: &Place, meta: &Meta, known: u64) {
        let objects = self.namespaces.get_mut(&place.namespace.id);
        let Some(object) = objects.and_then(|objects| objects.get_mut(&place.key[..])) else {
            return;
        };
        let as_before = attributes_bytes(&object.meta) == attributes_bytes(meta);
        let index_bytes = object.index_bytes();
        object.meta.clone_from(meta);
        object.known = known;
        if as_before {
            return;
        }
        self.index_bytes = self.index_bytes - index_bytes + object.index_bytes();
        for (number, part) in &mut object.parts {
            let Some(seated) = &mut part.memory else {
                continue;
            };
            let weight = weight_of(place, meta, &seated.piece);
            match &mut seated.seat {
                Seat::Slot(slot) => {
                    let level = &mut self.tenants[object.tenant].memory;
                    level.remove(*slot);
                    *slot = level.insert(place, *number, weight);
                    self.unpinned_bytes = self.unpinned_bytes - seated.weight + weight;
                }
                Seat::Pinned(slot) => {
                    self.pinned.remove(*slot);
                    *slot = self.pinned.insert(place, *number, weight);
                }
            }
            seated.weight = weight;
        }
    }

    /// Puts a piece into memory; its value is held.
    pub fn seat(
        &mut self,
        place: &Place,
        number: u32,
        piece: Piece,
        pinned: bool,
        config: &Config,
        fallout: &mut Fallout,
    ) {
        let Some(object) = self.object(place) else {
            return;
        };
        let weight = weight_of(place, &object.meta, &piece);
        // First of all: what gives way may be of the same value.
        let pinned = pinned && self.has_room_to_pin(weight, config, fallout);
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
        let seat = match pinned {
            true => Seat::Pinned(self.pinned.insert(place, number, weight)),
            false => {
                self.unpinned_bytes += weight;
                Seat::Slot(self.tenants[tenant].memory.insert(place, number, weight))
            }
        };
        if let Some(object) = self.object_mut(place) {
            object.part_mut(number).memory = Some(Seated {
                piece,
                seat,
                weight,
            });
        }
    }

    /// Whether one more may be pinned, after others that are not what they were have given way.
    fn has_room_to_pin(&mut self, weight: u64, config: &Config, fallout: &mut Fallout) -> bool {
        let now = (config.clock)();
        let most = self.memory_bytes / PINNED_PART;
        for _ in 0..PIN_LOOKS {
            if self.pinned.policy.weight() + weight <= most {
                return true;
            }
            let Some((place, number, _)) = self.pinned.evict() else {
                return false;
            };
            self.look_at_pin(&place, number, now, config, fallout);
        }
        self.pinned.policy.weight() + weight <= most
    }

    /// A pinned piece that has lost its seat: it gets another, behind the others, or goes.
    fn look_at_pin(
        &mut self,
        place: &Place,
        number: u32,
        now: u64,
        config: &Config,
        fallout: &mut Fallout,
    ) {
        let Some(objects) = self.namespaces.get_mut(&place.namespace.id) else {
            return;
        };
        let Some(object) = objects.get_mut(&place.key[..]) else {
            return;
        };
        let believed = match config.trust {
            Trust::Within(ms) => ms.max(PIN_UNSEEN_MS),
            Trust::Strict => PIN_UNSEEN_MS,
        };
        let unseen = now.saturating_sub(object.known) >= believed;
        let over = unseen || object.is_over(now, config.ttl_ms);
        let memory = &mut object.part_mut(number).memory;
        match memory {
            Some(seated) if !over => {
                seated.seat = Seat::Pinned(self.pinned.insert(place, number, seated.weight));
            }
            _ => {
                *memory = None;
                self.drop_part(place, number, fallout);
                self.leave_empty(place);
            }
        }
    }

    pub fn remove(&mut self, place: &Place, fallout: &mut Fallout) {
        let numbers: Vec<u32> = match self.object(place) {
            Some(object) => object.parts.iter().map(|part| part.0).collect(),
            None => return,
        };
        for number in numbers {
            self.drop_part(place, number, fallout);
        }
        self.leave_empty(place);
    }

    pub fn drop_part(&mut self, place: &Place, number: u32, fallout: &mut Fallout) {
        let Some(object) = self.object_mut(place) else {
            return;
        };
        let Ok(at) = object.parts.binary_search_by_key(&number, |part| part.0) else {
            return;
        };
        let (_, part) = object.parts.remove(at);
        let tenant = object.tenant;
        match part.memory {
            Some(Seated {
                seat: Seat::Slot(slot),
                weight,
                ..
            }) => {
                self.unpinned_bytes -= weight;
                self.tenants[tenant].memory.remove(slot);
            }
            Some(Seated {
                seat: Seat::Pinned(slot),
                ..
            }) => self.pinned.remove(slot),
            None => {}
        }
        if let Some(slot) = part.disk {
            self.disk.remove(slot);
            self.unshelve(place);
            fallout.discard.push((place.clone(), number));
        }
    }

    /// Forgets a value of which nothing is held.
    pub fn leave_empty(&mut self, place: &Place) {
        let Some(objects) = self.namespaces.get_mut(&place.namespace.id) else {
            return;
        };
        if let Some(object) = objects.get(&place.key[..])
            && object.parts.is_empty()
        {
            self.tenants[object.tenant].objects -= 1;
            objects.remove(&place.key[..]);
            self.objects -= 1;
            if objects.is_empty() {
                self.namespaces.remove(&place.namespace.id);
            }
        }
    }

    /// Takes a piece out of memory: of the tenant that holds most for its weight.
    pub fn evict(&mut self, fallout: &mut Fallout) -> bool {
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
        let wanted = self.disk_bytes > 0 && (uses > 0 || self.has_disk_room());
        if let Some(object) = self.object_mut(&place) {
            let (meta, since) = (object.meta.clone(), object.since);
            let part = object.part_mut(number);
            let seated = part.memory.take();
            let on_disk = part.disk.is_some();
            if !on_disk {
                object.parts.retain(|part| part.0 != number);
            }
            if let Some(seated) = &seated {
                self.unpinned_bytes -= seated.weight;
            }
            if let Some(Seated { piece, .. }) = seated.filter(|_| !on_disk && wanted) {
                fallout.spill.push(Evicted {
                    place: place.clone(),
                    number,
                    meta,
                    since,
                    piece,
                });
            }
        }
        self.leave_empty(&place);
        true
    }
}
