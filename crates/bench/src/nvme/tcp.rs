//! The threads that ask through the initiator: over TCP, or over vfio-user where the endpoint is a socket.

use std::sync::Arc;

use forebay_mem::{Region, RegionSlice};
use forebay_nvme::initiator::{
    BlockNamespace, Controller, DEPTH_MAX, Error as HostError, KeyValueNamespace, NamespaceUrl,
    Options, Scheme, Sink, StoreOptions,
};

use super::{Load, Target, key, refused, scheme};
use crate::load::{Caller, Tally, Window, alone, on_threads, side_by_side};
use crate::payload::{Payload, Random, STAMP_BYTES};
use crate::{Error, NvmeOp};

/// Values in flight while they are stored before they are retrieved.
const FILLERS: usize = 32;

/// A namespace of either kind.
#[derive(Clone)]
enum Namespace {
    Block(BlockNamespace),
    KeyValue(KeyValueNamespace),
}

impl Load {
    fn url(&self, target: &Target) -> Result<NamespaceUrl, Error> {
        target.url(scheme(self.op))
    }

    /// The most commands in flight of a thread.
    fn depth(&self) -> usize {
        self.concurrency.div_ceil(self.threads)
    }

    /// Refuses to print what is not in flight.
    fn check_depth(&self, controller: &Controller) -> Result<(), Error> {
        let info = controller.info().map_err(refused("connecting"))?;
        let most = info.commands_max.min(DEPTH_MAX);
        match self.depth() <= most.into() {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "{} commands in flight of each thread are more than the {most} that a queue takes: give more --threads",
                self.depth()
            ))),
        }
    }

    /// A host of its own for each thread: queues are not shared between cores.
    async fn connect(&self, target: &Target, in_flight: usize) -> Result<Namespace, Error> {
        let url = self.url(target)?;
        let options = Options {
            depth: in_flight.min(DEPTH_MAX.into()) as u16,
            ..target.options.clone()
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
pub(super) fn prepare(load: &Load, target: &Target) -> Result<(), Error> {
    let size = load.payload.len() as u64;
    alone(async {
        match load.connect(target, FILLERS).await? {
            Namespace::Block(blocks) => {
                load.check_depth(blocks.controller())?;
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
                Ok(())
            }
            Namespace::KeyValue(values) => {
                load.check_depth(values.controller())?;
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

/// Writes all blocks: those that nobody wrote would be read faster than what is there.
pub(super) fn fill_blocks(target: &Target) -> Result<(), Error> {
    let url = target.url(Scheme::Block)?;
    alone(async {
        let connected = url.connect_block(target.options.clone()).await;
        let blocks = connected.map_err(refused("connecting"))?;
        let memory = memory(1 << 20)?;
        // The memory is as long, and longer.
        let _ = memory.write(0, Payload::new(memory.len()).beginning());
        let step = memory.len() as u64;
        for at in (0..blocks.bytes() / step).map(|piece| piece * step) {
            let first = at / u64::from(blocks.info().block_bytes);
            let written = blocks.write(first, memory.clone(), false).await;
            written.map_err(refused("writing blocks"))?;
        }
        Ok(())
    })
}

async fn fill(load: &Load, values: &KeyValueNamespace) -> Result<(), Error> {
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

/// Runs the load from as many threads as it says: each a host, with its share of the commands in flight.
pub(super) fn run(load: &Load, target: &Target, window: Window) -> Result<Tally, Error> {
    on_threads(load.threads, window, target.server_pid, |index| {
        let numbers = (index..load.concurrency).step_by(load.threads);
        alone(async {
            let namespace = load.connect(target, numbers.len()).await?;
            let workers = numbers
                .map(|number| Worker::new(load, namespace.clone(), number, load.concurrency))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(side_by_side(window, workers, load.payload.len() as u64).await)
        })
    })
}

/// One command in flight at a time, with memory of its own.
struct Worker {
    load: Load,
    namespace: Namespace,
    memory: RegionSlice,
    random: Random,
    /// What this worker stores, in turn: no two store the same.
    turn: u64,
    step: u64,
    bodies: u64,
}

impl Worker {
    fn new(
        load: &Load,
        namespace: Namespace,
        number: usize,
        workers: usize,
    ) -> Result<Worker, Error> {
        let memory = memory(load.payload.len())?;
        // The memory is as long.
        let _ = memory.write(0, load.payload.beginning());
        Ok(Worker {
            load: load.clone(),
            namespace,
            memory,
            random: Random::new(number as u64 + 1),
            turn: number as u64,
            step: workers as u64,
            bodies: (number as u64) << 40,
        })
    }

    async fn make(&mut self) -> Result<(), HostError> {
        match (self.load.op, &self.namespace) {
            (NvmeOp::Read, Namespace::Block(blocks)) => {
                let first = place(blocks, &self.load, self.random.next());
                let sink = Sink::from(self.memory.clone());
                blocks.read(first, sink).await.0.map(drop)
            }
            (NvmeOp::Write, Namespace::Block(blocks)) => {
                // Workers keep to blocks of their own: what two write at once to the same is neither's.
                let first = place(blocks, &self.load, self.turn);
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

impl Caller for Worker {
    type Error = HostError;

    async fn call(&mut self) -> Result<u64, HostError> {
        self.make().await.map(|()| 1)
    }
}

/// The first block of the place numbered `number`, of as many as there are.
fn place(blocks: &BlockNamespace, load: &Load, number: u64) -> u64 {
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
