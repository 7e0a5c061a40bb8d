//! Functions sent to the data: calls through the waist, over the embedded engine, beside the same work done by the caller.

mod args;
mod module;
mod point;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Config, Engine};
use forebay_exec::{Allowed, Exec, Executor, Keeping, Limits, Runs};
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
use crate::bounds::{SIZE_MAX, sizes};
use crate::embedded::{joined, refused};
use crate::load::{About, Tally, Turn, Window};
use crate::{Error, Results, cpu};

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
struct Seen {
    tally: Tally,
    /// Bytes that came to the caller.
    moved: u64,
}

impl Seen {
    fn succeeded(&mut self, took: Duration, bytes: u64, came: &Came) {
        self.tally.succeeded(took, 1, bytes);
        self.moved += came.moved;
    }
}

/// Measures every operation, each size in a new directory.
pub(crate) fn run(args: &ExecArgs, results: &Results) -> Result<(), Error> {
    sizes(&args.size, 0..=SIZE_MAX)?;
    for &size in &args.size {
        let directory = Folder::new(args.dir.as_deref())?;
        let bench = Bench {
            path: directory.path().to_owned(),
            args: args.clone(),
            size: size.0,
            seeds: Cell::new(0),
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
    /// Large modules made so far.
    seeds: Cell<u32>,
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
                        let mut point = self.steady(&store, op, scan[0], depth).await?;
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
        let keeping = Keeping {
            folder: kept(&self.path),
            spare_bytes: 0,
        };
        let (limits, clock) = (Limits::default(), Arc::new(SystemClock::default()));
        Executor::start(limits, runs, Some(keeping), pool.clone(), clock)
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
                namespace_id: None,
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
    ) -> Result<ExecPoint, Error> {
        let window = Window::after(Duration::ZERO, self.args.seconds.0);
        let cpu = window.watch(|| Some(cpu::this_process()))?;
        let size = self.size;
        let workers: Vec<_> = (0..depth)
            .map(|_| {
                let store = store.clone();
                spawn_local(async move {
                    let mut seen = Seen::default();
                    let mut turn = Turn::begin();
                    loop {
                        let begun = Instant::now();
                        if window.is_over(begun) {
                            return seen;
                        }
                        let came = once(&store, op, scan).await;
                        let ended = Instant::now();
                        match came {
                            _ if !window.measures(ended) => {}
                            Ok(came) => seen.succeeded(ended - begun, size, &came),
                            Err(error) => seen.tally.failed(error),
                        }
                        turn.may_end(ended).await;
                    }
                })
            })
            .collect();
        let mut seen = Seen::default();
        for worker in workers {
            let theirs = joined(worker.await);
            seen.tally.add(theirs.tally);
            seen.moved += theirs.moved;
        }
        seen.tally.seconds = self.args.seconds.0.as_secs_f64();
        seen.tally.server_cpu = cpu.used();
        Ok(self.point(store, op, depth, seen))
    }

    /// A module that this process has not seen.
    fn large(&self) -> Vec<u8> {
        let seed = self.seeds.get();
        self.seeds.set(seed + 1);
        module::large(seed)
    }

    async fn cold(&self, store: &Arc<Measuring>) -> Result<ExecPoint, Error> {
        let modules: Vec<_> = (0..COLD_CALLS).map(|_| self.large()).collect();
        let digests = self.allow(store, &modules).await?;
        let (before, start) = (cpu::this_process(), Instant::now());
        let mut seen = Seen::default();
        for (digest, module) in digests.into_iter().zip(&modules) {
            let begun = Instant::now();
            let called = call(store, digest, None, &[]).await;
            let came = called.map_err(|error| refused("running a large module", error))?;
            seen.succeeded(begun.elapsed(), module.len() as u64, &came);
        }
        seen.tally.seconds = start.elapsed().as_secs_f64();
        seen.tally.server_cpu = Some(cpu::this_process().saturating_sub(before));
        Ok(self.point(store, ExecOp::Cold, 1, seen))
    }

    /// Each call is the first of an executor, which finds nothing but what others before it kept on disk, as after a restart.
    async fn restart(&self, store: &Arc<Measuring>) -> Result<ExecPoint, Error> {
        let failed = |error: StoreError| refused("running a large module", error);
        let module = [self.large()];
        let digests = self.allow(store, &module).await?;
        call(store, digests[0], None, &[]).await.map_err(failed)?;
        let mut seen = Seen::default();
        let (mut took, mut cpu) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..COLD_CALLS {
            let executor = self.executor(&Pool::new(POOL_BYTES))?;
            let restarted = Exec::new(store.below().clone(), Some(executor));
            let digests = self.allow(&restarted, &module).await?;
            let (before, begun) = (cpu::this_process(), Instant::now());
            let called = call(&restarted, digests[0], None, &[]).await;
            let one = begun.elapsed();
            seen.succeeded(one, module[0].len() as u64, &called.map_err(failed)?);
            took += one;
            cpu += cpu::this_process().saturating_sub(before);
        }
        seen.tally.seconds = took.as_secs_f64();
        seen.tally.server_cpu = Some(cpu);
        Ok(self.point(store, ExecOp::Restart, 1, seen))
    }

    fn point(&self, store: &Measuring, op: ExecOp, depth: usize, seen: Seen) -> ExecPoint {
        let Seen { tally, moved } = seen;
        let (calls, bytes) = (tally.done as f64, tally.bytes as f64);
        let cpu = tally.server_cpu.unwrap_or_default();
        let point = tally.point(About {
            bench: "exec",
            op: op.name(),
            size: match op {
                ExecOp::Cold | ExecOp::Restart => module::large(0).len() as u64,
                ExecOp::Warm | ExecOp::Loop | ExecOp::Native | ExecOp::Fetch => self.size,
            },
            concurrency: depth,
            path: store
                .executor()
                .map_or("none", |executor| executor.runtime()),
        });
        ExecPoint {
            point,
            calls_per_cpu_s: calls / cpu.as_secs_f64(),
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
