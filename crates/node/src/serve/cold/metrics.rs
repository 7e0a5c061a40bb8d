//! What the cold tier counts, read when it is asked for.

use std::fmt;
use std::sync::Arc;

use forebay_tier::cold::Mover;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use crate::serve::leaf::Leaf;
use crate::serve::metrics::{Family, counters, gauges};

pub struct ColdMetrics(pub Arc<Mover<Leaf>>);

impl fmt::Debug for ColdMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ColdMetrics")
    }
}

impl Collector for ColdMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let metrics = self.0.metrics();
        for (name, help, unit, value) in [
            (
                "forebay_cold_moved_values",
                "Values whose bytes went to the cold tier",
                None,
                metrics.moved,
            ),
            (
                "forebay_cold_moved",
                "Sent to the cold tier",
                Some(Unit::Bytes),
                metrics.moved_bytes,
            ),
            (
                "forebay_cold_recalled_values",
                "Values whose bytes came back",
                None,
                metrics.recalled,
            ),
            (
                "forebay_cold_recalled",
                "Brought back from the cold tier",
                Some(Unit::Bytes),
                metrics.recalled_bytes,
            ),
            (
                "forebay_cold_reads",
                "Reads of values whose bytes were cold",
                None,
                metrics.reads,
            ),
            (
                "forebay_cold_read",
                "Given to readers straight from the cold tier",
                Some(Unit::Bytes),
                metrics.read_bytes,
            ),
            (
                "forebay_cold_deleted_copies",
                "Copies deleted after their values ended or came back",
                None,
                metrics.deleted,
            ),
            (
                "forebay_cold_swept_copies",
                "Copies deleted to which nothing referred",
                None,
                metrics.swept,
            ),
            (
                "forebay_cold_failures",
                "Calls to the cold tier that failed",
                None,
                metrics.failed,
            ),
        ] {
            counters(&mut encoder, &Family::one(name, help, unit, value))?;
        }
        gauges(
            &mut encoder,
            &Family::one(
                "forebay_cold_waiting_copies",
                "Copies that wait to be deleted",
                None,
                metrics.waiting,
            ),
        )
    }
}
