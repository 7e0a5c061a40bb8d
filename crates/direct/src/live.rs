//! Who is connected and what they do now.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use forebay_fabric::{Fabric, Session};
use forebay_proto::direct::{Operation, Status};
use parking_lot::Mutex;

use crate::metrics::{Metrics, Traffic};
use crate::status::Failure;

/// One link that is being served. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLink {
    /// Names it while the server runs.
    pub id: u64,
    /// Whose it is.
    pub tenant: String,
    /// Who opened its session: an access key's id.
    pub principal: String,
    /// Its session.
    pub session: String,
    /// By what its bytes travel.
    pub path: &'static str,
    /// Requests answered.
    pub requests: u64,
    /// Elements that failed.
    pub failures: u64,
    /// Payload into the client's memory, in bytes: of all the session's links of this path and by whichever door, told with the
    /// first of them alone.
    pub sent_bytes: u64,
    /// Payload out of the client's memory, in bytes, likewise.
    pub received_bytes: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    links: Mutex<(u64, BTreeMap<u64, Arc<Counts>>)>,
}

#[derive(Debug)]
struct Counts {
    session: Arc<Session>,
    path: Fabric,
    requests: AtomicU64,
    failures: AtomicU64,
    in_flight: AtomicU64,
}

impl Live {
    pub(crate) fn look(&self) -> Vec<LiveLink> {
        let links = self.links.lock();
        let mut told = HashSet::new();
        let line = |(id, counts): (&u64, &Arc<Counts>)| {
            let session = &counts.session;
            let (sent_bytes, received_bytes) = match told.insert((session.id(), counts.path)) {
                true => session.traffic(counts.path).totals(),
                false => (0, 0),
            };
            LiveLink {
                id: *id,
                tenant: session.tenant().to_owned(),
                principal: session.principal().to_owned(),
                session: session.id().to_string(),
                path: counts.path.name(),
                requests: counts.requests.load(Relaxed),
                failures: counts.failures.load(Relaxed),
                sent_bytes,
                received_bytes,
                in_flight: counts.in_flight.load(Relaxed),
            }
        };
        links.1.iter().map(line).collect()
    }
}

/// Counts for one link, in the server's totals and in its own line, which goes when this is dropped.
pub(crate) struct Counting {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    id: u64,
    own: Arc<Counts>,
}

impl Counting {
    pub(crate) fn new(
        live: &Arc<Live>,
        metrics: &Arc<Metrics>,
        session: &Arc<Session>,
        path: Fabric,
    ) -> Counting {
        let own = Arc::new(Counts {
            session: session.clone(),
            path,
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        });
        let mut links = live.links.lock();
        links.0 += 1;
        let id = links.0;
        links.1.insert(id, own.clone());
        drop(links);
        Counting {
            live: live.clone(),
            metrics: metrics.clone(),
            id,
            own,
        }
    }

    fn traffic(&self) -> &Traffic {
        self.metrics.traffic(self.own.path)
    }

    /// A request begins.
    pub(crate) fn begin(&self, operation: Operation) -> Timing<'_> {
        self.own.in_flight.fetch_add(1, Relaxed);
        Timing {
            counting: self,
            operation,
            begun: Instant::now(),
        }
    }

    /// An element is done.
    pub(crate) fn outcome<T>(&self, result: &Result<T, Failure>) {
        if let Err(failure) = result {
            self.failed(failure.status);
        }
    }

    pub(crate) fn failed(&self, status: Status) {
        self.own.failures.fetch_add(1, Relaxed);
        self.traffic().failed(status);
    }

    /// Payload went into the client's memory.
    pub(crate) fn sent(&self, bytes: u64) {
        self.own.session.traffic(self.own.path).sent(bytes);
        self.traffic().sent.fetch_add(bytes, Relaxed);
    }

    /// Payload came out of the client's memory.
    pub(crate) fn received(&self, bytes: u64) {
        self.own.session.traffic(self.own.path).received(bytes);
        self.traffic().received.fetch_add(bytes, Relaxed);
    }

    /// The link carried a payload because the fabric does not map the client's memory.
    pub(crate) fn carried(&self) {
        self.traffic().carried.fetch_add(1, Relaxed);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.live.links.lock().1.remove(&self.id);
    }
}

/// A request in progress.
pub(crate) struct Timing<'a> {
    counting: &'a Counting,
    operation: Operation,
    begun: Instant,
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let own = &self.counting.own;
        own.in_flight.fetch_sub(1, Relaxed);
        own.requests.fetch_add(1, Relaxed);
        self.counting
            .traffic()
            .answered(self.operation, self.begun.elapsed());
    }
}
