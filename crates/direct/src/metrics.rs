//! What the direct door counts. Each link counts for itself, so that no processor waits for what another has just counted; whoever wants
//! to know adds up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_fabric::Fabric;
use forebay_proto::direct::{Operation, Status};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::{Registry, Unit};

use crate::live::{Counts, LiveLink, lines};

/// The upper bounds of the latency histogram are 1 us times powers of 4: 1 us, 4 us, ..., 16.8 s.
const BUCKETS: usize = 13;
const OPERATIONS: usize = Operation::ALL.len();
const STATUSES: usize = Status::ALL.len();
/// In the order of their numbers.
const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Iwarp];

/// What the door has done since it was made.
#[derive(Debug, Default)]
pub struct Metrics {
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    /// Links that there were.
    count: u64,
    live: BTreeMap<u64, Arc<Counts>>,
    /// What those did that have ended, by their fabric.
    ended: [Traffic; FABRICS.len()],
}

/// What one thread at a time counts: that needs no locked instruction, and everybody else sees how far it is.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Relaxed);
    }

    pub(crate) fn subtract(&self, less: u64) {
        self.0.store(self.get().wrapping_sub(less), Relaxed);
    }
}

/// By one fabric.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    operations: [Latency; OPERATIONS],
    failures: [Count; STATUSES],
    pub(crate) sent: Count,
    pub(crate) received: Count,
    pub(crate) carried: Count,
}

#[derive(Debug, Default)]
struct Latency {
    /// Each counts what it alone bounds; the last has no bound.
    buckets: [Count; BUCKETS + 1],
    nanos: Count,
}

impl Traffic {
    pub(crate) fn answered(&self, operation: Operation, after: Duration) {
        let latency = &self.operations[operation as usize];
        let nanos = after.as_nanos() as u64;
        latency.buckets[bucket(nanos)].add(1);
        latency.nanos.add(nanos);
    }

    pub(crate) fn failed(&self, status: Status) {
        self.failures[status as usize].add(1);
    }

    fn counts(&self) -> impl Iterator<Item = &Count> {
        let latencies = self.operations.iter();
        let latencies =
            latencies.flat_map(|latency| latency.buckets.iter().chain([&latency.nanos]));
        let payload = [&self.sent, &self.received, &self.carried];
        latencies.chain(&self.failures).chain(payload)
    }

    /// Adds what `other` counted.
    fn absorb(&self, other: &Traffic) {
        for (sum, more) in self.counts().zip(other.counts()) {
            sum.add(more.get());
        }
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
    /// Adds these to what a node tells.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register_collector(Box::new(Told(self.clone())));
    }

    /// A link begins; returns its number.
    pub(crate) fn begin(&self, link: Arc<Counts>) -> u64 {
        let mut links = self.links.lock();
        links.count += 1;
        let id = links.count;
        links.live.insert(id, link);
        id
    }

    /// A link ends, of which everything is counted.
    pub(crate) fn end(&self, id: u64) {
        let mut links = self.links.lock();
        if let Some(link) = links.live.remove(&id) {
            links.ended[link.path() as usize].absorb(link.traffic());
        }
    }

    /// The links being served.
    pub(crate) fn live(&self) -> Vec<LiveLink> {
        lines(&self.links.lock().live)
    }

    /// The totals, by fabric.
    fn paths(&self) -> [(&'static str, Traffic); FABRICS.len()] {
        let links = self.links.lock();
        FABRICS.map(|fabric| {
            let total = Traffic::default();
            total.absorb(&links.ended[fabric as usize]);
            let live = links.live.values();
            for link in live.filter(|link| link.path() == fabric) {
                total.absorb(link.traffic());
            }
            (fabric.name(), total)
        })
    }
}

type NoExemplar = [(&'static str, &'static str); 0];

#[derive(Debug)]
struct Told(Arc<Metrics>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let paths = self.0.paths();
        requests(&paths, &mut encoder)?;
        failures(&paths, &mut encoder)?;
        let bytes = Some(Unit::Bytes);
        type Of = fn(&Traffic) -> &Count;
        let families: [(&str, &str, Option<&Unit>, Of); 3] = [
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
            for (path, traffic) in &paths {
                let counter = ConstCounter::new(count(traffic).get());
                counter.encode(family.encode_family(&[("path", *path)])?)?;
            }
        }
        Ok(())
    }
}

fn requests(paths: &[(&str, Traffic)], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "forebay_direct_request",
        "Time from a request's message to its last reply",
        Some(&Unit::Seconds),
        MetricType::Histogram,
    )?;
    for (path, traffic) in paths {
        for operation in Operation::ALL {
            let latency = &traffic.operations[operation as usize];
            let counts = latency.buckets.each_ref().map(Count::get);
            let count: u64 = counts.iter().sum();
            if count == 0 {
                continue;
            }
            let bounds = (0..BUCKETS)
                .map(|power| 1e-6 * 4f64.powi(power as i32))
                .chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
            let seconds = latency.nanos.get() as f64 / 1e9;
            let labels = [("path", *path), ("op", operation.name())];
            family
                .encode_family(&labels)?
                .encode_histogram::<NoExemplar>(seconds, count, &buckets, None)?;
        }
    }
    Ok(())
}

fn failures(paths: &[(&str, Traffic)], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "forebay_direct_failures",
        "Elements of requests that failed, by status",
        None,
        MetricType::Counter,
    )?;
    for (path, traffic) in paths {
        for status in Status::ALL {
            let count = traffic.failures[status as usize].get();
            if count > 0 {
                let labels = [("path", *path), ("status", status.name())];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
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
