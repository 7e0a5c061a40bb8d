//! The threads that ask, and what they saw.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_mem::{Region, RegionSlice};
use forebay_nvme::initiator::{
    BlockNamespace, DEPTH_MAX, Error as HostError, KeyValueNamespace, NamespaceUrl, Options,
    Scheme, Sink, StoreOptions,
};

use super::{Target, refused};
use crate::payload::{Payload, Random, STAMP_BYTES};
use crate::{Error, Histogram, NvmeOp, cpu};

/// Values in flight while they are stored before they are retrieved.
const FILLERS: usize = 32;

/// What to do.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) target: &'a Target,
    pub(super) payload: &'a Payload,
    pub(super) op: NvmeOp,
    pub(super) objects: u64,
    pub(super) concurrency: usize,
    pub(super) threads: usize,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
}

/// What happened.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) latency: Histogram,
    /// Commands that succeeded.
    pub(super) done: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) seconds: f64,
    pub(super) client_cpu: Duration,
    pub(super) server_cpu: Option<Duration>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.done += other.done;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.client_cpu += other.client_cpu;
    }
}

/// A namespace of either kind.
#[derive(Clone)]
enum Namespace {
    Block(BlockNamespace),
    KeyValue(KeyValueNamespace),
}

impl Load<'_> {
    fn url(&self) -> Result<&NamespaceUrl, Error> {
        self.target.url(match self.op {
            NvmeOp::Read | NvmeOp::Write => Scheme::Block,
            NvmeOp::Store | NvmeOp::Retrieve => Scheme::KeyValue,
        })
    }

    /// A host of its own for each thread: queues are not shared between cores.
    async fn connect(&self, in_flight: usize) -> Result<Namespace, Error> {
        let url = self.url()?;
        let options = Options {
            depth: in_flight.min(DEPTH_MAX.into()) as u16,
            ..self.target.options.clone()
        };
        let connected = match url.scheme {
            Scheme::Block => url.connect_block(options).await.map(Namespace::Block),
            Scheme::KeyValue => url
                .connect_key_value(options)
                .await
                .map(Namespace::KeyValue),
        };
        connected.map_err(refused("connecting"))
    }
}

/// Makes sure that the load can be run: that there are blocks enough, or that the values are there and come back as they were stored.
pub(super) fn prepare(load: &Load<'_>) -> Result<(), Error> {
    let size = load.payload.len() as u64;
    alone(async {
        match load.connect(FILLERS).await? {
            Namespace::Block(blocks) => {
                let unit = u64::from(blocks.info().block_bytes);
                if !size.is_multiple_of(unit) || size > blocks.transfer_bytes_max() {
                    return Err(Error::Usage(format!(
                        "the namespace moves multiples of {unit} bytes, {} at most",
                        blocks.transfer_bytes_max()
                    )));
                }
                if size > blocks.bytes() {
                    return Err(Error::Usage(
                        "the namespace is smaller than that".to_owned(),
                    ));
                }
                if load.op == NvmeOp::Write && !load.target.overwrite {
                    return Err(Error::Usage(
                        "blocks of an endpoint are written only with --overwrite".to_owned(),
                    ));
                }
                Ok(())
            }
            Namespace::KeyValue(values) => {
                if size > u64::from(values.info().value_bytes_max) {
                    return Err(Error::Usage(
                        "the namespace takes no such values".to_owned(),
                    ));
                }
                if load.op == NvmeOp::Retrieve {
                    fill(load, &values).await?;
                }
                Ok(())
            }
        }
    })
}

async fn fill(load: &Load<'_>, values: &KeyValueNamespace) -> Result<(), Error> {
    let last = key(load.payload.len(), load.objects - 1);
    if !values
        .exist(&last)
        .await
        .map_err(refused("looking for a value"))?
    {
        let workers = FILLERS.min(load.objects as usize);
        let calls = (0..workers).map(|index| async move {
            let namespace = Namespace::KeyValue(values.clone());
            let mut worker = Worker::new(load, namespace, index, workers)?;
            for _ in (index as u64..load.objects).step_by(workers) {
                worker.store().await.map_err(refused("storing a value"))?;
            }
            Ok::<(), Error>(())
        });
        futures_util::future::try_join_all(calls).await?;
    }
    let memory = memory(load.payload.len())?;
    let found = values
        .retrieve(&last, Sink::from(memory.clone()))
        .await
        .map_err(refused("retrieving a stored value"))?;
    let beginning = load.payload.beginning();
    let mut seen = vec![0; beginning.len()];
    let whole = found.value_bytes == load.payload.len() as u64;
    if !memory.read(0, &mut seen) || seen != beginning || !whole {
        return Err(Error::Protocol {
            what: "retrieving a stored value".to_owned(),
            reason: "other bytes came back than were stored".to_owned(),
        });
    }
    Ok(())
}

/// Runs the load from as many threads as it says.
pub(super) fn run(load: &Load<'_>) -> Result<Tally, Error> {
    let begin = Instant::now() + load.warm_up;
    let end = begin + load.window;
    let server = || load.target.server_pid.and_then(cpu::process);
    let mut tally = Tally::default();
    let (results, server_cpu) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|index| scope.spawn(move || thread(load, index, begin, end)))
            .collect();
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let before = server();
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let used = server()
            .zip(before)
            .map(|(now, then)| now.saturating_sub(then));
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect();
        (results, used)
    });
    for result in results {
        tally.add(result?);
    }
    tally.server_cpu = server_cpu;
    tally.seconds = load.window.as_secs_f64();
    Ok(tally)
}

/// One thread: a host, and its share of the commands in flight.
fn thread(load: &Load<'_>, index: usize, begin: Instant, end: Instant) -> Result<Tally, Error> {
    let share = (index..load.concurrency).step_by(load.threads).count();
    alone(async {
        let namespace = load.connect(share).await?;
        let tally = Rc::new(RefCell::new(Tally::default()));
        let calls = (0..share).map(|call| {
            let (namespace, tally) = (namespace.clone(), tally.clone());
            async move {
                let number = index + call * load.threads;
                let mut worker = Worker::new(load, namespace, number, load.concurrency)?;
                worker.work(begin, end, &tally).await;
                Ok::<(), Error>(())
            }
        });
        let calls = futures_util::future::try_join_all(calls);
        // The two ends of the window, for the thread's CPU time.
        let clock = async {
            tokio::time::sleep_until(begin.into()).await;
            let before = cpu::this_thread();
            tokio::time::sleep_until(end.into()).await;
            cpu::this_thread().saturating_sub(before)
        };
        let (done, client_cpu) = tokio::join!(calls, clock);
        done?;
        let mut tally = tally.take();
        tally.client_cpu = client_cpu;
        Ok(tally)
    })
}

/// One command in flight at a time, with memory of its own.
struct Worker<'a> {
    load: &'a Load<'a>,
    namespace: Namespace,
    memory: RegionSlice,
    random: Random,
    /// What this worker stores, in turn: no two store the same.
    turn: u64,
    step: u64,
    bodies: u64,
}

impl<'a> Worker<'a> {
    fn new(
        load: &'a Load<'a>,
        namespace: Namespace,
        number: usize,
        workers: usize,
    ) -> Result<Worker<'a>, Error> {
        let memory = memory(load.payload.len())?;
        // The memory is as long.
        let _ = memory.write(0, load.payload.beginning());
        Ok(Worker {
            load,
            namespace,
            memory,
            random: Random::new(number as u64 + 1),
            turn: number as u64,
            step: workers as u64,
            bodies: (number as u64) << 40,
        })
    }

    async fn work(&mut self, begin: Instant, end: Instant, tally: &RefCell<Tally>) {
        loop {
            let started = Instant::now();
            if started >= end {
                return;
            }
            let done = self.call().await;
            let ended = Instant::now();
            if ended < begin || ended >= end {
                continue;
            }
            let mut tally = tally.borrow_mut();
            match done {
                Ok(()) => {
                    tally.latency.record(ended - started);
                    tally.done += 1;
                }
                Err(error) => {
                    tally.errors += 1;
                    tally.first_error.get_or_insert_with(|| error.to_string());
                }
            }
        }
    }

    async fn call(&mut self) -> Result<(), HostError> {
        match (self.load.op, &self.namespace) {
            (NvmeOp::Read, Namespace::Block(blocks)) => {
                let first = place(blocks, self.load, self.random.next());
                let sink = Sink::from(self.memory.clone());
                blocks.read(first, sink).await.0.map(drop)
            }
            (NvmeOp::Write, Namespace::Block(blocks)) => {
                // Workers keep to blocks of their own: what two write at once to the same is neither's.
                let first = place(blocks, self.load, self.turn);
                let blocks = blocks.clone();
                self.turn += self.step;
                self.stamp();
                let from = self.memory.clone();
                blocks.write(first, from, false).await.map(drop)
            }
            (NvmeOp::Retrieve, Namespace::KeyValue(values)) => {
                let key = key(
                    self.load.payload.len(),
                    self.random.below(self.load.objects),
                );
                let sink = Sink::from(self.memory.clone());
                values.retrieve(&key, sink).await.map(drop)
            }
            _ => self.store().await,
        }
    }

    async fn store(&mut self) -> Result<(), HostError> {
        let Namespace::KeyValue(values) = self.namespace.clone() else {
            return Err(HostError::Invalid("a namespace of blocks".to_owned()));
        };
        let object = self.turn % self.load.objects;
        self.turn += self.step;
        self.stamp();
        let key = key(self.load.payload.len(), object);
        let from = self.memory.clone();
        values.store(&key, from, StoreOptions::default()).await
    }

    /// Makes the payload differ from all others.
    fn stamp(&mut self) {
        self.bodies += 1;
        let stamp: [u8; STAMP_BYTES] = Payload::stamp(self.bodies);
        let len = self.load.payload.stamp_len();
        // The memory is as long.
        let _ = self.memory.write(self.memory.len() - len, &stamp[..len]);
    }
}

/// The first block of the place numbered `number`, of as many as there are.
fn place(blocks: &BlockNamespace, load: &Load<'_>, number: u64) -> u64 {
    let size = load.payload.len() as u64;
    let places = (blocks.bytes() / size).min(load.objects).max(1);
    number % places * (size / u64::from(blocks.info().block_bytes))
}

fn memory(len: usize) -> Result<RegionSlice, Error> {
    let region: Arc<Region> = Region::anonymous(len).map_err(Error::io("get memory"))?;
    region
        .slice(0..len)
        .ok_or_else(|| Error::Usage("a size of memory that there is not".to_owned()))
}

/// The key of a value, of 16 bytes at most: its size and its number.
fn key(size: usize, object: u64) -> Vec<u8> {
    format!("{size:x}/{object:x}").into_bytes()
}

/// Runs something on this thread, with a runtime of its own.
pub(super) fn alone<T>(what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start a runtime"))?;
    runtime.block_on(what)
}
