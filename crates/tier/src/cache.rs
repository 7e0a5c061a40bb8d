//! What all calls of a tier share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use forebay_store::{Address, ErrorKind, Meta, NamespaceInfo, Result, Space, Store, VersionId};

use crate::config::{Config, Trust};
use crate::disk::{Disk, QUEUE_BYTES_MAX};
use crate::flight::Flights;
use crate::index::{Evicted, Fallout, Index, Place, is_same};
use crate::metrics::{Counters, Metrics, count};
use crate::namesake::address;
use crate::room::{Held, Room};
use crate::stripes::{Changing, Quiet, Stripes};
use crate::write_back::WriteBack;

/// What may be on its way into a cache however small it is.
const FILL_BYTES_MIN: u64 = 16 << 20;

/// Buffers that a cache of `memory_bytes` needs in all: what is held, what is on its way there, and what waits for a disk.
pub fn buffer_bytes(memory_bytes: u64, disk: bool) -> u64 {
    let waiting = if disk { QUEUE_BYTES_MAX } else { 0 };
    memory_bytes
        .saturating_add((memory_bytes / 4).max(FILL_BYTES_MIN))
        .saturating_add(waiting)
}

pub(crate) struct Cache<S: Store> {
    pub config: Arc<Config>,
    pub counters: Arc<Counters>,
    pub index: Arc<Index>,
    pub stripes: Arc<Stripes>,
    pub flights: Arc<Flights<S>>,
    /// What flights, and values that arrive, may hold together.
    room: Room,
    pub disk: Option<Disk>,
    pub write_back: Arc<WriteBack>,
    hasher: RandomState,
}

impl<S: Store> Cache<S> {
    pub fn new(mut config: Config, disk: Option<Disk>) -> Cache<S> {
        let fill_bytes = (config.memory_bytes / 4).max(FILL_BYTES_MIN);
        // The longest finds room as long as others leave half of it: a tenant has no more than it leaves free.
        config.span_bytes_max = config.span_bytes_max.min(fill_bytes / 4);
        if disk.is_none() {
            config.disk_bytes = 0;
        }
        let config = Arc::new(config);
        let counters = Arc::new(Counters::default());
        Cache {
            index: Arc::new(Index::new(config.clone(), counters.clone())),
            stripes: Arc::default(),
            flights: Arc::default(),
            room: Room::new(fill_bytes),
            disk,
            write_back: Arc::new(WriteBack::new(config.write_back_bytes, counters.clone())),
            hasher: RandomState::new(),
            config,
            counters,
        }
    }

    pub fn now(&self) -> u64 {
        (self.config.clock)()
    }

    pub fn is_strict(&self) -> bool {
        self.config.trust == Trust::Strict
    }

    /// Whether what was current at `known` may be served at `now` without asking.
    pub fn is_trusted(&self, known: u64, now: u64) -> bool {
        match self.config.trust {
            Trust::Strict => false,
            // A clock that went back proves nothing.
            Trust::Within(ms) => known > 0 && known <= now && now - known <= ms,
        }
    }

    /// Where a current value is; `None` for what is never kept.
    pub fn place(
        &self,
        store: &S,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Result<Option<Place>> {
        if version.is_some() || address.space != Space::Objects {
            return Ok(None);
        }
        let namespace = store.namespace(address.namespace)?;
        Ok(Some(self.place_in(&namespace, address.key)))
    }

    /// Where a current value of a namespace is.
    pub fn place_in(&self, namespace: &Arc<NamespaceInfo>, key: &[u8]) -> Place {
        Place {
            hash: self.hasher.hash_one((namespace.id, key)),
            namespace: namespace.clone(),
            key: key.into(),
        }
    }

    /// The metadata that a hit would have, without a look at the store.
    pub async fn known(&self, place: &Place) -> Option<Meta> {
        let now = self.now();
        if let Some(pending) = self.write_back.find(place, now).await {
            return Some(pending.meta.clone());
        }
        let held = self.index.meta(place, now);
        held.filter(|(_, known)| self.is_trusted(*known, now))
            .map(|(meta, _)| meta)
    }

    /// Room for so many bytes of a value on their way into the cache, if its tenant may have it now.
    pub fn room_for(&self, place: &Place, bytes: u64) -> Option<Held> {
        self.room.take(&place.namespace.config.tenant, bytes)
    }

    /// Begins a change of a key: from here on nothing of it is held.
    pub fn change(&self, place: &Place) -> Changing {
        let changing = self.stripes.change(place.hash);
        self.after(self.index.remove(place, None));
        changing
    }

    /// Does what a change of the index leaves to do.
    pub fn after(&self, mut fallout: Fallout) {
        let Some(disk) = &self.disk else {
            return;
        };
        let may_go = |evicted: &Evicted| self.config.is_for_disk(&evicted.place.namespace.name);
        fallout.spill.retain(may_go);
        disk.after(fallout, &self.counters);
    }

    /// Gives buffers back, at least `wanted` bytes if so much is held: first what waits for the disk.
    pub fn shrink(&self, wanted: u64) -> bool {
        let dropped = self
            .disk
            .as_ref()
            .is_some_and(|disk| disk.give_up(&self.counters));
        dropped || self.index.shrink(wanted)
    }

    /// Asks the store whether the value that is held is current. The answer is its metadata; what was held of another is gone.
    pub async fn check(
        &self,
        store: &S,
        place: &Place,
        held: &Meta,
        value: u64,
    ) -> Result<Option<Meta>> {
        count(&self.counters.checks);
        let quiet = self.stripes.quiet(place.hash);
        let asked = self.now();
        match store.stat(address(store, place)?, None).await {
            Ok(meta) if is_same(&meta, held) => {
                self.confirm(place, value, &meta, asked, quiet);
                Ok(Some(meta))
            }
            Ok(_) => {
                count(&self.counters.outdated);
                self.after(self.index.remove(place, Some(value)));
                Ok(None)
            }
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    count(&self.counters.outdated);
                    self.after(self.index.remove(place, Some(value)));
                }
                Err(error)
            }
        }
    }

    /// Notes that the value held was current at `known`, unless something changed since `quiet`.
    pub fn confirm(
        &self,
        place: &Place,
        value: u64,
        meta: &Meta,
        known: u64,
        quiet: Option<Quiet>,
    ) {
        if let Some(quiet) = quiet {
            let still = || self.stripes.still(place.hash, quiet);
            self.after(self.index.confirm(place, value, meta, known, still));
        }
    }

    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.counters.read();
        self.index.measure(&mut metrics);
        metrics.write_back_bytes = self.write_back.waiting_bytes();
        metrics
    }
}
