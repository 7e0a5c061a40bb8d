//! Hosts and namespace identifiers over the memory leaf: what is changed is kept, what is refused changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_control::api::NewHost;
use forebay_control::{Identities, Kind, NSID_MAX, SYSTEM_NAMESPACE, What};
use forebay_mem::Pool;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, DeleteOptions, Deleted, ErrorKind, Item, ListOptions, MemoryStore, NamespaceConfig,
    NamespaceInfo, Space, Store, StoreError,
};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fn new(nqn: &str, tenant: &str) -> NewHost {
    NewHost {
        nqn: nqn.to_owned(),
        tenant: tenant.to_owned(),
        chap_secret: None,
        tls_key: None,
    }
}

fn keyed(nqn: &str, tenant: &str, secret: &str, key: &str) -> NewHost {
    NewHost {
        chap_secret: Some(secret.to_owned()),
        tls_key: Some(key.to_owned()),
        ..new(nqn, tenant)
    }
}

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Pool::new(4 << 20), || 1))
}

async fn open(store: &Arc<MemoryStore>) -> Identities<MemoryStore> {
    let identities = Identities::open(store.clone(), Arc::new(|| 7)).await;
    let identities = identities.unwrap();
    identities.ensure_root(None).await.unwrap();
    identities
}

async fn namespace(store: &Arc<MemoryStore>, name: &str) -> Arc<NamespaceInfo> {
    let config = NamespaceConfig {
        tenant: "root".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace(name, config).await.unwrap()
}

#[tokio::test]
async fn hosts_are_kept_and_go_with_their_tenant() {
    let store = store();
    let identities = open(&store).await;
    identities.create_tenant("vision", "").await.unwrap();
    let host = identities
        .create_host(&keyed(HOST, "vision", SECRET, KEY))
        .await;
    let host = host.unwrap();
    assert!(!format!("{host:?}").contains("-1:"), "{host:?}");
    let again = identities.create_host(&new(HOST, "vision")).await;
    assert_eq!(again.unwrap_err().kind, Kind::Exists);
    let nobody = new("nqn.2026-01.com.example:a", "nobody");
    let nobody = identities.create_host(&nobody).await;
    assert_eq!(nobody.unwrap_err().kind, Kind::NotFound);
    let long = format!("nqn.2026-01.com.example:{}", "x".repeat(200));
    for nqn in [
        "",
        "nqn.short",
        "not.2026-01.com.example:a",
        "nqn.2026-01.com.example:a/b",
        &long,
    ] {
        let refused = identities.create_host(&new(nqn, "vision")).await;
        assert_eq!(refused.unwrap_err().kind, Kind::Invalid, "{nqn}");
    }
    for secret in ["", "DHHC-1:04:abcd:", "DHHC-1:00:short:", &SECRET[..20]] {
        let wrong = keyed("nqn.2026-01.com.example:b", "vision", secret, KEY);
        let refused = identities.create_host(&wrong).await;
        assert_eq!(refused.unwrap_err().kind, Kind::Invalid, "{secret}");
    }
    for key in ["", "NVMeTLSkey-1:01:short:", &KEY[..20], SECRET] {
        let wrong = keyed("nqn.2026-01.com.example:b", "vision", SECRET, key);
        let refused = identities.create_host(&wrong).await;
        assert_eq!(refused.unwrap_err().kind, Kind::Invalid, "{key}");
    }

    assert_eq!(open(&store).await.hosts(), [host]);
    let root = new("nqn.2026-01.com.example:r", "root");
    identities.create_host(&root).await.unwrap();
    identities.remove_tenant("vision").await.unwrap();
    let names: Vec<String> = identities.hosts().iter().map(|h| h.nqn.clone()).collect();
    assert_eq!(names, ["nqn.2026-01.com.example:r"]);
    identities.remove_host(&names[0]).await.unwrap();
    let gone = identities.remove_host(&names[0]).await;
    assert_eq!(gone.unwrap_err().kind, Kind::NotFound);
    assert!(open(&store).await.hosts().is_empty());
}

#[tokio::test]
async fn a_number_stays_with_what_has_it() {
    let store = store();
    let identities = open(&store).await;
    let (one, two) = (
        namespace(&store, "one").await,
        namespace(&store, "two").await,
    );
    let first = identities.publish(&one, None).await.unwrap();
    assert_eq!((first.nsid, first.uuid.len()), (1, 32));
    assert_eq!(identities.publish(&one, None).await.unwrap(), first);
    let block = identities.publish_block("disk", Some(7)).await.unwrap();
    assert_eq!(identities.publish_block("disk", None).await.unwrap(), block);
    for (nsid, holder) in [(7, "the export \"disk\""), (1, "the namespace \"one\"")] {
        let taken = identities.publish(&two, Some(nsid)).await.unwrap_err();
        assert_eq!(taken.kind, Kind::Exists);
        assert!(taken.message.ends_with(holder), "{taken}");
    }
    for nsid in [0, NSID_MAX + 1, u32::MAX] {
        let refused = identities.publish(&two, Some(nsid)).await;
        assert_eq!(refused.unwrap_err().kind, Kind::Invalid);
    }
    let second = identities.publish(&two, Some(5)).await.unwrap();
    assert_ne!(second.uuid, first.uuid);

    // Under another number it is another namespace to hosts.
    let moved = identities.publish(&two, Some(6)).await.unwrap();
    assert_ne!(moved.uuid, second.uuid);
    let subsystem = identities.subsystem_uuid().await.unwrap();
    let again = open(&store).await;
    assert_eq!(again.subsystem_uuid().await.unwrap(), subsystem);
    assert_eq!(again.published(), [first, moved, block]);
    assert_eq!(
        (again.nsid_of(&one), again.nsid_of(&two)),
        (Some(1), Some(6))
    );

    again.unpublish(&two).await.unwrap();
    again.unpublish(&two).await.unwrap();
    assert_eq!(open(&store).await.nsid_of(&two), None);
}

#[tokio::test]
async fn a_namespace_made_again_is_not_published() {
    let store = store();
    let identities = open(&store).await;
    let first = namespace(&store, "data").await;
    identities.publish(&first, Some(3)).await.unwrap();
    identities.unpublish_removed().await.unwrap();
    assert_eq!(identities.nsid_of(&first), Some(3));
    store.delete_namespace("data").await.unwrap();
    let second = namespace(&store, "data").await;
    assert_eq!(identities.nsid_of(&second), None);
    identities.unpublish_removed().await.unwrap();
    assert!(identities.published().is_empty() && open(&store).await.published().is_empty());
}

#[tokio::test]
async fn doors_follow_every_change() {
    let store = store();
    let identities = open(&store).await;
    let namespace = namespace(&store, "data").await;
    identities.publish(&namespace, None).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(parking_lot::Mutex::new((0, 0)));
    let (count, last) = (calls.clone(), seen.clone());
    identities.on_nvme_changed(move |hosts, published| {
        count.fetch_add(1, Relaxed);
        assert!(
            published
                .iter()
                .all(|one| matches!(one.what, What::KeyValue { .. }))
        );
        *last.lock() = (hosts.len(), published.len());
    });
    assert_eq!(*seen.lock(), (0, 1));
    identities.create_host(&new(HOST, "root")).await.unwrap();
    assert_eq!(*seen.lock(), (1, 1));
    identities.unpublish(&namespace).await.unwrap();
    assert_eq!(*seen.lock(), (1, 0));
    identities.remove_host(HOST).await.unwrap();
    assert_eq!((*seen.lock(), calls.load(Relaxed)), ((0, 0), 4));
}

#[tokio::test]
async fn an_export_can_be_forgotten() {
    let store = store();
    let identities = open(&store).await;
    let disk = identities.publish_block("disk", Some(2)).await.unwrap();
    let other = identities.publish_block("other", None).await.unwrap();
    identities.unpublish_block("disk").await.unwrap();
    identities.unpublish_block("disk").await.unwrap();
    assert_eq!(open(&store).await.published(), [other]);
    let cache = namespace(&store, "cache").await;
    identities.publish(&cache, Some(2)).await.unwrap();
    let again = identities.publish_block("disk", None).await.unwrap();
    assert!(again.nsid != 2 && again.uuid != disk.uuid, "{again:?}");
}

/// A store that deletes nothing: what is moved stays where it was, too, as where a gateway dies.
#[derive(Clone)]
struct Undying;

impl Detour<MemoryStore> for Undying {
    async fn delete(
        &self,
        _: &MemoryStore,
        _: Address<'_>,
        _: DeleteOptions,
    ) -> forebay_store::Result<Deleted> {
        Err(StoreError::new(ErrorKind::Io, "the disk is away"))
    }
}

/// A store with an export under 5 and 7.
async fn torn() -> Arc<MemoryStore> {
    let store = store();
    open(&store).await;
    let around = Around {
        store: MemoryStore::clone(&store),
        detour: Undying,
    };
    let dying = Identities::open(Arc::new(around), Arc::new(|| 7)).await;
    let dying = dying.unwrap();
    dying.publish_block("disk", Some(5)).await.unwrap();
    dying.publish_block("disk", Some(7)).await.unwrap_err();
    assert_eq!(numbers(&store).await, ["nsid/00000005", "nsid/00000007"]);
    store
}

/// The records of numbers.
async fn numbers(store: &MemoryStore) -> Vec<String> {
    let options = ListOptions {
        prefix: b"nsid/",
        ..ListOptions::of(SYSTEM_NAMESPACE, Space::Objects)
    };
    let page = store.list(options).await.unwrap();
    let names = page.items.iter().map(|item| match item {
        Item::Value(key, _) | Item::Prefix(key) => String::from_utf8_lossy(key).into_owned(),
    });
    names.collect()
}

#[tokio::test]
async fn what_was_moved_halfway_has_one_number() {
    let store = torn().await;
    assert_eq!(open(&store).await.published().len(), 1, "hosts see it once");
    for (nsid, record) in [
        (Some(7), "nsid/00000007"),
        (Some(5), "nsid/00000005"),
        (None, "nsid/00000005"),
    ] {
        let store = torn().await;
        let identities = open(&store).await;
        let disk = identities.publish_block("disk", nsid).await.unwrap();
        assert_eq!(disk.nsid, nsid.unwrap_or(5));
        assert_eq!(numbers(&store).await, [record]);
        assert_eq!(identities.published(), [disk]);
    }
    // Of its two numbers the one that it is not shown under is free to others.
    let other = torn().await;
    let identities = open(&other).await;
    let taken = identities.publish_block("other", Some(5)).await;
    assert_eq!(taken.unwrap_err().kind, Kind::Exists);
    identities.publish_block("other", Some(7)).await.unwrap();
    let disk = identities.publish_block("disk", None).await.unwrap();
    assert_eq!((disk.nsid, identities.published().len()), (5, 2));
    open(&store).await.unpublish_block("disk").await.unwrap();
    assert!(numbers(&store).await.is_empty());
}
