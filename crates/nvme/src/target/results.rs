//! Results of functions that wait for their hosts to fetch them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_mem::Buf;
use parking_lot::Mutex;

/// Results of one controller that wait.
const HANDLES_MAX: usize = 64;
/// A result that nobody fetches is forgotten, in milliseconds.
const IDLE_MS: u64 = 120_000;

/// Room for the results of all controllers.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicU64,
    bytes: u64,
}

/// Some of the room; free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    pub(super) fn new(bytes: u64) -> Arc<Room> {
        Arc::new(Room {
            taken: AtomicU64::new(0),
            bytes,
        })
    }

    fn take(self: &Arc<Room>, bytes: u64) -> Option<Place> {
        let more = |taken: u64| {
            taken
                .checked_add(bytes)
                .filter(|taken| *taken <= self.bytes)
        };
        self.taken.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Place {
            room: Arc::clone(self),
            bytes,
        })
    }
}

impl Place {
    /// Gives back what is not needed.
    fn shrink(&mut self, bytes: u64) {
        let spare = self.bytes.saturating_sub(bytes);
        self.room.taken.fetch_sub(spare, Relaxed);
        self.bytes -= spare;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Relaxed);
    }
}

/// A result.
#[derive(Debug)]
pub(super) struct Kept {
    nsid: u32,
    pub(super) bytes: Vec<Buf>,
    pub(super) len: u64,
    made_ms: u64,
    _place: Place,
}

/// The results of one controller.
#[derive(Debug)]
pub(super) struct Results {
    room: Arc<Room>,
    kept: Mutex<BTreeMap<u32, Arc<Kept>>>,
}

impl Results {
    pub(super) fn of(room: &Arc<Room>) -> Results {
        Results {
            room: Arc::clone(room),
            kept: Mutex::default(),
        }
    }

    /// Room for a result of so many bytes, before it is made. What was not fetched for long makes room.
    pub(super) fn reserve(&self, bytes: u64, now_ms: u64) -> Option<Place> {
        let mut kept = self.kept.lock();
        kept.retain(|_, result| now_ms.saturating_sub(result.made_ms) < IDLE_MS);
        if kept.len() >= HANDLES_MAX {
            return None;
        }
        self.room.take(bytes)
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
        let len = bytes.iter().map(|buf| buf.len() as u64).sum();
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

    pub(super) fn get(&self, handle: u32, nsid: u32) -> Option<Arc<Kept>> {
        let kept = self.kept.lock();
        let result = kept.get(&handle)?;
        (result.nsid == nsid).then(|| Arc::clone(result))
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
        let (ours, theirs) = (Results::of(&room), Results::of(&room));
        let place = ours.reserve(80, 0).unwrap();
        assert!(theirs.reserve(21, 0).is_none());
        let handle = ours.keep(0, 1, bytes(50), place, 0).unwrap();
        assert_ne!(handle, 0);
        assert!(ours.get(handle, 2).is_none());
        assert!(theirs.get(handle, 1).is_none());
        let place = theirs.reserve(50, 0).unwrap();
        theirs.keep(handle, 1, bytes(50), place, 0).unwrap();
        assert!(theirs.reserve(1, IDLE_MS - 1).is_none());
        assert!(theirs.reserve(50, IDLE_MS).is_some());
        assert!(theirs.get(handle, 1).is_none());
        ours.forget(handle);
        assert!(ours.reserve(100, 0).is_some());
        let place = ours.reserve(100, 0).unwrap();
        ours.keep(handle, 1, bytes(100), place, 0).unwrap();
        ours.clear();
        assert_eq!(room.taken.load(Relaxed), 0);
    }

    #[test]
    fn handles_of_a_controller_are_bounded() {
        let results = Results::of(&Room::new(1 << 20));
        for _ in 0..HANDLES_MAX {
            let place = results.reserve(1, 0).unwrap();
            assert!(results.keep(9, 1, bytes(1), place, 0).is_some());
        }
        assert!(results.reserve(1, 0).is_none());
    }
}
