//! What tenants ask of a door now: the same of every door whose requests belong to no link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

/// What one tenant's requests did. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTenant {
    /// Whose requests they are; empty: of callers without a key.
    pub tenant: String,
    /// Requests that ended.
    pub requests: u64,
    /// Those of them that were refused, failed, or were given up by the client; and parts that failed of requests that went on.
    pub failures: u64,
    /// Payload sent in bodies or messages, in bytes.
    pub sent_bytes: u64,
    /// Payload received in bodies or messages, in bytes.
    pub received_bytes: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

/// One tenant's counts, and what its door keeps of it besides. There is one for each that ever proved to ask, so there are no more than there
/// were tenants.
#[derive(Debug)]
struct Counts<M> {
    requests: AtomicU64,
    failures: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    in_flight: AtomicU64,
    more: M,
}

/// The tenants that asked a door; `M` is what the door keeps of each besides.
#[derive(Debug)]
pub struct Live<M = ()> {
    tenants: RwLock<BTreeMap<String, Arc<Counts<M>>>>,
}

impl<M> Default for Live<M> {
    fn default() -> Live<M> {
        Live {
            tenants: RwLock::default(),
        }
    }
}

impl Live {
    /// A request of this tenant begins.
    pub fn begin(&self, tenant: &str) -> Served {
        self.begin_with(tenant, || ())
    }
}

impl<M> Live<M> {
    /// What each tenant's requests did so far.
    pub fn look(&self) -> Vec<LiveTenant> {
        let tenants = self.tenants.read();
        let line = |(tenant, counts): (&String, &Arc<Counts<M>>)| LiveTenant {
            tenant: tenant.clone(),
            requests: counts.requests.load(Relaxed),
            failures: counts.failures.load(Relaxed),
            sent_bytes: counts.sent.load(Relaxed),
            received_bytes: counts.received.load(Relaxed),
            in_flight: counts.in_flight.load(Relaxed),
        };
        tenants.iter().map(line).collect()
    }

    /// A request of this tenant begins; of one that never asked before `more` is kept besides.
    pub fn begin_with(&self, tenant: &str, more: impl FnOnce() -> M) -> Served<M> {
        let known = self.tenants.read().get(tenant).cloned();
        let counts = known.unwrap_or_else(|| {
            let new = || {
                Arc::new(Counts {
                    requests: AtomicU64::new(0),
                    failures: AtomicU64::new(0),
                    sent: AtomicU64::new(0),
                    received: AtomicU64::new(0),
                    in_flight: AtomicU64::new(0),
                    more: more(),
                })
            };
            let mut tenants = self.tenants.write();
            tenants.entry(tenant.to_owned()).or_insert_with(new).clone()
        });
        counts.in_flight.fetch_add(1, Relaxed);
        Served {
            counts,
            well: AtomicBool::new(false),
        }
    }
}

/// A request in progress; it ends when this is dropped, as a failure unless it was said to be well.
#[derive(Debug)]
pub struct Served<M = ()> {
    counts: Arc<Counts<M>>,
    well: AtomicBool,
}

impl<M> Served<M> {
    /// What the door keeps of its tenant.
    pub fn more(&self) -> &M {
        &self.counts.more
    }

    /// Payload went to the client.
    pub fn sent(&self, bytes: u64) {
        self.counts.sent.fetch_add(bytes, Relaxed);
    }

    /// Payload came from the client.
    pub fn received(&self, bytes: u64) {
        self.counts.received.fetch_add(bytes, Relaxed);
    }

    /// A part of it failed, which ends no other part.
    pub fn failed_in_part(&self) {
        self.counts.failures.fetch_add(1, Relaxed);
    }

    /// It did what was asked.
    pub fn went_well(&self) {
        self.well.store(true, Relaxed);
    }
}

impl<M> Drop for Served<M> {
    fn drop(&mut self) {
        self.counts.in_flight.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        if !*self.well.get_mut() {
            self.counts.failures.fetch_add(1, Relaxed);
        }
    }
}
