//! What the engine's threads and its callers share.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use forebay_io::{Clock, Disk};
use forebay_mem::Pool;
use forebay_store::{Away, ErrorKind, NamespaceInfo, StoreError};
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::oneshot;

use crate::Config;
use crate::Result;
use crate::allocator::{Allocator, GROWTH_BYTES_MIN};
use crate::cache::ValueCache;
use crate::checkpoint::{Handoff, STEP_BYTES_MIN, Writing, block_on};
use crate::command::{Command, Reply};
use crate::extent::GRANULE_BYTES;
use crate::findings::{Finding, Findings};
use crate::index::Index;
use crate::land::SeenOnce;
use crate::metrics::Counters;
use crate::namespaces::Registry;
use crate::reclaim::Reclaim;
use crate::superblock::Geometry;
use crate::tables::Tables;
use crate::usage::Ledger;
use crate::view::View;

/// Changes that may wait for the journal.
const QUEUE_MAX: usize = 1 << 16;
/// Names remembered of bytes that were let go: further ones are left to those who compare.
const FORGOTTEN_MAX: usize = 1 << 16;

/// While so many rows have no place in the index, it takes no more but removals: they are in memory.
const UNPLACED_MAX: usize = 1 << 14;

/// Holds the directory, and the data file in it, until its last clone is dropped.
pub(crate) type Lock = Arc<Box<dyn Send + Sync>>;

pub(crate) struct Core<D: Disk> {
    pub config: Config,
    pub clock: Arc<dyn Clock>,
    pub pool: Pool,
    pub disk: D,
    pub data: D::File,
    pub geometry: Geometry,
    pub index: Index,
    pub tables: Tables,
    pub space: Allocator<D::File>,
    pub reclaim: Reclaim,
    pub ledger: Arc<Ledger>,
    pub registry: RwLock<Registry>,
    pub cache: ValueCache,
    pub seen_once: SeenOnce,
    pub counters: Counters,
    pub queue: Queue,
    pub handoff: Handoff,
    pub findings: Findings,
    forgotten: Mutex<Vec<Away>>,
    lock: Weak<Box<dyn Send + Sync>>,
    read_only: AtomicBool,
    index_cramped: AtomicBool,
    /// Too many rows wait until their places in it can be read.
    index_unreadable: AtomicBool,
    /// The room in which the last checkpoint that was held up found none.
    too_little: AtomicU64,
    /// Since all of the index was last looked at.
    removed_rows: AtomicU64,
    /// Nothing in the tables that everybody sees expires before this time, in milliseconds since 1970.
    pub expires_from: AtomicU64,
}

/// Changes on their way to the journal's thread.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    commands: Mutex<VecDeque<Command>>,
    arrived: Condvar,
    /// Changed under the lock of the commands.
    closed: AtomicBool,
}

impl Queue {
    /// Waits until there is something to do, at most `patience`; gives the commands for taking from, and tells whether no more will come.
    pub fn wait<T>(
        &self,
        patience: Option<std::time::Duration>,
        take: impl FnOnce(&mut VecDeque<Command>) -> T,
    ) -> (T, bool) {
        let mut commands = self.commands.lock();
        if commands.is_empty() && !self.is_closed() {
            match patience {
                Some(patience) => drop(self.arrived.wait_for(&mut commands, patience)),
                None => self.arrived.wait(&mut commands),
            }
        }
        (take(&mut commands), self.is_closed())
    }

    /// The commands, for taking from, without waiting.
    pub fn with<T>(&self, take: impl FnOnce(&mut VecDeque<Command>) -> T) -> T {
        take(&mut self.commands.lock())
    }

    fn push(&self, command: Command) -> Result<(), Box<(Command, StoreError)>> {
        let mut commands = self.commands.lock();
        if self.is_closed() {
            return Err(Box::new((command, closed())));
        }
        if commands.len() >= QUEUE_MAX {
            let error = StoreError::new(ErrorKind::Busy, "too many changes are under way");
            return Err(Box::new((command, error)));
        }
        commands.push_back(command);
        if commands.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Refuses changes from now on, and that more is written for them.
    pub fn close(&self) {
        let commands = self.commands.lock();
        self.closed.store(true, Relaxed);
        drop(commands);
        self.arrived.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

/// What is put together when a store is opened.
pub(crate) struct Parts<D: Disk> {
    pub config: Config,
    pub clock: Arc<dyn Clock>,
    pub pool: Pool,
    pub disk: D,
    pub data: D::File,
    pub geometry: Geometry,
    pub index: Index,
    pub space: Allocator<D::File>,
    pub tables: Tables,
    pub registry: Registry,
    pub ledger: Arc<Ledger>,
}

impl<D: Disk> Core<D> {
    pub fn new(parts: Parts<D>) -> Core<D> {
        Core {
            cache: ValueCache::new(parts.config.cache_bytes, &parts.pool),
            seen_once: SeenOnce::default(),
            config: parts.config,
            clock: parts.clock,
            pool: parts.pool,
            disk: parts.disk,
            data: parts.data,
            geometry: parts.geometry,
            index: parts.index,
            tables: parts.tables,
            space: parts.space,
            reclaim: Reclaim::default(),
            ledger: parts.ledger,
            registry: RwLock::new(parts.registry),
            counters: Counters::default(),
            queue: Queue::default(),
            handoff: Handoff::default(),
            findings: Findings::default(),
            forgotten: Mutex::default(),
            lock: Weak::new(),
            read_only: AtomicBool::new(false),
            index_cramped: AtomicBool::new(false),
            index_unreadable: AtomicBool::new(false),
            too_little: AtomicU64::new(0),
            // What was removed before the store was opened nobody counted.
            removed_rows: AtomicU64::new(u64::MAX),
            expires_from: AtomicU64::new(0),
        }
    }

    /// Names what holds the directory, which the store has until it closes.
    pub fn hold(&mut self, lock: &Lock) {
        self.lock = Arc::downgrade(lock);
    }

    /// Holds the directory, as whoever writes to it has to until the write has ended: once it is let go, another store may have what
    /// this one takes for free.
    pub fn stay(&self) -> Result<Lock> {
        let lock = self.lock.upgrade();
        lock.filter(|_| !self.queue.is_closed()).ok_or_else(closed)
    }

    /// Waits for writes that outlive the store, on a thread of their own: the directory is held until they have ended.
    pub fn wait_beyond_close(&self, writing: Vec<Writing>) {
        let lock = self.lock.upgrade();
        let wait = || writing.into_iter().map(block_on).for_each(drop);
        let name = "forebay-last-writes".to_owned();
        if std::thread::Builder::new().name(name).spawn(wait).is_err() {
            // Nothing will tell when they have ended.
            std::mem::forget(lock);
        }
    }

    /// The tables now.
    pub fn view(&self) -> View<'_> {
        View {
            tables: &self.tables,
            over: None,
            now: self.clock.unix_millis(),
            stored: false,
        }
    }

    pub fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        self.registry.read().get(name)
    }

    /// Sends a change to the journal and waits for its answer.
    pub async fn submit<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        if let Err(refused) = self.queue.push(command(reply)) {
            let (command, error) = *refused;
            self.abandon(&command);
            return Err(error);
        }
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::new(
                ErrorKind::OutcomeUnknown,
                "the store closed while the change was under way",
            ))
        })
    }

    /// Gives back what a change that will not happen had taken.
    pub fn abandon(&self, command: &Command) {
        let content = match command {
            Command::Store(command, _) => &command.content,
            Command::TakeBack(command, _) => &command.content,
            _ => return,
        };
        if let crate::command::Content::Written(extents) = content {
            for extent in extents {
                self.space.put(extent.run());
            }
        }
    }

    /// Takes no more changes: the device failed in a way that leaves open what is on it, or a thread of the store did.
    pub fn latch_read_only(&self, why: &(dyn std::error::Error + 'static)) {
        if !self.read_only.swap(true, SeqCst) {
            tracing::error!(error = why, "the store takes no more changes");
        }
    }

    /// Shares what the file system has between values and the index: what either has and does not need goes back to it when the other
    /// has no room. Notes whether the index has little even so: then only changes that free some go on.
    pub fn look_at_room(&self) {
        let reserve = self.config.reserve_bytes;
        let low = self.index_room_low();
        if self.index_room() < low {
            self.collect();
            self.space.give_back(reserve - low);
        }
        // Values get no more when so much is left.
        if self.index.is_writable()
            && self.index_room() < reserve.saturating_add(GROWTH_BYTES_MIN)
            && let Err(error) = self.compact_index()
        {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "the index cannot be made smaller");
        }
        self.index_cramped.store(self.index_room() < low, Relaxed);
    }

    /// Gives back what the index has and does not need, if that is worth it. To find out takes a look at all of it, so first enough must
    /// have been removed.
    ///
    /// Who reads from the index waits meanwhile: some seconds where it has some hundred MiB. It cannot go in steps: the library moves all
    /// pages in one transaction with no reader there, and has no bound to set. Nor do rows that are put anew bring their pages
    /// to the front of the file: only that transaction takes the lowest pages that are free.
    fn compact_index(&self) -> Result<()> {
        let worth = self.config.reserve_bytes / 2;
        let enough = worth.max(self.index.held_bytes()? / 2) / GRANULE_BYTES as u64;
        if self.removed_rows.load(Relaxed) < enough {
            return Ok(());
        }
        self.removed_rows.store(0, Relaxed);
        let spare = self.index.spare_bytes()?;
        if spare < worth {
            return Ok(());
        }
        tracing::warn!(spare, "the file system is full; making the index smaller");
        let mut compacted = Ok(());
        let renewed = self.tables.renew(|| {
            compacted = self.index.compact();
            self.index.snapshot()
        });
        if renewed.is_err() {
            self.index.hide();
        }
        compacted.and(renewed)
    }

    /// Makes sure that the index can be written.
    pub fn open_index(&self) -> Result<()> {
        self.check_index()?;
        if self.index.is_writable() {
            return Ok(());
        }
        self.reopen_index(false)
    }

    /// Opens the index again if it failed, so that reads go on. It is not written until there is something to write, and if more than room
    /// was missing never: a write on top of one that was lost could make it look whole.
    pub fn revive_index(&self) {
        if !self.index.is_down() {
            return;
        }
        if let Err(error) = self.check_index() {
            self.latch_read_only(&error);
        }
        if let Err(error) = self.reopen_index(true) {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "the index cannot be opened again");
        }
    }

    fn check_index(&self) -> Result<()> {
        match self.index.is_unknown() {
            true => Err(StoreError::new(
                ErrorKind::Io,
                "the file of the index failed",
            )),
            false => Ok(()),
        }
    }

    fn reopen_index(&self, frozen: bool) -> Result<()> {
        let show = |snapshot| self.tables.refresh(snapshot);
        self.index.reopen(frozen, show)
    }

    /// The index found no room: until it does, only changes that free some go on.
    pub fn starve(&self) {
        self.too_little.store(self.index_room(), Relaxed);
        self.index_cramped.store(true, Relaxed);
    }

    /// So many rows were removed from the index.
    pub fn count_removed(&self, rows: u64) {
        let before = self.removed_rows.load(Relaxed);
        self.removed_rows
            .store(before.saturating_add(rows), Relaxed);
    }

    /// Below this the index takes no more rows.
    fn index_room_low(&self) -> u64 {
        self.config.reserve_bytes / 4
    }

    /// What the index may still take, in bytes. Pages that it has and does not need are none of it: it may well take others first.
    pub fn index_room(&self) -> u64 {
        self.disk.free_bytes().unwrap_or(u64::MAX)
    }

    /// Whether so many bytes of the journal are all that there is room for in the index.
    pub fn would_fill_index(&self, journal_bytes: u64) -> bool {
        self.index_room().saturating_sub(self.index_room_low()) / 2 < journal_bytes
    }

    /// So many rows wait until their places in the index can be read.
    pub fn note_unplaced(&self, rows: usize) {
        self.index_unreadable.store(rows >= UNPLACED_MAX, Relaxed);
    }

    /// Whether it takes no more but removals for that.
    pub fn is_index_unreadable(&self) -> bool {
        self.index_unreadable.load(Relaxed)
    }

    /// Refuses what makes the index larger when there is no room for that, or too much that could not be put there.
    pub fn check_index_room(&self) -> Result<()> {
        if self.is_index_unreadable() {
            return Err(StoreError::new(
                ErrorKind::Io,
                "the index cannot be read where it is to be written",
            ));
        }
        if self.index_cramped.load(Relaxed) && !self.has_room_again() {
            return Err(StoreError::new(
                ErrorKind::NoSpace,
                "the file system has no space left for the index: delete values, or make room there",
            ));
        }
        Ok(())
    }

    /// Whether the index has room now that it had not: other programs make some too, and tell nobody.
    fn has_room_again(&self) -> bool {
        let room = self.index_room();
        if room < self.index_room_low() {
            return false;
        }
        if self.tables.frozen().is_some() {
            // What found no room comes first, once there is more.
            let too_little = self.too_little.load(Relaxed);
            if room >= too_little.saturating_add(STEP_BYTES_MIN) {
                self.handoff.retry();
            }
            return false;
        }
        self.index_cramped.store(false, Relaxed);
        true
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(read_only());
        }
        Ok(())
    }

    /// Remembers where bytes were to which, durably, nothing refers any more.
    pub fn forget(&self, gone: Vec<Away>) {
        if !gone.is_empty() {
            let mut forgotten = self.forgotten.lock();
            let room = FORGOTTEN_MAX - forgotten.len().min(FORGOTTEN_MAX);
            forgotten.extend(gone.into_iter().take(room));
        }
    }

    pub fn take_forgotten(&self) -> Vec<Away> {
        std::mem::take(&mut self.forgotten.lock())
    }

    /// Remembers bytes that did not match, for the list of findings.
    pub fn note(&self, finding: Finding) {
        self.tell_of(&finding);
        self.findings.note(finding);
    }

    /// Remembers what was found and no scrub finds again.
    pub fn note_for_good(&self, finding: Finding) {
        self.tell_of(&finding);
        self.findings.note_for_good(finding);
    }

    fn tell_of(&self, finding: &Finding) {
        self.counters.corrupt_blocks.fetch_add(1, Relaxed);
        tracing::error!(
            namespace = finding.namespace,
            key = ?String::from_utf8_lossy(&finding.key),
            what = finding.what,
            "what is stored is damaged"
        );
    }
}

pub(crate) fn read_only() -> StoreError {
    StoreError::new(
        ErrorKind::ReadOnly,
        "the store takes no more changes since something failed, which its log tells; restart it to go on",
    )
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::ReadOnly, "the store is closed")
}

/// The device did not take a write, or had no space for it.
pub(crate) fn device_failed(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        StoreError::new(kind, what).with_source(error)
    }
}
