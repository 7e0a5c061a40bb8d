//! Versions and delete markers.

use super::subject::{Subject, attributes, drain, refused};
use crate::{
    Address, After, Attributes, ByteRange, Condition, DeleteOptions, Deleted, ErrorKind,
    ListOptions, Scope, Space, Store, Usage, VersionId, VersionItem, VersionPage, Versioning,
};

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    if !subject.store.caps().versions {
        return;
    }
    versions_are_kept(subject).await;
    markers_hide(subject).await;
    deleting_versions(subject).await;
    suspended(subject).await;
    lists(subject).await;
    deleting_page_by_page(subject).await;
    staging_has_no_versions(subject).await;
}

async fn text<S: Store>(
    subject: &Subject<S>,
    space: &str,
    key: &str,
    version: VersionId,
) -> String {
    let address = Address::object(space, key.as_bytes());
    let found = subject
        .store
        .retrieve(address, Some(version), ByteRange::Full)
        .await;
    String::from_utf8(drain(found.unwrap()).await).unwrap()
}

async fn delete_version<S: Store>(
    subject: &Subject<S>,
    space: &str,
    key: &str,
    version: VersionId,
) -> Deleted {
    let options = DeleteOptions {
        version: Some(version),
        condition: Condition::None,
    };
    let address = Address::object(space, key.as_bytes());
    subject.store.delete(address, options).await.unwrap()
}

async fn versions_are_kept<S: Store>(subject: &Subject<S>) {
    let space = "versions-kept";
    subject.versioned_namespace(space).await;
    let first = subject.put(space, "k", b"one").await.meta;
    let second = subject.put(space, "k", b"two").await;
    assert!(second.replaced);
    let second = second.meta;
    assert!(first.version != VersionId::NULL && second.version > first.version);
    assert_eq!(subject.get(space, "k").await.unwrap(), b"two");
    assert_eq!(text(subject, space, "k", first.version).await, "one");
    assert_eq!(text(subject, space, "k", second.version).await, "two");
    let usage = subject.store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 2,
            bytes: 6
        }
    );
    let address = Address::object(space, b"k");
    let amended = subject
        .store
        .amend(
            address,
            Some(first.version),
            None,
            attributes(&[("a", "b")]),
        )
        .await
        .unwrap();
    let stat = subject
        .store
        .stat(address, Some(first.version))
        .await
        .unwrap();
    assert_eq!(stat, amended);
    assert_eq!(subject.store.stat(address, None).await.unwrap(), second);
    let stat = subject.store.stat(address, Some(VersionId::NULL)).await;
    refused(stat, ErrorKind::NoSuchVersion);
    // Conditions look at the current value alone.
    let old = subject
        .try_put(address, b"three", Condition::IfMatch(first.etag))
        .await;
    refused(old, ErrorKind::PreconditionFailed);
    subject
        .try_put(address, b"three", Condition::IfMatch(second.etag))
        .await
        .unwrap();
}

async fn markers_hide<S: Store>(subject: &Subject<S>) {
    let space = "versions-hidden";
    subject.versioned_namespace(space).await;
    let value = subject.put(space, "k", b"value").await.meta;
    let deleted = subject.delete(space, "k").await;
    let marker = deleted.version.unwrap();
    assert!(deleted.existed && deleted.marker && marker > value.version);
    let address = Address::object(space, b"k");
    let store = &subject.store;
    for version in [None, Some(marker)] {
        let kind = match version {
            None => ErrorKind::NotFound,
            Some(_) => ErrorKind::IsDeleteMarker,
        };
        let error = store.stat(address, version).await.unwrap_err();
        assert_eq!((error.kind(), error.marker()), (kind, Some(marker)));
        let error = store.retrieve(address, version, ByteRange::Full).await;
        let error = error.map(|_| ()).unwrap_err();
        assert_eq!((error.kind(), error.marker()), (kind, Some(marker)));
        refused(
            store.amend(address, version, None, Attributes::EMPTY).await,
            kind,
        );
    }
    assert_eq!(store.exist(&[address]).await.unwrap(), [None]);
    assert_eq!(text(subject, space, "k", value.version).await, "value");
    let usage = store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 2,
            bytes: 5
        },
        "a marker counts as an object"
    );
    let again = subject.delete(space, "k").await;
    assert!(!again.existed && again.marker && again.version != Some(marker));
    let absent = subject.delete(space, "never").await;
    assert!(
        !absent.existed && absent.marker,
        "a marker is made for any key"
    );
    // A key that a marker hides is absent.
    let stored = subject.try_put(address, b"new", Condition::IfAbsent).await;
    assert!(!stored.unwrap().replaced);
    assert_eq!(subject.get(space, "k").await.unwrap(), b"new");
}

async fn deleting_versions<S: Store>(subject: &Subject<S>) {
    let space = "versions-gone";
    subject.versioned_namespace(space).await;
    let one = subject.put(space, "k", b"one").await.meta.version;
    let two = subject.put(space, "k", b"two").await.meta.version;
    let three = subject.put(space, "k", b"three").await.meta.version;
    let gone = delete_version(subject, space, "k", two).await;
    let removed = |version, marker| Deleted {
        existed: true,
        version: Some(version),
        marker,
    };
    assert_eq!(gone, removed(two, false));
    let address = Address::object(space, b"k");
    let stat = subject.store.stat(address, Some(two)).await;
    refused(stat, ErrorKind::NoSuchVersion);
    assert_eq!(subject.get(space, "k").await.unwrap(), b"three");
    let absent = delete_version(subject, space, "k", two).await;
    assert_eq!(absent, Deleted::default());
    // The newest goes: the one before it is current again.
    assert_eq!(
        delete_version(subject, space, "k", three).await,
        removed(three, false)
    );
    assert_eq!(subject.get(space, "k").await.unwrap(), b"one");
    assert_eq!(
        subject.store.stat(address, None).await.unwrap().version,
        one
    );
    // A marker goes: what it hid is current again, unless another marker hides it.
    let hidden = subject.delete(space, "k").await.version.unwrap();
    let twice = subject.delete(space, "k").await.version.unwrap();
    assert_eq!(
        delete_version(subject, space, "k", twice).await,
        removed(twice, true)
    );
    assert_eq!(subject.get(space, "k").await, None);
    assert_eq!(
        delete_version(subject, space, "k", hidden).await,
        removed(hidden, true)
    );
    assert_eq!(subject.get(space, "k").await.unwrap(), b"one");
    assert_eq!(
        delete_version(subject, space, "k", one).await,
        removed(one, false)
    );
    let usage = subject.store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(usage, Usage::default());
    subject.store.delete_namespace(space).await.unwrap();
}

async fn suspended<S: Store>(subject: &Subject<S>) {
    let space = "versions-suspended";
    subject.namespace(space).await;
    subject.put(space, "k", b"null").await;
    subject.set_versioning(space, Versioning::Enabled).await;
    let one = subject.put(space, "k", b"one").await.meta.version;
    assert_eq!(text(subject, space, "k", VersionId::NULL).await, "null");
    subject.set_versioning(space, Versioning::Suspended).await;
    let null = subject.put(space, "k", b"null again").await.meta.version;
    assert_eq!(null, VersionId::NULL);
    assert_eq!(text(subject, space, "k", one).await, "one");
    assert_eq!(subject.get(space, "k").await.unwrap(), b"null again");
    let usage = subject.store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 2,
            bytes: 13
        },
        "the old null version is gone"
    );
    // The marker takes the place of the null version.
    let deleted = subject.delete(space, "k").await;
    let wanted = Deleted {
        existed: true,
        version: Some(VersionId::NULL),
        marker: true,
    };
    assert_eq!(deleted, wanted);
    let address = Address::object(space, b"k");
    let error = subject.store.stat(address, None).await.unwrap_err();
    assert_eq!(error.marker(), Some(VersionId::NULL));
    let usage = subject.store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 2,
            bytes: 3
        }
    );
    delete_version(subject, space, "k", VersionId::NULL).await;
    assert_eq!(subject.get(space, "k").await.unwrap(), b"one");
    // A null version in the middle of others stays where its time put it.
    subject.put(space, "k", b"middle").await;
    subject.set_versioning(space, Versioning::Enabled).await;
    let two = subject.put(space, "k", b"two").await.meta.version;
    let found = walk(subject, options(space, 1)).await;
    let versions: Vec<_> = found.iter().map(|(_, version, _)| *version).collect();
    assert_eq!(versions, [two, VersionId::NULL, one]);
    delete_version(subject, space, "k", two).await;
    assert_eq!(subject.get(space, "k").await.unwrap(), b"middle");
}

fn options(namespace: &str, limit: usize) -> ListOptions<'_> {
    ListOptions {
        namespace,
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit,
    }
}

/// Key (or prefix), version and whether it is the newest, of every page.
async fn walk<S: Store>(
    subject: &Subject<S>,
    options: ListOptions<'_>,
) -> Vec<(String, VersionId, bool)> {
    let mut found = Vec::new();
    let mut page = VersionPage::default();
    loop {
        let after = page.next().unwrap_or(options.after);
        let next = subject
            .store
            .list_versions(ListOptions { after, ..options })
            .await;
        page = next.unwrap();
        assert!(page.items.len() <= options.limit);
        for item in &page.items {
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            found.push(match item {
                VersionItem::Value { key, meta, latest } => (text(key), meta.version, *latest),
                VersionItem::Marker {
                    key,
                    version,
                    latest,
                    ..
                } => (format!("!{}", text(key)), *version, *latest),
                VersionItem::Prefix(prefix) => {
                    (format!("<{}>", text(prefix)), VersionId::NULL, false)
                }
            });
        }
        assert!(found.len() < 1000, "pages move on");
        if !page.more {
            return found;
        }
    }
}

async fn lists<S: Store>(subject: &Subject<S>) {
    let space = "versions-listed";
    subject.versioned_namespace(space).await;
    let mut wanted = Vec::new();
    for key in ["a", "b/1", "b/2", "c"] {
        let first = subject.put(space, key, b"1").await.meta.version;
        let marker = subject.delete(space, key).await.version.unwrap();
        let last = subject.put(space, key, b"22").await.meta.version;
        wanted.push((key.to_owned(), last, true));
        wanted.push((format!("!{key}"), marker, false));
        wanted.push((key.to_owned(), first, false));
    }
    let top = subject.delete(space, "c").await.version.unwrap();
    wanted[9].2 = false;
    wanted.insert(9, ("!c".to_owned(), top, true));
    for limit in 1..=wanted.len() + 1 {
        assert_eq!(
            walk(subject, options(space, limit)).await,
            wanted,
            "limit {limit}"
        );
    }
    let prefix = ListOptions {
        prefix: b"b/",
        ..options(space, 4)
    };
    assert_eq!(walk(subject, prefix).await, &wanted[3..9]);
    let delimited = ListOptions {
        delimiter: Some(b"/"),
        ..options(space, 2)
    };
    let mut collapsed = wanted.clone();
    collapsed.splice(3..9, [("<b/>".to_owned(), VersionId::NULL, false)]);
    assert_eq!(walk(subject, delimited).await, collapsed);
    let (_, marker, _) = wanted[1];
    for (after, from) in [
        (After::Key(b"a"), 3),
        (After::Prefix(b"b"), 9),
        (After::Version(b"a", marker), 2),
        // This version never was: it is where it would have been.
        (After::Version(b"a", VersionId(u64::MAX)), 0),
    ] {
        let beginning = ListOptions {
            after,
            ..options(space, 3)
        };
        assert_eq!(walk(subject, beginning).await, &wanted[from..], "{after:?}");
    }
    let current = subject.store.list(options(space, 10)).await.unwrap();
    assert_eq!(current.items.len(), 3, "what a marker hides is not listed");
}

async fn deleting_page_by_page<S: Store>(subject: &Subject<S>) {
    let space = "versions-emptied";
    subject.namespace(space).await;
    for round in 0..3 {
        for key in ["a", "b"] {
            subject.put(space, key, b"x").await;
            subject.set_versioning(space, Versioning::Enabled).await;
            subject.put(space, key, b"y").await;
            subject.put(space, key, b"z").await;
            subject.set_versioning(space, Versioning::Suspended).await;
            subject.delete(space, key).await;
        }
        let mut page = VersionPage::default();
        loop {
            let after = page.next().unwrap_or_default();
            let limit = round + 1;
            let next = ListOptions {
                after,
                ..options(space, limit)
            };
            page = subject.store.list_versions(next).await.unwrap();
            for item in &page.items {
                let (key, version) = match item {
                    VersionItem::Value { key, meta, .. } => (key, meta.version),
                    VersionItem::Marker { key, version, .. } => (key, *version),
                    VersionItem::Prefix(_) => panic!("no delimiter was given"),
                };
                let key = std::str::from_utf8(key).unwrap();
                assert!(delete_version(subject, space, key, version).await.existed);
            }
            if !page.more {
                break;
            }
        }
        let left = walk(subject, options(space, 10)).await;
        assert_eq!(left, [], "page by page nothing is missed");
    }
    subject.store.delete_namespace(space).await.unwrap();
}

async fn staging_has_no_versions<S: Store>(subject: &Subject<S>) {
    let space = "versions-staged";
    subject.versioned_namespace(space).await;
    for bytes in [b"1", b"2"] {
        let stored = subject.stage(space, "part", bytes).await;
        assert_eq!(stored.meta.version, VersionId::NULL);
    }
    let usage = subject.store.usage(Scope::Namespace(space)).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 1,
            bytes: 1
        }
    );
    let address = Address::staging(space, b"part");
    let deleted = subject
        .store
        .delete(address, DeleteOptions::default())
        .await;
    assert!(!deleted.unwrap().marker);
    subject.store.delete_namespace(space).await.unwrap();
}
