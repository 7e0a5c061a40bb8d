//! Values that arrive in several commands.

use std::collections::BTreeMap;

/// Unfinished values of one controller.
const UNFINISHED_MAX: usize = 32;
/// An unfinished value that nobody goes on with is forgotten, in milliseconds.
const IDLE_MS: u64 = 120_000;

/// A value that is not whole yet.
#[derive(Debug)]
pub(super) struct Unfinished<U> {
    pub(super) upload: U,
    /// Where the next part belongs.
    pub(super) next: u64,
    touched_ms: u64,
}

/// By namespace of the store, which is another when it was made anew, and key. While a part arrives its value is not in here.
#[derive(Debug)]
pub(super) struct Parts<U> {
    values: BTreeMap<(u32, Vec<u8>), Unfinished<U>>,
}

impl<U> Default for Parts<U> {
    fn default() -> Parts<U> {
        Parts {
            values: BTreeMap::new(),
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

    /// Puts a value back until its next part; false when there are too many (it is forgotten).
    pub(super) fn put(
        &mut self,
        namespace: u32,
        key: &[u8],
        upload: U,
        next: u64,
        now_ms: u64,
    ) -> bool {
        self.forget(now_ms);
        let room = self.values.len() < UNFINISHED_MAX;
        if room {
            let value = Unfinished {
                upload,
                next,
                touched_ms: now_ms,
            };
            self.values.insert((namespace, key.to_vec()), value);
        }
        room
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

    #[test]
    fn parts_follow_each_other_or_the_value_is_forgotten() {
        let mut parts = Parts::default();
        assert!(parts.put(1, b"key", (), 10, 0));
        assert!(parts.take(2, b"key", 10).is_none());
        assert!(parts.take(1, b"key", 10).is_some());
        assert!(parts.put(1, b"key", (), 20, 0));
        assert!(parts.take(1, b"key", 10).is_none());
        assert!(parts.take(1, b"key", 20).is_none());
    }

    #[test]
    fn unfinished_values_are_bounded_and_idle_ones_go() {
        let mut parts = Parts::default();
        for at in 0..UNFINISHED_MAX {
            assert!(parts.put(1, &[at as u8 + 1], (), 1, 0));
        }
        assert!(!parts.put(1, b"more", (), 1, IDLE_MS - 1));
        assert!(parts.put(1, b"more", (), 1, IDLE_MS));
        assert_eq!(parts.values.len(), 1);
        assert_eq!(parts.forget(2 * IDLE_MS - 1), Some(1));
        assert_eq!(parts.forget(2 * IDLE_MS), None);
        assert!(parts.values.is_empty());
    }
}
