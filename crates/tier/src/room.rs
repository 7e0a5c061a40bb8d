//! Room for what is on its way into the cache: bytes that were read and that a slow reader has yet to take, and values that arrive.
//!
//! All tenants share it, and each may be as slow as it likes. So none has more of it than it leaves free: one alone gets a half.

use std::sync::Arc;

use forebay_store::shares::{self, Shares};

/// Anything takes so much at least.
const UNIT_BYTES: usize = 4096;

pub(crate) struct Room(Arc<Shares>);

/// Bytes of a tenant's that have room until this is dropped.
pub(crate) struct Held(shares::Held);

impl Room {
    pub fn new(bytes: u64) -> Room {
        Room(Shares::new(clamped(bytes)))
    }

    /// Room for so many bytes of a tenant's, if it may have it now: nobody waits for it while holding buffers.
    pub fn take(&self, tenant: &str, bytes: u64) -> Option<Held> {
        let mut held = Held(self.0.of(tenant));
        held.grow(bytes).then_some(held)
    }
}

impl Held {
    /// Room for so many bytes more, if the tenant may have it.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let more = clamped(bytes);
        let more = more.checked_next_multiple_of(UNIT_BYTES).unwrap_or(more);
        // It may be much of all at once.
        self.0.grow_and_leave(more)
    }

    /// So many bytes are on their way no more.
    pub fn give_back(&mut self, bytes: u64) {
        self.0.give_back(clamped(bytes));
    }
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = UNIT_BYTES as u64;

    #[test]
    fn whoever_has_nothing_yet_finds_room() {
        let room = Room::new(16 * UNIT);
        assert!(room.take("a", 8 * UNIT + 1).is_none());
        let mut of_a = room.take("a", 6 * UNIT).expect("free");
        assert!(of_a.grow(2 * UNIT) && !of_a.grow(1));
        assert!(room.take("b", 5 * UNIT).is_none());
        let of_b = room.take("b", 4 * UNIT).expect("half of what is free");
        let of_c = room.take("c", 1).expect("there is always some");
        assert!(room.take("a", 1).is_none());
        of_a.give_back(7 * UNIT);
        assert!(of_a.grow(4 * UNIT), "it has little now");
        drop((of_a, of_b, of_c));
        assert!(room.0.is_free());
        drop(room.take("a", 0));
        assert!(room.0.is_free(), "nothing is remembered of nothing");
    }
}
