//! Changes whose caller goes away, or is told that nobody knows, and that the store carries out all the same.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_store::suite::{Around, Detour, TestClock};
use forebay_store::{
    Address, Attributes, DeleteOptions, Deleted, ErrorKind, MemoryStore, Meta, NamespaceConfig,
    Result, Seal, Source, Space, Store, StoreError, StoreOptions, Stored, Upload, VersionId,
};
use forebay_tier::Tier;
use support::NS;
use tokio::sync::Semaphore;

const K: Address<'static> = Address {
    namespace: NS,
    space: Space::Objects,
    key: b"k",
};

/// A store with a queue: what was begun is done when a test says, whoever waits for it.
#[derive(Clone)]
struct Queued {
    turns: Arc<Semaphore>,
    /// Whether nobody is told how it ended.
    unknown: bool,
}

impl Queued {
    async fn carry_out<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let turns = self.turns.clone();
        let done = tokio::spawn(async move {
            turns.acquire().await.expect("never closed").forget();
            change.await
        });
        if self.unknown {
            return Err(StoreError::new(ErrorKind::OutcomeUnknown, "who knows"));
        }
        done.await.expect("no panic")
    }
}

impl Detour<MemoryStore> for Queued {
    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        self.carry_out(upload.commit(seal)).await
    }

    async fn compose(
        &self,
        store: &MemoryStore,
        target: Address<'_>,
        sources: &[Source<'_>],
        _consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        assert_eq!((target, sources.len()), (K, 1));
        let (store, source) = (store.clone(), sources[0].key.to_vec());
        let composed = async move {
            let sources = [Source::any(&source)];
            store.compose(K, &sources, &[], options, seal).await
        };
        self.carry_out(composed).await
    }

    async fn amend(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        _seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        assert_eq!(address, K);
        let store = store.clone();
        let amended = async move { store.amend(K, version, None, attributes).await };
        self.carry_out(amended).await
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        assert_eq!(address, K);
        let store = store.clone();
        self.carry_out(async move { store.delete(K, options).await })
            .await
    }
}

type Under = Tier<Around<MemoryStore, Queued>>;

async fn made(unknown: bool) -> (Under, MemoryStore, Arc<Semaphore>) {
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    support::put(&store, "k", &support::bytes(1, 10)).await;
    let part = Address::staging(NS, b"part");
    let mut upload = store.store(part, Default::default()).await.expect("room");
    upload.write(b"new".to_vec().into()).await.expect("room");
    upload.commit(Seal::default()).await.expect("committed");
    let turns = Arc::new(Semaphore::new(0));
    let below = Around {
        store: store.clone(),
        detour: Queued {
            turns: turns.clone(),
            unknown,
        },
    };
    let tier = Tier::new(Arc::new(below), support::config(64 << 20, &clock), None);
    (tier, store, turns)
}

fn color() -> Attributes {
    let attributes = Attributes::builder().set("color", "red").build();
    attributes.expect("small")
}

async fn change(tier: Under, how: &str) -> Result<()> {
    match how {
        "store" => {
            let mut upload = tier.store(K, StoreOptions::default()).await?;
            upload.write(b"new".to_vec().into()).await?;
            upload.commit(Seal::default()).await.map(drop)
        }
        "compose" => {
            let sources = [Source::any(b"part")];
            let options = StoreOptions::default();
            let composed = tier.compose(K, &sources, &[], options, Seal::default());
            composed.await.map(drop)
        }
        "amend" => tier.amend(K, None, None, color()).await.map(drop),
        _ => tier.delete(K, DeleteOptions::default()).await.map(drop),
    }
}

/// What a reader gets.
async fn seen(tier: &impl Store) -> Option<(Vec<u8>, Attributes)> {
    let object = tier.retrieve(K, None, Default::default()).await.ok()?;
    let attributes = object.meta.attributes.clone();
    Some((support::drain(object.body).await.expect("read"), attributes))
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_change_whose_caller_went_away_is_seen_when_it_happens() {
    for how in ["store", "compose", "amend", "delete"] {
        let (tier, store, turns) = made(false).await;
        let changing = tokio::spawn(change(tier.clone(), how));
        settle().await;
        changing.abort();
        settle().await;
        let before = seen(&tier).await;
        turns.add_permits(1);
        settle().await;
        let now = seen(&store).await;
        assert_ne!(now, before, "{how} happened");
        assert_eq!(seen(&tier).await, now, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_unknown_outcome_is_seen_when_it_happens() {
    for how in ["store", "compose", "amend", "delete"] {
        let (tier, store, turns) = made(true).await;
        let before = seen(&tier).await;
        let error = change(tier.clone(), how).await.expect_err("nobody knows");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(seen(&tier).await, before, "{how} has not happened");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(seen(&tier).await, before, "{how} has not happened");
        turns.add_permits(1);
        settle().await;
        let now = seen(&store).await;
        assert_ne!(now, before, "{how} happened");
        assert_eq!(seen(&tier).await, now, "{how}");
        // When it cannot happen any more the key is kept like any other.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let hits = tier.metrics().expect("on").memory_hits;
        assert_eq!(seen(&tier).await, now);
        assert_eq!(seen(&tier).await, now);
        let held = now.is_some();
        let hit = tier.metrics().expect("on").memory_hits > hits;
        assert_eq!(hit, held, "{how}");
    }
}
