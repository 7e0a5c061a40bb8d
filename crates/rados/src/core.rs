//! What every part of an open store shares.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_mem::{BufMut, Pool};
use forebay_store::{NamespaceInfo, Quota, Result, Space, StoreError, VersionId};
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::{
    Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify, OwnedMutexGuard, mpsc,
};

use crate::access::Access;
use crate::away::Forgotten;
use crate::books::Books;
use crate::config::Config;
use crate::error::unread;
use crate::heads::Seen;
use crate::held::Held;
use crate::index::Shard;
use crate::journal::Journal;
use crate::keeper::Task;
use crate::names::{self, Home, Spaces};
use crate::notices::Notices;
use crate::pulse::{Asked, Pulse};
use crate::record::{Layout, Segment};
use crate::sys::{Errno, Lease, Place};
use crate::under_way::Named;

/// Locks for keys; keys that share one wait for each other needlessly.
const LOCKS: usize = 1024;
/// Heads that are remembered, and what they may take together.
const HEADS: usize = 64 << 10;
const HEADS_BYTES: u64 = 64 << 20;
/// What one takes besides its key and what its length depends on.
const HEAD_BYTES: usize = 512;

/// Everything of a store.
pub(crate) struct Core {
    pub access: Arc<Access>,
    pub config: Config,
    pub clock: Box<dyn Fn() -> u64 + Send + Sync>,
    pub pool: Pool,
    /// One buffer for whoever may hold others: two who each have some of the pool would wait for each other.
    aside: Pool,
    /// Names this gateway; never used again.
    pub gateway: u64,
    pub registry: Arc<Place>,
    pub books: Arc<Books>,
    pub heads: Heads,
    pub pins: Arc<Pins>,
    /// Stripes under way that somebody here has.
    pub held: Arc<Held>,
    pub forgotten: Forgotten,
    pub notices: Notices,
    pub tasks: mpsc::UnboundedSender<Task>,
    /// Whether this gateway is known to be alive; else what it wrote may be swept, and it commits nothing.
    pub pulse: Pulse,
    /// Held by whoever lives.
    pub lease: Arc<Lease>,
    /// What came of asking for it last. Held by whoever asks.
    pub asked: AsyncMutex<Asked>,
    /// The others do not know of this gateway, as the registry says.
    pub unknown: Notify,
    /// In which company what others have counted was read last. (Who opens a namespace reads it, too.)
    pub counted: AtomicU64,
    /// Held while namespaces are read.
    pub reloading: AsyncMutex<()>,
    /// Namespaces that are being opened, by their numbers.
    pub openings: Mutex<HashMap<u32, Arc<AsyncMutex<()>>>>,
    /// Held by whoever cleans up after gateways that died.
    pub sweeping: AsyncMutex<()>,
    /// Held by whoever drops what has expired.
    pub cleaning: AsyncMutex<()>,
    /// Held by whoever removes stripes whose time is over.
    pub collecting: AsyncMutex<()>,
    /// Held by whoever looks for strays.
    pub clearing: AsyncMutex<()>,
    snapshot: RwLock<Arc<Snapshot>>,
    numbers: AtomicU64,
    seqs: AtomicU64,
    /// For keys of objects, and for staged ones.
    locks: [Vec<AsyncMutex<()>>; 2],
    hasher: RandomState,
    /// Held by whoever takes several buffers: two who each have some would wait for each other.
    gathering: AsyncMutex<()>,
}

/// The namespaces and tenants as they were read last.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub namespaces: BTreeMap<String, Arc<Namespace>>,
    pub tenants: HashMap<String, Quota>,
    /// A namespace of which nothing is known but that its record cannot be read.
    pub unknown: Option<String>,
}

impl Snapshot {
    /// Whether the namespace of this name is the one with this number.
    pub fn has(&self, name: &str, id: u32) -> bool {
        let namespace = self.namespaces.get(name);
        namespace.is_some_and(|namespace| namespace.id == id)
    }
}

/// A namespace, ready to be used.
pub(crate) struct Namespace {
    pub id: u32,
    info: RwLock<Arc<NamespaceInfo>>,
    data: Arc<Place>,
    named: Arc<Place>,
    staging: Arc<Place>,
    pub stripes: Arc<Place>,
    pub index: Arc<Place>,
    pub journal: Arc<Journal>,
    pub shards: Vec<Arc<Shard>>,
    /// Whether the keeper was told that changes wait, and has not come to them yet.
    pub told: AtomicBool,
    /// How many bytes the last value had that was read: so much is read ahead.
    pub expected: AtomicU64,
}

impl Namespace {
    pub fn open(
        access: &Access,
        base: &str,
        info: NamespaceInfo,
        shards: u32,
    ) -> std::result::Result<Namespace, Errno> {
        let Spaces {
            data,
            named,
            staging,
            stripes,
            index,
        } = Spaces::new(base, &info.name);
        let index = access.place(&index)?;
        let shard = |number| Arc::new(Shard::new(names::shard(info.id, number)));
        Ok(Namespace {
            id: info.id,
            data: access.place(&data)?,
            named: access.place(&named)?,
            staging: access.place(&staging)?,
            stripes: access.place(&stripes)?,
            journal: Journal::new(index.clone(), names::journal(info.id)),
            shards: (0..shards).map(shard).collect(),
            index,
            told: AtomicBool::new(false),
            info: RwLock::new(Arc::new(info)),
            expected: AtomicU64::new(0),
        })
    }

    pub fn info(&self) -> Arc<NamespaceInfo> {
        self.info.read().clone()
    }

    pub fn set_info(&self, info: NamespaceInfo) {
        *self.info.write() = Arc::new(info);
    }

    /// Where a key's object is, and its name.
    pub fn object(&self, space: Space, key: &[u8]) -> (&Arc<Place>, Vec<u8>) {
        let (home, name) = names::object(space, key);
        (self.home(home).1, name)
    }

    /// Of which space the keys are whose objects are there, and where that is.
    pub fn home(&self, home: Home) -> (Space, &Arc<Place>) {
        match home {
            Home::Data => (Space::Objects, &self.data),
            Home::Named => (Space::Objects, &self.named),
            Home::Staging => (Space::Staging, &self.staging),
        }
    }

    pub fn data(&self) -> &Arc<Place> {
        &self.data
    }

    pub fn named(&self) -> &Arc<Place> {
        &self.named
    }

    pub fn staging(&self) -> &Arc<Place> {
        &self.staging
    }

    /// The part of the index that has a key.
    pub fn shard(&self, entry: &[u8]) -> &Arc<Shard> {
        let number = names::shard_of(entry, self.shards.len() as u32);
        &self.shards[number as usize]
    }
}

/// What was last seen of keys; only what is remembered of a key is lost by forgetting it.
pub(crate) struct Heads {
    cache: Cache<(u32, Named), Seen, Weights>,
}

#[derive(Clone)]
struct Weights;

impl Weighter<(u32, Named), Seen> for Weights {
    fn weight(&self, (_, named): &(u32, Named), seen: &Seen) -> u64 {
        let value = seen.head.as_ref().and_then(|head| head.current.as_ref());
        let more = value.map_or(0, |value| {
            let layout = match &value.layout {
                Layout::Inline(sums) => size_of_val(&sums[..]),
                Layout::Striped(segments) => size_of_val(&segments[..]),
                Layout::Away(_) => 0,
            };
            layout + value.attributes.encoded().len()
        });
        (HEAD_BYTES + named.key.len() + more) as u64
    }
}

impl Heads {
    fn new() -> Heads {
        Heads {
            cache: Cache::with_weighter(HEADS, HEADS_BYTES, Weights),
        }
    }

    pub fn get(&self, namespace: u32, named: &Named) -> Option<Seen> {
        self.cache.get(&(namespace, named.clone()))
    }

    pub fn put(&self, namespace: u32, named: &Named, seen: Seen) {
        self.cache.insert((namespace, named.clone()), seen);
    }

    pub fn forget(&self, namespace: u32, named: &Named) {
        self.cache.remove(&(namespace, named.clone()));
    }
}

/// Stripes that bodies of this gateway are reading: they stay until the last has read them.
#[derive(Default)]
pub(crate) struct Pins {
    counts: Mutex<HashMap<u128, usize>>,
}

impl Pins {
    pub fn pin(self: &Arc<Self>, segments: &[Segment]) -> Pinned {
        let mut counts = self.counts.lock();
        let ids = segments.iter().map(|segment| segment.id);
        let ids: Vec<u128> = ids.collect();
        for id in &ids {
            *counts.entry(*id).or_default() += 1;
        }
        Pinned {
            pins: self.clone(),
            ids,
        }
    }

    pub fn is_pinned(&self, id: u128) -> bool {
        self.counts.lock().contains_key(&id)
    }
}

/// Ends with whoever reads.
pub(crate) struct Pinned {
    pins: Arc<Pins>,
    ids: Vec<u128>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut counts = self.pins.counts.lock();
        for id in &self.ids {
            if let Some(count) = counts.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(id);
                }
            }
        }
    }
}

impl Core {
    pub fn new(
        access: Arc<Access>,
        config: Config,
        clock: Box<dyn Fn() -> u64 + Send + Sync>,
        pool: Pool,
        gateway: u64,
        registry: Arc<Place>,
        tasks: mpsc::UnboundedSender<Task>,
    ) -> std::result::Result<Core, Errno> {
        let pulse = Pulse::new(config.lease);
        let lease = names::gateway(gateway);
        let lease = Lease::new(&registry, &lease, format!("{gateway:016x}").as_bytes())?;
        Ok(Core {
            access,
            config,
            clock,
            pool,
            aside: Pool::new(forebay_mem::BLOCK_MAX_BYTES),
            gateway,
            registry,
            books: Arc::new(Books::default()),
            heads: Heads::new(),
            pins: Arc::default(),
            held: Arc::default(),
            forgotten: Forgotten::default(),
            notices: Notices::default(),
            tasks,
            pulse,
            lease: Arc::new(lease),
            asked: AsyncMutex::default(),
            unknown: Notify::new(),
            counted: AtomicU64::new(0),
            reloading: AsyncMutex::new(()),
            openings: Mutex::default(),
            sweeping: AsyncMutex::new(()),
            cleaning: AsyncMutex::new(()),
            collecting: AsyncMutex::new(()),
            clearing: AsyncMutex::new(()),
            snapshot: RwLock::default(),
            numbers: AtomicU64::new(0),
            seqs: AtomicU64::new(0),
            locks: std::array::from_fn(|_| (0..LOCKS).map(|_| AsyncMutex::default()).collect()),
            hasher: RandomState::new(),
            gathering: AsyncMutex::new(()),
        })
    }

    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// When the grace of what is let go now is over.
    pub fn grace_from_now(&self) -> u64 {
        let grace = self.config.grace.as_millis() as u64;
        self.now().saturating_add(grace)
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().clone()
    }

    pub fn replace_snapshot(&self, snapshot: Snapshot) {
        *self.snapshot.write() = Arc::new(snapshot);
    }

    pub fn add_namespace(&self, name: String, namespace: Arc<Namespace>) {
        let mut snapshot = self.snapshot.write();
        let namespaces = &mut Arc::make_mut(&mut snapshot).namespaces;
        namespaces.insert(name, namespace);
    }

    /// Held by whoever opens a namespace: two who did at once would each queue and count for it.
    pub async fn opening(&self, id: u32) -> OwnedMutexGuard<()> {
        let turn = {
            let mut openings = self.openings.lock();
            openings.retain(|_, turn| Arc::strong_count(turn) > 1);
            openings.entry(id).or_default().clone()
        };
        turn.lock_owned().await
    }

    pub fn namespace(&self, name: &str) -> Result<Arc<Namespace>> {
        let snapshot = self.snapshot.read();
        let found = snapshot.namespaces.get(name).cloned();
        found.ok_or_else(|| StoreError::no_namespace(name))
    }

    /// Names a value or a change of this gateway's; never used again.
    pub fn number(&self) -> u128 {
        let number = self.numbers.fetch_add(1, Relaxed);
        u128::from(self.gateway) << 64 | u128::from(number)
    }

    /// A version that is greater than `last`, and unused: milliseconds, then some bits that gateways differ in. A key that is far ahead of
    /// the clock takes no other along.
    pub fn fresh(&self, last: u64) -> VersionId {
        let by_time = self.now() << 20 | (self.gateway & 0x3ff) << 10;
        let next = |seq: u64| by_time.max(seq + 1);
        let before = self
            .seqs
            .fetch_update(Relaxed, Relaxed, |seq| Some(next(seq)));
        VersionId(before.map_or_else(next, next).max(last + 1))
    }

    /// Changes of one key by this gateway happen one after the other. Who changes a staged key that a composition has claimed waits for it
    /// with the lock, and the composition may still have to lock its target: so they have none in common.
    pub async fn lock(&self, namespace: u32, named: &Named) -> AsyncMutexGuard<'_, ()> {
        let hash = self.hasher.hash_one((namespace, named));
        let [objects, staged] = &self.locks;
        let locks = match named.space {
            Space::Objects => objects,
            Space::Staging => staged,
        };
        locks[hash as usize % LOCKS].lock().await
    }

    /// Buffers for the first of so many bytes: waits for one, and takes what others there are. The caller holds none.
    pub async fn some(&self, bytes: usize) -> Vec<BufMut> {
        let first = self.pool.take(bytes).await;
        let rest = bytes.saturating_sub(first.capacity());
        let mut bufs = vec![first];
        bufs.extend(self.some_now(rest));
        bufs
    }

    /// The same without waiting: none when there are none.
    pub fn some_now(&self, mut bytes: usize) -> Vec<BufMut> {
        let mut bufs = Vec::new();
        while bytes > 0
            && let Ok(buf) = self.pool.try_take(bytes)
        {
            bytes = bytes.saturating_sub(buf.capacity());
            bufs.push(buf);
        }
        bufs
    }

    /// One more buffer, of at most a block, for a caller that may hold others. It waits for none of those: who has the one that is kept
    /// aside gives it back without taking another.
    pub async fn one_more(&self, bytes: usize) -> BufMut {
        match self.pool.try_take(bytes) {
            Ok(buf) => buf,
            Err(_) => self.aside.take(bytes).await,
        }
    }

    /// Buffers for so many bytes, all at once. The caller holds none.
    pub async fn gather(&self, mut bytes: usize) -> Vec<BufMut> {
        let mut bufs = Vec::new();
        let _only = match bytes > forebay_mem::BLOCK_MAX_BYTES {
            true => Some(self.gathering.lock().await),
            false => None,
        };
        while bytes > 0 {
            let buf = self.pool.take(bytes).await;
            bytes = bytes.saturating_sub(buf.capacity());
            bufs.push(buf);
        }
        bufs
    }

    pub fn seconds(&self) -> i64 {
        (self.now() / 1000).max(1) as i64
    }

    /// Gives the keeper something to do.
    pub fn task(&self, task: Task) {
        // A store that is being closed has no keeper any more: whoever sweeps next does it.
        let _ = self.tasks.send(task);
    }

    /// Has the keeper enter what waits in a namespace's index. It is told once of all that comes before it begins: each word wakes its thread.
    pub fn enter_soon(&self, namespace: &Arc<Namespace>) {
        if !namespace.told.swap(true, AcqRel) {
            self.task(Task::Settle(namespace.clone()));
        }
    }

    /// The keys of an object of the index or journal, from `after` on, page by page.
    pub async fn keys(
        &self,
        place: &Arc<Place>,
        object: &[u8],
        prefix: &[u8],
        mut each: impl FnMut(bytes::Bytes, bytes::Bytes),
    ) -> Result<bool> {
        let mut after = Vec::new();
        loop {
            let mut op = crate::sys::ReadOp::new(place);
            op.omap(&after, prefix, 1024);
            let read = match self.access.read(place, object, op, 0).await {
                Err(Errno(libc::ENOENT)) => return Ok(false),
                Err(errno) => return Err(unread(errno, "the index")),
                Ok(read) => read,
            };
            let Some((pairs, more)) = read.omap.into_iter().next() else {
                return Ok(true);
            };
            if let Some((last, _)) = pairs.last() {
                after = last.to_vec();
            }
            let none = pairs.is_empty();
            for (name, value) in pairs {
                each(name, value);
            }
            if !more || none {
                return Ok(true);
            }
        }
    }
}
