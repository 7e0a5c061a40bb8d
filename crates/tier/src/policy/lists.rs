//! Queues through one slab of items: every item stands in one queue, and leaves it from anywhere in constant time.

/// The number of an item while it is in a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// As a position in a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

const NONE: u32 = u32::MAX;

/// One item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub print: u64,
    pub weight: u64,
    pub uses: u8,
    pub queue: u8,
    newer: u32,
    older: u32,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    weight: u64,
}

/// `N` queues. Every slot given to a method is of an item that is in.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    nodes: Vec<Node>,
    free: Vec<u32>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Lists<N> {
        let empty = Ends {
            newest: NONE,
            oldest: NONE,
            weight: 0,
        };
        Lists {
            nodes: Vec::new(),
            free: Vec::new(),
            ends: [empty; N],
        }
    }
}

impl<const N: usize> Lists<N> {
    /// A new item, newest of `queue`.
    pub fn insert(&mut self, queue: u8, print: u64, weight: u64) -> Slot {
        let node = Node {
            print,
            weight,
            uses: 0,
            queue,
            newer: NONE,
            older: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.link(at, queue);
        Slot(at)
    }

    /// Takes an item out for good.
    pub fn remove(&mut self, slot: Slot) -> Node {
        self.unlink(slot.0);
        self.free.push(slot.0);
        self.nodes[slot.index()]
    }

    /// Makes an item the newest of `queue`.
    pub fn renew(&mut self, slot: Slot, queue: u8) {
        self.unlink(slot.0);
        self.link(slot.0, queue);
    }

    pub fn node(&mut self, slot: Slot) -> &mut Node {
        &mut self.nodes[slot.index()]
    }

    pub fn oldest(&self, queue: u8) -> Option<Slot> {
        let oldest = self.ends[usize::from(queue)].oldest;
        (oldest != NONE).then_some(Slot(oldest))
    }

    pub fn weight_of(&self, queue: u8) -> u64 {
        self.ends[usize::from(queue)].weight
    }

    pub fn weight(&self) -> u64 {
        self.ends.iter().map(|ends| ends.weight).sum()
    }

    /// Items in all queues.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    fn link(&mut self, at: u32, queue: u8) {
        let ends = &mut self.ends[usize::from(queue)];
        let next = std::mem::replace(&mut ends.newest, at);
        if next == NONE {
            ends.oldest = at;
        }
        let node = &mut self.nodes[at as usize];
        (node.queue, node.newer, node.older) = (queue, NONE, next);
        ends.weight += node.weight;
        if next != NONE {
            self.nodes[next as usize].newer = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node {
            newer,
            older,
            queue,
            weight,
            ..
        } = self.nodes[at as usize];
        let ends = &mut self.ends[usize::from(queue)];
        ends.weight -= weight;
        match newer {
            NONE => ends.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => ends.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }
}
