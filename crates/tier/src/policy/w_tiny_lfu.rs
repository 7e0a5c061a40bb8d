//! W-TinyLFU (Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017): a small window of what is
//! new; what leaves it must have been seen more often than what it would displace.

use super::lists::Lists;
use super::sketch::Sketch;
use super::{Policy, Slot};

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// What the sketch is sized by until items are known.
const ITEM_BYTES_GUESSED: u64 = 64 << 10;

/// A window of a hundredth, and a segmented LRU of which four fifths are protected.
#[derive(Debug)]
pub struct WTinyLfu {
    lists: Lists<3>,
    sketch: Sketch,
    capacity: u64,
}

impl WTinyLfu {
    /// For items of `capacity` bytes together.
    pub fn new(capacity: u64) -> WTinyLfu {
        WTinyLfu {
            lists: Lists::default(),
            sketch: Sketch::new(capacity / ITEM_BYTES_GUESSED),
            capacity,
        }
    }

    fn window_bytes(&self) -> u64 {
        (self.capacity / 100).max(1)
    }

    fn protected_bytes(&self) -> u64 {
        (self.capacity - self.capacity.min(self.window_bytes())) / 5 * 4
    }
}

impl Policy for WTinyLfu {
    fn insert(&mut self, print: u64, weight: u64) -> Slot {
        if self.lists.len() as u64 > self.sketch.items() * 2 {
            self.sketch = Sketch::new(self.lists.len() as u64 * 2);
        }
        self.sketch.see(print);
        self.lists.insert(WINDOW, print, weight)
    }

    fn touch(&mut self, slot: Slot) {
        let node = self.lists.node(slot);
        node.uses = node.uses.saturating_add(1);
        let (print, queue) = (node.print, node.queue);
        self.sketch.see(print);
        if queue == WINDOW {
            self.lists.renew(slot, WINDOW);
            return;
        }
        self.lists.renew(slot, PROTECTED);
        while self.lists.weight_of(PROTECTED) > self.protected_bytes()
            && let Some(oldest) = self.lists.oldest(PROTECTED)
        {
            self.lists.renew(oldest, PROBATION);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.lists.remove(slot);
    }

    fn evict(&mut self) -> Option<(Slot, u8)> {
        let main = self.capacity - self.capacity.min(self.window_bytes());
        while self.lists.weight_of(WINDOW) > self.window_bytes()
            && let Some(candidate) = self.lists.oldest(WINDOW)
        {
            let weight = self.lists.node(candidate).weight;
            let held = self.lists.weight_of(PROBATION) + self.lists.weight_of(PROTECTED);
            let victim = self
                .lists
                .oldest(PROBATION)
                .or_else(|| self.lists.oldest(PROTECTED));
            let Some(victim) = victim.filter(|_| held + weight > main) else {
                self.lists.renew(candidate, PROBATION);
                continue;
            };
            let prints = (
                self.lists.node(candidate).print,
                self.lists.node(victim).print,
            );
            let loser = match self.sketch.count(prints.0) > self.sketch.count(prints.1) {
                true => victim,
                false => candidate,
            };
            return Some((loser, self.lists.remove(loser).uses));
        }
        let slot = [PROBATION, WINDOW, PROTECTED]
            .into_iter()
            .find_map(|queue| self.lists.oldest(queue))?;
        Some((slot, self.lists.remove(slot).uses))
    }

    fn weight(&self) -> u64 {
        self.lists.weight()
    }
}
