//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): a small queue of what is new, a main one
//! of what was used again, and a memory of what left the small one too early. The small queue's share is learned.

use std::collections::{HashMap, VecDeque};

use super::lists::Lists;
use super::{Policy, Slot};

const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// What is remembered of those that left, when the share is learned, in multiples of the capacity: KV blocks come back after a
/// multiple of what a cache holds, and a memory as long as the cache (the paper's) does not see them.
const GHOST_CAPACITIES: u64 = 4;
const USES_MOST: u8 = 3;
/// Of them and of those that left the main queue there are this many at the most, unless fewer may be remembered.
const GHOSTS_MAX: usize = 1 << 22;
/// What one takes: twice its print and its place, in a queue and in a table that is not full.
pub(crate) const GHOST_BYTES: u64 = 48;

/// The small queue's share of the capacity, in 1/1024.
const SHARE_FIRST: u64 = 102;
const SHARE_LEAST: u64 = 51;
const SHARE_MOST: u64 = 614;
const LEARN_WITHIN: u64 = 4;
const LEARN_STEP: u64 = 1024;

/// Two queues and the prints of what left.
#[derive(Debug)]
pub struct S3Fifo {
    lists: Lists<2>,
    capacity: u64,
    /// In 1/1024.
    share: u64,
    learns: bool,
    /// Uses in the small queue that promote.
    promote_at: u8,
    ghost: Ghosts,
    /// Of those that left the main queue.
    lost: Ghosts,
}

impl S3Fifo {
    /// With a learned share and a long memory.
    pub fn new(capacity: u64) -> S3Fifo {
        S3Fifo {
            lists: Lists::default(),
            capacity,
            share: SHARE_FIRST,
            learns: true,
            promote_at: 1,
            ghost: Ghosts::new(capacity.saturating_mul(GHOST_CAPACITIES)),
            lost: Ghosts::new(capacity),
        }
    }

    /// As it was published: a tenth, promoted by two uses, a memory as long as the main queue.
    pub fn published(capacity: u64) -> S3Fifo {
        S3Fifo {
            learns: false,
            promote_at: 2,
            ghost: Ghosts::new(capacity - capacity / 10),
            ..S3Fifo::new(capacity)
        }
    }

    fn small_bytes(&self) -> u64 {
        (self.capacity / 1024 * self.share).max(1)
    }

    /// What came back soon after it left says which queue was too short. Given are the bytes that left after it did.
    fn learn(&mut self, from_small: Option<u64>, from_main: Option<u64>, weight: u64) {
        let soon = |age: &u64| *age <= self.capacity / LEARN_WITHIN;
        let step = (weight.saturating_mul(LEARN_STEP) / self.capacity.max(1)).clamp(1, 64);
        if from_small.as_ref().is_some_and(soon) {
            self.share = (self.share + step).min(SHARE_MOST);
        }
        if from_main.as_ref().is_some_and(soon) {
            self.share = self.share.saturating_sub(step).max(SHARE_LEAST);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, print: u64, weight: u64) -> Slot {
        let from_small = self.ghost.take(print);
        let from_main = self.lost.take(print);
        if self.learns {
            self.learn(from_small, from_main, weight);
        }
        match from_small.or(from_main) {
            Some(_) => self.lists.insert(MAIN, print, weight),
            None => self.lists.insert(SMALL, print, weight),
        }
    }

    fn touch(&mut self, slot: Slot) {
        let node = self.lists.node(slot);
        node.uses = (node.uses + 1).min(USES_MOST);
    }

    fn remove(&mut self, slot: Slot) {
        self.lists.remove(slot);
    }

    fn evict(&mut self) -> Option<(Slot, u8)> {
        loop {
            let small = self.lists.oldest(SMALL).filter(|_| {
                self.lists.weight_of(SMALL) >= self.small_bytes()
                    || self.lists.oldest(MAIN).is_none()
            });
            let slot = small.or_else(|| self.lists.oldest(MAIN))?;
            let node = self.lists.node(slot);
            let uses = node.uses;
            match node.queue {
                SMALL if uses >= self.promote_at => {
                    node.uses = 0;
                    self.lists.renew(slot, MAIN);
                }
                SMALL => {
                    let gone = self.lists.remove(slot);
                    self.ghost.remember(gone.print, gone.weight);
                    return Some((slot, uses));
                }
                _ if uses > 0 => {
                    node.uses -= 1;
                    self.lists.renew(slot, MAIN);
                }
                _ => {
                    let gone = self.lists.remove(slot);
                    if self.learns {
                        self.lost.remember(gone.print, gone.weight);
                    }
                    return Some((slot, uses));
                }
            }
        }
    }

    fn weight(&self) -> u64 {
        self.lists.weight()
    }

    fn remember(&mut self, most: usize) {
        let lost = most / (GHOST_CAPACITIES as usize + 1);
        self.lost.shorten(lost);
        self.ghost.shorten(most - lost);
    }
}

/// Prints of what left, oldest first, of a bounded weight.
#[derive(Debug)]
struct Ghosts {
    order: VecDeque<(u64, u64)>,
    /// By print, the bytes that had left before it.
    known: HashMap<u64, u64>,
    left: u64,
    most: u64,
    prints_most: usize,
}

impl Ghosts {
    fn new(most: u64) -> Ghosts {
        Ghosts {
            order: VecDeque::new(),
            known: HashMap::new(),
            left: 0,
            most,
            prints_most: GHOSTS_MAX,
        }
    }

    fn shorten(&mut self, prints_most: usize) {
        self.prints_most = prints_most.min(GHOSTS_MAX);
        self.forget();
        self.order.shrink_to(prints_most);
        self.known.shrink_to(prints_most);
    }

    fn remember(&mut self, print: u64, weight: u64) {
        self.known.insert(print, self.left);
        self.order.push_back((print, self.left));
        self.left += weight;
        self.forget();
    }

    fn forget(&mut self) {
        while let Some((print, at)) = self.order.front().copied()
            && (self.left - at > self.most || self.order.len() > self.prints_most)
        {
            self.order.pop_front();
            if self.known.get(&print) == Some(&at) {
                self.known.remove(&print);
            }
        }
    }

    /// When it is remembered, the bytes that left since; it is not remembered any more, then.
    fn take(&mut self, print: u64) -> Option<u64> {
        self.known.remove(&print).map(|at| self.left - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remembered_than_is_said() {
        let mut policy = S3Fifo::new(100);
        let comes_and_goes = |policy: &mut S3Fifo, prints: std::ops::Range<u64>| {
            for print in prints {
                policy.insert(print, 1);
                policy.evict();
            }
        };
        comes_and_goes(&mut policy, 0..300);
        assert_eq!(policy.ghost.known.len(), 300);
        policy.remember(10);
        assert_eq!(policy.ghost.known.len(), 8, "the latest");
        comes_and_goes(&mut policy, 300..900);
        assert_eq!((policy.ghost.known.len(), policy.ghost.order.len()), (8, 8));
        assert!(policy.ghost.take(899).is_some() && policy.ghost.take(891).is_none());
    }
}
