//! Rows whose place in the index cannot be read: they wait in a table of their own, and in memory above the others, until it can.

use bytes::Bytes;
use forebay_store::{Result, StoreError};
use redb::{TableDefinition, TableHandle, WriteTransaction};

use crate::keys::Table;
use crate::mend::Salvage;
use crate::tables::Memtable;

use super::backend::{Tour, is_damage, looking};
use super::salvage::set_aside;
use super::{Index, RawTable, corrupt, definition, failed, put_state, remove_state, seal};

pub(super) const UNPLACED: RawTable = TableDefinition::new("unplaced");
/// Says that the table is there, so that it cannot be lost without a word.
pub(super) const STATE_UNPLACED: &[u8] = b"unplaced";

impl Index {
    /// The rows that wait for their places. Those that are damaged are given up if that is `accepted`, with the next checkpoint; the error is
    /// what is wrong with them.
    pub fn unplaced(&self, accepted: bool) -> Result<(Memtable, Option<StoreError>)> {
        let mut rows = Memtable::default();
        let is_said = self.state(STATE_UNPLACED)?.is_some();
        let is_there = self
            .table_names()?
            .iter()
            .any(|name| name == UNPLACED.name());
        let lost = (is_said != is_there).then(|| corrupt("table unplaced"));
        if !is_there || (lost.is_some() && !accepted) {
            return match lost {
                Some(lost) if !accepted => Err(lost),
                lost => Ok((rows, lost)),
            };
        }
        let found = self.salvage(UNPLACED, |key, row| decode(key, row).is_some())?;
        for (table, key, row) in found.rows.iter().filter_map(|(key, row)| decode(key, row)) {
            rows.set(table, key, row);
        }
        let Salvage {
            broken, damaged, ..
        } = found;
        let damaged = damaged.into_iter().map(|(_, error)| error);
        let damage = broken.into_iter().chain(damaged).chain(lost).next();
        match damage {
            Some(error) if !accepted => Err(error),
            damage => Ok((rows, damage)),
        }
    }

    /// Adds the rows of a memtable with keys of `which` whose places in a table cannot be read.
    pub(super) fn find_unplaced(
        &self,
        table: Table,
        which: &Memtable,
        memtable: &Memtable,
        unplaced: &mut Memtable,
    ) -> Result<()> {
        if which.rows(table).is_empty() {
            return Ok(());
        }
        // Many of them may be in the same page.
        let _tour = Tour::begin();
        let transaction = self.begin_read()?;
        let open = looking(|| transaction.open_table(definition(table)).map_err(failed));
        let open = unless_unread(open)?;
        for key in which.rows(table).keys() {
            let place = match &open {
                Some(open) => {
                    let found = looking(|| open.get(&key[..]).map(drop).map_err(failed));
                    unless_unread(found)?
                }
                None => None,
            };
            if place.is_none()
                && let Some(row) = memtable.get(table, key)
            {
                unplaced.set(table, key.clone(), row.clone());
            }
        }
        Ok(())
    }
}

/// `None` where the medium does not give it, or nothing leads there.
pub(super) fn unless_unread<T>(looked: Result<T>) -> Result<Option<T>> {
    match looked {
        Err(error) if is_damage(&error) => Ok(None),
        looked => looked.map(Some),
    }
}

/// Removes the rows that waited for their places. Which pages they have cannot be told where one of those cannot be read: then the table is
/// set aside with them.
pub(super) fn remove_unplaced(transaction: &WriteTransaction, is_set_aside: bool) -> Result<()> {
    match is_set_aside {
        true => set_aside(transaction, UNPLACED),
        false => transaction.delete_table(UNPLACED).map(drop).map_err(failed),
    }
}

/// Puts the rows that wait for their places where there are none.
pub(super) fn put_unplaced(transaction: &WriteTransaction, unplaced: &Memtable) -> Result<()> {
    if unplaced.is_empty() {
        return remove_state(transaction, STATE_UNPLACED);
    }
    put_state(transaction, STATE_UNPLACED, &[])?;
    let mut open = transaction.open_table(UNPLACED).map_err(failed)?;
    let mut checked = Vec::new();
    for table in Table::ALL {
        for (key, row) in unplaced.rows(table) {
            let (key, row) = encode(table, key, row.as_deref());
            seal(&key, &row, &mut checked);
            open.insert(&key[..], &checked[..]).map_err(failed)?;
        }
    }
    Ok(())
}

fn encode(table: Table, key: &[u8], row: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let key = [&[table as u8], key].concat();
    let row = [&[u8::from(row.is_some())], row.unwrap_or_default()].concat();
    (key, row)
}

fn decode(key: &[u8], row: &Bytes) -> Option<(Table, Bytes, Option<Bytes>)> {
    let (table, key) = key.split_first()?;
    let table = Table::from_number(*table)?;
    let key = Bytes::copy_from_slice(key);
    match row.first()? {
        0 if row.len() == 1 => Some((table, key, None)),
        1 => Some((table, key, Some(row.slice(1..)))),
        _ => None,
    }
}
