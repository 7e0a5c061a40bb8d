//! Values answered before the store has committed them: who waits for them, and for no others.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_store::suite::TestClock;
use forebay_store::{
    Address, ByteRange, Durability, ErrorKind, ListOptions, MemoryStore, NamespaceConfig, Quota,
    Seal, Space, Store, StoreOptions, Upload, VersionId, Versioning,
};
use forebay_tier::{Tier, Unlanded};
use support::{Below, NS, Probe, TENANT};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const RELAXED: Durability = Durability::Relaxed { within_ms: 100 };

/// A tier over a store whose commits wait until the probe lets them.
async fn made() -> (Tier<Below>, MemoryStore, Probe) {
    let clock = TestClock::default();
    let relaxed = NamespaceConfig {
        durability: RELAXED,
        ..NamespaceConfig::default()
    };
    let store = support::with_namespace(&clock, relaxed).await;
    let probe = Probe {
        commits: Arc::new(Semaphore::new(0)),
        ..Probe::default()
    };
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 1 << 20;
    (support::tier(&store, &probe, config), store, probe)
}

fn relaxed_no_more(durability: Durability, versioning: Versioning) -> NamespaceConfig {
    NamespaceConfig {
        tenant: TENANT.to_owned(),
        durability,
        versioning,
        ..NamespaceConfig::default()
    }
}

/// What waits for all that is pending in a namespace.
async fn ask(tier: Tier<Below>, what: &str) {
    match what {
        "list" => {
            let options = ListOptions {
                namespace: NS,
                space: Space::Objects,
                prefix: b"",
                delimiter: None,
                after: Default::default(),
                limit: 10,
            };
            let page = tier.list(options).await.expect("a list");
            assert_eq!(page.items.len(), 1, "what was acknowledged before");
        }
        "update" => {
            let config = relaxed_no_more(Durability::Sync, Versioning::Off);
            tier.update_namespace(NS, None, config)
                .await
                .expect("a change");
        }
        "delete" => {
            let refused = tier.delete_namespace(NS).await.expect_err("it has a value");
            assert_eq!(refused.kind(), ErrorKind::NamespaceNotEmpty);
        }
        _ => {
            let set = tier.set_tenant_quota(TENANT, Quota::default());
            set.await.expect("a quota");
        }
    }
}

#[tokio::test]
async fn what_is_stored_on_and_on_holds_nobody_up() {
    for what in ["list", "update", "delete", "quota"] {
        let (tier, store, probe) = made().await;
        support::put(&tier, "before", b"value").await;
        let mut asked = tokio::spawn(ask(tier.clone(), what));
        tokio::task::yield_now().await;
        assert!(!asked.is_finished(), "{what} waits for what was before");
        support::put(&tier, "meanwhile", b"value").await;
        probe.commits.add_permits(1);
        let ended = tokio::time::timeout(Duration::from_secs(5), &mut asked).await;
        ended.expect(what).expect("no panic");
        assert!(support::get(&store, "before").await.is_ok());
        assert!(support::get(&store, "meanwhile").await.is_err());
    }
}

/// What a process does at its end, begun.
async fn landing(tier: &Tier<Below>) -> JoinHandle<()> {
    let tier = tier.clone();
    let landing = tokio::spawn(async move { tier.land().await });
    tokio::task::yield_now().await;
    landing
}

#[tokio::test]
async fn nothing_is_acknowledged_early_once_all_is_to_land() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "before", b"value").await;
    let landing = landing(&tier).await;
    let late = tokio::spawn({
        let tier = tier.clone();
        async move { support::put(&tier, "late", b"another").await }
    });
    tokio::task::yield_now().await;
    let before = Unlanded {
        values: 1,
        bytes: 5,
    };
    assert_eq!(tier.unlanded(), before);
    assert!(!landing.is_finished());

    probe.commits.add_permits(1);
    landing.await.expect("no panic");
    assert_eq!(tier.unlanded(), Unlanded::default());
    assert!(support::get(&store, "before").await.is_ok());
    assert!(!late.is_finished(), "it has not landed yet");

    probe.commits.add_permits(1);
    late.await.expect("no panic");
    assert!(support::get(&store, "late").await.is_ok());
}

#[tokio::test]
async fn what_the_store_refuses_at_the_end_is_told() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "k", b"value").await;
    let landing = landing(&tier).await;
    store.delete_namespace(NS).await.expect("it is empty yet");
    probe.commits.add_permits(1);
    landing.await.expect("no panic");
    let lost = Unlanded {
        values: 1,
        bytes: 5,
    };
    assert_eq!(tier.unlanded(), lost);
}

#[tokio::test]
async fn a_namespace_that_got_the_name_meanwhile_is_not_what_was_meant() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "k", b"value").await;
    let removing = tokio::spawn({
        let tier = tier.clone();
        async move { tier.delete_namespace(NS).await }
    });
    tokio::task::yield_now().await;
    store.delete_namespace(NS).await.expect("it is empty yet");
    let config = NamespaceConfig {
        tenant: "another".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = store.create_namespace(NS, config).await;
    let made = made.expect("the name is free");
    probe.commits.add_permits(1);
    let removed = removing.await.expect("no panic");
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::NoSuchNamespace);
    assert_eq!(store.namespace(NS).expect("it stays").id, made.id);
}

#[tokio::test]
async fn the_version_that_is_none_is_waited_for() {
    let (tier, _, probe) = made().await;
    let value = support::bytes(1, 5000);
    support::put(&tier, "k", &value).await;
    let read = tokio::spawn({
        let tier = tier.clone();
        async move {
            let address = Address::object(NS, b"k");
            let version = Some(VersionId::NULL);
            let meta = tier.stat(address, version).await?;
            let object = tier.retrieve(address, version, ByteRange::Full).await?;
            assert_eq!(object.meta, meta);
            support::drain(object.body).await
        }
    });
    tokio::task::yield_now().await;
    probe.commits.add_permits(1);
    let read = read.await.expect("no panic");
    assert!(read.expect("it was acknowledged") == value);
}

#[tokio::test]
async fn an_upload_heeds_what_its_namespace_has_become() {
    for (durability, versioning) in [
        (Durability::Sync, Versioning::Off),
        (RELAXED, Versioning::Enabled),
    ] {
        let (tier, store, probe) = made().await;
        let address = Address::object(NS, b"k");
        let options = StoreOptions {
            size: Some(5),
            ..StoreOptions::default()
        };
        let mut upload = tier.store(address, options).await.expect("room");
        upload.write(b"value".to_vec().into()).await.expect("room");
        let config = relaxed_no_more(durability, versioning);
        tier.update_namespace(NS, None, config)
            .await
            .expect("a change");
        probe.commits.add_permits(1);
        let stored = upload.commit(Seal::default()).await.expect("committed");
        let found = store.stat(address, None).await.expect("it is there");
        assert_eq!(found, stored.meta);
        assert_eq!(
            found.version == VersionId::NULL,
            versioning == Versioning::Off
        );
    }
}
