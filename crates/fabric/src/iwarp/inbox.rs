//! Messages that were received and not yet taken.

use std::collections::VecDeque;
use std::task::Waker;

use super::backlog::Counted;
use super::spent::Spent;

/// Messages that nobody has taken, in bytes: beyond, nothing is received unless the peer owes an answer, which would come behind more of
/// them ...
const WAITING_BYTES_MAX: usize = 128 << 10;
/// ... and beyond this, or when the links of its tenant have too much of that, it talks instead of answering.
const UNANSWERED_BYTES_MAX: usize = 16 << 20;
/// With fewer messages than this, the task of a full link goes on.
const FEW: usize = 16;

/// Messages not yet taken.
#[derive(Default)]
pub(super) struct Inbox {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// What there is beyond [`WAITING_BYTES_MAX`].
    counted: Counted,
    /// The task waits until some are taken.
    full: bool,
    /// Whoever waits for a message.
    pub(super) receiver: Option<Waker>,
    /// Memory of messages that are taken.
    pub(super) spent: Spent,
}

/// Whether there is room for more messages.
pub(super) enum Room {
    Some,
    /// Nobody takes them, and nothing else is to be received.
    None,
    /// The peer talks, and does not answer.
    Exceeded,
}

impl Inbox {
    /// None yet; what there will be too many of is counted there.
    pub(super) fn of(counted: Counted) -> Inbox {
        Inbox {
            counted,
            ..Inbox::default()
        }
    }

    /// Whether there is room for more; `awaits` an answer of the peer's behind them. When there is none, [`Inbox::take`] says when there
    /// is.
    pub(super) fn room(&mut self, awaits: bool) -> Room {
        if self.bytes < WAITING_BYTES_MAX {
            return Room::Some;
        }
        if !awaits {
            self.full = true;
            return Room::None;
        }
        match self.bytes >= UNANSWERED_BYTES_MAX || self.counted.is_too_much() {
            true => Room::Exceeded,
            false => Room::Some,
        }
    }

    /// Adds all of these.
    pub(super) fn put(&mut self, messages: impl Iterator<Item = Vec<u8>>) {
        for message in messages {
            self.bytes += weight(&message);
            self.messages.push_back(message);
        }
        self.count();
    }

    /// Takes the oldest; whether a task that found no room is to go on now.
    pub(super) fn take(&mut self) -> Option<(Vec<u8>, bool)> {
        let message = self.messages.pop_front()?;
        self.bytes -= weight(&message);
        self.count();
        let resume = self.full && self.messages.len() < FEW;
        self.full &= !resume;
        Some((message, resume))
    }

    fn count(&mut self) {
        self.counted
            .set(self.bytes.saturating_sub(WAITING_BYTES_MAX));
    }
}

/// What a waiting message weighs, in bytes: all the memory that it has, and an empty one is memory, too.
fn weight(message: &Vec<u8>) -> usize {
    message.capacity() + 64
}
