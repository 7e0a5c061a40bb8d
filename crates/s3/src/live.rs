//! Who asks for what now, by tenant, and how much of what all have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::limits::may_have;
use forebay_store::live::{self, LiveTenant};
use forebay_store::waiting;

use crate::auth::Caller;
use crate::demand::Demand;

/// Bytes that the documents of all requests in flight may have together. They are on the heap, beside the buffers.
const DOCUMENTS_BYTES: usize = 64 << 20;

/// What the requests of one tenant have.
#[derive(Debug)]
struct Share {
    /// Requests that have a place within the bound.
    placed: AtomicUsize,
    /// Bytes of their documents.
    documents: AtomicUsize,
    /// Bytes of the documents of all tenants' requests.
    all_documents: Arc<AtomicUsize>,
    /// The buffers that their bodies may hold.
    buffers: Arc<waiting::Share>,
    /// Who waits for some of them.
    demand: Arc<Demand>,
}

/// So many times what a tenant has is to fit beside what all have, where there is to be as much again for it: a tenant alone then has a
/// quarter of all at most, of the half that it may have.
const AMPLE: usize = 3;

#[derive(Debug)]
pub(crate) struct Live {
    tenants: live::Live<Arc<Share>>,
    /// Whoever waits longer for a share has those hurried who have it.
    grace: Duration,
    buffers: Arc<waiting::Shares>,
    documents: Arc<AtomicUsize>,
}

impl Live {
    /// Of a door whose buffers come from a pool of so many bytes, and where waits of `grace` hurry nobody.
    pub(crate) fn new(pool_bytes: u64, grace: Duration) -> Live {
        Live {
            tenants: live::Live::default(),
            grace,
            buffers: waiting::Shares::new(usize::try_from(pool_bytes).unwrap_or(usize::MAX)),
            documents: Arc::default(),
        }
    }

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
                buffers: self.buffers.of(tenant),
                demand: Arc::new(Demand::new(self.grace)),
            })
        });
        let before = request.more().placed.fetch_add(1, Relaxed);
        let served = Served {
            request,
            placed: true,
            buffers: None,
            code: 0,
        };
        (served, before)
    }
}

/// A request in progress whose sender is known; it ends when this is dropped.
pub(crate) struct Served {
    request: live::Served<Arc<Share>>,
    placed: bool,
    /// What is counted for its body.
    buffers: Option<waiting::Held>,
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

    /// Counts buffers of so many bytes that its body may hold until it ends; false when there is no room for them.
    pub(crate) fn try_hold(&mut self, bytes: usize) -> bool {
        self.try_hold_beside(bytes, 1)
    }

    /// The same for one that could do with less: those of its tenant have no more than is then left for such as do.
    pub(crate) fn try_hold_amply(&mut self, bytes: usize) -> bool {
        self.try_hold_beside(bytes, AMPLE)
    }

    fn try_hold_beside(&mut self, bytes: usize, times: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let Some(held) = self.request.more().buffers.try_take_beside(bytes, times) else {
            return false;
        };
        self.buffers = Some(held);
        true
    }

    /// Whether buffers of so many bytes are counted for it.
    pub(crate) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.buffers.as_ref().map_or(0, waiting::Held::bytes)
    }

    /// Counts none for it any more.
    pub(crate) fn let_go(&mut self) {
        self.buffers = None;
    }

    /// Waits until there is.
    pub(crate) async fn hold(&mut self, bytes: usize) {
        let share = self.request.more();
        let taken = share.demand.wait(share.buffers.wait_to_take(bytes));
        self.buffers = Some(taken.await);
    }

    /// Who waits for what it and others of its sender's hold, if it holds any.
    pub(crate) fn demand(&self) -> Option<&Arc<Demand>> {
        self.buffers.as_ref().map(|_| &self.request.more().demand)
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::auth::AccessKey;

    #[test]
    fn of_requests_that_begin_together_one_is_let_in_however_little_there_is() {
        const TOGETHER: usize = 4;
        const ROUNDS: usize = 2000;
        let live = Live::new(8 << 20, Duration::ZERO);
        let (mut other, _) = live.begin(&Caller::Anonymous);
        assert!(other.try_hold(8 << 20));
        let caller = Caller::Key(Arc::new(AccessKey {
            id: "KEY".to_owned(),
            secret: "secret".to_owned(),
            tenant: "tenant".to_owned(),
        }));
        let barrier = Barrier::new(TOGETHER);
        let let_in = AtomicUsize::new(0);
        let begin = || {
            for _ in 0..ROUNDS {
                let (mut served, _) = live.begin(&caller);
                barrier.wait();
                let_in.fetch_add(usize::from(served.try_hold(4 << 20)), Relaxed);
                // Nobody gives anything back before all have asked, nor asks before all have.
                barrier.wait();
                drop(served);
                barrier.wait();
            }
        };
        thread::scope(|scope| {
            for _ in 0..TOGETHER {
                scope.spawn(begin);
            }
        });
        assert_eq!(let_in.into_inner(), ROUNDS);
    }
}
