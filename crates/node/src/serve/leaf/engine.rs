//! The engine as a leaf: how it is opened, swept and counted.

use std::fmt;
use std::sync::Arc;

use forebay_engine::{Engine, OpenError};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use crate::exit::{Exit, Failure, Outcome};
use crate::serve::args::ServeArgs;
use crate::serve::device::Device;
use crate::serve::held::{aside, patiently};
use crate::serve::limits::Memory;
use crate::serve::metrics::{Family, counters, gauges};

/// Bounded steps of one sweep: the rest waits for the next.
const SWEEP_STEPS: usize = 64;

/// Opens the directory, in which a journal may have to be replayed.
pub async fn open(
    disk: Device,
    clock: Arc<SystemClock>,
    pool: Pool,
    memory: &Memory,
    args: &ServeArgs,
) -> Outcome<Engine<Device>> {
    let config = forebay_engine::Config {
        cache_bytes: memory.cache,
        capacity_bytes: args.capacity.map_or(u64::MAX, |size| size.0),
        lose_journal_from: args.lose_journal_from,
        accept_damaged_index: args.accept_damaged_index,
        ..forebay_engine::Config::default()
    };
    let open = move || Engine::open(disk.clone(), clock.clone(), pool.clone(), config.clone());
    let is_held = |error: &OpenError| matches!(error, OpenError::Locked(_));
    let opened = aside(move || patiently(open, is_held)).await?;
    opened.map_err(|error| refused(args.dir.display(), &error))
}

/// An engine's directory was not opened: why, and what to do.
pub fn refused(place: impl fmt::Display, error: &OpenError) -> Failure {
    let mut message = format!("{place}: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    if let OpenError::Journal { group, .. } = error {
        message.push_str(&format!(
            "; without one, --lose-journal-from {group} opens the store as it was before that group, and loses what came after"
        ));
    }
    if let OpenError::Index(_) = error {
        message.push_str(
            "; without one, --accept-damaged-index opens the store: what is damaged in it is refused when it is read, or lost where a finding says so",
        );
    }
    Failure::new(Exit::Failed, message)
}

/// Drops some of what has expired.
pub async fn sweep(store: &Engine<Device>) {
    for _ in 0..SWEEP_STEPS {
        match store.sweep().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "expired values were not dropped");
                return;
            }
        }
    }
}

/// What the engine counts, read when it is asked for.
pub struct EngineMetrics(pub Arc<Engine<Device>>);

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let metrics = self.0.metrics();
        for (name, help, unit, value) in [
            (
                "forebay_engine_groups",
                "Journal groups written",
                None,
                metrics.groups,
            ),
            (
                "forebay_engine_changes",
                "Changes in journal groups",
                None,
                metrics.records,
            ),
            (
                "forebay_engine_syncs",
                "Syncs of the data file",
                None,
                metrics.syncs,
            ),
            (
                "forebay_engine_journal",
                "Written to the journal",
                Some(Unit::Bytes),
                metrics.journal_bytes,
            ),
            (
                "forebay_engine_checkpoints",
                "Times that changes were written to the index",
                None,
                metrics.checkpoints,
            ),
            (
                "forebay_engine_cache_hits",
                "Pieces of values found in memory",
                None,
                metrics.cache_hits,
            ),
            (
                "forebay_engine_cache_misses",
                "Pieces of values read from the disk",
                None,
                metrics.cache_misses,
            ),
            (
                "forebay_engine_corrupt_blocks",
                "Findings of every kind: blocks that did not match their checksum, rows and pages of the index that are damaged or cannot be read",
                None,
                metrics.corrupt_blocks,
            ),
            (
                "forebay_engine_replayed_groups",
                "Journal groups replayed at the start",
                None,
                metrics.replayed_groups,
            ),
        ] {
            counters(&mut encoder, &Family::one(name, help, unit, value))?;
        }
        for (name, help, unit, value) in [
            (
                "forebay_engine_cache",
                "Buffers held by the cache",
                Some(Unit::Bytes),
                metrics.cache_bytes,
            ),
            (
                "forebay_engine_space",
                "Space taken from the file system for values",
                Some(Unit::Bytes),
                metrics.space_bytes,
            ),
            (
                "forebay_engine_space_free",
                "Of that space, free",
                Some(Unit::Bytes),
                metrics.space_free_bytes,
            ),
            (
                "forebay_engine_space_kept",
                "Of the space, what deleted and replaced values had whose readers have not ended",
                Some(Unit::Bytes),
                metrics.space_kept_bytes,
            ),
            (
                "forebay_engine_kept_layouts",
                "Memory that tells those readers where it is",
                Some(Unit::Bytes),
                metrics.kept_layout_bytes,
            ),
            (
                "forebay_engine_read_only",
                "1 when changes are refused until a restart, since something failed that the log tells",
                None,
                u64::from(metrics.read_only),
            ),
        ] {
            gauges(&mut encoder, &Family::one(name, help, unit, value))?;
        }
        Ok(())
    }
}
