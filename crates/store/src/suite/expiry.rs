//! Values that end by themselves.

use super::subject::{Subject, content, drain, put_with, refused};
use crate::{
    Address, After, Attributes, ByteRange, Condition, DeleteOptions, ErrorKind, ListOptions, Meta,
    NamespaceConfig, Seal, Source, Space, Store, StoreOptions, Versioning,
};

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    own_time(subject).await;
    by_namespace(subject).await;
    staged_parts(subject).await;
    older_versions_stay(subject).await;
}

async fn put_until<S: Store>(
    subject: &Subject<S>,
    address: Address<'_>,
    bytes: &[u8],
    expires: Option<u64>,
) -> Meta {
    let seal = Seal {
        expires,
        ..Seal::default()
    };
    let stored = put_with(
        &*subject.store,
        address,
        bytes,
        StoreOptions::default(),
        seal,
    )
    .await;
    stored.unwrap().meta
}

async fn listed<S: Store>(subject: &Subject<S>, namespace: &str, space: Space) -> usize {
    let options = ListOptions {
        namespace,
        space,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit: 100,
    };
    let page = subject.store.list(options).await.unwrap();
    assert!(!page.more, "what expired does not make a page full");
    page.items.len()
}

async fn own_time<S: Store>(subject: &Subject<S>) {
    let space = "expiring";
    subject.namespace(space).await;
    let (store, clock) = (&subject.store, &subject.clock);
    let address = Address::object(space, b"brief");
    let expires = clock.now() + 1000;
    let large = content(1, store.caps().chunk_bytes + 1);
    let meta = put_until(subject, address, &large, Some(expires)).await;
    assert_eq!(meta.expires, Some(expires));
    subject.put(space, "lasting", b"v").await;
    clock.advance(999);
    assert_eq!(store.stat(address, None).await.unwrap(), meta);
    let reading = store
        .retrieve(address, None, ByteRange::Full)
        .await
        .unwrap();
    clock.advance(1);
    assert!(drain(reading).await == large, "a body being read stays");
    refused(store.stat(address, None).await, ErrorKind::NotFound);
    let found = store.retrieve(address, None, ByteRange::Full).await;
    refused(found, ErrorKind::NotFound);
    let null = Some(crate::VersionId::NULL);
    refused(store.stat(address, null).await, ErrorKind::NoSuchVersion);
    let amended = store.amend(address, None, None, Attributes::EMPTY).await;
    refused(amended, ErrorKind::NotFound);
    assert_eq!(store.exist(&[address]).await.unwrap(), [None]);
    assert_eq!(listed(subject, space, Space::Objects).await, 1);
    let when = DeleteOptions {
        condition: Condition::IfPresent,
        ..DeleteOptions::default()
    };
    let deleted = store.delete(address, when).await;
    refused(deleted, ErrorKind::PreconditionFailed);
    let old = Condition::IfMatch(meta.etag);
    let swapped = subject.try_put(address, b"new", old).await;
    refused(swapped, ErrorKind::PreconditionFailed);
    let stored = subject
        .try_put(address, b"new", Condition::IfAbsent)
        .await
        .unwrap();
    assert!(!stored.replaced && stored.meta.expires.is_none());
    clock.advance(1_000_000);
    assert_eq!(subject.get(space, "brief").await.unwrap(), b"new");
    // In the past already.
    put_until(subject, address, b"late", Some(clock.now())).await;
    assert_eq!(subject.get(space, "brief").await, None);
    assert!(!subject.delete(space, "brief").await.existed);
}

async fn by_namespace<S: Store>(subject: &Subject<S>) {
    let space = "expiring-all";
    let config = NamespaceConfig {
        ttl_ms: Some(1000),
        ..NamespaceConfig::default()
    };
    subject.configured(space, config).await;
    let now = subject.clock.now();
    let key = Address::object(space, b"k");
    for (own, wanted) in [(None, 1000), (Some(5000), 1000), (Some(10), 10)] {
        let own = own.map(|own| now + own);
        let meta = put_until(subject, key, b"v", own).await;
        assert_eq!(meta.expires, Some(now + wanted));
    }
    subject.put(space, "k", b"v").await;
    let amended = subject
        .store
        .amend(key, None, None, Attributes::EMPTY)
        .await
        .unwrap();
    assert_eq!(amended.expires, Some(now + 1000));
    subject.clock.advance(1000);
    assert_eq!(subject.get(space, "k").await, None);
}

async fn staged_parts<S: Store>(subject: &Subject<S>) {
    let space = "expiring-all";
    let lasting = Address::staging(space, b"lasting");
    let brief = Address::staging(space, b"brief");
    put_until(subject, lasting, b"1", None).await;
    put_until(subject, brief, b"2", Some(subject.clock.now() + 10)).await;
    assert_eq!(listed(subject, space, Space::Staging).await, 2);
    subject.clock.advance(100_000);
    assert_eq!(listed(subject, space, Space::Staging).await, 1);
    let target = Address::object(space, b"joined");
    let free = StoreOptions::default();
    let sources = [Source::any(b"lasting"), Source::any(b"brief")];
    let joined = subject
        .store
        .compose(target, &sources, &[], free, Seal::default())
        .await;
    refused(joined, ErrorKind::NotFound);
    let joined = subject
        .store
        .compose(target, &sources[..1], &[b"brief"], free, Seal::default())
        .await;
    refused(joined, ErrorKind::NotFound);
    let joined = subject
        .store
        .compose(target, &sources[..1], &[], free, Seal::default())
        .await;
    assert_eq!(
        joined.unwrap().meta.expires,
        Some(subject.clock.now() + 1000)
    );
    subject.clock.advance(1000);
    assert_eq!(subject.get(space, "joined").await, None);
}

async fn older_versions_stay<S: Store>(subject: &Subject<S>) {
    if !subject.store.caps().versions {
        return;
    }
    let space = "expiring-versions";
    subject.versioned_namespace(space).await;
    let old = subject.put(space, "k", b"old").await.meta;
    let key = Address::object(space, b"k");
    let new = put_until(subject, key, b"new", Some(subject.clock.now() + 10)).await;
    let marked = subject.put(space, "marked", b"old").await.meta;
    subject.clock.advance(10);
    assert_eq!(subject.get(space, "k").await, None);
    let gone = subject.store.stat(key, Some(new.version)).await;
    refused(gone, ErrorKind::NoSuchVersion);
    assert_eq!(
        subject.store.stat(key, Some(old.version)).await.unwrap(),
        old
    );
    let marker = subject.delete(space, "marked").await.version;
    let stat = subject
        .store
        .stat(Address::object(space, b"marked"), Some(marked.version))
        .await;
    assert_eq!(stat.unwrap(), marked);
    let config = subject.store.namespace(space).unwrap();
    assert_eq!(
        (marker.is_some(), config.config.versioning),
        (true, Versioning::Enabled)
    );
}
