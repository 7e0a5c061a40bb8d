//! What keeps the data, as the node opens, tends and closes it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_control::api::{Finding, ScrubReport};
use forebay_engine::{Engine, OpenError};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_store::{
    Address, After, Body, ByteRange, ErrorKind, ListOptions, MemoryStore, Space, Store, StoreError,
    VersionId, VersionItem,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::args::ServeArgs;
use super::device::Device;
use super::limits::Memory;
use crate::exit::{Exit, Failure, Outcome};

/// A server that was killed holds its directory until the system has taken its memory back.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_RETRY: Duration = Duration::from_millis(50);
/// Bounded steps of one sweep: the rest waits for the next.
const SWEEP_STEPS: usize = 64;

/// A leaf of the store, and the care that it needs.
pub trait Leaf: Send + Sync + 'static {
    /// What doors speak to.
    type Store: Store<Body: Unpin>;

    /// The store.
    fn store(&self) -> &Arc<Self::Store>;

    /// Adds its metrics.
    fn register(&self, registry: &mut Registry);

    /// A bounded piece of background work: called every few seconds.
    fn sweep(&self) -> impl Future<Output = ()> + Send;

    /// Reads everything and checks it.
    fn scrub(&self) -> impl Future<Output = Result<ScrubReport, StoreError>> + Send {
        read_everything(&**self.store())
    }

    /// Ends it; blocking. Acknowledged changes are safe without it: it saves the next start some work.
    fn close(&self) -> Outcome;
}

/// Values in files of a directory, or of a namespace of blocks elsewhere.
pub struct EngineLeaf {
    store: Arc<Engine<Device>>,
}

impl EngineLeaf {
    /// Opens the directory; blocks while a journal is replayed.
    pub fn open(
        disk: Device,
        clock: Arc<SystemClock>,
        pool: Pool,
        memory: &Memory,
        args: &ServeArgs,
    ) -> Outcome<EngineLeaf> {
        let place = args.dir.display();
        let config = forebay_engine::Config {
            cache_bytes: memory.cache,
            capacity_bytes: args.capacity.map_or(u64::MAX, |size| size.0),
            ..forebay_engine::Config::default()
        };
        let begun = Instant::now();
        let opened = loop {
            match Engine::open(disk.clone(), clock.clone(), pool.clone(), config.clone()) {
                Err(OpenError::Locked(_)) if begun.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_RETRY);
                }
                opened => break opened,
            }
        };
        let store = opened.map_err(|error| {
            let mut message = format!("{place}: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                message.push_str(&format!(": {error}"));
                cause = error.source();
            }
            Failure::new(Exit::Failed, message)
        })?;
        Ok(EngineLeaf {
            store: Arc::new(store),
        })
    }
}

impl Leaf for EngineLeaf {
    type Store = Engine<Device>;

    fn store(&self) -> &Arc<Engine<Device>> {
        &self.store
    }

    fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(EngineMetrics(self.store.clone())));
    }

    async fn sweep(&self) {
        for _ in 0..SWEEP_STEPS {
            match self.store.sweep().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, "expired values were not dropped");
                    return;
                }
            }
        }
    }

    async fn scrub(&self) -> Result<ScrubReport, StoreError> {
        let begun = Instant::now();
        let done = self.store.scrub(|_| {}).await?;
        let findings = self.store.findings().into_iter().map(|finding| Finding {
            namespace: finding.namespace,
            key: String::from_utf8_lossy(&finding.key).into_owned(),
            version: (finding.version != VersionId::NULL.0).then_some(finding.version),
            what: format!(
                "block {} of the extent at granule {} does not match its checksum",
                finding.block, finding.granule
            ),
        });
        Ok(ScrubReport {
            objects: done.values,
            bytes: done.bytes,
            elapsed_ms: begun.elapsed().as_millis() as u64,
            damaged: done.damaged,
            findings: findings.collect(),
        })
    }

    fn close(&self) -> Outcome {
        self.store.close();
        Ok(())
    }
}

/// What the engine counts, read when it is asked for.
struct EngineMetrics(Arc<Engine<Device>>);

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let metrics = self.0.metrics();
        let bytes = Some(Unit::Bytes);
        for (name, help, unit, value) in [
            (
                "forebay_engine_groups",
                "Journal groups written",
                None,
                metrics.groups,
            ),
            (
                "forebay_engine_changes",
                "Changes in journal groups",
                None,
                metrics.records,
            ),
            (
                "forebay_engine_syncs",
                "Syncs of the data file",
                None,
                metrics.syncs,
            ),
            (
                "forebay_engine_journal",
                "Written to the journal",
                bytes.as_ref(),
                metrics.journal_bytes,
            ),
            (
                "forebay_engine_checkpoints",
                "Times that changes were written to the index",
                None,
                metrics.checkpoints,
            ),
            (
                "forebay_engine_cache_hits",
                "Pieces of values found in memory",
                None,
                metrics.cache_hits,
            ),
            (
                "forebay_engine_cache_misses",
                "Pieces of values read from the disk",
                None,
                metrics.cache_misses,
            ),
            (
                "forebay_engine_corrupt_blocks",
                "Blocks that did not match their checksum",
                None,
                metrics.corrupt_blocks,
            ),
            (
                "forebay_engine_replayed_groups",
                "Journal groups replayed at the start",
                None,
                metrics.replayed_groups,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let described = encoder.encode_descriptor(name, help, unit, counter.metric_type())?;
            counter.encode(described)?;
        }
        for (name, help, unit, value) in [
            (
                "forebay_engine_cache",
                "Buffers held by the cache",
                bytes.as_ref(),
                metrics.cache_bytes,
            ),
            (
                "forebay_engine_space",
                "Space taken from the file system for values",
                bytes.as_ref(),
                metrics.space_bytes,
            ),
            (
                "forebay_engine_space_free",
                "Of that space, free",
                bytes.as_ref(),
                metrics.space_free_bytes,
            ),
            (
                "forebay_engine_read_only",
                "1 when changes are refused since a sync failed",
                None,
                u64::from(metrics.read_only),
            ),
        ] {
            let gauge = ConstGauge::new(value);
            let described = encoder.encode_descriptor(name, help, unit, gauge.metric_type())?;
            gauge.encode(described)?;
        }
        Ok(())
    }
}

/// Values in memory.
pub struct MemoryLeaf {
    store: Arc<MemoryStore>,
}

impl MemoryLeaf {
    /// An empty one.
    pub fn new(pool: Pool, clock: Arc<dyn Fn() -> u64 + Send + Sync>, capacity: u64) -> MemoryLeaf {
        MemoryLeaf {
            store: Arc::new(MemoryStore::with_capacity(pool, move || clock(), capacity)),
        }
    }
}

impl Leaf for MemoryLeaf {
    type Store = MemoryStore;

    fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    fn register(&self, _registry: &mut Registry) {}

    async fn sweep(&self) {}

    fn close(&self) -> Outcome {
        Ok(())
    }
}

/// A scrub through the waist alone: every version of every value is read, which checks it.
async fn read_everything<S: Store>(store: &S) -> Result<ScrubReport, StoreError> {
    let begun = Instant::now();
    let mut report = ScrubReport::default();
    for namespace in store.namespaces() {
        let mut last: Option<(bytes::Bytes, VersionId)> = None;
        loop {
            let options = ListOptions {
                namespace: &namespace.name,
                space: Space::Objects,
                prefix: b"",
                delimiter: None,
                after: match &last {
                    Some((key, version)) => After::Version(key, *version),
                    None => After::Start,
                },
                limit: usize::MAX,
            };
            let page = match store.list_versions(options).await {
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NoSuchNamespace => break,
                page => page?,
            };
            for item in &page.items {
                match item {
                    VersionItem::Value { key, meta, .. } => {
                        let address = Address::object(&namespace.name, key);
                        let version = Some(meta.version);
                        match read_value(store, address, version).await {
                            Ok(bytes) => {
                                report.objects += 1;
                                report.bytes += bytes;
                            }
                            Err(error) if error.kind() == ErrorKind::Corrupt => {
                                report.damaged += 1;
                                report.findings.push(Finding {
                                    namespace: namespace.name.clone(),
                                    key: String::from_utf8_lossy(key).into_owned(),
                                    version: (meta.version != VersionId::NULL)
                                        .then_some(meta.version.0),
                                    what: error.message().to_owned(),
                                });
                            }
                            // Deleted or replaced since it was listed.
                            Err(error)
                                if matches!(
                                    error.kind(),
                                    ErrorKind::NotFound
                                        | ErrorKind::NoSuchVersion
                                        | ErrorKind::IsDeleteMarker
                                        | ErrorKind::NoSuchNamespace
                                ) => {}
                            Err(error) => return Err(error),
                        }
                        last = Some((key.clone(), meta.version));
                    }
                    VersionItem::Marker { key, version, .. } => {
                        last = Some((key.clone(), *version));
                    }
                    VersionItem::Prefix(_) => {}
                }
            }
            if !page.more || page.items.is_empty() {
                break;
            }
        }
    }
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(report)
}

async fn read_value<S: Store>(
    store: &S,
    address: Address<'_>,
    version: Option<VersionId>,
) -> Result<u64, StoreError> {
    let mut object = store.retrieve(address, version, ByteRange::Full).await?;
    let mut bytes = 0;
    while let Some(buf) = object.body.next().await? {
        bytes += buf.len() as u64;
    }
    Ok(bytes)
}
