//! The tables of the index at one moment.

use bytes::Bytes;
use forebay_store::Result;
use redb::ReadOnlyTable;

use crate::keys::Table;

use super::backend::looking;
use super::{checked, closed, failed, of_row};

type RawRows = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The tables at one moment.
pub(crate) struct Snapshot {
    tables: Vec<RawRows>,
}

impl Snapshot {
    /// These tables, in order of their numbers.
    pub fn new(tables: Vec<RawRows>) -> Snapshot {
        Snapshot { tables }
    }

    /// Lets go of what it shows; nothing can be read from it.
    pub fn close(&mut self) {
        self.tables.clear();
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        looking(|| {
            let rows = self.tables.get(table as usize).ok_or_else(closed)?;
            let Some(value) = rows.get(key).map_err(failed)? else {
                return Ok(None);
            };
            let row = checked(table.name(), key, value.value());
            row.map(Some).map_err(of_row)
        })
    }

    /// Rows from `from` (included) to `until` (excluded). One that does not match its checksum has an error in place of its value.
    pub fn range(
        &self,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<impl Iterator<Item = Result<(Bytes, Result<Bytes>)>>> {
        let rows = self.tables.get(table as usize).ok_or_else(closed)?;
        let mut range = looking(|| {
            match until {
                Some(until) => rows.range::<&[u8]>(from..until),
                None => rows.range::<&[u8]>(from..),
            }
            .map_err(failed)
        })?;
        let mut failed_once = false;
        Ok(std::iter::from_fn(move || {
            if failed_once {
                return None;
            }
            let next = looking(|| {
                let Some(row) = range.next() else {
                    return Ok(None);
                };
                let (key, value) = row.map_err(failed)?;
                let value = checked(table.name(), key.value(), value.value()).map_err(of_row);
                Ok(Some((Bytes::copy_from_slice(key.value()), value)))
            });
            failed_once = next.is_err();
            next.transpose()
        }))
    }
}
