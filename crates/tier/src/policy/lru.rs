//! The least recently used leaves: what the others are compared with.

use super::lists::Lists;
use super::{Policy, Slot};

/// One queue in order of last use.
#[derive(Debug, Default)]
pub struct Lru {
    lists: Lists<1>,
}

impl Policy for Lru {
    fn insert(&mut self, print: u64, weight: u64) -> Slot {
        self.lists.insert(0, print, weight)
    }

    fn touch(&mut self, slot: Slot) {
        let node = self.lists.node(slot);
        node.uses = node.uses.saturating_add(1);
        self.lists.renew(slot, 0);
    }

    fn remove(&mut self, slot: Slot) {
        self.lists.remove(slot);
    }

    fn evict(&mut self) -> Option<(Slot, u8)> {
        let slot = self.lists.oldest(0)?;
        Some((slot, self.lists.remove(slot).uses))
    }

    fn weight(&self) -> u64 {
        self.lists.weight()
    }
}
