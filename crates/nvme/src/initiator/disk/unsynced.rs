//! What was written and not synced.

use std::collections::VecDeque;

use forebay_mem::Buf;

/// What was written since the last sync, in order.
#[derive(Default)]
pub(super) struct Unsynced {
    writes: VecDeque<Written>,
    /// Bytes of buffers that it keeps.
    pub(super) bytes: usize,
    /// The number of the last write.
    pub(super) number: u64,
}

/// A write that is to be made again: its number, its first block, its bytes.
pub(super) type Again = (u64, u64, Buf);

struct Written {
    number: u64,
    association: u64,
    block: u64,
    from: Buf,
}

impl Unsynced {
    pub(super) fn add(&mut self, association: u64, block: u64, from: Buf) {
        self.number += 1;
        self.bytes += from.held_bytes();
        self.writes.push_back(Written {
            number: self.number,
            association,
            block,
            from,
        });
    }

    /// Forgets writes up to `last`, which a flush by `association` has made durable; false when some were by another association.
    pub(super) fn settle(&mut self, last: u64, association: u64) -> bool {
        let covered = |write: &&Written| write.number <= last;
        let mut writes = self.writes.iter().take_while(covered);
        if writes.any(|write| write.association != association) {
            return false;
        }
        while self
            .writes
            .front()
            .is_some_and(|write| write.number <= last)
        {
            if let Some(write) = self.writes.pop_front() {
                self.bytes -= write.from.held_bytes();
            }
        }
        true
    }

    /// Whether all writes were by this association: then it reads what they wrote.
    pub(super) fn are_of(&self, association: u64) -> bool {
        let mut writes = self.writes.iter();
        writes.all(|write| write.association == association)
    }

    /// The first write up to `last` that was by another association.
    pub(super) fn stale(&self, last: u64, association: u64) -> Option<Again> {
        let covered = |write: &&Written| write.number <= last;
        let mut writes = self.writes.iter().take_while(covered);
        writes
            .find(|write| write.association != association)
            .map(Written::again)
    }

    /// The first write after the one of this number.
    pub(super) fn after(&self, number: u64) -> Option<Again> {
        let mut writes = self.writes.iter();
        writes
            .find(|write| write.number > number)
            .map(Written::again)
    }

    /// A write was made again, by this association.
    pub(super) fn rewritten(&mut self, number: u64, association: u64) {
        let write = self.writes.iter_mut().find(|write| write.number == number);
        if let Some(write) = write {
            write.association = association;
        }
    }
}

impl Written {
    fn again(&self) -> Again {
        (self.number, self.block, self.from.clone())
    }
}
