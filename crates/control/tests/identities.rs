//! Tenants and keys over the memory leaf: what is changed is kept, what is refused changes nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_control::api::NewHost;
use forebay_control::{Identities, Kind, Leave, ROOT_TENANT, SYSTEM_NAMESPACE};
use forebay_mem::Pool;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, DeleteOptions, Deleted, ErrorKind, ListOptions, ListPage, MemoryStore,
    NamespaceConfig, Quota, Store, StoreError,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Pool::new(4 << 20), || 1))
}

async fn open(store: &Arc<MemoryStore>) -> Identities<MemoryStore> {
    let ticks = AtomicU64::new(0);
    let clock = Arc::new(move || ticks.fetch_add(1, Relaxed));
    Identities::open(store.clone(), clock).await.unwrap()
}

#[tokio::test]
async fn the_root_tenant_has_a_key_and_keeps_it() {
    let store = store();
    let first = open(&store).await.ensure_root(None).await.unwrap();
    assert_eq!((first.id.len(), first.secret.len()), (20, 40));
    assert_eq!(first.tenant, ROOT_TENANT);
    let again = open(&store).await;
    assert_eq!(again.ensure_root(None).await.unwrap(), first);
    assert_eq!(again.find(&first.id), Some(first.clone()));

    let given = again
        .ensure_root(Some(("GIVEN", "given-secret")))
        .await
        .unwrap();
    assert_eq!(given.id, "GIVEN");
    again
        .ensure_root(Some(("GIVEN", "other-secret")))
        .await
        .unwrap();
    assert_eq!(
        open(&store).await.find("GIVEN").unwrap().secret,
        "other-secret"
    );
    assert_eq!(open(&store).await.keys_of(ROOT_TENANT).len(), 2);
}

#[tokio::test]
async fn many_tenants_and_keys_are_read_again() {
    let store = store();
    let identities = open(&store).await;
    for tenant in 0..60 {
        let name = format!("t{tenant:02}");
        identities.create_tenant(&name, "").await.unwrap();
        for _ in 0..20 {
            identities.create_key(&name, None).await.unwrap();
        }
    }
    let again = open(&store).await;
    assert_eq!(again.tenants(), identities.tenants());
    // More keys than a page of a list.
    for tenant in again.tenants() {
        let mut keys = again.keys_of(&tenant.name);
        let mut before = identities.keys_of(&tenant.name);
        keys.sort_by(|a, b| a.id.cmp(&b.id));
        before.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(keys, before);
        assert_eq!(keys.len(), 20);
    }
}

#[tokio::test]
async fn refusals_change_nothing() {
    let store = store();
    let identities = open(&store).await;
    identities.ensure_root(None).await.unwrap();
    identities.create_tenant("a", "A").await.unwrap();
    let key = identities
        .create_key("a", Some(("KEY", "secret-secret")))
        .await
        .unwrap();
    let kind = |result: forebay_control::Result<_>| result.map(|_: Arc<_>| ()).unwrap_err().kind;
    for name in ["", ".forebay", "A", "a/b", "a b", &"a".repeat(64), "\u{e4}"] {
        assert_eq!(
            kind(identities.create_tenant(name, "").await),
            Kind::Invalid,
            "{name:?}"
        );
    }
    let long = "x".repeat(257);
    assert_eq!(
        kind(identities.create_tenant("b", &long).await),
        Kind::Invalid
    );
    assert_eq!(kind(identities.create_tenant("a", "").await), Kind::Exists);
    for pair in [
        ("KEY", "secret-secret"),
        ("a/b", "secret-secret"),
        ("ab", "secret-secret"),
        ("abc", "short"),
        ("abc", "with a space"),
    ] {
        let refused = identities
            .create_key("a", Some(pair))
            .await
            .unwrap_err()
            .kind;
        assert!(matches!(refused, Kind::Exists | Kind::Invalid), "{pair:?}");
    }
    assert_eq!(
        identities.create_key("b", None).await.unwrap_err().kind,
        Kind::NotFound
    );
    // Another tenant's key is not taken over by whoever starts the server.
    let taken = identities.ensure_root(Some(("KEY", "secret-other"))).await;
    assert_eq!(taken.unwrap_err().kind, Kind::Denied);
    assert_eq!(identities.find("KEY"), Some(key.clone()));

    let config = NamespaceConfig {
        tenant: "a".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace("owned", config).await.unwrap();
    assert_eq!(
        identities.remove_tenant("a").await.unwrap_err().kind,
        Kind::NotEmpty
    );
    assert_eq!(identities.find("KEY"), Some(key));
    store.delete_namespace("owned").await.unwrap();
    identities.remove_tenant("a").await.unwrap();
    assert_eq!(identities.find("KEY"), None);
    let again = open(&store).await;
    assert_eq!(again.tenants().len(), 1);
    assert_eq!(again.find("KEY"), None);
    assert_eq!(
        again.remove_tenant("a").await.unwrap_err().kind,
        Kind::NotFound
    );
    assert_eq!(
        again.remove_tenant(ROOT_TENANT).await.unwrap_err().kind,
        Kind::Denied
    );
}

#[tokio::test]
async fn what_another_gateway_changed_is_taken_in() {
    let store = store();
    let (one, two) = (open(&store).await, open(&store).await);
    let heard = Arc::new(Mutex::new(Vec::<Vec<String>>::new()));
    let hearing = heard.clone();
    two.on_keys_changed(move |keys| {
        hearing
            .lock()
            .push(keys.iter().map(|key| key.id.clone()).collect());
    });
    one.create_tenant("a", "").await.unwrap();
    let key = one.create_key("a", Some(("ONE", "secret-secret")));
    let key = key.await.unwrap();
    assert_eq!(
        two.create_tenant("a", "").await.unwrap_err().kind,
        Kind::Exists
    );
    two.catch_up().await.unwrap();
    assert_eq!(two.find("ONE"), Some(key));
    assert_eq!(two.tenant("a").unwrap().display_name, "a");
    two.catch_up().await.unwrap();
    one.remove_key("ONE").await.unwrap();
    two.catch_up().await.unwrap();
    assert_eq!(two.find("ONE"), None);
    let each = [vec![], vec!["ONE".to_owned()], vec![]];
    assert_eq!(*heard.lock(), each, "told once for each change");
}

/// Counts lists.
#[derive(Clone, Default)]
struct Lists(Arc<AtomicU64>);

impl Detour<MemoryStore> for Lists {
    async fn list(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> forebay_store::Result<ListPage> {
        self.0.fetch_add(1, Relaxed);
        store.list(options).await
    }
}

#[tokio::test]
async fn a_change_elsewhere_costs_as_many_lists_as_none() {
    let (store, lists) = (store(), Lists::default());
    let one = open(&store).await;
    let around = Around {
        store: MemoryStore::clone(&store),
        detour: lists.clone(),
    };
    let two = Identities::open(Arc::new(around), Arc::new(|| 1)).await;
    let two = two.unwrap();
    let listed = async || {
        let before = lists.0.load(Relaxed);
        two.catch_up().await.unwrap();
        lists.0.load(Relaxed) - before
    };
    let looks = listed().await;
    one.create_tenant("a", "").await.unwrap();
    one.create_key("a", Some(("ONE", "secret-secret")))
        .await
        .unwrap();
    assert_eq!(listed().await, looks);
    assert!(two.find("ONE").is_some());
}

/// What becomes of deletes, one after the other; those that follow are as they are.
#[derive(Clone, Default)]
struct Deletes(Arc<Mutex<VecDeque<Delete>>>);

enum Delete {
    Passes,
    Fails,
    /// For ever.
    Waits(oneshot::Sender<()>),
    /// After a request that was under way has made a namespace for tenant `a`.
    Makes(&'static str),
    /// After another gateway has made things for tenant `a`.
    Equips,
}

/// A key, a host and a leave for tenant `a`, made by another gateway.
async fn equip(store: &Arc<MemoryStore>) {
    let other = open(store).await;
    let key = other.create_key("a", Some(("LATE", "secret-secret")));
    key.await.unwrap();
    let host = NewHost {
        nqn: "nqn.2026-01.com.example:late".to_owned(),
        tenant: "a".to_owned(),
        chap_secret: None,
        tls_key: None,
    };
    other.create_host(&host).await.unwrap();
    let leave = Leave {
        tenant: "a".to_owned(),
        ..Leave::default()
    };
    other.allow_module(leave, b"late".to_vec()).await.unwrap();
}

impl Detour<MemoryStore> for Deletes {
    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> forebay_store::Result<Deleted> {
        let next = self.0.lock().pop_front();
        match next {
            None | Some(Delete::Passes) => store.delete(address, options).await,
            Some(Delete::Makes(name)) => {
                let config = NamespaceConfig {
                    tenant: "a".to_owned(),
                    ..NamespaceConfig::default()
                };
                store.create_namespace(name, config).await?;
                store.delete(address, options).await
            }
            Some(Delete::Equips) => {
                equip(&Arc::new(store.clone())).await;
                store.delete(address, options).await
            }
            Some(Delete::Fails) => Err(StoreError::new(ErrorKind::Io, "the disk is away")),
            Some(Delete::Waits(reached)) => {
                let _ = reached.send(());
                std::future::pending().await
            }
        }
    }
}

/// A tenant `a` with three keys and a quota over a store whose deletes a test chooses.
async fn three_keys() -> (
    Arc<MemoryStore>,
    Identities<Around<MemoryStore, Deletes>>,
    Deletes,
) {
    let (store, deletes) = (store(), Deletes::default());
    let around = Around {
        store: MemoryStore::clone(&store),
        detour: deletes.clone(),
    };
    let identities = Identities::open(Arc::new(around), Arc::new(|| 1));
    let identities = identities.await.unwrap();
    identities.create_tenant("a", "").await.unwrap();
    for id in ["ONE", "TWO", "THREE"] {
        let key = identities.create_key("a", Some((id, "secret-secret")));
        key.await.unwrap();
    }
    let quota = Quota {
        bytes: Some(1000),
        objects: None,
    };
    store.set_tenant_quota("a", quota).await.unwrap();
    (store, identities, deletes)
}

/// The tenant is gone, and one of the same name has none of its keys, hosts and leaves, nor its quota.
async fn gone_for_good(store: &Arc<MemoryStore>) {
    let again = open(store).await;
    assert!(again.tenants().is_empty());
    again.create_tenant("a", "").await.unwrap();
    let again = open(store).await;
    assert_eq!(again.keys_of("a"), []);
    assert!(again.hosts().is_empty() && again.modules().is_empty());
    assert_eq!(store.tenant_quota("a"), Quota::default());
}

#[tokio::test]
async fn a_tenant_that_could_not_be_removed_goes_on_and_can_be_removed_later() {
    let (store, identities, deletes) = three_keys().await;
    deletes.0.lock().extend([Delete::Passes, Delete::Fails]);
    let failed = identities.remove_tenant("a").await.unwrap_err();
    assert_eq!(failed.kind, Kind::Failed);
    assert_eq!(identities.keys_of("a").len(), 2);
    assert_eq!(open(&store).await.keys_of("a").len(), 2);
    identities.remove_tenant("a").await.unwrap();
    assert_eq!(identities.keys_of("a"), []);
    gone_for_good(&store).await;
}

#[tokio::test]
async fn a_tenant_that_makes_a_namespace_while_it_is_removed_stays() {
    let (store, identities, deletes) = three_keys().await;
    deletes.0.lock().push_back(Delete::Makes("late"));
    let refused = identities.remove_tenant("a").await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotEmpty);
    assert_eq!(
        store.tenant_quota("a").bytes,
        Some(1000),
        "it stays bounded"
    );
    for identities in [identities.tenants(), open(&store).await.tenants()] {
        assert_eq!(identities.len(), 1);
    }
    store.delete_namespace("late").await.unwrap();
    identities.remove_tenant("a").await.unwrap();
    gone_for_good(&store).await;
}

#[tokio::test]
async fn a_removal_that_was_given_up_can_be_asked_for_again() {
    let (store, identities, deletes) = three_keys().await;
    let (reached, is_reached) = oneshot::channel();
    deletes
        .0
        .lock()
        .extend([Delete::Passes, Delete::Waits(reached)]);
    tokio::select! {
        _ = identities.remove_tenant("a") => unreachable!("it waits"),
        reached = is_reached => reached.unwrap(),
    }
    identities.remove_tenant("a").await.unwrap();
    gone_for_good(&store).await;
}

#[tokio::test]
async fn what_another_gateway_makes_for_a_tenant_goes_with_it() {
    let (store, identities, deletes) = three_keys().await;
    // After the keys went, and before the tenant does.
    let keys = [Delete::Passes, Delete::Passes, Delete::Passes];
    deletes.0.lock().extend(keys);
    deletes.0.lock().push_back(Delete::Equips);
    identities.remove_tenant("a").await.unwrap();
    assert!(deletes.0.lock().is_empty());
    gone_for_good(&store).await;
    // Nothing of it is in the way of another tenant.
    let again = open(&store).await;
    again.create_tenant("b", "").await.unwrap();
    let key = again.create_key("b", Some(("LATE", "secret-secret")));
    key.await.unwrap();
}

#[tokio::test]
async fn what_is_left_of_a_tenant_is_nobodys() {
    let (store, identities, _) = three_keys().await;
    equip(&store).await;
    let tenant = Address::object(SYSTEM_NAMESPACE, b"tenant/a");
    store
        .delete(tenant, DeleteOptions::default())
        .await
        .unwrap();
    assert!(identities.find("ONE").is_some());
    let again = open(&store).await;
    assert_eq!(again.find("ONE"), None);
    assert!(again.hosts().is_empty() && again.modules().is_empty());
    // Values are not given to the next tenant of that name, nor dropped.
    let config = NamespaceConfig {
        tenant: "a".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace("left", config).await.unwrap();
    let refused = again.create_tenant("a", "").await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotEmpty);
    assert!(refused.message.contains("\"left\""), "{refused}");
    store.delete_namespace("left").await.unwrap();
    gone_for_good(&store).await;
}

#[tokio::test]
async fn doors_hear_of_every_change() {
    let store = store();
    let identities = open(&store).await;
    identities.create_tenant("a", "").await.unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    identities.on_keys_changed(move |keys| {
        *hearing.lock() = keys.iter().map(|key| key.id.clone()).collect();
    });
    assert!(heard.lock().is_empty());
    identities
        .create_key("a", Some(("ONE", "secret-secret")))
        .await
        .unwrap();
    identities
        .create_key("a", Some(("TWO", "secret-secret")))
        .await
        .unwrap();
    assert_eq!(*heard.lock(), ["ONE", "TWO"]);
    identities.remove_key("ONE").await.unwrap();
    assert_eq!(*heard.lock(), ["TWO"]);
    assert_eq!(
        identities.remove_key("ONE").await.unwrap_err().kind,
        Kind::NotFound
    );
    identities.remove_tenant("a").await.unwrap();
    assert!(heard.lock().is_empty());
    assert!(store.namespace(SYSTEM_NAMESPACE).is_ok());
}
