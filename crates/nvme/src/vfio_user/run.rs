//! The loop of one device.
//!
//! One task serves a client: its messages, its queues, its commands, which run side by side. While commands come it looks at the
//! doorbells itself. When a look was in vain it sleeps: the client's next doorbell is then a message, which wakes it. Only a client that
//! writes doorbells into a mapped page, and does not know shadow doorbells, cannot wake anybody: for it a timer does, ever more seldom.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_io::{Patience, Slots};
use forebay_proto::nvme::kv::{KeyAt, KvCommand, head};
use forebay_proto::nvme::{Controller, IoCommand, IoVerb, Status, SubmissionQueueEntry};
use tokio::time::Sleep;

use super::device::Device;
use super::far::{Far, Wanted};
use super::memory::{Direction, Memory};
use super::messages::Messages;
use super::payload::{Data, Pieces, Ticket};
use super::queues::BURST;
use super::transfer::{Segments, Stop};
use crate::target::Fused;

/// Commands of one client that are executed at once; more stay in their queues.
const COMMANDS_MAX: usize = 1024;

/// Pieces of memory in the lists of commands in progress; with more, commands stay in their queues until some have ended.
const PIECES_MAX: usize = 65_536;

/// Pieces and entries of lists that are looked at before other tasks of the thread get their turn: some tenths of a millisecond, and what
/// the last command takes.
const WALK: usize = 4096;

/// A list of pieces that is kept to be used again has room for this many.
const KEPT_PIECES: usize = 64;

/// Rounds before other tasks of the thread get their turn.
const ROUNDS: usize = 16;

/// Looks in a row before others get their turn; about half a microsecond.
const LOOKS: usize = 16;

/// How long to sleep where nobody wakes us: at first, and at most.
const NAP: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(64);

/// What is executed as one.
pub(super) enum Work {
    One(IoCommand, Ticket),
    /// A fused operation.
    Both(Box<[(IoCommand, Ticket); 2]>),
}

/// How commands that were executed as one have ended, the result in the case of one.
pub(super) enum Done {
    One(Ticket, Status, u64),
    Both((Ticket, Status), (Ticket, Status)),
}

/// Why a client is served no more.
#[derive(Debug)]
pub enum Ended {
    /// It has gone.
    Gone,
    /// We were told to stop.
    Stopped,
    /// There are too many controllers.
    Busy,
    /// What it sent is no message, it said nothing at all, or the connection broke.
    Broken(io::Error),
}

impl Ended {
    /// A client that leaves without having read everything has gone all the same.
    fn of(error: io::Error) -> Ended {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ended::Gone,
            _ => Ended::Broken(error),
        }
    }
}

/// What a device is served with.
pub(super) struct Run<'a, E, F> {
    pub(super) messages: Messages,
    /// Commands, which go before the memory that they use.
    pub(super) slots: Slots<F>,
    pub(super) device: Device<'a>,
    /// Executes a command with its data.
    pub(super) execute: E,
    /// The most data of a command for keys and values, but for a key, in bytes. The controller knows the most of others.
    pub(super) kv_bytes_max: u64,
    state: State,
}

struct State {
    started: Instant,
    /// Queues that have commands.
    ready: Vec<u16>,
    /// Lists of pieces that no command uses now.
    segments: Vec<Segments>,
    pieces: Pieces,
    /// What was looked at since other tasks had their turn.
    walked: usize,
    patience: Patience,
    /// Since when there was nothing to do.
    idle: Option<Instant>,
    /// We were told to stop.
    stopping: bool,
    /// Whether the client was told to wake us.
    asleep: bool,
    nap: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<'a, E, F> Run<'a, E, F>
where
    E: Fn(Work) -> F,
    F: Future<Output = Done>,
{
    pub(super) fn new(
        messages: Messages,
        device: Device<'a>,
        kv_bytes_max: u64,
        execute: E,
    ) -> Run<'a, E, F> {
        Run {
            messages,
            slots: Slots::new(COMMANDS_MAX),
            device,
            execute,
            kv_bytes_max,
            state: State {
                started: Instant::now(),
                ready: Vec::new(),
                segments: Vec::new(),
                pieces: Pieces::default(),
                walked: 0,
                patience: Patience::default(),
                idle: None,
                stopping: false,
                asleep: false,
                nap: NAP,
                sleep: None,
            },
        }
    }

    /// Serves until the client goes or `shutdown` is over. `update` lets the controller show what there is now, when that has changed.
    pub(super) async fn run(
        mut self,
        mut update: impl FnMut(&mut Context<'_>, &mut Controller) -> Poll<()>,
        shutdown: impl Future<Output = ()>,
    ) -> Ended {
        let mut shutdown = pin!(shutdown);
        poll_fn(|cx| {
            self.state.stopping = self.state.stopping || shutdown.as_mut().poll(cx).is_ready();
            self.device.now_ms = self.state.started.elapsed().as_millis() as u64;
            while update(cx, &mut self.device.controller).is_ready() {
                self.device.tell_events();
            }
            self.state.walked = 0;
            for _ in 0..ROUNDS {
                let moved = match self.round(cx) {
                    Ok(Some(moved)) => moved,
                    Ok(None) => return Poll::Ready(Ended::Gone),
                    Err(error) => return Poll::Ready(Ended::of(error)),
                };
                // What was begun is completed.
                if self.state.stopping && self.device.busy == 0 {
                    return Poll::Ready(Ended::Stopped);
                }
                if !moved {
                    return self.wait(cx);
                }
                self.state.idle = None;
                if self.state.walked >= WALK {
                    break;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Does what there is to do; whether there was anything. `None` when the client has gone.
    fn round(&mut self, cx: &mut Context<'_>) -> io::Result<Option<bool>> {
        let mut moved = false;
        let (device, segments) = (&mut self.device, &mut self.state.segments);
        self.slots.poll_woken(cx, |_, done| {
            moved = true;
            end(device, segments, done);
        });
        if self.device.memory.any_far() {
            moved |= self.device.run_errands(cx);
        }
        match self.messages.poll(cx, &mut self.device) {
            Poll::Ready(Ok(true)) => moved = true,
            Poll::Ready(Ok(false)) => return Ok(None),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {}
        }
        if self.device.reset.is_some() && self.device.try_finish_reset() {
            self.messages.reset_done()?;
            moved = true;
        }
        moved |= self.take_commands() || self.device.has_errands();
        self.device.interrupt();
        Ok(Some(moved))
    }

    /// Starts commands of all queues that have some; whether there were any.
    fn take_commands(&mut self) -> bool {
        if self.state.stopping {
            return false;
        }
        let mut ready = std::mem::take(&mut self.state.ready);
        ready.clear();
        self.device.look(&mut ready);
        let mut any = false;
        for &qid in &ready {
            let most = match qid {
                // What one does may concern the next.
                0 => 1,
                _ => BURST.min(COMMANDS_MAX.saturating_sub(self.slots.busy())),
            };
            for _ in 0..self.device.ready(qid, most) {
                let waits = qid > 0 && (self.state.walked >= WALK || self.is_full());
                if waits || !self.device.runs() {
                    break;
                }
                let Some(entry) = self.device.take(qid) else {
                    break;
                };
                any = true;
                match qid {
                    0 => self.device.admin(&entry),
                    qid => self.start(qid, &entry),
                }
            }
        }
        self.state.ready = ready;
        if any {
            self.heard();
        }
        any
    }

    /// Whether a command that is to end makes room for the next one.
    fn is_full(&self) -> bool {
        let busy = self.slots.busy();
        busy >= COMMANDS_MAX || busy > 0 && self.state.pieces.count() >= PIECES_MAX
    }

    /// Commands came.
    fn heard(&mut self) {
        if std::mem::take(&mut self.state.asleep) {
            self.device.announce(false);
        }
        if let Some(idle) = self.state.idle.take() {
            self.state.patience.learn(idle.elapsed());
        }
        self.state.nap = NAP;
        self.state.sleep = None;
    }

    fn start(&mut self, qid: u16, entry: &SubmissionQueueEntry) {
        let cid = entry.cid();
        let mut segments = self.state.segments.pop().unwrap_or_default();
        let command = self
            .device
            .controller
            .io(self.device.now_ms, qid, entry)
            .and_then(|command| {
                let bytes_max = self.kv_bytes_max;
                let far = find_data(&self.device, entry, &command, bytes_max, &mut segments)?;
                Ok((command, far))
            });
        self.state.walked += segments.take_walked();
        let Some(queue) = self.device.submission.get_mut(&qid) else {
            return;
        };
        let mut next = match command {
            Ok((command, None)) => {
                let data = Data::new(segments, &self.state.pieces);
                queue.fuser.next(command, Ticket { qid, cid, data })
            }
            Ok((command, Some(far))) => {
                keep(&mut self.state.segments, segments);
                let data = Data::Far(far);
                queue.fuser.next(command, Ticket { qid, cid, data })
            }
            Err(status) => {
                let first = queue.fuser.interrupted();
                keep(&mut self.state.segments, segments);
                if let Some(first) = first {
                    self.refuse(first, Status::ABORTED_MISSING_FUSED);
                }
                return self.device.complete(qid, cid, status, 0);
            }
        };
        loop {
            next = match next {
                Fused::Wait => return,
                Fused::One(command, ticket) => return self.launch(qid, Work::One(command, ticket)),
                Fused::Both(first, second) => return self.launch_both(qid, first, second),
                Fused::Alone(ticket) => return self.refuse(ticket, Status::ABORTED_MISSING_FUSED),
                Fused::Missing(first, (command, ticket)) => {
                    self.refuse(first, Status::ABORTED_MISSING_FUSED);
                    match self.device.submission.get_mut(&qid) {
                        Some(queue) => queue.fuser.next(command, ticket),
                        None => return,
                    }
                }
            };
        }
    }

    /// Where one half has to be asked for, the other one holds none of the client's memory meanwhile: it could not be unmapped then.
    fn launch_both(
        &mut self,
        qid: u16,
        mut first: (IoCommand, Ticket),
        mut second: (IoCommand, Ticket),
    ) {
        if first.1.data.is_far() != second.1.data.is_far() {
            let (asker, memory) = (&self.device.asker, &self.device.memory);
            let found = [&mut first, &mut second].map(|(_, ticket)| {
                let near = std::mem::replace(
                    &mut ticket.data,
                    Data::new(Segments::default(), &self.state.pieces),
                );
                let far = near.by_address(asker, memory);
                far.map(|far| ticket.data = far).is_some()
            });
            if found.contains(&false) {
                self.refuse(first.1, Status::DATA_TRANSFER_ERROR);
                return self.refuse(second.1, Status::ABORTED_FAILED_FUSED);
            }
        }
        self.launch(qid, Work::Both(Box::new([first, second])));
    }

    fn launch(&mut self, qid: u16, work: Work) {
        let Some(place) = self.slots.place() else {
            debug_assert!(false, "no more commands are taken than there are places");
            return;
        };
        self.device.busy += 1;
        if let Some(queue) = self.device.submission.get_mut(&qid) {
            queue.busy += 1;
        }
        if let Some(done) = self.slots.start(place, (self.execute)(work)) {
            end(&mut self.device, &mut self.state.segments, done);
        }
    }

    /// Completes a command that was not executed.
    fn refuse(&mut self, ticket: Ticket, status: Status) {
        self.device.complete(ticket.qid, ticket.cid, status, 0);
        recycle(&mut self.state.segments, ticket);
    }

    /// There is nothing to do: looks on, or sleeps.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let shadow = self.device.doorbells.are_watched();
        let mapped = self.messages.are_doorbells_mapped();
        let takes = self.device.runs() && !self.state.stopping && !self.is_full();
        if !takes || !(shadow || mapped) {
            // Whatever comes next, comes by a message or is the end of a command.
            return Poll::Pending;
        }
        let idle = *self.state.idle.get_or_insert_with(Instant::now);
        let mut ready = std::mem::take(&mut self.state.ready);
        ready.clear();
        if idle.elapsed() < self.state.patience.get() {
            for _ in 0..LOOKS {
                self.device.look(&mut ready);
                if !ready.is_empty() {
                    break;
                }
                std::hint::spin_loop();
            }
            cx.waker().wake_by_ref();
        } else {
            // What ended since may have filled a queue of completions: the client is to say when it takes some.
            let awake = !std::mem::replace(&mut self.state.asleep, true);
            if awake || self.device.waits_untold() {
                self.device.announce(true);
            }
            self.device.look(&mut ready);
            if !ready.is_empty() || self.device.waits_untold() {
                cx.waker().wake_by_ref();
            } else if mapped {
                self.nap(cx);
            }
        }
        self.state.ready = ready;
        // A look may have found room for completions that waited.
        self.device.interrupt();
        if self.device.has_errands() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Asks a timer to wake us.
    fn nap(&mut self, cx: &mut Context<'_>) {
        let nap = self.state.nap;
        let sleep = self
            .state
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(nap)));
        if sleep.as_mut().poll(cx).is_ready() {
            self.state.nap = (nap * 2).min(NAP_MAX);
            sleep.as_mut().reset(tokio::time::Instant::now() + nap);
            // It is not over yet; this leaves word with it.
            let _ = sleep.as_mut().poll(cx);
        }
    }
}

fn end(device: &mut Device<'_>, segments: &mut Vec<Segments>, done: Done) {
    match done {
        Done::One(ticket, status, result) => {
            device.complete(ticket.qid, ticket.cid, status, result);
            device.ended(ticket.qid);
            recycle(segments, ticket);
        }
        Done::Both((first, status), (second, second_status)) => {
            device.complete(first.qid, first.cid, status, 0);
            device.complete(second.qid, second.cid, second_status, 0);
            device.ended(second.qid);
            recycle(segments, first);
            recycle(segments, second);
        }
    }
}

fn recycle(segments: &mut Vec<Segments>, ticket: Ticket) {
    if let Some(list) = ticket.data.into_segments() {
        keep(segments, list);
    }
}

/// Keeps a list that no command uses any more, and lets go of the memory in it: that could not be unmapped.
fn keep(segments: &mut Vec<Segments>, mut list: Segments) {
    list.clear();
    list.parts.shrink_to(KEPT_PIECES);
    segments.push(list);
}

/// Finds the data of a command: `None` when it is in `segments`, all of it near.
fn find_data(
    device: &Device<'_>,
    entry: &SubmissionQueueEntry,
    command: &IoCommand,
    kv_bytes_max: u64,
    segments: &mut Segments,
) -> Result<Option<Box<Far>>, Status> {
    let wanted = wanted(entry, command, kv_bytes_max);
    match find_near(&device.memory, entry, &wanted, segments) {
        Ok(()) => Ok(None),
        Err(Stop::Status(status)) => Err(status),
        Err(Stop::Far) => {
            let far = Far::new(device.asker.clone(), *entry, wanted);
            Ok(Some(Box::new(far)))
        }
    }
}

fn wanted(entry: &SubmissionQueueEntry, command: &IoCommand, kv_bytes_max: u64) -> Wanted {
    let mut headed = false;
    let (direction, bytes) = match (command.verb, command.bytes_to_host) {
        (IoVerb::Kv(KvCommand::ExtendedKey { .. }), _) => {
            let bytes = u64::from(entry.cdw(10)).min(head::BYTES_MAX as u64);
            (Direction::ToController, bytes)
        }
        (
            IoVerb::Kv(
                KvCommand::Store {
                    key: KeyAt::Head, ..
                }
                | KvCommand::StorePart {
                    key: KeyAt::Head, ..
                },
            ),
            _,
        ) => {
            headed = true;
            (Direction::ToController, command.bytes_to_controller)
        }
        (IoVerb::Kv(KvCommand::RetrieveByHead { .. }), bytes) => {
            headed = true;
            (Direction::Both, bytes)
        }
        (IoVerb::Kv(KvCommand::Execute { .. }), to_host) => {
            (Direction::Both, command.bytes_to_controller.max(to_host))
        }
        (_, 0) => (Direction::ToController, command.bytes_to_controller),
        (_, bytes) => (Direction::ToHost, bytes),
    };
    Wanted {
        direction,
        bytes,
        headed,
        bytes_max: match command.verb {
            IoVerb::Kv(_) => kv_bytes_max + head::BYTES_MAX as u64,
            IoVerb::Nvm(_) => u64::MAX,
        },
    }
}

fn find_near(
    memory: &Memory,
    entry: &SubmissionQueueEntry,
    wanted: &Wanted,
    segments: &mut Segments,
) -> Result<(), Stop> {
    let mut bytes = wanted.bytes;
    if wanted.headed {
        // How long the key is stands in front of it; whoever reads it once more finds no more bytes than there are.
        segments.walk(memory, entry, head::LENGTH_BYTES as u64, wanted.direction)?;
        let mut length = [0; head::LENGTH_BYTES];
        segments.read(&mut length)?;
        bytes = wanted.with_key(length)?;
    }
    let bytes = wanted.bounded(bytes)?;
    segments.walk(memory, entry, bytes, wanted.direction)
}
