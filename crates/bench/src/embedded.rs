//! The closed loop over a store in this process, through the waist alone.

use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_io::{ring, shard};
use forebay_mem::Buf;
use forebay_store::{
    Address, Body, ByteRange, DeleteOptions, Seal, Store, StoreError, StoreOptions, Upload,
};
use tokio::task::spawn_local;

use crate::bounds::{SIZE_MAX, Seconds, count, objects, sizes, window};
use crate::load::{About, Tally, Turn, Window};
use crate::payload::{Payload, Random};
use crate::{EngineOp, Error, Results, Size, cpu};

/// Values in flight while a store is filled or emptied.
const FILLERS: u64 = 64;
/// What the workers of one load keep of their bodies, together, in bytes.
const PREPARED_BYTES: u64 = 128 << 20;
/// Of the number in a key.
const KEY_DIGITS: usize = 10;

/// What `forebay bench` is asked to measure of a store in its own process.
#[derive(Clone, Debug, clap::Args)]
pub struct EmbeddedArgs {
    /// Operations to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get")]
    pub op: Vec<EngineOp>,
    /// Sizes of the values
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Operations in flight, shared out over the shards
    #[arg(long, value_delimiter = ',', default_value = "16", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Threads that drive the store, each with a ring, as `serve` has them [default: one a core]
    #[arg(long, value_parser = count)]
    pub shards: Option<usize>,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// How many values to work on [default: as many as fill 1 GiB of an engine or 512 MiB of a pool, within bounds]
    #[arg(long, value_parser = objects)]
    pub objects: Option<u64>,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// How many values there are, unless their number is given.
pub(crate) struct Filling {
    /// What the values of one size are together ...
    pub(crate) bytes: u64,
    /// ... as far as their number stays within these.
    pub(crate) objects: RangeInclusive<u64>,
}

impl Filling {
    fn objects(&self, size: u64) -> u64 {
        (self.bytes / size.max(1)).clamp(*self.objects.start(), *self.objects.end())
    }
}

impl EmbeddedArgs {
    /// A plan for each size.
    ///
    /// # Errors
    /// [`Error::Usage`]
    pub(crate) fn plans(
        &self,
        bench: &'static str,
        filling: &Filling,
        namespace: impl Fn(u64) -> String,
    ) -> Result<Vec<Plan>, Error> {
        sizes(&self.size, 0..=SIZE_MAX)?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let shards = self.shards.unwrap_or_else(cores);
        let plan = |&Size(size): &Size| Plan {
            bench,
            namespace: namespace(size),
            size,
            objects: self.objects.unwrap_or_else(|| filling.objects(size)),
            steps: steps(&self.op, &self.concurrency),
            shards,
            warm_up: Duration::ZERO,
            window: self.seconds.0,
            server_pid: None,
        };
        Ok(self.size.iter().map(plan).collect())
    }
}

/// What to measure of one store.
pub(crate) struct Plan {
    /// The generator's name in results.
    pub(crate) bench: &'static str,
    /// It is there.
    pub(crate) namespace: String,
    /// Of values, in bytes.
    pub(crate) size: u64,
    /// How many values are worked on.
    pub(crate) objects: u64,
    /// Operations with how many are in flight, one after the other.
    pub(crate) steps: Vec<(EngineOp, usize)>,
    /// Threads.
    pub(crate) shards: usize,
    /// Load before the window.
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// What the store asks for its bytes, whose CPU time is told beside this process's.
    pub(crate) server_pid: Option<u32>,
}

/// Every operation with every concurrency.
fn steps(ops: &[EngineOp], concurrency: &[usize]) -> Vec<(EngineOp, usize)> {
    let each = |op: &EngineOp| {
        let op = *op;
        concurrency.iter().map(move |depth| (op, *depth))
    };
    ops.iter().flat_map(each).collect()
}

/// Why a store could not be prepared.
pub(crate) fn refused(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Protocol {
        what: what.to_owned(),
        reason: error.to_string(),
    }
}

impl Plan {
    /// Fills the store where something is to be read, has it settle, and measures every step. Runs in a shard. `path` is what results tell
    /// of the way that bytes go.
    pub(crate) async fn run<S: Store>(
        &self,
        store: &Arc<S>,
        path: &'static str,
        results: &Results,
        settle: impl AsyncFnOnce() -> Result<(), StoreError>,
    ) -> Result<(), Error> {
        let load = Rc::new(Load::new(&self.namespace, self.size, self.objects));
        if self.steps.iter().any(|(op, _)| *op == EngineOp::Get) {
            fill(store, &load)
                .await
                .map_err(|error| refused("storing values", error))?;
            // What filling left to be done later is done, not measured.
            settle()
                .await
                .map_err(|error| refused("settling the index", error))?;
        }
        for &(op, depth) in &self.steps {
            let tally = self.share_out(store, &load, op, depth).await?;
            results.add(tally.point(About {
                bench: self.bench,
                op: op.name(),
                size: self.size,
                concurrency: depth,
                path,
            }));
        }
        Ok(())
    }

    /// Removes what was stored. Runs in a shard.
    pub(crate) async fn clear<S: Store>(&self, store: &Arc<S>) -> Result<(), StoreError> {
        let load = Rc::new(Load::new(&self.namespace, self.size, self.objects));
        each(store, &load, async |store, load, object| {
            let key = key(load, object);
            let address = Address::object(&load.namespace, &key);
            let deleted = store.delete(address, DeleteOptions::default());
            deleted.await.map(drop)
        })
        .await
    }

    /// Measures with `depth` operations in flight: a share of them from here, the others from shards of their own.
    async fn share_out<S: Store>(
        &self,
        store: &Arc<S>,
        load: &Rc<Load>,
        op: EngineOp,
        depth: usize,
    ) -> Result<Tally, Error> {
        let shards = self.shards.min(depth);
        let share =
            |shard: usize| (shard * depth / shards) as u64..((shard + 1) * depth / shards) as u64;
        let (size, objects) = (self.size, self.objects);
        let window = Window::after(self.warm_up, self.window);
        let here = window.watch(|| Some(cpu::this_process()))?;
        let server = self.server_pid;
        let server = server.map(|pid| window.watch(move || cpu::process(pid)));
        let server = server.transpose()?;
        let others = (1..shards)
            .map(|index| {
                let (store, workers) = (store.clone(), share(index));
                let namespace = self.namespace.clone();
                shard::spawn(
                    index,
                    "forebay-bench",
                    ring::Config::default(),
                    move || async move {
                        let load = Rc::new(Load::new(&namespace, size, objects));
                        measure(&store, &load, op, workers, depth as u64, window).await
                    },
                )
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::io("start a shard"))?;
        let mut tally = measure(store, load, op, share(0), depth as u64, window).await;
        for other in others {
            tally.add(other.join().map_err(Error::io("run a shard"))?);
        }
        (tally.client_cpu, tally.server_cpu) = match server {
            Some(server) => (here.used(), server.used()),
            None => (None, here.used()),
        };
        tally.seconds = self.window.as_secs_f64();
        Ok(tally)
    }
}

/// What to do.
pub(crate) struct Load {
    namespace: String,
    payload: Payload,
    objects: u64,
    /// From which the others are made: formatting each would be measured with what is done to it.
    first_key: Vec<u8>,
}

impl Load {
    fn new(namespace: &str, size: u64, objects: u64) -> Load {
        Load {
            namespace: namespace.to_owned(),
            payload: Payload::new(size as usize),
            objects,
            first_key: format!("{size}/{:0KEY_DIGITS$}", 0).into_bytes(),
        }
    }
}

/// Stores every object once. Runs in a `LocalSet`.
pub(crate) async fn fill<S: Store>(store: &Arc<S>, load: &Rc<Load>) -> Result<(), StoreError> {
    each(store, load, async |store, load, object| {
        put(store, load, &mut Prepared::default(), object, object).await
    })
    .await
}

/// Does something with every object, some at a time. Runs in a `LocalSet`.
async fn each<S: Store>(
    store: &Arc<S>,
    load: &Rc<Load>,
    work: impl AsyncFn(&S, &Load, u64) -> Result<(), StoreError> + Copy + 'static,
) -> Result<(), StoreError> {
    let next = Rc::new(Cell::new(0));
    let workers: Vec<_> = (0..FILLERS.min(load.objects))
        .map(|_| {
            let (store, load, next) = (store.clone(), load.clone(), next.clone());
            spawn_local(async move {
                loop {
                    let object = next.get();
                    if object >= load.objects {
                        return Ok(());
                    }
                    next.set(object + 1);
                    work(&store, &load, object).await?;
                }
            })
        })
        .collect();
    for worker in workers {
        joined(worker.await)?;
    }
    Ok(())
}

/// Keeps one operation of each of `workers`, out of `depth` in all, in flight until the window is over. Runs in a `LocalSet`.
pub(crate) async fn measure<S: Store>(
    store: &Arc<S>,
    load: &Rc<Load>,
    op: EngineOp,
    workers: Range<u64>,
    depth: u64,
    window: Window,
) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let size = load.payload.len() as u64;
    let workers: Vec<_> = workers
        .map(|worker| {
            let (store, load, tally) = (store.clone(), load.clone(), tally.clone());
            spawn_local(async move {
                let mut random = Random::new(worker + 1);
                let mut own = worker;
                let mut prepared = Prepared::new(PREPARED_BYTES / depth);
                let mut turn = Turn::begin();
                loop {
                    let begun = Instant::now();
                    if window.is_over(begun) {
                        return;
                    }
                    let result = match op {
                        EngineOp::Get => get(&*store, &load, random.below(load.objects)).await,
                        EngineOp::Put => {
                            // Workers keep to objects of their own: two writers of one key would wait for each other.
                            own = (own + depth) % load.objects.max(1);
                            put(&*store, &load, &mut prepared, own, random.next()).await
                        }
                    };
                    let ended = Instant::now();
                    match result {
                        _ if !window.measures(ended) => {}
                        Ok(()) => tally.borrow_mut().succeeded(ended - begun, 1, size),
                        Err(error) => tally.borrow_mut().failed(error),
                    }
                    turn.may_end(ended).await;
                }
            })
        })
        .collect();
    for worker in workers {
        joined(worker.await);
    }
    tally.take()
}

/// What a worker keeps of its bodies, whose beginnings are the same: what is measured is storing them, not making them.
#[derive(Default)]
struct Prepared {
    bufs: Vec<Buf>,
    /// For how many more bytes there is room.
    room: u64,
}

impl Prepared {
    fn new(room: u64) -> Prepared {
        Prepared {
            bufs: Vec::new(),
            room,
        }
    }

    /// Keeps the next piece of the beginning, unless one before it was not kept.
    fn keep(&mut self, index: usize, buf: &Buf) {
        let len = buf.len() as u64;
        if index == self.bufs.len() && len <= self.room {
            self.room -= len;
            self.bufs.push(buf.clone());
        }
    }
}

async fn put<S: Store>(
    store: &S,
    load: &Load,
    prepared: &mut Prepared,
    object: u64,
    body: u64,
) -> Result<(), StoreError> {
    let key = key(load, object);
    let size = load.payload.len();
    let options = StoreOptions {
        size: Some(size as u64),
        ..StoreOptions::default()
    };
    let address = Address::object(&load.namespace, &key);
    let mut upload = store.store(address, options).await?;
    let stamp = Payload::stamp(body);
    let parts = [load.payload.beginning(), &stamp[..load.payload.stamp_len()]];
    let mut done = 0;
    for index in 0.. {
        if done >= size {
            break;
        }
        let buf = match prepared.bufs.get(index) {
            Some(buf) => buf.clone(),
            None => {
                let mut buf = upload.buffer(size - done).await?;
                let len = buf.capacity().min(size - done);
                buf.set_len(len);
                copy_from(parts, done, &mut buf);
                let buf = buf.freeze();
                if done + len <= load.payload.beginning().len() {
                    prepared.keep(index, &buf);
                }
                buf
            }
        };
        done += buf.len();
        upload.write(buf).await?;
    }
    upload.commit(Seal::default()).await.map(drop)
}

/// Fills `into` with the bytes from `offset` on of the parts put together.
fn copy_from(parts: [&[u8]; 2], mut offset: usize, mut into: &mut [u8]) {
    for part in parts {
        let from = part.get(offset..).unwrap_or_default();
        offset = offset.saturating_sub(part.len());
        let len = from.len().min(into.len());
        let (head, rest) = into.split_at_mut(len);
        head.copy_from_slice(&from[..len]);
        into = rest;
    }
}

async fn get<S: Store>(store: &S, load: &Load, object: u64) -> Result<(), StoreError> {
    let key = key(load, object);
    let address = Address::object(&load.namespace, &key);
    let mut found = store.retrieve(address, None, ByteRange::Full).await?;
    while let Some(buf) = found.body.next().await? {
        std::hint::black_box(&buf);
    }
    Ok(())
}

/// `SIZE/NUMBER`, ten digits long.
fn key(load: &Load, mut object: u64) -> Vec<u8> {
    let mut key = load.first_key.clone();
    for digit in key.iter_mut().rev().take(KEY_DIGITS) {
        *digit = b'0' + (object % 10) as u8;
        object /= 10;
    }
    key
}

/// A task's result; these tasks are never cancelled, so a failed join is a panic of theirs.
pub(crate) fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_mem::Pool;
    use forebay_store::{MemoryStore, NamespaceConfig};
    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn a_body_is_its_parts_however_it_is_cut() {
        let payload = Payload::new(100);
        let stamp = Payload::stamp(9);
        let parts = [payload.beginning(), &stamp[..]];
        let whole = parts.concat();
        for (offset, len) in [(0, 100), (0, 84), (83, 2), (84, 16), (99, 1), (100, 0)] {
            let mut into = vec![0; len];
            copy_from(parts, offset, &mut into);
            assert_eq!(into, &whole[offset..offset + len]);
        }
    }

    #[test]
    fn any_store_can_be_filled_and_measured() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let store = Arc::new(MemoryStore::new(Pool::new(64 << 20), || 0));
            let config = NamespaceConfig {
                tenant: "bench".to_owned(),
                ..NamespaceConfig::default()
            };
            store.create_namespace("bench", config).await.unwrap();
            let load = Rc::new(Load::new("bench", 5000, 20));
            fill(&store, &load).await.unwrap();
            for object in 0..20 {
                let key = key(&load, object);
                let address = Address::object("bench", &key);
                assert_eq!(store.stat(address, None).await.unwrap().size, 5000);
            }
            let window = || Window::after(Duration::ZERO, Duration::from_millis(20));
            for op in [EngineOp::Get, EngineOp::Put] {
                let tally = measure(&store, &load, op, 0..3, 3, window()).await;
                assert_eq!((tally.errors, &tally.first_error), (0, &None));
                assert_eq!(tally.bytes, tally.done * 5000);
            }
            // None of these waits for anything, and yet each has its turn: each writes an object of its own.
            let each_its_own = Rc::new(Load::new("bench", 10, 8));
            let longer = Window::after(Duration::ZERO, Duration::from_millis(200));
            measure(&store, &each_its_own, EngineOp::Put, 0..8, 8, longer).await;
            for object in 0..8 {
                let key = key(&each_its_own, object);
                let written = store.stat(Address::object("bench", &key), None).await;
                assert_eq!(written.unwrap().size, 10, "{object}");
            }
            let missing = Rc::new(Load::new("missing", 1, 1));
            let tally = measure(&store, &missing, EngineOp::Get, 0..1, 1, window()).await;
            assert_eq!(tally.done, 0);
            assert!(tally.errors > 0 && tally.first_error.is_some());
        });
    }
}
