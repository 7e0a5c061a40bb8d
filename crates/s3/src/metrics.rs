//! What the door counts.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::router::Operation;

/// The path that bodies take, as every transfer names it.
const PATH: PathLabel = PathLabel { path: "http" };

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    op: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathLabel {
    path: &'static str,
}

/// The door's metrics; register them once with the node's registry.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<Answered, Counter>,
    seconds: Family<OpLabel, Histogram>,
    received: Family<PathLabel, Counter<u64, AtomicU64>>,
    sent: Family<PathLabel, Counter<u64, AtomicU64>>,
    in_flight: Gauge,
    received_http: Counter<u64, AtomicU64>,
    sent_http: Counter<u64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let received = Family::<PathLabel, Counter<u64, AtomicU64>>::default();
        let sent = Family::<PathLabel, Counter<u64, AtomicU64>>::default();
        let received_http = received.get_or_create(&PATH).clone();
        let sent_http = sent.get_or_create(&PATH).clone();
        Metrics {
            requests: Family::default(),
            // 50 us to 26 s in factors of 3.
            seconds: Family::new_with_constructor(|| {
                Histogram::new((0..13).map(|step| 5e-5 * 3f64.powi(step)))
            }),
            received,
            sent,
            in_flight: Gauge::default(),
            received_http,
            sent_http,
        }
    }

    /// Registers all metrics under their full names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "forebay_s3_requests",
            "S3 requests answered, by operation and HTTP status",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "forebay_s3_request",
            "Time from a request's head to the end of its response",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register_with_unit(
            "forebay_s3_received",
            "Payload received, by the path it took",
            Unit::Bytes,
            self.received.clone(),
        );
        registry.register_with_unit(
            "forebay_s3_sent",
            "Payload sent, by the path it took",
            Unit::Bytes,
            self.sent.clone(),
        );
        registry.register(
            "forebay_s3_requests_in_flight",
            "S3 requests being served",
            self.in_flight.clone(),
        );
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_http.inc_by(bytes as u64);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_http.inc_by(bytes as u64);
    }

    /// Payload of a request with a token was placed in the client's memory.
    pub(crate) fn placed(&self, path: &'static str, bytes: u64) {
        self.sent.get_or_create(&PathLabel { path }).inc_by(bytes);
    }

    /// Payload of a request with a token was taken from the client's memory.
    pub(crate) fn taken(&self, path: &'static str, bytes: u64) {
        self.received
            .get_or_create(&PathLabel { path })
            .inc_by(bytes);
    }

    pub(crate) fn begun(&self) {
        self.in_flight.inc();
    }

    pub(crate) fn answered(&self, op: Operation, code: u16, after: Duration) {
        let op = op.name();
        self.requests.get_or_create(&Answered { op, code }).inc();
        self.seconds
            .get_or_create(&OpLabel { op })
            .observe(after.as_secs_f64());
        self.in_flight.dec();
    }
}
