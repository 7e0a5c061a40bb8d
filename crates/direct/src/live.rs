//! Who is connected and what they do now.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use forebay_fabric::{Fabric, Session};
use forebay_proto::direct::{Operation, Status};

use crate::metrics::{Count, Metrics, Traffic};
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

/// What one link does, counted by the thread that serves it.
#[derive(Debug)]
pub(crate) struct Counts {
    session: Arc<Session>,
    path: Fabric,
    requests: Count,
    failures: Count,
    in_flight: Count,
    traffic: Traffic,
}

impl Counts {
    pub(crate) fn path(&self) -> Fabric {
        self.path
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

/// The lines of links that are being served, by their numbers.
pub(crate) fn lines(links: &BTreeMap<u64, Arc<Counts>>) -> Vec<LiveLink> {
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
            requests: counts.requests.get(),
            failures: counts.failures.get(),
            sent_bytes,
            received_bytes,
            in_flight: counts.in_flight.get(),
        }
    };
    links.iter().map(line).collect()
}

/// Counts for one link, on the one thread that serves it. When this is dropped, its line goes, and what it did stays in the totals.
pub(crate) struct Counting {
    metrics: Arc<Metrics>,
    id: u64,
    own: Arc<Counts>,
    /// When a request ended, if nobody waited since: what is taken up next begins then, and needs no look at the clock.
    ended: Cell<Option<Instant>>,
}

impl Counting {
    pub(crate) fn new(metrics: &Arc<Metrics>, session: &Arc<Session>, path: Fabric) -> Counting {
        let own = Arc::new(Counts {
            session: session.clone(),
            path,
            requests: Count::default(),
            failures: Count::default(),
            in_flight: Count::default(),
            traffic: Traffic::default(),
        });
        Counting {
            id: metrics.begin(own.clone()),
            metrics: metrics.clone(),
            own,
            ended: Cell::new(None),
        }
    }

    /// A turn begins: time passed since the last one.
    pub(crate) fn turn(&self) {
        self.ended.set(None);
    }

    /// A request begins.
    pub(crate) fn begin(&self, operation: Operation) -> Timing<'_> {
        self.own.in_flight.add(1);
        Timing {
            counting: self,
            operation,
            begun: self.ended.take().unwrap_or_else(Instant::now),
        }
    }

    /// An element is done.
    pub(crate) fn outcome<T>(&self, result: &Result<T, Failure>) {
        if let Err(failure) = result {
            self.failed(failure.status);
        }
    }

    pub(crate) fn failed(&self, status: Status) {
        self.own.failures.add(1);
        self.own.traffic.failed(status);
    }

    /// Payload went into the client's memory.
    pub(crate) fn sent(&self, bytes: u64) {
        self.own.session.traffic(self.own.path).sent(bytes);
        self.own.traffic.sent.add(bytes);
    }

    /// Payload came out of the client's memory.
    pub(crate) fn received(&self, bytes: u64) {
        self.own.session.traffic(self.own.path).received(bytes);
        self.own.traffic.received.add(bytes);
    }

    /// The link carried a payload because the fabric does not map the client's memory.
    pub(crate) fn carried(&self) {
        self.own.traffic.carried.add(1);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.metrics.end(self.id);
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
        let now = Instant::now();
        self.counting.ended.set(Some(now));
        let own = &self.counting.own;
        own.in_flight.subtract(1);
        own.requests.add(1);
        own.traffic
            .answered(self.operation, now.duration_since(self.begun));
    }
}
