//! What a queue's loop starts, and what comes of it.

use forebay_mem::Buf;
use forebay_proto::nvme::{Effect, IoCommand, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::Data;

use super::payload::Pointer;
use crate::target::Lent;

/// A command, where it runs, and where its data is.
pub(super) struct Begin {
    pub(super) place: usize,
    pub(super) entry: SubmissionQueueEntry,
    pub(super) pointer: Pointer,
}

/// What is to be started.
pub(super) enum Work {
    /// An admin or fabrics command.
    Admin(Begin),
    /// An I/O command.
    Io(IoCommand, Begin),
    /// Two that happen as one; they run in the place of the second.
    Fused((IoCommand, Begin), (IoCommand, Begin)),
    /// What is left of one in this place, and of this namespace, that was given up.
    Aborted(usize, u32),
}

/// What a command came to.
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) result: u64,
    /// The last of its data, which is not sent yet.
    pub(super) last: Option<(Data, Buf)>,
    /// What it was lent for that.
    pub(super) memory: Option<Lent>,
    /// Its data may say that it succeeded.
    pub(super) success_by_data: bool,
    pub(super) then: Then,
    /// What the first half of a fused operation came to, and its place: it is completed before.
    pub(super) first: Option<(usize, Status)>,
}

/// What else is to be done.
pub(super) enum Then {
    Nothing,
    /// There is no completion now: an event will be one.
    Held,
    Effect(Effect),
    /// The connection is to be closed behind the completion.
    Disconnect,
}

impl Outcome {
    pub(super) fn status(status: Status) -> Outcome {
        Outcome {
            status,
            result: 0,
            last: None,
            memory: None,
            success_by_data: false,
            then: Then::Nothing,
            first: None,
        }
    }
}
