//! Who calls for what now, by tenant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

/// What one tenant's calls of objects and functions did. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTenant {
    /// Whose calls they are.
    pub tenant: String,
    /// Calls that ended.
    pub requests: u64,
    /// Those of them that were refused, failed, or were given up by the client; and elements that failed of calls that went on.
    pub failures: u64,
    /// Payload sent in messages, in bytes.
    pub sent_bytes: u64,
    /// Payload received in messages, in bytes.
    pub received_bytes: u64,
    /// Calls in progress.
    pub in_flight: u64,
}

/// One tenant's counts. There is one for each that ever proved to ask, so there are no more than there were tenants.
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

    /// A call of this tenant begins.
    pub(crate) fn begin(&self, tenant: &str) -> Served {
        let known = self.tenants.read().get(tenant).cloned();
        let counts = known.unwrap_or_else(|| {
            let mut tenants = self.tenants.write();
            tenants.entry(tenant.to_owned()).or_default().clone()
        });
        counts.in_flight.fetch_add(1, Relaxed);
        Served {
            counts,
            well: AtomicBool::new(false),
        }
    }
}

/// A call in progress; it ends when this is dropped, as a failure unless it was said to be well.
#[derive(Debug)]
pub(crate) struct Served {
    counts: Arc<Counts>,
    well: AtomicBool,
}

impl Served {
    /// Payload went to the client.
    pub(crate) fn sent(&self, bytes: u64) {
        self.counts.sent.fetch_add(bytes, Relaxed);
    }

    /// Payload came from the client.
    pub(crate) fn received(&self, bytes: u64) {
        self.counts.received.fetch_add(bytes, Relaxed);
    }

    /// A part of it failed, which ends no other part.
    pub(crate) fn failed_in_part(&self) {
        self.counts.failures.fetch_add(1, Relaxed);
    }

    /// It did what was asked.
    pub(crate) fn went_well(&self) {
        self.well.store(true, Relaxed);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.counts.in_flight.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        if !*self.well.get_mut() {
            self.counts.failures.fetch_add(1, Relaxed);
        }
    }
}
