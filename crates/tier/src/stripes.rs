//! Who writes what just now: no value goes into the cache while it may be replaced.
//!
//! Keys share a bounded number of stripes by their hash. Each counts the changes that began and those under way; sharing costs a
//! value its place in the cache now and then, never its correctness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const STRIPES: usize = 4096;
/// Changes under way are the low bits, changes begun the rest.
const BEGUN: u64 = 1 << 16;

/// The stripes.
#[derive(Debug)]
pub(crate) struct Stripes {
    stripes: Box<[AtomicU64]>,
}

/// A moment of a stripe: nothing was changing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quiet(u64);

/// A change under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Changing {
    stripes: Arc<Stripes>,
    at: usize,
    alone: bool,
    begun: u64,
}

impl Default for Stripes {
    fn default() -> Stripes {
        Stripes {
            stripes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Stripes {
    /// The moment, when nothing is changing.
    pub fn quiet(&self, hash: u64) -> Option<Quiet> {
        let now = self.at(hash).load(SeqCst);
        now.is_multiple_of(BEGUN).then_some(Quiet(now))
    }

    /// Whether nothing changed since, nor is about to.
    pub fn still(&self, hash: u64, since: Quiet) -> bool {
        self.at(hash).load(SeqCst) == since.0
    }

    /// Something was changed elsewhere: what is being read may be old.
    pub fn disturb(&self, hash: u64) {
        self.at(hash).fetch_add(BEGUN, SeqCst);
    }

    /// Anything may have been changed elsewhere.
    pub fn disturb_all(&self) {
        for stripe in &self.stripes {
            stripe.fetch_add(BEGUN, SeqCst);
        }
    }

    /// Begins a change.
    pub fn change(self: &Arc<Self>, hash: u64) -> Changing {
        let before = self.at(hash).fetch_add(BEGUN + 1, SeqCst);
        Changing {
            stripes: self.clone(),
            at: hash as usize % STRIPES,
            alone: before.is_multiple_of(BEGUN),
            begun: before / BEGUN + 1,
        }
    }

    fn at(&self, hash: u64) -> &AtomicU64 {
        &self.stripes[hash as usize % STRIPES]
    }
}

impl Changing {
    /// Whether it was the only one for all of its time: what it made is what there is now.
    pub fn alone(&self) -> bool {
        self.alone && self.stripes.stripes[self.at].load(SeqCst) / BEGUN == self.begun
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.stripes.stripes[self.at].fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_that_met_no_other_knows_what_there_is() {
        let stripes = Arc::new(Stripes::default());
        let quiet = stripes.quiet(1).expect("nothing changes");
        let first = stripes.change(1);
        assert!(first.alone());
        assert!(!stripes.still(1, quiet) && stripes.quiet(1).is_none());
        let second = stripes.change(1);
        assert!(!first.alone() && !second.alone());
        drop(first);
        assert!(!second.alone(), "they overlapped");
        drop(second);
        assert!(stripes.change(1).alone());
        assert!(!stripes.still(1, quiet));
        let quiet = stripes.quiet(1).expect("nothing changes");
        stripes.disturb(1);
        assert!(!stripes.still(1, quiet));
    }
}
