//! Links that all sessions have together: no tenant takes more than it leaves.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Who holds how many links.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    per_tenant: HashMap<Box<str>, usize>,
}

impl Seats {
    /// Takes one for this tenant; false when it has as many as are left of `bound`.
    pub(super) fn take(&self, tenant: &str, bound: usize) -> bool {
        let mut taken = self.0.lock();
        let own = taken.per_tenant.get(tenant).copied().unwrap_or(0);
        let room = own < bound.saturating_sub(taken.all);
        if room {
            taken.all += 1;
            taken.per_tenant.insert(tenant.into(), own + 1);
        }
        room
    }

    /// Gives back so many of this tenant's.
    pub(super) fn give_back(&self, tenant: &str, count: usize) {
        let mut taken = self.0.lock();
        taken.all -= count;
        if let Some(own) = taken.per_tenant.get_mut(tenant) {
            *own -= count;
            if *own == 0 {
                taken.per_tenant.remove(tenant);
            }
        }
    }
}
