//! A store below that counts what it is asked, waits where a test says, and tells of changes when a test says.
#![expect(dead_code, reason = "each test uses its part")]

#[path = "../../../mem/tests/alone/mod.rs"]
pub mod alone;

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_mem::{Pool, RegionSlice};
pub use forebay_store::suite::content as bytes;
use forebay_store::suite::{Around, Detour, TestClock};
use forebay_store::{
    Address, Attributes, Body, ByteRange, DeleteOptions, MemoryStore, Meta, NamespaceConfig,
    Notice, Object, Result, Seal, Store, StoreOptions, Stored, Upload, VersionId, Watch,
};
use forebay_tier::{Config, Tier};
use tokio::sync::{Mutex, Semaphore, mpsc};

pub const NS: &str = "values";
pub const TENANT: &str = "acme";

/// The store below.
pub type Below = Around<MemoryStore, Probe>;

/// What it was asked, and when it answers.
#[derive(Clone)]
pub struct Probe {
    pub retrieves: Arc<AtomicU64>,
    /// Values that it placed in memory of the caller's.
    pub placed: Arc<AtomicU64>,
    /// Bytes that its bodies gave out.
    pub bytes: Arc<AtomicU64>,
    /// A retrieve takes one of these for itself.
    pub gate: Arc<Semaphore>,
    /// A commit likewise, in the order in which they come.
    pub commits: Arc<Semaphore>,
    pub wire: Arc<Mutex<Option<mpsc::UnboundedReceiver<Notice>>>>,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe {
            retrieves: Arc::default(),
            placed: Arc::default(),
            bytes: Arc::default(),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            commits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            wire: Arc::default(),
        }
    }
}

impl Probe {
    /// One that tells of changes: what is sent arrives.
    pub fn with_wire() -> (Probe, mpsc::UnboundedSender<Notice>) {
        let (send, receive) = mpsc::unbounded_channel();
        let probe = Probe {
            wire: Arc::new(Mutex::new(Some(receive))),
            ..Probe::default()
        };
        (probe, send)
    }

    pub fn retrieves(&self) -> u64 {
        self.retrieves.load(SeqCst)
    }
}

struct Wire(mpsc::UnboundedReceiver<Notice>);

impl Watch for Wire {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Notice>> + Send + '_>> {
        Box::pin(self.0.recv())
    }
}

impl Detour<MemoryStore> for Probe {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<<MemoryStore as Store>::Body>> {
        self.retrieves.fetch_add(1, SeqCst);
        let found = store.retrieve(address, version, range).await;
        // The answer is known; it is on its way.
        self.gate.acquire().await.expect("never closed").forget();
        found
    }

    async fn retrieve_into(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        self.placed.fetch_add(1, SeqCst);
        store.retrieve_into(address, version, range, target).await
    }

    async fn next(
        &self,
        body: &mut <MemoryStore as Store>::Body,
        _given: usize,
    ) -> Result<Option<forebay_mem::Buf>> {
        let next = body.next().await?;
        if let Some(buf) = &next {
            self.bytes.fetch_add(buf.len() as u64, SeqCst);
        }
        // As a device would: the bytes come later.
        tokio::task::yield_now().await;
        Ok(next)
    }

    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        self.commits.acquire().await.expect("never closed").forget();
        upload.commit(seal).await
    }

    fn changes(&self, _store: &MemoryStore) -> Option<Box<dyn Watch>> {
        let receive = self.wire.try_lock().ok()?.take()?;
        Some(Box::new(Wire(receive)))
    }
}

pub fn memory(clock: &TestClock) -> MemoryStore {
    let clock = clock.clone();
    MemoryStore::new(Pool::new(256 << 20), move || clock.now())
}

pub fn config(memory_bytes: u64, clock: &TestClock) -> Config {
    let clock = clock.clone();
    Config::new(memory_bytes, Arc::new(move || clock.now()))
}

/// A tier over `store` as `probe` sees it.
pub fn tier(store: &MemoryStore, probe: &Probe, config: Config) -> Tier<Below> {
    let below = Around {
        store: store.clone(),
        detour: probe.clone(),
    };
    Tier::new(Arc::new(below), config, None)
}

/// A store with one namespace.
pub async fn with_namespace(clock: &TestClock, config: NamespaceConfig) -> MemoryStore {
    let store = memory(clock);
    let config = NamespaceConfig {
        tenant: TENANT.to_owned(),
        ..config
    };
    store.create_namespace(NS, config).await.expect("a name");
    store
}

/// Attributes of so many bytes, about.
pub fn long_attributes(bytes: usize) -> Attributes {
    let long = vec![b'a'; bytes];
    Attributes::builder()
        .set("long", &long)
        .build()
        .expect("not too many")
}

/// A value of no bytes with these attributes.
pub async fn put_with<S: Store>(store: &S, key: &str, attributes: &Attributes) -> Stored {
    let address = Address::object(NS, key.as_bytes());
    let options = StoreOptions {
        size: Some(0),
        ..StoreOptions::default()
    };
    let upload = store.store(address, options).await.expect("room");
    let seal = Seal {
        attributes: attributes.clone(),
        ..Seal::default()
    };
    upload.commit(seal).await.expect("committed")
}

pub async fn put<S: Store>(store: &S, key: &str, bytes: &[u8]) -> Stored {
    let address = Address::object(NS, key.as_bytes());
    let options = StoreOptions {
        size: Some(bytes.len() as u64),
        ..StoreOptions::default()
    };
    let mut upload = store.store(address, options).await.expect("room");
    for chunk in bytes.chunks(1 << 20) {
        let buf = chunk.to_vec().into();
        upload.write(buf).await.expect("room");
    }
    upload.commit(Seal::default()).await.expect("committed")
}

pub async fn get<S: Store>(store: &S, key: &str) -> Result<Vec<u8>> {
    get_range(store, key, ByteRange::Full).await
}

pub async fn get_range<S: Store>(store: &S, key: &str, range: ByteRange) -> Result<Vec<u8>> {
    let address = Address::object(NS, key.as_bytes());
    let object = store.retrieve(address, None, range).await?;
    drain(object.body).await
}

pub async fn drain(mut body: impl Body) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(buf) = body.next().await? {
        bytes.extend_from_slice(&buf);
    }
    Ok(bytes)
}

pub async fn delete<S: Store>(store: &S, key: &str) {
    let address = Address::object(NS, key.as_bytes());
    let deleted = store.delete(address, DeleteOptions::default()).await;
    deleted.expect("deleted");
}

/// Notices that were sent and have not arrived.
pub type OnTheWay = VecDeque<Notice>;
