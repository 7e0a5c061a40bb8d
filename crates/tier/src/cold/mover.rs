//! Moves bytes between a store and a bucket, one value at a time.
//!
//! Out: a copy is made under a name that was never used, read back whole and compared, and only then the store is asked to let the bytes of
//! exactly that value go. Back: the store takes the bytes and compares them itself; then the copy is to go. A crash between
//! any two steps leaves bytes in the store, or a value whose copy is complete; at worst a copy too many, which the sweep finds.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use forebay_mem::Pool;
use forebay_store::{
    Address, Away, ByteRange, ErrorKind, Meta, Object, Result, Seal, Store, StoreError, Upload,
    VersionId,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::bucket::{Bucket, COPY_BYTES_MAX};
use super::buffers::Buffers;
use super::counters::{Counters, Metrics, add};
use super::fetch::Fetch;
use super::pass::Passed;
use super::pins::Pins;
use super::reads::{Reads, spot};
use super::shared::{Shared, UNTOLD_MS};

/// Values that come back at the same time while their readers may wait for them.
const RECALLS_MAX: usize = 8;
/// The same of larger ones, which nobody waits for.
const LARGE_RECALLS_MAX: usize = 2;
/// So many recalls, of either size, wait for a turn before a read begins no more of them: each keeps memory, and asks the far side
/// for what its reader has got from there by then. A scan reads more than will ever be read again.
const WAITING_MAX: usize = 64;
/// Values up to so many bytes come back before their reader gets the first of them: the far side is asked once, however many
/// read. Larger ones leave for the reader as they come, and come back beside that.
pub(super) const WAIT_BYTES_MAX: u64 = 32 << 20;
/// A value that came back stays for so long, whatever the policy says: a day.
const REST_MS: u64 = 24 * 3600 * 1000;
/// A far side that is away is logged once in so long.
const TELL_MS: u64 = 60_000;

/// Values read in parts that are remembered.
const PARTS_MAX: usize = 1 << 12;
/// Parts of the pool: one of so many for values that go, for small ones that come back, and for large ones.
const GOING_SMALL_LARGE: [usize; 3] = [3, 4, 5];

/// What a mover works with.
pub struct Config {
    /// Bytes from the bucket arrive in buffers of it.
    pub pool: Pool,
    /// Bytes of it, of which values on their way hold no more than a part.
    pub buffer_bytes: usize,
    /// Milliseconds since 1970.
    pub clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Where values come back when nobody waits.
    pub runtime: Handle,
    /// Keeps across restarts when values were read last. Not needed where other processes keep it.
    pub reads: Option<PathBuf>,
    /// Where other processes move values of the same store too: the namespace, which no door shows, in which they agree on who applies
    /// policies, and tell each other when values were read.
    pub shared: Option<String>,
    /// A copy in the bucket to which nothing refers is deleted by a sweep when an earlier one found it so more than this before, in
    /// milliseconds: another process on the same store may be about to refer to it, or read it still.
    pub grace_ms: u64,
}

/// Why bytes did not come back, for all who wait for them.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    kind: ErrorKind,
    message: String,
    /// Whether the far side did not give them; else the store could not take them, or has another value.
    pub far: bool,
}

/// How a recall ended.
type Outcome = std::result::Result<(), Failed>;

impl Failed {
    fn near(error: StoreError) -> Failed {
        Failed {
            kind: error.kind(),
            message: error.message().to_owned(),
            far: false,
        }
    }

    fn far(error: StoreError) -> Failed {
        Failed {
            far: true,
            ..Failed::near(error)
        }
    }

    pub fn error(self) -> StoreError {
        StoreError::new(self.kind, self.message)
    }
}

/// How far a recall is.
#[derive(Debug, Clone)]
pub(super) enum Recalling {
    /// Others are before it.
    Queued,
    Begun,
    Ended(Outcome),
}

/// Moves values out and back.
pub struct Mover<S> {
    pub(super) hot: Arc<S>,
    pub(super) bucket: Bucket,
    pub(super) config: Config,
    pub(super) pins: Pins,
    pub(super) reads: Arc<Reads>,
    pub(super) shared: Option<Shared>,
    pub(super) counters: Arc<Counters>,
    /// What the last pass over a namespace found, by its number.
    pub(super) passed: Mutex<HashMap<u32, Passed>>,
    /// Names that are in use, but that the store does not know yet.
    moving: Mutex<HashSet<Away>>,
    recalls: Mutex<HashMap<Away, watch::Receiver<Recalling>>>,
    turns: Turns,
    large_turns: Turns,
    /// Of values that go.
    going: Buffers,
    /// How many bytes were read in parts of values whose bytes are away.
    parts: Mutex<HashMap<Away, u64>>,
    random: RandomState,
    named: AtomicU64,
    /// When a failure was logged last.
    told: AtomicU64,
}

impl<S: Store> Mover<S> {
    pub(super) fn new(hot: Arc<S>, bucket: Bucket, config: Config) -> Mover<S> {
        let reads = Arc::new(Reads::default());
        if let Some(path) = &config.reads {
            reads.load(path);
        }
        // The rest is for who uses the store meanwhile.
        let [going, small, large] =
            GOING_SMALL_LARGE.map(|parts| Buffers::part(config.buffer_bytes, parts));
        Mover {
            hot,
            bucket,
            going,
            shared: config.shared.clone().map(Shared::new),
            config,
            pins: Pins::default(),
            reads,
            counters: Arc::default(),
            passed: Mutex::default(),
            moving: Mutex::default(),
            recalls: Mutex::default(),
            turns: Turns::new(RECALLS_MAX, small),
            large_turns: Turns::new(LARGE_RECALLS_MAX, large),
            parts: Mutex::default(),
            random: RandomState::new(),
            named: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> u64 {
        (self.config.clock)()
    }

    /// What it did since it began.
    pub fn metrics(&self) -> Metrics {
        self.counters.read(self.pins.waiting())
    }

    /// A name that was never used: the namespace, the second, and 64 bits that nobody foresees.
    fn name(&self, namespace: u32, now: u64) -> Away {
        let number = self.named.fetch_add(1, Relaxed);
        let random = self.random.hash_one((number, now, std::process::id()));
        let second = u128::from((now / 1000) as u32);
        Away(u128::from(namespace) << 96 | second << 64 | u128::from(random))
    }

    /// Whether a name is being given at this moment.
    pub(super) fn is_moving(&self, away: Away) -> bool {
        self.moving.lock().contains(&away)
    }

    /// Whether the bytes of a value are cold.
    ///
    /// # Errors
    /// Of the store.
    pub async fn is_cold(&self, address: Address<'_>, version: Option<VersionId>) -> Result<bool> {
        Ok(self.hot.away(address, version).await?.is_some())
    }

    /// Moves the bytes of one value out, if it is still the one that was `seen`.
    ///
    /// # Errors
    /// [`ErrorKind::PreconditionFailed`] when it changed meanwhile, [`ErrorKind::TooLarge`] for a value that no bucket takes;
    /// else of the store or the bucket. The bytes are still in the store then, unless the store cannot say
    /// ([`ErrorKind::OutcomeUnknown`]).
    pub async fn move_out(&self, address: Address<'_>, seen: &Meta) -> Result<()> {
        if seen.size > COPY_BYTES_MAX {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                "the value is too large for the cold tier",
            ));
        }
        let namespace = self.hot.namespace(address.namespace)?;
        let away = self.name(namespace.id, self.now());
        let _moving = Moving::begin(&self.moving, away);
        let let_go = match self.copy_out(address, seen, away).await {
            Ok(()) => self.hot.let_go(address, seen, away).await,
            Err(error) => Err(error),
        };
        match let_go {
            Ok(()) => {
                add(&self.counters.moved, 1);
                add(&self.counters.moved_bytes, seen.size);
                Ok(())
            }
            Err(error) => {
                self.note(&error);
                if error.kind() != ErrorKind::OutcomeUnknown {
                    self.pins.doom([away]);
                }
                Err(error)
            }
        }
    }

    /// Makes a copy and reads it back, sooner than a sweep takes it for nobody's.
    async fn copy_out(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        let _room = self.going.for_value(seen.size).await;
        let version = Some(seen.version);
        let found = self.hot.retrieve(address, version, ByteRange::Full).await;
        let found = found.map_err(|error| match error.away() {
            // It is no far side that fails.
            Some(_) => StoreError::moved(),
            None => error,
        });
        let Object { meta, mut body, .. } = found?;
        meta.check_seen(Some(seen))?;
        self.bucket.put(away, seen, &mut body).await?;
        drop(body);
        let written = self.now();
        let mut back = self.fetch(seen, away, 0..seen.size);
        while back.next().await?.is_some() {}
        if self.now().saturating_sub(written) > self.config.grace_ms / 2 {
            return Err(StoreError::new(
                ErrorKind::Busy,
                "the cold tier takes too long to give back what it was given",
            ));
        }
        Ok(())
    }

    pub(super) fn fetch(&self, meta: &Meta, away: Away, range: std::ops::Range<u64>) -> Fetch {
        Fetch::new(&self.bucket, &self.config.pool, meta, away, range)
    }

    /// Brings the bytes of one value back; `false` when they are in the store already.
    ///
    /// # Errors
    /// Of the store and the bucket; the bytes are where they were then.
    pub async fn recall(
        self: &Arc<Self>,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Result<bool> {
        let meta = self.hot.stat(address, version).await?;
        let Some(away) = self.hot.away(address, Some(meta.version)).await? else {
            return Ok(false);
        };
        self.bring_back(address, &meta, away).await?;
        Ok(true)
    }

    /// The same for bytes that are known to be away. However many ask, they come once.
    pub(super) async fn bring_back(
        self: &Arc<Self>,
        address: Address<'_>,
        meta: &Meta,
        away: Away,
    ) -> Result<()> {
        let told = self.join_or_begin(&mut self.recalls.lock(), address, meta, away);
        outcome(told).await.map_err(Failed::error)
    }

    /// The same for a reader, which does not need it: `None` when it is not under way and too many wait for a turn already.
    pub(super) fn recall_for_reader(
        self: &Arc<Self>,
        address: Address<'_>,
        meta: &Meta,
        away: Away,
    ) -> Option<watch::Receiver<Recalling>> {
        let mut recalls = self.recalls.lock();
        let is_full = self.turns(meta.size).waiting.load(Relaxed) >= WAITING_MAX;
        if is_full && !recalls.contains_key(&away) {
            return None;
        }
        Some(self.join_or_begin(&mut recalls, address, meta, away))
    }

    fn turns(&self, size: u64) -> &Turns {
        match size <= WAIT_BYTES_MAX {
            true => &self.turns,
            false => &self.large_turns,
        }
    }

    /// Begins a recall unless it is under way, and tells how it ends.
    fn join_or_begin(
        self: &Arc<Self>,
        recalls: &mut HashMap<Away, watch::Receiver<Recalling>>,
        address: Address<'_>,
        meta: &Meta,
        away: Away,
    ) -> watch::Receiver<Recalling> {
        if let Some(told) = recalls.get(&away) {
            return told.clone();
        }
        let turns = self.turns(meta.size);
        let turn = turns.now(meta.size);
        if turn.is_none() {
            turns.waiting.fetch_add(1, Relaxed);
        }
        let (tell, told) = watch::channel(match turn {
            Some(_) => Recalling::Begun,
            None => Recalling::Queued,
        });
        recalls.insert(away, told.clone());
        let mover = self.clone();
        let (namespace, key) = (address.namespace.to_owned(), address.key.to_vec());
        let meta = meta.clone();
        self.config.runtime.spawn(async move {
            let _listed = Listed(&mover.recalls, away);
            let _turn = match turn {
                Some(turn) => Some(turn),
                None => mover.turns(meta.size).next(meta.size).await,
            };
            tell.send_replace(Recalling::Begun);
            let address = Address::object(&namespace, &key);
            let outcome = mover.carry_back(address, &meta, away).await;
            if let Err(failed) = &outcome
                && failed.far
            {
                mover.note(&failed.clone().error());
            }
            tell.send_replace(Recalling::Ended(outcome));
        });
        told
    }

    async fn carry_back(&self, address: Address<'_>, meta: &Meta, away: Away) -> Outcome {
        let _pin = self.pins.pin(away);
        let begun = self.hot.take_back(address, Some(meta.version), away);
        let mut upload = begun.await.map_err(Failed::near)?;
        let mut bytes = self.fetch(meta, away, 0..meta.size);
        while let Some(buf) = bytes.next().await.map_err(Failed::far)? {
            upload.write(buf).await.map_err(Failed::near)?;
        }
        // Noted first: a pass may meet the value as soon as it is here.
        if let Ok(namespace) = self.hot.namespace(address.namespace) {
            let spot = spot(namespace.id, address.key);
            self.reads.note_return(spot, self.now());
        }
        let committed = upload.commit(Seal::default()).await;
        committed.map_err(Failed::near)?;
        add(&self.counters.recalled, 1);
        add(&self.counters.recalled_bytes, meta.size);
        Ok(())
    }

    /// Notes that part of a value is read; tells whether as much was by now as the value has: whoever fetches it by ranges side by
    /// side reads it whole.
    pub(super) fn read_in_parts(&self, away: Away, size: u64, bytes: u64) -> bool {
        let mut parts = self.parts.lock();
        if parts.len() >= PARTS_MAX {
            parts.clear();
        }
        let read = parts.entry(away).or_default();
        *read = read.saturating_add(bytes);
        let all = *read >= size;
        if all {
            parts.remove(&away);
        }
        all
    }

    /// A value that came back is not sent away again at once.
    pub(super) fn is_resting(&self, spot: u64) -> bool {
        let returned = self.reads.returned(spot);
        returned.is_some_and(|at| self.now().saturating_sub(at) < REST_MS)
    }

    /// A time after which a value was not read by any process.
    pub(super) fn last_read(&self, spot: u64) -> u64 {
        let unknown = match self.shared {
            None => 0,
            // What others have not told yet, and what they read before they heard of the policy.
            Some(_) => UNTOLD_MS,
        };
        self.reads.last(spot).saturating_add(unknown)
    }

    /// Counts a failure of the far side, and tells of it now and then.
    pub(super) fn note(&self, error: &StoreError) {
        if matches!(
            error.kind(),
            ErrorKind::Busy | ErrorKind::Io | ErrorKind::Corrupt
        ) {
            add(&self.counters.failed, 1);
            let (now, told) = (self.now(), self.told.load(Relaxed));
            if now.saturating_sub(told) >= TELL_MS {
                self.told.store(now, Relaxed);
                tracing::warn!(error = error as &dyn std::error::Error, "cold tier");
            }
        }
    }
}

/// Turns of recalls.
struct Turns {
    free: Arc<Semaphore>,
    /// What those hold that have one.
    buffers: Buffers,
    /// Recalls that have yet to get one.
    waiting: AtomicUsize,
}

/// A turn, and the room that it takes.
struct Turn {
    _turn: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

impl Turns {
    fn new(most: usize, buffers: Buffers) -> Turns {
        Turns {
            free: Arc::new(Semaphore::new(most)),
            buffers,
            waiting: AtomicUsize::new(0),
        }
    }

    /// A turn for a value of this size, if there is one.
    fn now(&self, size: u64) -> Option<Turn> {
        Some(Turn {
            _turn: self.free.clone().try_acquire_owned().ok()?,
            _room: self.buffers.try_for_value(size)?,
        })
    }

    /// The same for one that counts as waiting.
    async fn next(&self, size: u64) -> Option<Turn> {
        // Never closed.
        let turn = self.free.clone().acquire_owned().await.ok();
        let room = self.buffers.for_value(size).await;
        self.waiting.fetch_sub(1, Relaxed);
        Some(Turn {
            _turn: turn?,
            _room: room?,
        })
    }
}

/// How a recall ends.
pub(super) async fn outcome(mut told: watch::Receiver<Recalling>) -> Outcome {
    let ended = told.wait_for(|now| matches!(now, Recalling::Ended(_)));
    match ended.await.as_deref() {
        Ok(Recalling::Ended(outcome)) => outcome.clone(),
        Ok(Recalling::Queued | Recalling::Begun) | Err(_) => Err(Failed::near(StoreError::new(
            ErrorKind::Busy,
            "the recall was given up; try again",
        ))),
    }
}

/// A name while it is being given.
struct Moving<'a> {
    moving: &'a Mutex<HashSet<Away>>,
    away: Away,
}

impl<'a> Moving<'a> {
    fn begin(moving: &'a Mutex<HashSet<Away>>, away: Away) -> Moving<'a> {
        moving.lock().insert(away);
        Moving { moving, away }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.moving.lock().remove(&self.away);
    }
}

/// A recall in the list of those under way, also when it ends by a panic.
struct Listed<'a>(&'a Mutex<HashMap<Away, watch::Receiver<Recalling>>>, Away);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}
