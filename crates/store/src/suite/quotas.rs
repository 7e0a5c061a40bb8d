//! Usage and quotas.

use super::subject::{Subject, content, fill, refused};
use crate::{
    Address, Condition, DeleteOptions, ErrorKind, NamespaceConfig, Quota, Scope, Seal, Source,
    Store, StoreOptions, Upload, Usage, Versioning,
};

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    usage_is_exact(subject).await;
    bytes_are_bounded(subject).await;
    objects_are_bounded(subject).await;
    markers_are_bounded(subject).await;
    small_staged_values_are_bounded(subject).await;
    room_is_reserved(subject).await;
    unknown_sizes_are_bounded(subject).await;
    tenants_are_bounded(subject).await;
    lowered_below_what_is_held(subject).await;
}

fn quota(bytes: Option<u64>, objects: Option<u64>) -> Quota {
    Quota { bytes, objects }
}

async fn bounded<S: Store>(subject: &Subject<S>, name: &str, tenant: &str, quota: Quota) {
    let config = NamespaceConfig {
        tenant: tenant.to_owned(),
        quota,
        ..NamespaceConfig::default()
    };
    subject.configured(name, config).await;
}

fn usage<S: Store>(subject: &Subject<S>, scope: Scope<'_>) -> (u64, u64) {
    let Usage { objects, bytes } = subject.store.usage(scope).unwrap();
    (objects, bytes)
}

async fn put<S: Store>(
    subject: &Subject<S>,
    namespace: &str,
    key: &str,
    len: usize,
) -> crate::Result<crate::Stored> {
    let address = Address::object(namespace, key.as_bytes());
    subject
        .try_put(address, &content(1, len), Condition::None)
        .await
}

fn declared(size: u64) -> StoreOptions {
    StoreOptions {
        size: Some(size),
        condition: Condition::None,
    }
}

async fn usage_is_exact<S: Store>(subject: &Subject<S>) {
    bounded(subject, "used-1", "counted", Quota::default()).await;
    bounded(subject, "used-2", "counted", Quota::default()).await;
    let held = |scope| usage(subject, scope);
    let (one, both) = (Scope::Namespace("used-1"), Scope::Tenant("counted"));
    assert_eq!((held(one), held(both)), ((0, 0), (0, 0)));
    put(subject, "used-1", "k", 100).await.unwrap();
    put(subject, "used-2", "k", 10_000).await.unwrap();
    assert_eq!((held(one), held(both)), ((1, 100), (2, 10_100)));
    put(subject, "used-1", "k", 40).await.unwrap();
    subject.stage("used-1", "part", &content(1, 5000)).await;
    assert_eq!((held(one), held(both)), ((1, 5040), (2, 15_040)));
    subject.stage("used-1", "small", &content(1, 5)).await;
    assert_eq!((held(one), held(both)), ((2, 5045), (3, 15_045)));
    subject.delete("used-2", "k").await;
    assert_eq!(held(both), (2, 5045));
    assert_eq!(held(Scope::Tenant("nobody")), (0, 0));
    let nowhere = subject.store.usage(Scope::Namespace("nowhere"));
    refused(nowhere, ErrorKind::NoSuchNamespace);
}

async fn bytes_are_bounded<S: Store>(subject: &Subject<S>) {
    bounded(subject, "bytes", "q1", quota(Some(1000), None)).await;
    let kind = ErrorKind::QuotaExceeded;
    put(subject, "bytes", "a", 600).await.unwrap();
    let address = Address::object("bytes", b"b");
    let early = subject.store.store(address, declared(401)).await;
    refused(early, kind);
    put(subject, "bytes", "b", 400).await.unwrap();
    refused(put(subject, "bytes", "c", 1).await, kind);
    put(subject, "bytes", "c", 0).await.unwrap();
    put(subject, "bytes", "a", 600).await.unwrap();
    refused(put(subject, "bytes", "a", 601).await, kind);
    let part = Address::staging("bytes", b"part");
    refused(subject.store.store(part, declared(1)).await, kind);
    assert_eq!(usage(subject, Scope::Namespace("bytes")), (3, 1000));
    subject.delete("bytes", "b").await;
    // Joining moves bytes, it does not add any.
    subject.stage("bytes", "part", &content(1, 400)).await;
    let target = Address::object("bytes", b"joined");
    let joined = subject
        .store
        .compose(
            target,
            &[Source::any(b"part")],
            &[],
            StoreOptions::default(),
            Seal::default(),
        )
        .await;
    joined.unwrap();
    assert_eq!(usage(subject, Scope::Namespace("bytes")), (3, 1000));
}

async fn objects_are_bounded<S: Store>(subject: &Subject<S>) {
    bounded(subject, "objects", "q2", quota(None, Some(2))).await;
    let kind = ErrorKind::QuotaExceeded;
    put(subject, "objects", "a", 10).await.unwrap();
    put(subject, "objects", "b", 10).await.unwrap();
    refused(put(subject, "objects", "c", 10).await, kind);
    put(subject, "objects", "b", 20).await.unwrap();
    subject.stage("objects", "part", &content(1, 5000)).await;
    let target = Address::object("objects", b"c");
    let free = StoreOptions::default();
    let joined = subject
        .store
        .compose(target, &[Source::any(b"part")], &[], free, Seal::default())
        .await;
    refused(joined, kind);
    subject.delete("objects", "a").await;
    let joined = subject
        .store
        .compose(target, &[Source::any(b"part")], &[], free, Seal::default())
        .await;
    joined.unwrap();
    assert_eq!(usage(subject, Scope::Namespace("objects")), (2, 5020));
}

async fn markers_are_bounded<S: Store>(subject: &Subject<S>) {
    let space = "markers";
    bounded(subject, space, "q6", quota(None, Some(3))).await;
    subject.set_versioning(space, Versioning::Enabled).await;
    let delete = async |key: &str| {
        let address = Address::object(space, key.as_bytes());
        subject
            .store
            .delete(address, DeleteOptions::default())
            .await
    };
    let held = || usage(subject, Scope::Namespace(space)).0;
    put(subject, space, "a", 10).await.unwrap();
    let marker = delete("a").await.unwrap().version;
    assert_eq!(held(), 2);
    delete("never").await.unwrap();
    let kind = ErrorKind::QuotaExceeded;
    refused(delete("a").await, kind);
    refused(delete("other").await, kind);
    assert_eq!(held(), 3);
    let address = Address::object(space, b"a");
    let options = DeleteOptions {
        version: marker,
        condition: Condition::None,
    };
    subject.store.delete(address, options).await.unwrap();
    put(subject, space, "b", 10).await.unwrap();
    assert_eq!(held(), 3);
    let deleted = delete("b").await.expect("what is there can be deleted");
    assert!(deleted.existed && deleted.marker);
    assert_eq!(held(), 4);
    refused(delete("b").await, kind);
}

async fn small_staged_values_are_bounded<S: Store>(subject: &Subject<S>) {
    let space = "staged";
    bounded(subject, space, "q7", quota(None, Some(2))).await;
    let stage = async |key: &str, len: usize| {
        let address = Address::staging(space, key.as_bytes());
        let bytes = content(1, len);
        subject.try_put(address, &bytes, Condition::None).await
    };
    stage("record", 0).await.unwrap();
    stage("small", 4095).await.unwrap();
    let kind = ErrorKind::QuotaExceeded;
    refused(stage("more", 0).await, kind);
    stage("large", 4096).await.unwrap();
    stage("small", 3).await.unwrap();
    refused(stage("large", 4095).await, kind);
    assert_eq!(usage(subject, Scope::Namespace(space)), (2, 4099));
    let target = Address::object(space, b"joined");
    let (options, seal) = (StoreOptions::default(), Seal::default());
    let sources = [Source::any(b"large"), Source::any(b"small")];
    let joined = subject
        .store
        .compose(target, &sources, &[b"record"], options, seal)
        .await;
    joined.expect("it takes less than what it was made of");
    assert_eq!(usage(subject, Scope::Namespace(space)), (1, 4099));
}

async fn room_is_reserved<S: Store>(subject: &Subject<S>) {
    bounded(subject, "reserved", "q3", quota(Some(1000), Some(10))).await;
    let kind = ErrorKind::QuotaExceeded;
    let address = Address::object("reserved", b"a");
    let mut first = subject.store.store(address, declared(600)).await.unwrap();
    refused(put(subject, "reserved", "b", 600).await, kind);
    put(subject, "reserved", "b", 400).await.unwrap();
    fill(&mut first, &content(1, 600)).await.unwrap();
    first.commit(Seal::default()).await.unwrap();
    assert_eq!(usage(subject, Scope::Namespace("reserved")), (2, 1000));
    subject.delete("reserved", "a").await;
    let second = subject.store.store(address, declared(600)).await.unwrap();
    refused(put(subject, "reserved", "b", 600).await, kind);
    drop(second);
    put(subject, "reserved", "b", 600)
        .await
        .expect("what was dropped is free again");
    subject.delete("reserved", "b").await;
    put(subject, "reserved", "b", 1000).await.unwrap();
}

async fn unknown_sizes_are_bounded<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes;
    bounded(subject, "unknown", "q4", quota(Some(chunk as u64), None)).await;
    for len in [chunk + 1, 3 * chunk] {
        let address = Address::object("unknown", b"a");
        let mut upload = subject
            .store
            .store(address, StoreOptions::default())
            .await
            .unwrap();
        let refusal = match fill(&mut upload, &content(1, len)).await {
            Ok(()) => upload.commit(Seal::default()).await.map(|_| ()),
            Err(error) => Err(error),
        };
        refused(refusal, ErrorKind::QuotaExceeded);
        assert_eq!(usage(subject, Scope::Namespace("unknown")), (0, 0));
    }
    let address = Address::object("unknown", b"a");
    let mut upload = subject
        .store
        .store(address, StoreOptions::default())
        .await
        .unwrap();
    fill(&mut upload, &content(1, chunk)).await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
}

async fn tenants_are_bounded<S: Store>(subject: &Subject<S>) {
    let kind = ErrorKind::QuotaExceeded;
    bounded(subject, "tenant-1", "together", Quota::default()).await;
    bounded(subject, "tenant-2", "together", Quota::default()).await;
    bounded(subject, "tenant-3", "apart", Quota::default()).await;
    assert_eq!(subject.store.tenant_quota("together"), Quota::default());
    let bound = quota(Some(1000), Some(3));
    subject
        .store
        .set_tenant_quota("together", bound)
        .await
        .unwrap();
    assert_eq!(subject.store.tenant_quota("together"), bound);
    put(subject, "tenant-1", "a", 700).await.unwrap();
    refused(put(subject, "tenant-2", "a", 301).await, kind);
    put(subject, "tenant-3", "a", 301).await.unwrap();
    put(subject, "tenant-2", "a", 300).await.unwrap();
    put(subject, "tenant-2", "b", 0).await.unwrap();
    refused(put(subject, "tenant-1", "b", 0).await, kind);
    subject.delete("tenant-1", "a").await;
    put(subject, "tenant-2", "c", 700).await.unwrap();
    subject
        .store
        .set_tenant_quota("together", Quota::default())
        .await
        .unwrap();
    put(subject, "tenant-1", "a", 5000).await.unwrap();
    let unnamed = subject.store.set_tenant_quota("", Quota::default()).await;
    refused(unnamed, ErrorKind::Invalid);
}

async fn lowered_below_what_is_held<S: Store>(subject: &Subject<S>) {
    bounded(subject, "lowered", "q5", Quota::default()).await;
    put(subject, "lowered", "a", 500).await.unwrap();
    let mut config = subject.store.namespace("lowered").unwrap().config.clone();
    config.quota = quota(Some(100), Some(0));
    subject
        .store
        .update_namespace("lowered", None, config)
        .await
        .unwrap();
    assert_eq!(subject.get("lowered", "a").await.unwrap().len(), 500);
    refused(
        put(subject, "lowered", "b", 0).await,
        ErrorKind::QuotaExceeded,
    );
    refused(
        put(subject, "lowered", "a", 501).await,
        ErrorKind::QuotaExceeded,
    );
    put(subject, "lowered", "a", 300)
        .await
        .expect("what does not grow is not refused");
    subject.delete("lowered", "a").await;
    refused(
        put(subject, "lowered", "a", 0).await,
        ErrorKind::QuotaExceeded,
    );
}
