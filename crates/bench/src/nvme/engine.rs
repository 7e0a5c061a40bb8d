//! An engine in this process whose data lies on a namespace of blocks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::files::Directory;
use forebay_io::{SystemClock, ring, shard};
use forebay_mem::Pool;
use forebay_nvme::initiator::{BlockNamespace, NamespaceDisk, NamespaceUrl, Options};
use forebay_store::{NamespaceConfig, Store};

use super::{Load, refused};
use crate::belongings::Folder;
use crate::embedded::{self, Plan};
use crate::{EngineOp, Error, NvmePath, Results};

const NAMESPACE: &str = "bench";
/// Bound on the engine's buffers, in bytes. It keeps no values in memory: each is read from the namespace.
const POOL_BYTES: usize = 256 << 20;

/// What to get, and from where.
pub(super) struct Gets {
    pub(super) url: NamespaceUrl,
    pub(super) options: Options,
    /// Where its other files go, in a new directory; else in the system's temporary directory.
    pub(super) dir: Option<PathBuf>,
    /// Its threads are connections to the namespace.
    pub(super) load: Load,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    /// The target's process.
    pub(super) server_pid: Option<u32>,
}

/// Gets values as often as there is time for it.
pub(super) fn run(gets: Gets, results: &Results) -> Result<(), Error> {
    let (config, results) = (ring::Config::default(), results.clone());
    let shard = shard::spawn(0, "forebay-bench", config, move || measure(gets, results));
    let shard = shard.map_err(Error::io("start a shard"))?;
    shard.join().map_err(Error::io("run a shard"))?
}

async fn measure(gets: Gets, results: Results) -> Result<(), Error> {
    let load = gets.load;
    let directory = Folder::new(gets.dir.as_deref())?;
    let local = Directory::open(directory.path()).map_err(Error::io("open a directory"))?;
    let disk = NamespaceDisk::connect(local, &gets.url, gets.options, load.threads).await;
    let disk = disk.map_err(refused("connecting"))?;
    empty(disk.namespace()).await?;
    let config = Config {
        cache_bytes: 0,
        reserve_bytes: 0,
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::open(disk, clock, Pool::new(POOL_BYTES), config)
        .map_err(|error| embedded::refused("opening the engine", error))?;
    let engine = Arc::new(engine);
    let namespace = NamespaceConfig {
        tenant: NAMESPACE.to_owned(),
        ..NamespaceConfig::default()
    };
    let created = engine.create_namespace(NAMESPACE, namespace).await;
    created.map_err(|error| embedded::refused("making a namespace", error))?;
    let plan = Plan {
        bench: "nvme",
        namespace: NAMESPACE.to_owned(),
        size: load.payload.len() as u64,
        objects: load.objects,
        steps: vec![(EngineOp::Get, load.concurrency)],
        shards: 1,
        warm_up: gets.warm_up,
        window: gets.window,
        server_pid: gets.server_pid,
    };
    let settle = async || engine.checkpoint().await;
    plan.run(&engine, NvmePath::Tcp.name(), &results, settle)
        .await
}

/// Takes away what an engine before this one left there: its index is gone, and no other belongs to its data.
async fn empty(namespace: &BlockNamespace) -> Result<(), Error> {
    let blocks = namespace.bytes() / u64::from(namespace.info().block_bytes);
    let emptied = namespace.write_zeroes(0, blocks, true).await;
    emptied.map_err(refused("emptying the namespace"))
}
