//! What the cache counts, read when it is asked for.

use std::fmt;

use forebay_store::Store;
use forebay_tier::Tier;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use crate::serve::metrics::{Family, counters, gauges};

/// Families `forebay_tier_*`; none when there is no cache.
pub struct TierMetrics<S: Store>(pub Tier<S>);

impl<S: Store> fmt::Debug for TierMetrics<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TierMetrics")
    }
}

impl<S: Store> Collector for TierMetrics<S> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(metrics) = self.0.metrics() else {
            return Ok(());
        };
        for (name, help, value) in [
            (
                "forebay_tier_memory_hits",
                "Pieces of values found in the cache's memory",
                metrics.memory_hits,
            ),
            (
                "forebay_tier_disk_hits",
                "Pieces of values found on the cache's disk",
                metrics.disk_hits,
            ),
            (
                "forebay_tier_misses",
                "Pieces of values that came from the backend",
                metrics.misses,
            ),
            (
                "forebay_tier_fills",
                "Reads of the backend's bytes for the cache",
                metrics.fills,
            ),
            (
                "forebay_tier_joined",
                "Readers that shared another's read of the backend",
                metrics.joined,
            ),
            (
                "forebay_tier_passed",
                "Reads passed on to the backend",
                metrics.passed,
            ),
            (
                "forebay_tier_checks",
                "Times that the backend was asked whether a value is current",
                metrics.checks,
            ),
            (
                "forebay_tier_outdated",
                "Of those, the ones that found another value",
                metrics.outdated,
            ),
            (
                "forebay_tier_evictions",
                "Pieces that left memory",
                metrics.evictions,
            ),
            (
                "forebay_tier_spills",
                "Pieces written to the cache's disk",
                metrics.spills,
            ),
            (
                "forebay_tier_spills_dropped",
                "Pieces that the disk did not take",
                metrics.spills_dropped,
            ),
            (
                "forebay_tier_corrupt",
                "Pieces that did not match their checksum; none was served",
                metrics.corrupt,
            ),
            (
                "forebay_tier_notices",
                "Changes by others that the backend told of",
                metrics.notices,
            ),
            (
                "forebay_tier_notices_lost",
                "Times that such notices were lost, and everything kept was in doubt",
                metrics.notices_lost,
            ),
            (
                "forebay_tier_write_backs",
                "Stores answered before the backend had committed them",
                metrics.write_backs,
            ),
            (
                "forebay_tier_write_backs_lost",
                "Of those, the ones that the backend then did not take",
                metrics.write_backs_lost,
            ),
        ] {
            counters(&mut encoder, &Family::one(name, help, None, value))?;
        }
        for (name, help, value) in [
            ("forebay_tier_memory", "Buffers kept", metrics.memory_bytes),
            (
                "forebay_tier_pinned",
                "Of those, pinned",
                metrics.pinned_bytes,
            ),
            (
                "forebay_tier_disk",
                "Values kept on the cache's disk",
                metrics.disk_bytes,
            ),
            (
                "forebay_tier_write_back",
                "Acknowledged and not yet committed: what a crash now would lose",
                metrics.write_back_bytes,
            ),
        ] {
            gauges(
                &mut encoder,
                &Family::one(name, help, Some(Unit::Bytes), value),
            )?;
        }
        gauges(
            &mut encoder,
            &Family::one(
                "forebay_tier_objects",
                "Values of which something is kept",
                None,
                metrics.objects,
            ),
        )
    }
}
