//! What `/metrics` tells beside the doors' own: memory, disk I/O, usage, the process.

use std::fmt;
use std::fs;
use std::sync::Arc;

use forebay_control::SYSTEM_NAMESPACE;
use forebay_mem::{CopySite, Pool, copied_bytes};
use forebay_store::{Scope, Store};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::shards::{DiskIo, Shards};

/// Reads everything when it is asked: nothing is counted twice, nothing costs while nobody asks.
pub struct NodeMetrics<S> {
    /// Whose usage is told.
    pub store: Arc<S>,
    /// The buffers.
    pub pool: Pool,
    /// The threads.
    pub shards: Arc<Shards>,
    /// How they reach the disk.
    pub disk_io: DiskIo,
    /// When the process began to serve, in seconds since 1970.
    pub started_s: u64,
}

impl<S> fmt::Debug for NodeMetrics<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeMetrics")
    }
}

/// Names and values of labels.
pub type Labels<'a> = Vec<(&'static str, &'a str)>;

/// One family of samples.
pub struct Family<'a> {
    /// Without its unit and suffix.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Of the values.
    pub unit: Option<Unit>,
    /// Labels and values.
    pub samples: Vec<(Labels<'a>, u64)>,
}

impl<'a> Family<'a> {
    /// One value without labels.
    pub fn one(
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        value: u64,
    ) -> Family<'a> {
        Family {
            name,
            help,
            unit,
            samples: vec![(Vec::new(), value)],
        }
    }
}

/// Encodes what only grows.
pub fn counters(encoder: &mut DescriptorEncoder, family: &Family<'_>) -> fmt::Result {
    encode(encoder, family, MetricType::Counter)
}

/// Encodes what goes up and down.
pub fn gauges(encoder: &mut DescriptorEncoder, family: &Family<'_>) -> fmt::Result {
    encode(encoder, family, MetricType::Gauge)
}

fn encode(encoder: &mut DescriptorEncoder, family: &Family<'_>, kind: MetricType) -> fmt::Result {
    let mut described =
        encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), kind)?;
    if let [(labels, value)] = family.samples.as_slice()
        && labels.is_empty()
    {
        return sample(described, kind, *value);
    }
    for (labels, value) in &family.samples {
        sample(described.encode_family(labels)?, kind, *value)?;
    }
    Ok(())
}

fn sample(encoder: MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(value).encode(encoder),
    }
}

impl<S: Store> Collector for NodeMetrics<S> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        let bytes = || Some(Unit::Bytes);
        gauges(
            encoder,
            &Family {
                name: "forebay_build_info",
                help: "The program's version",
                unit: None,
                samples: vec![(vec![("version", env!("CARGO_PKG_VERSION"))], 1)],
            },
        )?;
        counters(
            encoder,
            &Family {
                name: "forebay_copied",
                help: "Payload copied in memory, by place",
                unit: bytes(),
                samples: CopySite::ALL
                    .iter()
                    .map(|site| (vec![("where", site.label())], copied_bytes(*site)))
                    .collect(),
            },
        )?;
        let usage = self.pool.usage();
        for (name, help, value) in [
            (
                "forebay_buffer_limit",
                "Bound on buffer memory",
                usage.limit,
            ),
            (
                "forebay_buffer_mapped",
                "Buffer memory that was used, and so may be taken from the system",
                usage.mapped,
            ),
            (
                "forebay_buffer_in_use",
                "Buffer memory in use, caches included",
                usage.in_use,
            ),
        ] {
            gauges(encoder, &Family::one(name, help, bytes(), value as u64))?;
        }
        self.disk(encoder)?;
        gauges(
            encoder,
            &Family::one(
                "forebay_connections",
                "Connections of the doors open now",
                None,
                self.shards.connections() as u64,
            ),
        )?;
        gauges(
            encoder,
            &Family::one(
                "forebay_shards",
                "Threads that serve connections",
                None,
                self.shards.count() as u64,
            ),
        )?;
        self.usage(encoder)?;
        self.process(encoder)
    }
}

impl<S: Store> NodeMetrics<S> {
    fn disk(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let io = forebay_io::counters();
        gauges(
            encoder,
            &Family {
                name: "forebay_disk_io_uring",
                help: "1 when the disk is reached by io_uring, 0 when by threads",
                unit: None,
                samples: vec![(Vec::new(), u64::from(self.disk_io == DiskIo::Uring))],
            },
        )?;
        counters(
            encoder,
            &Family {
                name: "forebay_disk_operations",
                help: "Asynchronous reads and writes finished, by the way they took",
                unit: None,
                samples: vec![
                    (vec![("via", "io_uring")], io.ring_operations),
                    (vec![("via", "threads")], io.worker_operations),
                ],
            },
        )?;
        counters(
            encoder,
            &Family {
                name: "forebay_disk_buffer_operations",
                help: "Transfers given to io_uring, by whether their buffer was registered",
                unit: None,
                samples: vec![
                    (
                        vec![("registered", "true")],
                        io.registered_buffer_operations,
                    ),
                    (vec![("registered", "false")], io.plain_buffer_operations),
                ],
            },
        )?;
        for (name, help, unit, value) in [
            (
                "forebay_disk_read",
                "Read from the disk",
                Some(Unit::Bytes),
                io.read_bytes,
            ),
            (
                "forebay_disk_written",
                "Written to the disk",
                Some(Unit::Bytes),
                io.written_bytes,
            ),
            (
                "forebay_disk_submissions",
                "Calls that gave io_uring work",
                None,
                io.submissions,
            ),
        ] {
            counters(encoder, &Family::one(name, help, unit, value))?;
        }
        Ok(())
    }

    fn usage(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let namespaces = self.store.namespaces();
        let mut objects = Vec::new();
        let mut bytes = Vec::new();
        for namespace in &namespaces {
            if namespace.name == SYSTEM_NAMESPACE {
                continue;
            }
            let Ok(usage) = self.store.usage(Scope::Namespace(&namespace.name)) else {
                continue;
            };
            let labels = vec![
                ("namespace", namespace.name.as_str()),
                ("tenant", namespace.config.tenant.as_str()),
            ];
            objects.push((labels.clone(), usage.objects));
            bytes.push((labels, usage.bytes));
        }
        gauges(
            encoder,
            &Family {
                name: "forebay_namespace_objects",
                help: "Objects and kept versions of a namespace",
                unit: None,
                samples: objects,
            },
        )?;
        gauges(
            encoder,
            &Family {
                name: "forebay_namespace_stored",
                help: "Values, kept versions and staged parts of a namespace",
                unit: Some(Unit::Bytes),
                samples: bytes,
            },
        )
    }

    fn process(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        gauges(
            encoder,
            &Family::one(
                "process_start_time",
                "When the process began, since 1970",
                Some(Unit::Seconds),
                self.started_s,
            ),
        )?;
        if let Some(resident) = resident_bytes() {
            gauges(
                encoder,
                &Family::one(
                    "process_resident_memory",
                    "Resident memory",
                    Some(Unit::Bytes),
                    resident,
                ),
            )?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauges(
                encoder,
                &Family::one(
                    "process_open_fds",
                    "Open descriptors",
                    None,
                    open.count() as u64,
                ),
            )?;
        }
        let usage = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        if let Some(limit) = usage.current {
            gauges(
                encoder,
                &Family::one("process_max_fds", "Bound on open descriptors", None, limit),
            )?;
        }
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let described = encoder.encode_descriptor(
                "process_cpu",
                "CPU time used, user and system",
                Some(&Unit::Seconds),
                MetricType::Counter,
            )?;
            counter.encode(described)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // proc(5): the second field may hold spaces but ends at the last parenthesis; utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
