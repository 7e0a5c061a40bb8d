//! Asynchronous events (Base 2.0, section 5.2).

use std::collections::VecDeque;

use super::Event;
use crate::nvme::Status;
use crate::nvme::feature::{EVENT_DISCOVERY, EVENT_NAMESPACES};
use crate::nvme::log_page::lid;

/// Event requests that a host may have outstanding (AERL + 1).
pub(super) const OUTSTANDING_MAX: usize = 4;

const TYPE_NOTICE: u64 = 2;

/// What can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// Namespaces appeared, went or changed.
    Namespaces,
    /// The discovery log changed.
    Discovery,
}

impl Notice {
    fn bit(self) -> u32 {
        match self {
            Notice::Namespaces => EVENT_NAMESPACES,
            Notice::Discovery => EVENT_DISCOVERY,
        }
    }

    fn log(self) -> u8 {
        match self {
            Notice::Namespaces => lid::CHANGED_NAMESPACES,
            Notice::Discovery => lid::DISCOVERY,
        }
    }

    fn result(self) -> u64 {
        let information = match self {
            Notice::Namespaces => 0x00,
            Notice::Discovery => 0xf0,
        };
        TYPE_NOTICE | information << 8 | u64::from(self.log()) << 16
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    /// Identifiers of event requests, oldest first.
    requests: VecDeque<u16>,
    /// Not told yet.
    pending: Vec<Notice>,
    /// Told; not told again before the log was read.
    told: Vec<Notice>,
    /// Asynchronous Event Configuration.
    pub(super) enabled: u32,
}

impl Events {
    pub(super) fn request(&mut self, cid: u16) -> Result<(), Status> {
        if self.requests.len() >= OUTSTANDING_MAX {
            return Err(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED);
        }
        self.requests.push_back(cid);
        Ok(())
    }

    pub(super) fn raise(&mut self, notice: Notice) {
        let known = self.pending.contains(&notice) || self.told.contains(&notice);
        if self.enabled & notice.bit() != 0 && !known {
            self.pending.push(notice);
        }
    }

    pub(super) fn log_read(&mut self, log: u8) {
        self.told.retain(|notice| notice.log() != log);
        self.pending.retain(|notice| notice.log() != log);
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        let notice = *self.pending.first()?;
        let cid = self.requests.pop_front()?;
        self.pending.remove(0);
        self.told.push(notice);
        Some(Event {
            cid,
            result: notice.result(),
        })
    }

    /// The controller was reset: requests are gone, and the host will look at everything again.
    pub(super) fn reset(&mut self) {
        *self = Events::default();
    }
}
