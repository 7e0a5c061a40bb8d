//! The connection of one queue, as its loop and its commands share it.

use std::io;
use std::ops::Range;
use std::task::{Poll, ready};

use super::STAGING_BYTES;
use super::receiver::{Filled, Receiver};
use super::sender::Sender;
use super::transfers::Transfers;
use crate::socket::Socket;
use forebay_mem::{Buf, CopySite, count_copy};
use forebay_proto::nvme::Status;
use forebay_proto::nvme_tcp::Data;
use parking_lot::{Mutex, MutexGuard};

/// How many bytes may wait to be sent.
#[derive(Clone, Copy)]
struct Ahead {
    /// Beyond, commands wait with more.
    commands: usize,
    /// Beyond, nothing is taken from a host that does not take its answers. More than commands send ahead: what one that reads and writes
    /// has still to send does not wait for what it has still to take.
    host: usize,
}

/// Of an admin queue, which anybody may have: about two of its longest answers.
const ADMIN_AHEAD: Ahead = Ahead {
    commands: 64 << 10,
    host: 256 << 10,
};
const IO_AHEAD: Ahead = Ahead {
    commands: 2 << 20,
    host: 4 << 20,
};

/// One connection.
pub(super) struct Wire {
    pub(super) socket: Socket,
    state: Mutex<State>,
}

/// Both directions of it.
pub(super) struct State {
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    pub(super) transfers: Transfers,
    /// The command that is being started.
    staged: Option<Staged>,
    /// Data of capsules whose commands did not take it at once, by place, and how many bytes that is.
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
    /// Which commands make a change that cannot be taken back, by place.
    landing: Vec<bool>,
    ahead: Ahead,
    /// Bytes that the sender will be given together with completions.
    promised: usize,
    /// Places whose commands wait until there is less to send.
    pub(super) crowd: Vec<usize>,
    /// What broke while a command received.
    pub(super) broken: Option<io::Error>,
    /// The last command to look for data found the socket empty.
    pub(super) starved: bool,
}

/// A command whose capsule is in staging.
struct Staged {
    place: usize,
    /// Its data there, and how much of it was taken.
    data: Range<usize>,
    taken: usize,
}

impl Wire {
    pub(super) fn new(socket: Socket) -> Wire {
        Wire {
            socket,
            state: Mutex::new(State {
                receiver: Receiver::new(),
                sender: Sender::new(),
                transfers: Transfers::default(),
                staged: None,
                kept: Vec::new(),
                kept_bytes: 0,
                landing: Vec::new(),
                ahead: ADMIN_AHEAD,
                promised: 0,
                crowd: Vec::new(),
                broken: None,
                starved: false,
            }),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Copies in-capsule data of the command in `place` from `at` on; false when there is not that much.
    pub(super) fn copy_capsule_data(&self, place: usize, at: usize, into: &mut [u8]) -> bool {
        let mut state = self.state();
        let data = state.capsule_data(place);
        let Some(part) = data.get(at..).and_then(|rest| rest.get(..into.len())) else {
            return false;
        };
        into.copy_from_slice(part);
        count_copy(CopySite::LinkStaging, into.len());
        if let Some(staged) = &mut state.staged
            && staged.place == place
        {
            staged.taken = at + into.len();
        }
        true
    }

    /// Asks the host for data of the command in `place`.
    pub(super) fn ask(&self, place: usize, cid: u16, from: u32, bytes: u32) {
        let mut state = self.state();
        let r2t = state.transfers.ask(place, cid, from, bytes);
        state.sender.r2t(&r2t);
    }

    /// Waits until some of what was asked for is here.
    pub(super) fn poll_ready(&self, place: usize) -> Poll<()> {
        let mut state = self.state();
        let here = state.receiver.has_data(place);
        state.transfers.set_wants(place, !here);
        match here {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Receives what was asked for behind the first `filled` bytes of `into`, until it is full.
    pub(super) fn poll_fill(
        &self,
        place: usize,
        into: &mut [u8],
        filled: &mut usize,
    ) -> Poll<Result<(), Status>> {
        let mut state = self.state();
        let came = state
            .receiver
            .fill(&self.socket, place, into, filled)
            .unwrap_or_else(|error| {
                // The loop sees it, and drops this command.
                state.broken = Some(error);
                Filled::NotYet
            });
        let whole = matches!(came, Filled::Whole);
        state.starved = matches!(came, Filled::Starved);
        state.transfers.set_wants(place, !whole);
        match whole {
            false => Poll::Pending,
            true if state.transfers.is_damaged(place) => {
                Poll::Ready(Err(Status::TRANSIENT_TRANSPORT_ERROR))
            }
            true => Poll::Ready(Ok(())),
        }
    }

    /// Waits until not too much waits to be sent.
    pub(super) fn poll_room(&self, place: usize) -> Poll<()> {
        self.state().poll_room(place)
    }

    /// Hands data to the sender as soon as not too much waits there; `data` is taken when ready.
    pub(super) fn poll_send(&self, place: usize, data: &mut Option<(Data, Buf)>) -> Poll<()> {
        let mut state = self.state();
        ready!(state.poll_room(place));
        if let Some((data, payload)) = data.take() {
            // Its command is in progress, and holds what it was lent.
            state.sender.data(&data, payload, None);
        }
        Poll::Ready(())
    }

    /// Says that so many bytes will be handed to the sender with a completion, as soon as not too much waits there.
    pub(super) fn poll_promise(&self, place: usize, bytes: usize) -> Poll<()> {
        let mut state = self.state();
        ready!(state.poll_room(place));
        state.promised += bytes;
        Poll::Ready(())
    }

    /// Waits until all that was asked for is here, and throws it away: the command in `place` takes no more.
    ///
    /// A completion that overtakes data which the host was asked for makes it free what it is sending from. Linux goes on with that
    /// (7.3: it loses the connection, or writes where it should not).
    pub(super) fn poll_refused(&self, place: usize) -> Poll<()> {
        let mut state = self.state();
        let comes = state.transfers.refuse(place) | state.receiver.refuse(place);
        state.transfers.set_wants(place, comes);
        match comes {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl State {
    /// It is an I/O queue, whose capsules may have this much data.
    pub(super) fn set_io(&mut self, capsule_data_bytes_max: usize) {
        self.ahead = IO_AHEAD;
        self.receiver
            .set_capsule_data_bytes_max(capsule_data_bytes_max, STAGING_BYTES);
    }

    /// Whether nothing is to be taken from the host now.
    pub(super) fn takes_nothing(&self) -> bool {
        self.sender.bytes() > self.ahead.host || self.keeps_enough()
    }

    /// Whether as much is kept of capsules as may come together. Commands whose data that is have all that they need of their host, and
    /// end without it; but halves of fused operations may wait for what commands hold whose data is behind theirs.
    pub(super) fn keeps_enough(&self) -> bool {
        self.kept_bytes > self.receiver.staging_bytes()
    }

    /// A command is about to be started, with this data in its capsule.
    pub(super) fn begin(&mut self, place: usize, data: Range<usize>) {
        self.staged = Some(Staged {
            place,
            data,
            taken: 0,
        });
    }

    /// It was started; what it has not taken of its data is kept for it.
    pub(super) fn begun(&mut self, goes_on: bool) {
        let Some(Staged { place, data, taken }) = self.staged.take() else {
            return;
        };
        if !goes_on || taken == data.len() {
            return;
        }
        if self.kept.len() <= place {
            self.kept.resize_with(place + 1, Vec::new);
        }
        let data = self.receiver.capsule_data(&data);
        count_copy(CopySite::LinkStaging, data.len());
        self.kept[place] = data.to_vec();
        self.kept_bytes += data.len();
    }

    /// The command in `place` makes a change that cannot be taken back.
    pub(super) fn land(&mut self, place: usize) {
        if self.landing.len() <= place {
            self.landing.resize(place + 1, false);
        }
        self.landing[place] = true;
    }

    /// Whether it does.
    pub(super) fn is_landing(&self, place: usize) -> bool {
        self.landing.get(place).is_some_and(|landing| *landing)
    }

    /// The command in `place` has ended.
    pub(super) fn ended(&mut self, place: usize) {
        if let Some(landing) = self.landing.get_mut(place) {
            *landing = false;
        }
        if let Some(kept) = self.kept.get_mut(place) {
            self.kept_bytes -= std::mem::take(kept).len();
        }
    }

    fn capsule_data(&self, place: usize) -> &[u8] {
        match &self.staged {
            Some(staged) if staged.place == place => self.receiver.capsule_data(&staged.data),
            _ => self.kept.get(place).map_or(&[], |kept| kept),
        }
    }

    /// Data that was promised is here, or will not come.
    pub(super) fn kept_promise(&mut self, bytes: usize) {
        self.promised -= bytes;
    }

    fn is_crowded(&self) -> bool {
        self.sender.bytes() + self.promised > self.ahead.commands
    }

    fn poll_room(&mut self, place: usize) -> Poll<()> {
        if !self.is_crowded() {
            return Poll::Ready(());
        }
        if !self.crowd.contains(&place) {
            self.crowd.push(place);
        }
        Poll::Pending
    }

    /// Nobody waits for room any more unless there is none: the places of those who did.
    pub(super) fn uncrowded(&mut self) -> Vec<usize> {
        if self.is_crowded() {
            return Vec::new();
        }
        std::mem::take(&mut self.crowd)
    }
}
