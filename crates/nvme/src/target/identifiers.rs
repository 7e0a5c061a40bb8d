//! Numbers of controllers, and who may have how many, and how many connections: whoever comes often leaves some to the others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::discriminant;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use super::admission::random;

/// The greatest number of a controller.
const LAST: u16 = 0xffef;
/// Of all numbers, those that hosts have together that have still to prove who they are, and as many those that ask for discovery, which
/// anybody may: neither leaves the other without any, nor hosts that are known.
const STRANGERS_SHARE: usize = 4;
/// Of those, what has one network.
const NETWORK_SHARE: usize = 2;
/// Of all numbers, those that one host has.
const HOST_SHARE: usize = 4;
/// Bits of an address of IPv6 that its holder chooses.
const CHOSEN_BITS: u32 = 64;

/// For whom a number is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// A device that the server's owner attached.
    Device,
    /// A host that has still to prove who it is.
    Unproven(Network),
    /// Somebody who asks for discovery.
    Discovery(Network),
    /// The host of this name.
    Host(Arc<str>),
}

/// Where somebody comes from, who may have any name: its address, or as much of that as it cannot choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network(Option<IpAddr>);

impl Network {
    /// Of an address, where the transport has one.
    pub(super) fn of(address: Option<IpAddr>) -> Network {
        Network(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => {
                let bits = address.to_bits() >> CHOSEN_BITS << CHOSEN_BITS;
                Ipv6Addr::from_bits(bits).into()
            }
            address => address,
        }))
    }
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
    /// Connections of such holders: one of each of their controllers, and more.
    fn held_by(&self, such: impl Fn(&Holder) -> bool) -> usize {
        let held = self.held.values().filter(|held| such(&held.by));
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

    /// Whether a holder may have one more connection: it has no more than a part of the numbers.
    fn has_room(&self, taken: &Taken, holder: &Holder) -> bool {
        let has = |share: usize, such: &dyn Fn(&Holder) -> bool| {
            taken.held_by(such) < self.max.div_ceil(share)
        };
        let own = |by: &Holder| by == holder;
        match holder {
            Holder::Device => true,
            Holder::Host(_) => has(HOST_SHARE, &own),
            Holder::Unproven(_) | Holder::Discovery(_) => {
                let alike = |by: &Holder| discriminant(by) == discriminant(holder);
                has(STRANGERS_SHARE, &alike) && has(STRANGERS_SHARE * NETWORK_SHARE, &own)
            }
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
        if taken.held.len() >= self.max || !self.has_room(&taken, &holder) {
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
        let room = self.all.has_room(&taken, &host);
        let Some(held) = taken.held.get_mut(&self.cntlid) else {
            return false;
        };
        if held.by == host {
            return true;
        }
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
        let by = &taken.held.get(&identifier.cntlid)?.by;
        if !identifier.all.has_room(&taken, by) {
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

    fn from(address: &str) -> Network {
        Network::of(Some(address.parse().unwrap()))
    }

    /// All that such holders get, the first of them first.
    fn all_of(all: &Arc<Identifiers>, holders: impl Iterator<Item = Holder>) -> Vec<Identifier> {
        let taken = |holder: Holder| std::iter::from_fn(move || all.take(holder.clone()));
        holders.flat_map(taken).collect()
    }

    #[test]
    fn whoever_comes_often_leaves_some_to_the_others() {
        let all = Identifiers::new(16);
        let networks = || (1..=9).map(|last| from(&format!("10.0.0.{last}")));
        let mut one = all_of(&all, [host("one")].into_iter());
        let mut unproven = all_of(&all, networks().map(Holder::Unproven));
        let discovery = all_of(&all, networks().map(Holder::Discovery));
        let other = all_of(&all, [host("other")].into_iter());
        let counts = [one.len(), unproven.len(), discovery.len(), other.len()];
        assert_eq!(counts, [4; 4]);
        // All are taken.
        assert!(all.take(Holder::Device).is_none());
        // Whoever is known now leaves the strangers' share, and has a part of its own.
        assert!(!unproven[0].proven("one"));
        one.pop();
        assert!(unproven[0].proven("one"));
        assert!(unproven[0].proven("one"), "again");
        assert!(all.take(host("one")).is_none());
        unproven.push(all.take(Holder::Unproven(from("10.0.0.1"))).unwrap());
        drop((one, other, unproven, discovery));
        assert_eq!(
            (0..99)
                .map_while(|_| Some(all.take(Holder::Device)?.cntlid()))
                .count(),
            99
        );
    }

    #[test]
    fn one_network_leaves_some_to_the_others() {
        let all = Identifiers::new(32);
        for kind in [Holder::Unproven, Holder::Discovery] {
            let mut held = Vec::new();
            // What the last four groups of an address are is its holder's choice.
            for network in [
                "2001:db8::1",
                "2001:db8::ffff:2",
                "::ffff:10.0.0.1",
                "10.0.0.1",
            ] {
                held.extend(all_of(&all, [kind(from(network))].into_iter()));
            }
            assert_eq!(held.len(), 8);
            assert_eq!(all_of(&all, [kind(Network::of(None))].into_iter()).len(), 0);
            held.pop();
            assert!(all.take(kind(from("2001:db8::3"))).is_none());
            assert!(all.take(kind(from("2001:db8:0:1::1"))).is_some());
        }
    }

    #[test]
    fn a_number_comes_again_as_late_as_can_be() {
        let all = Identifiers::new(2);
        let first = all.take(Holder::Device).unwrap().cntlid();
        let second = all.take(Holder::Device).unwrap().cntlid();
        assert_ne!(first, second);
    }
}
