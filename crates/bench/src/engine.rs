//! The embedded engine over a directory, driven from shards as a server has them.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::files::Directory;
use forebay_io::{SystemClock, ring, shard};
use forebay_mem::Pool;
use forebay_store::{NamespaceConfig, Store};

use crate::belongings::Folder;
use crate::embedded::{Filling, Plan, refused};
use crate::{EngineArgs, Error, Results};

const NAMESPACE: &str = "bench";
const FILLING: Filling = Filling {
    bytes: 1 << 30,
    objects: 64..=262_144,
};
/// Bound on the buffers of the measured engine, in bytes; its cache takes half unless it is cold.
const POOL_BYTES: usize = 512 << 20;

/// Measures the engine, each size in a new directory.
pub(crate) fn run(args: &EngineArgs, results: &Results) -> Result<(), Error> {
    let namespace = |_| NAMESPACE.to_owned();
    let plans = args.load.plans("engine", &FILLING, namespace)?;
    for plan in plans {
        let directory = Folder::new(args.dir.as_deref())?;
        let (path, cold) = (directory.path().to_owned(), args.cold);
        let (config, results) = (ring::Config::default(), results.clone());
        let shard = shard::spawn(0, "forebay-bench", config, move || {
            measure(path, cold, plan, results)
        })
        .map_err(Error::io("start a shard"))?;
        shard.join().map_err(Error::io("run a shard"))??;
    }
    Ok(())
}

async fn measure(
    directory: PathBuf,
    cold: bool,
    plan: Plan,
    results: Results,
) -> Result<(), Error> {
    let disk = Directory::open(&directory).map_err(Error::io("open the directory"))?;
    let config = Config {
        cache_bytes: if cold { 0 } else { POOL_BYTES as u64 / 2 },
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::open(disk, clock, Pool::new(POOL_BYTES), config)
        .map_err(|error| refused("opening the engine", error.to_string()))?;
    let engine = Arc::new(engine);
    let namespace = NamespaceConfig {
        tenant: NAMESPACE.to_owned(),
        ..NamespaceConfig::default()
    };
    engine
        .create_namespace(NAMESPACE, namespace)
        .await
        .map_err(|error| refused("making a namespace", error.to_string()))?;
    let engine = &engine;
    let path = forebay_io::backend();
    plan.run(engine, path, &results, async || engine.checkpoint().await)
        .await
}
