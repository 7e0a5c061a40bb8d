//! The threads that ask, and what they saw.

use std::sync::{Arc, OnceLock};

use forebay_client::direct::{Client, Get, Put, Region, Span, Window as Memory};
use forebay_client::{Error as ClientError, Kind};

use super::{Target, refused};
use crate::load::{Caller, Tally, Window, alone, on_threads, side_by_side};
use crate::payload::{Payload, Random, STAMP_BYTES};
use crate::{DirectOp, Error};

/// Calls in flight while values are stored.
const FILLERS: usize = 32;

/// What to do.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) target: Arc<Target>,
    pub(crate) payload: Arc<Payload>,
    pub(crate) op: DirectOp,
    pub(crate) batch: usize,
    pub(crate) objects: u64,
    pub(crate) concurrency: usize,
    pub(crate) threads: usize,
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
pub(crate) fn fill(load: &Load) -> Result<(), Error> {
    alone(async {
        let client = load.target.connect().await?;
        let namespace = load.target.namespace.as_str();
        let size = load.payload.len();
        let last = key(size, load.objects - 1);
        match client.stat(namespace, &last).await {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NotFound => {
                let workers = FILLERS.min(load.objects as usize);
                let memory = memory(load, workers)?;
                let calls = (0..workers).map(|index| {
                    let (client, memory) = (&client, memory.clone());
                    async move {
                        let mut worker = Worker::new(load, client, memory, index, index, 1);
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
async fn compare(load: &Load, client: &Client, key: &str) -> Result<(), Error> {
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

/// Runs the load from as many threads as it says; tells the way the bytes took, too.
pub(crate) fn run(load: &Load, window: Window) -> Result<(Tally, &'static str), Error> {
    let path = OnceLock::new();
    let tally = on_threads(load.threads, window, load.target.server_pid, |index| {
        thread(load, window, index, &path)
    })?;
    Ok((tally, path.get().copied().unwrap_or_default()))
}

/// One thread: a client, and its share of the calls in flight.
fn thread(
    load: &Load,
    window: Window,
    index: usize,
    path: &OnceLock<&'static str>,
) -> Result<Tally, Error> {
    alone(async {
        let client = load.target.connect().await?;
        path.get_or_init(|| client.path().name());
        let numbers = (index..load.concurrency).step_by(load.threads);
        let memory = memory(load, numbers.len() * load.batch)?;
        let workers = numbers.enumerate().map(|(turn, number)| {
            let first = turn * load.batch;
            Worker::new(
                load,
                &client,
                memory.clone(),
                first,
                number,
                load.concurrency,
            )
        });
        let workers: Vec<_> = workers.collect();
        let bytes = match load.op {
            DirectOp::Exist => 0,
            _ => load.payload.len() as u64,
        };
        Ok(side_by_side(window, workers, bytes).await)
    })
}

/// Memory for so many values, as a program has it: registered once.
fn memory(load: &Load, values: usize) -> Result<Region, Error> {
    let size = load.payload.len();
    let bytes = size.checked_mul(values);
    let bytes = bytes.ok_or_else(|| Error::Usage("no machine has that much memory".to_owned()))?;
    let region = Region::alloc(bytes).map_err(Error::io("get memory"))?;
    for place in 0..values {
        // The region has this length.
        let _ = region.write(place * size, load.payload.beginning());
    }
    Ok(region)
}

/// One call in flight at a time, in its part of the memory.
struct Worker {
    load: Load,
    client: Client,
    region: Region,
    /// The first of its values in the region.
    first: usize,
    random: Random,
    /// The values that this worker stores, in turn: no two store the same one.
    turn: u64,
    step: u64,
    bodies: u64,
}

impl Worker {
    fn new(
        load: &Load,
        client: &Client,
        region: Region,
        first: usize,
        number: usize,
        workers: usize,
    ) -> Worker {
        Worker {
            load: load.clone(),
            client: client.clone(),
            region,
            first,
            random: Random::new(number as u64 + 1),
            turn: number as u64,
            step: workers as u64,
            bodies: (number as u64) << 40,
        }
    }

    /// Memory of its value `place`.
    fn window(&self, place: usize) -> Memory<'_> {
        let size = self.load.payload.len();
        let at = (self.first + place) * size;
        self.region.window(at..at + size)
    }

    async fn make(&mut self) -> Result<(), ClientError> {
        let target = self.load.target.clone();
        let namespace = target.namespace.as_str();
        let size = self.load.payload.len();
        match self.load.op {
            DirectOp::Get => {
                let key = key(size, self.random.below(self.load.objects));
                let got = self.client.get_into(namespace, &key, .., self.window(0));
                got.await.map(drop)
            }
            DirectOp::Put => {
                let object = self.next_own();
                self.put(object).await
            }
            DirectOp::Gather => {
                let keys: Vec<String> = (0..self.load.batch)
                    .map(|_| key(size, self.random.below(self.load.objects)))
                    .collect();
                let gets: Vec<Get<'_>> = keys
                    .iter()
                    .enumerate()
                    .map(|(place, key)| Get {
                        key: key.as_bytes(),
                        span: Span::of(..),
                        into: self.window(place),
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
                let keys: Vec<String> = (0..self.load.batch)
                    .map(|_| key(size, self.next_own()))
                    .collect();
                for place in 0..self.load.batch {
                    self.stamp(place);
                }
                let puts: Vec<Put<'_>> = keys
                    .iter()
                    .enumerate()
                    .map(|(place, key)| Put::new(key.as_bytes(), self.window(place)))
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
                let keys: Vec<String> = (0..self.load.batch)
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
        let put = self.client.put_from(namespace, &key, self.window(0));
        put.await.map(drop)
    }

    /// Makes one value of the region differ from all others.
    fn stamp(&mut self, place: usize) {
        self.bodies += 1;
        let size = self.load.payload.len();
        let stamp: [u8; STAMP_BYTES] = Payload::stamp(self.bodies);
        let len = self.load.payload.stamp_len();
        let end = (self.first + place + 1) * size;
        // The region has a value's length for each place.
        let _ = self.region.write(end - len, &stamp[..len]);
    }

    fn next_own(&mut self) -> u64 {
        let object = self.turn % self.load.objects;
        self.turn += self.step;
        object
    }
}

impl Caller for Worker {
    type Error = ClientError;

    async fn call(&mut self) -> Result<u64, ClientError> {
        self.make().await.map(|()| self.load.batch as u64)
    }
}

/// The key of a value: its size, then its number with leading zeros.
fn key(size: usize, object: u64) -> String {
    format!("{size}/{object:010}")
}
