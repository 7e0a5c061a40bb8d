//! What is on the disk: what a shard knows of it, which takes memory, too.

use crate::index::{Fallout, Place};
use crate::shard::{Object, Shard, attributes_bytes};

/// Of its memory, and of the disk, what may be known of values that are there.
const INDEX_MEMORY_PART: u64 = 8;
const INDEX_DISK_PART: u64 = 512;
/// What that takes of memory for a value, beside its key and attributes, and for each of its pieces, about.
const OBJECT_BYTES: u64 = 512;
const SHELVED_BYTES: u64 = 192;

impl Object {
    /// What it takes of memory for being on the disk.
    pub fn index_bytes(&self) -> u64 {
        let value = OBJECT_BYTES + self.place.key.len() as u64 + attributes_bytes(&self.meta);
        match self.shelved {
            0 => 0,
            pieces => value + pieces * SHELVED_BYTES,
        }
    }
}

impl Shard {
    /// Whether the disk has more than it may, or what is known of that takes more memory.
    pub fn is_disk_over(&self) -> bool {
        self.disk.policy.weight() > self.disk_bytes || self.index_bytes > self.index_bytes_max()
    }

    /// Whether both have room for everything that comes.
    pub fn has_disk_room(&self) -> bool {
        let free = |taken: u64, most: u64| taken + (most >> 4) < most;
        free(self.disk.policy.weight(), self.disk_bytes)
            && free(self.index_bytes, self.index_bytes_max())
    }

    fn index_bytes_max(&self) -> u64 {
        self.memory_bytes / INDEX_MEMORY_PART + self.disk_bytes / INDEX_DISK_PART
    }

    /// Notes a piece on the disk; its value is held.
    pub fn shelve(&mut self, place: &Place, number: u32, weight: u64) {
        let slot = self.disk.insert(place, number, weight);
        let Some(object) = self.object_mut(place) else {
            self.disk.remove(slot);
            return;
        };
        match object.part_mut(number).disk.replace(slot) {
            Some(before) => self.disk.remove(before),
            None => {
                let before = object.index_bytes();
                object.shelved += 1;
                let more = object.index_bytes() - before;
                self.index_bytes += more;
            }
        }
    }

    /// A piece of a value is on the disk no more.
    pub fn unshelve(&mut self, place: &Place) {
        let Some(object) = self.object_mut(place) else {
            return;
        };
        let before = object.index_bytes();
        object.shelved -= 1;
        let less = before - object.index_bytes();
        self.index_bytes -= less;
    }

    /// Forgets so many pieces on the disk, if there are; whether there may be more.
    pub fn forget_disk(&mut self, most: usize) -> bool {
        let mut fallout = Fallout::default();
        (0..most).all(|_| self.evict_disk(&mut fallout))
    }

    /// Takes a piece off the disk.
    pub fn evict_disk(&mut self, fallout: &mut Fallout) -> bool {
        let Some((place, number, _)) = self.disk.evict() else {
            return false;
        };
        if let Some(object) = self.object_mut(&place) {
            let part = object.part_mut(number);
            part.disk = None;
            if part.memory.is_none() {
                object.parts.retain(|part| part.0 != number);
            }
        }
        self.unshelve(&place);
        fallout.discard.push((place.clone(), number));
        self.leave_empty(&place);
        true
    }
}
