//! Reading everything back: which blocks do not match, and whether space and entries agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use forebay_io::Disk;
use forebay_store::{ErrorKind, Result, StoreError, VersionId};

use crate::body::{Label, Memory, Segment, read, row_mismatch};
use crate::core::Core;
use crate::engine::LOOKS_MAX;
use crate::entry::Entry;
use crate::extent::BLOCK_BYTES;
use crate::findings::Finding;
use crate::index::corrupt;
use crate::keys::{self, Table};
use crate::mend::each_run;
use crate::passage::{Met, Passage};
use crate::segments::{Pins, Segments, resolve};
use crate::view::{View, malformed};

/// How far a scrub is, or what it came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubProgress {
    /// Values read, kept versions and staged parts included.
    pub values: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Values that could not be read whole.
    pub damaged: u64,
}

/// Rows looked at in one step.
const STEP: usize = 64;

/// Reads every value, past the caches.
pub(crate) async fn scrub<D: Disk>(
    core: &Arc<Core<D>>,
    mut progress: impl FnMut(ScrubProgress) + Send,
) -> Result<ScrubProgress> {
    let mut so_far = ScrubProgress::default();
    let scrub = core.findings.begin_scrub();
    let namespaces = core.registry.read().all();
    let namespaces: Vec<u32> = namespaces.iter().map(|info| info.id).collect();
    let mut is_whole = true;
    for table in [Table::Current, Table::Kept] {
        let mut passage = Passage::new(core.view(), table, namespaces.clone(), STEP);
        while let Some(next) = passage.next()? {
            // Nothing else may be to be waited for, of small values.
            tokio::task::yield_now().await;
            let scan = match next {
                Met::Rows(scan) => scan,
                Met::Damage { from, until, error } => {
                    note_range(core, table, &from, until.as_deref(), &error);
                    so_far.damaged += 1;
                    is_whole = false;
                    continue;
                }
            };
            for (row_key, error) in &scan.damaged {
                note_row(core, table, row_key, error);
                so_far.damaged += 1;
                so_far.values += 1;
            }
            for (row_key, encoded) in scan.rows {
                let entry = Entry::adopt(encoded).map_err(malformed)?;
                if entry.is_marker() {
                    continue;
                }
                match verify(core, table, &row_key, &entry).await {
                    Ok(bytes) => so_far.bytes += bytes,
                    Err(error) => {
                        tracing::error!(error = &error as &dyn std::error::Error, "scrub");
                        so_far.damaged += 1;
                    }
                }
                so_far.values += 1;
            }
            progress(so_far);
        }
    }
    // What it did not get to may be as damaged as it was.
    if is_whole {
        core.findings.end_scrub(scrub);
    }
    Ok(so_far)
}

/// Whose row it is, as far as its key tells.
fn label_of<D: Disk>(core: &Core<D>, table: Table, row_key: &[u8]) -> Result<Option<Label>> {
    let split = match table {
        Table::Kept => {
            let id = row_key.first_chunk().map(|id| u32::from_be_bytes(*id));
            let split = keys::split_kept(row_key);
            id.zip(split)
                .map(|(id, (key, sequence))| (id, Bytes::from(key), sequence))
        }
        _ => keys::split_current(row_key)
            .map(|(id, _, key)| (id, Bytes::copy_from_slice(key), VersionId::NULL.0)),
    };
    let (id, key, version) = split.ok_or_else(|| corrupt("a key"))?;
    let namespace = core.registry.read().by_id(id).cloned();
    Ok(namespace.map(|namespace| Label {
        namespace,
        key,
        version,
    }))
}

/// Notes a row that does not match.
fn note_row<D: Disk>(core: &Core<D>, table: Table, row_key: &[u8], error: &StoreError) {
    let what = error.message().to_owned();
    let finding = match label_of(core, table, row_key) {
        Ok(Some(label)) => label.finding(what),
        _ => Finding::of_nobody(what),
    };
    core.note(finding);
}

/// Notes that nothing can be read from one place in the index to another, or to the end.
fn note_range<D: Disk>(
    core: &Core<D>,
    table: Table,
    from: &[u8],
    until: Option<&[u8]>,
    error: &StoreError,
) {
    let to = match until {
        Some(until) => format!("before \"{}\"", until.escape_ascii()),
        None => "up to the end".to_owned(),
    };
    core.note(Finding::of_nobody(format!(
        "{}: no row of table {} can be read from \"{}\" on, {to}",
        error.message(),
        table.name(),
        from.escape_ascii(),
    )));
}

/// Notes an extent that the device does not give.
fn note_unread<D: Disk>(core: &Core<D>, label: &Label, granule: u64, block: usize) {
    let what = format!("the extent at granule {granule} cannot be read");
    core.note(Finding {
        granule,
        block,
        ..label.finding(what)
    });
}

/// What a row leads to; `None`: it is gone or replaced since the scan, and what it had been may be reused already.
fn find<D: Disk>(
    core: &Arc<Core<D>>,
    table: Table,
    row_key: &[u8],
    entry: &Entry,
    label: &Label,
) -> Result<Option<(Segments, Pins<D>)>> {
    let damaged = |error| row_damaged(core, label, error);
    for _ in 0..LOOKS_MAX {
        let _visit = core.reclaim.visit();
        let view = View {
            stored: true,
            ..core.view()
        };
        // A row beside its place may keep others from being found.
        let row = view.get(table, row_key).map_err(damaged)?;
        if row.is_none_or(|row| row != entry.encoded()) {
            return Ok(None);
        }
        let place = entry.place().map_err(malformed)?;
        let found = resolve(core, view, place, 0..entry.size()).map_err(damaged)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    // It is there, and what it leads to is not.
    Err(damaged(corrupt("a value's layout")))
}

/// Notes what keeps a value from being found, and names the value.
fn row_damaged<D: Disk>(core: &Core<D>, label: &Label, error: StoreError) -> StoreError {
    if error.kind() == ErrorKind::Io {
        core.note(label.finding(error.message().to_owned()));
    }
    row_mismatch(core, label, error)
}

async fn verify<D: Disk>(
    core: &Arc<Core<D>>,
    table: Table,
    row_key: &[u8],
    entry: &Entry,
) -> Result<u64> {
    let Some(label) = label_of(core, table, row_key)? else {
        return Ok(0);
    };
    let label = Label {
        version: entry.version().0,
        ..label
    };
    let found = find(core, table, row_key, entry, &label)?;
    let Some((mut segments, _pins)) = found else {
        return Ok(0);
    };
    let mut bytes = 0;
    let mut first_error = None;
    while let Some(segment) = segments.pop(core).transpose() {
        let read = match segment {
            Err(error) => Err(row_damaged(core, &label, error)),
            Ok(Segment::Ready(buf)) => Ok(buf),
            Ok(Segment::Stored {
                piece,
                extent,
                want,
            }) => {
                let (granule, block) = (extent.start, want.start / BLOCK_BYTES);
                let read = read(core, &label, piece, extent, want, Memory::Passed).await;
                if let Err(error) = &read
                    && error.kind() == ErrorKind::Io
                {
                    note_unread(core, &label, granule, block);
                }
                read
            }
        };
        match read {
            Ok(buf) => bytes += buf.len() as u64,
            // The other pieces may be damaged too, and are to be named.
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(bytes), Err)
}

/// Whether the map of space agrees with what entries refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Granules that entries refer to.
    pub referenced: u64,
    /// Granules that are taken, but that nothing refers to.
    pub leaked: u64,
    /// Granules that two bodies refer to, or that are free though referred to.
    pub doubled: u64,
}

/// Compares space and entries; meaningful while nothing changes.
pub(crate) fn audit<D: Disk>(core: &Core<D>) -> Result<Audit> {
    let mut runs = BTreeMap::<u64, u64>::new();
    let mut audit = Audit::default();
    each_run(core.view(), |run| {
        audit.referenced += u64::from(run.granules);
        if runs.insert(run.start, run.end()).is_some() {
            audit.doubled += u64::from(run.granules);
        }
    })?;
    let mut end = 0;
    for (start, run_end) in &runs {
        audit.doubled += end.max(*start) - start;
        end = end.max(*run_end);
    }
    let usage = core.space.usage();
    let granule = crate::extent::GRANULE_BYTES as u64;
    let taken = (usage.total_bytes - usage.free_bytes) / granule;
    audit.leaked = taken.saturating_sub(audit.referenced);
    for (start, count) in core.space.unused_runs() {
        for (run, run_end) in runs.range(start.saturating_sub(256)..start + count) {
            audit.doubled += (start + count)
                .min(*run_end)
                .saturating_sub(start.max(*run));
        }
    }
    Ok(audit)
}
