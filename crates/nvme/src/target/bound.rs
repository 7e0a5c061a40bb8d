//! Keys that a host bound to handles, for commands that have no room for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Handles of one controller; the oldest goes when another is wanted.
const HANDLES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Bound {
    keys: BTreeMap<u32, (u32, Arc<[u8]>)>,
    order: VecDeque<u32>,
}

impl Bound {
    /// A handle for a key of a namespace of the store. `handle` is random: one that is taken, or 0, is not used.
    pub(super) fn bind(&mut self, mut handle: u32, namespace: u32, key: &[u8]) -> u32 {
        while handle == 0 || self.keys.contains_key(&handle) {
            handle = handle.wrapping_add(1);
        }
        if self.order.len() >= HANDLES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.keys.insert(handle, (namespace, key.into()));
        self.order.push_back(handle);
        handle
    }

    pub(super) fn key(&self, handle: u32, namespace: u32) -> Option<Arc<[u8]>> {
        let (of, key) = self.keys.get(&handle)?;
        (*of == namespace).then(|| key.clone())
    }

    pub(super) fn clear(&mut self) {
        *self = Bound::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_for_its_namespace_and_the_oldest_go() {
        let mut bound = Bound::default();
        let first = bound.bind(0, 1, b"first");
        assert_ne!(first, 0);
        let second = bound.bind(first, 1, b"second");
        assert_ne!(second, first);
        assert_eq!(bound.key(first, 1).as_deref(), Some(&b"first"[..]));
        assert_eq!(bound.key(first, 2), None);
        for _ in 0..HANDLES_MAX - 1 {
            bound.bind(7, 1, b"other");
        }
        assert_eq!(bound.key(first, 1), None);
        assert_eq!(bound.key(second, 1).as_deref(), Some(&b"second"[..]));
        assert_eq!(bound.keys.len(), HANDLES_MAX);
    }
}
