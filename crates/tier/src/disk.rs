//! The local disk: pieces that left memory, as values of another store.
//!
//! A piece is a staged value under the number of its namespace, its key and its own number; what it was part of stands in its
//! attributes, and is compared before a byte of it is believed. Whatever goes wrong here is a miss.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use forebay_mem::Buf;
use forebay_store::{
    Address, After, Attributes, Body, ByteRange, Durability, ErrorKind, Item, ListOptions, Meta,
    NamespaceConfig, NamespaceInfo, Object, Result, Seal, Space, Store, StoreError, StoreOptions,
    Upload,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cache::Cache;
use crate::index::{Evicted, Fallout, Place, is_same};
use crate::kept_meta;
use crate::metrics::{Counters, count};
use crate::piece::Piece;

const NAMESPACE: &str = "cache";
const TENANT: &str = "cache";
const META: &str = "meta";
/// A crash may cost the cache so much of what went to the disk last.
const RELAXED_MS: u32 = 1000;
/// Pieces waiting for the disk hold memory beyond the cache's: when so many bytes wait, the next one is not written.
pub(crate) const QUEUE_BYTES_MAX: u64 = 64 << 20;
const PAGE: usize = 1000;
/// So many writes that the disk fails, one after the other and for so long, end its use: what fails may pass.
const FAILURES_MOST: u32 = 16;
const FAILING_MS: u64 = 60_000;
/// What fails is logged once in so long.
const TELL_MS: u64 = 60_000;

type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A store for pieces, whichever it is.
pub(crate) trait Shelf: Send + Sync + 'static {
    fn prepare(&self) -> Later<'_, ()>;
    fn open(&self, key: Vec<u8>) -> Later<'_, (Meta, Box<dyn ShelfBody>)>;
    fn save(&self, key: Vec<u8>, about: Bytes, bufs: Vec<Buf>) -> Later<'_, ()>;
    fn discard(&self, key: Vec<u8>) -> Later<'_, ()>;
    fn page(&self, after: Option<Vec<u8>>) -> Later<'_, Vec<(Bytes, Meta)>>;
}

/// A body of one.
pub(crate) trait ShelfBody: Send {
    fn next(&mut self) -> Later<'_, Option<Buf>>;
}

impl<B: Body> ShelfBody for B {
    fn next(&mut self) -> Later<'_, Option<Buf>> {
        Box::pin(Body::next(self))
    }
}

/// Any store is one.
pub(crate) struct StoreShelf<D>(pub D);

impl<D: Store> Shelf for StoreShelf<D> {
    fn prepare(&self) -> Later<'_, ()> {
        Box::pin(async {
            if self.0.namespace(NAMESPACE).is_ok() {
                return Ok(());
            }
            let config = NamespaceConfig {
                tenant: TENANT.to_owned(),
                durability: Durability::Relaxed {
                    within_ms: RELAXED_MS,
                },
                ..NamespaceConfig::default()
            };
            self.0.create_namespace(NAMESPACE, config).await.map(drop)
        })
    }

    fn open(&self, key: Vec<u8>) -> Later<'_, (Meta, Box<dyn ShelfBody>)> {
        Box::pin(async move {
            let address = Address::staging(NAMESPACE, &key);
            let Object { meta, body, .. } = self.0.retrieve(address, None, ByteRange::Full).await?;
            Ok((meta, Box::new(body) as Box<dyn ShelfBody>))
        })
    }

    fn save(&self, key: Vec<u8>, about: Bytes, bufs: Vec<Buf>) -> Later<'_, ()> {
        Box::pin(async move {
            let size = bufs.iter().map(|buf| buf.len() as u64).sum();
            let options = StoreOptions {
                size: Some(size),
                ..StoreOptions::default()
            };
            let attributes = Attributes::builder().set(META, &about).build();
            let attributes = attributes
                .ok_or_else(|| StoreError::new(ErrorKind::Invalid, "too many attributes"))?;
            let address = Address::staging(NAMESPACE, &key);
            let mut upload = self.0.store(address, options).await?;
            for buf in bufs {
                upload.write(buf).await?;
            }
            let seal = Seal {
                attributes,
                ..Seal::default()
            };
            upload.commit(seal).await.map(drop)
        })
    }

    fn discard(&self, key: Vec<u8>) -> Later<'_, ()> {
        Box::pin(async move {
            let address = Address::staging(NAMESPACE, &key);
            let gone = self.0.delete(address, Default::default()).await;
            gone.map(drop)
        })
    }

    fn page(&self, after: Option<Vec<u8>>) -> Later<'_, Vec<(Bytes, Meta)>> {
        Box::pin(async move {
            let options = ListOptions {
                namespace: NAMESPACE,
                space: Space::Staging,
                prefix: b"",
                delimiter: None,
                after: after.as_deref().map_or(After::Start, After::Key),
                limit: PAGE,
            };
            let items = self.0.list(options).await?.items.into_iter();
            Ok(items
                .filter_map(|item| match item {
                    Item::Value(key, meta) => Some((key, meta)),
                    Item::Prefix(_) => None,
                })
                .collect())
        })
    }
}

/// The disk's side of a cache.
pub(crate) struct Disk {
    shelf: Box<dyn Shelf>,
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// When a failure was logged last.
    told: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    /// Whether the cache goes on without its disk.
    off: bool,
    spill: VecDeque<Evicted>,
    bytes: u64,
    discard: Vec<Vec<u8>>,
}

/// A piece that was found on the disk, opened.
pub(crate) struct Reading {
    body: Box<dyn ShelfBody>,
    len: u64,
    begun: bool,
}

impl Disk {
    pub fn new(shelf: impl Shelf) -> Disk {
        Disk {
            shelf: Box::new(shelf),
            waiting: Mutex::default(),
            wake: Notify::new(),
            told: AtomicU64::new(0),
        }
    }

    /// Takes what is to be written and removed, for [`tend`].
    pub fn after(&self, fallout: Fallout, counters: &Counters) {
        if fallout.spill.is_empty() && fallout.discard.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.off {
            let dropped = fallout.spill.len() as u64;
            counters.spills_dropped.fetch_add(dropped, Relaxed);
            return;
        }
        for (place, number) in fallout.discard {
            waiting.discard.push(key_of(&place, number));
        }
        for evicted in fallout.spill {
            let bytes = evicted.weight();
            if waiting.bytes + bytes > QUEUE_BYTES_MAX {
                count(&counters.spills_dropped);
                continue;
            }
            waiting.bytes += bytes;
            waiting.spill.push_back(evicted);
        }
        drop(waiting);
        self.wake.notify_one();
    }

    /// Takes what is to be written next.
    fn next(&self) -> Option<Evicted> {
        let mut waiting = self.waiting.lock();
        let spill = waiting.spill.pop_front()?;
        waiting.bytes -= spill.weight();
        Some(spill)
    }

    /// Removes what is to be removed; whether there was anything.
    async fn discard(&self, now: u64) -> bool {
        let keys = std::mem::take(&mut self.waiting.lock().discard);
        let any = !keys.is_empty();
        for key in keys {
            if let Err(error) = self.shelf.discard(key).await {
                self.note(&error, now);
            }
        }
        any
    }

    fn note(&self, error: &StoreError, now: u64) {
        let told = self.told.load(Relaxed);
        if now.saturating_sub(told) >= TELL_MS {
            self.told.store(now, Relaxed);
            tracing::warn!(%error, "the cache's disk did not take a piece, or keeps one");
        }
    }

    /// Nothing goes there any more, nor comes from there.
    pub fn give_up_for_good(&self, counters: &Counters) {
        let mut waiting = self.waiting.lock();
        waiting.off = true;
        waiting.discard = Vec::new();
        drop(waiting);
        self.give_up(counters);
    }

    /// Drops what waits to be written; whether there was anything.
    pub fn give_up(&self, counters: &Counters) -> bool {
        let mut waiting = self.waiting.lock();
        let dropped = std::mem::take(&mut waiting.spill);
        waiting.bytes = 0;
        drop(waiting);
        counters
            .spills_dropped
            .fetch_add(dropped.len() as u64, Relaxed);
        !dropped.is_empty()
    }

    /// Opens a piece of the value of `meta`; `None` when it is not there, or of another value.
    pub async fn open(&self, place: &Place, number: u32, meta: &Meta) -> Option<Reading> {
        if self.waiting.lock().off {
            return None;
        }
        let (found, body) = self.shelf.open(key_of(place, number)).await.ok()?;
        let (about, _) = kept_meta::decode(found.attributes.get(META)?)?;
        is_same(&about, meta).then_some(Reading {
            body,
            len: found.size,
            begun: false,
        })
    }
}

impl Reading {
    /// Reads all of it.
    pub async fn piece(&mut self) -> Result<Piece> {
        let interrupted = || StoreError::new(ErrorKind::Io, "reading the cache was interrupted");
        if std::mem::replace(&mut self.begun, true) {
            return Err(interrupted());
        }
        let mut bufs = Vec::new();
        while let Some(buf) = self.body.next().await? {
            bufs.push(buf);
        }
        let piece = Piece::new(bufs);
        match piece.len() as u64 == self.len {
            true => Ok(piece),
            false => Err(interrupted()),
        }
    }
}

/// Writes and removes, after it has found what an earlier process left. Runs until it is dropped.
///
/// # Errors
/// When the disk cannot be read, or takes nothing any more.
pub(crate) async fn tend<S: Store>(cache: &Cache<S>, store: &S, disk: &Disk) -> Result<()> {
    disk.shelf.prepare().await?;
    recall(cache, store, disk).await?;
    let (mut failures, mut failing_since) = (0, None);
    loop {
        let spill = disk.next();
        let discarded = disk.discard(cache.now()).await;
        let Some(evicted) = spill else {
            if !discarded {
                disk.wake.notified().await;
            }
            continue;
        };
        let Evicted {
            place,
            number,
            meta,
            since,
            piece,
        } = evicted;
        // The disk makes sums of its own: what turned in memory would be good there for ever.
        let mut bufs = Vec::new();
        if !piece.checked(0..piece.len(), &mut bufs) {
            count(&cache.counters.corrupt);
            continue;
        }
        let about = kept_meta::encode(&meta, since);
        let bytes = piece.len() as u64;
        let key = key_of(&place, number);
        match disk.shelf.save(key, about, bufs).await {
            Ok(()) => {
                (failures, failing_since) = (0, None);
                count(&cache.counters.spills);
                cache.after(cache.index.landed(&place, number, &meta, since, bytes));
            }
            Err(error) => {
                count(&cache.counters.spills_dropped);
                disk.note(&error, cache.now());
                // A full file system may have room again, and another piece may be one that can be kept.
                if matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly) {
                    let since = *failing_since.get_or_insert(cache.now());
                    failures += 1;
                    let for_long = cache.now().saturating_sub(since) >= FAILING_MS;
                    if failures >= FAILURES_MOST && for_long {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Puts into the index what is on the disk. Nothing of it is believed before the store was asked.
async fn recall<S: Store>(cache: &Cache<S>, store: &S, disk: &Disk) -> Result<()> {
    let namespaces = store.namespaces().into_iter();
    let namespaces: HashMap<u32, Arc<NamespaceInfo>> = namespaces
        .filter(|namespace| cache.config.is_for_disk(&namespace.name))
        .map(|namespace| (namespace.id, namespace))
        .collect();
    let mut after = None;
    loop {
        let page = disk.shelf.page(after.take()).await?;
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        after = Some(last.to_vec());
        for (key, found) in &page {
            let known = split(key).and_then(|(id, name, number)| {
                let (about, since) = kept_meta::decode(found.attributes.get(META)?)?;
                let place = cache.place_in(namespaces.get(&id)?, name);
                Some((place, number, about, since))
            });
            match known {
                Some((place, number, about, since)) => {
                    let landed = cache
                        .index
                        .landed(&place, number, &about, since, found.size);
                    cache.after(landed);
                }
                None => disk.waiting.lock().discard.push(key.to_vec()),
            }
        }
        // There may be many times as much as has room.
        disk.discard(cache.now()).await;
    }
}

fn key_of(place: &Place, number: u32) -> Vec<u8> {
    let id = place.namespace.id.to_be_bytes();
    [&id[..], &place.key, &number.to_be_bytes()].concat()
}

fn split(key: &[u8]) -> Option<(u32, &[u8], u32)> {
    let (id, rest) = key.split_first_chunk::<4>()?;
    let (name, number) = rest.split_last_chunk::<4>()?;
    let whole = !name.is_empty();
    whole.then(|| (u32::from_be_bytes(*id), name, u32::from_be_bytes(*number)))
}

#[cfg(test)]
mod tests {
    use forebay_mem::Pool;
    use forebay_store::suite::TestClock;
    use forebay_store::{Etag, MemoryStore, VersionId};

    use super::*;
    use crate::{Config, Tier};

    #[tokio::test]
    async fn what_turned_in_memory_does_not_go_to_the_disk() {
        let clock = TestClock::default();
        let below = || {
            let clock = clock.clone();
            MemoryStore::new(Pool::new(64 << 20), move || clock.now())
        };
        let store = below();
        let config = NamespaceConfig {
            tenant: TENANT.to_owned(),
            ..NamespaceConfig::default()
        };
        let made = store.create_namespace("values", config);
        let namespace = made.await.expect("a name");
        let mut config = Config::new(1 << 20, Arc::new(|| 1));
        config.disk_bytes = 1 << 20;
        let tier = Tier::with_disk(Arc::new(store), config, None, below());
        let cache = tier.cache.as_ref().expect("on");
        let good = Piece::new(vec![Buf::from(vec![7; 200_000])]);
        for (key, piece) in [(b"a", good.with_damage_at(100_000)), (b"b", good)] {
            let meta = Meta {
                size: 200_000,
                etag: Etag::of_value(1, 200_000),
                modified: 1,
                version: VersionId::NULL,
                crc64nvme: 1,
                expires: None,
                attributes: Attributes::EMPTY,
            };
            cache.after(Fallout {
                spill: vec![Evicted {
                    place: cache.place_in(&namespace, key),
                    number: 0,
                    meta,
                    since: 1,
                    piece,
                }],
                discard: Vec::new(),
            });
        }
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        tending.abort();
        let metrics = tier.metrics().expect("on");
        assert_eq!((metrics.corrupt, metrics.spills), (1, 1));
    }
}
