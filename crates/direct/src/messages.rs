//! What the messages of one link in progress take of the memory that its tenant may have for them.

use forebay_fabric::MESSAGE_BYTES_MAX;
use forebay_store::shares::Held;

/// So many bytes a link has unasked: room for many usual requests beside a long one.
const FREE_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

/// More is asked for in pieces of so many: of all tenants' links, and not for every message.
const PIECE_BYTES: usize = 4 * MESSAGE_BYTES_MAX;

/// Bytes of messages in progress. They are on the heap, for as long as what their requests wait for takes: also a client.
#[derive(Debug)]
pub(crate) struct Messages {
    held: Held,
    /// Of those, what is the link's.
    room: usize,
    bytes: usize,
}

impl Messages {
    /// None yet, of the tenant whose bytes these are counted among.
    pub(crate) fn of(held: Held) -> Messages {
        Messages {
            held,
            room: FREE_BYTES,
            bytes: 0,
        }
    }

    /// Whether another one may come, however long it is. Where none is in progress one always may.
    pub(crate) fn may_come(&mut self) -> bool {
        if self.bytes + MESSAGE_BYTES_MAX <= self.room {
            return true;
        }
        let has_more = self.held.grow(PIECE_BYTES);
        if has_more {
            self.room += PIECE_BYTES;
        }
        has_more
    }

    /// One of so many bytes is in progress.
    pub(crate) fn begin(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// It is no more.
    pub(crate) fn end(&mut self, bytes: usize) {
        self.bytes -= bytes;
        // One piece more than it needs stays, so that a usual load takes none anew.
        while self.bytes + MESSAGE_BYTES_MAX + 2 * PIECE_BYTES <= self.room {
            self.room -= PIECE_BYTES;
            self.held.give_back(PIECE_BYTES);
        }
        if self.bytes == 0 && self.room > FREE_BYTES {
            self.room = FREE_BYTES;
            self.held.give_back(usize::MAX);
        }
    }
}
