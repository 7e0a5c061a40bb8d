//! Who asks for what now, by tenant, and how much of what all have together.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::limits::may_have;
use forebay_store::live::{self, LiveTenant};
use parking_lot::Mutex;
use tokio::sync::Notify;

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
    /// Bytes of the buffers that their bodies may hold. Changes while those of all are locked.
    buffers: AtomicUsize,
    /// Who waits for some of them.
    demand: Arc<Demand>,
    all: Arc<All>,
}

/// So many times what a tenant has is to fit beside what all have, where there is to be as much again for it: a tenant alone then has a
/// quarter of all at most, of the half that it may have.
const AMPLE: usize = 3;

/// The same of all tenants.
#[derive(Debug)]
struct All {
    documents: AtomicUsize,
    buffers: Mutex<usize>,
    /// Bytes of all buffers.
    pool_bytes: usize,
    /// Some of a body's were given back.
    given_back: Notify,
}

impl Share {
    /// Counts buffers of so many bytes, if there is room for them beside so many times those of the tenant's other bodies. One body is
    /// let in however little that is.
    fn take(&self, bytes: usize, times: usize) -> bool {
        let mut all = self.all.buffers.lock();
        let own = self.buffers.load(Relaxed);
        let beside = own.saturating_mul(times);
        if own > 0 && !may_have(bytes, beside, *all, self.all.pool_bytes) {
            return false;
        }
        *all += bytes;
        self.buffers.store(own + bytes, Relaxed);
        true
    }

    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        {
            let mut all = self.all.buffers.lock();
            *all -= bytes;
            self.buffers.fetch_sub(bytes, Relaxed);
        }
        self.all.given_back.notify_waiters();
    }
}

#[derive(Debug)]
pub(crate) struct Live {
    tenants: live::Live<Arc<Share>>,
    /// Whoever waits longer for a share has those hurried who have it.
    grace: Duration,
    all: Arc<All>,
}

impl Live {
    /// Of a door whose buffers come from a pool of so many bytes, and where waits of `grace` hurry nobody.
    pub(crate) fn new(pool_bytes: u64, grace: Duration) -> Live {
        Live {
            tenants: live::Live::default(),
            grace,
            all: Arc::new(All {
                documents: AtomicUsize::new(0),
                buffers: Mutex::default(),
                pool_bytes: usize::try_from(pool_bytes).unwrap_or(usize::MAX),
                given_back: Notify::new(),
            }),
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
                buffers: AtomicUsize::new(0),
                demand: Arc::new(Demand::new(self.grace)),
                all: self.all.clone(),
            })
        });
        let before = request.more().placed.fetch_add(1, Relaxed);
        let served = Served {
            request,
            placed: true,
            buffers: 0,
            code: 0,
        };
        (served, before)
    }
}

/// A request in progress whose sender is known; it ends when this is dropped.
pub(crate) struct Served {
    request: live::Served<Arc<Share>>,
    placed: bool,
    /// Bytes of the buffers that are counted for its body.
    buffers: usize,
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
        let taken = bytes == 0 || self.request.more().take(bytes, times);
        if taken {
            self.buffers += bytes;
        }
        taken
    }

    /// Whether buffers of so many bytes are counted for it.
    pub(crate) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.buffers
    }

    /// Counts none for it any more.
    pub(crate) fn let_go(&mut self) {
        let bytes = std::mem::take(&mut self.buffers);
        self.request.more().give_back(bytes);
    }

    /// Waits until there is.
    pub(crate) async fn hold(&mut self, bytes: usize) {
        let share = self.request.more().clone();
        let held = async {
            loop {
                let mut given_back = pin!(share.all.given_back.notified());
                given_back.as_mut().enable();
                if self.try_hold(bytes) {
                    return;
                }
                given_back.await;
            }
        };
        share.demand.wait(held).await;
    }

    /// Who waits for what it and others of its sender's hold, if it holds any.
    pub(crate) fn demand(&self) -> Option<&Arc<Demand>> {
        (self.buffers > 0).then(|| &self.request.more().demand)
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
        self.let_go();
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
        let all = self.share.all.documents.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        may_have(bytes, own, all, DOCUMENTS_BYTES)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.documents.fetch_sub(self.bytes, Relaxed);
        self.share.all.documents.fetch_sub(self.bytes, Relaxed);
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
