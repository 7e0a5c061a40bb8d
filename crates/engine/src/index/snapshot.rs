//! The tables of the index at one moment.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::OnceLock;

use bytes::Bytes;
use forebay_store::Result;
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable};

use crate::keys::Table;

use super::backend::looking;
use super::walk::{Row, Walk};
use super::{checked, corrupt, definition, failed, of_row, outdated, sealed};

pub(super) type RawRows = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The tables at one moment. Each is opened when it is first looked at, which reads its first page: where that cannot be read, others can.
#[derive(Default)]
pub(crate) struct Snapshot {
    transaction: Option<ReadTransaction>,
    tables: [OnceLock<RawRows>; Table::ALL.len()],
}

impl Snapshot {
    /// The tables as this transaction sees them.
    pub fn new(transaction: ReadTransaction) -> Snapshot {
        Snapshot {
            transaction: Some(transaction),
            ..Snapshot::default()
        }
    }

    /// Lets go of what it shows; nothing can be read from it.
    pub fn close(&mut self) {
        *self = Snapshot::default();
    }

    pub(super) fn rows(&self, table: Table) -> Result<&RawRows> {
        let open = &self.tables[table as usize];
        if let Some(rows) = open.get() {
            return Ok(rows);
        }
        let transaction = self.transaction.as_ref().ok_or_else(outdated)?;
        let rows = transaction.open_table(definition(table)).map_err(failed)?;
        Ok(open.get_or_init(|| rows))
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        looking(|| {
            let rows = self.rows(table)?;
            let Some(value) = rows.get(key).map_err(failed)? else {
                check_gap(rows, table, key)?;
                return Ok(None);
            };
            checked(table.name(), key, value.value()).map_err(of_row)
        })
    }

    /// Rows from `from` (included) to `until` (excluded), none twice and none left out.
    pub fn range(
        &self,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<impl Iterator<Item = Result<Row>>> {
        let mut walk = looking(|| Walk::new(self.rows(table)?, table, from, until))?;
        let mut failed_once = false;
        Ok(std::iter::from_fn(move || {
            if failed_once {
                return None;
            }
            let next = looking(|| walk.next());
            failed_once = next.is_err();
            next.transpose()
        }))
    }
}

/// Where a row would be if there were one. One whose key is damaged is beside its place in its page, and what leads to another page leads
/// to one where the order is broken. What else is damaged beside the place is in the way of entries alone: nobody waits for other rows that are
/// not there.
fn check_gap(rows: &RawRows, table: Table, key: &[u8]) -> Result<()> {
    let mut gap = rows.lower_bound(Bound::Included(key)).map_err(failed)?;
    let beside = [
        (gap.peek_prev().map_err(failed)?, Ordering::Less),
        (gap.peek_next().map_err(failed)?, Ordering::Greater),
    ];
    for (row, order) in beside {
        let Some((found, value)) = row else {
            continue;
        };
        match checked(table.name(), found.value(), value.value()) {
            Ok(_) if found.value().cmp(key) == order => {}
            Ok(_) => return Err(corrupt("the order of rows")),
            Err(error) if table == Table::Current || sealed(key, value.value()).is_some() => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    Ok(())
}
