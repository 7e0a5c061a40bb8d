//! Rows looked up lately, in front of the tables: a look-up that hits walks no tree.
//!
//! A row is put here only while nothing can have changed it since it was read (see [`Tables::get`](crate::tables::Tables::get)), and
//! follows its key in the same step that publishes a change, so that what is found here is what the tables hold.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::keys::Table;

/// What a row takes beside its bytes.
const ROW_BYTES: u64 = 96;

#[derive(Clone)]
struct RowBytes;

impl Weighter<Bytes, Bytes> for RowBytes {
    fn weight(&self, key: &Bytes, row: &Bytes) -> u64 {
        ROW_BYTES + key.len() as u64 + row.len() as u64
    }
}

type Rows = Cache<Bytes, Bytes, RowBytes>;

/// Rows of the tables that readers of values look into.
pub(crate) struct RecentRows {
    current: Rows,
    inline: Rows,
}

impl RecentRows {
    /// At most `bytes` of rows.
    pub fn new(bytes: u64) -> RecentRows {
        let rows = |bytes| Cache::with_weighter((bytes / 256) as usize, bytes, RowBytes);
        RecentRows {
            current: rows(bytes / 4 * 3),
            inline: rows(bytes / 4),
        }
    }

    fn of(&self, table: Table) -> Option<&Rows> {
        match table {
            Table::Current => Some(&self.current),
            Table::Inline => Some(&self.inline),
            Table::Kept
            | Table::KeptNull
            | Table::Layout
            | Table::Namespace
            | Table::Tenant
            | Table::Usage
            | Table::Expiry => None,
        }
    }

    /// Whether rows of `table` are kept at all.
    pub fn keeps(&self, table: Table) -> bool {
        self.of(table).is_some()
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Option<Bytes> {
        self.of(table)?.get(key)
    }

    /// Follows a change of a row: what was written is often read soon.
    pub fn follow(&self, table: Table, key: &Bytes, row: Option<&Bytes>) {
        if let Some(rows) = self.of(table) {
            match row {
                Some(row) => rows.insert(key.clone(), row.clone()),
                None => drop(rows.remove(key)),
            }
        }
    }

    /// Keeps a copy: the row may be a slice of something much larger.
    pub fn put(&self, table: Table, key: &[u8], row: &[u8]) {
        if let Some(rows) = self.of(table) {
            rows.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(row));
        }
    }
}
