//! A pair of I/O queues: commands that are left in one moment are laid down together, the doorbell is rung once for all of them, and the
//! completions of one moment wake their callers together.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_io::Watch;
use forebay_mem::{PAGE_BYTES, Region};
use forebay_proto::nvme::CompletionQueueEntry;
use tokio::time::Sleep;

use super::super::data::Data;
use super::super::slots::{Command, Completed, RUNTIME_ENDED, Reply, Slots, TOO_SLOW};
use super::super::{Error, Result};
use super::{Attached, broken, commands};
use crate::vfio_user::client::{Error as DeviceError, Mapping, QueueOptions, QueuePair, point};

/// Looks at the completions in a row before other tasks get a turn; some microseconds.
const LOOKS: usize = 64;
/// What a place keeps of memory of our own for its next commands.
const KEPT_BYTES: usize = 256 << 10;

/// What carries the commands of one queue until the connection ends.
pub(in super::super) struct Pair {
    slots: Arc<Slots>,
    attached: Arc<Attached>,
    queue: QueuePair,
    /// By place, which is the command's identifier.
    flights: Vec<Option<Flight>>,
    in_flight: usize,
    /// The most that may be.
    depth: usize,
    /// Commands so far.
    number: u64,
    association: u64,
    taken: Vec<(u16, Command)>,
    /// Where the payloads of those that were taken are.
    payloads: Vec<Payload>,
    ended: Vec<CompletionQueueEntry>,
    replies: Vec<(u16, Reply)>,
    wakers: Vec<Waker>,
    /// Memory of our own, by place, for payload that the device cannot reach where it is.
    bounces: Vec<Option<Mapping>>,
    /// Such memory that was large, and is not kept.
    spent: Vec<Mapping>,
    watch: Watch,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    armed: bool,
}

/// A command that is with the device.
struct Flight {
    command: Command,
    /// The order in which commands were sent.
    number: u64,
    begun: Instant,
    /// Its payload passes through memory of our own.
    bounced: bool,
}

/// Where the device finds a command's payload.
enum Payload {
    None,
    At(u64),
    Bounced,
}

impl Pair {
    pub(in super::super) async fn open(
        slots: Arc<Slots>,
        attached: Arc<Attached>,
        depth: u16,
        association: u64,
        timeout: Duration,
    ) -> Result<Pair> {
        let options = QueueOptions {
            entries: depth + 1,
            interrupts: true,
        };
        let queue = attached.device.create_queue(options).await;
        let queue = queue.map_err(broken)?;
        let places = slots.depth();
        Ok(Pair {
            depth: places.min(queue.depth() as usize),
            queue,
            attached,
            flights: (0..places).map(|_| None).collect(),
            in_flight: 0,
            number: 0,
            association,
            taken: Vec::with_capacity(places),
            payloads: Vec::with_capacity(places),
            ended: Vec::with_capacity(places),
            replies: Vec::with_capacity(places),
            wakers: Vec::with_capacity(places),
            bounces: (0..places).map(|_| None).collect(),
            spent: Vec::new(),
            watch: Watch::default(),
            timeout,
            timer: Box::pin(tokio::time::sleep(timeout)),
            armed: false,
            slots,
        })
    }

    /// Carries commands until the connection ends, and tells why it did.
    pub(in super::super) async fn run(&mut self) -> String {
        loop {
            if let Err(why) = self.turn().await {
                return why;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), String> {
        self.wait().await?;
        self.finish()?;
        let moved = async {
            self.submit().await?;
            while let Some(large) = self.spent.pop() {
                self.attached.device.unmap(large).await?;
            }
            Ok::<(), DeviceError>(())
        };
        moved.await.map_err(|error| error.to_string())
    }

    /// Waits for commands or completions: looks for them while that is worth it, and sleeps then.
    async fn wait(&mut self) -> Result<(), String> {
        let room = self.depth - self.in_flight;
        let (queue, ended) = (&mut self.queue, &mut self.ended);
        let lost = |error: DeviceError| error.to_string();
        if self.in_flight > 0 && self.watch.looks_on() {
            self.slots.take(room, &mut self.taken, Waker::noop());
            if !self.taken.is_empty() {
                return Ok(());
            }
            for _ in 0..LOOKS {
                if queue.poll(|one| ended.push(one)).await.map_err(lost)? > 0 {
                    self.watch.came();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            tokio::task::yield_now().await;
            return Ok(());
        }
        tokio::select! {
            came = queue.wait(|one| ended.push(one)) => {
                self.watch.came();
                came.map(drop).map_err(lost)
            }
            () = commands(&self.slots, room, &mut self.taken), if room > 0 => Ok(()),
            () = self.timer.as_mut(), if self.armed => self.look_for_silence(),
        }
    }

    /// Whether a command has been under way for too long.
    fn look_for_silence(&mut self) -> Result<(), String> {
        self.armed = false;
        let oldest = self.flights.iter().flatten().map(|flight| flight.begun);
        match oldest.min() {
            Some(oldest) if oldest.elapsed() >= self.timeout => Err(TOO_SLOW.to_owned()),
            Some(oldest) => {
                self.arm(oldest);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn arm(&mut self, begun: Instant) {
        self.armed = true;
        self.timer.as_mut().reset((begun + self.timeout).into());
    }

    /// Leaves the replies to what was completed.
    fn finish(&mut self) -> Result<(), String> {
        for entry in self.ended.drain(..) {
            let place = usize::from(entry.cid);
            let Some(flight) = self.flights.get_mut(place).and_then(Option::take) else {
                return Err("the controller completed a command that there is not".to_owned());
            };
            self.in_flight -= 1;
            let bounce = match flight.bounced {
                true => self.bounces[place].as_ref().map(Mapping::region),
                false => None,
            };
            let mut data = flight.command.data;
            let received = match (&mut data, entry.status.is_success()) {
                (Data::In(sink), true) => {
                    let room = sink.len();
                    let received = match flight.command.value_behind {
                        Some(behind) => entry.result.saturating_sub(behind).min(room),
                        None => room,
                    };
                    let whole = bounce.is_none_or(|from| sink.copy_from(from, received as usize));
                    sink.finish(received);
                    whole.then_some(received)
                }
                _ => Some(0),
            };
            let outcome = match (entry.status.is_success(), received) {
                (false, _) => Err(Error::Status(entry.status)),
                (true, None) => Err(Error::invalid("memory that was taken away")),
                (true, Some(received)) => Ok(Completed {
                    result: entry.result,
                    received,
                    association: self.association,
                }),
            };
            self.replies.push((entry.cid, Reply { outcome, data }));
            let large = |one: &mut Mapping| one.region().len() > KEPT_BYTES;
            self.spent.extend(self.bounces[place].take_if(large));
        }
        self.slots.complete(&mut self.replies, &mut self.wakers);
        Ok(())
    }

    /// Lays commands down and rings.
    async fn submit(&mut self) -> Result<(), DeviceError> {
        if self.taken.is_empty() {
            return Ok(());
        }
        // Nothing is taken from the list before all that can be waited for is there: whoever ends us finds every command in a list.
        self.payloads.clear();
        for at in 0..self.taken.len() {
            let payload = self.payload(at).await?;
            self.payloads.push(payload);
        }
        let now = Instant::now();
        for ((at, command), payload) in self.taken.drain(..).zip(self.payloads.drain(..)) {
            let place = usize::from(at);
            let len = command.data.len() as usize;
            let bounced = matches!(payload, Payload::Bounced);
            let address = match payload {
                Payload::None => None,
                Payload::At(address) => Some(address),
                Payload::Bounced => self.bounces[place].as_ref().map(Mapping::address),
            };
            let filled = match (&command.data, &self.bounces[place]) {
                (Data::Out(source), Some(bounce)) if bounced => source.copy_to(bounce.region()),
                _ => true,
            };
            let pointed = match address {
                Some(address) => point(command.entry, address, len),
                None => Some(command.entry),
            };
            let Some(entry) = pointed.filter(|_| filled) else {
                let outcome = Err(Error::invalid("memory that was taken away"));
                let data = command.data;
                self.replies.push((at, Reply { outcome, data }));
                continue;
            };
            if !self.queue.submit(&entry.with_cid(at)) {
                debug_assert!(false, "no more commands are taken than there is room for");
            }
            self.number += 1;
            self.in_flight += 1;
            self.flights[place] = Some(Flight {
                command,
                number: self.number,
                begun: now,
                bounced,
            });
        }
        if !self.armed {
            self.arm(now);
        }
        self.slots.complete(&mut self.replies, &mut self.wakers);
        self.queue.ring().await
    }

    /// Finds out how the device reaches the payload of a command that was taken.
    async fn payload(&mut self, at: usize) -> Result<Payload, DeviceError> {
        let (place, command) = &self.taken[at];
        let len = command.data.len() as usize;
        if len == 0 {
            return Ok(Payload::None);
        }
        if let Some((region, offset)) = command.data.memory()
            && let Some(address) = self.attached.address_of(region).await
        {
            return Ok(Payload::At(address + offset as u64));
        }
        let bounce = &mut self.bounces[usize::from(*place)];
        if bounce.as_ref().is_none_or(|one| one.region().len() < len) {
            let larger = Region::memfd(len.next_multiple_of(PAGE_BYTES))?;
            let larger = self.attached.device.map(larger).await?;
            if let Some(smaller) = bounce.replace(larger) {
                self.attached.device.unmap(smaller).await?;
            }
        }
        Ok(Payload::Bounced)
    }

    /// Ends what was under way, when the connection is over, and when the device uses its memory no more.
    pub(in super::super) async fn wind_up(&mut self, why: &str) {
        self.attached.withdraw().await;
        self.end(why);
    }

    fn end(&mut self, why: &str) {
        // Also of those that were completed beside what broke the protocol.
        self.slots.complete(&mut self.replies, &mut self.wakers);
        // The device was never told of these.
        self.slots.put_back(self.taken.drain(..));
        let mut flights: Vec<(u16, Flight)> = (0..)
            .zip(&mut self.flights)
            .filter_map(|(at, place)| Some((at, place.take()?)))
            .collect();
        flights.sort_by_key(|(_, flight)| flight.number);
        self.in_flight = 0;
        let under_way = flights.into_iter();
        self.slots
            .end(under_way.map(|(at, flight)| (at, flight.command)), why);
    }
}

impl Drop for Pair {
    /// A runtime that stops drops its tasks.
    fn drop(&mut self) {
        self.end(RUNTIME_ENDED);
    }
}
