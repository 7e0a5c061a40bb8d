//! The engine's door: [`Store`] over the parts, and what only an engine can do.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use forebay_io::{Clock, Disk};
use forebay_mem::{Pool, RegionSlice};
use forebay_store::limits::{
    VALUE_BYTES_MAX, check_batch, check_compose, check_key, check_let_go, check_name,
};
use forebay_store::{
    Address, Attributes, Away, ByteRange, Caps, DeleteOptions, Deleted, ErrorKind, ListOptions,
    ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Scope, Seal, Source, Store,
    StoreError, StoreOptions, Stored, Usage, VersionId, VersionPage,
};
use parking_lot::Mutex;

use crate::Result;
use crate::body::{EngineBody, Label, Remembered, mismatch, row_mismatch};
use crate::command::{AmendCommand, Command, ComposeCommand, Target};
use crate::core::{Core, Lock};
use crate::entry::{Entry, Place};
use crate::extent::{EXTENT_BYTES_MAX, GRANULE_BYTES};
use crate::findings::Finding;
use crate::index::corrupt;
use crate::land::{land, too_short};
use crate::metrics::Metrics;
use crate::recover::{self, OpenError};
use crate::scrub::{self, Audit, ScrubProgress};
use crate::segments::{Pins, Segments, resolve};
use crate::upload::EngineUpload;
use crate::view::{View, malformed};
use crate::{Config, checkpoint, journal, list};

/// A value may be replaced between the look at its entry and the look at its layout; then the look is repeated.
pub(crate) const LOOKS_MAX: usize = 64;
/// Keys of one `exist` looked up before others get a turn: less than a millisecond.
const EXIST_TURN: usize = 1000;

/// A store on a disk. Clones share it; the last one to go closes it.
pub struct Engine<D: Disk> {
    core: Arc<Core<D>>,
    running: Arc<Running<D>>,
}

impl<D: Disk> Clone for Engine<D> {
    fn clone(&self) -> Self {
        Engine {
            core: self.core.clone(),
            running: self.running.clone(),
        }
    }
}

/// The engine's threads and its lock on the directory.
struct Running<D: Disk> {
    core: Arc<Core<D>>,
    held: Mutex<Option<Held>>,
}

struct Held {
    journal: JoinHandle<()>,
    checkpoint: JoinHandle<()>,
    _lock: Lock,
}

impl<D: Disk> Running<D> {
    fn close(&self) {
        let Some(held) = self.held.lock().take() else {
            return;
        };
        self.core.queue.close();
        let journal = held.journal.join();
        self.core.handoff.close();
        let checkpoint = held.checkpoint.join();
        if journal.is_err() || checkpoint.is_err() {
            tracing::error!("a thread of the engine panicked");
        }
        // Before the lock goes: bodies may keep the index for longer, and closing it writes.
        self.core.index.close();
    }
}

impl<D: Disk> Drop for Running<D> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a thread of the engine does.
type Run<D> = Box<dyn FnOnce(Arc<Core<D>>) + Send>;

/// A value that was found.
struct Located<D: Disk> {
    namespace: Arc<NamespaceInfo>,
    meta: Meta,
    range: Range<u64>,
    bytes: Whereabouts<D>,
}

/// Where its bytes are.
enum Whereabouts<D: Disk> {
    Memory(Remembered),
    /// The pins are held until the bytes are read.
    Segments(Segments, Pins<D>),
}

impl<D: Disk> Engine<D> {
    /// Opens the store in `disk`, or makes one there. Values are read into and written from buffers of `pool`; `clock` tells
    /// what is past its time. Blocks while the journal is replayed.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed then, except that a store that was never finished may have been made anew.
    pub fn open(
        disk: D,
        clock: Arc<dyn Clock>,
        pool: Pool,
        config: Config,
    ) -> Result<Engine<D>, OpenError> {
        let (core, position, lock) = recover::open(disk, clock, pool, config)?;
        let core = Arc::new(core);
        let spawn = |name: &str, run: Run<D>, give_up: fn(&Core<D>)| {
            let core = core.clone();
            let guarded = move || {
                let run = AssertUnwindSafe(|| run(core.clone()));
                if catch_unwind(run).is_err() {
                    give_up(&core);
                }
            };
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(guarded)
                .map_err(|cause| OpenError::Io {
                    what: "starting a thread",
                    cause,
                })
        };
        let run = |core: Arc<Core<D>>| checkpoint::run(&core);
        let checkpoint = spawn("forebay-index", Box::new(run), checkpoint::give_up)?;
        let run = move |core| journal::run(core, position);
        let journal = match spawn("forebay-journal", Box::new(run), journal::give_up) {
            Ok(journal) => journal,
            Err(error) => {
                core.handoff.close();
                return Err(error);
            }
        };
        let running = Arc::new(Running {
            core: core.clone(),
            held: Mutex::new(Some(Held {
                journal,
                checkpoint,
                _lock: lock,
            })),
        });
        Ok(Engine { core, running })
    }

    /// Refuses further changes, makes everything durable, writes it to the index, and lets the directory go: from then on it is
    /// not even read for look-ups. Where writes of an upload are still on their way, the last of them to end lets it go. Blocks.
    pub fn close(&self) {
        self.running.close();
    }

    /// Drops values past their time, a bounded number of them; tells whether more are due. They are invisible before.
    pub async fn sweep(&self) -> Result<bool> {
        self.core.submit(Command::Sweep).await
    }

    /// Brings everything into the index, so that the next start has nothing to replay. Space that was taken ahead for small values is
    /// free again.
    pub async fn checkpoint(&self) -> Result<()> {
        self.core.submit(Command::Checkpoint).await
    }

    /// Reads every value from the device and compares it with its checksums; `progress` is called now and then. What does not
    /// match is in [`findings`](Engine::findings), and so is from where to where the index cannot be read: it goes on behind that.
    pub async fn scrub(&self, progress: impl FnMut(ScrubProgress) + Send) -> Result<ScrubProgress> {
        scrub::scrub(&self.core, progress).await
    }

    /// Blocks and rows that did not match, found by readers or by a scrub since the store was opened; at most 1000 are remembered. What the
    /// next scrub does not find again is not among them any more: it was replaced, deleted, or read after all. Where something keeps that from
    /// looking at everything, all of them stay.
    pub fn findings(&self) -> Vec<Finding> {
        self.core.findings.list()
    }

    /// Compares the map of space with what entries refer to; meaningful right after opening, or after a checkpoint when what readers
    /// kept has come back, while nothing changes.
    pub fn audit(&self) -> Result<Audit> {
        scrub::audit(&self.core)
    }

    /// What it did and holds.
    pub fn metrics(&self) -> Metrics {
        let space = self.core.space.usage();
        let kept = self.core.reclaim.kept();
        Metrics {
            cache_bytes: self.core.cache.held_bytes(),
            space_bytes: space.total_bytes,
            space_free_bytes: space.free_bytes,
            space_kept_bytes: kept.granules * GRANULE_BYTES as u64,
            kept_layout_bytes: kept.layout_bytes,
            read_only: self.core.is_read_only(),
            ..self.core.counters.read()
        }
    }

    /// The entry of the current value or of a version.
    fn find(
        &self,
        view: View<'_>,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Result<(Arc<NamespaceInfo>, Entry)> {
        let Address { space, key, .. } = address;
        check_key(space, key)?;
        let namespace = self.core.namespace(address.namespace)?;
        match view.find(&namespace, space, key, version) {
            Ok(entry) => Ok((namespace, entry)),
            Err(error) => {
                let version = version.unwrap_or(VersionId::NULL).0;
                let label = Label::new(&namespace, key, version);
                Err(row_mismatch(&self.core, &label, error))
            }
        }
    }

    /// Finds a value, or part of one, and keeps its space from being reused.
    fn locate(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Located<D>> {
        for _ in 0..LOOKS_MAX {
            let _visit = self.core.reclaim.visit();
            let view = self.core.view();
            let (namespace, entry) = self.find(view, address, version)?;
            let range = range.resolve(entry.size()).ok_or_else(|| {
                StoreError::new(
                    ErrorKind::RangeNotSatisfiable,
                    format!("the value has {} bytes", entry.size()),
                )
            })?;
            let bytes = match Remembered::find(&self.core, &entry, &range)? {
                Some(remembered) => Whereabouts::Memory(remembered),
                None => {
                    let place = entry.place().map_err(malformed)?;
                    if let Place::Away(away) = place {
                        let meta = entry.meta().map_err(malformed)?;
                        return Err(StoreError::let_go(meta, away));
                    }
                    let found = resolve(&self.core, view, place, range.clone());
                    let found = found.map_err(|error| {
                        let label = Label::new(&namespace, address.key, entry.version().0);
                        row_mismatch(&self.core, &label, error)
                    })?;
                    match found {
                        Some((segments, pins)) => Whereabouts::Segments(segments, pins),
                        None => continue,
                    }
                }
            };
            return Ok(Located {
                meta: entry.meta().map_err(malformed)?,
                namespace,
                range,
                bytes,
            });
        }
        Err(corrupt("a value's layout"))
    }

    fn target(&self, address: Address<'_>) -> Result<Target> {
        check_key(address.space, address.key)?;
        Ok(Target {
            namespace: self.core.namespace(address.namespace)?,
            space: address.space,
            key: Bytes::copy_from_slice(address.key),
        })
    }

    /// Looks here at what a change will be decided by, so that what has to be read for it is in memory then: who reads on the journal's thread has
    /// everybody wait. What cannot be read is in the way of the change, or not.
    fn look_ahead(&self, target: &Target, version: Option<VersionId>) {
        let Target {
            namespace,
            space,
            key,
        } = target;
        let view = self.core.view();
        drop(view.present_without(namespace, *space, key, version));
        if let Some(version) = version {
            drop(view.kept(namespace.id, key, version));
        }
    }
}

impl<D: Disk> Store for Engine<D> {
    type Upload = EngineUpload<D>;
    type Body = EngineBody<D>;

    fn caps(&self) -> Caps {
        Caps {
            name: "engine",
            durable: true,
            versions: true,
            value_bytes_max: VALUE_BYTES_MAX,
            chunk_bytes: EXTENT_BYTES_MAX,
            read_ahead: self.core.config.read_depth.max(1),
            write_behind: self.core.config.upload_depth.max(1) - 1,
        }
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<EngineBody<D>>> {
        let found = self.locate(address, version, range)?;
        let label = Label {
            namespace: found.namespace,
            key: Bytes::copy_from_slice(address.key),
            version: found.meta.version.0,
        };
        Ok(Object {
            meta: found.meta,
            range: found.range,
            body: match found.bytes {
                Whereabouts::Memory(held) => EngineBody::remembered(&self.core, label, held),
                Whereabouts::Segments(segments, pins) => EngineBody::new(label, segments, pins),
            },
        })
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        let Located {
            namespace,
            meta,
            range,
            bytes,
        } = self.locate(address, version, range)?;
        if range.end - range.start > target.len() as u64 {
            return Err(too_short());
        }
        let label = || Label::new(&namespace, address.key, meta.version.0);
        match bytes {
            Whereabouts::Memory(held) => held.place(&target, |block| {
                mismatch(&self.core, &label(), &held.extent, block)
            })?,
            Whereabouts::Segments(segments, pins) => {
                let (label, pins) = (label(), Arc::new(pins));
                // In a box: whoever finds the bytes in memory must not move the length of the other way about.
                Box::pin(land(&self.core, label, segments, pins, &target)).await?;
            }
        }
        Ok((meta, range))
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        check_batch(addresses)?;
        let view = self.core.view();
        let look = |address: &Address<'_>| -> Result<Option<Meta>> {
            let namespace = self.core.namespace(address.namespace)?;
            view.current(namespace.id, address.space, address.key)?
                .filter(|entry| !entry.is_expired(view.now))
                .map(|entry| entry.meta().map_err(malformed))
                .transpose()
        };
        let mut found = Vec::with_capacity(addresses.len());
        for (turn, addresses) in addresses.chunks(EXIST_TURN).enumerate() {
            if turn > 0 {
                tokio::task::yield_now().await;
            }
            for address in addresses {
                found.push(look(address)?);
            }
        }
        Ok(found)
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        let (_, entry) = self.find(self.core.view(), address, version)?;
        entry.meta().map_err(malformed)
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<EngineUpload<D>> {
        EngineUpload::begin(&self.core, self.target(address)?, options).await
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
        let owned = |key: &[u8]| Bytes::copy_from_slice(key);
        let sources = sources.iter();
        let sources = sources.map(|source| (owned(source.key), source.seen.cloned()));
        let command = ComposeCommand {
            target: self.target(target)?,
            condition: options.condition,
            size: options.size,
            seal,
            sources: sources.collect(),
            consumed: consumed.iter().map(|key| owned(key)).collect(),
        };
        self.look_ahead(&command.target, None);
        self.core
            .submit(|reply| Command::Compose(command, reply))
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.core.check_index_room()?;
        let command = AmendCommand {
            target: self.target(address)?,
            version,
            seen: seen.cloned(),
            attributes,
        };
        self.look_ahead(&command.target, version);
        self.core
            .submit(|reply| Command::Amend(command, reply))
            .await
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        let (_, entry) = self.find(self.core.view(), address, version)?;
        match entry.place().map_err(malformed)? {
            Place::Away(away) => Ok(Some(away)),
            _ => Ok(None),
        }
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        let target = self.target(address)?;
        check_let_go(address, seen)?;
        let seen = seen.clone();
        self.core
            .submit(|reply| Command::LetGo(target, seen, away, reply))
            .await
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<EngineUpload<D>> {
        EngineUpload::begin_back(&self.core, self.target(address)?, version, away).await
    }

    async fn settle(&self) -> Result<()> {
        self.core.submit(Command::Settle).await
    }

    fn forgotten(&self) -> Vec<Away> {
        self.core.take_forgotten()
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        let target = self.target(address)?;
        self.look_ahead(&target, options.version);
        self.core
            .submit(|reply| Command::Delete(target, options, reply))
            .await
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        let namespace = self.core.namespace(options.namespace)?;
        list::list(self.core.view(), &namespace, &options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        let namespace = self.core.namespace(options.namespace)?;
        list::list_versions(self.core.view(), &namespace, &options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        check_name(name)?;
        config.check()?;
        self.core.check_index_room()?;
        let name = name.to_owned();
        self.core
            .submit(|reply| Command::CreateNamespace(name, config, reply))
            .await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        let info = self.core.namespace(name)?;
        let growths = self.core.ledger.growths(info.id);
        // What had been counted until then can be seen.
        self.settle().await?;
        list::check_empty(self.core.view(), &info).await?;
        self.core
            .submit(|reply| Command::DeleteNamespace(info, growths, reply))
            .await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let name = name.to_owned();
        self.core
            .submit(|reply| Command::UpdateNamespace(name, revision, config, reply))
            .await
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        self.core.namespace(name)
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        self.core.registry.read().all()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        match scope {
            Scope::Namespace(name) => self.core.used(&[self.core.namespace(name)?.id].into()),
            Scope::Tenant(tenant) => {
                let mut infos = self.core.registry.read().all();
                infos.retain(|info| info.config.tenant == tenant);
                self.core.used(&infos.iter().map(|info| info.id).collect())
            }
        }
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        check_name(tenant)?;
        let tenant = tenant.to_owned();
        self.core
            .submit(|reply| Command::TenantQuota(tenant, quota, reply))
            .await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.core.ledger.tenant_quota(tenant)
    }
}
