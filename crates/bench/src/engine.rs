//! The embedded engine over a directory, driven from shards as a server has them.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::files::Directory;
use forebay_io::{SystemClock, ring, shard};
use forebay_mem::Pool;
use forebay_store::{NamespaceConfig, Store};

use crate::embedded::{self, Load, Tally};
use crate::payload::Payload;
use crate::server::private_directory;
use crate::{EngineArgs, EngineOp, Error, Point};

const NAMESPACE: &str = "bench";
/// Bytes that the values of one size fill together, unless their number is given.
const OBJECTS_BYTES: u64 = 1 << 30;
/// Fewest and most values by default.
const OBJECTS: std::ops::RangeInclusive<u64> = 64..=262_144;
/// Bound on the buffers of the measured engine, in bytes; its cache takes half unless it is cold.
const POOL_BYTES: usize = 512 << 20;

/// Measures the engine, each size in a new directory.
pub(crate) fn run(args: &EngineArgs) -> Result<Vec<Point>, Error> {
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
    let mut points = Vec::new();
    for &size in &args.size {
        let directory = private_directory(args.dir.as_deref())?;
        let plan = Plan {
            directory: directory.path().to_owned(),
            size: size.0,
            objects: args
                .objects
                .unwrap_or((OBJECTS_BYTES / size.0.max(1)).clamp(*OBJECTS.start(), *OBJECTS.end())),
            steps: args
                .op
                .iter()
                .flat_map(|op| args.concurrency.iter().map(|depth| (*op, *depth)))
                .collect(),
            shards,
            window,
            cold: args.cold,
        };
        let config = ring::Config::default();
        let shard = shard::spawn(0, "forebay-bench", config, move || measure(plan))
            .map_err(Error::io("start a shard"))?;
        points.extend(shard.join().map_err(Error::io("run a shard"))??);
    }
    Ok(points)
}

impl Load {
    fn new(size: u64, objects: u64) -> Load {
        Load {
            namespace: NAMESPACE,
            payload: Payload::new(size as usize),
            objects,
        }
    }
}

struct Plan {
    directory: PathBuf,
    size: u64,
    objects: u64,
    steps: Vec<(EngineOp, usize)>,
    shards: usize,
    window: Duration,
    cold: bool,
}

async fn measure(plan: Plan) -> Result<Vec<Point>, Error> {
    let refused = |what: &str, reason: String| Error::Protocol {
        what: what.to_owned(),
        reason,
    };
    let disk = Directory::open(&plan.directory).map_err(Error::io("open the directory"))?;
    let config = Config {
        cache_bytes: if plan.cold { 0 } else { POOL_BYTES as u64 / 2 },
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
    let load = Rc::new(Load::new(plan.size, plan.objects));
    if plan.steps.iter().any(|(op, _)| *op == EngineOp::Get) {
        embedded::fill(&engine, &load)
            .await
            .map_err(|error| refused("storing values", error.to_string()))?;
        // What filling left to be done later is done, not measured.
        engine
            .checkpoint()
            .await
            .map_err(|error| refused("settling the index", error.to_string()))?;
    }
    let mut points = Vec::new();
    for &(op, depth) in &plan.steps {
        let tally = share_out(&engine, &load, &plan, op, depth).await?;
        points.push(point(op, depth, plan.size, tally));
    }
    Ok(points)
}

/// Measures with `depth` operations in flight: a share of them from here, the others from shards of their own.
async fn share_out(
    engine: &Arc<Engine<Directory>>,
    load: &Rc<Load>,
    plan: &Plan,
    op: EngineOp,
    depth: usize,
) -> Result<Tally, Error> {
    let shards = plan.shards.min(depth);
    let share =
        |shard: usize| (shard * depth / shards) as u64..((shard + 1) * depth / shards) as u64;
    let (size, objects, window) = (plan.size, plan.objects, plan.window);
    let others = (1..shards)
        .map(|index| {
            let (engine, workers) = (engine.clone(), share(index));
            shard::spawn(
                index,
                "forebay-bench",
                ring::Config::default(),
                move || async move {
                    let load = Rc::new(Load::new(size, objects));
                    embedded::measure(&engine, &load, op, workers, depth as u64, window).await
                },
            )
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(Error::io("start a shard"))?;
    let mut tally = embedded::measure(engine, load, op, share(0), depth as u64, window).await;
    for other in others {
        tally.add(other.join().map_err(Error::io("run a shard"))?);
    }
    Ok(tally)
}

fn point(op: EngineOp, depth: usize, size: u64, tally: Tally) -> Point {
    let total = tally.latency.total() as f64;
    let bytes = total * size as f64;
    Point {
        bench: "engine",
        op: op.name(),
        size,
        concurrency: depth,
        path: forebay_io::backend(),
        seconds: tally.seconds,
        ops_per_s: total / tally.seconds,
        mb_per_s: bytes / 1e6 / tally.seconds,
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        p999_us: tally.latency.quantile_us(0.999),
        client_cpu_s_per_gb: None,
        server_cpu_s_per_gb: (bytes > 0.0).then(|| tally.cpu.as_secs_f64() / (bytes / 1e9)),
        errors: tally.errors,
        first_error: tally.first_error,
    }
}
