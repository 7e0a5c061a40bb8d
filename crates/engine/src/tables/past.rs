//! What there is around a part of the index that cannot be read.

use std::sync::Arc;

use bytes::Bytes;
use forebay_store::Result;

use crate::index::{Behind, Snapshot};
use crate::keys::Table;

use super::{Memtable, Scan, Tables};

impl Tables {
    /// As [`survey`](Tables::survey), of the rows in memory alone: nothing else can be read there.
    pub fn survey_memory(
        &self,
        over: Option<&Memtable>,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Scan {
        let layers = self.layers.read();
        let (fresh, next) = layers.fresh_range(over, table, from, until, limit);
        drop(layers);
        let fresh = fresh.into_iter();
        Scan {
            rows: fresh.filter_map(|(key, row)| Some((key, row?))).collect(),
            next,
            ..Scan::default()
        }
    }

    /// What the index has behind `from`, on the way there from its row `start`: see [`Snapshot::behind`].
    pub fn behind(&self, table: Table, start: &[u8], from: &[u8]) -> Result<Behind> {
        self.again(|generation| self.shown(generation).behind(table, start, from))
    }

    /// The first row that the index has behind `from`, on the way back from `place`: see [`Snapshot::behind_before`].
    pub fn behind_before(&self, table: Table, place: &[u8], from: &[u8]) -> Result<Option<Bytes>> {
        self.again(|generation| self.shown(generation).behind_before(table, place, from))
    }

    fn shown(&self, generation: &mut u64) -> Arc<Snapshot> {
        self.layers.read().shown(generation)
    }
}
