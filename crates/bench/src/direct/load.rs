//! The threads that ask, and what they saw.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_client::direct::{Client, Get, Put, Region, Span};
use forebay_client::{Error as ClientError, Kind};

use super::{Target, refused};
use crate::payload::{Payload, Random, STAMP_BYTES};
use crate::{DirectOp, Error, Histogram, cpu};

/// Calls in flight while values are stored.
const FILLERS: usize = 32;

/// What to do.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) target: &'a Target,
    pub(crate) payload: &'a Payload,
    pub(crate) op: DirectOp,
    pub(crate) batch: usize,
    pub(crate) objects: u64,
    pub(crate) concurrency: usize,
    pub(crate) threads: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// What happened.
#[derive(Default)]
pub(crate) struct Tally {
    /// Of calls.
    pub(crate) latency: Histogram,
    /// Values moved, or keys asked for.
    pub(crate) values: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) path: &'static str,
    pub(crate) client_cpu: Duration,
    pub(crate) server_cpu: Option<Duration>,
}

impl Tally {
    fn failed(&mut self, error: &ClientError) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    fn add(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.values += other.values;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.path = other.path;
        self.client_cpu += other.client_cpu;
    }
}

/// Makes the namespace unless it is there.
pub(crate) fn make_namespace(target: &Target, relaxed_ms: u32) -> Result<(), Error> {
    alone(async {
        let client = target.connect().await?;
        let made = client.create_namespace(&target.namespace, relaxed_ms).await;
        made.map(drop).map_err(refused("making a namespace"))
    })
}

/// Stores the values that a load reads, unless the last one is there, and looks whether one comes back as it was stored.
pub(crate) fn fill(load: &Load<'_>) -> Result<(), Error> {
    alone(async {
        let client = load.target.connect().await?;
        let namespace = load.target.namespace.as_str();
        let size = load.payload.len();
        let last = key(size, load.objects - 1);
        match client.stat(namespace, &last).await {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NotFound => {
                let workers = FILLERS.min(load.objects as usize);
                let calls = (0..workers).map(|index| {
                    let client = &client;
                    async move {
                        let mut worker = Worker::new(load, client, index, 1, 1)?;
                        let own = (index as u64..load.objects).step_by(workers);
                        for object in own {
                            let put = worker.put(object).await;
                            put.map_err(refused("storing a value"))?;
                        }
                        Ok::<(), Error>(())
                    }
                });
                futures_util::future::try_join_all(calls).await?;
            }
            Err(error) => return Err(refused("looking for a value")(error)),
        }
        compare(load, &client, &last).await
    })
}

/// Whether a stored value comes back as it was stored.
async fn compare(load: &Load<'_>, client: &Client, key: &str) -> Result<(), Error> {
    let region = Region::alloc(load.payload.len()).map_err(Error::io("get memory"))?;
    let got = client
        .get_into(&load.target.namespace, key, .., &region)
        .await
        .map_err(refused("getting a stored value"))?;
    let beginning = load.payload.beginning();
    let mut seen = vec![0; beginning.len()];
    if !region.read(0, &mut seen) || seen != beginning || got.size != load.payload.len() as u64 {
        return Err(Error::Protocol {
            what: "getting a stored value".to_owned(),
            reason: "other bytes came back than were stored".to_owned(),
        });
    }
    Ok(())
}

/// Runs the load from as many threads as it says.
pub(crate) fn run(load: &Load<'_>) -> Result<Tally, Error> {
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

/// One thread: a client, and its share of the calls in flight.
fn thread(load: &Load<'_>, index: usize, begin: Instant, end: Instant) -> Result<Tally, Error> {
    let share = (index..load.concurrency).step_by(load.threads).count();
    alone(async {
        let client = load.target.connect().await?;
        let tally = Rc::new(RefCell::new(Tally {
            path: client.path().name(),
            ..Tally::default()
        }));
        let calls = (0..share).map(|call| {
            let (client, tally) = (&client, tally.clone());
            async move {
                let number = index + call * load.threads;
                let mut worker = Worker::new(load, client, number, load.batch, load.concurrency)?;
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

/// One call in flight at a time, with memory of its own.
struct Worker<'a> {
    load: &'a Load<'a>,
    client: &'a Client,
    region: Region,
    batch: usize,
    random: Random,
    /// The values that this worker stores, in turn: no two store the same one.
    turn: u64,
    step: u64,
    bodies: u64,
}

impl<'a> Worker<'a> {
    fn new(
        load: &'a Load<'a>,
        client: &'a Client,
        number: usize,
        batch: usize,
        workers: usize,
    ) -> Result<Worker<'a>, Error> {
        let size = load.payload.len();
        let region = Region::alloc(size * batch).map_err(Error::io("get memory"))?;
        for place in 0..batch {
            // The region has this length.
            let _ = region.write(place * size, load.payload.beginning());
        }
        Ok(Worker {
            load,
            client,
            region,
            batch,
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
                    tally.values += self.batch as u64;
                }
                Err(error) => tally.failed(&error),
            }
        }
    }

    async fn call(&mut self) -> Result<(), ClientError> {
        let namespace = self.load.target.namespace.as_str();
        let size = self.load.payload.len();
        match self.load.op {
            DirectOp::Get => {
                let key = key(size, self.random.below(self.load.objects));
                let got = self.client.get_into(namespace, &key, .., &self.region);
                got.await.map(drop)
            }
            DirectOp::Put => {
                let object = self.next_own();
                self.put(object).await
            }
            DirectOp::Gather => {
                let keys: Vec<String> = (0..self.batch)
                    .map(|_| key(size, self.random.below(self.load.objects)))
                    .collect();
                let gets: Vec<Get<'_>> = keys
                    .iter()
                    .enumerate()
                    .map(|(place, key)| Get {
                        key: key.as_bytes(),
                        span: Span::of(..),
                        into: self.region.window(place * size..(place + 1) * size),
                    })
                    .collect();
                let mut failed = None;
                let each = |_, result: Result<_, ClientError>| {
                    if let Err(error) = result {
                        failed.get_or_insert(error);
                    }
                };
                self.client.gather(namespace, &gets, each).await?;
                failed.map_or(Ok(()), Err)
            }
            DirectOp::Scatter => {
                let keys: Vec<String> = (0..self.batch)
                    .map(|_| key(size, self.next_own()))
                    .collect();
                for place in 0..self.batch {
                    self.stamp(place);
                }
                let puts: Vec<Put<'_>> = keys
                    .iter()
                    .enumerate()
                    .map(|(place, key)| {
                        let from = self.region.window(place * size..(place + 1) * size);
                        Put::new(key.as_bytes(), from)
                    })
                    .collect();
                let mut failed = None;
                let each = |_, result: Result<_, ClientError>| {
                    if let Err(error) = result {
                        failed.get_or_insert(error);
                    }
                };
                self.client.scatter(namespace, &puts, each).await?;
                failed.map_or(Ok(()), Err)
            }
            DirectOp::Exist => {
                let keys: Vec<String> = (0..self.batch)
                    .map(|_| key(size, self.random.below(self.load.objects)))
                    .collect();
                let found = self.client.exist(namespace, &keys).await?;
                match found.iter().all(|size| size.is_some()) {
                    true => Ok(()),
                    false => Err(ClientError::Protocol("a stored key is missing".to_owned())),
                }
            }
        }
    }

    async fn put(&mut self, object: u64) -> Result<(), ClientError> {
        self.stamp(0);
        let key = key(self.load.payload.len(), object);
        let namespace = self.load.target.namespace.as_str();
        let put = self.client.put_from(namespace, &key, &self.region);
        put.await.map(drop)
    }

    /// Makes one value of the region differ from all others.
    fn stamp(&mut self, place: usize) {
        self.bodies += 1;
        let size = self.load.payload.len();
        let stamp: [u8; STAMP_BYTES] = Payload::stamp(self.bodies);
        let len = self.load.payload.stamp_len();
        // The region has a value's length for each place.
        let _ = self.region.write((place + 1) * size - len, &stamp[..len]);
    }

    fn next_own(&mut self) -> u64 {
        let object = self.turn % self.load.objects;
        self.turn += self.step;
        object
    }
}

/// The key of a value: its size, then its number with leading zeros.
fn key(size: usize, object: u64) -> String {
    format!("{size}/{object:010}")
}

/// Runs something on this thread, with a runtime of its own.
fn alone<T>(what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start a runtime"))?;
    runtime.block_on(what)
}
