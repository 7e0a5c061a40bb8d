//! What moves the commands of one queue over one connection, both ways, until the connection ends.
//!
//! Commands that are left in one moment go in one call, and the replies of one call wake their callers together. Between, it sleeps, or
//! looks at the socket while answers come soon.

use std::future::Future;
use std::hint::spin_loop;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_io::Watch;
use tokio::io::Interest;
use tokio::task::yield_now;
use tokio::time::Sleep;

use super::flights::Flights;
use super::receiver::{Arrived, End, Receiver};
use super::sender::Sender;
use super::setup::Opened;
use super::slots::{Command, RUNTIME_ENDED, Reply, Slots};
use crate::socket::Socket;

/// Calls to the socket before other tasks get a turn.
const ROUNDS_MAX: usize = 16;
/// Looks at the socket in a row before other tasks get a turn; some microseconds.
const LOOKS: usize = 8;

/// Moves until the connection ends, and tells why it did.
pub(super) struct Driver {
    slots: Arc<Slots>,
    socket: Socket,
    sender: Sender,
    receiver: Receiver,
    flights: Flights,
    /// The most that may be in flight.
    depth: usize,
    association: u64,
    arrived: Arrived,
    taken: Vec<(u16, Command)>,
    replies: Vec<(u16, Reply)>,
    wakers: Vec<Waker>,
    /// It went to sleep and can be woken by a command.
    asleep: bool,
    watch: Watch,
    /// Callers were told of replies, and have not had their turn since.
    told: bool,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    armed: bool,
}

impl Driver {
    pub(super) fn new(
        slots: Arc<Slots>,
        opened: Opened,
        association: u64,
        in_capsule_bytes_max: u64,
        timeout: Duration,
    ) -> Driver {
        let places = slots.depth();
        Driver {
            sender: Sender::new(&opened.agreed, in_capsule_bytes_max),
            receiver: Receiver::new(&opened.agreed),
            socket: opened.socket,
            flights: Flights::new(places),
            depth: places.min(opened.depth.into()),
            association,
            arrived: Arrived::default(),
            taken: Vec::with_capacity(places),
            replies: Vec::with_capacity(places),
            wakers: Vec::with_capacity(places),
            slots,
            asleep: false,
            watch: Watch::default(),
            told: false,
            timeout,
            timer: Box::pin(tokio::time::sleep(timeout)),
            armed: false,
        }
    }

    /// Ends what was under way, when the connection is over.
    pub(super) fn wind_up(&mut self, why: &str) {
        self.slots.end(self.flights.take_all(), why);
    }

    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let room = self.depth - self.flights.len();
        self.asleep = self.slots.take(room, &mut self.taken, cx.waker());
        if !self.taken.is_empty() {
            let now = Instant::now();
            let mut laid_out = Ok(());
            // Also behind one whose memory is gone: whoever ends us finds every command in flight.
            for (at, command) in self.taken.drain(..) {
                let flights = &mut self.flights;
                laid_out = laid_out.and(self.sender.command(at, command, flights, now));
            }
            laid_out.map_err(End::Lost)?;
        }
        let sent = self.send(cx).map_err(End::Lost);
        // What the controller said before it went may still be there.
        let received = self.receive(cx);
        self.complete();
        Ok(received? | sent?)
    }

    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if !self.sender.prepare(&mut self.flights)? {
            return Ok(false);
        }
        let Poll::Ready(writable) = self.socket.poll_write_ready(cx) else {
            return Ok(false);
        };
        writable?;
        let sent = self.socket.try_io(Interest::WRITABLE, || {
            let whole = self.sender.flush(&self.socket, &mut self.flights)?;
            // Less than asked for: the socket is full, and says when it is not.
            whole.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        });
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            // When it was full: only the next look at it asks to be woken.
            _ => Ok(true),
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        match self.socket.poll_read_ready(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(readable) => readable.map_err(End::Lost)?,
        }
        // Readiness is cleared by an error, and only the next look at it asks to be woken.
        let mut outcome = Ok(true);
        let _ = self.socket.try_io(Interest::READABLE, || {
            let (flights, arrived) = (&mut self.flights, &mut self.arrived);
            match self.receiver.receive(&self.socket, flights, arrived) {
                Ok(Ok(whole)) => {
                    self.watch.came();
                    whole.ok_or_else(|| io::ErrorKind::WouldBlock.into())
                }
                Ok(Err(error)) => Err(error),
                Err(end) => {
                    outcome = Err(end);
                    Ok(())
                }
            }
        });
        self.answer()?;
        outcome
    }

    /// Answers what the controller has asked for.
    fn answer(&mut self) -> Result<(), End> {
        for request in self.arrived.requests.drain(..) {
            // It may be completed since.
            if let Some((at, flight)) = self.flights.of_cid(request.cccid) {
                let asked = self.sender.ask(at, flight, &request);
                asked.map_err(End::Fault)?;
            }
        }
        Ok(())
    }

    /// There is nothing to do: looks whether answers come, while that is worth it. Says whether to look again, `None` when there were
    /// some.
    fn look(&mut self) -> Result<Option<bool>, End> {
        if self.flights.len() == 0 || self.socket.is_secure() || !self.watch.looks_on() {
            return Ok(Some(false));
        }
        if std::mem::take(&mut self.told) {
            // Their next commands come first.
            return Ok(Some(true));
        }
        for _ in 0..LOOKS {
            let (flights, arrived) = (&mut self.flights, &mut self.arrived);
            let received = self.receiver.receive(&self.socket, flights, arrived);
            if let Ok(Err(_)) = received {
                spin_loop();
                continue;
            }
            self.watch.came();
            let answered = self.answer();
            self.complete();
            return received.and(answered).map(|()| None);
        }
        Ok(Some(true))
    }

    fn complete(&mut self) {
        let completed = self.arrived.completions.drain(..);
        let places = completed.map(|entry| Flights::place(entry.cid));
        for at in places.chain(self.sender.let_go.drain(..)) {
            if let Some(reply) = self.flights.end(at, self.association) {
                self.replies.push((at, reply));
                self.told = true;
            }
        }
        self.slots.complete(&mut self.replies, &mut self.wakers);
    }

    /// Whether a command has been under way for too long.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.armed {
            if self.flights.len() == 0 {
                return false;
            }
            self.armed = true;
            self.timer
                .as_mut()
                .reset(tokio::time::Instant::now() + self.timeout);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let Some(oldest) = self.flights.oldest() else {
                self.armed = false;
                return false;
            };
            let end = oldest + self.timeout;
            if end <= Instant::now() {
                return true;
            }
            self.timer.as_mut().reset(end.into());
        }
        false
    }

    /// Tells the controller of its fault.
    fn finish(&mut self, end: &End) {
        if let End::Fault(fault) = end {
            self.sender
                .terminate(*fault, self.receiver.offending(), &self.socket);
        }
    }
}

impl Future for Driver {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = &mut *self;
        if std::mem::take(&mut this.asleep) && this.slots.was_called() {
            // Woken by a command: whoever is about to run may leave more, and all of them go in one call.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        for _ in 0..ROUNDS_MAX {
            let more = match this.round(cx) {
                Ok(true) => continue,
                Ok(false) => this.look(),
                Err(end) => Err(end),
            };
            match more {
                Ok(None) => continue,
                Ok(Some(true)) => {
                    let _ = pin!(yield_now()).poll(cx);
                }
                Ok(Some(false)) => {}
                Err(end) => {
                    this.finish(&end);
                    return Poll::Ready(end);
                }
            }
            return match this.is_silent(cx) {
                true => Poll::Ready(End::Silent),
                false => Poll::Pending,
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    /// A runtime that stops drops its tasks.
    fn drop(&mut self) {
        self.wind_up(RUNTIME_ENDED);
    }
}
