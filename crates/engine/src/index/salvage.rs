//! Reading what is left of a table, and making it anew.

use bytes::Bytes;
use forebay_store::Result;
use redb::{TableDefinition, TableHandle, WriteTransaction};

use crate::mend::Salvage;

use super::backend::{guarded, is_damage, looking};
use super::{Index, RawTable, checked, corrupt, failed, seal};

impl Index {
    /// The rows of a small table that match and are what `is_row` says, and what is wrong with the table.
    pub fn salvage(
        &self,
        table: RawTable,
        is_row: impl Fn(&[u8], &Bytes) -> bool,
    ) -> Result<Salvage> {
        let mut found = Salvage::default();
        match looking(|| self.read_all(table, is_row, &mut found)) {
            Err(error) if is_damage(&error) => found.broken = Some(error),
            read => read?,
        }
        Ok(found)
    }

    fn read_all(
        &self,
        table: RawTable,
        is_row: impl Fn(&[u8], &Bytes) -> bool,
        found: &mut Salvage,
    ) -> Result<()> {
        let rows = self.begin_read()?.open_table(table).map_err(failed)?;
        for row in rows.range::<&[u8]>(..).map_err(failed)? {
            let (key, stored) = row.map_err(failed)?;
            let (key, stored) = (key.value(), stored.value());
            let last = found.rows.last_key_value();
            let is_behind = last.is_none_or(|(last, _)| &last[..] < key);
            let row = checked(table.name(), key, stored);
            let key = Bytes::copy_from_slice(key);
            match row {
                Ok(None) if is_behind => {}
                Ok(Some(row)) if is_behind && is_row(&key, &row) => {
                    found.rows.insert(key, row);
                }
                // A page that is not the one that should be there.
                Ok(_) => return Err(corrupt("the order of rows")),
                Err(error) => found.damaged.push((key, error)),
            }
        }
        if found.damaged.is_empty() {
            for key in found.rows.keys() {
                let row = rows.get(&key[..]).map_err(failed)?;
                row.ok_or_else(|| corrupt("the order of rows"))?;
            }
        }
        Ok(())
    }

    /// Makes a table anew of the rows that match: one whose key is damaged could not be found to be replaced. Where what leads to rows is
    /// damaged the old table keeps its pages, under another name: which they are it cannot tell.
    pub fn replace(&self, table: RawTable, found: &Salvage) -> Result<()> {
        guarded(|| {
            let transaction = self.begin()?;
            if found.broken.is_some() {
                set_aside(&transaction, table)?;
            } else {
                transaction.delete_table(table).map_err(failed)?;
            }
            let mut open = transaction.open_table(table).map_err(failed)?;
            let mut sealed = Vec::new();
            for (key, row) in &found.rows {
                seal(key, row, &mut sealed);
                open.insert(&key[..], &sealed[..]).map_err(failed)?;
            }
            drop(open);
            transaction.commit().map_err(failed)
        })
    }
}

/// Gives a table, if it is there, a name of which there is none: nothing of it is read.
pub(super) fn set_aside(transaction: &WriteTransaction, table: RawTable) -> Result<()> {
    let tables: Vec<_> = transaction.list_tables().map_err(failed)?.collect();
    if tables.iter().all(|there| there.name() != table.name()) {
        return Ok(());
    }
    let aside = format!("{} set aside {}", table.name(), tables.len());
    let aside = TableDefinition::<&[u8], &[u8]>::new(&aside);
    transaction.rename_table(table, aside).map_err(failed)
}
