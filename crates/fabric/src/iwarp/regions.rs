//! What the peer of one link may reach.

use std::collections::VecDeque;

use forebay_mem::RegionSlice;
use forebay_proto::iwarp;

use crate::{Access, Stag};

/// An STag is a slot's index in its low bits, and above them how often the slot was used, never zero.
const INDEX_BITS: u32 = 12;
const SLOTS_MAX: usize = 1 << INDEX_BITS;

/// The exposures of one link.
#[derive(Default)]
pub(super) struct Regions {
    slots: Vec<Slot>,
    /// Free slots; the longest free is used next.
    free: VecDeque<u32>,
}

struct Slot {
    stag: u32,
    exposed: Option<Exposed>,
}

struct Exposed {
    memory: RegionSlice,
    access: Access,
    /// Segments and answers in progress.
    pins: u32,
    /// Nothing new may begin.
    leaving: bool,
}

impl Regions {
    /// Names `memory`; `None` at the bound.
    pub(super) fn expose(&mut self, memory: RegionSlice, access: Access) -> Option<Stag> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < SLOTS_MAX => {
                self.slots.push(Slot {
                    stag: self.slots.len() as u32,
                    exposed: None,
                });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.stag = slot.stag.wrapping_add(1 << INDEX_BITS);
        if slot.stag >> INDEX_BITS == 0 {
            slot.stag += 1 << INDEX_BITS;
        }
        slot.exposed = Some(Exposed {
            memory,
            access,
            pins: 0,
            leaving: false,
        });
        Some(Stag(slot.stag))
    }

    /// Ends an exposure; false while something in progress still holds it.
    pub(super) fn withdraw(&mut self, stag: u32) -> bool {
        let Some(exposed) = self.named_mut(stag) else {
            return true;
        };
        exposed.leaving = true;
        if exposed.pins > 0 {
            return false;
        }
        self.free(stag);
        true
    }

    /// Ends all.
    pub(super) fn clear(&mut self) {
        *self = Regions::default();
    }

    /// The memory of an exposure that is in use or pinned.
    pub(super) fn memory(&self, stag: u32) -> Option<&RegionSlice> {
        self.named(stag).map(|exposed| &exposed.memory)
    }

    /// Keeps an exposure that was checked until [`Regions::unpin`].
    pub(super) fn pin(&mut self, stag: u32) {
        if let Some(exposed) = self.named_mut(stag) {
            exposed.pins += 1;
        }
    }

    /// Lets go; true when that ended an exposure, for which a withdrawal may be waiting. It ends here, and not when the withdrawal
    /// looks again: that may have been given up.
    pub(super) fn unpin(&mut self, stag: u32) -> bool {
        let Some(exposed) = self.named_mut(stag) else {
            return false;
        };
        exposed.pins = exposed.pins.saturating_sub(1);
        let ended = exposed.leaving && exposed.pins == 0;
        if ended {
            self.free(stag);
        }
        ended
    }

    fn named(&self, stag: u32) -> Option<&Exposed> {
        let slot = self.slots.get(index(stag))?;
        slot.exposed.as_ref().filter(|_| slot.stag == stag)
    }

    fn named_mut(&mut self, stag: u32) -> Option<&mut Exposed> {
        let slot = self.slots.get_mut(index(stag))?;
        slot.exposed.as_mut().filter(|_| slot.stag == stag)
    }

    fn free(&mut self, stag: u32) {
        if let Some(slot) = self.slots.get_mut(index(stag)) {
            slot.exposed = None;
            self.free.push_back(index(stag) as u32);
        }
    }
}

impl iwarp::Regions for Regions {
    fn check(
        &self,
        stag: u32,
        offset: u64,
        bytes: u64,
        access: iwarp::Access,
    ) -> Result<(), iwarp::Protection> {
        let exposed = self
            .named(stag)
            .filter(|exposed| !exposed.leaving)
            .ok_or(iwarp::Protection::Stag)?;
        let allowed = match access {
            iwarp::Access::Read => exposed.access.reads(),
            iwarp::Access::Write => exposed.access.writes(),
        };
        if !allowed {
            return Err(iwarp::Protection::Access);
        }
        let end = offset.checked_add(bytes).ok_or(iwarp::Protection::Bounds)?;
        if end > exposed.memory.len() as u64 {
            return Err(iwarp::Protection::Bounds);
        }
        Ok(())
    }

    fn may_invalidate(&self, stag: u32) -> bool {
        self.named(stag).is_some()
    }
}

fn index(stag: u32) -> usize {
    stag as usize & (SLOTS_MAX - 1)
}

#[cfg(test)]
mod tests {
    use forebay_mem::Region;
    use forebay_proto::iwarp::Regions as _;
    use proptest::prelude::*;

    use super::*;

    fn memory(bytes: usize) -> RegionSlice {
        let region = Region::anonymous(4096).unwrap();
        region.slice(0..bytes).unwrap()
    }

    #[test]
    fn names_are_never_zero_and_come_back_late() {
        let mut regions = Regions::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100_000 {
            let stag = regions.expose(memory(1), Access::Write).unwrap().0;
            assert!(stag >> INDEX_BITS != 0 && seen.insert(stag));
            assert!(regions.withdraw(stag));
        }
        regions.slots[0].stag = u32::MAX << INDEX_BITS;
        let wrapped = regions.expose(memory(1), Access::Write).unwrap();
        assert_eq!(wrapped.0, 1 << INDEX_BITS);
    }

    proptest! {
        /// Against a list: what may be reached is what is exposed, and what is withdrawn stays as long as it is pinned.
        #[test]
        fn only_what_is_exposed_is_reached(steps in proptest::collection::vec((0..5_u8, 0..8_usize), 0..200)) {
            let mut regions = Regions::default();
            let mut exposed: Vec<(u32, usize, u32)> = Vec::new();
            let mut leaving: Vec<(u32, u32)> = Vec::new();
            for (step, which) in steps {
                match step {
                    0 => {
                        let stag = regions.expose(memory(which + 1), Access::Write).unwrap();
                        exposed.push((stag.0, which + 1, 0));
                    }
                    1 if which < exposed.len() => {
                        let (stag, _, pins) = exposed.remove(which);
                        prop_assert_eq!(regions.withdraw(stag), pins == 0);
                        leaving.push((stag, pins));
                    }
                    2 if which < exposed.len() => {
                        regions.pin(exposed[which].0);
                        exposed[which].2 += 1;
                    }
                    3 if which < exposed.len() && exposed[which].2 > 0 => {
                        exposed[which].2 -= 1;
                        prop_assert!(!regions.unpin(exposed[which].0));
                    }
                    4 if which < leaving.len() && leaving[which].1 > 0 => {
                        leaving[which].1 -= 1;
                        let (stag, pins) = leaving[which];
                        prop_assert_eq!(regions.unpin(stag), pins == 0);
                    }
                    _ => {}
                }
                let reach = |stag, offset, bytes| regions.check(stag, offset, bytes, iwarp::Access::Write);
                for (stag, len, _) in &exposed {
                    prop_assert_eq!(reach(*stag, 0, *len as u64), Ok(()));
                    let beyond = Err(iwarp::Protection::Bounds);
                    prop_assert_eq!(reach(*stag, 1, *len as u64), beyond);
                    prop_assert_eq!(reach(*stag, u64::MAX, *len as u64), beyond);
                    let read = regions.check(*stag, 0, 1, iwarp::Access::Read);
                    prop_assert_eq!(read, Err(iwarp::Protection::Access));
                }
                for (stag, pins) in &leaving {
                    prop_assert_eq!(reach(*stag, 0, 1), Err(iwarp::Protection::Stag));
                    prop_assert_eq!(regions.memory(*stag).is_some(), *pins > 0);
                }
            }
        }
    }
}
