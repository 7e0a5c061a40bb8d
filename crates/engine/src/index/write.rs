//! Writing a memtable to the index, also where some of that cannot be read.

use std::error::Error;
use std::iter::Peekable;

use bytes::Bytes;
use forebay_store::{ErrorKind, Result, StoreError};
use redb::{ReadableTable, TableHandle, WriteTransaction};

use crate::group::Position;
use crate::keys::Table;
use crate::tables::Memtable;

use super::backend::guarded;
use super::map::{by_chunk, write_space};
use super::unplaced::{UNPLACED, put_unplaced, remove_unplaced};
use super::{
    Index, RawTable, STATE_AHEAD, STATE_JOURNAL, Snapshot, definition, failed, put_state,
    remove_state, seal, tombstone,
};

/// A row that is put or removed takes at most this and twice its length: its page anew, and its share of the pages above.
pub(super) const ROW_BYTES: u64 = 8 << 10;

/// How a row is removed.
#[derive(Clone, Copy)]
enum Removal {
    /// The library joins a page that has few rows left with one beside it, for which it reads that one.
    TakeOut,
    /// Something takes its place that says so: no page but its own is read.
    Tombstone,
}

/// What a transaction is at, where what cannot be read may be gone past.
#[derive(Clone, Copy)]
enum At {
    Rows(Table),
    /// The rows that waited until now.
    Waiting,
}

impl At {
    fn table_name(self) -> &'static str {
        match self {
            At::Rows(table) => table.name(),
            At::Waiting => UNPLACED.name(),
        }
    }
}

/// How a memtable is written.
struct Plan {
    removals: [Removal; Table::ALL.len()],
    /// Rows that have no place.
    unplaced: Memtable,
    /// The table of those that waited until now is not looked through to free its pages.
    sets_aside: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            removals: [Removal::TakeOut; Table::ALL.len()],
            unplaced: Memtable::default(),
            sets_aside: false,
        }
    }
}

impl Plan {
    /// Whether there is a way past what is there that it does not take yet.
    fn has_way_past(&self, at: At) -> bool {
        match at {
            At::Rows(table) => matches!(self.removals[table as usize], Removal::TakeOut),
            At::Waiting => !self.sets_aside,
        }
    }
}

impl Index {
    /// Writes a memtable, durably, and with it the position from which the journal is still needed. Before each transaction `room`
    /// tells how many bytes of new pages it may take, about: all of it is one where there is room. Of several, each can have the pages
    /// that the one before it let go; and what the journal holds up to `position` can be replayed over any of them.
    ///
    /// Rows whose places cannot be read wait in a table of their own, beside those that are `waiting` since an earlier checkpoint and have no
    /// place now either: it gives them all. Where it has to be opened again for that, it shows the tables to whoever reads from it, as
    /// [`reopen`](Self::reopen) does.
    pub fn checkpoint(
        &self,
        memtable: &Memtable,
        waiting: &Memtable,
        position: Position,
        mut show: impl FnMut(Snapshot),
        mut room: impl FnMut() -> Result<u64>,
    ) -> Result<Memtable> {
        let all;
        let memtable = match waiting.is_empty() {
            true => memtable,
            false => {
                all = waiting.below(memtable);
                &all
            }
        };
        let mut plan = Plan::default();
        for table in Table::ALL {
            self.find_unplaced(table, waiting, memtable, &mut plan.unplaced)?;
        }
        loop {
            let mut at = None;
            let written = guarded(|| self.write(memtable, position, &plan, &mut at, &mut room));
            let Err(error) = written else {
                return Ok(plan.unplaced);
            };
            let is_passable = |at: &At| self.is_in_the_way(&error) && plan.has_way_past(*at);
            let Some(at) = at.filter(is_passable) else {
                return Err(error);
            };
            let (error, table): (&dyn Error, _) = (&error, at.table_name());
            tracing::error!(error, table, "the index is written past that");
            self.health.refuse();
            self.reopen(false, &mut show)?;
            match at {
                At::Rows(table) => {
                    plan.removals[table as usize] = Removal::Tombstone;
                    self.find_unplaced(table, memtable, memtable, &mut plan.unplaced)?;
                }
                At::Waiting => plan.sets_aside = true,
            }
        }
    }

    /// Whether what a transaction came to cannot be read, or is garbage on which the library gave up amid its work: opened again it can be
    /// written past that.
    fn is_in_the_way(&self, error: &StoreError) -> bool {
        match error.kind() {
            ErrorKind::Io => self.is_refused_a_read(),
            ErrorKind::Corrupt => !self.is_unknown(),
            _ => false,
        }
    }

    /// Writes what of a memtable has a place. Of a failure `at` tells what was being written.
    fn write(
        &self,
        memtable: &Memtable,
        position: Position,
        plan: &Plan,
        at: &mut Option<At>,
        mut room: impl FnMut() -> Result<u64>,
    ) -> Result<()> {
        let has_place = |table, key: &Bytes| plan.unplaced.get(table, key).is_none();
        let rows = |table| {
            let rows = memtable.rows(table).iter();
            let rows = rows.filter(move |(key, _)| has_place(table, key));
            (table, rows.peekable())
        };
        let mut tables = Table::ALL.map(rows);
        let chunks = by_chunk(&memtable.space);
        let mut chunks = chunks.iter().peekable();
        loop {
            let mut left = room()?.max(ROW_BYTES);
            let transaction = self.begin()?;
            for (table, rows) in &mut tables {
                *at = Some(At::Rows(*table));
                let removal = plan.removals[*table as usize];
                put_rows(&transaction, definition(*table), rows, removal, &mut left)?;
            }
            *at = None;
            write_space(&transaction, &mut chunks, &mut left)?;
            let more =
                chunks.peek().is_some() || tables.iter_mut().any(|(_, rows)| rows.peek().is_some());
            if more {
                put_state(&transaction, STATE_AHEAD, &position.encode())?;
                transaction.commit().map_err(failed)?;
                continue;
            }
            *at = Some(At::Waiting);
            remove_unplaced(&transaction, plan.sets_aside)?;
            *at = None;
            put_unplaced(&transaction, &plan.unplaced)?;
            put_state(&transaction, STATE_JOURNAL, &position.encode())?;
            remove_state(&transaction, STATE_AHEAD)?;
            return transaction.commit().map_err(failed);
        }
    }
}

/// Puts and removes rows while there is room left.
fn put_rows<'a>(
    transaction: &WriteTransaction,
    table: RawTable,
    rows: &mut Peekable<impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>>,
    removal: Removal,
    left: &mut u64,
) -> Result<()> {
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut open = transaction.open_table(table).map_err(failed)?;
    let mut checked = Vec::new();
    while *left > 0
        && let Some((key, value)) = rows.next()
    {
        let value = value.as_deref();
        match (value, removal) {
            (Some(value), _) => {
                seal(key, value, &mut checked);
                open.insert(&key[..], &checked[..]).map_err(failed)?;
            }
            (None, Removal::TakeOut) => {
                open.remove(&key[..]).map_err(failed)?;
            }
            (None, Removal::Tombstone) => {
                if open.get(&key[..]).map_err(failed)?.is_some() {
                    let tombstone = tombstone(key);
                    open.insert(&key[..], &tombstone[..]).map_err(failed)?;
                }
            }
        }
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        *left = left.saturating_sub(ROW_BYTES + 2 * bytes as u64);
    }
    Ok(())
}
