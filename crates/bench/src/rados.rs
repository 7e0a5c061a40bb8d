//! A pool of a Ceph cluster, driven from shards as a server has them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_io::{ring, shard};
use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::{NamespaceConfig, Store};

use crate::embedded::{Plan, refused, steps};
use crate::{EngineOp, Error, Point, Size};

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
    /// Operations to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get")]
    pub op: Vec<EngineOp>,
    /// Sizes of the values
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Operations in flight, shared out over the shards
    #[arg(long, value_delimiter = ',', default_value = "16")]
    pub concurrency: Vec<usize>,
    /// Threads that drive the store, as `serve` has them [default: one a core]
    #[arg(long)]
    pub shards: Option<usize>,
    /// Length of the measured window
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// How many values to work on [default: as many as fill 512 MiB, at most 16384]
    #[arg(long)]
    pub objects: Option<u64>,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// What the measured namespaces' names begin with; each size has its own, which is removed afterwards.
const NAMESPACE: &str = "bench";
/// Keeps them apart from whatever else is in the pool.
const BASE: &str = "forebay-bench";
/// Bytes that the values of one size fill together, unless their number is given.
const OBJECTS_BYTES: u64 = 512 << 20;
/// Fewest and most values by default.
const OBJECTS: std::ops::RangeInclusive<u64> = 64..=16_384;
/// Bound on the buffers of the measured store, in bytes.
const POOL_BYTES: usize = 512 << 20;

/// Measures the pool, each size in a new namespace.
pub(crate) fn run(args: &RadosArgs) -> Result<Vec<Point>, Error> {
    let window = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Error::Usage("the seconds are not a length of time".to_owned()))?;
    if args.concurrency.contains(&0) || args.objects == Some(0) || args.shards == Some(0) {
        return Err(Error::Usage(
            "concurrency, objects and shards must be at least 1".to_owned(),
        ));
    }
    let shards = args
        .shards
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let config = Config {
        conf: args.ceph_conf.clone(),
        id: args.ceph_id.clone(),
        base: BASE.to_owned(),
        ..Config::new(&args.pool)
    };
    let store = RadosStore::open(config, Pool::new(POOL_BYTES), now)
        .map_err(|error| refused("opening the pool", error))?;
    let store = Arc::new(store);
    let mut points = Vec::new();
    for &size in &args.size {
        let namespace = format!("{NAMESPACE}-{}-{}", size.0, std::process::id());
        let plan = Plan {
            bench: "rados",
            path: "librados",
            namespace,
            size: size.0,
            objects: args
                .objects
                .unwrap_or((OBJECTS_BYTES / size.0.max(1)).clamp(*OBJECTS.start(), *OBJECTS.end())),
            steps: steps(&args.op, &args.concurrency),
            shards,
            window,
        };
        let store = store.clone();
        let config = ring::Config::default();
        let shard = shard::spawn(0, "forebay-bench", config, move || measure(store, plan))
            .map_err(Error::io("start a shard"))?;
        points.extend(shard.join().map_err(Error::io("run a shard"))??);
    }
    Ok(points)
}

async fn measure(store: Arc<RadosStore>, plan: Plan) -> Result<Vec<Point>, Error> {
    let namespace = plan.namespace.clone();
    let config = NamespaceConfig {
        tenant: NAMESPACE.to_owned(),
        ..NamespaceConfig::default()
    };
    store
        .create_namespace(&namespace, config)
        .await
        .map_err(|error| refused("making a namespace", error))?;
    let points = plan.run(&store, async || store.settle().await).await;
    // What was stored goes, whether or not it could be measured.
    let cleared = async {
        plan.clear(&store).await?;
        store.delete_namespace(&namespace).await
    };
    cleared
        .await
        .map_err(|error| refused("removing what was stored", error))?;
    points
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
