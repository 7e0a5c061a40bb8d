//! Numbers of controllers, and who may have how many, and how many connections: whoever comes often leaves some to the others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::admission::random;

/// The greatest number of a controller.
const LAST: u16 = 0xffef;
/// Of all numbers, those that hosts have together that did not prove who they are, and controllers for discovery, which anybody gets.
const STRANGERS_SHARE: usize = 2;
/// Of all numbers, those that one host has.
const HOST_SHARE: usize = 4;

/// For whom a number is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// A device that the server's owner attached.
    Device,
    /// Somebody who may not be who it says.
    Stranger,
    /// The host of this name.
    Host(Arc<str>),
}

/// Numbers of controllers that are in use.
#[derive(Debug)]
pub(super) struct Identifiers {
    taken: Mutex<Taken>,
    max: usize,
}

#[derive(Debug)]
struct Taken {
    previous: u16,
    held: BTreeMap<u16, Held>,
}

/// A number that is in use.
#[derive(Debug)]
struct Held {
    by: Holder,
    /// Connections of its controller, beside the first.
    connections: usize,
}

impl Taken {
    /// Connections of a holder: one of each of its controllers, and more.
    fn held_by(&self, holder: &Holder) -> usize {
        let held = self.held.values().filter(|held| held.by == *holder);
        held.map(|held| 1 + held.connections).sum()
    }
}

/// One number, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Identifier {
    cntlid: u16,
    all: Arc<Identifiers>,
}

impl Identifiers {
    /// The first number is any: other servers may show the same subsystem, and a host knows no two controllers of it by one number.
    pub(super) fn new(max: u16) -> Arc<Identifiers> {
        let mut previous = [0; 2];
        random(&mut previous);
        let taken = Taken {
            previous: u16::from_le_bytes(previous) % LAST,
            held: BTreeMap::new(),
        };
        Arc::new(Identifiers {
            taken: Mutex::new(taken),
            max: usize::from(max),
        })
    }

    /// How many connections such a holder may have: no more than a part of the numbers.
    fn share(&self, holder: &Holder) -> usize {
        match holder {
            Holder::Device => self.max,
            Holder::Stranger => self.max.div_ceil(STRANGERS_SHARE),
            Holder::Host(_) => self.max.div_ceil(HOST_SHARE),
        }
    }

    /// I/O queues that each host can have.
    pub(super) fn io_queues_max(&self) -> u16 {
        let share = self.max.div_ceil(HOST_SHARE).saturating_sub(1).max(1);
        u16::try_from(share).unwrap_or(u16::MAX)
    }

    /// A number that was not given out for as long as can be: a host that comes too late with an old one finds nobody. `None`: all, or all
    /// that such a holder may have, are taken.
    pub(super) fn take(self: &Arc<Identifiers>, holder: Holder) -> Option<Identifier> {
        let mut taken = self.taken.lock();
        if taken.held.len() >= self.max || taken.held_by(&holder) >= self.share(&holder) {
            return None;
        }
        loop {
            let next = if taken.previous >= LAST {
                1
            } else {
                taken.previous + 1
            };
            taken.previous = next;
            if let Entry::Vacant(free) = taken.held.entry(next) {
                free.insert(Held {
                    by: holder,
                    connections: 0,
                });
                return Some(Identifier {
                    cntlid: next,
                    all: self.clone(),
                });
            }
        }
    }
}

impl Identifier {
    pub(super) fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Its holder has proven that it is the host of this name; `false`: that host has all that it may have.
    pub(super) fn proven(&self, nqn: &str) -> bool {
        let host = Holder::Host(nqn.into());
        let mut taken = self.all.taken.lock();
        let before = taken.held_by(&host);
        let Some(held) = taken.held.get_mut(&self.cntlid) else {
            return false;
        };
        if held.by == host {
            return true;
        }
        let room = before < self.all.share(&host);
        if room {
            held.by = host;
        }
        room
    }
}

/// One more connection of a controller, until this is dropped.
#[derive(Debug)]
pub(crate) struct Connection(Arc<Identifier>);

impl Connection {
    /// `None`: its holder has all that it may have.
    pub(super) fn of(identifier: &Arc<Identifier>) -> Option<Connection> {
        let mut taken = identifier.all.taken.lock();
        let by = taken.held.get(&identifier.cntlid)?.by.clone();
        if taken.held_by(&by) >= identifier.all.share(&by) {
            return None;
        }
        taken.held.get_mut(&identifier.cntlid)?.connections += 1;
        Some(Connection(identifier.clone()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Connection(identifier) = self;
        if let Some(held) = identifier.all.taken.lock().held.get_mut(&identifier.cntlid) {
            held.connections -= 1;
        }
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.all.taken.lock().held.remove(&self.cntlid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(nqn: &str) -> Holder {
        Holder::Host(nqn.into())
    }

    #[test]
    fn whoever_comes_often_leaves_some_to_the_others() {
        let all = Identifiers::new(16);
        let mut one: Vec<_> = (0..4).map(|_| all.take(host("one")).unwrap()).collect();
        assert!(all.take(host("one")).is_none());
        let strangers: Vec<_> = (0..8)
            .map(|_| all.take(Holder::Stranger).unwrap())
            .collect();
        assert!(all.take(Holder::Stranger).is_none());
        let other: Vec<_> = (0..4).map(|_| all.take(host("other")).unwrap()).collect();
        // All are taken.
        assert!(all.take(Holder::Device).is_none());
        // A stranger who is known now leaves the strangers' share, and has a part of its own.
        assert!(!strangers[0].proven("one"));
        one.pop();
        assert!(strangers[0].proven("one"));
        assert!(strangers[0].proven("one"), "again");
        assert!(all.take(host("one")).is_none());
        assert!(all.take(Holder::Stranger).is_some());
        drop((one, other, strangers));
        assert_eq!(
            (0..99)
                .map_while(|_| Some(all.take(Holder::Device)?.cntlid()))
                .count(),
            99
        );
    }

    #[test]
    fn a_number_comes_again_as_late_as_can_be() {
        let all = Identifiers::new(2);
        let first = all.take(Holder::Device).unwrap().cntlid();
        let second = all.take(Holder::Device).unwrap().cntlid();
        assert_ne!(first, second);
    }
}
