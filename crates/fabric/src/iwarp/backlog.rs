//! What waits in links for somebody to take it, because what their peers owe comes behind it: so many bytes for the links of all tenants.
//!
//! It has come and lies here when it is counted, so a tenant may have a little more than its part; its links then receive no more of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The parts of all tenants.
#[derive(Debug)]
pub(crate) struct Backlog {
    bound: usize,
    all: AtomicUsize,
}

/// The part of one tenant, over all links of all its sessions.
#[derive(Debug)]
pub(crate) struct Share {
    backlog: Arc<Backlog>,
    own: AtomicUsize,
}

/// What one link has of its tenant's part, until this is dropped. At a client's end nobody counts it.
#[derive(Debug, Default)]
pub(super) struct Counted {
    share: Option<Arc<Share>>,
    bytes: usize,
}

impl Backlog {
    /// Of so many bytes.
    pub(crate) fn new(bound: usize) -> Arc<Backlog> {
        Arc::new(Backlog {
            bound,
            all: AtomicUsize::new(0),
        })
    }

    /// The part of a tenant that has nothing yet.
    pub(crate) fn share(self: &Arc<Backlog>) -> Share {
        Share {
            backlog: self.clone(),
            own: AtomicUsize::new(0),
        }
    }
}

impl Share {
    /// Whether the tenant has more than it leaves to others: alone a half of all, of two each a third.
    fn is_used_up(&self) -> bool {
        let all = self.backlog.all.load(Relaxed);
        self.own.load(Relaxed) > self.backlog.bound.saturating_sub(all)
    }
}

impl Counted {
    pub(super) fn of(share: Option<Arc<Share>>) -> Counted {
        Counted { share, bytes: 0 }
    }

    /// The link has so many bytes now.
    pub(super) fn set(&mut self, bytes: usize) {
        let had = std::mem::replace(&mut self.bytes, bytes);
        let Some(share) = self.share.as_ref().filter(|_| had != bytes) else {
            return;
        };
        for counter in [&share.own, &share.backlog.all] {
            if had < bytes {
                counter.fetch_add(bytes - had, Relaxed);
            } else {
                counter.fetch_sub(had - bytes, Relaxed);
            }
        }
    }

    /// Whether it has something, and its tenant more than its part.
    pub(super) fn is_too_much(&self) -> bool {
        let share = self.share.as_ref().filter(|_| self.bytes > 0);
        share.is_some_and(|share| share.is_used_up())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_to_others_as_much_as_it_has() {
        let backlog = Backlog::new(300);
        let (one, other) = (Arc::new(backlog.share()), Arc::new(backlog.share()));
        let of = |share: &Arc<Share>| Counted::of(Some(share.clone()));
        let (mut first, mut second) = (of(&one), of(&one));
        first.set(100);
        second.set(50);
        assert!(!first.is_too_much());
        second.set(51);
        assert!(first.is_too_much() && second.is_too_much());
        assert!(!of(&one).is_too_much(), "a link that has nothing");
        drop(second);
        let mut theirs = of(&other);
        theirs.set(100);
        assert!(!first.is_too_much() && !theirs.is_too_much());
        theirs.set(101);
        assert!(theirs.is_too_much());
        theirs.set(0);
        first.set(150);
        assert!(!first.is_too_much());
        drop((first, theirs));
        assert_eq!(backlog.all.load(Relaxed), 0);
        assert_eq!(one.own.load(Relaxed), 0);
    }

    #[test]
    fn where_nobody_counts_nothing_is_too_much() {
        let mut counted = Counted::default();
        counted.set(usize::MAX);
        assert!(!counted.is_too_much());
    }
}
