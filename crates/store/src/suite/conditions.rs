//! Conditions on stores and deletes.

use super::subject::{Subject, content, etag, fill, put_with, refused};
use crate::{
    Address, Condition, DeleteOptions, ErrorKind, Seal, Store, StoreOptions, Upload, VersionId,
};

const SPACE: &str = "conditions";

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace(SPACE).await;
    stores(subject).await;
    deletes(subject).await;
    commit_decides(subject).await;
}

fn when(condition: Condition) -> DeleteOptions {
    DeleteOptions {
        condition,
        ..DeleteOptions::default()
    }
}

async fn stores<S: Store>(subject: &Subject<S>) {
    let address = Address::object(SPACE, b"stored");
    let failed = ErrorKind::PreconditionFailed;
    let wrong = Condition::IfMatch(etag("wrong"));
    for condition in [Condition::IfPresent, wrong] {
        refused(subject.try_put(address, b"never", condition).await, failed);
    }
    let first = subject
        .try_put(address, b"first", Condition::IfAbsent)
        .await;
    let first = first.unwrap();
    for condition in [Condition::IfAbsent, wrong] {
        let options = StoreOptions {
            size: None,
            condition,
        };
        refused(subject.store.store(address, options).await, failed);
    }
    assert_eq!(subject.get(SPACE, "stored").await.unwrap(), b"first");
    let matching = Condition::IfMatch(first.meta.etag);
    let second = subject.try_put(address, b"second", matching).await.unwrap();
    assert!(second.replaced);
    refused(subject.try_put(address, b"third", matching).await, failed);
    let third = subject
        .try_put(address, b"third", Condition::IfPresent)
        .await;
    assert!(third.unwrap().replaced);
    // A tag that the writer chose is the tag that counts.
    let seal = Seal {
        etag: Some(etag("chosen")),
        ..Seal::default()
    };
    put_with(
        &*subject.store,
        address,
        b"fourth",
        StoreOptions::default(),
        seal,
    )
    .await
    .unwrap();
    let chosen = Condition::IfMatch(etag("chosen"));
    subject.try_put(address, b"fifth", chosen).await.unwrap();
    assert_eq!(subject.get(SPACE, "stored").await.unwrap(), b"fifth");
}

async fn deletes<S: Store>(subject: &Subject<S>) {
    let address = Address::object(SPACE, b"deleted");
    let failed = ErrorKind::PreconditionFailed;
    let store = &subject.store;
    refused(
        store.delete(address, when(Condition::IfPresent)).await,
        failed,
    );
    let meta = subject.put(SPACE, "deleted", b"bytes").await.meta;
    let wrong = Condition::IfMatch(etag("wrong"));
    for condition in [Condition::IfAbsent, wrong] {
        refused(store.delete(address, when(condition)).await, failed);
        let one = DeleteOptions {
            version: Some(VersionId::NULL),
            condition,
        };
        refused(store.delete(address, one).await, failed);
    }
    let matching = Condition::IfMatch(meta.etag);
    let deleted = store.delete(address, when(matching)).await.unwrap();
    assert!(deleted.existed && !deleted.marker);
    assert_eq!(subject.get(SPACE, "deleted").await, None);
    refused(store.delete(address, when(matching)).await, failed);
}

async fn commit_decides<S: Store>(subject: &Subject<S>) {
    let address = Address::object(SPACE, b"raced");
    let options = StoreOptions {
        size: None,
        condition: Condition::IfAbsent,
    };
    let mut first = subject.store.store(address, options).await.unwrap();
    let mut second = subject.store.store(address, options).await.unwrap();
    let large = content(1, subject.store.caps().chunk_bytes + 1);
    fill(&mut first, &large).await.unwrap();
    fill(&mut second, b"second").await.unwrap();
    second.commit(Seal::default()).await.unwrap();
    let late = first.commit(Seal::default()).await;
    refused(late, ErrorKind::PreconditionFailed);
    assert_eq!(subject.get(SPACE, "raced").await.unwrap(), b"second");

    let meta = subject.store.stat(address, None).await.unwrap();
    let options = StoreOptions {
        size: None,
        condition: Condition::IfMatch(meta.etag),
    };
    let mut swap = subject.store.store(address, options).await.unwrap();
    fill(&mut swap, b"swapped").await.unwrap();
    subject.delete(SPACE, "raced").await;
    let late = swap.commit(Seal::default()).await;
    refused(late, ErrorKind::PreconditionFailed);
    assert_eq!(subject.get(SPACE, "raced").await, None);
}
