//! Namespaces and their configuration.

use super::subject::{Subject, TENANT, attributes, fill, refused};
use crate::limits::NAMESPACE_BYTES_MAX;
use crate::{
    Address, Durability, ErrorKind, NamespaceConfig, Quota, Seal, Store, StoreOptions, Upload,
    Versioning,
};

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    making(subject).await;
    changing(subject).await;
    removing(subject).await;
    names(subject).await;
}

fn config() -> NamespaceConfig {
    NamespaceConfig {
        tenant: TENANT.to_owned(),
        quota: Quota {
            bytes: Some(1 << 40),
            objects: Some(1 << 20),
        },
        ttl_ms: Some(1 << 40),
        durability: Durability::Relaxed { within_ms: 50 },
        versioning: Versioning::Off,
        attributes: attributes(&[("policy", "{}")]),
    }
}

async fn making<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    assert!(store.namespaces().is_empty(), "a new store is empty");
    for name in ["ns-b", "ns-a", "ns-c"] {
        let made = store.create_namespace(name, config()).await.unwrap();
        assert_eq!((&made.name[..], &made.config), (name, &config()));
        assert_eq!(made.created, subject.clock.now());
        assert_eq!(store.namespace(name).unwrap(), made);
    }
    let again = store.create_namespace("ns-a", config()).await;
    refused(again, ErrorKind::NamespaceExists);
    let all = store.namespaces();
    let names: Vec<_> = all.iter().map(|info| &info.name[..]).collect();
    assert_eq!(names, ["ns-a", "ns-b", "ns-c"]);
    assert!(all[0].id != all[1].id && all[1].id != all[2].id && all[0].id != all[2].id);
    refused(store.namespace("nowhere"), ErrorKind::NoSuchNamespace);
    let long = store.namespace(&"\u{1}".repeat(100_000)).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::NoSuchNamespace);
    assert!(long.message().len() < 1024, "a refusal repeats all of it");
}

async fn changing<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let before = store.namespace("ns-a").unwrap();
    let mut next = config();
    next.attributes = attributes(&[("policy", "{1}"), ("tags", "x")]);
    next.ttl_ms = None;
    let after = store
        .update_namespace("ns-a", Some(before.revision), next.clone())
        .await;
    let after = after.unwrap();
    assert!(after.revision > before.revision);
    assert_eq!(
        (after.id, after.created, &after.config),
        (before.id, before.created, &next)
    );
    assert_eq!(store.namespace("ns-a").unwrap(), after);
    let stale = store
        .update_namespace("ns-a", Some(before.revision), config())
        .await;
    refused(stale, ErrorKind::PreconditionFailed);
    let mut other = next.clone();
    other.tenant = "other".to_owned();
    refused(
        store.update_namespace("ns-a", None, other).await,
        ErrorKind::Invalid,
    );
    let absent = store.update_namespace("nowhere", None, next.clone()).await;
    refused(absent, ErrorKind::NoSuchNamespace);
    assert_eq!(store.namespace("ns-a").unwrap(), after);
    if store.caps().versions {
        subject.set_versioning("ns-a", Versioning::Enabled).await;
        let off = store.update_namespace("ns-a", None, next).await;
        refused(off, ErrorKind::Invalid);
    }
}

async fn removing<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let first = store.namespace("ns-b").unwrap();
    subject.put("ns-b", "k", b"v").await;
    refused(
        store.delete_namespace("ns-b").await,
        ErrorKind::NamespaceNotEmpty,
    );
    subject.delete("ns-b", "k").await;
    subject.stage("ns-b", "part", b"v").await;
    refused(
        store.delete_namespace("ns-b").await,
        ErrorKind::NamespaceNotEmpty,
    );
    let part = Address::staging("ns-b", b"part");
    store
        .delete(part, crate::DeleteOptions::default())
        .await
        .unwrap();

    let address = Address::object("ns-b", b"late");
    let mut upload = store.store(address, StoreOptions::default()).await.unwrap();
    fill(&mut upload, b"late").await.unwrap();
    store.delete_namespace("ns-b").await.unwrap();
    refused(
        store.delete_namespace("ns-b").await,
        ErrorKind::NoSuchNamespace,
    );
    refused(store.namespace("ns-b"), ErrorKind::NoSuchNamespace);
    let made = store.create_namespace("ns-b", config()).await.unwrap();
    assert!(made.id != first.id, "a number is never used again");
    let other = store.update_namespace("ns-b", Some(first.revision), config());
    refused(other.await, ErrorKind::PreconditionFailed);
    let late = upload.commit(Seal::default()).await;
    refused(late, ErrorKind::NoSuchNamespace);
    assert_eq!(subject.get("ns-b", "late").await, None);
    assert_eq!(subject.get("ns-b", "k").await, None);
}

async fn names<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let long = "n".repeat(NAMESPACE_BYTES_MAX + 1);
    for name in ["", "a/b", "a b", "caf\u{e9}", "nul\0", &long] {
        refused(
            store.create_namespace(name, config()).await,
            ErrorKind::Invalid,
        );
        let mut foreign = config();
        name.clone_into(&mut foreign.tenant);
        let made = store.create_namespace("fine", foreign).await;
        refused(made, ErrorKind::Invalid);
    }
    store.create_namespace(&long[1..], config()).await.unwrap();
    subject.put(&long[1..], "k", b"v").await;
    store.create_namespace("..", config()).await.unwrap();
    subject.put("..", "k", b"v").await;
}
