//! Everything a memory store knows, behind its one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::Buf;

use super::value::{Kept, Slot, Value};
use crate::{
    Address, Away, Change, Condition, ErrorKind, NamespaceInfo, Plan, Quota, Result, Space,
    StoreError, Stored, Usage, VersionId, Versioning, plan_store,
};

pub(super) struct State {
    pub namespaces: BTreeMap<String, Namespace>,
    pub tenant_quotas: BTreeMap<String, Quota>,
    pub namespaces_made: u32,
    pub versions_made: u64,
    /// Bytes that all values together may have, as far as they are here.
    pub capacity: u64,
    /// Of namespaces that were deleted.
    pub forgotten: Vec<Away>,
}

pub(super) struct Namespace {
    pub info: Arc<NamespaceInfo>,
    pub objects: BTreeMap<Bytes, Slot>,
    pub staging: BTreeMap<Bytes, Slot>,
    /// Room promised to uploads under way.
    pub reserved: Usage,
    pub books: Books,
}

/// What is known of all values of a namespace together.
#[derive(Default)]
pub(super) struct Books {
    pub usage: Usage,
    /// Values that will expire: when, and which.
    expiring: BTreeSet<(u64, Space, Bytes, VersionId)>,
    /// Bytes of values that were let go.
    away_bytes: u64,
    /// Where bytes were of values that are gone, or have their bytes back.
    pub forgotten: Vec<Away>,
}

impl State {
    pub fn namespace(&self, name: &str) -> Result<&Namespace> {
        self.namespaces
            .get(name)
            .ok_or_else(|| StoreError::no_namespace(name))
    }

    pub fn namespace_mut(&mut self, name: &str) -> Result<&mut Namespace> {
        self.namespaces
            .get_mut(name)
            .ok_or_else(|| StoreError::no_namespace(name))
    }

    /// An unused version id.
    pub fn fresh_version(&mut self) -> VersionId {
        self.versions_made += 1;
        VersionId(self.versions_made)
    }

    /// Drops what is past its time. Every call begins here, so that nothing else has to think of expiry.
    pub fn expire(&mut self, now: u64) {
        for namespace in self.namespaces.values_mut() {
            while let Some((expires, ..)) = namespace.books.expiring.first()
                && *expires <= now
                && let Some((_, space, key, version)) = namespace.books.expiring.pop_first()
            {
                namespace.expire(space, &key, version);
            }
        }
    }

    /// Refuses growth that a quota or the capacity has no room for, counting what uploads under way were promised.
    pub fn admit(&self, name: &str, growth: Usage) -> Result<()> {
        let namespace = self.namespace(name)?;
        let config = &namespace.info.config;
        let mut tenant = Usage::default();
        let mut bytes = 0;
        for other in self.namespaces.values() {
            let books = &other.books;
            bytes += books.usage.bytes - books.away_bytes + other.reserved.bytes;
            if other.info.config.tenant == config.tenant {
                tenant = tenant.plus(books.usage).plus(other.reserved);
            }
        }
        let taken = namespace.books.usage.plus(namespace.reserved);
        config.quota.admit(taken, growth, "namespace")?;
        let tenant_quota = self.tenant_quota(&config.tenant);
        tenant_quota.admit(tenant, growth, "tenant")?;
        if growth.bytes > 0 && growth.bytes > self.capacity.saturating_sub(bytes) {
            return Err(StoreError::new(
                ErrorKind::NoSpace,
                "the memory store is full",
            ));
        }
        Ok(())
    }

    pub fn tenant_quota(&self, tenant: &str) -> Quota {
        self.tenant_quotas.get(tenant).copied().unwrap_or_default()
    }
}

impl Namespace {
    pub fn new(info: NamespaceInfo) -> Namespace {
        Namespace {
            info: Arc::new(info),
            objects: BTreeMap::new(),
            staging: BTreeMap::new(),
            reserved: Usage::default(),
            books: Books::default(),
        }
    }

    pub fn keys(&self, space: Space) -> &BTreeMap<Bytes, Slot> {
        match space {
            Space::Objects => &self.objects,
            Space::Staging => &self.staging,
        }
    }

    fn keys_mut(&mut self, space: Space) -> &mut BTreeMap<Bytes, Slot> {
        match space {
            Space::Objects => &mut self.objects,
            Space::Staging => &mut self.staging,
        }
    }

    pub fn versioning(&self, space: Space) -> Versioning {
        match space {
            Space::Objects => self.info.config.versioning,
            Space::Staging => Versioning::Off,
        }
    }

    pub fn current(&self, space: Space, key: &[u8]) -> Option<&Value> {
        self.keys(space).get(key)?.current.as_ref()
    }

    /// The current value, or one version.
    pub fn value(&self, address: Address<'_>, version: Option<VersionId>) -> Result<&Value> {
        let slot = self.keys(address.space).get(address.key);
        let Some(version) = version else {
            return slot.and_then(|slot| slot.current.as_ref()).ok_or_else(|| {
                let error = StoreError::new(ErrorKind::NotFound, "the key holds no value");
                match slot.and_then(Slot::marker) {
                    Some(marker) => error.with_marker(marker),
                    None => error,
                }
            });
        };
        let missing = || StoreError::new(ErrorKind::NoSuchVersion, "the key has no such version");
        let slot = slot.ok_or_else(missing)?;
        if let Some(current) = &slot.current
            && current.meta.version == version
        {
            return Ok(current);
        }
        match &slot.kept[slot.position(version).ok_or_else(missing)?] {
            Kept::Value(value) => Ok(value),
            Kept::Marker { .. } => Err(StoreError::new(
                ErrorKind::IsDeleteMarker,
                "the version is a delete marker",
            )
            .with_marker(version)),
        }
    }

    /// What [`value`](Namespace::value) finds, for changing.
    pub fn value_mut(
        &mut self,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Option<&mut Value> {
        let slot = self.keys_mut(address.space).get_mut(address.key)?;
        let kept = slot.kept.iter_mut().filter_map(|kept| match kept {
            Kept::Value(value) => Some(value),
            Kept::Marker { .. } => None,
        });
        match version {
            None => slot.current.as_mut(),
            Some(version) => slot
                .current
                .iter_mut()
                .chain(kept)
                .find(|value| value.meta.version == version),
        }
    }

    /// Puts bytes in the place of a name, or a name in the place of bytes.
    pub fn set_chunks(
        &mut self,
        address: Address<'_>,
        version: Option<VersionId>,
        chunks: Arc<[Buf]>,
        away: Option<Away>,
    ) {
        let Some(value) = self.value_mut(address, version) else {
            return;
        };
        let size = value.meta.size;
        value.chunks = chunks;
        match std::mem::replace(&mut value.away, away) {
            Some(gone) => {
                self.books.away_bytes -= size;
                self.books.forgotten.push(gone);
            }
            None => self.books.away_bytes += size,
        }
    }

    pub fn slot(&self, space: Space, key: &[u8]) -> Option<&Slot> {
        self.keys(space).get(key)
    }

    /// What storing `size` bytes at a key, under which `slot` stands, adds, after what it replaces has gone.
    pub fn growth(&self, space: Space, slot: Option<&Slot>, size: u64) -> Usage {
        let mut freed = Usage::default();
        if let Some(slot) = slot {
            // Which id a new version gets makes no difference here.
            let fresh = VersionId(u64::MAX);
            let plan = plan_store(self.versioning(space), slot.present(), fresh);
            let gone = plan.iter().filter_map(|change| slot.dropped_by(*change));
            freed = gone.fold(freed, |freed, value| freed.plus(weight(space, value)));
        }
        Usage::of(space, size).less(freed)
    }

    /// Carries out a plan that puts no value; `now` dates markers.
    pub fn apply(&mut self, space: Space, key: &[u8], plan: &Plan, now: u64) {
        let key = Bytes::copy_from_slice(key);
        let (keys, books) = self.parts(space);
        let slot = keys.entry(key.clone()).or_default();
        books.carry_out(space, &key, slot, plan, None, now);
        if slot.is_empty() {
            keys.remove(&key);
        }
    }

    /// Makes `value`, whose version is not decided yet, current as the namespace's versioning says.
    pub fn store(&mut self, space: Space, key: Bytes, fresh: VersionId, value: Value) -> Stored {
        let versioning = self.versioning(space);
        let (keys, books) = self.parts(space);
        let slot = keys.entry(key.clone()).or_default();
        let present = slot.present();
        let plan = plan_store(versioning, present, fresh);
        let mut meta = value.meta.clone();
        for change in &plan {
            if let Change::PutCurrent(version) = *change {
                meta.version = version;
            }
        }
        books.carry_out(space, &key, slot, &plan, Some(value), meta.modified);
        Stored {
            meta,
            replaced: present.current.is_some(),
        }
    }

    fn parts(&mut self, space: Space) -> (&mut BTreeMap<Bytes, Slot>, &mut Books) {
        let keys = match space {
            Space::Objects => &mut self.objects,
            Space::Staging => &mut self.staging,
        };
        (keys, &mut self.books)
    }

    fn expire(&mut self, space: Space, key: &Bytes, version: VersionId) {
        let Some(slot) = self.keys_mut(space).get_mut(key) else {
            return;
        };
        let change = match &slot.current {
            Some(current) if current.meta.version == version => Change::DropCurrent,
            Some(_) | None => Change::DropKept(version),
        };
        self.apply(space, key, &vec![change], 0);
    }

    /// Takes a staged value out without freeing its bytes.
    pub fn take_staged(&mut self, key: &[u8]) -> Option<Value> {
        let slot = self.staging.get_mut(key)?;
        let value = slot.current.take()?;
        if slot.is_empty() {
            self.staging.remove(key);
        }
        let key = Bytes::copy_from_slice(key);
        self.books.discount(Space::Staging, &key, &value);
        Some(value)
    }
}

impl Books {
    /// Carries out a plan. `value` is what `PutCurrent` puts, without its version; `now` dates markers.
    fn carry_out(
        &mut self,
        space: Space,
        key: &Bytes,
        slot: &mut Slot,
        plan: &Plan,
        mut value: Option<Value>,
        now: u64,
    ) {
        for change in plan {
            match *change {
                Change::PutCurrent(version) => {
                    slot.current = value.take().map(|mut value| {
                        value.meta.version = version;
                        self.count(space, key, &value);
                        value
                    });
                }
                Change::KeepCurrent => slot.kept.extend(slot.current.take().map(Kept::Value)),
                Change::DropCurrent => {
                    if let Some(gone) = slot.current.take() {
                        self.discount(space, key, &gone);
                    }
                }
                Change::DropKept(version) => {
                    match slot.position(version).map(|at| slot.kept.remove(at)) {
                        Some(Kept::Value(gone)) => self.discount(space, key, &gone),
                        Some(Kept::Marker { .. }) => self.usage = self.usage.less(Usage::MARKER),
                        None => {}
                    }
                }
                Change::PutMarker(version) => {
                    self.usage = self.usage.plus(Usage::MARKER);
                    slot.kept.push(Kept::Marker {
                        version,
                        modified: now,
                    });
                }
                Change::PromoteKept(version) => {
                    if let Some(at) = slot.position(version)
                        && let Kept::Value(_) = slot.kept[at]
                        && let Kept::Value(value) = slot.kept.remove(at)
                    {
                        slot.current = Some(value);
                    }
                }
            }
        }
    }

    fn count(&mut self, space: Space, key: &Bytes, value: &Value) {
        self.usage = self.usage.plus(weight(space, value));
        if let Some(expires) = value.meta.expires {
            let entry = (expires, space, key.clone(), value.meta.version);
            self.expiring.insert(entry);
        }
    }

    fn discount(&mut self, space: Space, key: &Bytes, value: &Value) {
        self.usage = self.usage.less(weight(space, value));
        if let Some(away) = value.away {
            self.away_bytes -= value.meta.size;
            self.forgotten.push(away);
        }
        if let Some(expires) = value.meta.expires {
            let entry = (expires, space, key.clone(), value.meta.version);
            self.expiring.remove(&entry);
        }
    }
}

/// Refuses what is stored or deleted under a condition that does not hold.
pub(super) fn check(slot: Option<&Slot>, condition: Condition) -> Result<()> {
    let current = slot.and_then(|slot| slot.current.as_ref());
    if condition.holds(current.map(|value| &value.meta.etag)) {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::PreconditionFailed,
        "the condition does not hold of the current value",
    ))
}

fn weight(space: Space, value: &Value) -> Usage {
    Usage::of(space, value.meta.size)
}
