//! The loop of one queue: takes what arrived in one call, starts its commands together, and sends what came of them in one call.
//!
//! A host that asks on as soon as it is answered finds it looking at the socket; it sleeps when that was in vain.

mod commands;

use std::future::{Future, poll_fn};
use std::hint::spin_loop;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_io::{Slots, Watch};
use forebay_proto::nvme_tcp::{FatalErrorStatus, Fault};
use forebay_store::Store;
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};

use super::association::{Association, Ending, Orders};
use super::end::End;
use super::receiver::Next;
use super::stall::{Debt, Stall};
use super::transfers::PLACES_MAX;
use super::wire::Wire;
use super::work::{Begin, Outcome, Work};
use crate::target::Fuser;

/// Calls to the socket before other tasks get a turn.
const ROUNDS_MAX: usize = 16;
/// Looks at the socket in a row before other tasks get a turn; some microseconds.
const LOOKS: usize = 8;
/// So much is sent without waiting for the rest of what came together: the host goes on with it meanwhile.
const SEND_EARLY_BYTES: usize = 64 << 10;
/// How long commands in progress may take when the queue is to end.
const FINISH: Duration = Duration::from_secs(2);

/// What a queue was connected as.
pub(super) struct Connected {
    pub(super) qid: u16,
    /// Entries of the submission queue.
    pub(super) entries: u32,
    pub(super) flow_control: bool,
    /// Where the submission queue's head stands.
    pub(super) head: u16,
}

/// One queue.
pub(super) struct Driver<'a, S: Store, F, N> {
    wire: &'a Wire,
    association: &'a Association<S>,
    orders: &'a Orders,
    queue: Connected,
    slots: Slots<F>,
    begin: N,
    fuser: Fuser<Begin>,
    /// Places of first halves, and those where they run with their second halves.
    fused: Vec<(usize, usize)>,
    /// Identifiers of the commands in progress, by place.
    cids: Vec<Option<u16>>,
    /// And their namespaces: apart, since every command is looked for among the identifiers.
    nsids: Vec<u32>,
    /// Commands that wait for events.
    held: Vec<u16>,
    outcomes: Vec<(usize, Outcome)>,
    /// Places of commands that were given up, and who is told when they are completed.
    aborting: Vec<(usize, oneshot::Sender<bool>)>,
    now_ms: fn() -> u64,
    stall: Stall,
    ending: Option<Instant>,
    waits_for_host: bool,
    watch: Watch,
    sleep: Pin<Box<Sleep>>,
}

/// What came of looking at the socket.
enum Looked {
    Found,
    Again,
    Sleep,
}

impl<'a, S: Store, F: Future<Output = Outcome>, N: Fn(Work) -> F> Driver<'a, S, F, N> {
    pub(super) fn new(
        wire: &'a Wire,
        association: &'a Association<S>,
        orders: &'a Orders,
        queue: Connected,
        now_ms: fn() -> u64,
        stall: Stall,
        begin: N,
    ) -> Driver<'a, S, F, N> {
        Driver {
            wire,
            association,
            orders,
            slots: Slots::new(PLACES_MAX.min(queue.entries as usize)),
            queue,
            begin,
            fuser: Fuser::default(),
            fused: Vec::new(),
            cids: Vec::new(),
            nsids: Vec::new(),
            held: Vec::new(),
            outcomes: Vec::new(),
            aborting: Vec::new(),
            now_ms,
            stall,
            ending: None,
            waits_for_host: false,
            watch: Watch::default(),
            sleep: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Runs until the queue has ended, soon after `shutdown`, at once after `over`; nothing of it is in progress then.
    pub(super) async fn run(
        mut self,
        shutdown: impl Future<Output = ()>,
        over: impl Future<Output = ()>,
    ) -> End {
        let mut shutdown = pin!(shutdown);
        let mut over = pin!(over);
        poll_fn(|cx| {
            if self.ending.is_none() && over.as_mut().poll(cx).is_ready() {
                self.end(Ending::Now);
            }
            if self.ending.is_none() && shutdown.as_mut().poll(cx).is_ready() {
                self.end(Ending::Soon);
            }
            self.poll(cx)
        })
        .await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..ROUNDS_MAX {
            match self.round(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(end) => return Poll::Ready(end),
            }
            match self.look() {
                Ok(Looked::Found) => {}
                Ok(Looked::Again) => {
                    let _ = pin!(yield_now()).poll(cx);
                    return self.poll_timers(cx);
                }
                Ok(Looked::Sleep) => return self.poll_timers(cx),
                Err(end) => return Poll::Ready(end),
            }
        }
        cx.waker().wake_by_ref();
        // However busy a host keeps us.
        self.poll_timers(cx)
    }

    /// There is nothing to do: looks whether the host asks on, while that is worth it.
    fn look(&mut self) -> Result<Looked, End> {
        let idle = self.waits_for_host
            && self.ending.is_none()
            && self.slots.busy() == 0
            && !self.wire.socket.is_secure();
        let mut state = self.wire.state();
        if !idle || state.sender.bytes() > 0 || !self.watch.looks_on() {
            return Ok(Looked::Sleep);
        }
        for _ in 0..LOOKS {
            match state.receiver.look(&self.wire.socket) {
                Ok(()) => {
                    self.watch.came();
                    return Ok(Looked::Found);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => spin_loop(),
                Err(error) => return Err(End::of(error, state.receiver.is_between())),
            }
        }
        Ok(Looked::Again)
    }

    /// Says whether there may be more to do at once.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        // First: a command of a queue that is to end at once begins nothing any more.
        self.obey(cx);
        if self.ending.is_some_and(|until| until <= Instant::now()) {
            return Err(End::Ended);
        }
        let outcomes = &mut self.outcomes;
        self.slots
            .poll_woken(cx, |place, outcome| outcomes.push((place, outcome)));
        self.settle()?;
        if self.ending.is_some() && self.slots.busy() == 0 && self.wire.state().sender.bytes() == 0
        {
            return Err(End::Ended);
        }
        self.waits_for_host = false;
        let received = self.receive(cx)?;
        self.raise_events();
        Ok(self.send(cx)? | received)
    }

    /// Ends the queue.
    fn end(&mut self, ending: Ending) {
        let now = Instant::now();
        let until = match ending {
            Ending::Soon => now + FINISH,
            Ending::Now => now,
        };
        self.ending = Some(self.ending.map_or(until, |before| before.min(until)));
    }

    /// Does what others ordered.
    fn obey(&mut self, cx: &mut Context<'_>) {
        let Some(given) = self.orders.take(cx) else {
            return;
        };
        for (cid, answer) in given.aborts {
            let place = self.cids.iter().position(|known| *known == Some(cid));
            // Two that happen as one are left to happen, and so is what cannot be taken back.
            let happens = |place: &usize| {
                let fused = self.fused.iter().any(|pair| pair.1 == *place);
                fused || self.wire.state().is_landing(*place)
            };
            let place = place.filter(|place| !happens(place));
            match place.filter(|place| self.slots.cancel(*place)) {
                // It is told when the command is complete.
                Some(place) => {
                    self.aborting.push((place, answer));
                    self.start(place, Work::Aborted(place, self.nsids[place]));
                }
                // Whoever asked may have been given up, too.
                None => drop(answer.send(false)),
            }
        }
        if let Some(ending) = given.ending {
            self.end(ending);
        }
    }

    /// Completes what is over.
    fn settle(&mut self) -> Result<(), End> {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for (place, outcome) in outcomes.drain(..) {
            self.complete(place, outcome);
        }
        self.outcomes = outcomes;
        match self.wire.state().broken.take() {
            Some(error) => Err(End::of(error, false)),
            None => Ok(()),
        }
    }

    /// Takes what is there, and at most one call's worth more.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let wire = self.wire;
        let mut called = false;
        while self.ending.is_none() {
            let next = {
                let state = &mut *wire.state();
                if state.takes_nothing() {
                    return Ok(called);
                }
                state.receiver.next(&mut state.transfers)
            };
            match next.map_err(End::Fault)? {
                Next::More if called => return Ok(true),
                Next::More => {
                    if !self.poll_readable(cx)? {
                        return Ok(called);
                    }
                    let received = wire.state().receiver.receive(&wire.socket);
                    match received {
                        Ok(_) => {
                            called = true;
                            self.watch.came();
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => {
                            let between = wire.state().receiver.is_between();
                            return Err(End::of(error, between));
                        }
                    }
                }
                Next::Data(place) => {
                    // A command that does something else at this moment looks for its data later, and is woken for that.
                    if !wire.state().transfers.wants(place) {
                        return Ok(called);
                    }
                    wire.state().starved = false;
                    self.attend(place)?;
                    if wire.state().starved && !self.poll_readable(cx)? {
                        return Ok(called);
                    }
                }
                Next::Over(place) => {
                    if wire.state().transfers.wants(place) {
                        self.attend(place)?;
                    }
                }
                Next::Capsule(capsule) => {
                    self.take(&capsule)?;
                    if wire.state().sender.bytes() >= SEND_EARLY_BYTES {
                        // Commands that waited for room go on in the next round.
                        called |= self.send(cx)?;
                    }
                }
                Next::Terminated(request) => return Err(End::Terminated(request)),
                // Refused before: there was one.
                Next::ICReq(_) => {
                    let fault = Fault::of(FatalErrorStatus::PduSequenceError);
                    return Err(End::Fault(fault));
                }
            }
        }
        Ok(called)
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        match self.wire.socket.poll_read_ready(cx) {
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(error)) => Err(End::Lost(error)),
            Poll::Pending => {
                self.waits_for_host = true;
                Ok(false)
            }
        }
    }

    /// Lets a command go on that waited for data.
    fn attend(&mut self, place: usize) -> Result<(), End> {
        let runs = self.fused.iter().find(|pair| pair.0 == place);
        let place = runs.map_or(place, |pair| pair.1);
        if let Some(outcome) = self.slots.poll(place) {
            self.complete(place, outcome);
        }
        self.settle()
    }

    /// Sends in one call what the socket takes.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let wire = self.wire;
        if wire.state().sender.bytes() == 0 {
            return Ok(self.let_in());
        }
        match wire.socket.poll_write_ready(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(End::Lost(error)),
            Poll::Ready(Ok(())) => {}
        }
        let mut state = wire.state();
        let sent = wire.socket.try_io(Interest::WRITABLE, || {
            match state.sender.flush(&wire.socket)? {
                true => Ok(()),
                // The socket is full, and says when it is not.
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        drop(state);
        self.let_in();
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(End::Lost(error)),
            // When it was full: only the next look at it asks to be woken.
            _ => Ok(true),
        }
    }

    /// Commands that waited for room go on in the next round; says whether there are any.
    fn let_in(&mut self) -> bool {
        let places = self.wire.state().uncrowded();
        for place in &places {
            self.slots.mark(*place);
        }
        !places.is_empty()
    }

    /// Sleeps at most until somebody is too late.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let now = Instant::now();
            if self.ending.is_some_and(|until| until <= now) {
                return Poll::Ready(End::Ended);
            }
            if self.is_stalled(now) {
                return Poll::Ready(End::Stalled);
            }
            let mut next = earlier(self.ending, self.stall.next());
            if self.queue.qid == 0 {
                let deadline = self.association.controller().keep_alive_deadline_ms();
                let left = deadline.map(|at| at.saturating_sub((self.now_ms)()));
                if left == Some(0) {
                    return Poll::Ready(End::KeepAliveExpired);
                }
                next = earlier(next, left.map(|left| now + Duration::from_millis(left)));
            }
            let Some(next) = next else {
                return Poll::Pending;
            };
            // A sleep that ends too early costs one more look, and less than setting it at every command.
            if self.sleep.deadline() > next || self.sleep.is_elapsed() {
                self.sleep.as_mut().reset(next);
            }
            ready!(self.sleep.as_mut().poll(cx));
        }
    }
}

impl<S: Store, F, N> Driver<'_, S, F, N> {
    /// Whether the host is too late with what it has to take or to give. A moment at which it is we who do not look is no such, unless it is
    /// its own commands that keep us from that.
    fn is_stalled(&mut self, now: Instant) -> bool {
        let state = self.wire.state();
        let takes = Debt {
            owed: state.sender.bytes() as u64,
            moved: state.sender.sent(),
        };
        // The rest of a PDU, too.
        let rest = u64::from(!state.receiver.is_between());
        let gives = Debt {
            owed: state.transfers.owed().max(rest),
            moved: state.receiver.received(),
        };
        let stuck = state.keeps_enough() && !self.fused.is_empty();
        drop(state);
        let takes = Some(takes).filter(|debt| debt.owed > 0);
        let gives = Some(gives).filter(|debt| (self.waits_for_host || stuck) && debt.owed > 0);
        let wanted = self.association.lending.is_wanted();
        self.stall.look(now, takes, gives, wanted)
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
