//! Results of functions that wait for their hosts to fetch them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use forebay_mem::Buf;
use forebay_store::limits::may_have;
use parking_lot::Mutex;

/// Results of one controller that wait.
const HANDLES_MAX: usize = 64;
/// A result that nobody fetches is forgotten, in milliseconds.
const IDLE_MS: u64 = 120_000;

/// The results of one controller, by handle.
type All = Mutex<BTreeMap<u32, Arc<Kept>>>;

/// Room for the results of all controllers, which tenants share ([`may_have`]).
#[derive(Debug)]
pub(super) struct Room {
    bytes: usize,
    taken: Mutex<Taken>,
    controllers: Mutex<Vec<Weak<All>>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    tenants: HashMap<Box<str>, usize>,
}

/// Some of the room; free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    tenant: Box<str>,
    bytes: usize,
}

impl Room {
    pub(super) fn new(bytes: usize) -> Arc<Room> {
        Arc::new(Room {
            bytes,
            taken: Mutex::default(),
            controllers: Mutex::default(),
        })
    }

    /// Room for so many bytes of a tenant's. When there is none, what nobody fetched for long makes room, whoever it is for.
    fn take(self: &Arc<Room>, tenant: &str, bytes: usize, now_ms: u64) -> Option<Place> {
        self.take_free(tenant, bytes).or_else(|| {
            let controllers = self.controllers.lock().clone();
            for results in controllers.iter().filter_map(Weak::upgrade) {
                forget_old(&mut results.lock(), now_ms);
            }
            self.take_free(tenant, bytes)
        })
    }

    fn take_free(self: &Arc<Room>, tenant: &str, bytes: usize) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = taken.tenants.get(tenant).copied().unwrap_or_default();
        if !may_have(bytes, own, taken.all, self.bytes) {
            return None;
        }
        taken.all += bytes;
        *taken.tenants.entry(tenant.into()).or_default() += bytes;
        Some(Place {
            room: Arc::clone(self),
            tenant: tenant.into(),
            bytes,
        })
    }
}

impl Place {
    /// Gives back what is not needed.
    fn shrink(&mut self, bytes: usize) {
        let spare = self.bytes.saturating_sub(bytes);
        self.bytes -= spare;
        let mut taken = self.room.taken.lock();
        taken.all -= spare;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= spare;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// A result.
#[derive(Debug)]
pub(super) struct Kept {
    nsid: u32,
    pub(super) bytes: Vec<Buf>,
    pub(super) len: usize,
    made_ms: u64,
    _place: Place,
}

impl Kept {
    fn is_old(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.made_ms) >= IDLE_MS
    }
}

fn forget_old(results: &mut BTreeMap<u32, Arc<Kept>>, now_ms: u64) {
    results.retain(|_, result| !result.is_old(now_ms));
}

/// The results of one controller.
#[derive(Debug)]
pub(super) struct Results {
    room: Arc<Room>,
    kept: Arc<All>,
}

impl Results {
    pub(super) fn of(room: &Arc<Room>) -> Results {
        let kept = Arc::default();
        let mut controllers = room.controllers.lock();
        controllers.retain(|results| results.strong_count() > 0);
        controllers.push(Arc::downgrade(&kept));
        Results {
            room: Arc::clone(room),
            kept,
        }
    }

    /// Room for a result of so many bytes out of a tenant's namespace, before it is made.
    pub(super) fn reserve(&self, tenant: &str, bytes: usize, now_ms: u64) -> Option<Place> {
        {
            let mut kept = self.kept.lock();
            forget_old(&mut kept, now_ms);
            if kept.len() >= HANDLES_MAX {
                return None;
            }
        }
        self.room.take(tenant, bytes, now_ms)
    }

    /// Keeps a result of a namespace in the room that was reserved for it. `handle` is random: one that is taken, or 0, is not used.
    /// `None` when other results took the last handle meanwhile.
    pub(super) fn keep(
        &self,
        mut handle: u32,
        nsid: u32,
        bytes: Vec<Buf>,
        mut place: Place,
        now_ms: u64,
    ) -> Option<u32> {
        let mut kept = self.kept.lock();
        if kept.len() >= HANDLES_MAX {
            return None;
        }
        while handle == 0 || kept.contains_key(&handle) {
            handle = handle.wrapping_add(1);
        }
        let len = bytes.iter().map(|buf| buf.len()).sum();
        place.shrink(len);
        let result = Kept {
            nsid,
            bytes,
            len,
            made_ms: now_ms,
            _place: place,
        };
        kept.insert(handle, Arc::new(result));
        Some(handle)
    }

    pub(super) fn get(&self, handle: u32, nsid: u32, now_ms: u64) -> Option<Arc<Kept>> {
        let kept = self.kept.lock();
        let result = kept.get(&handle)?;
        (result.nsid == nsid && !result.is_old(now_ms)).then(|| Arc::clone(result))
    }

    /// Its last byte was fetched.
    pub(super) fn forget(&self, handle: u32) {
        self.kept.lock().remove(&handle);
    }

    pub(super) fn clear(&self) {
        self.kept.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<Buf> {
        vec![Buf::from(vec![7; len])]
    }

    #[test]
    fn what_waits_is_bounded_and_makes_room_when_it_is_fetched_forgotten_or_reset() {
        let room = Room::new(100);
        let results = Results::of(&room);
        let place = results.reserve("red", 50, 0).unwrap();
        assert!(results.reserve("red", 1, 0).is_none());
        let handle = results.keep(0, 1, bytes(30), place, 0).unwrap();
        assert_ne!(handle, 0);
        assert!(results.get(handle, 2, 0).is_none());
        assert!(Results::of(&room).get(handle, 1, 0).is_none());
        let place = results.reserve("red", 20, 0).unwrap();
        results.keep(handle, 1, bytes(20), place, 0).unwrap();
        assert!(results.reserve("red", 1, IDLE_MS - 1).is_none());
        results.forget(handle);
        let place = results.reserve("red", 30, 0).unwrap();
        results.keep(handle, 1, bytes(30), place, 0).unwrap();
        results.clear();
        assert_eq!(room.taken.lock().all, 0);
        assert!(room.taken.lock().tenants.is_empty());
    }

    #[test]
    fn what_nobody_fetched_for_long_is_gone_whoever_asks() {
        let room = Room::new(100);
        let (ours, theirs) = (Results::of(&room), Results::of(&room));
        let place = theirs.reserve("red", 50, 0).unwrap();
        let handle = theirs.keep(0, 1, bytes(50), place, 0).unwrap();
        assert!(theirs.get(handle, 1, IDLE_MS - 1).is_some());
        assert!(theirs.get(handle, 1, IDLE_MS).is_none());
        assert!(ours.reserve("red", 50, IDLE_MS - 1).is_none());
        assert!(ours.reserve("red", 50, IDLE_MS).is_some());
    }

    #[test]
    fn a_tenant_leaves_room_to_others() {
        let room = Room::new(100);
        let (red, blue) = (Results::of(&room), Results::of(&room));
        let _most = red.reserve("red", 50, 0).unwrap();
        // By whichever controller.
        assert!(Results::of(&room).reserve("red", 1, 0).is_none());
        let _some = blue.reserve("blue", 25, 0).unwrap();
        assert!(blue.reserve("blue", 1, 0).is_none());
        assert!(blue.reserve("green", 25, 0).is_some());
    }

    #[test]
    fn handles_of_a_controller_are_bounded() {
        let results = Results::of(&Room::new(1 << 20));
        for _ in 0..HANDLES_MAX {
            let place = results.reserve("red", 1, 0).unwrap();
            assert!(results.keep(9, 1, bytes(1), place, 0).is_some());
        }
        assert!(results.reserve("red", 1, 0).is_none());
    }
}
