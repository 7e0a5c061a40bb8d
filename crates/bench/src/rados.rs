//! A pool of a Ceph cluster, driven from shards as a server has them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use forebay_io::{ring, shard};
use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::{NamespaceConfig, Store};

use crate::embedded::{EmbeddedArgs, Filling, Plan, refused};
use crate::{Error, Results};

/// Arguments of `forebay bench rados`.
#[derive(Clone, Debug, clap::Args)]
pub struct RadosArgs {
    /// The pool; what is measured lies in namespaces of its own, which are removed afterwards
    #[arg(long)]
    pub pool: String,
    /// The cluster's configuration [default: as librados finds it]
    #[arg(long, env = "CEPH_CONF", value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// The client's name, without `client.`
    #[arg(long, default_value = "admin", value_name = "NAME")]
    pub ceph_id: String,
    /// What is measured
    #[command(flatten)]
    pub load: EmbeddedArgs,
}

/// What the measured namespaces' names begin with; each size has its own, which is removed afterwards.
const NAMESPACE: &str = "bench";
/// Keeps them apart from whatever else is in the pool.
const BASE: &str = "forebay-bench";
const FILLING: Filling = Filling {
    bytes: 512 << 20,
    objects: 64..=16_384,
};
/// The way that bytes go.
const PATH: &str = "librados";
/// Bound on the buffers of the measured store, in bytes.
const POOL_BYTES: usize = 512 << 20;

/// Measures the pool, each size in a new namespace.
pub(crate) fn run(args: &RadosArgs, results: &Results) -> Result<(), Error> {
    let namespace = |size| format!("{NAMESPACE}-{size}-{}", std::process::id());
    let plans = args.load.plans("rados", &FILLING, namespace)?;
    let config = Config {
        conf: args.ceph_conf.clone(),
        id: args.ceph_id.clone(),
        base: BASE.to_owned(),
        ..Config::new(&args.pool)
    };
    let store = RadosStore::open(config, Pool::new(POOL_BYTES), now)
        .map_err(|error| refused("opening the pool", error))?;
    let store = Arc::new(store);
    for plan in plans {
        let (store, results) = (store.clone(), results.clone());
        let config = ring::Config::default();
        let shard = shard::spawn(0, "forebay-bench", config, move || {
            measure(store, plan, results)
        })
        .map_err(Error::io("start a shard"))?;
        shard.join().map_err(Error::io("run a shard"))??;
    }
    Ok(())
}

async fn measure(store: Arc<RadosStore>, plan: Plan, results: Results) -> Result<(), Error> {
    let namespace = plan.namespace.clone();
    let config = NamespaceConfig {
        tenant: NAMESPACE.to_owned(),
        ..NamespaceConfig::default()
    };
    store
        .create_namespace(&namespace, config)
        .await
        .map_err(|error| refused("making a namespace", error))?;
    let measured = plan
        .run(&store, PATH, &results, async || store.settle().await)
        .await;
    // What was stored goes, whether or not it could be measured.
    let cleared = async {
        plan.clear(&store).await?;
        store.delete_namespace(&namespace).await
    };
    cleared
        .await
        .map_err(|error| refused("removing what was stored", error))?;
    measured
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
