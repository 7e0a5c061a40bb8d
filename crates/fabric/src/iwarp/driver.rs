//! The task of one link.
//!
//! A peer that goes on as soon as it has heard from us finds it looking at the socket; it sleeps when that was in vain.

use std::collections::VecDeque;
use std::future::Future;
use std::hint::spin_loop;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_io::Watch;
use forebay_proto::iwarp::Fault;
use tokio::io::Interest;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::gone::Gone;
use super::inbox::Room;
use super::link::{Ended, Io, SESSION_ENDED, Shared};
use super::orders::Order;
use super::receiver::{End, Receiver, is_passing};
use super::stall::Stall;
use crate::{CloseReason, ErrorKind};

/// Calls to the socket before other tasks get a turn.
const ROUNDS_MAX: usize = 16;
/// Looks at the socket in a row before other tasks get a turn; some microseconds.
const LOOKS: usize = 8;
/// How long the end of a connection may take: what the peer still sends must be read, or it would not see what it was sent.
const DRAIN: Duration = Duration::from_secs(1);

/// Moves what is ordered and what arrives, until the link ends.
pub(super) struct Driver {
    shared: Arc<Shared>,
    receiver: Receiver,
    taken: VecDeque<Order>,
    /// It went to sleep and can be woken by an order.
    asleep: bool,
    watch: Watch,
    gone: Gone,
    stall: Stall,
}

enum Round {
    /// There may be more to do.
    Again,
    /// Nothing can move until something happens, which may be soon.
    Look,
    /// Nothing can move until something happens.
    Sleep,
    /// The link has ended.
    Over,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, receiver: Receiver, stall: Duration) -> Driver {
        Driver {
            shared,
            receiver,
            taken: VecDeque::new(),
            asleep: false,
            watch: Watch::default(),
            gone: Gone::default(),
            stall: Stall::new(stall),
        }
    }

    /// Runs until the link has ended and its connection is closed.
    pub(super) async fn run(mut self) {
        (&mut self).await;
        // Who waits for an answer, or for its buffer, does not wait for the peer's part of the end.
        self.receiver.forget_reads();
        let shared = &self.shared;
        // Late data is of no use, so neither is what goes wrong here.
        let parting = async { tokio::join!(discard(shared), say_good_bye(shared)) };
        let _ = timeout(DRAIN, parting).await;
        if shared.io.lock().unsaid {
            // Nobody takes it, and the peer is to see an end.
            let _ = shared.wire.abort();
        }
        shared.wire.close();
    }

    fn round(&mut self, cx: &mut Context<'_>) -> Round {
        let Driver {
            shared,
            receiver,
            taken,
            watch,
            gone,
            stall,
            ..
        } = self;
        let mut io = shared.io.lock();
        if !io.open {
            return Round::Over;
        }
        // With `io` locked: a close sends what was ordered before it, wherever it is.
        std::mem::swap(taken, &mut shared.orders.lock().waiting);
        io.sender.take(taken);
        let stepped = match step(shared, receiver, watch, gone, &mut io, cx) {
            Ok(false) => look(shared, receiver, watch, &mut io),
            Ok(true) => Ok(Round::Again),
            Err(end) => Err(end),
        };
        match stepped {
            // However busy the peer keeps us: what it says is no answer.
            Ok(_) if stall.poll(cx, io.sender.moved(receiver.received())) => {
                finish(shared, receiver, &mut io, End::Stalled);
                Round::Over
            }
            Ok(round) => round,
            Err(end) => {
                finish(shared, receiver, &mut io, end);
                Round::Over
            }
        }
    }
}

impl Future for &mut Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut **self;
        if this.asleep {
            this.asleep = false;
            if this.shared.orders.lock().sleeper.take().is_none() {
                // Woken by an order: whoever is about to run may order more, and all of it leaves in one call.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        for _ in 0..ROUNDS_MAX {
            match this.round(cx) {
                Round::Again => {}
                Round::Over => return Poll::Ready(()),
                Round::Look => {
                    // Orders are seen without a waker: this task runs again at once.
                    let _ = pin!(yield_now()).poll(cx);
                    return Poll::Pending;
                }
                Round::Sleep => {
                    let mut orders = this.shared.orders.lock();
                    if orders.waiting.is_empty() && !std::mem::take(&mut orders.left) {
                        orders.sleeper = Some(cx.waker().clone());
                        this.asleep = true;
                        return Poll::Pending;
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    /// A runtime that stops drops its tasks.
    fn drop(&mut self) {
        let mut io = self.shared.io.lock();
        let lost = Ended::here(ErrorKind::Closed, CloseReason::Lost);
        self.shared.end(&mut io, lost, false);
    }
}

/// Receives what is of no use any more, until nothing follows.
async fn discard(shared: &Shared) {
    let mut ignored = [0; 4096];
    while shared.wire.tcp().readable().await.is_ok() {
        // Or the end of the time would not be seen while the peer sends.
        tokio::task::consume_budget().await;
        let discard = || shared.wire.discard(&mut ignored);
        match shared.wire.tcp().try_io(Interest::READABLE, discard) {
            Ok(0) => return,
            Err(error) if !is_passing(&error) => return,
            _ => {}
        }
    }
}

/// Says that all was said, when there was no room for that: what was sent before it would else be taken for a part.
async fn say_good_bye(shared: &Shared) {
    loop {
        let unsaid = shared.io.lock().unsaid;
        if !unsaid || shared.wire.tcp().writable().await.is_err() {
            return;
        }
        let _ = shared.wire.tcp().try_io(Interest::WRITABLE, || {
            let mut io = shared.io.lock();
            io.finish(&shared.wire);
            // It is cleared when there was no room, and only the next look at it asks to be woken.
            match io.unsaid {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
    }
}

/// Sends and receives, one call each; says whether there may be more to do at once.
fn step(
    shared: &Arc<Shared>,
    receiver: &mut Receiver,
    watch: &mut Watch,
    gone: &mut Gone,
    io: &mut Io,
    cx: &mut Context<'_>,
) -> Result<bool, End> {
    match send(shared, receiver, io, cx) {
        Ok(sent) => Ok(receive(shared, receiver, watch, gone, io, cx)? | sent),
        Err(error) => {
            // What the peer said before it went may still be there.
            while receive(shared, receiver, watch, gone, io, cx)? {}
            Err(End::Lost(error))
        }
    }
}

fn send(
    shared: &Shared,
    receiver: &mut Receiver,
    io: &mut Io,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    let ready = io.sender.prepare(&mut io.regions)?;
    // What was copied to be sent is free, however long the socket takes nothing.
    io.sent(shared);
    for (sink, read) in io.sender.outcome.issued.drain(..) {
        receiver.expect(sink, read);
    }
    for _ in 0..std::mem::take(&mut io.sender.outcome.answered) {
        receiver.answered();
    }
    if !ready && !shared.wire.is_behind() {
        return Ok(false);
    }
    let Poll::Ready(writable) = shared.wire.tcp().poll_write_ready(cx) else {
        return Ok(false);
    };
    writable?;
    let sent = shared.wire.tcp().try_io(Interest::WRITABLE, || {
        let whole = io.sender.flush(&shared.wire, &mut io.regions)?;
        // Less than asked for: the socket is full, and says when it is not.
        whole.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    });
    io.sent(shared);
    match sent {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        // When it was full: only the next look at it asks to be woken.
        _ => Ok(true),
    }
}

fn receive(
    shared: &Arc<Shared>,
    receiver: &mut Receiver,
    watch: &mut Watch,
    gone: &mut Gone,
    io: &mut Io,
    cx: &mut Context<'_>,
) -> Result<bool, End> {
    // What is left of a peer that has gone is no more than the system holds, and its end comes behind that.
    if is_full(shared, io)? && !gone.poll(cx, shared) {
        return Ok(false);
    }
    match shared.wire.tcp().poll_read_ready(cx) {
        Poll::Pending => return Ok(false),
        Poll::Ready(readable) => readable.map_err(End::Lost)?,
    }
    // Readiness is cleared by an error, and only the next look at it asks to be woken.
    let mut outcome = Ok(true);
    let _ = shared.wire.tcp().try_io(Interest::READABLE, || {
        match receiver.receive(&shared.wire, &mut io.regions) {
            Ok(Ok(whole)) => {
                watch.came();
                whole.ok_or_else(|| io::ErrorKind::WouldBlock.into())
            }
            Ok(Err(error)) => Err(error),
            Err(end) => {
                outcome = Err(end);
                Ok(())
            }
        }
    });
    pass_on(shared, receiver, io);
    outcome
}

/// There is nothing to do: looks whether the peer goes on, while that is worth it.
fn look(
    shared: &Shared,
    receiver: &mut Receiver,
    watch: &mut Watch,
    io: &mut Io,
) -> Result<Round, End> {
    // Where payload is long, a wake-up costs little beside it.
    let long = io.sender.is_long() || receiver.is_long();
    let behind = io.sender.is_behind() || shared.wire.is_behind();
    if long || behind || io.sender.owes() || is_full(shared, io)? || !watch.looks_on() {
        return Ok(Round::Sleep);
    }
    for _ in 0..LOOKS {
        let received = receiver.receive(&shared.wire, &mut io.regions);
        if let Ok(Err(_)) = received {
            spin_loop();
            continue;
        }
        watch.came();
        pass_on(shared, receiver, io);
        return received.map(|_| Round::Again);
    }
    Ok(Round::Look)
}

/// Whether messages wait that nobody takes, and nothing else is to be received.
fn is_full(shared: &Shared, io: &Io) -> Result<bool, End> {
    match shared.inbox.lock().room(io.sender.awaits_answers()) {
        Room::Some => Ok(false),
        Room::None => Ok(true),
        Room::Exceeded => Err(End::Fault(Fault::Stream)),
    }
}

/// Passes on what was received.
fn pass_on(shared: &Shared, receiver: &mut Receiver, io: &mut Io) {
    if receiver.heard() {
        io.sender.release();
    }
    let outcome = &mut receiver.outcome;
    for request in outcome.requests.drain(..) {
        io.sender.answer(request);
    }
    for _ in 0..std::mem::take(&mut outcome.reads_done) {
        io.sender.read_done();
    }
    if std::mem::take(&mut outcome.released) {
        shared.released.notify_waiters();
    }
    if outcome.messages.is_empty() {
        return;
    }
    io.sender.told(outcome.messages.len());
    let mut inbox = shared.inbox.lock();
    inbox.put(outcome.messages.drain(..));
    receiver.spare.keep_all(&mut inbox.spent);
    let waker = inbox.receiver.take();
    drop(inbox);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Ends the link for what was received.
fn finish(shared: &Shared, receiver: &Receiver, io: &mut Io, end: End) {
    let lost = |reason| Ended::here(ErrorKind::Closed, reason);
    let (ended, whole) = match end {
        End::Fault(fault) => {
            let (segment, ulpdu_bytes) = receiver.offending();
            let told = io
                .sender
                .terminate(fault, segment, ulpdu_bytes, &shared.wire);
            let kind = if fault == Fault::Crc {
                ErrorKind::Corrupt
            } else {
                ErrorKind::Closed
            };
            let reason = CloseReason::Violation(fault.to_string());
            (Ended::here(kind, reason), told)
        }
        End::Finished => (Ended::there(CloseReason::Done), true),
        End::Terminated(Some(said)) if said.code == SESSION_ENDED.code() => {
            (Ended::there(CloseReason::SessionEnded), true)
        }
        End::Terminated(said) => {
            let said = said.map_or_else(String::new, |said| said.to_string());
            (Ended::there(CloseReason::Terminated(said)), true)
        }
        End::Stalled => {
            tracing::info!("an iWARP peer does not go on");
            (lost(CloseReason::Stalled), false)
        }
        End::Lost(error) => {
            tracing::debug!(%error, "an iWARP connection broke");
            (lost(CloseReason::Lost), false)
        }
    };
    shared.end(io, ended, whole);
}
