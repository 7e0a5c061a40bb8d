//! What calls leave for the link's task, and what it leaves for them.

use std::collections::VecDeque;
use std::task::Waker;

use forebay_mem::{Buf, BufMut};
use tokio::sync::oneshot;

use super::spent::Spent;
use crate::RemoteRange;

/// One thing to send. `bytes` of it were taken from the link's room, and go back when it is sent.
pub(super) enum Order {
    /// Remote write.
    Write {
        to: RemoteRange,
        from: Vec<Buf>,
        room: u32,
    },
    /// Message.
    Send { message: Vec<u8>, room: u32 },
    /// Remote read; of nothing, for a fence.
    Read(ReadOrder),
}

/// A read, until it is answered.
pub(super) struct ReadOrder {
    pub(super) from: RemoteRange,
    pub(super) into: Option<BufMut>,
    pub(super) answer: Option<oneshot::Sender<Option<BufMut>>>,
}

/// Orders not yet seen by the task.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) waiting: VecDeque<Order>,
    /// Something that is no order any more is left to send.
    pub(super) left: bool,
    /// The task sleeps, and is to be woken by this.
    pub(super) sleeper: Option<Waker>,
    /// Memory of messages that are sent.
    pub(super) spent: Spent,
}
