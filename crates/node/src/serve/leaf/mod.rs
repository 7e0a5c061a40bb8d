//! What keeps the data, as the node opens, tends and closes it.

mod engine;
mod rados;
mod scrub;
mod store;

use std::sync::Arc;

use forebay_control::api::ScrubReport;
use forebay_engine::Engine;
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_rados::RadosStore;
use forebay_store::{MemoryStore, StoreError};
use prometheus_client::registry::Registry;

use super::UnixClock;
use super::args::ServeArgs;
use super::device::Device;
use super::held::aside;
use super::limits::Memory;
use crate::exit::Outcome;

pub use engine::refused;
pub use rados::{CephArgs, Place};

/// A leaf of the store, and the care that it needs. It is a store itself: which one it is, is a branch of a match. Clones are the
/// same.
#[derive(Clone)]
pub enum Leaf {
    /// Values in files of a directory, or of a namespace of blocks elsewhere.
    Engine(Arc<Engine<Device>>),
    /// Values in memory.
    Memory(Arc<MemoryStore>),
    /// Values in a pool of a Ceph cluster.
    Rados(RadosStore),
}

impl Leaf {
    /// Opens the directory, in which a journal may have to be replayed.
    pub async fn engine(
        disk: Device,
        clock: Arc<SystemClock>,
        pool: Pool,
        memory: &Memory,
        args: &ServeArgs,
    ) -> Outcome<Leaf> {
        let opened = engine::open(disk, clock, pool, memory, args).await?;
        Ok(Leaf::Engine(Arc::new(opened)))
    }

    /// An empty one, of at most `capacity` bytes.
    pub fn memory(pool: Pool, clock: Arc<dyn Fn() -> u64 + Send + Sync>, capacity: u64) -> Leaf {
        let store = MemoryStore::with_capacity(pool, move || clock(), capacity);
        Leaf::Memory(Arc::new(store))
    }

    /// Connects to a cluster.
    pub async fn rados(
        place: &Place,
        args: &CephArgs,
        pool: Pool,
        clock: UnixClock,
    ) -> Outcome<Leaf> {
        let (place, args) = (place.clone(), args.clone());
        let opened = aside(move || rados::open(&place, &args, pool, clock)).await?;
        opened.map(Leaf::Rados)
    }

    /// Whether other processes may serve the same values.
    pub fn is_shared(&self) -> bool {
        matches!(self, Leaf::Rados(_))
    }

    /// Adds its metrics.
    pub fn register(&self, registry: &mut Registry) {
        match self {
            Leaf::Engine(store) => {
                registry.register_collector(Box::new(engine::EngineMetrics(store.clone())));
            }
            Leaf::Memory(_) | Leaf::Rados(_) => {}
        }
    }

    /// A bounded piece of background work: called every few seconds.
    pub async fn sweep(&self) {
        match self {
            Leaf::Engine(store) => engine::sweep(store).await,
            // The one has nothing to drop, the other's keeper does it.
            Leaf::Memory(_) | Leaf::Rados(_) => {}
        }
    }

    /// Reads everything and checks it.
    pub async fn scrub(&self) -> Result<ScrubReport, StoreError> {
        match self {
            Leaf::Engine(store) => scrub::scrub_engine(store).await,
            Leaf::Memory(store) => scrub::read_everything(&**store).await,
            Leaf::Rados(store) => {
                let passed_over = rados::tidy(store).await?;
                let mut report = scrub::read_everything(store).await?;
                scrub::add(&mut report, passed_over);
                Ok(report)
            }
        }
    }

    /// Ends it; blocking. Acknowledged changes are safe without it: it saves the next start some work.
    pub fn close(&self) {
        match self {
            Leaf::Engine(store) => store.close(),
            Leaf::Memory(_) => {}
            Leaf::Rados(store) => rados::close(store),
        }
    }
}
