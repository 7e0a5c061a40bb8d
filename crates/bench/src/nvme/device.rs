//! The threads that ask over vfio-user: each drives a controller of its own, with one pair of queues, and polls, or sleeps until it is
//! interrupted.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_mem::{PAGE_BYTES, Region, RegionSlice};
use forebay_nvme::vfio_user::client::{
    Device, DoorbellMode, Error as DeviceError, Mapping, QueueOptions, QueuePair,
};
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::{Status, SubmissionQueueEntry};

use super::{BLOCK_BYTES, BLOCK_NSID, KEY_VALUE_NSID, Load, OBJECTS_BYTES, key};
use crate::load::{CpuClock, Tally, Window, alone, on_threads};
use crate::payload::{Payload, Random};
use crate::{Error, NvmeOp};

/// The most commands in flight of one queue: as many as have an identifier, and a place in the controller's queues.
pub(super) const DEPTH_MAX: usize = 127;
/// Values in flight while they are stored before they are retrieved.
const FILLERS: usize = 32;
/// How long nothing may come.
const STALL: Duration = Duration::from_secs(30);
/// Looks in vain between two at the clock.
const LOOKS: u32 = 1 << 16;

/// Stores the values that are to be retrieved, and looks whether one comes back as it was stored.
pub(super) fn prepare(load: &Load, socket: &Path) -> Result<(), Error> {
    if load.op != NvmeOp::Retrieve {
        return Ok(());
    }
    alone(async {
        let mut host = Host::connect(load, socket, FILLERS).await?;
        let mut objects = 0..load.objects;
        let mut failed = None;
        host.drive(
            |host, place| host.store(place, objects.next()?),
            |status, _, _| {
                if !status.is_success() {
                    failed = Some(status);
                }
            },
        )
        .await?;
        let mut last = Some(load.objects - 1);
        host.drive(
            |host, place| host.retrieve(place, last.take()?),
            |status, _, _| {
                if !status.is_success() {
                    failed = Some(status);
                }
            },
        )
        .await?;
        let beginning = load.payload.beginning();
        let mut seen = vec![0; beginning.len()];
        // Where the only command in flight had its place: the last one that was free.
        let whole = host
            .places
            .iter()
            .any(|place| place.read(0, &mut seen) && seen == beginning);
        match failed {
            None if whole => Ok(()),
            failed => Err(Error::Protocol {
                what: "retrieving a stored value".to_owned(),
                reason: failed.map_or_else(
                    || "other bytes came back than were stored".to_owned(),
                    |status| status.to_string(),
                ),
            }),
        }
    })
}

/// Runs the load from as many threads as it says.
pub(super) fn run(
    load: &Load,
    socket: &Path,
    server_pid: Option<u32>,
    window: Window,
) -> Result<Tally, Error> {
    let size = load.payload.len() as u64;
    on_threads(load.threads, window, server_pid, |index| {
        let depth = (index..load.concurrency).step_by(load.threads).len();
        alone(async {
            let mut host = Host::connect(load, socket, depth).await?;
            let mut random = Random::new(index as u64 + 1);
            // Threads keep to objects of their own: what two write at once is neither's.
            let mut own = (index as u64..load.objects).step_by(load.threads).cycle();
            let mut tally = Tally::default();
            let mut clock = CpuClock::default();
            host.drive(
                |host, place| {
                    if window.is_over(Instant::now()) {
                        return None;
                    }
                    match load.op {
                        NvmeOp::Read => host.read(place, random.below(load.objects)),
                        NvmeOp::Retrieve => host.retrieve(place, random.below(load.objects)),
                        NvmeOp::Write => host.write(place, own.next()?),
                        NvmeOp::Store => host.store(place, own.next()?),
                        NvmeOp::Get => None,
                    }
                },
                |status, begun, now| {
                    clock.look(window, now);
                    match status.is_success() {
                        _ if !window.measures(now) => {}
                        true => tally.succeeded(now - begun, 1, size),
                        false => tally.failed(status),
                    }
                },
            )
            .await?;
            tally.client_cpu = Some(clock.used());
            Ok(tally)
        })
    })
}

/// A controller, a pair of queues, and memory for each command in flight.
struct Host<'a> {
    load: &'a Load,
    queue: QueuePair,
    memory: Mapping,
    places: Vec<RegionSlice>,
    bodies: u64,
    _device: Device,
}

impl<'a> Host<'a> {
    async fn connect(load: &'a Load, socket: &Path, depth: usize) -> Result<Host<'a>, Error> {
        let device = Device::connect(socket, DoorbellMode::Shadow).await;
        let device = device.map_err(refused("connecting"))?;
        let room = load.payload.len().next_multiple_of(PAGE_BYTES);
        let region = Region::memfd(depth * room).map_err(Error::io("get memory"))?;
        let places: Option<Vec<RegionSlice>> = (0..depth)
            .map(|place| region.slice(place * room..place * room + load.payload.len()))
            .collect();
        let places = places.ok_or_else(|| Error::Usage("sizes of memory overflow".to_owned()))?;
        for place in &places {
            // It is as long. Pages that nobody wrote would be made when the device first does.
            let _ = place.write(0, load.payload.beginning());
        }
        let memory = device
            .map(region)
            .await
            .map_err(refused("mapping memory"))?;
        let options = QueueOptions {
            entries: depth as u16 + 1,
            interrupts: load.sleeps,
        };
        let queue = device.create_queue(options).await;
        Ok(Host {
            load,
            queue: queue.map_err(refused("making queues"))?,
            memory,
            places,
            bodies: u64::from(std::process::id()) << 32,
            _device: device,
        })
    }

    /// Keeps every place busy with what `next` says until it says no more; `each` is told how a command has ended, when it was
    /// begun, and when its end was seen.
    async fn drive(
        &mut self,
        mut next: impl FnMut(&mut Host<'a>, usize) -> Option<SubmissionQueueEntry>,
        mut each: impl FnMut(Status, Instant, Instant),
    ) -> Result<(), Error> {
        let mut now = Instant::now();
        let mut begun = vec![now; self.places.len()];
        let mut free: Vec<usize> = (0..self.places.len()).collect();
        let mut ended = Vec::with_capacity(self.places.len());
        let mut vain = 0;
        loop {
            for place in free.drain(..) {
                if let Some(entry) = next(self, place) {
                    begun[place] = now;
                    self.queue.submit(&entry);
                }
            }
            if self.queue.in_flight() == 0 {
                return Ok(());
            }
            self.queue.ring().await.map_err(refused("ringing"))?;
            let each_ended = |completion| ended.push(completion);
            let polled = match self.load.sleeps {
                true => self.queue.wait(each_ended).await,
                false => self.queue.poll(each_ended).await,
            };
            if polled.map_err(refused("looking for completions"))? == 0 {
                vain += 1;
                if vain % LOOKS == 0 && now.elapsed() > STALL {
                    return Err(refused("waiting")(DeviceError::Device("nothing came")));
                }
                continue;
            }
            now = Instant::now();
            vain = 0;
            for completion in ended.drain(..) {
                let place = usize::from(completion.cid);
                if let Some(begun) = begun.get(place) {
                    each(completion.status, *begun, now);
                    free.push(place);
                }
            }
        }
    }

    fn read(&self, place: usize, number: u64) -> Option<SubmissionQueueEntry> {
        let blocks = self.blocks(number);
        self.point(NvmCommand::Read { blocks }.entry(place as u16, BLOCK_NSID))
    }

    fn write(&mut self, place: usize, number: u64) -> Option<SubmissionQueueEntry> {
        self.stamp(place);
        let blocks = self.blocks(number);
        let write = NvmCommand::Write { blocks, fua: false };
        self.point(write.entry(place as u16, BLOCK_NSID))
    }

    fn retrieve(&self, place: usize, object: u64) -> Option<SubmissionQueueEntry> {
        let buffer_bytes = self.load.payload.len() as u32;
        let key = self.key(object)?;
        let retrieve = KvCommand::Retrieve { key, buffer_bytes };
        self.point(retrieve.entry(place as u16, KEY_VALUE_NSID))
    }

    fn store(&mut self, place: usize, object: u64) -> Option<SubmissionQueueEntry> {
        self.stamp(place);
        let store = KvCommand::Store {
            key: KeyAt::Inline(self.key(object)?),
            value_bytes: self.load.payload.len() as u32,
            options: StoreOptions::default(),
        };
        self.point(store.entry(place as u16, KEY_VALUE_NSID))
    }

    /// The command with the memory of its place.
    fn point(&self, entry: SubmissionQueueEntry) -> Option<SubmissionQueueEntry> {
        let memory = self.places.get(usize::from(entry.cid()))?.range();
        self.memory.point(entry, memory.start, memory.len())
    }

    /// The place numbered `number`, of as many as there are.
    fn blocks(&self, number: u64) -> Blocks {
        let size = self.load.payload.len() as u64;
        let places = (OBJECTS_BYTES / size).max(1);
        Blocks {
            first: number % places * (size / BLOCK_BYTES),
            count: (size / BLOCK_BYTES) as u32,
        }
    }

    fn key(&self, object: u64) -> Option<Key> {
        Key::new(&key(self.load.payload.len(), object))
    }

    /// Makes the payload of a place differ from all others.
    fn stamp(&mut self, place: usize) {
        self.bodies += 1;
        let stamp = Payload::stamp(self.bodies);
        let len = self.load.payload.stamp_len();
        if let Some(memory) = self.places.get(place) {
            // The memory is as long.
            let _ = memory.write(memory.len() - len, &stamp[..len]);
        }
    }
}

fn refused(what: &'static str) -> impl FnOnce(DeviceError) -> Error {
    move |error| Error::Protocol {
        what: what.to_owned(),
        reason: error.to_string(),
    }
}
