//! Where calls leave their commands and find their replies: the places of one queue, used again and again.
//!
//! A call takes a place, leaves its command there, and sleeps. The queue's driver takes the commands of a moment together, owns what
//! they send from and receive into while they are with the controller, and leaves the replies of a moment together. A call whose
//! future is dropped leaves its place to the driver: memory that a command names is let go when the command has ended, never before.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_proto::nvme::SubmissionQueueEntry;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::data::Data;
use super::{Error, Result};

/// Why connections end: the runtime that drove them stops.
pub(super) const RUNTIME_ENDED: &str = "its runtime has ended";
/// Why connections end: a command takes longer than it may.
pub(super) const TOO_SLOW: &str = "a command was not completed in time";

/// How often commands whose patience may be at its end are looked at while there is no connection.
pub(super) const SWEEP: Duration = Duration::from_millis(100);

/// How many connections a command that may be repeated outlives: one that is itself what ends them would end them for ever. Those that
/// wait for ever, and whose memory nobody takes away, outlive any number.
pub(super) const REPEATS: u8 = 8;

/// One command, before it has an identifier and a data pointer.
pub(super) struct Command {
    pub(super) entry: SubmissionQueueEntry,
    pub(super) data: Data,
    /// How often it may be sent again when its connection was lost: [`REPEATS`] where making it twice is the same as making it once.
    pub(super) repeats: u8,
    /// It was with a controller whose connection was lost.
    pub(super) was_sent: bool,
    /// When to give up waiting for a connection; never, when missing.
    pub(super) patience: Option<Instant>,
    /// The controller may take any time to complete it.
    pub(super) endless: bool,
    /// Sent while the controller is being prepared; others wait for the end of that.
    pub(super) preparing: bool,
    /// The result tells how long a value is, and what of it is behind this comes, as far as there is room: for transports that do not tell
    /// how much came. All that there is room for, when missing.
    pub(super) value_behind: Option<u64>,
}

/// What a controller says at a command's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Completed {
    /// Command specific: DW0, and DW1 above it.
    pub(super) result: u64,
    /// Payload bytes that arrived.
    pub(super) received: u64,
    /// Which of the connections since the start this was, from 1.
    pub(super) association: u64,
}

/// A command's end, with the memory it was made with.
pub(super) struct Reply {
    pub(super) outcome: Result<Completed>,
    pub(super) data: Data,
}

/// The places of one queue.
pub(super) struct Slots {
    state: Mutex<State>,
    /// A permit for each place that is free, but for those that are kept for preparation.
    free: Semaphore,
    /// A permit for each that is free of those: what waits for an association must not keep it from being made.
    kept: Semaphore,
}

struct State {
    places: Vec<Place>,
    free: Vec<u16>,
    /// Commands for the driver, in order; those of preparation are apart.
    ready: VecDeque<u16>,
    preparing: VecDeque<u16>,
    /// Whether commands besides those of preparation may be taken.
    open: bool,
    /// Namespaces whose commands may not.
    withheld: Vec<u32>,
    /// The driver sleeps, and is to be woken by this.
    sleeper: Option<Waker>,
    closed: bool,
}

struct Place {
    stage: Stage,
    caller: Option<Waker>,
    /// Nobody waits for the reply.
    abandoned: bool,
    /// Of those that are kept for preparation.
    kept: bool,
}

enum Stage {
    Free,
    Ready(Command),
    /// With the driver.
    Taken,
    Done(Reply),
}

impl Slots {
    /// As many as this queue has commands in flight at most, so many of them kept for preparation.
    pub(super) fn new(depth: u16, kept: u16) -> Slots {
        let places = (0..depth).map(|_| Place::free());
        Slots {
            state: Mutex::new(State {
                places: places.collect(),
                free: (0..depth).rev().collect(),
                ready: VecDeque::with_capacity(depth.into()),
                preparing: VecDeque::new(),
                open: false,
                withheld: Vec::new(),
                sleeper: None,
                closed: false,
            }),
            free: Semaphore::new((depth - kept).into()),
            kept: Semaphore::new(kept.into()),
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.state.lock().places.len()
    }

    /// Makes a command and waits for its end.
    pub(super) async fn execute(&self, command: Command) -> Reply {
        let refused = |error, data| Reply {
            outcome: Err(error),
            data,
        };
        match self.permits(command.preparing).try_acquire() {
            Ok(permit) => permit.forget(),
            // Seldom: the future of every command need not have room for it.
            Err(_) => match Box::pin(self.free_place(&command)).await {
                Ok(()) => {}
                Err(error) => return refused(error, command.data),
            },
        }
        let mut call = match self.place(command) {
            Ok(call) => call,
            Err(command) => return refused(Error::Closed, command.data),
        };
        poll_fn(|cx| call.poll(cx)).await
    }

    /// Waits until a place is free, and takes it. While those that have one wait for a connection, it waits as long as its patience.
    async fn free_place(&self, command: &Command) -> Result<()> {
        let mut free = pin!(self.permits(command.preparing).acquire());
        let mut look = command.patience;
        loop {
            let permit = match look {
                Some(look) => timeout_at(look.into(), &mut free).await,
                None => Ok((&mut free).await),
            };
            match permit {
                Ok(Ok(permit)) => {
                    permit.forget();
                    return Ok(());
                }
                Ok(Err(_)) => return Err(Error::Closed),
                Err(_) if self.moves() => look = Some(Instant::now() + SWEEP),
                Err(_) => {
                    let why = "as many commands as may be wait for it";
                    return Err(Error::Unreachable(why.to_owned()));
                }
            }
        }
    }

    /// Whether all commands are let through.
    fn moves(&self) -> bool {
        let state = self.state.lock();
        state.open && state.withheld.is_empty()
    }

    fn permits(&self, kept: bool) -> &Semaphore {
        match kept {
            true => &self.kept,
            false => &self.free,
        }
    }

    fn release(&self, released: &Released) {
        self.free.add_permits(released.free);
        self.kept.add_permits(released.kept);
    }

    fn place(&self, command: Command) -> Result<Call<'_>, Box<Command>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Box::new(command));
        }
        let Some(at) = state.free.pop() else {
            debug_assert!(false, "a permit is a free place");
            return Err(Box::new(command));
        };
        let list = if command.preparing {
            &mut state.preparing
        } else {
            &mut state.ready
        };
        list.push_back(at);
        let place = &mut state.places[usize::from(at)];
        place.kept = command.preparing;
        place.stage = Stage::Ready(command);
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        Ok(Call {
            slots: self,
            at,
            done: false,
        })
    }

    /// Takes at most `most` commands. Leaves `sleeper` to be woken when there are none and `most` is not 0; whether it was left.
    pub(super) fn take(
        &self,
        most: usize,
        into: &mut Vec<(u16, Command)>,
        sleeper: &Waker,
    ) -> bool {
        let mut released = Released::default();
        let mut state = self.state.lock();
        while into.len() < most {
            let next = match state.preparing.pop_front() {
                None if state.open => state.next_ready(),
                next => next,
            };
            let Some(at) = next else { break };
            let place = &mut state.places[usize::from(at)];
            if place.abandoned {
                // Nothing was sent: as if it had never been.
                released.count(place);
                *place = Place::free();
                state.free.push(at);
                continue;
            }
            if let Stage::Ready(command) = std::mem::replace(&mut place.stage, Stage::Taken) {
                into.push((at, command));
            }
        }
        let sleeps = into.is_empty() && most > 0;
        if sleeps {
            match &mut state.sleeper {
                Some(known) => known.clone_from(sleeper),
                none => *none = Some(sleeper.clone()),
            }
        }
        drop(state);
        self.release(&released);
        sleeps
    }

    /// Whether the sleeper that was left has been taken, because there is a command.
    pub(super) fn was_called(&self) -> bool {
        self.state.lock().sleeper.take().is_none()
    }

    /// Leaves replies, and wakes those who wait for them.
    pub(super) fn complete(&self, replies: &mut Vec<(u16, Reply)>, wakers: &mut Vec<Waker>) {
        if replies.is_empty() {
            return;
        }
        let mut released = Released::default();
        let mut state = self.state.lock();
        for (at, reply) in replies.iter_mut() {
            let place = &mut state.places[usize::from(*at)];
            if place.abandoned {
                // Its memory is let go by whoever clears the list, not under the lock.
                released.count(place);
                *place = Place::free();
                state.free.push(*at);
                continue;
            }
            wakers.extend(place.caller.take());
            let reply = std::mem::replace(reply, Reply::none());
            place.stage = Stage::Done(reply);
        }
        drop(state);
        replies.clear();
        self.release(&released);
        wakers.drain(..).for_each(Waker::wake);
    }

    /// Ends commands, in the order in which they were sent, whose connection is over: what may be repeated goes back, the rest has no known
    /// outcome.
    pub(super) fn end(&self, under_way: impl Iterator<Item = (u16, Command)>, why: &str) {
        let (mut back, mut lost) = (Vec::new(), Vec::new());
        for (at, mut command) in under_way {
            if command.repeats > 0 {
                if command.may_be_why() {
                    command.repeats -= 1;
                }
                command.was_sent = true;
                if let Data::In(sink) = &mut command.data {
                    sink.restart();
                }
                back.push((at, command));
            } else {
                let outcome = Err(Error::Lost(why.to_owned()));
                let data = command.data;
                lost.push((at, Reply { outcome, data }));
            }
        }
        self.put_back(back.into_iter());
        self.complete(&mut lost, &mut Vec::new());
    }

    /// Takes back commands that were never sent, or may be repeated: they are the next to be sent, in the order given.
    pub(super) fn put_back(&self, commands: impl DoubleEndedIterator<Item = (u16, Command)>) {
        let mut dropped = Vec::new();
        let mut released = Released::default();
        let mut state = self.state.lock();
        for (at, command) in commands.rev() {
            let place = &mut state.places[usize::from(at)];
            if place.abandoned {
                released.count(place);
                *place = Place::free();
                state.free.push(at);
                dropped.push(command);
                continue;
            }
            place.stage = Stage::Ready(command);
            state.ready.push_front(at);
        }
        drop(state);
        self.release(&released);
    }

    /// Lets all commands through, or only those of preparation.
    pub(super) fn open(&self, open: bool) {
        let mut state = self.state.lock();
        state.open = open;
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Withholds commands of these namespaces, and lets those of others through.
    pub(super) fn withhold(&self, nsids: &[u32]) {
        let mut state = self.state.lock();
        nsids.clone_into(&mut state.withheld);
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Whether commands of any namespace are withheld.
    pub(super) fn withholds(&self) -> bool {
        !self.state.lock().withheld.is_empty()
    }

    /// Ends commands that are not with the controller. The driver has none then, but for namespaces that are not withheld.
    pub(super) fn give_up(&self, which: GiveUp, error: &Error) {
        let mut ended = Vec::new();
        let mut wakers = Vec::new();
        let mut released = Released::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (places, withheld) = (&mut state.places, &state.withheld);
        let mut stays = |at: &u16| {
            let place = &mut places[usize::from(*at)];
            let Stage::Ready(command) = &place.stage else {
                return false;
            };
            let stays = match which {
                GiveUp::All => false,
                GiveUp::Preparing => !command.preparing,
                GiveUp::At(now) => !place.abandoned && command.is_patient(now),
                GiveUp::WithheldAt(now) => {
                    !withheld.contains(&command.entry.nsid())
                        || !place.abandoned && command.is_patient(now)
                }
            };
            if stays {
                return true;
            }
            if let Stage::Ready(command) = std::mem::replace(&mut place.stage, Stage::Free) {
                if place.abandoned {
                    released.count(place);
                    *place = Place::free();
                    state.free.push(*at);
                    ended.push(command.data);
                } else {
                    wakers.extend(place.caller.take());
                    place.stage = Stage::Done(Reply {
                        outcome: Err(command.given_up(error)),
                        data: command.data,
                    });
                }
            }
            false
        };
        state.ready.retain(&mut stays);
        state.preparing.retain(&mut stays);
        drop(guard);
        self.release(&released);
        wakers.drain(..).for_each(Waker::wake);
    }

    /// Refuses commands from now on and ends those that are not with the controller.
    pub(super) fn close(&self) {
        self.free.close();
        self.kept.close();
        let mut state = self.state.lock();
        state.closed = true;
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        self.give_up(GiveUp::All, &Error::Closed);
    }
}

/// Which commands are given up.
#[derive(Debug, Clone, Copy)]
pub(super) enum GiveUp {
    All,
    /// Those of preparation.
    Preparing,
    /// Those whose patience ends by then.
    At(Instant),
    /// Those of them that are withheld.
    WithheldAt(Instant),
}

impl Command {
    /// Whether it may still wait for a connection.
    fn is_patient(&self, now: Instant) -> bool {
        self.patience.is_none_or(|end| end > now)
    }

    /// Whether it may be what ends its connections, and has an end itself: one whose memory is its own and that waits for ever is sent
    /// as often as it takes.
    fn may_be_why(&self) -> bool {
        self.patience.is_some() || self.data.is_exposed()
    }

    /// What it ends with when it is given up: what a controller had, and did not only read, may have taken place.
    fn given_up(&self, error: &Error) -> Error {
        match (error, &self.data) {
            (Error::Lost(_), _) | (_, Data::In(_)) => error.clone(),
            _ if self.was_sent => Error::Lost(error.to_string()),
            _ => error.clone(),
        }
    }
}

impl State {
    /// The first that may be taken.
    fn next_ready(&mut self) -> Option<u16> {
        if self.withheld.is_empty() {
            return self.ready.pop_front();
        }
        let (places, withheld) = (&self.places, &self.withheld);
        let may = |at: &u16| match &places[usize::from(*at)].stage {
            Stage::Ready(command) => !withheld.contains(&command.entry.nsid()),
            _ => true,
        };
        let first = self.ready.iter().position(may)?;
        self.ready.remove(first)
    }
}

impl Place {
    fn free() -> Place {
        Place {
            stage: Stage::Free,
            caller: None,
            abandoned: false,
            kept: false,
        }
    }
}

/// Places that have become free.
#[derive(Default)]
struct Released {
    free: usize,
    kept: usize,
}

impl Released {
    /// One that is about to.
    fn count(&mut self, place: &Place) {
        match place.kept {
            true => self.kept += 1,
            false => self.free += 1,
        }
    }
}

impl Reply {
    fn none() -> Reply {
        Reply {
            outcome: Err(Error::Closed),
            data: Data::None,
        }
    }
}

/// A call that has a place.
struct Call<'a> {
    slots: &'a Slots,
    at: u16,
    done: bool,
}

impl Call<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Reply> {
        let mut state = self.slots.state.lock();
        let place = &mut state.places[usize::from(self.at)];
        if !matches!(place.stage, Stage::Done(_)) {
            match &mut place.caller {
                Some(known) => known.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let Stage::Done(reply) = std::mem::replace(&mut place.stage, Stage::Free) else {
            return Poll::Pending;
        };
        place.caller = None;
        let kept = place.kept;
        state.free.push(self.at);
        drop(state);
        self.done = true;
        self.slots.permits(kept).add_permits(1);
        Poll::Ready(reply)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.slots.state.lock();
        let place = &mut state.places[usize::from(self.at)];
        place.caller = None;
        if let Stage::Done(_) = place.stage {
            let reply = std::mem::replace(&mut place.stage, Stage::Free);
            let kept = place.kept;
            state.free.push(self.at);
            drop(state);
            drop(reply);
            self.slots.permits(kept).add_permits(1);
        } else {
            place.abandoned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    fn command(preparing: bool, patience: Option<Instant>) -> Command {
        Command {
            entry: SubmissionQueueEntry::new(0, 0, 0),
            data: Data::None,
            repeats: 0,
            was_sent: false,
            patience,
            endless: false,
            preparing,
            value_behind: None,
        }
    }

    /// Its connection is there, and has only not looked yet.
    #[test]
    fn a_command_of_preparation_waits_for_its_connection() {
        let slots = Slots::new(2, 1);
        let now = Instant::now();
        let mut cx = Context::from_waker(Waker::noop());
        let mut preparation = pin!(slots.execute(command(true, None)));
        let mut ordinary = pin!(slots.execute(command(false, Some(now))));
        assert!(preparation.as_mut().poll(&mut cx).is_pending());
        assert!(ordinary.as_mut().poll(&mut cx).is_pending());
        let error = Error::Unreachable("not yet".to_owned());
        slots.give_up(GiveUp::At(now - Duration::from_millis(1)), &error);
        assert!(ordinary.as_mut().poll(&mut cx).is_pending());
        slots.give_up(GiveUp::At(now), &error);
        assert!(ordinary.as_mut().poll(&mut cx).is_ready());
        assert!(preparation.as_mut().poll(&mut cx).is_pending());
        let mut taken = Vec::new();
        assert!(!slots.take(2, &mut taken, Waker::noop()));
        assert!(matches!(&taken[..], [(_, command)] if command.preparing));
    }

    /// Those before it are served: it waits for them, and for no connection.
    #[tokio::test]
    async fn a_command_waits_on_for_a_place_while_others_are_let_through() {
        let slots = Slots::new(1, 0);
        slots.open(true);
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!(slots.execute(command(false, None)));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let mut second = pin!(slots.execute(command(false, Some(Instant::now()))));
        let waits = tokio::time::timeout(SWEEP * 3, &mut second).await;
        assert!(waits.is_err());
        slots.open(false);
        let ended = second.await.outcome;
        assert!(matches!(ended, Err(Error::Unreachable(_))), "{ended:?}");
    }

    /// Commands that wait for an association have all places that they may have; it is made and kept alive all the same.
    #[test]
    fn places_for_preparation_are_kept_and_come_back() {
        let slots = Slots::new(3, 1);
        let mut cx = Context::from_waker(Waker::noop());
        let mut ordinary: Vec<_> = (0..3)
            .map(|_| Box::pin(slots.execute(command(false, None))))
            .collect();
        for call in &mut ordinary {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        // Each of them ends in another way.
        for turn in 0..4 {
            let mut call = Box::pin(slots.execute(command(true, None)));
            assert!(call.as_mut().poll(&mut cx).is_pending());
            if turn == 0 {
                slots.give_up(GiveUp::Preparing, &Error::Closed);
                assert!(call.as_mut().poll(&mut cx).is_ready());
                continue;
            }
            let mut taken = Vec::new();
            if turn == 1 {
                drop(call);
                slots.take(3, &mut taken, Waker::noop());
                assert!(taken.is_empty());
                continue;
            }
            slots.take(3, &mut taken, Waker::noop());
            let replies = taken.drain(..).map(|(at, _)| (at, Reply::none()));
            let mut replies = replies.collect::<Vec<_>>();
            assert_eq!(replies.len(), 1);
            if turn == 2 {
                drop(call);
                slots.complete(&mut replies, &mut Vec::new());
                continue;
            }
            slots.complete(&mut replies, &mut Vec::new());
            assert!(call.as_mut().poll(&mut cx).is_ready());
        }
        assert_eq!(slots.kept.available_permits(), 1);
        assert_eq!(slots.free.available_permits(), 0);
        drop(ordinary);
        slots.open(true);
        slots.take(3, &mut Vec::new(), Waker::noop());
        assert_eq!(slots.free.available_permits(), 2);
    }
}
