//! The store.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_mem::{BLOCK_MAX_BYTES, Pool, RegionSlice};
use forebay_store::limits::{
    VALUE_BYTES_MAX, check_batch, check_compose, check_key, check_let_go, check_name,
};
use forebay_store::{
    Address, Attributes, Away, ByteRange, Caps, DeleteOptions, Deleted, ErrorKind, ListOptions,
    ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result, Scope, Seal, Source,
    Store, StoreError, StoreOptions, Stored, Usage, VersionId, VersionPage, Watch,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{mpsc, oneshot};

use crate::access::Access;
use crate::adopt::Adopted;
use crate::audit::Audit;
use crate::body::{AHEAD, RadosBody};
use crate::config::Config;
use crate::core::Core;
use crate::error::{OpenError, Parts, is_unreadable, malformed};
use crate::keeper::{self, Stop, Task};
use crate::names::{self, CHANGES, NAMESPACES};
use crate::sys::{Cluster, Settings, WriteOp};
use crate::under_way::Named;
use crate::upload::{RadosUpload, WRITES};

/// Addresses of one `exist` that are looked at at once.
const LOOKS: usize = 64;
/// A shorter lease would be lost whenever the cluster is busy.
const LEASE_LEAST: Duration = Duration::from_secs(1);
/// What the library may have under way before it blocks: more than [`Access`] ever gives it.
const LIBRARY_BYTES: u64 = 1 << 30;
const LIBRARY_OPERATIONS: u64 = 64 << 10;

/// A store over Ceph RADOS. Clones share it.
#[derive(Clone)]
pub struct RadosStore {
    handle: Arc<Handle>,
}

/// Stops the keeper with the last clone.
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.task(Task::Stop(Stop::new(None)));
    }
}

impl RadosStore {
    /// Connects, and makes what is missing in the pool. Uploads and bodies take buffers from `pool`; `clock` gives milliseconds since
    /// 1970. Blocks as long as the configuration's patience.
    ///
    /// # Errors
    /// What is missing, in words: the library, the configuration, the cluster, the pool.
    pub fn open(
        config: Config,
        pool: Pool,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> std::result::Result<RadosStore, OpenError> {
        check(&config)?;
        let seconds = |time: Duration| time.as_millis().div_ceil(1000).max(1).to_string();
        let settings = Settings {
            connections: config.connections,
            conf: config.conf.clone(),
            id: config.id.clone(),
            keyring: config.keyring.clone(),
            options: vec![
                ("rados_osd_op_timeout", seconds(config.patience)),
                ("rados_mon_op_timeout", seconds(config.connect_patience)),
                ("client_mount_timeout", seconds(config.connect_patience)),
                ("objecter_inflight_op_bytes", LIBRARY_BYTES.to_string()),
                ("objecter_inflight_ops", LIBRARY_OPERATIONS.to_string()),
            ],
        };
        let cluster =
            Cluster::connect(&settings).map_err(|error| OpenError::new(error.to_string()))?;
        let access = Access::new(cluster, &config.pool, config.patience);
        let access = Arc::new(access);
        let registry = access
            .place(&names::registry(&config.base))
            .map_err(|errno| {
                OpenError::new(format!(
                    "the pool {:?} cannot be used: {errno}",
                    config.pool
                ))
            })?;
        let (tasks, received) = mpsc::unbounded_channel();
        let gateway = RandomState::new().hash_one((clock(), std::process::id()));
        let core = Core::new(
            access,
            config,
            Box::new(clock),
            pool,
            gateway,
            registry,
            tasks,
        );
        let core = core.map_err(|errno| OpenError::new(format!("no lease: {errno}")))?;
        let core = Arc::new(core);
        let (sender, opened) = std::sync::mpsc::channel();
        let kept = core.clone();
        let thread = std::thread::Builder::new().name("forebay-rados".to_owned());
        let spawned = thread.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let Ok(runtime) = { runtime }.enable_time().build() else {
                return;
            };
            let stopped = runtime.block_on(async {
                let begun = begin(&kept).await;
                let failed = begun.is_err();
                if sender.send(begun).is_err() || failed {
                    return None;
                }
                keeper::run(kept, received).await
            });
            // What still runs here uses the connection too.
            drop(runtime);
            drop(stopped);
        });
        spawned.map_err(|error| OpenError::new(format!("no thread: {error}")))?;
        match opened.recv() {
            Ok(Ok(())) => Ok(RadosStore {
                handle: Arc::new(Handle { core }),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(OpenError::new("the keeper did not start")),
        }
    }

    /// Enters in the index what is under way, and leaves the cluster. What could not be entered, and values that still arrive, are swept by
    /// others once this gateway's lease is over; it commits nothing any more.
    pub async fn close(self) {
        let (sender, done) = oneshot::channel();
        self.core().task(Task::Stop(Stop::new(Some(sender))));
        // It has ended already: there is nothing to wait for.
        let _ = done.await;
    }

    /// Cleans up now what is cleaned up from time to time: what has expired, stripes whose time is over and that nobody has, and what gateways
    /// left that died. Returns how many of these.
    ///
    /// # Errors
    /// What failed first. Everything else was done all the same; what failed is tried again the next time.
    pub async fn sweep(&self) -> Result<usize> {
        let cleaned = self.core().clean().await;
        let cleared = self.core().clear_strays().await;
        let swept = cleaned?;
        cleared.map(|()| swept)
    }

    /// Looks for stripes that nothing refers to, whatever left them in a namespace: they go once the grace is over, if that is still so.
    /// Returns of how many values. Lists the pool and looks at every key.
    ///
    /// # Errors
    /// As of [`Store::stat`]. [`ErrorKind::Corrupt`]: something that may refer to stripes cannot be read, and all of them stay.
    pub async fn find_strays(&self, namespace: &str) -> Result<usize> {
        let namespace = self.core().namespace(namespace)?;
        self.core().find_strays(&namespace).await
    }

    /// Takes over the objects of a namespace that other hands wrote and that are not listed yet, and forgets those that other hands
    /// removed. Lists the pool.
    ///
    /// # Errors
    /// As of [`Store::stat`].
    pub async fn adopt(&self, namespace: &str) -> Result<Adopted> {
        let core = self.core();
        core.adopt_all(&core.namespace(namespace)?).await
    }

    /// Compares a namespace's objects, index and stripes. Lists the pool.
    ///
    /// # Errors
    /// As of [`Store::stat`].
    pub async fn audit(&self, namespace: &str) -> Result<Audit> {
        let core = self.core();
        let namespace = core.namespace(namespace)?;
        match core.settle(&namespace).await {
            // Whoever looks at everything finds it.
            Err(error) if is_unreadable(&error) => {}
            settled => settled?,
        }
        let flushed = core.flush_journal(&namespace).await;
        flushed.map_err(|errno| core.not_entered(&namespace, errno))?;
        core.audit(&namespace).await
    }

    /// Reads again which namespaces there are, and enters in the index what this gateway has under way. Keys whose records cannot be read keep
    /// nothing else.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::OutcomeUnknown`]: it is tried again by itself. [`ErrorKind::Corrupt`]: there is a namespace
    /// that nobody here can know, the record of which cannot be read; all else was done.
    pub async fn settle(&self) -> Result<()> {
        let core = self.core();
        core.reload().await?;
        let snapshot = core.snapshot();
        let mut parts = Parts::default();
        for (name, namespace) in &snapshot.namespaces {
            match core.settle(namespace).await {
                Err(error) if is_unreadable(&error) => {}
                settled => drop(parts.done(name, settled)),
            }
        }
        parts.end()?;
        match &snapshot.unknown {
            Some(name) => Err(malformed(&format!("the namespace {name:?}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

/// Refuses what no store can be opened with.
fn check(config: &Config) -> std::result::Result<(), OpenError> {
    if !config.base.is_empty() {
        check_name(&config.base).map_err(|error| OpenError::new(format!("the base: {error}")))?;
    }
    if config.object_bytes == 0 || !(config.object_bytes as usize).is_multiple_of(BLOCK_MAX_BYTES) {
        return Err(OpenError::new("objects have whole mebibytes"));
    }
    if config.lease < LEASE_LEAST {
        return Err(OpenError::new("a lease lasts a second or longer"));
    }
    if config.shards == 0 || config.shards > 4096 {
        return Err(OpenError::new("an index has 1 to 4096 parts"));
    }
    Ok(())
}

/// Makes what every store has, and says that this gateway is alive.
async fn begin(core: &Arc<Core>) -> std::result::Result<(), OpenError> {
    let pool = &core.config.pool;
    let refused = |what: &str, why: String| {
        OpenError::new(format!("the pool {pool:?} cannot be used: {what}: {why}"))
    };
    for object in [NAMESPACES, CHANGES] {
        let mut op = WriteOp::new(&core.registry);
        op.create();
        let made = core.access.write(&core.registry, object, op, None, 0).await;
        made.map_err(|errno| refused("the first object was not made", errno.to_string()))?;
    }
    let mut op = WriteOp::new(&core.registry);
    op.omap_set([(&b"?"[..], &[][..])]);
    let made = core
        .access
        .write(&core.registry, NAMESPACES, op, None, 0)
        .await;
    made.map_err(|errno| match errno.0 {
        libc::EOPNOTSUPP => refused(
            "it keeps no keys beside data",
            "is it erasure-coded?".to_owned(),
        ),
        _ => refused("no key was set", errno.to_string()),
    })?;
    let words = |error: StoreError| OpenError::new(error.to_string());
    let taken = core.renew_lease().await;
    taken.map_err(|errno| refused("no lease", errno.to_string()))?;
    core.register().await.map_err(words)?;
    core.load().await.map_err(words)?;
    // Nobody waits for them to know of this gateway: those who do not hear read of it by themselves.
    if let Err(errno) = core.announce().await {
        tracing::debug!(%errno, "a gateway did not hear of this one");
    }
    Ok(())
}

impl Store for RadosStore {
    type Upload = RadosUpload;
    type Body = RadosBody;

    fn caps(&self) -> Caps {
        Caps {
            name: "rados",
            durable: true,
            versions: true,
            value_bytes_max: VALUE_BYTES_MAX,
            chunk_bytes: BLOCK_MAX_BYTES,
            read_ahead: AHEAD
                * (self.core().config.object_bytes as usize).div_ceil(BLOCK_MAX_BYTES),
            write_behind: WRITES,
        }
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<RadosBody>> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        self.core()
            .retrieve(&namespace, &named(address), version, range)
            .await
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        let named = named(address);
        self.core()
            .retrieve_into(&namespace, &named, version, range, &target)
            .await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        check_batch(addresses)?;
        let mut looks = std::collections::HashMap::new();
        for address in addresses {
            let namespace = self.core().namespace(address.namespace)?;
            looks.insert((namespace.id, named(*address)), namespace);
        }
        let looks = looks
            .into_iter()
            .map(|((id, named), namespace)| async move {
                let found = match self.core().stat(&namespace, &named, None).await {
                    Ok(meta) => Some(meta),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => return Err(error),
                };
                Ok(((id, named), found))
            });
        let looks = stream::iter(looks).buffer_unordered(LOOKS);
        let found: std::collections::HashMap<_, _> = looks.try_collect().await?;
        let answer = |address: &Address<'_>| {
            let namespace = self.core().namespace(address.namespace)?;
            let found = found.get(&(namespace.id, named(*address)));
            Ok(found.cloned().flatten())
        };
        addresses.iter().map(answer).collect()
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        self.core().stat(&namespace, &named(address), version).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<RadosUpload> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        RadosUpload::begin(self.core(), namespace, named(address), options).await
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
        let namespace = self.core().namespace(target.namespace)?;
        self.core()
            .compose(&namespace, target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        self.core()
            .amend(&namespace, &named(address), version, seen, attributes)
            .await
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        self.core()
            .delete(&namespace, &named(address), options)
            .await
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        let named = named(address);
        let (value, _) = self.core().known(&namespace, &named, version).await?;
        Ok(value.away())
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        check_key(address.space, address.key)?;
        check_let_go(address, seen)?;
        let namespace = self.core().namespace(address.namespace)?;
        self.core()
            .let_go(&namespace, &named(address), seen, away)
            .await
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<RadosUpload> {
        check_key(address.space, address.key)?;
        let namespace = self.core().namespace(address.namespace)?;
        RadosUpload::begin_back(self.core(), namespace, named(address), version, away).await
    }

    fn forgotten(&self) -> Vec<Away> {
        self.core().forgotten()
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        let namespace = self.core().namespace(options.namespace)?;
        self.core().list(&namespace, options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        let namespace = self.core().namespace(options.namespace)?;
        self.core().list_versions(&namespace, options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.core().create_namespace(name, config).await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.core().delete_namespace(name).await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.core().update_namespace(name, revision, config).await
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        Ok(self.core().namespace(name)?.info())
    }

    async fn settle(&self) -> Result<()> {
        RadosStore::settle(self).await
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        let snapshot = self.core().snapshot();
        let namespaces = snapshot.namespaces.values();
        namespaces.map(|namespace| namespace.info()).collect()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        let core = self.core();
        match scope {
            Scope::Namespace(name) => Ok(core.books.namespace(core.namespace(name)?.id)),
            Scope::Tenant(tenant) => Ok(core.books.tenant(tenant)),
        }
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.core().set_tenant_quota(tenant, quota).await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        let snapshot = self.core().snapshot();
        snapshot.tenants.get(tenant).copied().unwrap_or_default()
    }

    fn changes(&self) -> Option<Box<dyn Watch>> {
        Some(self.core().notices.watch())
    }
}

fn named(address: Address<'_>) -> Named {
    Named {
        space: address.space,
        key: address.key.to_vec(),
    }
}
