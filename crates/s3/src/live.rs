//! Who asks for what now, by tenant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::auth::Caller;

/// What one tenant's requests did. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTenant {
    /// Whose requests they are; empty: of callers without a key.
    pub tenant: String,
    /// Requests that ended.
    pub requests: u64,
    /// Those of them that were refused, failed, or were given up by the client.
    pub failures: u64,
    /// Payload sent in bodies, in bytes.
    pub sent_bytes: u64,
    /// Payload received in bodies, in bytes.
    pub received_bytes: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

/// One tenant's counts. There is one for each that ever asked with a valid signature, so there are no more than there were tenants.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    failures: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    in_flight: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    tenants: RwLock<BTreeMap<String, Arc<Counts>>>,
}

impl Live {
    pub(crate) fn look(&self) -> Vec<LiveTenant> {
        let tenants = self.tenants.read();
        let line = |(tenant, counts): (&String, &Arc<Counts>)| LiveTenant {
            tenant: tenant.clone(),
            requests: counts.requests.load(Relaxed),
            failures: counts.failures.load(Relaxed),
            sent_bytes: counts.sent.load(Relaxed),
            received_bytes: counts.received.load(Relaxed),
            in_flight: counts.in_flight.load(Relaxed),
        };
        tenants.iter().map(line).collect()
    }

    /// A request of this caller begins.
    pub(crate) fn begin(&self, caller: &Caller) -> Served {
        let tenant = caller.tenant().unwrap_or_default();
        let known = self.tenants.read().get(tenant).cloned();
        let counts = known.unwrap_or_else(|| {
            let mut tenants = self.tenants.write();
            tenants.entry(tenant.to_owned()).or_default().clone()
        });
        counts.in_flight.fetch_add(1, Relaxed);
        Served { counts, code: 0 }
    }
}

/// A request in progress whose sender is known; it ends when this is dropped.
pub(crate) struct Served {
    counts: Arc<Counts>,
    /// The HTTP status of its response; 0 when there was none.
    pub(crate) code: u16,
}

impl Served {
    pub(crate) fn sent(&self, bytes: usize) {
        self.counts.sent.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.counts.received.fetch_add(bytes as u64, Relaxed);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.counts.in_flight.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        if self.code == 0 || self.code >= 400 {
            self.counts.failures.fetch_add(1, Relaxed);
        }
    }
}
