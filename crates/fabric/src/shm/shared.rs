//! What a link's calls and its task both hold: the rings, the regions, and whether it has ended.

use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_io::{Patience, passing};
use forebay_mem::{Buf, BufMut, CopySite, RegionSlice, count_copy};
use parking_lot::{Mutex, RwLock};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::{self, timeout_at};

use super::control::Outgoing;
use super::frame::{Frame, WAKE};
use super::mapping::Share;
use super::regions::{Exposures, PeerRegions};
use super::ring::{Consumer, Producer, Pushed, RING_BYTES, Violation};
use super::spin::Seen;
use crate::{
    Access, CloseReason, Error, ErrorKind, MESSAGE_BYTES_MAX, RemoteRange, Result, STALL,
    STALL_BYTES, Stag,
};

/// What is copied between two looks at whether the link has ended: some ten microseconds of copying.
const STEP_BYTES: usize = 256 << 10;

/// Messages taken in a row before other tasks of the thread get their turn.
const MESSAGES_A_TURN: u32 = 64;

/// Exposures that wait for an answer at once: each has a file in a socket, or open at its peer.
const OFFERS_MAX: usize = 32;

/// Messages that a peer is told of together, while this end has messages to take: both ends then pay once, for a look at a line of memory that the
/// other one wrote, and for a wake-up.
const MESSAGES_AT_ONCE: u32 = 4;

/// A peer that is awake is told together only while there is more to take than this, some five messages: with few calls under way it would
/// wait for what it could do meanwhile.
const BUSY_BYTES: u64 = 512;

const _: () = assert!(RING_BYTES > MESSAGES_AT_ONCE as usize * 2 * MESSAGE_BYTES_MAX);

/// Work on this much is too long to leave a peer without what it was sent.
pub(super) const LONG_BYTES: u64 = 128 << 10;

/// Copies at once, of one link, that may wait for a disk; each has a thread.
const APART_MAX: usize = 4;

/// How far a link is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing moves any more from here.
    Ended,
    /// Nor from there: the peer has let go of our memory.
    Released,
}

pub(super) struct Ending {
    pub(super) reason: CloseReason,
    by_peer: bool,
}

pub(super) struct Sending {
    pub(super) producer: Producer,
    open: bool,
    /// How much the peer had taken when there was no room, and until when it has time to take more.
    look: Option<(u64, time::Instant)>,
}

impl Sending {
    /// Until when a peer that leaves no room has time; none when that is over. A full ring is more than it has to take in that time: so
    /// whoever was slow once, and took it all, has the whole time again.
    fn time_of_peer(&mut self, now: time::Instant) -> Option<time::Instant> {
        let taken = self.producer.taken();
        let (then, until) = self.look.unwrap_or((taken, now + STALL));
        let look = match taken - then < STALL_BYTES {
            true => (then, until),
            false => (taken, now + STALL),
        };
        self.look = Some(look);
        Some(look.1).filter(|until| now < *until)
    }
}

pub(super) struct Receiving {
    consumer: Consumer,
    pub(super) patience: Patience,
    /// Messages taken since other tasks had their turn.
    in_a_row: u32,
}

pub(super) struct Shared {
    pub(super) stream: Arc<UnixStream>,
    pub(super) sending: Mutex<Sending>,
    pub(super) receiving: Mutex<Receiving>,
    /// Messages in the ring that the peer has not been told of; written while `sending` is locked. It grows only while `receiving` is
    /// locked, too, and behind, and whoever takes the last message that is there tells the peer: so none is forgotten.
    untold: AtomicU32,
    /// Whether there is more to take, by what was seen last.
    is_behind: AtomicBool,
    /// Held for reading while bytes move.
    moving: RwLock<()>,
    /// No byte moves any more from here; set while nobody holds `moving`.
    pub(super) is_still: AtomicBool,
    pub(super) peer_regions: RwLock<PeerRegions>,
    pub(super) exposures: Mutex<Exposures>,
    pub(super) offers: Arc<Semaphore>,
    /// Of the peer's exposures, those whose file is not known to be memory.
    pub(super) mappings: Arc<Semaphore>,
    pub(super) apart: Arc<Semaphore>,
    pub(super) tell: mpsc::UnboundedSender<Outgoing>,
    /// A message may have come.
    pub(super) arrival: Notify,
    /// There may be room to send.
    pub(super) room: Notify,
    pub(super) ending: OnceLock<Ending>,
    pub(super) phase: watch::Sender<Phase>,
}

impl Shared {
    pub(super) fn new(
        stream: Arc<UnixStream>,
        tell: mpsc::UnboundedSender<Outgoing>,
        sends: RegionSlice,
        receives: RegionSlice,
        tenant: Option<Arc<Share>>,
    ) -> Shared {
        Shared {
            stream,
            sending: Mutex::new(Sending {
                producer: Producer::new(sends),
                open: true,
                look: None,
            }),
            receiving: Mutex::new(Receiving {
                consumer: Consumer::new(receives),
                patience: Patience::default(),
                in_a_row: 0,
            }),
            untold: AtomicU32::new(0),
            is_behind: AtomicBool::new(false),
            moving: RwLock::new(()),
            is_still: AtomicBool::new(false),
            peer_regions: RwLock::new(PeerRegions::of(tenant)),
            exposures: Mutex::default(),
            offers: Arc::new(Semaphore::new(OFFERS_MAX)),
            mappings: Arc::new(Semaphore::new(OFFERS_MAX)),
            apart: Arc::new(Semaphore::new(APART_MAX)),
            tell,
            arrival: Notify::new(),
            room: Notify::new(),
            ending: OnceLock::new(),
            phase: watch::Sender::new(Phase::Open),
        }
    }

    /// Lets go of what the peer exposed, when the link has ended.
    pub(super) fn forget_regions(&self) {
        // The guard is gone before the memory is unmapped.
        let gone = self.peer_regions.write().take_all();
        drop(gone);
    }

    /// Ends the link, unless it has ended. When it returns, no byte moves from here and none will, and no memory of the peer's is given out.
    pub(super) fn end(&self, reason: CloseReason, by_peer: bool) {
        // The first reason stays; whoever comes second still returns only when nothing moves.
        let ending = Ending { reason, by_peer };
        let first = self.ending.set(ending).is_ok();
        let moving = self.moving.write();
        self.is_still.store(true, Release);
        drop(moving);
        self.peer_regions.write().close();
        {
            let mut sending = self.sending.lock();
            sending.open = false;
            self.untold.store(0, Relaxed);
            // The peer looks at the ring when it hears of the end.
            let _ = sending.producer.publish();
        }
        if !first {
            return;
        }
        if let Some(Ending { reason, .. }) = self.ending.get().filter(|_| !by_peer) {
            let reason = reason.clone();
            // Without this word the peer finds the end of the stream: a lost link. So it goes before the phase, which ends the stream.
            let _ = passing::try_send(&self.stream, &Frame::Close { reason }.encoded(), None);
        }
        self.phase.send_if_modified(|phase| {
            let was_open = *phase == Phase::Open;
            if was_open {
                *phase = Phase::Ended;
            }
            was_open
        });
        self.wake();
    }

    pub(super) fn say(&self, what: Outgoing) {
        // It fails only when the link has ended.
        let _ = self.tell.send(what);
    }

    /// Tells the peer to let go of what we exposed; who waits for that. `None` when it knows of no such memory any more.
    pub(super) fn withdraw(&self, stag: Stag) -> Option<oneshot::Receiver<()>> {
        let gone = self.exposures.lock().withdraw(stag)?;
        self.say(Outgoing::frame(Frame::Withdraw { stag }));
        Some(gone)
    }

    /// Has local waiters look again.
    pub(super) fn wake(&self) {
        self.arrival.notify_one();
        self.room.notify_waiters();
    }

    pub(super) fn wake_peer(&self) {
        self.woke(passing::try_send(&self.stream, &[WAKE], None));
    }

    /// What came of waking the peer, which may have told the ring that it sleeps, and does so once.
    pub(super) fn woke(&self, sent: io::Result<usize>) {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, WouldBlock};
        match sent.map_err(|error| error.kind()) {
            // When its socket is full it has been woken; when the link has ended nobody sleeps.
            Ok(_) | Err(WouldBlock | BrokenPipe | ConnectionReset | NotConnected) => {}
            Err(error) => {
                tracing::warn!(%error, "a link ends because its peer cannot be woken");
                self.end(CloseReason::Lost, false);
            }
        }
    }

    /// Tells the peer of messages that it has not been told of.
    pub(super) fn tell(&self) {
        if self.untold.load(Relaxed) == 0 {
            return;
        }
        let mut sending = self.sending.lock();
        self.untold.store(0, Relaxed);
        let told = sending.producer.publish();
        drop(sending);
        // It fails only when the rings' memory is gone, and then nothing is heard from here either.
        if told == Ok(true) {
            self.wake_peer();
        }
    }

    pub(super) fn closed(&self) -> Error {
        let reason = self.ending.get().map(|ending| &ending.reason);
        Error::new(
            ErrorKind::Closed,
            reason.unwrap_or(&CloseReason::Lost).to_string(),
        )
    }

    pub(super) fn violated(&self, Violation(what): Violation) -> Error {
        self.end(CloseReason::Violation(what.into()), false);
        self.closed()
    }

    /// The error of a range that was not found.
    pub(super) fn unreachable(&self) -> Error {
        if self.ending.get().is_some() {
            return self.closed();
        }
        Error::new(
            ErrorKind::NotReachable,
            "the peer exposed no such memory for this",
        )
    }

    pub(super) fn find(&self, range: RemoteRange, access: Access) -> Result<RegionSlice> {
        let found = self.peer_regions.read().find(range, access);
        found.ok_or_else(|| self.unreachable())
    }

    /// Moves one step's bytes by `copy`, unless the link has ended.
    pub(super) fn step(
        &self,
        site: CopySite,
        bytes: usize,
        copy: impl FnOnce() -> bool,
    ) -> Result<()> {
        let _moving = self.moving.read();
        if self.is_still.load(Relaxed) {
            return Err(self.closed());
        }
        if !copy() {
            return Err(Error::new(
                ErrorKind::NotReachable,
                "the peer took the memory away",
            ));
        }
        count_copy(site, bytes);
        Ok(())
    }

    /// Copies `from` to the start of `target`, a step each time.
    pub(super) fn steps_to<'a>(
        &'a self,
        target: &'a RegionSlice,
        from: &'a [Buf],
    ) -> impl Iterator<Item = Result<()>> + Send + 'a {
        let mut offset = 0;
        let steps = from.iter().flat_map(|buf| buf.chunks(STEP_BYTES));
        steps.map(move |step| {
            let at = offset;
            offset += step.len();
            // Who ends the link waits for a step, and not for a disk.
            target.fetch(at, step.len(), true);
            self.step(CopySite::RetrieveInto, step.len(), || {
                target.write(at, step)
            })
        })
    }

    /// Copies `source` to the start of the spare room of `into`, a step each time.
    pub(super) fn steps_from<'a>(
        &'a self,
        source: &'a RegionSlice,
        into: &'a mut BufMut,
    ) -> impl Iterator<Item = Result<()>> + Send + 'a {
        let steps = into.spare()[..source.len()].chunks_mut(STEP_BYTES);
        steps.enumerate().map(|(number, step)| {
            let (at, len) = (number * STEP_BYTES, step.len());
            source.fetch(at, len, false);
            self.step(CopySite::ReadFrom, len, || source.read(at, step))
        })
    }

    /// Takes a message if there is one. After the peer has finished, what it sent before still comes.
    pub(super) fn take(&self, into: &mut Vec<u8>, waited: Option<Instant>) -> Result<Taken> {
        // Looked at before the ring: what the peer sent before it ended is then in the ring.
        let ending = self.ending.get();
        if ending.is_some_and(|ending| !ending.by_peer) {
            return Err(self.closed());
        }
        let mut receiving = self.receiving.lock();
        if receiving.in_a_row >= MESSAGES_A_TURN {
            // Before a message leaves the ring: who gives up the call while it waits loses none.
            receiving.in_a_row = 0;
            return Ok(Taken::Turn);
        }
        let popped = receiving.consumer.pop(into);
        let taken = popped.as_ref().is_ok_and(|popped| popped.taken);
        let is_behind = receiving.consumer.backlog() > 0;
        self.is_behind.store(is_behind, Relaxed);
        if taken {
            if let Some(since) = waited {
                receiving.patience.learn(since.elapsed());
                receiving.in_a_row = 0;
            }
            receiving.in_a_row += 1;
        }
        drop(receiving);
        let popped = popped.map_err(|violation| self.violated(violation))?;
        if popped.wake {
            self.wake_peer();
        }
        if !is_behind {
            self.tell();
        }
        match ending {
            _ if taken => Ok(Taken::Message),
            None => Ok(Taken::Nothing),
            Some(Ending {
                reason: CloseReason::Done,
                ..
            }) => Ok(Taken::Finished),
            Some(_) => Err(self.closed()),
        }
    }

    /// Looks whether a message is there or the link has ended.
    pub(super) fn look(&self) -> Result<Seen> {
        let mut receiving = self.receiving.lock();
        let empty = receiving.consumer.is_empty();
        let in_the_way = empty == Ok(true) && receiving.consumer.is_in_the_way();
        drop(receiving);
        let empty = empty.map_err(|violation| self.violated(violation))?;
        Ok(match () {
            () if !empty || self.ending.get().is_some() => Seen::Found,
            () if in_the_way => Seen::InTheWay,
            () => Seen::Nothing,
        })
    }

    /// Says that this end sleeps; false when there is something to do after all.
    pub(super) fn sleeps(&self) -> Result<bool> {
        let empty = self.receiving.lock().consumer.announce_sleep();
        let empty = empty.map_err(|violation| self.violated(violation))?;
        Ok(empty && self.ending.get().is_none())
    }

    /// Waits until there may be room for a message, or no more will come.
    pub(super) async fn wait_for_room(&self, len: usize) -> Result<()> {
        let room = self.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if let Some(until) = self.waits_for_room(len)? {
            // When the time is over, whoever looks again gives the peer up.
            let _ = timeout_at(until, room).await;
        }
        Ok(())
    }

    /// Says that this end waits for room, and tells until when; none when there is some, or no more will come. A peer that took too
    /// little in its time is given up.
    fn waits_for_room(&self, len: usize) -> Result<Option<time::Instant>> {
        let mut sending = self.sending.lock();
        let full = sending.producer.announce_wait(len);
        let until = full.map(|full| full.then(|| sending.time_of_peer(time::Instant::now())));
        drop(sending);
        match until.map_err(|violation| self.violated(violation))? {
            Some(Some(until)) if self.ending.get().is_none() => Ok(Some(until)),
            Some(None) => {
                self.end(CloseReason::Stalled, false);
                Err(self.closed())
            }
            Some(Some(_)) | None => Ok(None),
        }
    }

    /// Puts a message into the ring, if it has room. While there is more to take, the peer is told of several together.
    pub(super) fn push(&self, message: &[u8]) -> Result<bool> {
        let receiving = self.is_behind.load(Relaxed).then(|| self.receiving.lock());
        let backlog = receiving.as_ref();
        let backlog = backlog.map_or(0, |receiving| receiving.consumer.backlog());
        let mut sending = self.sending.lock();
        if !sending.open {
            return Err(self.closed());
        }
        let producer = &mut sending.producer;
        let untold = self.untold.load(Relaxed) + 1;
        let later = untold < MESSAGES_AT_ONCE
            && (backlog > BUSY_BYTES || backlog > 0 && producer.seems_asleep());
        let pushed = match later {
            true => producer.put(message),
            false => producer.push(message),
        };
        if let Ok(Pushed::Done { .. }) = pushed {
            self.untold.store(if later { untold } else { 0 }, Relaxed);
        }
        drop(sending);
        drop(receiving);
        match pushed.map_err(|violation| self.violated(violation))? {
            Pushed::Done { wake } => {
                if wake {
                    self.wake_peer();
                }
                Ok(true)
            }
            Pushed::Full => {
                // It makes room only by what it knows of.
                self.tell();
                Ok(false)
            }
        }
    }
}

/// What came of looking for a message.
pub(super) enum Taken {
    Message,
    /// It is other tasks' turn.
    Turn,
    Nothing,
    Finished,
}
