//! One link and the calls in flight on it.
//!
//! A call takes a slot, writes its request into the slot's buffer, and sleeps; one task receives and wakes the slot that the reply's
//! id names. Nothing is looked up and, once buffers have grown, nothing is allocated for a call.
//!
//! # Who may touch a call's memory, and until when
//! The bytes that a call uses are lent to its slot. A slot is free again when the last reply has come (the server is done with the
//! bytes by then), or when the link has ended ([`Link::closed`]: nothing can land any more). A call that was sent and is dropped or
//! timed out leaves its slot, loans included, to this file: if the server says nothing for [`GRACE`], the link is closed. Where the
//! runtime goes before that, [`Kept`] waits for the link's end. So memory comes back to its owner late rather than wrong.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use forebay_fabric::{CloseReason, Error as LinkError, ErrorKind as LinkErrorKind, Exposure, Link};
use forebay_proto::direct::{self, MESSAGE_BYTES_MAX};
use futures_util::future::{BoxFuture, poll_immediate};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};

use super::kept::Kept;
use super::region::{Loan, Withdraw};

/// How long the server may take to answer a call that nobody waits for, before its link is closed.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// How often deadlines are looked at while calls are in flight, and while none are.
const TICK: Duration = Duration::from_millis(50);
const TICK_IDLE: Duration = Duration::from_millis(500);
/// The most unread replies of one call.
const REPLIES_MAX: usize = 1024;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A link and its calls.
pub(crate) struct Lane<L: Link> {
    id: u64,
    link: Arc<L>,
    slots: Box<[Mutex<Slot>]>,
    free: Mutex<Vec<u32>>,
    room: Semaphore,
    ended: OnceLock<CloseReason>,
    runtime: tokio::runtime::Handle,
    grace: Duration,
}

/// Why a call on a lane came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The deadline has passed; the slot is looked after.
    TimedOut,
    /// The link has ended, for this reason. The server may have done what it was asked.
    Ended(CloseReason),
    /// Nothing was sent.
    NotSent(String),
}

#[derive(Default)]
struct Slot {
    /// Tells the uses of this slot apart.
    number: u32,
    state: State,
    waker: Option<Waker>,
    until: Option<Instant>,
    replies: VecDeque<Vec<u8>>,
    /// Buffers for requests and replies to come.
    spare: Vec<Vec<u8>>,
    loans: Vec<Loan>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Of no call.
    #[default]
    Free,
    /// Of a call that has sent nothing yet.
    Open,
    /// Its request is with the link, which takes it when `send` returns, or never; or the link has it ([`Pending::is_sent`]), and nobody has
    /// looked for a reply yet.
    Sending,
    /// Replies are to come.
    Waits,
    /// The last reply has come.
    Answered,
    /// As `Waits`, but its deadline has passed.
    Late,
    /// Replies are to come that nobody will read; since when.
    Abandoned(Instant),
}

/// One call's slot.
pub(crate) struct Pending<'a, L: Link> {
    lane: &'a Lane<L>,
    index: u32,
    number: u32,
    /// The request.
    message: Vec<u8>,
    /// The buffer of a reply that was read.
    read: Vec<u8>,
    /// Lent to it, and left to the slot when the request is sent.
    loans: Vec<Loan>,
    is_sent: bool,
}

impl<L: Link> Lane<L> {
    /// Takes a connected link; its replies are received by a task of the current runtime.
    pub(crate) fn start(link: L, in_flight_max: usize, grace: Duration) -> Arc<Lane<L>> {
        let count = in_flight_max.clamp(1, 1 << 16);
        let lane = Arc::new(Lane {
            id: NEXT_ID.fetch_add(1, Relaxed),
            link: Arc::new(link),
            slots: (0..count).map(|_| Mutex::default()).collect(),
            free: Mutex::new((0..count as u32).rev().collect()),
            room: Semaphore::new(count),
            ended: OnceLock::new(),
            runtime: tokio::runtime::Handle::current(),
            grace,
        });
        tokio::spawn(drive(lane.clone()));
        tokio::spawn(watch(Arc::downgrade(&lane)));
        lane
    }

    /// Names it for the life of the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<&CloseReason> {
        self.ended.get()
    }

    pub(crate) fn link(&self) -> &L {
        &self.link
    }

    /// Ends it; calls in flight fail once nothing can land any more.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.link.close(reason);
    }

    /// Keeps lent bytes that the server uses by a request of which the lane knows nothing, until nothing can land in them any more:
    /// until the link ends, which is closed for that after `patience`.
    pub(crate) fn give_up(self: Arc<Self>, loan: Loan, patience: Duration) {
        let runtime = self.runtime.clone();
        let kept = Kept::new(self.link.clone(), vec![loan]);
        runtime.spawn(async move {
            let ended = self.link.closed();
            if tokio::time::timeout(patience, ended).await.is_err() {
                let why = "no answer to a request with a token that was given up";
                self.close(CloseReason::Violation(why.to_owned()));
                self.link.closed().await;
            }
            kept.give_back();
        });
    }

    /// A slot for a call, as soon as there is one.
    pub(crate) async fn begin(&self, until: Instant) -> Result<Pending<'_, L>, Stopped> {
        if let Some(pending) = self.try_begin()? {
            return Ok(pending);
        }
        match tokio::time::timeout_at(until.into(), self.room.acquire()).await {
            Ok(Ok(permit)) => Ok(self.open(permit)),
            Ok(Err(_)) => Err(self.why()),
            Err(_) => Err(Stopped::TimedOut),
        }
    }

    /// A slot if there is one now. For calls that hold slots whose replies they have not read: those are free again only when they
    /// read on, so that waiting here they could wait for themselves, or in a circle.
    pub(crate) fn try_begin(&self) -> Result<Option<Pending<'_, L>>, Stopped> {
        match self.room.try_acquire() {
            Ok(permit) => Ok(Some(self.open(permit))),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(self.why()),
        }
    }

    fn open(&self, permit: SemaphorePermit<'_>) -> Pending<'_, L> {
        permit.forget();
        let index = self.free.lock().pop();
        // A permit stands for a free slot.
        let index = index.unwrap_or_else(|| unreachable!());
        let mut slot = self.slots[index as usize].lock();
        slot.state = State::Open;
        slot.number = slot.number.wrapping_add(1);
        Pending {
            lane: self,
            index,
            number: slot.number,
            message: slot.spare.pop().unwrap_or_default(),
            read: Vec::new(),
            // Empty, with room from before.
            loans: std::mem::take(&mut slot.loans),
            is_sent: false,
        }
    }

    fn why(&self) -> Stopped {
        Stopped::Ended(self.ended.get().cloned().unwrap_or(CloseReason::Lost))
    }

    fn release(&self, index: u32, slot: &mut Slot) {
        slot.state = State::Free;
        slot.until = None;
        slot.waker = None;
        slot.loans.clear();
        let read = slot.replies.drain(..);
        slot.spare.extend(read);
        slot.spare.truncate(2);
        self.free.lock().push(index);
        self.room.add_permits(1);
    }

    /// Hands a reply to the call that its id names. False when there is no such call: the server is confused, or worse.
    fn deliver(&self, message: &mut Vec<u8>) -> bool {
        let Ok(direct::Reply { id, last, .. }) = direct::parse_reply(message) else {
            return false;
        };
        let (number, index) = ((id >> 32) as u32, id as u32);
        let Some(slot) = self.slots.get(index as usize) else {
            return false;
        };
        let mut slot = slot.lock();
        if slot.number != number {
            return false;
        }
        match slot.state {
            // What is still being sent the link has taken: `send` is about to return.
            State::Sending | State::Waits | State::Late => {
                if slot.replies.len() >= REPLIES_MAX {
                    return false;
                }
                let fresh = slot.spare.pop().unwrap_or_default();
                slot.replies.push_back(std::mem::replace(message, fresh));
                slot.state = match slot.state {
                    _ if last => State::Answered,
                    State::Sending => State::Waits,
                    state => state,
                };
                let waker = slot.waker.take();
                drop(slot);
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            State::Abandoned(_) => {
                if last {
                    self.release(index, &mut slot);
                }
                true
            }
            State::Free | State::Open | State::Answered => false,
        }
    }

    /// The link has ended and nothing can land any more.
    fn finish(&self, reason: CloseReason) {
        // The first reason stays.
        let _ = self.ended.set(reason);
        self.room.close();
        for (index, slot) in self.slots.iter().enumerate() {
            let mut slot = slot.lock();
            match slot.state {
                State::Waits | State::Late => {
                    let waker = slot.waker.take();
                    drop(slot);
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                State::Abandoned(_) => self.release(index as u32, &mut slot),
                // Who sends hears of it from the link, or when looking for a reply.
                State::Free | State::Open | State::Sending | State::Answered => {}
            }
        }
    }

    /// Wakes calls whose deadline has passed; true when a call that nobody waits for has been silent for too long.
    fn look_at_deadlines(&self, now: Instant) -> bool {
        let mut silent = false;
        for slot in &self.slots {
            let mut slot = slot.lock();
            match slot.state {
                State::Waits if slot.until.is_some_and(|until| until <= now) => {
                    slot.state = State::Late;
                    let waker = slot.waker.take();
                    drop(slot);
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                State::Abandoned(since) => silent |= now - since >= self.grace,
                _ => {}
            }
        }
        silent
    }
}

async fn drive<L: Link>(lane: Arc<Lane<L>>) {
    let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
    let reason = loop {
        match lane.link.recv(&mut message).await {
            Ok(Some(())) => {
                if !lane.deliver(&mut message) {
                    break CloseReason::Violation("a reply to nothing that was asked".to_owned());
                }
            }
            Ok(None) => break CloseReason::Done,
            Err(error) => break CloseReason::Terminated(error.message),
        }
    };
    lane.link.close(reason.clone());
    let told = lane.link.closed().await;
    let reason = match reason {
        CloseReason::Done | CloseReason::Terminated(_) => told,
        reason => reason,
    };
    lane.finish(reason);
}

async fn watch<L: Link>(lane: Weak<Lane<L>>) {
    let mut tick = TICK;
    loop {
        tokio::time::sleep(tick).await;
        let Some(lane) = lane.upgrade().filter(|lane| lane.ended.get().is_none()) else {
            return;
        };
        if lane.look_at_deadlines(Instant::now()) {
            lane.link.close(CloseReason::Violation(
                "no answer to a call that was given up".to_owned(),
            ));
        }
        tick = match lane.room.available_permits() == lane.slots.len() {
            true => TICK_IDLE,
            false => TICK,
        };
    }
}

/// What comes of `work`, unless it is not there by then. Most is at once, and needs no timer.
pub(crate) async fn in_time<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Some(done) = poll_immediate(work.as_mut()).await {
        return Some(done);
    }
    tokio::time::timeout_at(until.into(), work).await.ok()
}

impl<L: Link> Pending<'_, L> {
    fn slot(&self) -> parking_lot::MutexGuard<'_, Slot> {
        self.lane.slots[self.index as usize].lock()
    }

    /// Leaves lent bytes to the call: to its slot, once the server may use them.
    pub(crate) fn keep(&mut self, loan: Loan) {
        match self.is_sent {
            false => self.loans.push(loan),
            true => self.slot().loans.push(loan),
        }
    }

    /// Has the request written by `write`, to which its id and a buffer are given.
    pub(crate) fn write<E>(
        &mut self,
        write: impl FnOnce(u64, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let id = u64::from(self.number) << 32 | u64::from(self.index);
        write(id, &mut self.message)
    }

    /// Sends the request, which may take until `until`, as may its replies.
    pub(crate) async fn send(&mut self, until: Instant) -> Result<(), Stopped> {
        let loans = std::mem::take(&mut self.loans);
        {
            let mut slot = self.slot();
            slot.state = State::Sending;
            slot.until = Some(until);
            slot.loans = loans;
        }
        let sent = in_time(until, self.lane.link.send(&self.message)).await;
        if let Some(Ok(())) = sent {
            self.is_sent = true;
            return Ok(());
        }
        {
            let mut slot = self.slot();
            // Unless there was a reply all the same.
            if slot.state == State::Sending {
                slot.state = State::Open;
            }
        }
        match sent {
            Some(Err(refused)) => Err(self.lane.refused(refused, until).await),
            _ => Err(Stopped::TimedOut),
        }
    }

    /// The next reply.
    pub(crate) async fn reply(&mut self) -> Result<Vec<u8>, Stopped> {
        poll_fn(|context| {
            let mut slot = self.slot();
            if let Some(reply) = slot.replies.pop_front() {
                return Poll::Ready(Ok(reply));
            }
            match slot.state {
                State::Late => return Poll::Ready(Err(Stopped::TimedOut)),
                State::Sending if self.is_sent => slot.state = State::Waits,
                State::Waits => {}
                _ => {
                    return Poll::Ready(Err(Stopped::NotSent("nothing more comes".to_owned())));
                }
            }
            // `finish` sets this before it looks at the slots, each under its lock.
            if self.lane.ended.get().is_some() {
                return Poll::Ready(Err(self.lane.why()));
            }
            match &slot.waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                _ => slot.waker = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    /// Gives a reply's buffer back to be used again.
    pub(crate) fn recycle(&mut self, reply: Vec<u8>) {
        let before = std::mem::replace(&mut self.read, reply);
        if before.capacity() > 0 {
            self.slot().spare.push(before);
        }
    }
}

impl<L: Link> Lane<L> {
    /// What it means that the link did not take a message.
    async fn refused(&self, error: LinkError, until: Instant) -> Stopped {
        match error.kind {
            LinkErrorKind::Closed | LinkErrorKind::Io => {
                let lost = in_time(until, self.lost()).await;
                lost.unwrap_or(Stopped::TimedOut)
            }
            _ => Stopped::NotSent(error.message),
        }
    }

    /// Waits until nothing can land any more, and says why.
    async fn lost(&self) -> Stopped {
        let told = self.link.closed().await;
        Stopped::Ended(self.ended.get().cloned().unwrap_or(told))
    }
}

impl<L: Link> Drop for Pending<'_, L> {
    fn drop(&mut self) {
        let message = std::mem::take(&mut self.message);
        let read = std::mem::take(&mut self.read);
        let mut slot = self.slot();
        slot.spare.extend(
            [message, read]
                .into_iter()
                .filter(|buffer| buffer.capacity() > 0),
        );
        let ended = self.lane.ended.get().is_some();
        let waits = match slot.state {
            State::Waits | State::Late => true,
            State::Sending => self.is_sent,
            _ => false,
        };
        if waits && !ended {
            slot.state = State::Abandoned(Instant::now());
            slot.waker = None;
        } else {
            self.lane.release(self.index, &mut slot);
        }
    }
}

impl<L: Link> Drop for Lane<L> {
    /// Only where the runtime is gone do calls that nobody waits for have bytes still.
    fn drop(&mut self) {
        let slots = self.slots.iter_mut();
        let loans = slots.flat_map(|slot| std::mem::take(&mut slot.get_mut().loans));
        drop(Kept::new(self.link.clone(), loans.collect()));
    }
}

impl<L: Link> Withdraw for Lane<L> {
    fn withdraw(self: Arc<Self>, exposure: Exposure) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.link.withdraw(exposure).await })
    }

    fn withdraw_later(self: Arc<Self>, exposure: Exposure) {
        let runtime = self.runtime.clone();
        runtime.spawn(self.withdraw(exposure));
    }
}

impl<L: Link> std::fmt::Debug for Pending<'_, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({})", self.index)
    }
}

impl<L: Link> std::fmt::Debug for Lane<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
