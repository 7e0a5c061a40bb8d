//! Joining staged values.

use super::subject::{Subject, attributes, content, crc64nvme, etag, refused};
use crate::limits::COMPOSE_SOURCES_MAX;
use crate::{
    Address, ByteRange, Condition, ErrorKind, Etag, Result, Scope, Seal, Source, Space, Store,
    StoreOptions, Stored, Usage,
};

const SPACE: &str = "composing";

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace(SPACE).await;
    parts_become_a_value(subject).await;
    refusals_change_nothing(subject).await;
    one_part_and_empty_parts(subject).await;
}

async fn compose<S: Store>(
    subject: &Subject<S>,
    key: &str,
    sources: &[&str],
    consumed: &[&str],
    options: StoreOptions,
) -> Result<Stored> {
    let sources = sources.iter().map(|name| Source::any(name.as_bytes()));
    let sources: Vec<Source<'_>> = sources.collect();
    let consumed: Vec<&[u8]> = consumed.iter().map(|name| name.as_bytes()).collect();
    let target = Address::object(SPACE, key.as_bytes());
    subject
        .store
        .compose(target, &sources, &consumed, options, Seal::default())
        .await
}

fn usage<S: Store>(subject: &Subject<S>) -> Usage {
    subject.store.usage(Scope::Namespace(SPACE)).unwrap()
}

async fn is_staged<S: Store>(subject: &Subject<S>, key: &str) -> bool {
    let address = Address::staging(SPACE, key.as_bytes());
    subject.store.exist(&[address]).await.unwrap()[0].is_some()
}

async fn parts_become_a_value<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes;
    let parts = [content(1, chunk + 17), content(2, 5000), content(3, 3)];
    for (number, part) in parts.iter().enumerate() {
        subject.stage(SPACE, &format!("up/{number}"), part).await;
    }
    subject.stage(SPACE, "up/unused", &content(4, 100)).await;
    subject.stage(SPACE, "up/record", b"").await;
    subject.put(SPACE, "joined", b"old").await;
    let staged: u64 = parts.iter().map(|part| part.len() as u64).sum();
    let before = usage(subject);
    assert_eq!(
        before,
        // The value, and three staged ones that are small.
        Usage {
            objects: 4,
            bytes: staged + 103
        }
    );

    let target = Address::object(SPACE, b"joined");
    let seal = Seal {
        etag: Some(etag("0123-3")),
        attributes: attributes(&[("content-type", "x/y")]),
        expires: None,
    };
    let mut seen = Vec::new();
    for key in [&b"up/1"[..], b"up/0", b"up/2"] {
        let address = Address::staging(SPACE, key);
        seen.push((key, subject.store.stat(address, None).await.unwrap()));
    }
    let sources = seen.iter().map(|(key, seen)| Source {
        key,
        seen: Some(seen),
    });
    let sources: Vec<Source<'_>> = sources.collect();
    let consumed: [&[u8]; 2] = [b"up/unused", b"up/record"];
    let stored = subject
        .store
        .compose(
            target,
            &sources,
            &consumed,
            StoreOptions::default(),
            seal.clone(),
        )
        .await
        .unwrap();
    let whole = [&parts[1][..], &parts[0], &parts[2]].concat();
    assert!(stored.replaced);
    assert_eq!(stored.meta.size, whole.len() as u64);
    assert_eq!(stored.meta.crc64nvme, crc64nvme(&whole));
    assert_eq!(Some(stored.meta.etag), seal.etag);
    assert_eq!(stored.meta.attributes, seal.attributes);
    assert!(subject.get(SPACE, "joined").await.unwrap() == whole);
    for range in [ByteRange::Inclusive(4990, 5010), ByteRange::Suffix(5)] {
        let object = subject.store.retrieve(target, None, range).await.unwrap();
        let wanted = object.range.start as usize..object.range.end as usize;
        assert!(super::subject::drain(object).await == whole[wanted]);
    }
    for key in ["up/0", "up/1", "up/2", "up/unused", "up/record"] {
        assert!(!is_staged(subject, key).await, "{key} is gone");
    }
    assert_eq!(
        usage(subject),
        Usage {
            objects: 1,
            bytes: staged
        }
    );
    subject.delete(SPACE, "joined").await;
    assert_eq!(usage(subject), Usage::default());
}

async fn refusals_change_nothing<S: Store>(subject: &Subject<S>) {
    subject.stage(SPACE, "a", b"aaa").await;
    subject.stage(SPACE, "b", b"bb").await;
    subject.put(SPACE, "target", b"old").await;
    let before = usage(subject);
    let free = StoreOptions::default();
    let absent = StoreOptions {
        condition: Condition::IfAbsent,
        size: None,
    };
    let long = StoreOptions {
        size: Some(6),
        ..free
    };
    let target = "target";
    let tried = compose(subject, target, &["a", "missing"], &["b"], free).await;
    refused(tried, ErrorKind::NotFound);
    let tried = compose(subject, target, &["a", "b", "a"], &[], free).await;
    refused(tried, ErrorKind::Invalid);
    let tried = compose(subject, target, &["a", "b"], &[], absent).await;
    refused(tried, ErrorKind::PreconditionFailed);
    let tried = compose(subject, target, &["a", "b"], &[], long).await;
    refused(tried, ErrorKind::Invalid);
    let tried = compose(subject, "", &["a"], &[], free).await;
    refused(tried, ErrorKind::Invalid);
    let names: Vec<String> = (0..=COMPOSE_SOURCES_MAX).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tried = compose(subject, target, &names, &[], free).await;
    refused(tried, ErrorKind::Invalid);
    let tried = compose(subject, target, &["a"], &["b", "missing"], free).await;
    refused(tried, ErrorKind::NotFound);
    let elsewhere = Address::object("nowhere", b"target");
    let tried = subject
        .store
        .compose(elsewhere, &[Source::any(b"a")], &[], free, Seal::default())
        .await;
    refused(tried, ErrorKind::NoSuchNamespace);
    let staged = Address {
        space: Space::Staging,
        ..Address::object(SPACE, b"c")
    };
    let tried = subject
        .store
        .compose(staged, &[Source::any(b"a")], &[], free, Seal::default())
        .await;
    refused(tried, ErrorKind::Invalid);
    assert_eq!(usage(subject), before);
    assert!(is_staged(subject, "a").await && is_staged(subject, "b").await);
    assert_eq!(subject.get(SPACE, target).await.unwrap(), b"old");

    // What was seen and what is there differ in no more than their bytes, or their time.
    let seen = subject.store.stat(Address::staging(SPACE, b"a"), None);
    let seen = seen.await.unwrap();
    for other in [&b"AAA"[..], b"aaa"] {
        subject.clock.advance(1);
        subject.stage(SPACE, "a", other).await;
        let source = Source {
            key: b"a",
            seen: Some(&seen),
        };
        let place = Address::object(SPACE, target.as_bytes());
        let tried = subject
            .store
            .compose(place, &[source], &[b"b"], free, Seal::default())
            .await;
        refused(tried, ErrorKind::NotFound);
        assert!(is_staged(subject, "a").await && is_staged(subject, "b").await);
        assert_eq!(subject.get(SPACE, target).await.unwrap(), b"old");
    }

    let exact = StoreOptions {
        size: Some(5),
        condition: Condition::IfPresent,
    };
    compose(subject, target, &["a", "b"], &["a"], exact)
        .await
        .unwrap();
    assert_eq!(subject.get(SPACE, target).await.unwrap(), b"aaabb");
}

async fn one_part_and_empty_parts<S: Store>(subject: &Subject<S>) {
    subject.stage(SPACE, "empty", b"").await;
    subject.stage(SPACE, "small", b"s").await;
    let stored = compose(
        subject,
        "few",
        &["empty", "small"],
        &[],
        StoreOptions::default(),
    )
    .await;
    let meta = stored.unwrap().meta;
    assert_eq!(meta.crc64nvme, crc64nvme(b"s"));
    assert_eq!(meta.etag, Etag::of_value(meta.crc64nvme, 1));
    assert_eq!(subject.get(SPACE, "few").await.unwrap(), b"s");
    subject.stage(SPACE, "empty", b"").await;
    let stored = compose(subject, "few", &["empty"], &[], StoreOptions::default()).await;
    assert_eq!(stored.unwrap().meta.size, 0);
    assert_eq!(subject.get(SPACE, "few").await.unwrap(), b"");
}
