//! Room for what is on its way into the cache: bytes that were read and that a slow reader has yet to take, and values that arrive.
//!
//! All tenants share it, and each may be as slow as it likes. So none has more of it than it leaves free: one alone gets a half.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_store::limits::may_have;
use parking_lot::Mutex;

/// Anything takes so much at least.
const UNIT_BYTES: usize = 4096;

pub(crate) struct Room {
    bytes: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Of those that have any.
    tenants: HashMap<Box<str>, usize>,
}

/// Bytes of a tenant's that have room until this is dropped.
pub(crate) struct Held {
    room: Arc<Room>,
    tenant: Box<str>,
    bytes: usize,
}

impl Room {
    pub fn new(bytes: u64) -> Arc<Room> {
        Arc::new(Room {
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            taken: Mutex::default(),
        })
    }

    /// Room for so many bytes of a tenant's, if it may have it now: nobody waits for it while holding buffers.
    pub fn take(self: &Arc<Room>, tenant: &str, bytes: u64) -> Option<Held> {
        let mut held = Held {
            room: self.clone(),
            tenant: tenant.into(),
            bytes: 0,
        };
        held.grow(bytes).then_some(held)
    }
}

impl Held {
    /// Room for so many bytes more, if the tenant may have it.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let more = usize::try_from(bytes).unwrap_or(usize::MAX);
        let more = more.checked_next_multiple_of(UNIT_BYTES).unwrap_or(more);
        let mut taken = self.room.taken.lock();
        let own = taken.tenants.get(&self.tenant).copied().unwrap_or_default();
        // It may be half of all at once: what stays free then is what counts.
        let all = taken.all.saturating_add(more);
        if !may_have(more, own, all, self.room.bytes) {
            return false;
        }
        taken.all = all;
        taken.tenants.insert(self.tenant.clone(), own + more);
        self.bytes += more;
        true
    }

    /// So many bytes are on their way no more.
    pub fn give_back(&mut self, bytes: u64) {
        let less = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.bytes);
        self.bytes -= less;
        let mut taken = self.room.taken.lock();
        taken.all -= less;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= less;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(u64::MAX);
    }
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
        assert_eq!(room.taken.lock().all, 0);
        assert!(room.taken.lock().tenants.is_empty());
    }
}
