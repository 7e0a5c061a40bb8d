//! Values that arrive in several commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::Caps;
use forebay_store::shares::{Held, Shares};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unfinished values of one controller.
const UNFINISHED_MAX: usize = 32;
/// An unfinished value that nobody goes on with is forgotten, in milliseconds.
const IDLE_MS: u64 = 120_000;

/// Unfinished values of all controllers hold at most this part of the pool.
const ROOM_SHARE: usize = 4;

/// Room for the unfinished values of all controllers, which tenants share: a store holds buffers of each for as long as its host likes.
#[derive(Debug)]
pub(super) struct Room {
    shares: Arc<Shares>,
    /// What a store holds of one value between two parts.
    value_bytes: usize,
}

impl Room {
    /// In a pool of so many bytes, before a store that can do this.
    pub(super) fn new(pool_bytes: usize, caps: &Caps) -> Room {
        Room {
            shares: Shares::new(pool_bytes / ROOM_SHARE),
            // What it has taken and not written, and a buffer that is not full.
            value_bytes: (caps.write_behind + 1).saturating_mul(caps.chunk_bytes),
        }
    }

    /// Room for one more value of a tenant's, if it may have that: nobody waits for it.
    pub(super) fn take(&self, tenant: &str) -> Option<Held> {
        let mut held = self.shares.of(tenant);
        held.grow(self.value_bytes).then_some(held)
    }
}

/// A value that is not whole yet.
#[derive(Debug)]
pub(super) struct Unfinished<U> {
    pub(super) upload: U,
    /// Where the next part belongs.
    next: u64,
    /// When its host went on with it.
    touched_ms: u64,
    _place: OwnedSemaphorePermit,
    _room: Held,
}

impl<U> Unfinished<U> {
    /// Nothing of it is here.
    pub(super) fn new(
        upload: U,
        place: OwnedSemaphorePermit,
        room: Held,
        now_ms: u64,
    ) -> Unfinished<U> {
        Unfinished {
            upload,
            next: 0,
            touched_ms: now_ms,
            _place: place,
            _room: room,
        }
    }

    /// A part has arrived. One without a byte is no sign that its host goes on.
    pub(super) fn arrived(&mut self, bytes: u64, now_ms: u64) {
        self.next += bytes;
        if bytes > 0 {
            self.touched_ms = now_ms;
        }
    }
}

/// By namespace of the store, which is another when it was made anew, and key. While a part arrives its value is not in here, and keeps
/// its place.
#[derive(Debug)]
pub(super) struct Parts<U> {
    values: BTreeMap<(u32, Vec<u8>), Unfinished<U>>,
    places: Arc<Semaphore>,
}

impl<U> Default for Parts<U> {
    fn default() -> Parts<U> {
        Parts {
            values: BTreeMap::new(),
            places: Arc::new(Semaphore::new(UNFINISHED_MAX)),
        }
    }
}

impl<U> Parts<U> {
    /// Takes the value whose next part begins at `offset`. Any other unfinished value of the key is forgotten: its host has lost count.
    pub(super) fn take(
        &mut self,
        namespace: u32,
        key: &[u8],
        offset: u64,
    ) -> Option<Unfinished<U>> {
        let value = self.values.remove(&(namespace, key.to_vec()))?;
        (value.next == offset && offset > 0).then_some(value)
    }

    /// A place for one more value, if there is one.
    pub(super) fn place(&mut self, now_ms: u64) -> Option<OwnedSemaphorePermit> {
        self.forget(now_ms);
        self.places.clone().try_acquire_owned().ok()
    }

    /// Puts a value back until its next part.
    pub(super) fn put(&mut self, namespace: u32, key: &[u8], value: Unfinished<U>) {
        self.values.insert((namespace, key.to_vec()), value);
    }

    /// Forgets those that nobody goes on with; in how many milliseconds the next one may be such, if there is one.
    pub(super) fn forget(&mut self, now_ms: u64) -> Option<u64> {
        let idle_ms = |value: &Unfinished<U>| now_ms.saturating_sub(value.touched_ms);
        self.values.retain(|_, value| idle_ms(value) < IDLE_MS);
        self.values
            .values()
            .map(|value| IDLE_MS - idle_ms(value))
            .min()
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value of which so many bytes came at this time.
    fn begun(parts: &mut Parts<()>, bytes: u64, now_ms: u64) -> Unfinished<()> {
        let place = parts.place(now_ms).expect("a place");
        let mut value = Unfinished::new((), place, Shares::new(0).of("red"), now_ms);
        value.arrived(bytes, now_ms);
        value
    }

    #[test]
    fn parts_follow_each_other_or_the_value_is_forgotten() {
        let mut parts = Parts::default();
        let value = begun(&mut parts, 10, 0);
        parts.put(1, b"key", value);
        assert!(parts.take(2, b"key", 10).is_none());
        let mut value = parts.take(1, b"key", 10).unwrap();
        value.arrived(10, 0);
        parts.put(1, b"key", value);
        assert!(parts.take(1, b"key", 10).is_none());
        assert!(parts.take(1, b"key", 20).is_none());
    }

    #[test]
    fn unfinished_values_are_bounded_and_idle_ones_go() {
        let mut parts = Parts::default();
        for at in 0..UNFINISHED_MAX {
            let value = begun(&mut parts, 1, 0);
            parts.put(1, &[at as u8 + 1], value);
        }
        assert!(parts.place(IDLE_MS - 1).is_none());
        let arriving = parts.take(1, &[1], 1).unwrap();
        assert!(parts.place(IDLE_MS - 1).is_none(), "it keeps its place");
        drop(arriving);
        assert!(parts.place(IDLE_MS - 1).is_some());
        let value = begun(&mut parts, 1, IDLE_MS);
        parts.put(1, b"more", value);
        assert_eq!(parts.values.len(), 1);
        assert_eq!(parts.forget(2 * IDLE_MS - 1), Some(1));
        assert_eq!(parts.forget(2 * IDLE_MS), None);
        assert!(parts.values.is_empty());
    }

    #[test]
    fn a_part_without_a_byte_does_not_keep_a_value() {
        let mut parts = Parts::default();
        let mut value = begun(&mut parts, 1, 0);
        value.arrived(0, IDLE_MS - 1);
        parts.put(1, b"key", value);
        assert_eq!(parts.forget(IDLE_MS - 1), Some(1));
        let mut value = parts.take(1, b"key", 1).unwrap();
        value.arrived(1, IDLE_MS - 1);
        parts.put(1, b"key", value);
        assert_eq!(parts.forget(IDLE_MS), Some(IDLE_MS - 1));
    }

    #[test]
    fn a_tenant_leaves_room_to_others() {
        let caps = Caps {
            name: "test",
            durable: true,
            versions: false,
            value_bytes_max: 1 << 30,
            chunk_bytes: 10,
            read_ahead: 0,
            write_behind: 1,
        };
        let room = Room::new(400, &caps);
        let red: Vec<_> = std::iter::from_fn(|| room.take("red")).collect();
        assert_eq!(red.len(), 3);
        let blue = room.take("blue").unwrap();
        assert!(room.take("blue").is_none() && room.take("green").is_some());
        drop((red, blue));
        assert!(room.shares.is_free());
    }
}
