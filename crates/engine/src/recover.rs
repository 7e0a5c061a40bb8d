//! Opening a directory: making it, reading what the journal holds beyond the index, and what the tables say of space and usage.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use forebay_io::{Clock, Disk, File, OpenOptions};
use forebay_mem::Pool;
use forebay_store::{ErrorKind, StoreError};

use crate::Config;
use crate::Result;
use crate::allocator::Allocator;
use crate::checkpoint::step_bytes;
use crate::core::{Core, Lock, Parts};
use crate::extent::GRANULE_BYTES;
use crate::findings::Finding;
use crate::group::Position;
use crate::index::{Index, corrupt, is_damage};
use crate::keys::Table;
use crate::mend::{drop_overlapped, mend};
use crate::namespaces::{
    GREATEST, Registry, decode_greatest, decode_info, decode_quota_row, stored_usage,
};
use crate::replay::{self, Replay};
use crate::space::CHUNK_GRANULES;
use crate::superblock::{FORMAT_VERSION, Geometry, Superblock};
use crate::tables::{Memtable, Tables};
use crate::usage::Ledger;

const DATA: &str = "data";
const INDEX: &str = "index";
const INDEX_MAGIC_BYTES: u64 = 9;
/// Bytes of a file looked at in one step.
const LOOK_BYTES: usize = 1 << 20;
/// A look through more than this may take seconds, and is announced.
const LONG_LOOK_BYTES: u64 = 256 << 20;

/// The files of a store in its directory.
pub const FILES: [&str; 2] = [DATA, INDEX];

/// Why a directory was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the directory is in use by another process")]
    Locked(#[source] io::Error),
    /// It was written by another version.
    #[error(
        "the directory has format {found}; this build reads format {FORMAT_VERSION}: use a forebay that reads {found}"
    )]
    Version {
        /// The format it has.
        found: u32,
    },
    /// Its data file begins with something else.
    #[error("the data file is not a store, or both copies of its superblock are damaged")]
    NotAStore,
    /// It has a data file, and no index, or one that never held a store.
    #[error(
        "there is data, and no index of it: the data belongs to another directory, or this one has lost its index (restore it from a backup)"
    )]
    NoIndex,
    /// Data file and index are of different stores.
    #[error("the index belongs to another data file")]
    Mismatch,
    /// It cannot be written.
    #[error("the directory cannot be written")]
    ReadOnly(#[source] io::Error),
    /// Its journal lacks what was acknowledged, or may have been.
    #[error(
        "{what}; opening the store would lose acknowledged changes, so nothing was changed: keep a copy of the directory and restore \
         it from a backup"
    )]
    Journal {
        /// What is wrong, and where.
        what: String,
        /// The first group that is missing: what [`Config::lose_journal_from`] accepts.
        group: u64,
    },
    /// Its index does not match its checksums, or cannot be read in some place; nothing was lost. [`Config::accept_damaged_index`] opens
    /// it all the same.
    #[error(
        "the index is damaged, or some of it cannot be read: keep a copy of the directory and restore it from a backup"
    )]
    Index(#[source] StoreError),
    /// The system refused something.
    #[error("{what} failed")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// What is stored cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(crate) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |cause| match cause.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            OpenError::ReadOnly(cause)
        }
        _ => OpenError::Io { what, cause },
    }
}

/// Why something was not locked.
fn unlocked(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |cause| match cause.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked(cause),
        _ => failed(what)(cause),
    }
}

/// Takes a directory, and opens or makes a store in it. Tells where the journal goes on.
pub(crate) fn open<D: Disk>(
    disk: D,
    clock: Arc<dyn Clock>,
    pool: Pool,
    config: Config,
) -> Result<(Core<D>, Position, Lock), OpenError> {
    let directory = disk.lock().map_err(unlocked("locking the directory"))?;
    let options = |direct| OpenOptions {
        create: true,
        read_only: false,
        direct,
    };
    let data = disk
        .open(DATA, options(true))
        .map_err(failed("opening the data file"))?;
    // A process that was killed lets the directory go while its last writes are still on their way.
    let writes = data.lock().map_err(unlocked("locking the data file"))?;
    let lock: Lock = Arc::new(Box::new((writes, directory)));
    let index_file = disk
        .open(INDEX, options(false))
        .map_err(failed("opening the index"))?;
    let superblock = match Superblock::read(&data)? {
        Some(superblock) => superblock,
        None if !is_unused(&data, &index_file, &config)? => return Err(OpenError::NotAStore),
        None => Superblock::whole(create(&disk, &data, &index_file, &config)?),
    };
    let geometry = superblock.geometry;
    let index_bytes = index_file.len().map_err(failed("reading the index"))?;
    let check = index_bytes <= config.index_check_bytes;
    let (index, index_damage) = open_index(&index_file, check, &config)?;
    let state_damage = index
        .check_state(config.accept_damaged_index)
        .map_err(|error| unless_accepted(&config, error))?;
    match index.store()? {
        None => return Err(OpenError::NoIndex),
        Some(store) if store != geometry.store => return Err(OpenError::Mismatch),
        Some(_) => {}
    }
    index.check_tables()?;
    let space = Allocator::new(data.clone(), geometry.extents(), &config)?;
    let Replayed {
        position,
        groups,
        mended,
        unplaced,
    } = replay(&disk, &data, &geometry, &space, &index, &config)?;
    claim_space(&index, &space, &config)?;
    let reading = "reading the data file";
    if data.held_bytes().map_err(failed(reading))? < data.len().map_err(failed(reading))? {
        space.doubt();
    }
    let unplaced_rows = unplaced.len();
    let tables = Tables::new(index.snapshot()?, unplaced, config.recent_bytes);
    let (registry, ledger) =
        namespaces(&tables).map_err(|error| unless_accepted(&config, error))?;
    let mut core = Core::new(Parts {
        config,
        clock,
        pool,
        disk,
        data,
        geometry,
        index,
        space,
        tables,
        registry,
        ledger: Arc::new(ledger),
    });
    core.hold(&lock);
    core.note_unplaced(unplaced_rows);
    if let Some(error) = index_damage {
        let what = format!(
            "{}: what is damaged is refused when it is read",
            error.message()
        );
        core.note_for_good(Finding::of_nobody(what));
    }
    if let Some(error) = state_damage {
        let what = format!("{}: its key was put right", error.message());
        core.note_for_good(Finding::of_nobody(what));
    }
    for finding in mended.into_iter().chain(superblock.mend(&core.data)) {
        core.note_for_good(finding);
    }
    core.counters
        .replayed_groups
        .store(groups, std::sync::atomic::Ordering::Relaxed);
    Ok((core, position, lock))
}

/// Opens the index, and tells what is wrong with one that is opened although it is damaged.
fn open_index<F: File>(
    file: &F,
    check: bool,
    config: &Config,
) -> Result<(Index, Option<StoreError>), OpenError> {
    let open = |check| Index::open(file.clone(), config.index_cache_bytes, check);
    match open(check) {
        Err(error) if check && is_damage(&error) => match config.accept_damaged_index {
            true => Ok((open(false)?, Some(error))),
            false => Err(OpenError::Index(error)),
        },
        opened => Ok((opened?, None)),
    }
}

/// Whether nothing was ever stored here, as far as what a lost superblock leaves tells: the journal is blank, and the index, if there is
/// one, is where one begins.
fn is_unused<F: File>(data: &F, index_file: &F, config: &Config) -> Result<bool, OpenError> {
    let journal = Geometry::new(u64::MAX).extents();
    let bytes = data
        .len()
        .map_err(failed("reading the data file"))?
        .min(journal);
    if bytes >= LONG_LOOK_BYTES {
        tracing::info!(
            bytes,
            "looking whether anything is there before a store is made"
        );
    }
    if !is_blank(data, 0, journal).map_err(failed("reading the journal"))? {
        return Ok(false);
    }
    let reading = "reading the index";
    // The library writes what tells its file from any other when all else of an empty one is there.
    if is_blank(index_file, 0, INDEX_MAGIC_BYTES).map_err(failed(reading))? {
        let page = GRANULE_BYTES as u64;
        return is_blank(index_file, page, u64::MAX).map_err(failed(reading));
    }
    let index = Index::open(index_file.clone(), config.index_cache_bytes, false)?;
    Ok(index.store()?.is_none() || index.position()? == Position::FIRST)
}

/// Whether a part of a file holds zeroes alone, as far as it is there.
fn is_blank<F: File>(file: &F, from: u64, until: u64) -> io::Result<bool> {
    let until = until.min(file.len()?);
    let mut at = from;
    let (mut block, zeroes) = (vec![0; LOOK_BYTES], vec![0; LOOK_BYTES]);
    while at < until {
        let len = (until - at).min(LOOK_BYTES as u64);
        let part = &mut block[..len as usize];
        file.read_exact_at(at, part)?;
        // As memory is compared: byte by byte a store on a device takes its time to be made.
        if *part != zeroes[..len as usize] {
            return Ok(false);
        }
        at += len;
    }
    Ok(true)
}

/// Makes the parts of a store; the superblock comes last.
fn create<D: Disk>(
    disk: &D,
    data: &D::File,
    index_file: &D::File,
    config: &Config,
) -> Result<Geometry, OpenError> {
    let geometry = Geometry::new(config.segment_bytes);
    let journal = 2 * geometry.segment_bytes;
    data.set_len(0).map_err(failed("making the data file"))?;
    data.allocate(0, geometry.extents())
        .map_err(failed("making the data file"))?;
    let zeroes = vec![0; (1 << 20).min(journal as usize)];
    let mut at = 2 * GRANULE_BYTES as u64;
    while at < geometry.extents() {
        let len = zeroes.len().min((geometry.extents() - at) as usize);
        data.write_all_at(at, &zeroes[..len])
            .map_err(failed("making the journal"))?;
        at += len as u64;
    }
    data.sync_data().map_err(failed("making the data file"))?;
    index_file.set_len(0).map_err(failed("making the index"))?;
    let index = Index::open(index_file.clone(), config.index_cache_bytes, false)?;
    index.create(geometry.store, Position::FIRST)?;
    drop(index);
    disk.sync().map_err(failed("syncing the directory"))?;
    data.write_all_at(0, &geometry.encode())
        .map_err(failed("making the superblock"))?;
    data.sync_data().map_err(failed("making the superblock"))?;
    Ok(geometry)
}

/// Damage of the index that is refused unless that is accepted.
fn unless_accepted(config: &Config, error: StoreError) -> OpenError {
    match is_damage(&error) && !config.accept_damaged_index {
        true => OpenError::Index(error),
        false => OpenError::Store(error),
    }
}

/// What replaying came to.
struct Replayed {
    /// Where the journal goes on.
    position: Position,
    groups: u64,
    /// What was done about small tables that are damaged.
    mended: Vec<Finding>,
    /// What has no place in the index.
    unplaced: Memtable,
}

/// Brings what the journal holds into the index.
fn replay<D: Disk>(
    disk: &D,
    data: &D::File,
    geometry: &Geometry,
    space: &Allocator<D::File>,
    index: &Index,
    config: &Config,
) -> Result<Replayed, OpenError> {
    let ahead = index.ahead()?.map_or(0, |position| position.group);
    // What is in the index already cannot be lost.
    let lose_from = config.lose_journal_from.filter(|group| *group >= ahead);
    let from = index.position()?;
    let Replay { groups, next } = replay::find(data, geometry, space, from, ahead, lose_from)?;
    if next.group < ahead {
        return Err(OpenError::Journal {
            what: format!(
                "group {} of the journal is damaged, and the index has some of groups up to {}",
                next.group,
                ahead - 1
            ),
            group: next.group,
        });
    }
    let count = groups.len() as u64;
    let (waiting, lost) = index
        .unplaced(config.accept_damaged_index)
        .map_err(|error| unless_accepted(config, error))?;
    let mut memtable = waiting.clone();
    for group in groups {
        for record in group.records {
            record.apply(&mut memtable);
        }
    }
    data.sync_data().map_err(failed("syncing the data file"))?;
    let mut mended = match lost {
        Some(_) => drop_overlapped(index, &mut memtable)?,
        None => Vec::new(),
    };
    // What the journal says is said on top.
    if config.accept_damaged_index {
        mended.extend(mend(index, &memtable, space.granules())?);
    }
    mended.extend(lost.map(|error| {
        let what = format!("{}: some of the last changes are lost", error.message());
        Finding::of_nobody(what)
    }));
    let checkpoint = index.checkpoint(&memtable, &waiting, next, drop, || {
        let free = disk.free_bytes().unwrap_or(u64::MAX);
        Ok(step_bytes(free))
    });
    let unplaced = checkpoint.map_err(|error| unless_accepted(config, error))?;
    Ok(Replayed {
        unplaced,
        position: next,
        groups: count,
        mended,
    })
}

fn claim_space<F: File>(
    index: &Index,
    space: &Allocator<F>,
    config: &Config,
) -> Result<(), OpenError> {
    let mut whole = true;
    let claimed = index.chunks(|number, chunk| {
        for (start, count) in chunk.taken() {
            whole &= space.claim(number * CHUNK_GRANULES + start, count);
        }
    });
    claimed.map_err(|error| unless_accepted(config, error))?;
    match whole {
        true => Ok(()),
        false => Err(OpenError::Store(StoreError::new(
            ErrorKind::Corrupt,
            "the data file is shorter than the index says",
        ))),
    }
}

fn namespaces(tables: &Tables) -> Result<(Registry, Ledger)> {
    let mut registry = Registry::default();
    let ledger = Ledger::default();
    for (tenant, row) in all(tables, Table::Tenant)? {
        let quota = decode_quota_row(&row).map_err(|_| corrupt("a tenant"))?;
        let tenant = std::str::from_utf8(&tenant).map_err(|_| corrupt("a tenant"))?;
        ledger.set_tenant_quota(tenant, quota);
    }
    for (name, row) in all(tables, Table::Namespace)? {
        if name == GREATEST {
            let greatest = decode_greatest(&row);
            registry.greatest = greatest.map_err(|_| corrupt("the greatest namespace number"))?;
            continue;
        }
        let info = decode_info(&name, &row).map_err(|_| corrupt("a namespace"))?;
        let used = stored_usage(tables, info.id)?;
        ledger.open_namespace(info.id, &info.config.tenant, info.config.quota, used);
        registry.put(Arc::new(info));
    }
    Ok((registry, ledger))
}

fn all(tables: &Tables, table: Table) -> Result<Vec<(Bytes, Bytes)>> {
    let mut rows = Vec::new();
    let mut from = Vec::new();
    loop {
        let scan = tables.scan(None, table, &from, None, 1024)?;
        rows.extend(scan.rows);
        match scan.next {
            Some(next) => from = next,
            None => return Ok(rows),
        }
    }
}
