//! What to keep and what to give up, as a machine over numbered items: no bytes, no clock, no lock.

mod lists;
mod lru;
mod s3_fifo;
mod sketch;
mod w_tiny_lfu;

pub use self::lists::Slot;
pub use self::lru::Lru;
pub(crate) use self::s3_fifo::GHOST_BYTES;
pub use self::s3_fifo::S3Fifo;
pub use self::w_tiny_lfu::WTinyLfu;

/// Decides which item leaves. The caller says when: while it holds more than it may, it calls [`evict`](Policy::evict).
pub trait Policy: Send {
    /// An item comes in: `print` stays the same when it leaves and comes again, `weight` is in bytes.
    fn insert(&mut self, print: u64, weight: u64) -> Slot;

    /// An item was used.
    fn touch(&mut self, slot: Slot);

    /// An item left by the caller's will. Its slot may be given out again.
    fn remove(&mut self, slot: Slot);

    /// Takes out the item that is worth least, and says how often it was used while it was in; `None` when there is none. Its slot may be given out again.
    fn evict(&mut self) -> Option<(Slot, u8)>;

    /// What the items in it weigh together.
    fn weight(&self) -> u64;

    /// It remembers no more than so many items that have left.
    fn remember(&mut self, _most: usize) {}
}

/// Which of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// [`S3Fifo`] as [`S3Fifo::new`] makes it.
    #[default]
    S3Fifo,
    /// [`WTinyLfu`].
    WTinyLfu,
    /// [`Lru`].
    Lru,
}

impl PolicyKind {
    /// Every one.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Lru];

    /// Its name on the command line.
    pub fn label(self) -> &'static str {
        match self {
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::WTinyLfu => "w-tinylfu",
            PolicyKind::Lru => "lru",
        }
    }

    /// The one of that name.
    pub fn from_label(label: &str) -> Option<PolicyKind> {
        PolicyKind::ALL
            .into_iter()
            .find(|kind| kind.label() == label)
    }

    /// An empty one for items of `capacity` bytes together.
    pub fn make(self, capacity: u64) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(capacity)),
            PolicyKind::WTinyLfu => Box::new(WTinyLfu::new(capacity)),
            PolicyKind::Lru => Box::new(Lru::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done, a policy knows exactly the items that are in it and gives out each once.
        #[test]
        fn keeps_account(steps in prop::collection::vec((0_u8..5, 0_u64..40, 1_u64..9), 1..400)) {
            for kind in PolicyKind::ALL {
                let mut policy = kind.make(60);
                let mut slots: BTreeMap<Slot, u64> = BTreeMap::new();
                for (step, print, weight) in &steps {
                    let picked = slots.keys().nth(*print as usize % slots.len().max(1)).copied();
                    match (step, picked) {
                        (0 | 1, _) => {
                            let slot = policy.insert(*print, *weight);
                            prop_assert!(slots.insert(slot, *weight).is_none());
                        }
                        (2, Some(slot)) => policy.touch(slot),
                        (3, Some(slot)) => {
                            policy.remove(slot);
                            slots.remove(&slot);
                        }
                        _ => {
                            let gone = policy.evict();
                            prop_assert_eq!(gone.is_some(), !slots.is_empty());
                            if let Some((slot, _)) = gone {
                                prop_assert!(slots.remove(&slot).is_some());
                            }
                        }
                    }
                    prop_assert_eq!(policy.weight(), slots.values().sum::<u64>());
                }
                while let Some((slot, _)) = policy.evict() {
                    prop_assert!(slots.remove(&slot).is_some());
                }
                prop_assert!(slots.is_empty());
            }
        }
    }
}
