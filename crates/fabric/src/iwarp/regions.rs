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

    /// Lets go; true when a withdrawal may be waiting for that.
    pub(super) fn unpin(&mut self, stag: u32) -> bool {
        let Some(exposed) = self.named_mut(stag) else {
            return false;
        };
        exposed.pins = exposed.pins.saturating_sub(1);
        exposed.leaving && exposed.pins == 0
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
