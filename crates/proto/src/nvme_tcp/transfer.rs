//! The data of one command, as it must arrive: ascending, without gap, and no more than was asked for (section 3.5).

use super::fault::{FatalErrorStatus, Fault};
use super::pdu::{Data, R2T, offset};

/// Data that is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    cccid: u16,
    ttag: u16,
    next: u32,
    end: u32,
    /// Whether the data may end before `end`.
    may_end_early: bool,
}

impl Transfer {
    /// Of a controller: what it asked a host for by `r2t`.
    pub fn asked(r2t: &R2T) -> Transfer {
        Transfer {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            next: r2t.offset,
            end: r2t.offset.saturating_add(r2t.bytes),
            may_end_early: false,
        }
    }

    /// Of a host: what a controller sends for a command whose buffer is this long. It may be less.
    pub fn answer(cccid: u16, bytes: u32) -> Transfer {
        Transfer {
            cccid,
            ttag: 0,
            next: 0,
            end: bytes,
            may_end_early: true,
        }
    }

    /// The tag of the R2T that asked for it.
    pub fn ttag(&self) -> u16 {
        self.ttag
    }

    /// Where the next byte belongs, from the begin of the command's data.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// How many bytes may still come.
    pub fn left(&self) -> u32 {
        self.end - self.next
    }

    /// Takes the next PDU's header; says whether it is the last.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn accept(&mut self, data: &Data) -> Result<bool, Fault> {
        if data.cccid != self.cccid {
            return Err(Fault::field(offset::CCCID));
        }
        if data.ttag != self.ttag {
            return Err(Fault::field(offset::TTAG));
        }
        let end = data.offset.checked_add(data.bytes);
        let end = end.filter(|end| data.offset == self.next && *end <= self.end);
        let Some(end) = end else {
            return Err(Fault::of(FatalErrorStatus::DataTransferOutOfRange));
        };
        if data.last != (end == self.end) && !self.may_end_early {
            return Err(Fault::field(offset::FLAGS));
        }
        self.next = end;
        Ok(data.last)
    }
}

impl R2T {
    /// Of a host: that a command with so many bytes of data, of which the first `sent` were asked for before, can be asked for this.
    ///
    /// # Errors
    /// What is wrong with it: data is asked for in ascending order, and never nothing.
    pub fn check(&self, sent: u32, data_bytes: u32) -> Result<(), Fault> {
        let end = self.offset.checked_add(self.bytes);
        if self.offset != sent || end.is_none_or(|end| end > data_bytes) {
            return Err(Fault::of(FatalErrorStatus::DataTransferOutOfRange));
        }
        if self.bytes == 0 {
            return Err(Fault::field(offset::DATAL));
        }
        Ok(())
    }
}
