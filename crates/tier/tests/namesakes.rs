//! A namespace that goes while a call waits, and another tenant's that gets its name: nothing of that one is read, changed or told.
#![forbid(unsafe_code)]

mod support;

use std::pin::pin;
use std::sync::Arc;

use forebay_mem::Region;
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, Attributes, ByteRange, Condition, DeleteOptions, Durability, ErrorKind, MemoryStore,
    NamespaceConfig, Result, Seal, Source, Space, Store, StoreOptions, Upload, VersionId,
};
use forebay_tier::Tier;
use futures_util::poll;
use support::{Below, NS, Probe};
use tokio::sync::Semaphore;

const K: Address<'static> = Address {
    namespace: NS,
    space: Space::Objects,
    key: b"k",
};

/// A namespace of the same name, another tenant's, with a value under the same key and a part of another.
async fn inherit(store: &MemoryStore) {
    let config = NamespaceConfig {
        tenant: "another".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = store.create_namespace(NS, config).await;
    made.expect("the name is free");
    support::put(store, "k", b"theirs").await;
    let part = Address::staging(NS, b"part");
    let mut upload = store.store(part, Default::default()).await.expect("room");
    upload.write(b"part".to_vec().into()).await.expect("room");
    upload.commit(Seal::default()).await.expect("committed");
}

async fn change_hands(store: &MemoryStore) {
    support::delete(store, "k").await;
    store.delete_namespace(NS).await.expect("it is empty");
    inherit(store).await;
}

/// What another tenant would be robbed of.
async fn is_untouched(store: &MemoryStore) -> bool {
    let part = store.stat(Address::staging(NS, b"part"), None).await;
    support::get(store, "k").await.is_ok_and(|k| k == b"theirs") && part.is_ok()
}

/// All calls that ask the store by name, one by one.
const CALLS: [&str; 10] = [
    "retrieve",
    "retrieve into",
    "retrieve a version",
    "exist",
    "stat",
    "stat a version",
    "store",
    "compose",
    "amend",
    "delete",
];

async fn call(tier: &Tier<Below>, what: &str) -> Result<()> {
    let region = Region::anonymous(4096).expect("memory");
    let target = region.slice(0..4096).expect("inside");
    let null = Some(VersionId::NULL);
    match what {
        "retrieve" => tier.retrieve(K, None, ByteRange::Full).await.map(drop),
        "retrieve into" => {
            let into = tier.retrieve_into(K, None, ByteRange::Full, target);
            into.await.map(drop)
        }
        "retrieve a version" => tier.retrieve(K, null, ByteRange::Full).await.map(drop),
        "exist" => tier.exist(&[K]).await.map(drop),
        "stat" => tier.stat(K, None).await.map(drop),
        "stat a version" => tier.stat(K, null).await.map(drop),
        "store" => {
            let options = StoreOptions {
                condition: Condition::IfPresent,
                ..StoreOptions::default()
            };
            let upload = tier.store(K, options).await?;
            upload.commit(Seal::default()).await.map(drop)
        }
        "compose" => {
            let sources = [Source::any(b"part")];
            let options = StoreOptions::default();
            let composed = tier.compose(K, &sources, &[], options, Seal::default());
            composed.await.map(drop)
        }
        "amend" => {
            let amended = tier.amend(K, None, None, Attributes::EMPTY);
            amended.await.map(drop)
        }
        _ => tier.delete(K, DeleteOptions::default()).await.map(drop),
    }
}

/// A tier over a store of a namespace that allows early answers.
async fn made(probe: &Probe) -> (Tier<Below>, MemoryStore) {
    let clock = TestClock::default();
    let config = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 100 },
        ..NamespaceConfig::default()
    };
    let store = support::with_namespace(&clock, config).await;
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 1 << 20;
    (support::tier(&store, probe, config), store)
}

#[tokio::test]
async fn what_waits_for_an_early_answer_to_land() {
    for what in CALLS {
        let probe = Probe {
            commits: Arc::new(Semaphore::new(0)),
            ..Probe::default()
        };
        let (tier, store) = made(&probe).await;
        let options = StoreOptions {
            size: Some(0),
            ..StoreOptions::default()
        };
        let upload = tier.store(K, options).await.expect("room");
        let seal = Seal {
            // Who reads it waits until it has landed, because its time is over.
            expires: Some(TestClock::default().now()),
            ..Seal::default()
        };
        upload.commit(seal).await.expect("acknowledged");
        let mut calling = pin!(call(&tier, what));
        assert!(poll!(calling.as_mut()).is_pending(), "{what}");
        store.delete_namespace(NS).await.expect("it is empty yet");
        inherit(&store).await;
        probe.commits.add_permits(100);
        let told = calling.await.expect_err(what);
        assert_eq!(told.kind(), ErrorKind::NoSuchNamespace, "{what}");
        assert!(is_untouched(&store).await, "{what}");
    }
}

#[tokio::test]
async fn a_change_that_has_not_begun() {
    for what in ["compose", "amend", "delete"] {
        let (tier, store) = made(&Probe::default()).await;
        support::put(&store, "k", &support::bytes(1, 5000)).await;
        let mut calling = pin!(call(&tier, what));
        assert!(poll!(calling.as_mut()).is_pending(), "{what}");
        change_hands(&store).await;
        let told = calling.await.expect_err(what);
        assert_eq!(told.kind(), ErrorKind::NoSuchNamespace, "{what}");
        assert!(is_untouched(&store).await, "{what}");
    }
}

#[tokio::test]
async fn what_waits_for_the_read_of_another() {
    for what in ["retrieve", "retrieve into"] {
        let probe = Probe {
            gate: Arc::new(Semaphore::new(0)),
            ..Probe::default()
        };
        let (tier, store) = made(&probe).await;
        support::put(&store, "k", &support::bytes(1, 5000)).await;
        let mut calling = pin!(call(&tier, what));
        {
            let first = pin!(call(&tier, "retrieve"));
            assert!(poll!(first).is_pending(), "it is read");
            assert!(poll!(calling.as_mut()).is_pending(), "{what}");
        }
        change_hands(&store).await;
        probe.gate.add_permits(100);
        let told = calling.await.expect_err(what);
        assert_eq!(told.kind(), ErrorKind::NoSuchNamespace, "{what}");
    }
}
