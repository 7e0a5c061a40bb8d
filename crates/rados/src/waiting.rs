//! Changes that happened, or may have, and wait for the index to know them.

use std::collections::{HashMap, HashSet};

use crate::names;
use crate::record::{Entry, Segment};
use crate::under_way::{Named, Sum};

/// Changes that may wait for one object of an index: whoever makes more waits with them.
pub(crate) const WAITING_MOST: usize = 64 << 10;
/// Of one key; the others have the rest.
const OF_ONE_KEY: usize = WAITING_MOST / 2;

/// A change that happened and that the index has to know.
#[derive(Debug, Clone)]
pub(crate) struct Settle {
    pub named: Named,
    /// What was there before: `None` is nothing.
    pub before: Option<Entry>,
    /// What is there now; `None`: the head has to be looked at.
    pub after: Option<Entry>,
    /// Entries of the journal that end with this.
    pub ended: HashSet<Vec<u8>>,
    /// Let go by it.
    pub freed: HashSet<Segment>,
    /// Whether it may also not have happened.
    pub unsure: bool,
    /// Already counted for it by this gateway.
    pub counted: Sum,
}

impl Settle {
    fn entry(&self) -> Vec<u8> {
        names::entry(self.named.space, &self.named.key)
    }

    /// How many changes it is.
    fn changes(&self) -> usize {
        self.ended.len().max(1)
    }

    /// Whether a change replaces what this one made.
    fn leads_to(&self, next: &Settle) -> bool {
        match (&self.after, &next.before) {
            (Some(after), Some(before)) => after == before,
            (Some(after), None) => after.known.is_none(),
            (None, _) => false,
        }
    }

    /// What ends with either of two changes of a key ends with both. They may be one, told of twice.
    fn join(&mut self, other: Settle) {
        self.ended.extend(other.ended);
        self.freed.extend(other.freed);
        self.counted = self.counted.plus(other.counted);
    }
}

/// Those of one object of an index.
#[derive(Default)]
pub(crate) struct Waiting {
    /// What is entered as it says, by the names of entries.
    known: HashMap<Vec<u8>, Settle>,
    /// What cannot be entered without looking at the key: one for what surely happened and one for what may have. Whatever was changed,
    /// one look tells it; so a key that cannot be looked at, and is told of by every sweep, takes no more room than once.
    unknown: HashMap<(Vec<u8>, bool), Settle>,
    /// How many changes these are.
    changes: usize,
    /// How many were taken, and are being entered.
    taken: usize,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.known.len() + self.unknown.len() + self.taken
    }

    /// Whether one of this entry waits, and is not being entered.
    pub fn has(&self, entry: &[u8]) -> bool {
        let unknown = |unsure| self.unknown.contains_key(&(entry.to_vec(), unsure));
        self.known.contains_key(entry) || unknown(false) || unknown(true)
    }

    /// Whether no other change of this entry is to wait.
    pub fn is_full_for(&self, entry: &[u8]) -> bool {
        if self.changes + self.taken >= WAITING_MOST {
            return true;
        }
        // One has no more of them than all have.
        if self.changes < OF_ONE_KEY {
            return false;
        }
        let unknown = |unsure| self.unknown.get(&(entry.to_vec(), unsure));
        let of_it = [self.known.get(entry), unknown(false), unknown(true)];
        let of_it = of_it.into_iter().flatten().map(Settle::changes);
        of_it.sum::<usize>() >= OF_ONE_KEY
    }

    /// One more.
    pub fn add(&mut self, settle: Settle) {
        if settle.after.is_none() {
            return self.look_at(settle);
        }
        let name = settle.entry();
        match self.known.get_mut(&name) {
            None => {
                self.changes += settle.changes();
                self.known.insert(name, settle);
            }
            // One entry can be replaced once in an operation: what follows a change in line joins it.
            Some(first) if first.leads_to(&settle) => {
                let before = first.changes();
                first.after = settle.after.clone();
                first.join(settle);
                self.changes += first.changes() - before;
            }
            Some(_) => self.look_at(settle),
        }
    }

    /// One that cannot be entered as it says.
    pub fn look_at(&mut self, settle: Settle) {
        match self.unknown.get_mut(&(settle.entry(), settle.unsure)) {
            None => {
                let key = (settle.entry(), settle.unsure);
                self.changes += settle.changes();
                self.unknown.insert(key, settle);
            }
            Some(first) => {
                let before = first.changes();
                first.join(settle);
                self.changes += first.changes() - before;
            }
        }
    }

    /// Takes some of those that are entered as they say. [`Waiting::done`] has to be told of each that is taken.
    pub fn take_known(&mut self, most: usize) -> Vec<(Vec<u8>, Settle)> {
        let names: Vec<Vec<u8>> = self.known.keys().take(most).cloned().collect();
        let taken = names.iter();
        let taken: Vec<_> = taken
            .filter_map(|name| self.known.remove_entry(name))
            .collect();
        let changes = taken.iter().map(|(_, settle)| settle.changes());
        self.changes -= changes.sum::<usize>();
        self.taken += taken.len();
        taken
    }

    /// Takes all others, each time in another order.
    pub fn take_unknown(&mut self) -> Vec<Settle> {
        let taken: Vec<_> = std::mem::take(&mut self.unknown).into_values().collect();
        self.changes -= taken.iter().map(Settle::changes).sum::<usize>();
        self.taken += taken.len();
        taken
    }

    /// So many that were taken are entered, or wait again.
    pub fn done(&mut self, taken: usize) {
        self.taken -= taken;
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::Space;

    use super::*;

    fn found(key: &[u8], ended: &[&[u8]]) -> Settle {
        Settle {
            named: Named::object(key.to_vec()),
            before: None,
            after: None,
            ended: ended.iter().map(|name| name.to_vec()).collect(),
            freed: HashSet::new(),
            unsure: true,
            counted: Sum::default(),
        }
    }

    #[test]
    fn what_is_told_again_waits_once() {
        let mut waiting = Waiting::default();
        for _ in 0..6 {
            waiting.add(found(b"k", &[b"p1"]));
            let mut taken = waiting.take_unknown();
            waiting.add(found(b"k", &[b"p1", b"p2"]));
            assert_eq!(waiting.len(), 2, "one of them is being entered");
            waiting.look_at(taken.pop().unwrap());
            waiting.done(1);
            assert!(taken.is_empty());
        }
        let sure = Settle {
            unsure: false,
            counted: Sum {
                objects: 1,
                bytes: 5,
            },
            ..found(b"k", &[b"p3"])
        };
        waiting.add(sure.clone());
        waiting.add(Settle {
            ended: [b"p4".to_vec()].into(),
            ..sure
        });
        waiting.add(found(b"other", &[]));
        assert_eq!(waiting.len(), 3);
        let mut all = waiting.take_unknown();
        all.sort_by_key(|settle| (settle.named.key.clone(), settle.unsure));
        let ended: Vec<usize> = all.iter().map(|settle| settle.ended.len()).collect();
        assert_eq!(ended, [2, 2, 0], "as many changes as there were");
        assert_eq!(all[0].counted.bytes, 10);
    }

    #[test]
    fn what_waits_is_bounded_of_one_key_and_of_all() {
        let mut waiting = Waiting::default();
        let fill = |waiting: &mut Waiting, key: &[u8]| {
            let entry = names::entry(Space::Objects, key);
            let mut before = None;
            for version in 0..OF_ONE_KEY as u64 {
                assert!(!waiting.is_full_for(&entry));
                let after = Some(Entry::of(version, None));
                waiting.add(Settle {
                    before: std::mem::replace(&mut before, after.clone()),
                    after,
                    ..found(key, &[&version.to_be_bytes()])
                });
            }
            assert!(waiting.is_full_for(&entry));
        };
        let other = names::entry(Space::Objects, b"other");
        fill(&mut waiting, b"k");
        assert!(!waiting.is_full_for(&other));
        fill(&mut waiting, b"l");
        assert!(waiting.is_full_for(&other) && waiting.len() == 2);
        let taken = waiting.take_known(1);
        assert!(!waiting.is_full_for(&other));
        waiting.done(taken.len());
        for (_, settle) in taken {
            waiting.look_at(settle);
        }
        assert!(waiting.is_full_for(&other));
    }
}
