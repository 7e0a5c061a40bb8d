//! The index: tables in a redb database, which lives in a [`File`] so that a simulated disk is under it too.

mod backend;
mod map;
mod past;
mod salvage;
mod snapshot;
mod state;
mod unplaced;
mod walk;
mod write;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;
use forebay_io::File;
use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::RwLock;
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, TableDefinition, TableHandle,
    WriteTransaction,
};

use crate::codec::crc32c;
use crate::group::Position;
use crate::keys::Table;

use backend::{Backend, Health, Unread, guarded, looking};
pub(crate) use backend::{Tour, is_damage};
pub(crate) use map::{SPACE, decode_chunk};
pub(crate) use past::Behind;
pub(crate) use snapshot::Snapshot;
pub(crate) use walk::Row;

pub(crate) type RawTable = TableDefinition<'static, &'static [u8], &'static [u8]>;

const STATE: RawTable = TableDefinition::new("state");
const STATE_JOURNAL: &[u8] = b"journal";
const STATE_STORE: &[u8] = b"store";
const STATE_AHEAD: &[u8] = b"ahead";

pub(crate) fn definition(table: Table) -> RawTable {
    TableDefinition::new(table.name())
}

/// The database, until it is closed.
pub(crate) struct Index {
    database: RwLock<Option<Database>>,
    /// Opens the file again, to be written or not.
    opener: Box<dyn Fn(bool) -> Result<Database> + Send + Sync>,
    health: Arc<Health>,
    frozen: AtomicBool,
    hidden: AtomicBool,
    /// Asks its file what that has from the file system.
    held: Box<dyn Fn() -> io::Result<u64> + Send + Sync>,
}

impl Index {
    /// Opens the database in `file`, or makes it in an empty one. With `check` every page is compared with its checksum.
    pub fn open<F: File>(file: F, cache_bytes: usize, check: bool) -> Result<Index> {
        let health = Arc::<Health>::default();
        let opened = {
            let (file, health) = (file.clone(), health.clone());
            move |check, frozen| {
                health.set_opening(true);
                let backend = Backend {
                    file: file.clone(),
                    health: health.clone(),
                    frozen,
                    number: health.next(),
                };
                let database = guarded(|| {
                    redb::Builder::new()
                        .set_cache_size(cache_bytes)
                        .set_check_integrity_on_open(check)
                        .create_with_backend(backend)
                        .map_err(failed)
                });
                health.set_opening(false);
                database
            }
        };
        Ok(Index {
            database: RwLock::new(Some(opened(check, false)?)),
            opener: Box::new(move |frozen| opened(false, frozen)),
            health,
            frozen: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            held: Box::new(move || file.held_bytes()),
        })
    }

    /// Opens the file again after it refused something, and shows the tables in it; until then those of before are read as far as they are in
    /// memory, and whoever needs more waits. Nothing is written to it until the next time if it is `frozen`.
    pub fn reopen(&self, frozen: bool, show: impl FnOnce(Snapshot)) -> Result<()> {
        if self.health.is_refused() || self.frozen.load(SeqCst) {
            let database = (self.opener)(frozen)?;
            let snapshot = tables_of(&database)?;
            let old = self.database.write().replace(database);
            self.frozen.store(frozen, SeqCst);
            show(snapshot);
            // It writes nothing now that another one is open.
            discard(old);
            self.health.renew();
        } else {
            show(self.snapshot()?);
        }
        self.hidden.store(false, SeqCst);
        Ok(())
    }

    /// Whether it answers nothing until it is opened again, or only what is in memory.
    pub fn is_down(&self) -> bool {
        self.health.is_refused() || self.hidden.load(SeqCst)
    }

    /// No tables of it could be shown.
    pub fn hide(&self) {
        self.hidden.store(true, SeqCst);
    }

    /// Whether what is in the file is not known, and nothing may be written to it.
    pub fn is_unknown(&self) -> bool {
        self.health.is_unknown()
    }

    fn is_refused_a_read(&self) -> bool {
        self.health.is_refused() && !self.health.is_unknown()
    }

    /// Whether it can be written now.
    pub fn is_writable(&self) -> bool {
        !self.is_down() && !self.frozen.load(SeqCst)
    }

    /// Makes the tables and names the store they belong to.
    pub fn create(&self, store: [u8; 16], position: Position) -> Result<()> {
        let transaction = self.begin()?;
        for table in Table::ALL {
            transaction.open_table(definition(table)).map_err(failed)?;
        }
        transaction.open_table(SPACE).map_err(failed)?;
        put_state(&transaction, STATE_STORE, &store)?;
        put_state(&transaction, STATE_JOURNAL, &position.encode())?;
        transaction.commit().map_err(failed)
    }

    /// The store that this index belongs to; `None` when it was not finished.
    pub fn store(&self) -> Result<Option<[u8; 16]>> {
        let Some(id) = self.state(STATE_STORE)? else {
            return Ok(None);
        };
        let id = id[..].try_into().map_err(|_| corrupt("the store id"))?;
        Ok(Some(id))
    }

    /// Whether all tables are there: one that is not would be made when it is written to.
    pub fn check_tables(&self) -> Result<()> {
        let there = self.table_names()?;
        let mut tables = Table::ALL
            .map(Table::name)
            .into_iter()
            .chain([SPACE.name()]);
        match tables.find(|table| !there.iter().any(|found| found == table)) {
            Some(lost) => Err(corrupt(&format!("table {lost}"))),
            None => Ok(()),
        }
    }

    fn table_names(&self) -> Result<Vec<String>> {
        looking(|| {
            let transaction = self.begin_read()?;
            let there = transaction.list_tables().map_err(failed)?;
            Ok(there.map(|table| table.name().to_owned()).collect())
        })
    }

    /// Where the journal goes on from this index.
    pub fn position(&self) -> Result<Position> {
        self.position_of(STATE_JOURNAL)?
            .ok_or_else(|| corrupt("the journal's position"))
    }

    /// Up to where some of the journal may be in this index already: a checkpoint ended between two of its transactions.
    pub fn ahead(&self) -> Result<Option<Position>> {
        self.position_of(STATE_AHEAD)
    }

    fn position_of(&self, key: &[u8]) -> Result<Option<Position>> {
        let encoded = self.state(key)?;
        let position = encoded.map(|encoded| Position::decode(&encoded));
        position
            .transpose()
            .map_err(|_| corrupt("the journal's position"))
    }

    fn state(&self, key: &[u8]) -> Result<Option<Bytes>> {
        looking(|| self.state_row(key))
    }

    fn state_row(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let transaction = self.begin_read()?;
        let table = match transaction.open_table(STATE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let Some(value) = table.get(key).map_err(failed)? else {
            return Ok(None);
        };
        checked("state", key, value.value())
    }

    /// The tables as they are now.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let database = self.database.read();
        tables_of(database.as_ref().ok_or_else(closed)?)
    }

    /// What the file has from the file system and no page of the index takes, in bytes. All of the index is read: for when little room
    /// is left.
    pub fn spare_bytes(&self) -> Result<u64> {
        guarded(|| {
            // What a transaction let go comes free in one of the next.
            for _ in 0..2 {
                self.begin()?.commit().map_err(failed)?;
            }
            let transaction = self.begin()?;
            let stats = transaction.stats().map_err(failed)?;
            transaction.abort().map_err(failed)?;
            let used = stats.allocated_pages() * stats.page_size() as u64;
            Ok(self.held_bytes()?.saturating_sub(used))
        })
    }

    /// What the file has from the file system.
    pub fn held_bytes(&self) -> Result<u64> {
        (self.held)().map_err(|error| failed(redb::Error::Io(error)))
    }

    /// Gives the pages of [`spare_bytes`](Self::spare_bytes) back to the file system. No snapshot may be there.
    pub fn compact(&self) -> Result<()> {
        guarded(|| {
            let mut database = self.database.write();
            let database = database.as_mut().ok_or_else(closed)?;
            database.compact().map(drop).map_err(failed)
        })
    }

    /// Ends the use of the file, whoever still holds this: nothing is read from it or written to it later.
    pub fn close(&self) {
        let database = self.database.write().take();
        discard(database);
    }

    fn begin_read(&self) -> Result<ReadTransaction> {
        let database = self.database.read();
        let database = database.as_ref().ok_or_else(closed)?;
        database.begin_read().map_err(failed)
    }

    fn begin(&self) -> Result<WriteTransaction> {
        let database = self.database.read();
        let database = database.as_ref().ok_or_else(closed)?;
        let mut transaction = database.begin_write().map_err(failed)?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(failed)?;
        // Without it an open after a crash walks the whole index.
        transaction.set_quick_repair(true);
        Ok(transaction)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}

fn put_state(transaction: &WriteTransaction, key: &[u8], value: &[u8]) -> Result<()> {
    let mut checked = Vec::new();
    seal(key, value, &mut checked);
    let mut table = transaction.open_table(STATE).map_err(failed)?;
    table.insert(key, &checked[..]).map_err(failed)?;
    Ok(())
}

fn remove_state(transaction: &WriteTransaction, key: &[u8]) -> Result<()> {
    let mut table = transaction.open_table(STATE).map_err(failed)?;
    table.remove(key).map_err(failed)?;
    Ok(())
}

fn tables_of(database: &Database) -> Result<Snapshot> {
    let transaction = looking(|| database.begin_read().map_err(failed))?;
    Ok(Snapshot::new(transaction))
}

/// Closing a database reads and writes.
fn discard(database: Option<Database>) {
    if let Err(error) = guarded(|| {
        drop(database);
        Ok(())
    }) {
        let error: &dyn Error = &error;
        tracing::error!(error, "closing the index");
    }
}

/// A value followed by the checksum of key and value: redb itself checks pages only when it repairs.
fn seal(key: &[u8], value: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(value);
    let crc = row_crc(key, value);
    into.extend_from_slice(&crc.to_le_bytes());
}

/// What stands in the place of a row that was removed.
fn tombstone(key: &[u8]) -> [u8; 4] {
    (!row_crc(key, &[])).to_le_bytes()
}

/// The value of a row that matches its checksum; `None` of a tombstone.
fn checked(table: &str, key: &[u8], stored: &[u8]) -> Result<Option<Bytes>> {
    match stored.first_chunk() {
        Some(row) if stored.len() == row.len() && *row == tombstone(key) => Ok(None),
        _ => whole(table, key, stored).map(|value| Some(Bytes::copy_from_slice(value))),
    }
}

/// The value of a row that matches its checksum.
fn whole<'a>(table: &str, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
    match sealed(key, stored) {
        Some(value) => Ok(value),
        None => {
            let row = format!("row \"{}\" of table {table}", key.escape_ascii());
            Err(corrupt(&row))
        }
    }
}

/// The value of a row whose checksum is that of a row with this key.
fn sealed<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, crc) = stored.split_last_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == row_crc(key, value)).then_some(value)
}

fn row_crc(key: &[u8], value: &[u8]) -> u32 {
    crc32c(value) ^ crc32c(key).rotate_left(1)
}

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!("{what} in the index does not match its checksum or format"),
    )
}

/// Just the row that was asked for is damaged, or what is in it: the library found it, and can take it out.
#[derive(Debug, thiserror::Error)]
#[error("other rows may be whole")]
struct RowDamage;

/// Says so.
pub(crate) fn of_row(error: StoreError) -> StoreError {
    error.with_source(RowDamage)
}

/// Whether it was said.
pub(crate) fn is_of_row(error: &StoreError) -> bool {
    error
        .source()
        .is_some_and(|source| source.is::<RowDamage>())
}

/// The tables that were looked into are no more; the index is opened again, and others are shown.
#[derive(Debug, thiserror::Error)]
#[error("it is being opened again")]
struct Outdated;

pub(crate) fn outdated() -> StoreError {
    StoreError::new(ErrorKind::Io, "the index failed").with_source(Outdated)
}

/// Whether a look at the tables that are shown next may find what this one did not.
pub(crate) fn is_outdated(error: &StoreError) -> bool {
    error.source().is_some_and(|source| source.is::<Outdated>())
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Io, "the index is closed")
}

fn failed(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::DatabaseClosed => closed(),
        redb::Error::PreviousIo => outdated(),
        redb::Error::Io(cause) => cause
            .downcast()
            .map_or_else(refused, Unread::into_store_error),
        // All tables are there since the index was made, and as they are now.
        error @ (redb::Error::Corrupted(_)
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }) => {
            StoreError::new(ErrorKind::Corrupt, "the index is corrupt").with_source(error)
        }
        error => StoreError::new(ErrorKind::Io, "the index failed").with_source(error),
    }
}

/// The file did not do what the library wanted of it.
fn refused(cause: io::Error) -> StoreError {
    let (kind, what) = match cause.kind() {
        io::ErrorKind::StorageFull => (
            ErrorKind::NoSpace,
            "the file system has no space left for the index",
        ),
        _ => (ErrorKind::Io, "the index failed"),
    };
    StoreError::new(kind, what).with_source(redb::Error::Io(cause))
}
