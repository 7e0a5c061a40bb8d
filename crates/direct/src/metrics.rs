//! What the direct door counts, in atomics that a request touches without a lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_fabric::Fabric;
use forebay_proto::direct::{Operation, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::{Registry, Unit};

/// The upper bounds of the latency histogram are 1 us times powers of 4: 1 us, 4 us, ..., 16.8 s.
const BUCKETS: usize = 13;
const OPERATIONS: usize = Operation::ALL.len();
const STATUSES: usize = Status::ALL.len();

/// What the door has done since it was made.
#[derive(Debug, Default)]
pub struct Metrics {
    shm: Traffic,
    iwarp: Traffic,
}

/// By one fabric.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    operations: [Latency; OPERATIONS],
    failures: [AtomicU64; STATUSES],
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) carried: AtomicU64,
}

#[derive(Debug, Default)]
struct Latency {
    /// Each counts what it alone bounds; the last has no bound.
    buckets: [AtomicU64; BUCKETS + 1],
    nanos: AtomicU64,
}

impl Traffic {
    pub(crate) fn answered(&self, operation: Operation, after: Duration) {
        let latency = &self.operations[operation as usize];
        let nanos = after.as_nanos() as u64;
        latency.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        latency.nanos.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn failed(&self, status: Status) {
        self.failures[status as usize].fetch_add(1, Relaxed);
    }
}

/// The first bucket whose bound is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    // The smallest n with 4^n >= micros.
    let log2 = 64 - (micros - 1).leading_zeros() as usize;
    log2.div_ceil(2).min(BUCKETS)
}

impl Metrics {
    pub(crate) fn traffic(&self, fabric: Fabric) -> &Traffic {
        match fabric {
            Fabric::Shm => &self.shm,
            Fabric::Iwarp => &self.iwarp,
        }
    }

    /// Adds these to what a node tells.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register_collector(Box::new(Told(self.clone())));
    }

    fn paths(&self) -> [(&'static str, &Traffic); 2] {
        [Fabric::Shm, Fabric::Iwarp].map(|fabric| (fabric.name(), self.traffic(fabric)))
    }
}

type NoExemplar = [(&'static str, &'static str); 0];

#[derive(Debug)]
struct Told(Arc<Metrics>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.requests(&mut encoder)?;
        self.failures(&mut encoder)?;
        let bytes = Some(Unit::Bytes);
        type Count = fn(&Traffic) -> &AtomicU64;
        let families: [(&str, &str, Option<&Unit>, Count); 3] = [
            (
                "forebay_direct_sent",
                "Payload placed in clients' memory, by the path it took",
                bytes.as_ref(),
                |traffic| &traffic.sent,
            ),
            (
                "forebay_direct_received",
                "Payload taken from clients' memory, by the path it took",
                bytes.as_ref(),
                |traffic| &traffic.received,
            ),
            (
                "forebay_direct_carried",
                "Payloads that the link carried, not the store placed, because the client's memory is not mapped here",
                None,
                |traffic| &traffic.carried,
            ),
        ];
        for (name, help, unit, count) in families {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            for (path, traffic) in self.0.paths() {
                let counter = ConstCounter::new(count(traffic).load(Relaxed));
                counter.encode(family.encode_family(&[("path", path)])?)?;
            }
        }
        Ok(())
    }
}

impl Told {
    fn requests(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "forebay_direct_request",
            "Time from a request's message to its last reply",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (path, traffic) in self.0.paths() {
            for operation in Operation::ALL {
                let latency = &traffic.operations[operation as usize];
                let counts = latency.buckets.each_ref().map(|count| count.load(Relaxed));
                let count: u64 = counts.iter().sum();
                if count == 0 {
                    continue;
                }
                let bounds = (0..BUCKETS)
                    .map(|power| 1e-6 * 4f64.powi(power as i32))
                    .chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
                let seconds = latency.nanos.load(Relaxed) as f64 / 1e9;
                let labels = [("path", path), ("op", operation.name())];
                family
                    .encode_family(&labels)?
                    .encode_histogram::<NoExemplar>(seconds, count, &buckets, None)?;
            }
        }
        Ok(())
    }

    fn failures(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "forebay_direct_failures",
            "Elements of requests that failed, by status",
            None,
            MetricType::Counter,
        )?;
        for (path, traffic) in self.0.paths() {
            for status in Status::ALL {
                let count = traffic.failures[status as usize].load(Relaxed);
                if count > 0 {
                    let labels = [("path", path), ("status", status.name())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_their_buckets() {
        for (nanos, expected) in [
            (0, 0),
            (1000, 0),
            (1001, 1),
            (4000, 1),
            (4001, 2),
            (16_000, 2),
            (16_777_216_000, 12),
            (16_777_217_000, 13),
            (u64::MAX, 13),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
    }
}
