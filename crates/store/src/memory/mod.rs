//! A leaf that keeps values in memory: the model that other stores are tested against, and a store for tests of doors.
//!
//! Large values that fill the buffers they arrived in stay there, in a pool of their own; others are copied out of the doors'.
//! One lock over ordered maps, no threads, no time of its own: what it does is meant to be seen by reading it. Values past
//! their time are dropped at the start of every call.

mod state;
mod upload;
mod value;

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum_combine};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Pool, count_copy};
use parking_lot::{Mutex, MutexGuard};

use self::state::{Namespace, State, check};
use self::value::{Kept, Slot, Value};
use crate::limits::{
    VALUE_BYTES_MAX, check_batch, check_compose, check_key, check_let_go, check_name,
};
use crate::listing::{Collapse, Visit, versions_before};
use crate::{
    Address, After, Attributes, Away, ByteRange, Caps, DeleteOptions, Deleted, ErrorKind, Etag,
    Item, ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result,
    Scope, Seal, Source, Space, Store, StoreError, StoreOptions, Stored, Usage, VersionId,
    VersionItem, VersionPage, answer_delete, growth_of_delete, plan_delete,
};

pub use self::upload::MemoryUpload;
pub use self::value::MemoryBody;

const CHUNK_BYTES: usize = BLOCK_MAX_BYTES;
/// Shorter pieces of values are copied, which costs little.
const STAYING_BYTES_MIN: usize = 64 << 10;

/// A store in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Buffers of uploads.
    pool: Pool,
    /// Where large values stay.
    values: Pool,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Shared {
    /// The state, with nothing in it past its time.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.expire((self.clock)());
        state
    }

    /// For `len` bytes of an upload, or as many as a block has.
    async fn buffer(&self, len: usize) -> BufMut {
        let len = len.min(CHUNK_BYTES);
        if stays(len, len.next_power_of_two())
            && let Ok(buffer) = self.values.try_take(len)
        {
            return buffer;
        }
        self.pool.take(len).await
    }

    /// What an upload wrote, as it is kept.
    fn keep(&self, buf: Buf) -> Buf {
        let is_kept = match buf.place() {
            Some(_) => buf.is_from(&self.values) && stays(buf.len(), buf.held_bytes()),
            None => true,
        };
        if is_kept {
            return buf;
        }
        // The doors' buffers would drain into the store.
        count_copy(CopySite::MemoryStore, buf.len());
        Bytes::copy_from_slice(&buf).into()
    }
}

/// Whether `len` bytes of a value stay in a block of `block` bytes, the rest of which is lost then.
fn stays(len: usize, block: usize) -> bool {
    len >= STAYING_BYTES_MIN && len > block / 4 * 3
}

impl MemoryStore {
    /// An empty store whose uploads take buffers from `pool`; `clock` gives milliseconds since 1970.
    pub fn new(pool: Pool, clock: impl Fn() -> u64 + Send + Sync + 'static) -> MemoryStore {
        MemoryStore::with_capacity(pool, clock, u64::MAX)
    }

    /// The same for at most `capacity` bytes of values: past it, stores fail with [`ErrorKind::NoSpace`].
    pub fn with_capacity(
        pool: Pool,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
        capacity: u64,
    ) -> MemoryStore {
        MemoryStore {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    namespaces: BTreeMap::new(),
                    tenant_quotas: BTreeMap::new(),
                    namespaces_made: 0,
                    versions_made: 0,
                    capacity,
                    forgotten: Vec::new(),
                }),
                pool,
                values: Pool::new(usize::try_from(capacity).unwrap_or(usize::MAX)),
                clock: Box::new(clock),
            }),
        }
    }
}

impl Store for MemoryStore {
    type Upload = MemoryUpload;
    type Body = MemoryBody;

    fn caps(&self) -> Caps {
        Caps {
            name: "memory",
            durable: false,
            versions: true,
            value_bytes_max: VALUE_BYTES_MAX,
            chunk_bytes: CHUNK_BYTES,
            read_ahead: 0,
            write_behind: 0,
        }
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        check_key(address.space, address.key)?;
        let state = self.shared.state();
        let value = state
            .namespace(address.namespace)?
            .value(address, version)?;
        let range = range.resolve(value.meta.size).ok_or_else(|| {
            StoreError::new(
                ErrorKind::RangeNotSatisfiable,
                format!("the value has {} bytes", value.meta.size),
            )
        })?;
        if let Some(away) = value.away {
            return Err(StoreError::let_go(value.meta.clone(), away));
        }
        Ok(Object {
            meta: value.meta.clone(),
            range: range.clone(),
            body: MemoryBody::new(value.chunks.clone(), range),
        })
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        check_batch(addresses)?;
        let state = self.shared.state();
        let look = |address: &Address<'_>| {
            let namespace = state.namespace(address.namespace)?;
            let current = namespace.current(address.space, address.key);
            Ok(current.map(|value| value.meta.clone()))
        };
        addresses.iter().map(look).collect()
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        check_key(address.space, address.key)?;
        let state = self.shared.state();
        let value = state
            .namespace(address.namespace)?
            .value(address, version)?;
        Ok(value.meta.clone())
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<MemoryUpload> {
        check_key(address.space, address.key)?;
        MemoryUpload::begin(&self.shared, address, options)
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        check_compose(target, sources, consumed)?;
        let mut state = self.shared.state();
        let namespace = state.namespace(target.namespace)?;
        let slot = namespace.slot(target.space, target.key);
        check(slot, options.condition)?;
        let (size, crc64nvme) = joined(namespace, sources)?;
        let there = |key: &&[u8]| namespace.current(Space::Staging, key).is_some();
        if !consumed.iter().all(there) {
            return Err(Source::missing());
        }
        if options.size.is_some_and(|declared| declared != size) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "the sources do not have the declared length together",
            ));
        }
        let joined = sources.iter().map(|source| source.key);
        let removed: HashSet<&[u8]> = joined.chain(consumed.iter().copied()).collect();
        let freed = removed
            .iter()
            .filter_map(|key| namespace.current(Space::Staging, key))
            .map(|value| Usage::of(Space::Staging, value.meta.size))
            .fold(Usage::default(), Usage::plus);
        let growth = namespace.growth(target.space, slot, size).less(freed);
        state.admit(target.namespace, growth)?;

        let fresh = state.fresh_version();
        let now = (self.shared.clock)();
        let namespace = state.namespace_mut(target.namespace)?;
        let taken = sources
            .iter()
            .filter_map(|source| namespace.take_staged(source.key));
        let chunks: Vec<_> = taken.flat_map(|part| part.chunks.to_vec()).collect();
        for key in consumed {
            namespace.take_staged(key);
        }
        let meta = Meta {
            size,
            etag: seal.etag.unwrap_or_else(|| Etag::of_value(crc64nvme, size)),
            modified: now,
            version: fresh,
            crc64nvme,
            expires: namespace
                .info
                .config
                .expires(target.space, now, seal.expires),
            attributes: seal.attributes,
        };
        let value = Value {
            meta,
            chunks: chunks.into(),
            away: None,
        };
        let key = Bytes::copy_from_slice(target.key);
        Ok(namespace.store(target.space, key, fresh, value))
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        check_key(address.space, address.key)?;
        let mut state = self.shared.state();
        let namespace = state.namespace_mut(address.namespace)?;
        let mut amended = namespace.value(address, version)?.meta.clone();
        amended.check_seen(seen)?;
        amended.attributes = attributes;
        if let Some(value) = namespace.value_mut(address, version) {
            value.meta.clone_from(&amended);
        }
        Ok(amended)
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        check_key(address.space, address.key)?;
        let state = self.shared.state();
        Ok(state
            .namespace(address.namespace)?
            .value(address, version)?
            .away)
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        check_key(address.space, address.key)?;
        check_let_go(address, seen)?;
        let mut state = self.shared.state();
        let namespace = state.namespace_mut(address.namespace)?;
        let version = Some(seen.version);
        let value = namespace.value(address, version)?;
        value.meta.check_seen(Some(seen))?;
        if value.away.is_some() {
            return Err(StoreError::moved());
        }
        namespace.set_chunks(address, version, Arc::new([]), Some(away));
        Ok(())
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<MemoryUpload> {
        check_key(address.space, address.key)?;
        MemoryUpload::begin_back(&self.shared, address, version, away)
    }

    fn forgotten(&self) -> Vec<Away> {
        let mut state = self.shared.state();
        let mut forgotten = std::mem::take(&mut state.forgotten);
        for namespace in state.namespaces.values_mut() {
            forgotten.append(&mut namespace.books.forgotten);
        }
        forgotten
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        let Address { space, key, .. } = address;
        check_key(space, key)?;
        let mut state = self.shared.state();
        let slot = state.namespace(address.namespace)?.slot(space, key);
        check(slot, options.condition)?;
        let fresh = state.fresh_version();
        let namespace = state.namespace(address.namespace)?;
        let slot = namespace.slot(space, key);
        let present = slot.map(Slot::present).unwrap_or_default();
        let plan = plan_delete(namespace.versioning(space), present, options.version, fresh);
        let marker = options.version.and_then(|version| {
            let slot = slot?;
            slot.position(version).map(|at| slot.kept[at].is_marker())
        });
        state.admit(address.namespace, growth_of_delete(&plan))?;
        let namespace = state.namespace_mut(address.namespace)?;
        namespace.apply(space, key, &plan, (self.shared.clock)());
        Ok(answer_delete(present, options.version, &plan, marker))
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        let state = self.shared.state();
        let keys = state.namespace(options.namespace)?.keys(options.space);
        let mut page = ListPage::default();
        let mut collapse = Collapse::new(&options);
        let mut seek = collapse.start();
        while let Some(from) = seek.take() {
            for (key, slot) in keys.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded))
            {
                let Some(value) = &slot.current else {
                    continue;
                };
                match collapse.visit(key) {
                    Visit::Item => page
                        .items
                        .push(Item::Value(key.clone(), value.meta.clone())),
                    Visit::Prefix { prefix, seek: next } => {
                        page.items.push(Item::Prefix(key.slice_ref(prefix)));
                        seek = next;
                        break;
                    }
                    Visit::Full => {
                        page.more = true;
                        break;
                    }
                    Visit::End => break,
                }
            }
        }
        Ok(page)
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        let state = self.shared.state();
        let keys = state.namespace(options.namespace)?.keys(options.space);
        let mut page = VersionPage::default();
        let mut collapse = Collapse::new(&options);
        let mut seek = collapse.start_of_versions();
        while let Some(from) = seek.take() {
            let range = keys.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded));
            let mut entries = range.flat_map(|(key, slot)| {
                let items = version_items(key, slot);
                let passed = match options.after {
                    After::Version(at, version) if at == key => {
                        versions_before(slot.versions(), version)
                    }
                    _ => 0,
                };
                items.skip(passed).map(move |item| (key, item))
            });
            seek = loop {
                let Some((key, item)) = entries.next() else {
                    break None;
                };
                match collapse.visit(key) {
                    Visit::Item => page.items.push(item),
                    Visit::Prefix { prefix, seek } => {
                        page.items.push(VersionItem::Prefix(key.slice_ref(prefix)));
                        break seek;
                    }
                    Visit::Full => {
                        page.more = true;
                        break None;
                    }
                    Visit::End => break None,
                }
            };
        }
        Ok(page)
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        check_name(name)?;
        config.check()?;
        let mut state = self.shared.state();
        if state.namespaces.contains_key(name) {
            return Err(StoreError::new(
                ErrorKind::NamespaceExists,
                format!("there is a namespace {name:?} already"),
            ));
        }
        state.namespaces_made += 1;
        let namespace = Namespace::new(NamespaceInfo {
            name: name.to_owned(),
            id: state.namespaces_made,
            created: (self.shared.clock)(),
            revision: NamespaceInfo::first_revision(state.namespaces_made),
            config,
        });
        let info = namespace.info.clone();
        state.namespaces.insert(name.to_owned(), namespace);
        Ok(info)
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        let mut state = self.shared.state();
        let namespace = state.namespace(name)?;
        if !namespace.objects.is_empty() || !namespace.staging.is_empty() {
            return Err(StoreError::new(
                ErrorKind::NamespaceNotEmpty,
                format!("the namespace {name:?} is not empty"),
            ));
        }
        if let Some(namespace) = state.namespaces.remove(name) {
            state.forgotten.extend(namespace.books.forgotten);
        }
        Ok(())
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let mut state = self.shared.state();
        let namespace = state.namespace_mut(name)?;
        namespace.info.config.check_change(&config)?;
        if revision.is_some_and(|revision| revision != namespace.info.revision) {
            return Err(StoreError::new(
                ErrorKind::PreconditionFailed,
                "the namespace was changed meanwhile",
            ));
        }
        let info = Arc::make_mut(&mut namespace.info);
        info.revision += 1;
        info.config = config;
        Ok(namespace.info.clone())
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        Ok(self.shared.state.lock().namespace(name)?.info.clone())
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        let state = self.shared.state.lock();
        let infos = state.namespaces.values();
        infos.map(|namespace| namespace.info.clone()).collect()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        let state = self.shared.state();
        match scope {
            Scope::Namespace(name) => Ok(state.namespace(name)?.books.usage),
            Scope::Tenant(tenant) => Ok(state
                .namespaces
                .values()
                .filter(|namespace| namespace.info.config.tenant == tenant)
                .fold(Usage::default(), |held, namespace| {
                    held.plus(namespace.books.usage)
                })),
        }
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        check_name(tenant)?;
        let mut state = self.shared.state();
        state.tenant_quotas.insert(tenant.to_owned(), quota);
        Ok(())
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.shared.state.lock().tenant_quota(tenant)
    }
}

/// Size and CRC of staged values, one after the other.
fn joined(namespace: &Namespace, sources: &[Source<'_>]) -> Result<(u64, u64)> {
    let mut size = 0_u64;
    let mut crc = 0;
    for source in sources {
        let part = namespace.current(Space::Staging, source.key);
        let part = &part.ok_or_else(Source::missing)?.meta;
        source.check(part)?;
        crc = checksum_combine(CrcAlgorithm::Crc64Nvme, crc, part.crc64nvme, part.size);
        size += part.size;
    }
    if size > VALUE_BYTES_MAX {
        return Err(StoreError::new(
            ErrorKind::TooLarge,
            "the values together are larger than a value may be",
        ));
    }
    Ok((size, crc))
}

/// All entries of a key, newest first.
fn version_items<'s>(key: &'s bytes::Bytes, slot: &'s Slot) -> impl Iterator<Item = VersionItem> {
    let value = |value: &Value, latest| VersionItem::Value {
        key: key.clone(),
        meta: value.meta.clone(),
        latest,
    };
    let current = slot.current.iter().map(move |current| value(current, true));
    let kept = slot.kept.iter().rev().enumerate();
    current.chain(kept.map(move |(at, kept)| match kept {
        Kept::Value(kept) => value(kept, false),
        Kept::Marker { version, modified } => VersionItem::Marker {
            key: key.clone(),
            version: *version,
            modified: *modified,
            latest: at == 0 && slot.current.is_none(),
        },
    }))
}
