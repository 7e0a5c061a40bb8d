//! Namespaces and tenants' bounds: keys of one object.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_store::limits::check_name;
use forebay_store::{
    Durability, ErrorKind, NamespaceConfig, NamespaceInfo, Quota, Result, StoreError, Versioning,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep_until};

use crate::codec::{Malformed, Reader, Writer};
use crate::core::{Core, Namespace, Snapshot};
use crate::error::{malformed, unknown, unread, unwritten};
use crate::keeper::{REFRESH, Task};
use crate::names::{self, NAMESPACES};
use crate::record::{Entry, Segment, begin, writer};
use crate::sys::{Errno, Guard, Place, ReadOp, Watching, WriteOp};
use crate::under_way::{Garbage, Intent};

/// Sections of the object: namespaces, tenants, gateways, values that nobody needs; and the last namespace's number.
pub(crate) const NAMESPACE: u8 = b'n';
pub(crate) const TENANT: u8 = b't';
pub(crate) const GATEWAYS: &[u8] = b"g";
const NUMBER: &[u8] = b"#number";
/// How long a change waits for other gateways to hear of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How often a change is tried again when others change things.
const ATTEMPTS: usize = 16;
/// How long deleting a namespace waits for changes under way.
const DELETE_ATTEMPTS: usize = 100;
/// The sections of all keys.
const ALL_KEYS: [u8; 2] = [names::OBJECTS, names::STAGED];

/// A namespace as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    pub info: NamespaceInfo,
    pub shards: u32,
}

impl Registered {
    pub fn encode(&self) -> Vec<u8> {
        let NamespaceInfo {
            name,
            id,
            created,
            revision,
            config,
        } = &self.info;
        let mut writer = writer();
        writer.string(name.as_bytes());
        writer.u32(*id);
        writer.u64(*created);
        writer.u64(*revision);
        writer.u32(self.shards);
        writer.string(config.tenant.as_bytes());
        write_quota(&mut writer, config.quota);
        writer.option(config.ttl_ms, Writer::u64);
        let within = match config.durability {
            Durability::Sync => None,
            Durability::Relaxed { within_ms } => Some(within_ms),
        };
        writer.option(within, Writer::u32);
        writer.u8(match config.versioning {
            Versioning::Off => 0,
            Versioning::Enabled => 1,
            Versioning::Suspended => 2,
        });
        writer.string(config.attributes.encoded());
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> std::result::Result<Registered, Malformed> {
        let mut reader = begin(encoded)?;
        let name = reader.text()?;
        let (id, created, revision, shards) =
            (reader.u32()?, reader.u64()?, reader.u64()?, reader.u32()?);
        let config = NamespaceConfig {
            tenant: reader.text()?,
            quota: read_quota(&mut reader)?,
            ttl_ms: reader.option(Reader::u64)?,
            durability: match reader.option(Reader::u32)? {
                None => Durability::Sync,
                Some(within_ms) => Durability::Relaxed { within_ms },
            },
            versioning: match reader.u8()? {
                0 => Versioning::Off,
                1 => Versioning::Enabled,
                2 => Versioning::Suspended,
                _ => return Err(Malformed),
            },
            attributes: reader.attributes()?,
        };
        reader.end()?;
        if shards == 0 || shards > 4096 || check_name(&name).is_err() {
            return Err(Malformed);
        }
        let info = NamespaceInfo {
            name,
            id,
            created,
            revision,
            config,
        };
        Ok(Registered { info, shards })
    }
}

fn write_quota(writer: &mut Writer, quota: Quota) {
    writer.option(quota.bytes, Writer::u64);
    writer.option(quota.objects, Writer::u64);
}

pub(crate) fn read_quota(reader: &mut Reader<'_>) -> std::result::Result<Quota, Malformed> {
    Ok(Quota {
        bytes: reader.option(Reader::u64)?,
        objects: reader.option(Reader::u64)?,
    })
}

fn key_of(section: u8, name: &str) -> Vec<u8> {
    let mut key = vec![section];
    key.extend_from_slice(name.as_bytes());
    key
}

impl Core {
    /// Tells everybody that namespaces or tenants changed. An error is the change's own, and says that it may have happened: once this
    /// gateway has it, as `is_known` says, what else cannot be read is no affair of who made it.
    async fn registry_changed(&self, is_known: impl FnOnce(&Snapshot) -> bool) -> Result<()> {
        let changed = Instant::now();
        let reloaded = self.reload().await;
        if let Err(errno) = self.announce().await {
            tracing::info!(%errno, "a gateway did not hear of a changed namespace, and reads of it by itself");
            sleep_until(changed + REFRESH + PATIENCE).await;
        }
        match reloaded {
            Err(error) if is_known(&self.snapshot()) => {
                tracing::warn!(%error, "other news is read later");
                Ok(())
            }
            reloaded => reloaded.map_err(unknown),
        }
    }

    /// Has all other gateways read the registry again, and waits until they have.
    pub async fn announce(&self) -> std::result::Result<(), Errno> {
        let words = self.gateway.to_le_bytes();
        let patience = PATIENCE.as_millis() as u64;
        let told = Watching::tell(&self.registry, NAMESPACES, &words, patience);
        self.access.in_time(told).await
    }

    async fn registry_keys(&self, keys: &[&[u8]]) -> Result<HashMap<Bytes, Bytes>> {
        let mut op = ReadOp::new(&self.registry);
        op.omap_keys(keys.iter().copied());
        let read = self.access.read(&self.registry, NAMESPACES, op, 0).await;
        let read = read.map_err(|errno| unread(errno, "the namespaces"))?;
        let pairs = read.omap.into_iter().next().unwrap_or_default().0;
        Ok(pairs.into_iter().collect())
    }

    /// The namespace of a name, as it is kept now.
    pub(crate) async fn registered(&self, name: &str) -> Result<Option<Registered>> {
        let key = key_of(NAMESPACE, name);
        let found = self.registry_keys(&[&key]).await?;
        let found = found.get(&key[..]).map(|found| Registered::decode(found));
        found.transpose().map_err(|_| malformed("a namespace"))
    }

    /// Whether there is a namespace of this name.
    pub(crate) async fn is_registered(&self, name: &str) -> Result<bool> {
        let key = key_of(NAMESPACE, name);
        Ok(self.registry_keys(&[&key]).await?.contains_key(&key[..]))
    }

    /// Changes keys of the registry if one of them is as it was; false when it is not.
    async fn registry_swap(&self, key: &[u8], before: &[u8], after: Option<&[u8]>) -> Result<bool> {
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_equals(key, before);
        match after {
            Some(after) => op.omap_set([(key, after)]),
            None => op.omap_remove([key]),
        }
        match self
            .access
            .write(&self.registry, NAMESPACES, op, None, 0)
            .await
        {
            Ok(_) => Ok(true),
            Err(Errno(libc::ECANCELED)) => Ok(false),
            Err(errno) => Err(unwritten(errno, "the namespaces")),
        }
    }

    async fn fresh_number(&self) -> Result<u32> {
        for _ in 0..ATTEMPTS {
            let found = self.registry_keys(&[NUMBER]).await?;
            let before = found.get(NUMBER).cloned().unwrap_or_default();
            let last = before[..].try_into().map_or(0, u32::from_le_bytes);
            let next = (last + 1).to_le_bytes();
            if self.registry_swap(NUMBER, &before, Some(&next)).await? {
                return Ok(last + 1);
            }
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "namespaces are made all the time",
        ))
    }

    /// See [`forebay_store::Store::create_namespace`].
    pub async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        check_name(name)?;
        config.check()?;
        let exists = || {
            StoreError::new(
                ErrorKind::NamespaceExists,
                format!("there is a namespace {name:?} already"),
            )
        };
        let key = key_of(NAMESPACE, name);
        if self.is_registered(name).await? {
            return Err(exists());
        }
        let id = self.fresh_number().await?;
        let info = NamespaceInfo {
            name: name.to_owned(),
            id,
            created: self.now(),
            revision: NamespaceInfo::first_revision(id),
            config,
        };
        let registered = Registered {
            info,
            shards: self.config.shards,
        };
        let opened = Namespace::open(
            &self.access,
            &self.config.base,
            registered.info.clone(),
            registered.shards,
        );
        let opened = &opened.map_err(|errno| unread(errno, name))?;
        let objects = || {
            let shards = opened.shards.iter().map(|shard| &shard.object[..]);
            shards.chain([opened.journal.object()])
        };
        let made = objects().map(|object| async move {
            let mut op = WriteOp::new(&opened.index);
            op.create();
            self.access.write(&opened.index, object, op, None, 0).await
        });
        try_join_all(made)
            .await
            .map_err(|errno| unread(errno, name))?;
        if !self
            .registry_swap(&key, &[], Some(&registered.encode()))
            .await?
        {
            for object in objects() {
                let mut op = WriteOp::new(&opened.index);
                op.remove();
                // The number is given to nobody: what stays behind is in nobody's way.
                let _ = self.access.write(&opened.index, object, op, None, 0).await;
            }
            return Err(exists());
        }
        self.registry_changed(|now| now.has(name, id)).await?;
        Ok(Arc::new(registered.info))
    }

    /// See [`forebay_store::Store::update_namespace`].
    pub async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let key = key_of(NAMESPACE, name);
        for _ in 0..ATTEMPTS {
            let found = self.registry_keys(&[&key]).await?;
            let before = found
                .get(&key[..])
                .ok_or_else(|| StoreError::no_namespace(name))?;
            let mut registered =
                Registered::decode(before).map_err(|_| malformed("a namespace"))?;
            let info = &mut registered.info;
            info.config.check_change(&config)?;
            if revision.is_some_and(|revision| revision != info.revision) {
                return Err(StoreError::new(
                    ErrorKind::PreconditionFailed,
                    "the namespace was changed meanwhile",
                ));
            }
            info.revision += 1;
            info.config = config.clone();
            if self
                .registry_swap(&key, before, Some(&registered.encode()))
                .await?
            {
                let revision = registered.info.revision;
                let is_known = |now: &Snapshot| {
                    let namespace = now.namespaces.get(name);
                    namespace.is_some_and(|known| known.info().revision >= revision)
                };
                self.registry_changed(is_known).await?;
                return Ok(Arc::new(registered.info));
            }
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "the namespace is being changed all the time",
        ))
    }

    /// See [`forebay_store::Store::set_tenant_quota`].
    pub async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        check_name(tenant)?;
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        let key = key_of(TENANT, tenant);
        match quota == Quota::default() {
            // What says nothing is not kept.
            true => op.omap_remove([&key[..]]),
            false => {
                let mut encoded = writer();
                write_quota(&mut encoded, quota);
                op.omap_set([(&key[..], &encoded.0[..])])
            }
        };
        let done = self
            .access
            .write(&self.registry, NAMESPACES, op, None, 0)
            .await;
        done.map_err(|errno| unwritten(errno, "the tenant"))?;
        let known = |now: &Snapshot| now.tenants.get(tenant).copied().unwrap_or_default();
        self.registry_changed(|now| known(now) == quota).await
    }

    /// See [`forebay_store::Store::delete_namespace`]. Removing the journal is what decides: no change can begin afterwards, because it
    /// would begin with an entry there.
    pub async fn delete_namespace(self: &Arc<Self>, name: &str) -> Result<()> {
        let namespace = self.namespace(name)?;
        self.expire(&namespace).await?;
        let mut remembered = HashSet::new();
        for _ in 0..DELETE_ATTEMPTS {
            self.settle(&namespace).await?;
            if self.close(&namespace, &mut remembered).await? {
                // Nothing comes of it any more, whatever else of it could not be removed.
                return self.unregister(&namespace).await.map_err(unknown);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.has_keys(&namespace, &[names::OBJECTS]).await? {
            return Err(not_empty(name));
        }
        // Of a gateway that died they end when it is swept. Whoever took that for keys would throw away uploads for nothing.
        Err(StoreError::new(
            ErrorKind::Busy,
            format!("changes in the namespace {name:?} are under way"),
        ))
    }

    /// Removes an empty namespace's journal; false when changes are under way, or begin meanwhile. `remembered` are the stripes that are
    /// remembered already.
    async fn close(
        &self,
        namespace: &Arc<Namespace>,
        remembered: &mut HashSet<Segment>,
    ) -> Result<bool> {
        let flushed = self.flush_journal(namespace).await;
        if let Err(Errno(libc::ENOENT)) = flushed {
            return Ok(true);
        }
        let mut version = 0;
        let mut after = Vec::new();
        let mut left = Vec::new();
        loop {
            let mut op = ReadOp::new(&namespace.index);
            op.omap(&after, b"", 1024);
            let object = namespace.journal.object();
            let read = match self.access.read(&namespace.index, object, op, 0).await {
                Err(Errno(libc::ENOENT)) => return Ok(true),
                Err(errno) => return Err(unread(errno, "the journal")),
                Ok(read) => read,
            };
            if version != 0 && read.version != version {
                return Ok(false);
            }
            version = read.version;
            let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
            for (name, value) in &pairs {
                after = name.to_vec();
                let segment = match name.first() {
                    Some(b'p') => return Ok(false),
                    Some(b'i') => Intent::decode(value).map(|intent| intent.segment),
                    _ => Garbage::decode(value).map(|garbage| garbage.segment),
                };
                left.extend(segment.ok().filter(|segment| !remembered.contains(segment)));
            }
            if !more || pairs.is_empty() {
                break;
            }
        }
        if self.has_keys(namespace, &ALL_KEYS).await? {
            return Err(not_empty(&namespace.info().name));
        }
        // Uploads under way find out when they commit; until then somebody has to know of their stripes.
        self.remember_orphans(namespace, &left).await?;
        remembered.extend(left);
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Version(version));
        op.remove();
        let object = namespace.journal.object();
        match self
            .access
            .write(&namespace.index, object, op, None, 0)
            .await
        {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(true),
            Err(Errno(libc::ERANGE | libc::EOVERFLOW)) => Ok(false),
            Err(errno) => Err(unwritten(errno, "the journal")),
        }
    }

    /// Whether the index of a namespace says that there are keys in these sections.
    async fn has_keys(&self, namespace: &Namespace, sections: &[u8]) -> Result<bool> {
        let mut has_keys = false;
        for shard in &namespace.shards {
            for section in sections {
                let each = |_, value: Bytes| {
                    has_keys |= Entry::decode(&value).map_or(true, |entry| entry.known.is_some());
                };
                self.keys(&namespace.index, &shard.object, &[*section], each)
                    .await?;
            }
        }
        Ok(has_keys)
    }

    /// Ends the deletion of a namespace that has no journal any more, which is made before its name is entered: who deleted it
    /// has died. One that has keys has lost its journal in another way.
    pub(crate) async fn end_deletion(&self, namespace: &Namespace) -> Result<()> {
        if self.has_keys(namespace, &ALL_KEYS).await? {
            let name = &namespace.info().name;
            tracing::warn!(name, "the namespace has keys, and its journal is lost");
            return Ok(());
        }
        self.unregister(namespace).await
    }

    /// Changes the object that names all namespaces and gateways.
    pub(crate) async fn write_registry(&self, op: WriteOp) -> Result<()> {
        let done = self
            .access
            .write(&self.registry, NAMESPACES, op, None, 0)
            .await;
        done.map(drop)
            .map_err(|errno| unwritten(errno, "the namespaces"))
    }

    async fn unregister(&self, namespace: &Namespace) -> Result<()> {
        for shard in &namespace.shards {
            let mut op = WriteOp::new(&namespace.index);
            op.remove();
            match self
                .access
                .write(&namespace.index, &shard.object, op, None, 0)
                .await
            {
                Ok(_) | Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(unwritten(errno, "the index")),
            }
        }
        let name = &namespace.info().name;
        let key = key_of(NAMESPACE, name);
        for _ in 0..ATTEMPTS {
            let found = self.registry_keys(&[&key]).await?;
            let Some(before) = found.get(&key[..]) else {
                break;
            };
            let other = Registered::decode(before).is_ok_and(|found| found.info.id != namespace.id);
            if other || self.registry_swap(&key, before, None).await? {
                break;
            }
        }
        self.registry_changed(|now| !now.has(name, namespace.id))
            .await
    }

    /// Whether a namespace has its journal, without which nothing comes of it any more.
    pub(crate) async fn has_journal(&self, index: &Arc<Place>, journal: &[u8]) -> Result<bool> {
        let mut op = ReadOp::new(index);
        op.stat();
        match self.access.read(index, journal, op, 0).await {
            Ok(_) => Ok(true),
            Err(Errno(libc::ENOENT)) => Ok(false),
            Err(errno) => Err(unread(errno, "the journal")),
        }
    }

    /// Refuses a namespace that was deleted meanwhile: what there is under its name now is not its own.
    pub(crate) async fn check_there(&self, namespace: &Namespace) -> Result<()> {
        let journal = namespace.journal.object();
        match self.has_journal(&namespace.index, journal).await? {
            true => Ok(()),
            false => Err(self.gone(namespace)),
        }
    }

    /// A namespace is no longer there, and this gateway has not heard of it.
    pub(crate) fn gone(&self, namespace: &Namespace) -> StoreError {
        self.task(Task::Reload(None));
        StoreError::no_namespace(&namespace.info().name)
    }
}

fn not_empty(name: &str) -> StoreError {
    StoreError::new(
        ErrorKind::NamespaceNotEmpty,
        format!("the namespace {name:?} is not empty"),
    )
}
