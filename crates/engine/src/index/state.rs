//! The rows of table state, each of which says something also by not being there: one whose key is damaged is not to pass for one that is not.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_store::{Result, StoreError};
use redb::TableHandle;

use crate::mend::Salvage;

use super::backend::looking;
use super::unplaced::STATE_UNPLACED;
use super::{Index, STATE, STATE_AHEAD, STATE_JOURNAL, STATE_STORE, failed, sealed, whole};

const NAMES: [&[u8]; 4] = [STATE_JOURNAL, STATE_STORE, STATE_AHEAD, STATE_UNPLACED];

/// Keys and what is stored under them, checksums included.
type Stored = Vec<(Bytes, Bytes)>;

impl Index {
    /// Looks whether all rows match. One of which the key alone is damaged is told by its checksum, and has its key again if that is
    /// `accepted`; the error is what was wrong.
    pub fn check_state(&self, accepted: bool) -> Result<Option<StoreError>> {
        let rows = looking(|| self.state_rows())?;
        let mut damage = rows.iter();
        let damage = damage.find_map(|(key, stored)| whole(STATE.name(), key, stored).err());
        let Some(error) = damage else {
            return Ok(None);
        };
        let Some(rows) = named(&rows).filter(|_| accepted) else {
            return Err(error);
        };
        let found = Salvage {
            rows,
            ..Salvage::default()
        };
        self.replace(STATE, &found)?;
        Ok(Some(error))
    }

    fn state_rows(&self) -> Result<Stored> {
        let table = match self.begin_read()?.open_table(STATE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut rows = Vec::new();
        for row in table.range::<&[u8]>(..).map_err(failed)? {
            let (key, stored) = row.map_err(failed)?;
            let [key, stored] = [key.value(), stored.value()].map(Bytes::copy_from_slice);
            rows.push((key, stored));
        }
        Ok(rows)
    }
}

/// What all the rows say, under their names; `None` when that is not known of one.
fn named(rows: &Stored) -> Option<BTreeMap<Bytes, Bytes>> {
    let mut named = BTreeMap::new();
    for (key, stored) in rows {
        let told = |name| Some((name, sealed(name, stored)?));
        let (name, value) = NAMES.into_iter().find_map(told)?;
        let value = Bytes::copy_from_slice(value);
        // What has its key was said later.
        if *key == name {
            named.insert(Bytes::from_static(name), value);
        } else {
            named.entry(Bytes::from_static(name)).or_insert(value);
        }
    }
    Some(named)
}
