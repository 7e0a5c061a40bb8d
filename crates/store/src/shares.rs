//! What tenants have of something that all of them share, and may give back as slowly as they like.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::may_have;

/// So many bytes for all tenants together.
#[derive(Debug)]
pub struct Shares {
    bound: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Of those that have any.
    tenants: HashMap<Arc<str>, usize>,
}

/// Bytes that a tenant has until this is dropped.
#[derive(Debug)]
pub struct Held {
    shares: Arc<Shares>,
    tenant: Arc<str>,
    bytes: usize,
}

impl Shares {
    /// Of so many bytes.
    pub fn new(bound: usize) -> Arc<Shares> {
        Arc::new(Shares {
            bound,
            taken: Mutex::default(),
        })
    }

    /// Nothing yet of this tenant's.
    pub fn of(self: &Arc<Shares>, tenant: &str) -> Held {
        Held {
            shares: self.clone(),
            tenant: tenant.into(),
            bytes: 0,
        }
    }

    /// Whether nobody has any, nor is remembered for it.
    pub fn is_free(&self) -> bool {
        let taken = self.taken.lock();
        taken.all == 0 && taken.tenants.is_empty()
    }
}

impl Held {
    /// Takes so many bytes more, if the tenant may have them beside what is free now.
    pub fn grow(&mut self, more: usize) -> bool {
        self.grow_beside(more, 0)
    }

    /// The same beside what is free once it has them: where one piece may be much of all, that is what counts for the others.
    pub fn grow_and_leave(&mut self, more: usize) -> bool {
        self.grow_beside(more, more)
    }

    /// Whether it might have so many bytes more if nobody had any but this.
    pub fn could_grow(&self, more: usize) -> bool {
        may_have(more, self.bytes, self.bytes, self.shares.bound)
    }

    fn grow_beside(&mut self, more: usize, besides: usize) -> bool {
        // Nothing is there for everybody, and nobody is remembered for it.
        if more == 0 {
            return true;
        }
        let mut taken = self.shares.taken.lock();
        let own = taken.tenants.get(&self.tenant).copied().unwrap_or_default();
        let all = taken.all.saturating_add(besides);
        if !may_have(more, own, all, self.shares.bound) {
            return false;
        }
        taken.all += more;
        taken.tenants.insert(self.tenant.clone(), own + more);
        self.bytes += more;
        true
    }

    /// Gives so many bytes back, all at most.
    pub fn give_back(&mut self, bytes: usize) {
        let less = bytes.min(self.bytes);
        self.bytes -= less;
        if less == 0 {
            return;
        }
        let mut taken = self.shares.taken.lock();
        taken.all -= less;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= less;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }

    /// Splits so many bytes off, all at most.
    pub fn split(&mut self, bytes: usize) -> Held {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Held {
            shares: self.shares.clone(),
            tenant: self.tenant.clone(),
            bytes,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(usize::MAX);
    }
}
