//! A store in memory over a far side in memory, and short words for using them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use forebay_mem::{Buf, Pool};
use forebay_store::suite::TestClock;
pub use forebay_store::suite::content;
use forebay_store::{
    Address, After, Attributes, Body, ByteRange, DeleteOptions, ListOptions, MemoryStore, Meta,
    NamespaceConfig, Object, Result, Seal, Space, Store, StoreOptions, Upload, VersionId,
    VersionItem, Versioning,
};
use forebay_tier::cold::{Bucket, Cold, Config, Mover, Policy, Recall, Rules};
use object_store::ObjectStore;
use tokio::runtime::Handle;

use crate::far::Far;

/// The far side in use, and every key it has is ours.
pub const HOME: &str = "tier/0011";
/// Values of both kinds of upload, and of many blocks.
pub const SIZES: [usize; 5] = [1, 5000, 65_536, 300_001, (9 << 20) + 17];

pub struct World {
    pub hot: Arc<MemoryStore>,
    pub far: Far,
    pub cold: Cold<MemoryStore>,
    pub clock: TestClock,
}

pub fn over<S: Store>(hot: Arc<S>, far: &Far, clock: &TestClock) -> Cold<S> {
    over_objects(hot, Arc::new(far.clone()), clock)
}

pub fn over_objects<S: Store>(
    hot: Arc<S>,
    objects: Arc<dyn ObjectStore>,
    clock: &TestClock,
) -> Cold<S> {
    one_of(None, 0, hot, objects, clock)
}

/// One process on a store; `shared` is the namespace in which it agrees with others.
pub fn one_of<S: Store>(
    shared: Option<&str>,
    grace_ms: u64,
    hot: Arc<S>,
    objects: Arc<dyn ObjectStore>,
    clock: &TestClock,
) -> Cold<S> {
    let config = Config {
        shared: shared.map(str::to_owned),
        grace_ms,
        ..config(clock)
    };
    Cold::new(hot, Bucket::new(objects, HOME), config)
}

/// Of a process that is alone and keeps nothing.
pub fn config(clock: &TestClock) -> Config {
    let told = clock.clone();
    Config {
        pool: Pool::new(64 << 20),
        clock: Arc::new(move || told.now()),
        runtime: Handle::current(),
        reads: None,
        shared: None,
        buffer_bytes: 64 << 20,
        grace_ms: 0,
    }
}

impl World {
    /// An empty one with a namespace `ns`, versioned or not.
    pub async fn new(versioning: Versioning) -> World {
        let clock = TestClock::default();
        let told = clock.clone();
        let hot = Arc::new(MemoryStore::new(Pool::new(64 << 20), move || told.now()));
        let config = NamespaceConfig {
            tenant: "acme".to_owned(),
            versioning,
            ..NamespaceConfig::default()
        };
        hot.create_namespace("ns", config).await.expect("namespace");
        let far = Far::at(&clock);
        let cold = over(hot.clone(), &far, &clock);
        World {
            hot,
            far,
            cold,
            clock,
        }
    }

    pub fn mover(&self) -> &Arc<Mover<MemoryStore>> {
        self.cold.mover().expect("a bucket")
    }

    /// What a process finds that starts now.
    pub fn restart(&mut self) {
        self.cold = over(self.hot.clone(), &self.far, &self.clock);
    }

    pub async fn policy(&self, policy: &Policy) {
        self.rules(&Rules::only(policy.clone())).await;
    }

    pub async fn rules(&self, rules: &Rules) {
        let info = self.hot.namespace("ns").expect("namespace");
        self.attributes(rules.keep(&info.config.attributes).expect("room"))
            .await;
    }

    pub async fn attributes(&self, attributes: Attributes) {
        let info = self.hot.namespace("ns").expect("namespace");
        let config = NamespaceConfig {
            attributes,
            ..info.config.clone()
        };
        let changed = self.hot.update_namespace("ns", None, config).await;
        changed.expect("attributes");
    }

    /// Nothing comes back by reading it.
    pub async fn never_back(&self) {
        let policy = Policy {
            larger_than: 0,
            recall: Recall::Never,
            ..Policy::default()
        };
        self.policy(&policy).await;
    }

    pub async fn put(&self, key: &str, bytes: &[u8]) -> Meta {
        let options = StoreOptions::default();
        let address = Address::object("ns", key.as_bytes());
        let mut upload = self.cold.store(address, options).await.expect("store");
        for piece in bytes.chunks(70_000) {
            upload
                .write(Buf::from(piece.to_vec()))
                .await
                .expect("write");
        }
        upload.commit(Seal::default()).await.expect("commit").meta
    }

    /// Stores a value and sends its bytes away.
    pub async fn put_away(&self, key: &str, bytes: &[u8]) -> Meta {
        let meta = self.put(key, bytes).await;
        let moved = self.mover().move_out(object(key), &meta).await;
        moved.expect("move");
        meta
    }

    pub async fn delete(&self, key: &str) {
        let deleted = self.cold.delete(object(key), DeleteOptions::default());
        deleted.await.expect("delete");
    }

    pub async fn is_cold(&self, key: &str) -> bool {
        let cold = self.mover().is_cold(object(key), None).await;
        cold.expect("there")
    }

    pub async fn read(&self, key: &str, range: ByteRange) -> Result<Vec<u8>> {
        drain(self.cold.retrieve(object(key), None, range).await?).await
    }

    pub async fn get(&self, key: &str) -> Vec<u8> {
        self.read(key, ByteRange::Full).await.expect("read")
    }

    pub fn gets(&self) -> usize {
        self.far.knobs.gets.load(SeqCst)
    }
}

/// What two sweeps delete, of which the first marks what is nobody's.
pub async fn swept_twice<S: Store>(mover: &Mover<S>) -> u64 {
    let first = mover.sweep().await.expect("sweep").deleted;
    first + mover.sweep().await.expect("sweep").deleted
}

pub fn object(key: &str) -> Address<'_> {
    Address::object("ns", key.as_bytes())
}

pub async fn drain<B: Body>(mut object: Object<B>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(buf) = object.body.next().await? {
        assert!(!buf.is_empty(), "a buffer holds bytes");
        bytes.extend_from_slice(&buf);
    }
    assert_eq!(bytes.len() as u64, object.range.end - object.range.start);
    Ok(bytes)
}

/// Every version of every value of a namespace.
pub async fn versions<S: Store>(store: &S, namespace: &str) -> Vec<(Bytes, Meta)> {
    let mut found = Vec::new();
    let mut last: Option<(Bytes, VersionId)> = None;
    loop {
        let options = ListOptions {
            namespace,
            space: Space::Objects,
            prefix: b"",
            delimiter: None,
            after: match &last {
                Some((key, version)) => After::Version(key, *version),
                None => After::Start,
            },
            limit: usize::MAX,
        };
        let Ok(page) = store.list_versions(options).await else {
            return found;
        };
        for item in &page.items {
            match item {
                VersionItem::Value { key, meta, .. } => {
                    found.push((key.clone(), meta.clone()));
                    last = Some((key.clone(), meta.version));
                }
                VersionItem::Marker { key, version, .. } => last = Some((key.clone(), *version)),
                VersionItem::Prefix(_) => {}
            }
        }
        if !page.more {
            return found;
        }
    }
}
