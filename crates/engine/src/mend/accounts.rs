//! What namespaces use, which is counted anew; and the namespaces and quotas themselves, of which a damaged row is a loss.

use std::collections::HashMap;

use bytes::Bytes;
use forebay_store::{Result, Space, StoreError, Usage};

use crate::entry::Entry;
use crate::findings::Finding;
use crate::index::{Index, definition};
use crate::keys::{self, Table};
use crate::namespaces::{
    GREATEST, decode_greatest, decode_info, decode_quota_row, decode_usage, encode_usage,
};
use crate::passage::{Met, Passage};
use crate::tables::{Memtable, Tables};
use crate::view::{View, malformed};

use super::{Salvage, finding, whole};

/// Rows looked at in one step.
const STEP: usize = 256;

/// Counts what namespaces hold of which no row tells.
pub(super) fn mend_usage(index: &Index, journal: &Memtable) -> Result<Option<Finding>> {
    let mut table = usage(index)?;
    let Some(damage) = table.damage() else {
        return Ok(None);
    };
    let tables = Tables::new(index.snapshot()?, Memtable::default(), 0);
    let Count { used, is_whole, .. } = count(whole(&tables, journal), &named(index, journal)?)?;
    drop(tables);
    for (id, used) in used {
        let key = Bytes::copy_from_slice(&keys::namespace(id));
        table.rows.entry(key).or_insert(encode_usage(used));
    }
    index.replace(definition(Table::Usage), &table)?;
    let what = match is_whole {
        true => "what namespaces use was counted anew",
        false => "what namespaces use was counted anew, as far as what is stored tells",
    };
    Ok(Some(finding(&damage, what)))
}

/// Gives up namespaces whose rows are damaged. What they hold stays, and so their numbers are given to no others.
pub(super) fn mend_namespaces(index: &Index, journal: &Memtable) -> Result<Vec<Finding>> {
    let table = Table::Namespace;
    let mut found = namespaces(index)?;
    if !found.damaged.is_empty() && !found.rows.contains_key(GREATEST) {
        let greatest = greatest(index, journal, &found)?;
        let row = Bytes::copy_from_slice(&greatest.to_le_bytes());
        found.rows.insert(Bytes::from_static(GREATEST), row);
    }
    give_up(index, journal, table, found, |name| match name {
        GREATEST => {
            "the greatest number of a namespace is that of one there is, or holds something"
        }
        _ => "the namespace is lost, and what it holds stays where it is",
    })
}

/// Gives up quotas whose rows are damaged.
pub(super) fn mend_quotas(index: &Index, journal: &Memtable) -> Result<Vec<Finding>> {
    let table = Table::Tenant;
    let found = index.salvage(definition(table), |tenant, row| {
        std::str::from_utf8(tenant).is_ok() && decode_quota_row(row).is_ok()
    })?;
    give_up(
        index,
        journal,
        table,
        found,
        |_| "the quota is lost, and the tenant has none",
    )
}

/// Makes a table anew of the rows that match. That a row is damaged will not change; that some part cannot be read may, and it would be
/// too much to lose.
fn give_up(
    index: &Index,
    journal: &Memtable,
    table: Table,
    found: Salvage,
    what: impl Fn(&[u8]) -> &'static str,
) -> Result<Vec<Finding>> {
    if let Some(error) = found.broken {
        return Err(error);
    }
    if found.damaged.is_empty() {
        return Ok(Vec::new());
    }
    index.replace(definition(table), &found)?;
    // What the journal has comes on top.
    let lost = found.damaged.iter();
    let lost = lost.filter(|(key, _)| journal.get(table, key).is_none());
    let findings = lost.map(|(key, error)| finding(error.message(), what(key)));
    Ok(findings.collect())
}

fn namespaces(index: &Index) -> Result<Salvage> {
    let table = definition(Table::Namespace);
    index.salvage(table, |name, row| match name {
        GREATEST => decode_greatest(row).is_ok(),
        name => decode_info(name, row).is_ok(),
    })
}

/// The numbers of the namespaces that there are.
pub(super) fn named(index: &Index, journal: &Memtable) -> Result<Vec<u32>> {
    let mut rows = namespaces(index)?.rows;
    for (name, row) in journal.rows(Table::Namespace) {
        match row {
            Some(row) => drop(rows.insert(name.clone(), row.clone())),
            None => drop(rows.remove(name)),
        }
    }
    let named = rows.iter();
    Ok(named
        .filter_map(|(name, row)| Some(decode_info(name, row).ok()?.id))
        .collect())
}

fn usage(index: &Index) -> Result<Salvage> {
    index.salvage(definition(Table::Usage), |key, row| {
        key.len() == 4 && decode_usage(row).is_ok()
    })
}

/// The greatest number of a namespace that is known of.
fn greatest(index: &Index, journal: &Memtable, found: &Salvage) -> Result<u32> {
    let tables = Tables::new(index.snapshot()?, Memtable::default(), 0);
    let Count { used, unseen, .. } = count(whole(&tables, journal), &[])?;
    // A number that is given again would show what another namespace held.
    if let Some(error) = unseen {
        return Err(error);
    }
    let held = used.into_keys();
    let counted = usage(index)?.rows.into_keys();
    let counted = counted.filter_map(|key| number(&key));
    let named = found.rows.iter();
    let named = named.filter_map(|(name, row)| Some(decode_info(name, row).ok()?.id));
    Ok(held.chain(counted).chain(named).max().unwrap_or_default())
}

/// What namespaces hold.
struct Count {
    used: HashMap<u32, Usage>,
    /// No entry is damaged: those are in it as far as anything tells.
    is_whole: bool,
    /// Why some entries are not in it at all.
    unseen: Option<StoreError>,
}

/// Counts all entries that can be read, of whatever namespace; where not all can, those of these are looked for.
fn count(view: View<'_>, namespaces: &[u32]) -> Result<Count> {
    let mut used = HashMap::<u32, Usage>::new();
    let mut is_whole = true;
    let mut unseen = None;
    let mut add = |key: &[u8], usage| {
        // What is left to be freed weighs nothing.
        if let Some(id) = number(key).filter(|id| *id != 0) {
            let sum = used.entry(id).or_default();
            *sum = sum.plus(usage);
        }
    };
    for table in [Table::Current, Table::Kept] {
        let mut passage = Passage::new(view, table, namespaces.to_vec(), STEP);
        while let Some(next) = passage.next()? {
            let scan = match next {
                Met::Rows(scan) => scan,
                Met::Damage { error, .. } => {
                    is_whole = false;
                    unseen = unseen.or(Some(error));
                    continue;
                }
            };
            for (key, _) in &scan.damaged {
                is_whole = false;
                if space(table, key) == Space::Objects {
                    add(key, Usage::MARKER);
                }
            }
            for (key, encoded) in scan.rows {
                let entry = Entry::adopt(encoded).map_err(malformed)?;
                let usage = match entry.is_marker() {
                    true => Usage::MARKER,
                    false => Usage::of(space(table, &key), entry.size()),
                };
                add(&key, usage);
            }
        }
    }
    Ok(Count {
        used,
        is_whole,
        unseen,
    })
}

fn space(table: Table, key: &[u8]) -> Space {
    match (table, keys::split_current(key)) {
        (Table::Current, Some((_, space, _))) => space,
        _ => Space::Objects,
    }
}

/// The number that keys of a namespace begin with.
fn number(key: &[u8]) -> Option<u32> {
    let (number, _) = key.split_first_chunk()?;
    Some(u32::from_be_bytes(*number))
}
