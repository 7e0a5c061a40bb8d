//! What `/metrics` tells of the NVMe doors.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_store::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::super::metrics::{Family, counters, gauges};
use super::Nvme;

/// Reads what is counted anyway when it is asked.
pub struct NvmeMetrics<S: Store>(pub Arc<Nvme<S>>);

impl<S: Store> fmt::Debug for NvmeMetrics<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NvmeMetrics")
    }
}

impl<S: Store> Collector for NvmeMetrics<S> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        let executed = self.0.target.executed();
        let devices = self.0.devices.load(Relaxed) as u64;
        let published = self.0.identities.published().len() as u64;
        gauges(
            encoder,
            &Family {
                name: "forebay_nvme_controllers",
                help: "Controllers that hosts use now, by transport",
                unit: None,
                samples: vec![
                    (vec![("transport", "tcp")], self.0.tcp.controllers() as u64),
                    (vec![("transport", "vfio-user")], devices),
                ],
            },
        )?;
        gauges(
            encoder,
            &Family::one(
                "forebay_nvme_namespaces",
                "Namespace identifiers that are taken",
                None,
                published,
            ),
        )?;
        let commands = executed.commands.iter().flat_map(|one| {
            let sample =
                |outcome, count| (vec![("command", one.command), ("outcome", outcome)], count);
            [
                sample("success", one.succeeded),
                sample("error", one.failed),
            ]
        });
        counters(
            encoder,
            &Family {
                name: "forebay_nvme_commands",
                help: "I/O commands executed",
                unit: None,
                samples: commands.filter(|(_, count)| *count > 0).collect(),
            },
        )?;
        counters(
            encoder,
            &Family {
                name: "forebay_nvme_payload",
                help: "Values and blocks moved, by direction",
                unit: Some(Unit::Bytes),
                samples: vec![
                    (vec![("direction", "received")], executed.received_bytes),
                    (vec![("direction", "sent")], executed.sent_bytes),
                ],
            },
        )
    }
}
