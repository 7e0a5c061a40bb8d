//! One end of a link.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_io::passing;
use forebay_mem::{Buf, BufMut, CopySite, RegionSlice, count_copy};
use parking_lot::{Mutex, RwLock};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::yield_now;

use super::control::{self, Outgoing, Reader, Uses};
use super::frame::{Frame, WAKE};
use super::regions::{Exposures, PeerRegions};
use super::ring::{Consumer, DIRECTION_BYTES, Producer, Pushed, Violation};
use super::spin::{SHORTEST, Seen, Spin, look_for};
use crate::sessions::LinkId;
use crate::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, MESSAGE_BYTES_MAX, Placed,
    RemoteRange, Result,
};

/// What is copied between two looks at whether the link has ended: some ten microseconds of copying.
const STEP_BYTES: usize = 256 << 10;

/// Steps between two turns of other tasks of the thread.
const STEPS_A_TURN: usize = 4;

/// Messages taken in a row before other tasks of the thread get their turn.
const MESSAGES_A_TURN: u32 = 64;

/// Exposures that wait for the peer's answer at once; the frames of both ends then fit their sockets, so neither blocks the other.
const OFFERS_MAX: usize = 32;

/// How far a link is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing moves any more from here.
    Ended,
    /// Nor from there: the peer has let go of our memory.
    Released,
}

struct Ending {
    reason: CloseReason,
    by_peer: bool,
}

struct Sending {
    producer: Producer,
    open: bool,
}

struct Receiving {
    consumer: Consumer,
    spin: Spin,
    /// Messages taken since other tasks had their turn.
    in_a_row: u32,
}

pub(super) struct Shared {
    pub(super) stream: Arc<UnixStream>,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    /// Whether bytes may move; held for reading while some do.
    moving: RwLock<bool>,
    pub(super) peer_regions: RwLock<PeerRegions>,
    pub(super) exposures: Mutex<Exposures>,
    offers: Semaphore,
    pub(super) tell: mpsc::UnboundedSender<Outgoing>,
    /// A message may have come.
    arrival: Notify,
    /// There may be room to send.
    room: Notify,
    ending: OnceLock<Ending>,
    pub(super) phase: watch::Sender<Phase>,
}

/// One end of a link over shared memory. It ends when it is dropped.
pub struct ShmLink {
    shared: Arc<Shared>,
    id: OnceLock<LinkId>,
}

/// What a link is made of before it runs.
pub(super) struct Parts {
    pub(super) stream: Arc<UnixStream>,
    pub(super) reader: Reader,
    pub(super) sends: RegionSlice,
    pub(super) receives: RegionSlice,
}

impl ShmLink {
    /// Starts the link's task on the runtime of the caller.
    pub(super) fn start(parts: Parts) -> ShmLink {
        debug_assert!(parts.sends.len() >= DIRECTION_BYTES);
        let (tell, outgoing) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            stream: parts.stream.clone(),
            sending: Mutex::new(Sending {
                producer: Producer::new(parts.sends),
                open: true,
            }),
            receiving: Mutex::new(Receiving {
                consumer: Consumer::new(parts.receives),
                spin: Spin::default(),
                in_a_row: 0,
            }),
            moving: RwLock::new(true),
            peer_regions: RwLock::default(),
            exposures: Mutex::default(),
            offers: Semaphore::new(OFFERS_MAX),
            tell,
            arrival: Notify::new(),
            room: Notify::new(),
            ending: OnceLock::new(),
            phase: watch::Sender::new(Phase::Open),
        });
        let uses = Arc::new(Uses(parts.stream));
        tokio::spawn(control::run(shared.clone(), parts.reader, outgoing, uses));
        ShmLink {
            shared,
            id: OnceLock::new(),
        }
    }

    pub(super) fn set_id(&self, id: LinkId) {
        let _ = self.id.set(id);
    }

    /// Its name in the session at the server, for registering regions.
    pub fn id(&self) -> Option<LinkId> {
        self.id.get().copied()
    }
}

impl Shared {
    /// Ends the link, unless it has ended. When it returns, no byte moves from here and none will.
    pub(super) fn end(&self, reason: CloseReason, by_peer: bool) {
        // The first reason stays; whoever comes second still returns only when nothing moves.
        let ending = Ending { reason, by_peer };
        let first = self.ending.set(ending).is_ok();
        *self.moving.write() = false;
        self.sending.lock().open = false;
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

    /// Has local waiters look again.
    pub(super) fn wake(&self) {
        self.arrival.notify_one();
        self.room.notify_waiters();
    }

    fn wake_peer(&self) {
        // When its socket is full it has been woken; when the link has ended nobody sleeps.
        let _ = passing::try_send(&self.stream, &[WAKE], None);
    }

    fn closed(&self) -> Error {
        let reason = self.ending.get().map(|ending| &ending.reason);
        Error::new(
            ErrorKind::Closed,
            reason.unwrap_or(&CloseReason::Lost).to_string(),
        )
    }

    fn violated(&self, Violation(what): Violation) -> Error {
        self.end(CloseReason::Violation(what.into()), false);
        self.closed()
    }

    /// The error of a range that was not found.
    fn unreachable(&self) -> Error {
        if self.ending.get().is_some() {
            return self.closed();
        }
        Error::new(
            ErrorKind::NotReachable,
            "the peer exposed no such memory for this",
        )
    }

    fn find(&self, range: RemoteRange, access: Access) -> Result<RegionSlice> {
        let found = self.peer_regions.read().find(range, access);
        found.ok_or_else(|| self.unreachable())
    }

    /// Moves one step's bytes by `copy`, unless the link has ended.
    fn step(&self, copy: impl FnOnce() -> bool) -> Result<()> {
        let moving = self.moving.read();
        if !*moving {
            return Err(self.closed());
        }
        if !copy() {
            return Err(Error::new(
                ErrorKind::NotReachable,
                "the peer took the memory away",
            ));
        }
        Ok(())
    }

    /// Takes a message if there is one. After the peer has finished, what it sent before still comes.
    fn take(&self, into: &mut Vec<u8>, waited: Option<Instant>) -> Result<Taken> {
        // Looked at before the ring: what the peer sent before it ended is then in the ring.
        let ending = self.ending.get();
        if ending.is_some_and(|ending| !ending.by_peer) {
            return Err(self.closed());
        }
        let mut receiving = self.receiving.lock();
        let popped = receiving.consumer.pop(into);
        let taken = popped.as_ref().is_ok_and(|popped| popped.taken);
        let mut turn = false;
        if taken {
            if let Some(since) = waited {
                receiving.spin.learn(since.elapsed());
                receiving.in_a_row = 0;
            }
            receiving.in_a_row = receiving.in_a_row.wrapping_add(1);
            turn = receiving.in_a_row.is_multiple_of(MESSAGES_A_TURN);
        }
        drop(receiving);
        let popped = popped.map_err(|violation| self.violated(violation))?;
        if popped.wake {
            self.wake_peer();
        }
        match ending {
            _ if taken => Ok(Taken::Message { turn }),
            None => Ok(Taken::Nothing),
            Some(Ending {
                reason: CloseReason::Done,
                ..
            }) => Ok(Taken::Finished),
            Some(_) => Err(self.closed()),
        }
    }

    /// Looks whether a message is there or the link has ended.
    fn look(&self) -> Result<Seen> {
        let mut receiving = self.receiving.lock();
        let empty = receiving.consumer.is_empty();
        let in_the_way = receiving.consumer.is_in_the_way();
        drop(receiving);
        let empty = empty.map_err(|violation| self.violated(violation))?;
        Ok(match () {
            () if !empty || self.ending.get().is_some() => Seen::Found,
            () if in_the_way => Seen::InTheWay,
            () => Seen::Nothing,
        })
    }

    /// Says that this end sleeps; false when there is something to do after all.
    fn sleeps(&self) -> Result<bool> {
        let empty = self.receiving.lock().consumer.announce_sleep();
        let empty = empty.map_err(|violation| self.violated(violation))?;
        Ok(empty && self.ending.get().is_none())
    }

    /// Says that this end waits for room; false when there is some, or no more will come.
    fn waits_for_room(&self, len: usize) -> Result<bool> {
        let full = self.sending.lock().producer.announce_wait(len);
        let full = full.map_err(|violation| self.violated(violation))?;
        Ok(full && self.ending.get().is_none())
    }

    /// Puts a message into the ring, if it has room.
    fn push(&self, message: &[u8]) -> Result<bool> {
        let mut sending = self.sending.lock();
        if !sending.open {
            return Err(self.closed());
        }
        let pushed = sending.producer.push(message);
        drop(sending);
        match pushed.map_err(|violation| self.violated(violation))? {
            Pushed::Done { wake } => {
                if wake {
                    self.wake_peer();
                }
                Ok(true)
            }
            Pushed::Full => Ok(false),
        }
    }
}

enum Taken {
    Message {
        /// It is other tasks' turn.
        turn: bool,
    },
    Nothing,
    Finished,
}

impl std::fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShmLink").field(&self.id.get()).finish()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.shared.end(CloseReason::Done, false);
    }
}

impl Link for ShmLink {
    fn fabric(&self) -> Fabric {
        Fabric::Shm
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        let shared = &*self.shared;
        let region = memory.region().clone();
        let usable = region
            .backing()
            .is_some_and(|backing| backing.writable || !access.writes());
        if !usable || memory.is_empty() {
            let why = "only memory of a file can be shared with another process";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let (offset, len) = (memory.range().start as u64, memory.len() as u64);
        let _turn = shared.offers.acquire().await.map_err(|_| shared.closed())?;
        let (stag, answer) = shared.exposures.lock().offer(memory)?;
        let frame = Frame::Expose {
            stag,
            access,
            offset,
            len,
        };
        shared.say(Outgoing::with_file(frame, region));
        answer.await.map_err(|_| shared.closed())??;
        Ok(Exposure { stag, base: 0, len })
    }

    async fn withdraw(&self, exposure: Exposure) {
        let stag = exposure.stag;
        let gone = self.shared.exposures.lock().withdraw(stag);
        if let Some(gone) = gone {
            self.shared.say(Outgoing::frame(Frame::Withdraw { stag }));
            // An error is the end of the link, with all memory released.
            let _ = gone.await;
        }
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        let total: u64 = from.iter().map(|buf| buf.len() as u64).sum();
        if total > to.len {
            return Err(Error::new(ErrorKind::Invalid, "longer than its target"));
        }
        let target = self.shared.find(to, Access::Write)?;
        let (mut offset, mut steps) = (0, 0);
        for step in from.iter().flat_map(|buf| buf.chunks(STEP_BYTES)) {
            self.shared.step(|| target.write(offset, step))?;
            count_copy(CopySite::RetrieveInto, step.len());
            offset += step.len();
            steps += 1;
            if steps % STEPS_A_TURN == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn read(&self, from: RemoteRange, mut into: BufMut) -> Result<BufMut> {
        let len = usize::try_from(from.len).unwrap_or(usize::MAX);
        if len > into.room() {
            return Err(Error::new(ErrorKind::Invalid, "longer than its target"));
        }
        let source = self.shared.find(from, Access::Read)?;
        for (steps, offset) in (0..len).step_by(STEP_BYTES).enumerate() {
            if steps > 0 && steps % STEPS_A_TURN == 0 {
                yield_now().await;
            }
            let step = STEP_BYTES.min(len - offset);
            let target = &mut into.spare()[offset..offset + step];
            self.shared.step(|| source.read(offset, target))?;
            count_copy(CopySite::ReadFrom, step);
        }
        into.set_len(into.len() + len);
        Ok(into)
    }

    async fn fence(&self) -> Result<Placed> {
        // Every write has copied its bytes when it returns.
        match self.shared.ending.get() {
            None => Ok(Placed::proven()),
            Some(_) => Err(self.shared.closed()),
        }
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        let shared = &*self.shared;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too long a message"));
        }
        let mut since = None;
        while !shared.push(message)? {
            let since = *since.get_or_insert_with(Instant::now);
            let has_room = || {
                let mut sending = shared.sending.lock();
                let room = sending.producer.has_room_for(message.len());
                drop(sending);
                match room.map_err(|violation| shared.violated(violation))? {
                    true => Ok(Seen::Found),
                    false => Ok(Seen::Nothing),
                }
            };
            // The peer empties the ring at this moment, or it does not receive at all.
            if look_for(SHORTEST, since, has_room).await? {
                continue;
            }
            let room = shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if shared.waits_for_room(message.len())? {
                room.await;
            }
        }
        Ok(())
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        let shared = &*self.shared;
        let mut waited = None;
        loop {
            match shared.take(into, waited)? {
                Taken::Message { turn } => {
                    if turn {
                        yield_now().await;
                    }
                    return Ok(Some(()));
                }
                Taken::Finished => return Ok(None),
                Taken::Nothing => {}
            }
            let since = *waited.get_or_insert_with(Instant::now);
            let patience = shared.receiving.lock().spin.patience();
            if look_for(patience, since, || shared.look()).await? {
                continue;
            }
            if shared.sleeps()? {
                // A wake-up that came since is kept for us.
                shared.arrival.notified().await;
            }
        }
    }

    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        let found = self.shared.find(range, access).ok()?;
        // What may vanish fails a device's transfer, which is then to blame on the peer and not on the device.
        found.region().is_steady().then_some(found)
    }

    fn close(&self, reason: CloseReason) {
        self.shared.end(reason, false);
    }

    async fn closed(&self) -> CloseReason {
        let mut phase = self.shared.phase.subscribe();
        // The sender lives as long as we do.
        let _ = phase.wait_for(|phase| *phase == Phase::Released).await;
        let ending = self.shared.ending.get();
        ending.map_or(CloseReason::Lost, |ending| ending.reason.clone())
    }
}
