//! Small tables that a store cannot be opened without, made anew where they are damaged: the map of space, what namespaces use, the
//! namespaces and tenants' quotas themselves. What no row of them tells is found again in what is stored, or given up.

mod accounts;
mod map;
mod overlap;
mod runs;

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_store::StoreError;

use crate::Result;
use crate::findings::Finding;
use crate::index::Index;
use crate::tables::{Memtable, Tables};
use crate::view::View;

pub(crate) use overlap::drop_overlapped;
pub(crate) use runs::each_run;

/// What is left of a table.
#[derive(Debug, Default)]
pub(crate) struct Salvage {
    /// The rows that match.
    pub rows: BTreeMap<Bytes, Bytes>,
    /// The keys of the others, and what is wrong with them.
    pub damaged: Vec<(Bytes, StoreError)>,
    /// What leads to some of its rows is damaged, or cannot be read.
    pub broken: Option<StoreError>,
}

impl Salvage {
    /// What is wrong, if anything is.
    fn damage(&self) -> Option<String> {
        let rows = self.damaged.iter().map(|(_, error)| error);
        let first = self.broken.iter().chain(rows).next()?;
        Some(first.message().to_owned())
    }
}

/// Mends the index below what the `journal` holds beyond it; `granules` is how much space there is. Says what was done.
pub(crate) fn mend(index: &Index, journal: &Memtable, granules: u64) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    findings.extend(map::mend(index, journal, granules)?);
    findings.extend(accounts::mend_usage(index, journal)?);
    findings.extend(accounts::mend_namespaces(index, journal)?);
    findings.extend(accounts::mend_quotas(index, journal)?);
    Ok(findings)
}

/// What is stored once the journal is in the index: as long as it is not, some of a change may be there and some may not.
fn whole<'a>(tables: &'a Tables, journal: &'a Memtable) -> View<'a> {
    View {
        tables,
        over: Some(journal),
        now: 0,
        stored: true,
    }
}

fn finding(damage: &str, what: &str) -> Finding {
    let what = format!("{damage}: {what}");
    Finding::of_nobody(what)
}
