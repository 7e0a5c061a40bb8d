//! Which modules are allowed: names, places, what stays over a restart, what goes with what.

use std::sync::Arc;
use std::time::Duration;

use forebay_control::{AllowedModule, Identities, Kind, Leave, SYSTEM_NAMESPACE};
use forebay_mem::{Buf, Pool};
use forebay_store::{
    Address, DeleteOptions, MemoryStore, NamespaceConfig, Seal, Store, StoreOptions, Upload,
};
use parking_lot::Mutex;
use tokio::time::timeout;

type Known = Identities<MemoryStore>;

async fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Pool::new(16 << 20), || 1))
}

async fn open(store: &Arc<MemoryStore>) -> Known {
    let identities = Identities::open(store.clone(), Arc::new(|| 7))
        .await
        .unwrap();
    for tenant in ["alice", "bob"] {
        // The second time it is there.
        let _ = identities.create_tenant(tenant, "").await;
        let config = NamespaceConfig {
            tenant: tenant.to_owned(),
            ..NamespaceConfig::default()
        };
        let _ = store
            .create_namespace(&format!("of-{tenant}"), config)
            .await;
    }
    identities
}

fn leave(tenant: &str, namespace: Option<&str>, name: Option<&str>, number: Option<u32>) -> Leave {
    Leave {
        tenant: tenant.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        number,
        function: None,
    }
}

async fn kind(identities: &Known, leave: Leave, wasm: &[u8]) -> Kind {
    identities
        .allow_module(leave, wasm.to_vec())
        .await
        .unwrap_err()
        .kind
}

async fn put(store: &MemoryStore, key: &str, bytes: Vec<u8>) {
    let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
    let stored = store.store(address, StoreOptions::default());
    let mut upload = stored.await.unwrap();
    upload.write(Buf::from(bytes)).await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
}

async fn has_bytes(store: &MemoryStore, key: &str) -> bool {
    store
        .stat(Address::object(SYSTEM_NAMESPACE, key.as_bytes()), None)
        .await
        .is_ok()
}

#[tokio::test]
async fn what_is_allowed_is_kept_and_told() {
    let store = store().await;
    let identities = open(&store).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = told.clone();
    identities.on_modules_changed(move |all| hears.lock().push(all.len()));
    let long = vec![1; 3 << 20];
    let one = identities
        .allow_module(
            leave("alice", Some("of-alice"), Some("count"), Some(1)),
            long.clone(),
        )
        .await
        .unwrap();
    assert_eq!((one.size, one.created), (3 << 20, 7));
    identities
        .allow_module(leave("alice", None, None, None), b"two".to_vec())
        .await
        .unwrap();
    // The same again is one.
    identities
        .allow_module(leave("alice", None, Some("other"), None), b"two".to_vec())
        .await
        .unwrap();
    assert_eq!(*told.lock(), [0, 1, 2, 2]);
    let all = identities.modules();
    assert_eq!(all.len(), 2);
    let reopened = open(&store).await;
    assert_eq!(reopened.modules(), all);
    assert!(has_bytes(&store, &one.key()).await);
}

#[tokio::test]
async fn names_and_numbers_are_taken_once_in_a_place() {
    let store = store().await;
    let identities = open(&store).await;
    let allowed = leave("alice", None, Some("count"), Some(1));
    identities
        .allow_module(allowed, b"one".to_vec())
        .await
        .unwrap();
    for taken in [
        leave("alice", None, Some("count"), None),
        leave("alice", None, None, Some(1)),
    ] {
        assert_eq!(kind(&identities, taken, b"two").await, Kind::Exists);
    }
    for elsewhere in [
        leave("alice", Some("of-alice"), Some("count"), Some(1)),
        leave("bob", None, Some("count"), Some(1)),
    ] {
        identities
            .allow_module(elsewhere, b"two".to_vec())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_module_has_one_number_in_a_place() {
    let store = store().await;
    let identities = open(&store).await;
    let allow = async |number, name| {
        let leave = leave("alice", None, Some(name), number);
        identities.allow_module(leave, b"one".to_vec()).await
    };
    allow(None, "count").await.unwrap();
    allow(Some(1), "count").await.unwrap();
    let refused = allow(Some(2), "count").await.unwrap_err();
    assert_eq!(refused.kind, Kind::Exists);
    assert!(refused.message.contains("the number 1"), "{refused:?}");
    let numbers = || {
        let all = identities.modules();
        let numbers = all.iter().map(|module| module.number);
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(numbers(), [Some(1)]);
    allow(Some(1), "renamed").await.unwrap();
    // Who names none leaves it as it is.
    let kept = allow(None, "renamed").await.unwrap();
    assert_eq!((kept.number, numbers()), (Some(1), vec![Some(1)]));
    let elsewhere = leave("alice", Some("of-alice"), None, Some(2));
    identities
        .allow_module(elsewhere, b"one".to_vec())
        .await
        .unwrap();
    assert_eq!(numbers(), [Some(1), Some(2)]);
    identities
        .forbid_module("alice", None, "renamed")
        .await
        .unwrap();
    allow(Some(2), "count").await.unwrap();
}

#[tokio::test]
async fn leaves_have_a_most_and_each_can_be_changed() {
    const MOST: usize = 10_000;
    let store = store().await;
    let identities = open(&store).await;
    let allow = async |identities: &Known, wasm: &[u8], name| {
        let leave = leave("alice", None, Some(name), None);
        let allowed = identities.allow_module(leave, wasm.to_vec());
        allowed.await.map_err(|refused| refused.kind)
    };
    let first = allow(&identities, b"first", "first").await.unwrap();
    for at in 1..MOST {
        let other = AllowedModule {
            sha256: format!("{at:064x}"),
            name: None,
            ..AllowedModule::clone(&first)
        };
        let key = format!("module/alice//{}", other.sha256);
        put(&store, &key, serde_json::to_vec(&other).unwrap()).await;
    }
    let identities = open(&store).await;
    assert_eq!(identities.modules().len(), MOST);
    let more = allow(&identities, b"more", "more").await;
    assert_eq!(more.unwrap_err(), Kind::Limit);
    let changed = allow(&identities, b"first", "renamed").await.unwrap();
    assert_eq!(changed.name.as_deref(), Some("renamed"));
}

#[tokio::test]
async fn what_is_wrong_is_refused() {
    let store = store().await;
    let identities = open(&store).await;
    let digest = "a".repeat(64);
    for (wrong, expected) in [
        (leave("nobody", None, None, None), Kind::NotFound),
        (leave("alice", Some("none"), None, None), Kind::NotFound),
        (leave("alice", Some("of-bob"), None, None), Kind::NotFound),
        (
            leave("alice", Some(SYSTEM_NAMESPACE), None, None),
            Kind::NotFound,
        ),
        (leave("alice", None, Some("No"), None), Kind::Invalid),
        (leave("alice", None, Some(""), None), Kind::Invalid),
        (leave("alice", None, Some(&digest), None), Kind::Invalid),
    ] {
        assert_eq!(kind(&identities, wrong, b"one").await, expected);
    }
    let long = Leave {
        function: Some("f".repeat(256)),
        ..leave("alice", None, None, None)
    };
    assert_eq!(kind(&identities, long, b"one").await, Kind::Invalid);
    let too_long = vec![0; forebay_control::MODULE_BYTES_MAX + 1];
    assert_eq!(
        kind(&identities, leave("alice", None, None, None), &too_long).await,
        Kind::Invalid
    );
    assert!(identities.modules().is_empty());
}

#[tokio::test]
async fn bytes_go_with_the_last_leave() {
    let store = store().await;
    let identities = open(&store).await;
    let here = leave("alice", Some("of-alice"), Some("count"), None);
    let one = identities
        .allow_module(here, b"one".to_vec())
        .await
        .unwrap();
    let there = leave("bob", None, None, None);
    identities
        .allow_module(there, b"one".to_vec())
        .await
        .unwrap();

    let gone = identities.forbid_module("alice", None, "count").await;
    assert_eq!(gone.unwrap_err().kind, Kind::NotFound);
    let gone = identities.forbid_module("bob", None, "count").await;
    assert_eq!(gone.unwrap_err().kind, Kind::NotFound);
    identities
        .forbid_module("alice", Some("of-alice"), "count")
        .await
        .unwrap();
    assert!(has_bytes(&store, &one.key()).await);
    let which = format!("sha256:{}", one.sha256.to_uppercase());
    identities.forbid_module("bob", None, &which).await.unwrap();
    assert!(!has_bytes(&store, &one.key()).await);
    assert!(open(&store).await.modules().is_empty());
}

#[tokio::test]
async fn bytes_that_are_missing_come_back_with_the_next_leave() {
    let store = store().await;
    let identities = open(&store).await;
    let allow = || {
        let leave = leave("alice", None, None, None);
        identities.allow_module(leave, b"module".to_vec())
    };
    let key = allow().await.unwrap().key();
    let bytes = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
    let deleted = store.delete(bytes, DeleteOptions::default());
    deleted.await.unwrap();
    allow().await.unwrap();
    assert!(has_bytes(&store, &key).await);
}

#[tokio::test]
async fn a_tenants_modules_go_with_it() {
    let store = store().await;
    let identities = open(&store).await;
    let one = identities
        .allow_module(leave("bob", None, None, None), b"one".to_vec())
        .await
        .unwrap();
    store.delete_namespace("of-bob").await.unwrap();
    identities.remove_tenant("bob").await.unwrap();
    assert!(identities.modules().is_empty());
    assert!(!has_bytes(&store, &one.key()).await);
}

/// By a door that knows nothing of leaves.
#[tokio::test(start_paused = true)]
async fn leaves_go_with_a_namespace_that_is_removed() {
    let store = store().await;
    let identities = open(&store).await;
    let allow = async |leave| {
        let allowed = identities.allow_module(leave, b"one".to_vec());
        allowed.await.unwrap()
    };
    let kept = allow(leave("alice", Some("of-alice"), None, None)).await;
    allow(leave("bob", Some("of-bob"), None, None)).await;
    // What is told here is what counts towards the most there may be.
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = told.clone();
    identities.on_modules_changed(move |all| *hears.lock() = all.to_vec());
    store.delete_namespace("of-bob").await.unwrap();
    assert_eq!(told.lock().len(), 2);
    let followed = timeout(Duration::from_secs(60), identities.follow()).await;
    assert!(followed.is_err(), "it ends never");
    assert_eq!(*told.lock(), std::slice::from_ref(&kept));
    let record = format!("module/bob/of-bob/{}", kept.sha256);
    let record = Address::object(SYSTEM_NAMESPACE, record.as_bytes());
    assert!(store.stat(record, None).await.is_err());
    assert!(has_bytes(&store, &kept.key()).await);
    store.delete_namespace("of-alice").await.unwrap();
    let followed = timeout(Duration::from_secs(60), identities.follow()).await;
    assert!(followed.is_err(), "it ends never");
    assert!(told.lock().is_empty() && !has_bytes(&store, &kept.key()).await);
}

#[tokio::test]
async fn what_a_change_left_behind_goes_when_the_store_is_opened() {
    let store = store().await;
    let identities = open(&store).await;
    let allow = async |leave, wasm: &[u8]| {
        let allowed = identities.allow_module(leave, wasm.to_vec());
        allowed.await.unwrap()
    };
    let kept = allow(leave("alice", Some("of-alice"), None, None), b"kept").await;
    let gone = allow(leave("bob", Some("of-bob"), None, None), b"gone").await;
    store.delete_namespace("of-bob").await.unwrap();
    let unnamed = format!("module-bytes/{}", "a".repeat(64));
    put(&store, &unnamed, b"of no leave".to_vec()).await;
    let reopened = open(&store).await;
    assert_eq!(reopened.modules(), std::slice::from_ref(&kept));
    assert!(has_bytes(&store, &kept.key()).await);
    assert!(!has_bytes(&store, &gone.key()).await);
    assert!(!has_bytes(&store, &unnamed).await);
}
