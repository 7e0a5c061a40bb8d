//! Who asks for what now, by tenant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::admission::may_have;
use crate::auth::Caller;

/// Bytes that the documents of all requests in flight may have together. They are on the heap, beside the buffers.
const DOCUMENTS_BYTES: usize = 64 << 20;

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
    /// Requests that have a place within the bound.
    placed: AtomicUsize,
    /// Bytes of their documents.
    documents: AtomicUsize,
    /// The same of all tenants.
    all_documents: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    tenants: RwLock<BTreeMap<String, Arc<Counts>>>,
    documents: Arc<AtomicUsize>,
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

    /// A request of this caller begins. The number says how many places its tenant had before.
    pub(crate) fn begin(&self, caller: &Caller) -> (Served, usize) {
        let tenant = caller.tenant().unwrap_or_default();
        let known = self.tenants.read().get(tenant).cloned();
        let counts = known.unwrap_or_else(|| {
            let mut tenants = self.tenants.write();
            let counts = tenants.entry(tenant.to_owned()).or_insert_with(|| {
                Arc::new(Counts {
                    all_documents: self.documents.clone(),
                    ..Counts::default()
                })
            });
            counts.clone()
        });
        counts.in_flight.fetch_add(1, Relaxed);
        let before = counts.placed.fetch_add(1, Relaxed);
        let served = Served {
            counts,
            placed: true,
            code: 0,
        };
        (served, before)
    }
}

/// A request in progress whose sender is known; it ends when this is dropped.
pub(crate) struct Served {
    counts: Arc<Counts>,
    placed: bool,
    /// The HTTP status of its response; 0 when there was none.
    pub(crate) code: u16,
}

impl Served {
    /// Gives its place to another request.
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.placed) {
            self.counts.placed.fetch_sub(1, Relaxed);
        }
    }

    /// A document of the request, of which nothing is here yet.
    pub(crate) fn document(&self) -> Held {
        Held {
            counts: self.counts.clone(),
            bytes: 0,
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.counts.sent.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.counts.received.fetch_add(bytes as u64, Relaxed);
    }
}

/// Bytes of a document, counted among those of its sender until this is dropped.
pub(crate) struct Held {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Held {
    /// Counts more; false when there is no room for them.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let own = self.counts.documents.fetch_add(bytes, Relaxed);
        let all = self.counts.all_documents.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        may_have(bytes, own, all, DOCUMENTS_BYTES)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counts.documents.fetch_sub(self.bytes, Relaxed);
        self.counts.all_documents.fetch_sub(self.bytes, Relaxed);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.leave();
        self.counts.in_flight.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        if self.code == 0 || self.code >= 400 {
            self.counts.failures.fetch_add(1, Relaxed);
        }
    }
}
