//! The link: what calls do, and how it ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::iwarp::Fault;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::timeout;

use super::OUTSTANDING_BYTES_MAX;
use super::backlog::{Counted, Share};
use super::driver::Driver;
use super::inbox::Inbox;
use super::orders::{Order, Orders, ReadOrder};
use super::receiver::Receiver;
use super::regions::Regions;
use super::sender::Sender;
use super::wire::Wire;
use crate::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, MESSAGE_BYTES_MAX, Placed,
    RemoteRange, Result, Stag,
};

/// How long a peer may take to receive an answer, or send the rest of a segment, that holds memory somebody withdraws.
const WITHDRAW: Duration = Duration::from_secs(5);
/// Messages that calls have ordered and the system has not taken; more wait. About [`ENOUGH`] of the longest.
const TALK_BYTES_MAX: usize = 128 << 10;
/// Room that every order takes besides its payload.
const ORDER_BYTES: usize = 64;

/// Orders that are worth a call of their own: kept back for more of them, they would keep the peer waiting, which then has nothing to
/// do, and nothing for us.
const ENOUGH: usize = 8;

/// How a peer is told that its session has ended.
pub(super) const SESSION_ENDED: Fault = Fault::Unspecified;

/// A link by iWARP. It ends when it is dropped.
#[derive(Debug)]
pub struct IwarpLink {
    shared: Arc<Shared>,
}

/// What calls and the link's task share. Locks are taken in this order: `io`, then one of `orders` and `inbox`.
pub(super) struct Shared {
    /// Locked during everything that touches the socket or registered memory.
    pub(super) io: Mutex<Io>,
    pub(super) orders: Mutex<Orders>,
    pub(super) inbox: Mutex<Inbox>,
    /// Bytes of writes that may still be ordered.
    room: Semaphore,
    /// Bytes of messages that may still be ordered. Not of the same room: a task that works on several writes and waits for a message
    /// to be taken does not attend to those of its writes that were given room meanwhile, which then is never free again.
    talk: Semaphore,
    /// Pinned memory was let go.
    pub(super) released: Notify,
    over: Notify,
    end: OnceLock<Ended>,
    pub(super) wire: Wire,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) kind: ErrorKind,
    pub(super) reason: CloseReason,
    /// The peer ended it, and so places nothing more.
    pub(super) by_peer: bool,
}

impl Ended {
    /// By this end, or by whatever is between the two.
    pub(super) fn here(kind: ErrorKind, reason: CloseReason) -> Ended {
        Ended {
            kind,
            reason,
            by_peer: false,
        }
    }

    /// By the peer, which said so.
    pub(super) fn there(reason: CloseReason) -> Ended {
        Ended {
            kind: ErrorKind::Closed,
            reason,
            by_peer: true,
        }
    }
}

/// What moves bytes.
pub(super) struct Io {
    pub(super) open: bool,
    pub(super) sender: Sender,
    pub(super) regions: Regions,
    /// Empty; its memory is for orders that are not left to the task.
    early: VecDeque<Order>,
    /// The link has ended, and TLS' good-bye found no room.
    pub(super) unsaid: bool,
}

impl Io {
    /// Sends what the socket takes now; whether that is all.
    fn flush(&mut self, wire: &Wire) -> bool {
        loop {
            match self.sender.prepare(&mut self.regions) {
                Ok(true) => {}
                Ok(false) => return !wire.is_behind(),
                Err(_) => return false,
            }
            if !matches!(self.sender.flush(wire, &mut self.regions), Ok(Some(()))) {
                return false;
            }
        }
    }

    /// Says that nothing more will be sent, or that it is still to be said.
    pub(super) fn finish(&mut self, wire: &Wire) {
        // A connection that is gone cannot be ended.
        let said = wire.finish();
        self.unsaid = said.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    }

    /// Passes on what sending led to.
    pub(super) fn sent(&mut self, shared: &Shared) {
        let outcome = &mut self.sender.outcome;
        if std::mem::take(&mut outcome.released) {
            shared.released.notify_waiters();
        }
        if outcome.room > 0 {
            shared.room.add_permits(std::mem::take(&mut outcome.room));
        }
        if outcome.talk > 0 {
            shared.talk.add_permits(std::mem::take(&mut outcome.talk));
        }
        if !outcome.spent.is_empty() {
            shared.orders.lock().spent.keep_all(&mut outcome.spent);
        }
    }
}

impl Shared {
    /// Ends the link, if it has not ended: nothing moves any more. `whole`: all that the peer is to know was sent; else its
    /// connection breaks.
    pub(super) fn end(&self, io: &mut Io, ended: Ended, whole: bool) {
        if !io.open {
            return;
        }
        io.open = false;
        // First, so that whoever finds no room, no order taken or no message finds out why.
        let _ = self.end.set(ended);
        io.regions.clear();
        io.sender.clear();
        if whole {
            io.finish(&self.wire);
        } else {
            // A connection that is gone cannot be ended.
            let _ = self.wire.abort();
        }
        self.room.close();
        self.talk.close();
        let mut orders = self.orders.lock();
        orders.waiting.clear();
        let sleeper = orders.sleeper.take();
        drop(orders);
        let receiver = self.inbox.lock().receiver.take();
        for waker in [sleeper, receiver].into_iter().flatten() {
            waker.wake();
        }
        self.released.notify_waiters();
        self.over.notify_waiters();
    }

    fn closed(&self) -> Error {
        match self.end.get() {
            Some(ended) => Error::new(ended.kind, ended.reason.to_string()),
            None => Error::new(ErrorKind::Closed, CloseReason::Lost.to_string()),
        }
    }

    /// Takes room for a write with this much payload, waiting for it.
    async fn room(&self, bytes: usize) -> Result<u32> {
        self.of(&self.room, bytes, OUTSTANDING_BYTES_MAX).await
    }

    /// The same for a message.
    async fn talk(&self, bytes: usize) -> Result<u32> {
        self.of(&self.talk, bytes, TALK_BYTES_MAX).await
    }

    async fn of(&self, room: &Semaphore, bytes: usize, most: usize) -> Result<u32> {
        let taken = (bytes + ORDER_BYTES).min(most) as u32;
        let permit = room.acquire_many(taken).await;
        permit.map_err(|_| self.closed())?.forget();
        Ok(taken)
    }

    fn order(&self, order: Order) -> Result<()> {
        let mut orders = self.orders.lock();
        if self.end.get().is_some() {
            return Err(self.closed());
        }
        orders.waiting.push_back(order);
        wake(orders);
        Ok(())
    }

    /// Sends what is ordered now, by one call, unless the link's task is about to. What is left is the task's.
    fn hurry(&self) {
        let Some(mut io) = self.io.try_lock() else {
            return;
        };
        if !io.open {
            return;
        }
        let Io {
            sender,
            regions,
            early,
            ..
        } = &mut *io;
        std::mem::swap(early, &mut self.orders.lock().waiting);
        sender.take(early);
        let sent = match sender.prepare(regions) {
            Ok(true) => sender.flush(&self.wire, regions),
            Ok(false) => Ok(Some(())),
            Err(error) => Err(error),
        };
        io.sent(self);
        match sent {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                tracing::debug!(%error, "an iWARP connection broke");
                let lost = Ended::here(ErrorKind::Closed, CloseReason::Lost);
                self.end(&mut io, lost, false);
            }
            Ok(Some(())) if !io.sender.is_behind() => {}
            _ => {
                drop(io);
                let mut orders = self.orders.lock();
                // It may be about to sleep, having seen that nothing waits.
                orders.left = true;
                wake(orders);
            }
        }
    }

    async fn read(&self, from: RemoteRange, into: Option<BufMut>) -> Result<Option<BufMut>> {
        let (answer, answered) = oneshot::channel();
        let answer = Some(answer);
        self.order(Order::Read(ReadOrder { from, into, answer }))?;
        answered.await.map_err(|_| self.closed())
    }
}

/// Wakes the link's task, if it sleeps. Not under the lock: the task would wait for it.
fn wake(mut orders: parking_lot::MutexGuard<'_, Orders>) {
    let sleeper = orders.sleeper.take();
    drop(orders);
    if let Some(waker) = sleeper {
        waker.wake();
    }
}

impl IwarpLink {
    pub(super) fn start(
        wire: Wire,
        sender: Sender,
        receiver: Receiver,
        stall: Duration,
        share: Option<Arc<Share>>,
    ) -> IwarpLink {
        let shared = Arc::new(Shared {
            io: Mutex::new(Io {
                open: true,
                sender,
                regions: Regions::default(),
                early: VecDeque::new(),
                unsaid: false,
            }),
            orders: Mutex::default(),
            inbox: Mutex::new(Inbox::of(Counted::of(share))),
            room: Semaphore::new(OUTSTANDING_BYTES_MAX),
            talk: Semaphore::new(TALK_BYTES_MAX),
            released: Notify::new(),
            over: Notify::new(),
            end: OnceLock::new(),
            wire,
        });
        tokio::spawn(Driver::new(shared.clone(), receiver, stall).run());
        IwarpLink { shared }
    }
}

impl IwarpLink {
    /// Answers the peer that asked for the link, which until then knows nothing of it.
    pub(super) fn answer(&self, reply: &[u8]) -> Result<()> {
        let mut io = self.shared.io.lock();
        if !io.open {
            return Err(self.shared.closed());
        }
        io.sender.welcomed();
        if self.shared.wire.say(reply) {
            return Ok(());
        }
        let lost = Ended::here(ErrorKind::Closed, CloseReason::Lost);
        self.shared.end(&mut io, lost, false);
        Err(self.shared.closed())
    }
}

impl Drop for IwarpLink {
    fn drop(&mut self) {
        self.close(CloseReason::Done);
    }
}

impl Link for IwarpLink {
    fn fabric(&self) -> Fabric {
        Fabric::Iwarp
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        if access.writes() && !memory.region().is_writable() {
            return Err(invalid("the memory may not be written"));
        }
        let len = memory.len() as u64;
        let mut io = self.shared.io.lock();
        if !io.open {
            return Err(self.shared.closed());
        }
        match io.regions.expose(memory, access) {
            Some(stag) => Ok(Exposure { stag, base: 0, len }),
            None => Err(Error::new(
                ErrorKind::Busy,
                "the link has as many regions as it may",
            )),
        }
    }

    async fn withdraw(&self, exposure: Exposure) {
        let Stag(stag) = exposure.stag;
        let let_go = async {
            loop {
                let released = self.shared.released.notified();
                tokio::pin!(released);
                released.as_mut().enable();
                if self.shared.io.lock().regions.withdraw(stag) {
                    return;
                }
                released.await;
            }
        };
        if timeout(WITHDRAW, let_go).await.is_err() {
            self.close(CloseReason::Lost);
        }
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        let bytes: usize = from.iter().map(|part| part.len()).sum();
        if bytes as u64 > to.len || to.offset.checked_add(to.len).is_none() {
            return Err(invalid("more bytes than the range has"));
        }
        if bytes == 0 {
            return Ok(());
        }
        let room = self.shared.room(bytes).await?;
        self.shared.order(Order::Write { to, from, room })
    }

    async fn read(&self, from: RemoteRange, into: BufMut) -> Result<BufMut> {
        if from.len > into.room() as u64 || from.offset.checked_add(from.len).is_none() {
            return Err(invalid("more bytes than the buffer has room for"));
        }
        if from.len == 0 {
            return Ok(into);
        }
        let read = self.shared.read(from, Some(into)).await?;
        read.ok_or_else(|| self.shared.closed())
    }

    async fn fence(&self) -> Result<Placed> {
        let nothing = RemoteRange {
            stag: Stag(0),
            offset: 0,
            len: 0,
        };
        self.shared.read(nothing, None).await?;
        Ok(Placed::proven())
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(invalid("a message too long"));
        }
        let room = self.shared.talk(message.len()).await?;
        let mut orders = self.shared.orders.lock();
        if self.shared.end.get().is_some() {
            return Err(self.shared.closed());
        }
        let mut copy = orders.spent.take();
        copy.clear();
        copy.extend_from_slice(message);
        orders.waiting.push_back(Order::Send {
            message: copy,
            room,
        });
        let enough = orders.waiting.len() >= ENOUGH;
        wake(orders);
        if enough {
            self.shared.hurry();
        }
        Ok(())
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        poll_fn(|cx| {
            let mut inbox = self.shared.inbox.lock();
            if let Some((message, resume)) = inbox.take() {
                inbox.spent.keep(std::mem::replace(into, message));
                drop(inbox);
                if resume {
                    let mut orders = self.shared.orders.lock();
                    // The driver may have seen a full inbox, and not be asleep yet.
                    orders.left = true;
                    wake(orders);
                }
                return Poll::Ready(Ok(Some(())));
            }
            match self.shared.end.get() {
                Some(ended) if ended.reason == CloseReason::Done => Poll::Ready(Ok(None)),
                Some(_) => Poll::Ready(Err(self.shared.closed())),
                None => {
                    inbox.receiver = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn mapped(&self, _range: RemoteRange, _access: Access) -> Option<RegionSlice> {
        None
    }

    fn has_ended(&self) -> bool {
        self.shared.end.get().is_some()
    }

    fn close(&self, reason: CloseReason) {
        let mut io = self.shared.io.lock();
        if !io.open {
            return;
        }
        let wire = &self.shared.wire;
        let whole = match reason {
            CloseReason::Done => {
                // What was handed over is sent as far as the socket takes it now.
                let mut orders = std::mem::take(&mut self.shared.orders.lock().waiting);
                io.sender.take(&mut orders);
                io.flush(wire)
            }
            CloseReason::SessionEnded => io.sender.terminate(SESSION_ENDED, &[], 0, wire),
            CloseReason::Violation(_) => io.sender.terminate(Fault::Stream, &[], 0, wire),
            CloseReason::Terminated(_) => true,
            CloseReason::Lost | CloseReason::Stalled => false,
        };
        let ended = Ended::here(ErrorKind::Closed, reason);
        self.shared.end(&mut io, ended, whole);
    }

    fn is_settled(&self) -> bool {
        self.shared.end.get().is_some_and(|ended| ended.by_peer)
    }

    async fn closed(&self) -> CloseReason {
        loop {
            let over = self.shared.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if let Some(ended) = self.shared.end.get() {
                return ended.reason.clone();
            }
            over.await;
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("end", &self.end.get())
            .finish_non_exhaustive()
    }
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

#[cfg(test)]
mod tests {
    use forebay_mem::Region;
    use forebay_proto::iwarp::Limits;
    use forebay_proto::iwarp::rdmap::ReadRequest;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::stream::Stream;
    use super::*;

    /// With CRCs, what the peer reads is copied before it is sent.
    #[tokio::test]
    async fn memory_that_was_copied_waits_for_no_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, peer) = tokio::join!(stream, listener.accept());
        let (stream, _peer) = (stream.unwrap(), peer.unwrap());
        stream.writable().await.unwrap();
        while stream.try_write(&[0; 1 << 16]).is_ok() {}
        let sender = Sender::new(true, 1 << 15, 1, false);
        let limits = Limits {
            message_bytes: 0,
            ird: 1,
            rtr: None,
        };
        let receiver = Receiver::new(limits, true);
        let hour = Duration::from_secs(3600);
        let wire = Stream::from(stream).into();
        let link = IwarpLink::start(wire, sender, receiver, hour, None);
        let memory = Region::anonymous(4096).unwrap().slice(0..4096).unwrap();
        let exposure = link.expose(memory, Access::Read).await.unwrap();
        let Stag(source_stag) = exposure.stag;
        {
            let mut io = link.shared.io.lock();
            io.regions.pin(source_stag);
            io.sender.answer(ReadRequest {
                sink_stag: 1,
                sink_offset: 0,
                bytes: 4096,
                source_stag,
                source_offset: 0,
            });
        }
        tokio::time::pause();
        link.withdraw(exposure).await;
        assert!(!link.has_ended());
    }
}
