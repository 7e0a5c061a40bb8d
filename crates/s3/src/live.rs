//! Who asks for what now, by tenant, and how much of what all have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_store::limits::may_have;
use forebay_store::live::{self, LiveTenant};

use crate::auth::Caller;

/// Bytes that the documents of all requests in flight may have together. They are on the heap, beside the buffers.
const DOCUMENTS_BYTES: usize = 64 << 20;

/// What the requests of one tenant have.
#[derive(Debug)]
struct Share {
    /// Requests that have a place within the bound.
    placed: AtomicUsize,
    /// Bytes of their documents.
    documents: AtomicUsize,
    /// The same of all tenants.
    all_documents: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    tenants: live::Live<Arc<Share>>,
    documents: Arc<AtomicUsize>,
}

impl Live {
    pub(crate) fn look(&self) -> Vec<LiveTenant> {
        self.tenants.look()
    }

    /// A request of this caller begins. The number says how many places its tenant had before.
    pub(crate) fn begin(&self, caller: &Caller) -> (Served, usize) {
        let tenant = caller.tenant().unwrap_or_default();
        let request = self.tenants.begin_with(tenant, || {
            Arc::new(Share {
                placed: AtomicUsize::new(0),
                documents: AtomicUsize::new(0),
                all_documents: self.documents.clone(),
            })
        });
        let before = request.more().placed.fetch_add(1, Relaxed);
        let served = Served {
            request,
            placed: true,
            code: 0,
        };
        (served, before)
    }
}

/// A request in progress whose sender is known; it ends when this is dropped.
pub(crate) struct Served {
    request: live::Served<Arc<Share>>,
    placed: bool,
    /// The HTTP status of its response; 0 when there was none.
    pub(crate) code: u16,
}

impl Served {
    /// Gives its place to another request.
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.placed) {
            self.request.more().placed.fetch_sub(1, Relaxed);
        }
    }

    /// A document of the request, of which nothing is here yet.
    pub(crate) fn document(&self) -> Held {
        Held {
            share: self.request.more().clone(),
            bytes: 0,
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.request.sent(bytes as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.request.received(bytes as u64);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.leave();
        if (1..400).contains(&self.code) {
            self.request.went_well();
        }
    }
}

/// Bytes of a document, counted among those of its sender until this is dropped.
pub(crate) struct Held {
    share: Arc<Share>,
    bytes: usize,
}

impl Held {
    /// Counts more; false when there is no room for them.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let own = self.share.documents.fetch_add(bytes, Relaxed);
        let all = self.share.all_documents.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        may_have(bytes, own, all, DOCUMENTS_BYTES)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.documents.fetch_sub(self.bytes, Relaxed);
        self.share.all_documents.fetch_sub(self.bytes, Relaxed);
    }
}
