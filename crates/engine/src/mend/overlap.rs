//! Entries that are back since what had become of them is lost: the space that they tell of may be others' by now.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_store::ErrorKind;

use crate::Result;
use crate::entry::Entry;
use crate::extent::Run;
use crate::findings::Finding;
use crate::index::Index;
use crate::keys::Table;
use crate::passage::{Met, Passage};
use crate::space::{Chunk, by_chunks};
use crate::tables::{Memtable, Tables};
use crate::view::View;

use super::accounts::named;
use super::runs::runs_of;
use super::{finding, whole};

/// Rows looked at in one step.
const STEP: usize = 256;

/// An entry that tells of space.
struct Claim {
    table: Table,
    key: Bytes,
    sequence: u64,
    runs: Vec<Run>,
}

/// Removes, in what the `journal` holds, entries of which others, that came later, have some of the space: who deleted one would free what
/// those have.
///
/// # Errors
/// Some entries cannot be read, and may be such when they can. Those on a page that is garbage never will be.
pub(crate) fn drop_overlapped(index: &Index, journal: &mut Memtable) -> Result<Vec<Finding>> {
    let tables = Tables::new(index.snapshot()?, Memtable::default(), 0);
    let namespaces = named(index, journal)?;
    let view = whole(&tables, journal);
    let mut seen = Map::default();
    let mut doubled = Map::default();
    each_claim(view, &namespaces, |claim| {
        for run in claim.runs {
            if seen.has_some(run) {
                doubled.mark(run);
            }
            seen.mark(run);
        }
    })?;
    let mut claims = Vec::new();
    each_claim(view, &namespaces, |claim| {
        if claim.runs.iter().any(|run| doubled.has_some(*run)) {
            claims.push(claim);
        }
    })?;
    // What is kept was current once.
    claims.sort_by_key(|claim| (Reverse(claim.sequence), claim.table));
    let mut owned = Map::default();
    let mut findings = Vec::new();
    for Claim {
        table, key, runs, ..
    } in claims
    {
        if runs.iter().any(|run| owned.has_some(*run)) {
            let row = format!("row \"{}\" of table {}", key.escape_ascii(), table.name());
            let what = "what had become of it is lost, and others have its space: it is dropped";
            findings.push(finding(&row, what));
            journal.set(table, key, None);
        } else {
            runs.into_iter().for_each(|run| owned.mark(run));
        }
    }
    Ok(findings)
}

/// Calls `each` for the entries that tell of space, as far as anything can be read of them at all.
fn each_claim(view: View<'_>, namespaces: &[u32], mut each: impl FnMut(Claim)) -> Result<()> {
    for table in [Table::Current, Table::Kept] {
        let mut passage = Passage::new(view, table, namespaces.to_vec(), STEP);
        while let Some(next) = passage.next()? {
            let scan = match next {
                Met::Rows(scan) => scan,
                Met::Damage { error, .. } if error.kind() == ErrorKind::Io => return Err(error),
                Met::Damage { .. } => continue,
            };
            for (key, encoded) in scan.rows {
                let Ok(entry) = Entry::adopt(encoded) else {
                    continue;
                };
                let mut runs = Vec::new();
                match runs_of(view, &entry, &mut |run| runs.push(run)) {
                    Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                    // The rest nobody will find who deletes it either.
                    _ if runs.is_empty() => {}
                    _ => each(Claim {
                        table,
                        key,
                        sequence: entry.sequence(),
                        runs,
                    }),
                }
            }
        }
    }
    Ok(())
}

/// Granules, a chunk at a time.
#[derive(Default)]
struct Map {
    chunks: BTreeMap<u64, Chunk>,
}

impl Map {
    fn mark(&mut self, run: Run) {
        for (number, at, count) in by_chunks(run) {
            self.chunks.entry(number).or_default().set(at, count, true);
        }
    }

    fn has_some(&self, run: Run) -> bool {
        by_chunks(run).any(|(number, at, count)| {
            let chunk = self.chunks.get(&number);
            chunk.is_some_and(|chunk| chunk.has_some(at, count))
        })
    }
}
