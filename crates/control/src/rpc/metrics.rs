//! What the gRPC door counts, in atomics that a call touches without a lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_fabric::Fabric;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use super::admission::InFlight;

/// Codes of gRPC, by their numbers from 0.
const CODES: usize = 17;

/// A service of the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Admin,
    Sessions,
    Objects,
    Execution,
    Watch,
    Reflection,
}

impl Which {
    const ALL: [Which; 6] = [
        Which::Admin,
        Which::Sessions,
        Which::Objects,
        Which::Execution,
        Which::Watch,
        Which::Reflection,
    ];

    fn name(self) -> &'static str {
        match self {
            Which::Admin => "admin",
            Which::Sessions => "sessions",
            Which::Objects => "objects",
            Which::Execution => "execution",
            Which::Watch => "watch",
            Which::Reflection => "reflection",
        }
    }
}

/// How a payload travelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a session's link.
    Link(Fabric),
    /// In the message.
    Message,
}

impl Way {
    const ALL: [Way; 3] = [
        Way::Link(Fabric::Shm),
        Way::Link(Fabric::Iwarp),
        Way::Message,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Link(fabric) => fabric.name(),
            Way::Message => "grpc",
        }
    }

    fn index(self) -> usize {
        match self {
            Way::Link(Fabric::Shm) => 0,
            Way::Link(Fabric::Iwarp) => 1,
            Way::Message => 2,
        }
    }
}

/// What the door has done since it was made.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By service and by code. A stream counts when it begins.
    calls: [[AtomicU64; CODES]; Which::ALL.len()],
    sent: [AtomicU64; Way::ALL.len()],
    received: [AtomicU64; Way::ALL.len()],
}

impl Metrics {
    pub(crate) fn answered(&self, which: Which, code: Code) {
        if let Some(count) = self.calls[which as usize].get(i32::from(code) as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn sent(&self, way: Way, bytes: u64) {
        self.sent[way.index()].fetch_add(bytes, Relaxed);
    }

    pub(crate) fn received(&self, way: Way, bytes: u64) {
        self.received[way.index()].fetch_add(bytes, Relaxed);
    }
}

/// Adds these to what a node tells.
pub(crate) fn register(
    metrics: Arc<Metrics>,
    in_flight: [(&'static str, Arc<InFlight>); 2],
    registry: &mut Registry,
) {
    registry.register_collector(Box::new(Told { metrics, in_flight }));
}

struct Told {
    metrics: Arc<Metrics>,
    in_flight: [(&'static str, Arc<InFlight>); 2],
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metrics.fmt(f)
    }
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "forebay_rpc_calls",
            "Calls by service and by the code that they ended with; streams by the one that they began with",
            None,
            MetricType::Counter,
        )?;
        for which in Which::ALL {
            for (number, count) in (0..).zip(&self.metrics.calls[which as usize]) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let code = format!("{:?}", Code::from_i32(number));
                    let labels = [("service", which.name()), ("code", code.as_str())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let bytes = Some(Unit::Bytes);
        for (name, help, counts) in [
            (
                "forebay_rpc_sent",
                "Values given to clients that called, by the path they took",
                &self.metrics.sent,
            ),
            (
                "forebay_rpc_received",
                "Values taken from clients that called, by the path they took",
                &self.metrics.received,
            ),
        ] {
            let mut family =
                encoder.encode_descriptor(name, help, bytes.as_ref(), MetricType::Counter)?;
            for way in Way::ALL {
                let counter = ConstCounter::new(counts[way.index()].load(Relaxed));
                counter.encode(family.encode_family(&[("path", way.name())])?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "forebay_rpc_in_flight",
            "Calls, and watches with questions of reflection, that have not ended",
            None,
            MetricType::Gauge,
        )?;
        for (kind, in_flight) in &self.in_flight {
            let gauge = ConstGauge::new(in_flight.calls() as u64);
            gauge.encode(family.encode_family(&[("kind", *kind)])?)?;
        }
        Ok(())
    }
}
