//! Functions sent to the data: calls through the waist, over the embedded engine, beside the same work done by the caller.

mod args;
mod module;
mod point;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Config, Engine};
use forebay_exec::{Allowed, Exec, Executor, Limits, Runs};
use forebay_io::files::Directory;
use forebay_io::{SystemClock, ring, shard};
use forebay_mem::Pool;
use forebay_store::{
    Address, Body, ByteRange, Execute, Input, Module, ModuleDigest, NamespaceConfig, Seal, Store,
    StoreError, StoreOptions, Upload,
};
use sha2::{Digest, Sha256};
use tokio::task::spawn_local;

pub use self::args::{ExecArgs, ExecOp};
pub use self::point::ExecPoint;
use crate::belongings::Folder;
use crate::embedded::refused;
use crate::{Error, Histogram, Point, Results, cpu};

const NAMESPACE: &str = "bench";
const POOL_BYTES: usize = 512 << 20;
/// Modules that are new, one after the other.
const COLD_CALLS: u32 = 5;
/// What a function that counts writes, and has room for.
const COUNT_BYTES: usize = 8;

type Measuring = Exec<Engine<Directory>>;

/// What came of one operation.
#[derive(Default)]
struct Came {
    /// What it counted.
    found: u64,
    /// Bytes that came to the caller.
    moved: u64,
}

/// What came of all operations of a window.
#[derive(Default)]
struct Window {
    latency: Histogram,
    failures: Vec<String>,
    moved: u64,
}

/// Measures every operation, each size in a new directory.
pub(crate) fn run(args: &ExecArgs, results: &Results) -> Result<(), Error> {
    let window = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Error::Usage("the seconds are not a length of time".to_owned()))?;
    if args.concurrency.contains(&0) {
        let words = "concurrency must be at least 1".to_owned();
        return Err(Error::Usage(words));
    }
    for &size in &args.size {
        let directory = Folder::new(args.dir.as_deref())?;
        let bench = Bench {
            path: directory.path().to_owned(),
            args: args.clone(),
            size: size.0,
            window,
        };
        let (config, results) = (ring::Config::default(), results.clone());
        let shard = shard::spawn(0, "forebay-bench", config, move || bench.measure(results))
            .map_err(Error::io("start a shard"))?;
        shard.join().map_err(Error::io("run a shard"))??;
    }
    Ok(())
}

/// One size.
struct Bench {
    path: PathBuf,
    args: ExecArgs,
    size: u64,
    window: Duration,
}

impl Bench {
    async fn measure(self, results: Results) -> Result<(), Error> {
        let failed = |error: StoreError| refused("running functions", error);
        let store = Arc::new(self.open().await?);
        let content: Vec<u8> = (0..self.size).map(|at| (at * 7 % 61) as u8).collect();
        put(&store, b"object", &content).await.map_err(failed)?;
        let expected = content.iter().filter(|byte| **byte == 10).count() as u64;
        // Calls in a second, by how many are in flight.
        let mut natives = BTreeMap::new();
        for &op in &self.args.op {
            match op {
                ExecOp::Cold => results.add(self.cold(&store).await?),
                ExecOp::Restart => results.add(self.restart(&store).await?),
                ExecOp::Warm | ExecOp::Loop | ExecOp::Native | ExecOp::Fetch => {
                    let scan = self.allow(&store, &[module::SCAN.to_vec()]).await?;
                    let came = once(&store, op, scan[0]).await.map_err(failed)?;
                    if op != ExecOp::Fetch && came.found != expected {
                        let words =
                            format!("{} bytes counted, and there are {expected}", came.found);
                        return Err(refused("counting", words));
                    }
                    for &depth in &self.args.concurrency {
                        let mut point = self.steady(&store, op, scan[0], depth).await;
                        let rate = point.point.ops_per_s;
                        point.of_native = natives.get(&depth).map(|native| rate / native);
                        if op == ExecOp::Native {
                            natives.entry(depth).or_insert(rate);
                        }
                        results.add(point);
                    }
                }
            }
        }
        Ok(())
    }

    async fn open(&self) -> Result<Measuring, Error> {
        let disk = Directory::open(&self.path).map_err(Error::io("open the directory"))?;
        let config = Config {
            cache_bytes: POOL_BYTES as u64 / 2,
            ..Config::default()
        };
        let clock = Arc::new(SystemClock::default());
        let pool = Pool::new(POOL_BYTES);
        let engine = Engine::open(disk, clock, pool.clone(), config)
            .map_err(|error| refused("opening the engine", error))?;
        let executor = self.executor(&pool)?;
        let store = Exec::new(engine, Some(executor));
        let config = NamespaceConfig {
            tenant: NAMESPACE.to_owned(),
            ..NamespaceConfig::default()
        };
        let made = store.create_namespace(NAMESPACE, config).await;
        made.map_err(|error| refused("making a namespace", error))?;
        Ok(store)
    }

    fn executor(&self, pool: &Pool) -> Result<Arc<Executor>, Error> {
        let runs = match self.args.interpret {
            true => Runs::Interpreted,
            false => Runs::Best,
        };
        let kept = Some(kept(&self.path));
        let clock = Arc::new(SystemClock::default());
        Executor::start(Limits::default(), runs, kept, pool.clone(), clock)
            .map_err(|error| refused("starting threads for functions", error))
    }

    /// Stores modules and lets them run, and no others.
    async fn allow(
        &self,
        store: &Measuring,
        modules: &[Vec<u8>],
    ) -> Result<Vec<ModuleDigest>, Error> {
        let mut allowed = Vec::new();
        for wasm in modules {
            let digest = ModuleDigest(Sha256::digest(wasm).into());
            let key = digest.to_string().into_bytes();
            let stored = put(store, &key, wasm).await;
            stored.map_err(|error| refused("storing a module", error))?;
            allowed.push(Allowed {
                digest,
                tenant: NAMESPACE.to_owned(),
                namespace: None,
                name: None,
                number: None,
                function: None,
                place: (NAMESPACE.to_owned(), key),
            });
        }
        let digests = allowed.iter().map(|one| one.digest).collect();
        if let Some(executor) = store.executor() {
            executor.allow(allowed);
        }
        Ok(digests)
    }

    async fn steady(
        &self,
        store: &Arc<Measuring>,
        op: ExecOp,
        scan: ModuleDigest,
        depth: usize,
    ) -> ExecPoint {
        let before = cpu::this_process();
        let start = Instant::now();
        let end = start + self.window;
        let workers: Vec<_> = (0..depth)
            .map(|_| {
                let store = store.clone();
                spawn_local(async move {
                    let mut window = Window::default();
                    let mut begun = Instant::now();
                    while begun < end {
                        match once(&store, op, scan).await {
                            Ok(came) => {
                                window.latency.record(begun.elapsed());
                                window.moved += came.moved;
                            }
                            Err(error) => window.failures.push(error.to_string()),
                        }
                        begun = Instant::now();
                    }
                    window
                })
            })
            .collect();
        let mut window = Window::default();
        for worker in workers {
            // These tasks are never cancelled: a failed join is a panic of theirs.
            match worker.await {
                Ok(theirs) => {
                    window.latency.merge(&theirs.latency);
                    window.failures.extend(theirs.failures);
                    window.moved += theirs.moved;
                }
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        let cpu = cpu::this_process().saturating_sub(before);
        self.point(store, op, depth, start.elapsed(), cpu, window)
    }

    async fn cold(&self, store: &Arc<Measuring>) -> Result<ExecPoint, Error> {
        let modules: Vec<_> = (0..COLD_CALLS).map(module::large).collect();
        let digests = self.allow(store, &modules).await?;
        let (before, start) = (cpu::this_process(), Instant::now());
        let mut window = Window::default();
        for digest in digests {
            let begun = Instant::now();
            let called = call(store, digest, None, &[]).await;
            let came = called.map_err(|error| refused("running a large module", error))?;
            window.latency.record(begun.elapsed());
            window.moved += came.moved;
        }
        let cpu = cpu::this_process().saturating_sub(before);
        Ok(self.point(store, ExecOp::Cold, 1, start.elapsed(), cpu, window))
    }

    /// Each call is the first of an executor, which finds nothing but what others before it kept on disk, as after a restart.
    async fn restart(&self, store: &Arc<Measuring>) -> Result<ExecPoint, Error> {
        let failed = |error: StoreError| refused("running a large module", error);
        let module = [module::large(0)];
        let digests = self.allow(store, &module).await?;
        call(store, digests[0], None, &[]).await.map_err(failed)?;
        let mut window = Window::default();
        let (mut took, mut cpu) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..COLD_CALLS {
            let executor = self.executor(&Pool::new(POOL_BYTES))?;
            let restarted = Exec::new(store.below().clone(), Some(executor));
            let digests = self.allow(&restarted, &module).await?;
            let (before, begun) = (cpu::this_process(), Instant::now());
            let called = call(&restarted, digests[0], None, &[]).await;
            window.moved += called.map_err(failed)?.moved;
            window.latency.record(begun.elapsed());
            took += begun.elapsed();
            cpu += cpu::this_process().saturating_sub(before);
        }
        Ok(self.point(store, ExecOp::Restart, 1, took, cpu, window))
    }

    fn point(
        &self,
        store: &Measuring,
        op: ExecOp,
        depth: usize,
        took: Duration,
        cpu: Duration,
        window: Window,
    ) -> ExecPoint {
        let Window {
            latency,
            failures,
            moved,
        } = window;
        let total = latency.total() as f64;
        let large = matches!(op, ExecOp::Cold | ExecOp::Restart);
        let size = match large {
            true => module::large(0).len() as u64,
            false => self.size,
        };
        let bytes = total * size as f64;
        let seconds = took.as_secs_f64();
        let point = Point {
            bench: "exec",
            op: op.name(),
            size,
            concurrency: depth,
            path: store
                .executor()
                .map_or("none", |executor| executor.runtime()),
            seconds,
            ops_per_s: total / seconds,
            mb_per_s: bytes / 1e6 / seconds,
            p50_us: latency.quantile_us(0.5),
            p99_us: latency.quantile_us(0.99),
            p999_us: latency.quantile_us(0.999),
            client_cpu_s_per_gb: None,
            server_cpu_s_per_gb: (bytes > 0.0).then(|| cpu.as_secs_f64() / (bytes / 1e9)),
            copied_bytes: None,
            errors: failures.len() as u64,
            first_error: failures.into_iter().next(),
        };
        ExecPoint {
            point,
            calls_per_cpu_s: total / cpu.as_secs_f64(),
            moved_share: moved as f64 / bytes.max(1.0),
            of_native: None,
        }
    }
}

/// Where compiled modules are kept.
fn kept(directory: &Path) -> PathBuf {
    directory.join("modules")
}

/// One operation.
async fn once(store: &Measuring, op: ExecOp, scan: ModuleDigest) -> Result<Came, StoreError> {
    let inputs = [Input::whole(NAMESPACE, b"object")];
    match op {
        ExecOp::Warm => call(store, scan, None, &inputs).await,
        ExecOp::Loop => call(store, scan, Some("loop"), &inputs).await,
        ExecOp::Native | ExecOp::Fetch => {
            let address = inputs[0].address;
            let mut object = store.retrieve(address, None, ByteRange::Full).await?;
            let mut came = Came::default();
            while let Some(buf) = object.body.next().await? {
                came.moved += buf.len() as u64;
                match op {
                    ExecOp::Native => came.found += memchr::memchr_iter(10, &buf).count() as u64,
                    _ => {
                        std::hint::black_box(&buf);
                    }
                }
            }
            Ok(came)
        }
        ExecOp::Cold | ExecOp::Restart => Ok(Came::default()),
    }
}

/// Calls a function, which may write a number.
async fn call(
    store: &Measuring,
    module: ModuleDigest,
    function: Option<&str>,
    inputs: &[Input<'_>],
) -> Result<Came, StoreError> {
    let call = Execute {
        function,
        ..Execute::inline(NAMESPACE, Module::Digest(module), inputs, b"", COUNT_BYTES)
    };
    let executed = store.execute(call).await?;
    let number = executed.bytes.first().and_then(|buf| buf.first_chunk());
    Ok(Came {
        found: number.map_or(0, |bytes| u64::from_le_bytes(*bytes)),
        moved: executed.bytes.iter().map(|buf| buf.len() as u64).sum(),
    })
}

async fn put(store: &Measuring, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
    let address = Address::object(NAMESPACE, key);
    let mut upload = store.store(address, StoreOptions::default()).await?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buf = upload.buffer(rest.len()).await?;
        let len = buf.capacity().min(rest.len());
        let (now, later) = rest.split_at(len);
        buf.set_len(len);
        buf.copy_from_slice(now);
        upload.write(buf.freeze()).await?;
        rest = later;
    }
    upload.commit(Seal::default()).await.map(drop)
}
