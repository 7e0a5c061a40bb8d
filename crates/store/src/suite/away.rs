//! Bytes let go and taken back, by stores that can.

use super::subject::{
    Subject, attributes, content, crc64nvme, drain, fill, put_with, refused, try_drain,
};
use crate::{
    Address, Away, ByteRange, Condition, DeleteOptions, ErrorKind, ListOptions, Meta, Scope, Seal,
    Space, Store, StoreOptions, Upload, VersionId,
};

/// Inline, small and large values of an engine, and one beyond a buffer.
const SIZES: [usize; 4] = [1, 3000, 100_000, (3 << 20) + 5];

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace("away").await;
    let put = subject.put("away", "probe", b"bytes").await;
    let address = Address::object("away", b"probe");
    match subject.store.let_go(address, &put.meta, Away(1)).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => return,
        done => done.expect("let go"),
    }
    subject.delete("away", "probe").await;
    forgets(subject, &[1]);
    for (at, size) in SIZES.into_iter().enumerate() {
        there_and_back(subject, &content(at as u64, size), 100 + 10 * at as u128).await;
    }
    refusals(subject).await;
    endings(subject).await;
    versions(subject).await;
    bodies(subject).await;
}

/// Asserts which names were told as forgotten since this was asked last.
#[track_caller]
fn forgets<S: Store>(subject: &Subject<S>, names: &[u128]) {
    let mut told: Vec<u128> = subject
        .store
        .forgotten()
        .iter()
        .map(|away| away.0)
        .collect();
    told.sort_unstable();
    assert_eq!(told, names, "names that nothing refers to any more");
}

async fn is_away<S: Store>(
    subject: &Subject<S>,
    address: Address<'_>,
    version: Option<VersionId>,
    meta: &Meta,
    name: u128,
) {
    let store = &subject.store;
    assert_eq!(&store.stat(address, version).await.expect("stat"), meta);
    let away = store.away(address, version).await.expect("ask");
    assert_eq!(away, Some(Away(name)));
    let read = store.retrieve(address, version, ByteRange::Full).await;
    let error = read.err().expect("no bytes here");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(error.away(), Some((meta, Away(name))));
    let past = ByteRange::From(meta.size);
    refused(
        store.retrieve(address, version, past).await,
        ErrorKind::RangeNotSatisfiable,
    );
}

async fn there_and_back<S: Store>(subject: &Subject<S>, bytes: &[u8], name: u128) {
    let store = &subject.store;
    let address = Address::object("away", b"key");
    let seal = Seal {
        attributes: attributes(&[("color", "blue")]),
        ..Seal::default()
    };
    let options = StoreOptions::default();
    let stored = put_with(&**store, address, bytes, options, seal).await;
    let meta = stored.expect("store").meta;
    let usage = store.usage(Scope::Namespace("away")).expect("usage");
    let page = list(subject).await;
    assert_eq!(store.away(address, None).await.expect("ask"), None);

    let gone = store.let_go(address, &meta, Away(name)).await;
    gone.expect("let go");
    is_away(subject, address, None, &meta, name).await;
    assert_eq!(store.usage(Scope::Namespace("away")).expect("usage"), usage);
    assert_eq!(list(subject).await, page, "a value is listed as before");
    assert_eq!(
        store.exist(&[address]).await.expect("exist"),
        [Some(meta.clone())]
    );
    forgets(subject, &[]);

    let amended = store
        .amend(address, None, Some(&meta), attributes(&[("color", "red")]))
        .await
        .expect("amend");
    is_away(subject, address, None, &amended, name).await;

    // One that is given up, and one with other bytes, change nothing.
    let mut upload = store
        .take_back(address, None, Away(name))
        .await
        .expect("begin");
    fill(&mut upload, &bytes[..bytes.len() / 2])
        .await
        .expect("write");
    drop(upload);
    let mut wrong = bytes.to_vec();
    wrong[bytes.len() / 2] ^= 1;
    refused(
        back(subject, address, None, name, &wrong).await,
        ErrorKind::Corrupt,
    );
    is_away(subject, address, None, &amended, name).await;

    let version = Some(amended.version);
    let meta = back(subject, address, version, name, bytes)
        .await
        .expect("take back");
    assert_eq!(meta, amended);
    assert_eq!(meta.crc64nvme, crc64nvme(bytes));
    assert_eq!(store.usage(Scope::Namespace("away")).expect("usage"), usage);
    assert_eq!(subject.get("away", "key").await.expect("there"), bytes);
    assert_eq!(store.away(address, None).await.expect("ask"), None);
    forgets(subject, &[name]);
}

async fn list<S: Store>(subject: &Subject<S>) -> crate::ListPage {
    let options = ListOptions {
        namespace: "away",
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after: crate::After::Start,
        limit: 10,
    };
    subject.store.list(options).await.expect("list")
}

async fn back<S: Store>(
    subject: &Subject<S>,
    address: Address<'_>,
    version: Option<VersionId>,
    name: u128,
    bytes: &[u8],
) -> crate::Result<Meta> {
    let begun = subject.store.take_back(address, version, Away(name));
    let mut upload = begun.await?;
    fill(&mut upload, bytes).await?;
    Ok(upload.commit(Seal::default()).await?.meta)
}

async fn refusals<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let address = Address::object("away", b"refused");
    let old = subject.put("away", "refused", b"old bytes").await.meta;
    subject.clock.advance(1);
    let new = subject.put("away", "refused", b"new bytes").await.meta;
    refused(
        store.let_go(address, &old, Away(200)).await,
        ErrorKind::PreconditionFailed,
    );
    refused(
        store
            .let_go(Address::object("away", b"none"), &new, Away(200))
            .await,
        match new.version {
            VersionId::NULL => ErrorKind::NoSuchVersion,
            _ => ErrorKind::NotFound,
        },
    );
    let empty = subject.put("away", "empty", b"").await.meta;
    let of_nothing = store.let_go(Address::object("away", b"empty"), &empty, Away(200));
    refused(of_nothing.await, ErrorKind::Invalid);
    let staged = subject.stage("away", "part", b"part").await.meta;
    let of_part = store.let_go(Address::staging("away", b"part"), &staged, Away(200));
    refused(of_part.await, ErrorKind::Invalid);
    refused(
        store.take_back(address, None, Away(200)).await,
        ErrorKind::PreconditionFailed,
    );

    store
        .let_go(address, &new, Away(201))
        .await
        .expect("let go");
    refused(
        store.let_go(address, &new, Away(202)).await,
        ErrorKind::PreconditionFailed,
    );
    refused(
        store.take_back(address, None, Away(202)).await,
        ErrorKind::PreconditionFailed,
    );
    // What comes back to a value that was replaced meanwhile is too late.
    let mut late = store
        .take_back(address, None, Away(201))
        .await
        .expect("begin");
    fill(&mut late, b"new bytes").await.expect("write");
    let is_new = Condition::IfMatch(new.etag);
    subject
        .try_put(address, b"newest", is_new)
        .await
        .expect("a condition holds of a value whose bytes are away");
    refused(
        late.commit(Seal::default()).await,
        ErrorKind::PreconditionFailed,
    );
    assert_eq!(
        subject.get("away", "refused").await.expect("there"),
        b"newest"
    );
    forgets(subject, &[201]);
}

/// A value whose bytes are away ends like any other.
async fn endings<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let address = Address::object("away", b"ends");
    let before = store.usage(Scope::Namespace("away")).expect("usage");
    let seal = Seal {
        expires: Some(subject.clock.now() + 50),
        ..Seal::default()
    };
    let options = StoreOptions::default();
    let stored = put_with(&**store, address, b"for a while", options, seal).await;
    let meta = stored.expect("store").meta;
    store
        .let_go(address, &meta, Away(300))
        .await
        .expect("let go");
    subject.clock.advance(60);
    refused(store.stat(address, None).await, ErrorKind::NotFound);
    refused(store.away(address, None).await, ErrorKind::NotFound);
    // Whatever changes the store next finds it past its time.
    subject.put("away", "ends", b"again").await;
    let meta = store.stat(address, None).await.expect("stat");
    store
        .let_go(address, &meta, Away(301))
        .await
        .expect("let go");
    subject.delete("away", "ends").await;
    refused(store.stat(address, None).await, ErrorKind::NotFound);
    forgets(subject, &[300, 301]);
    assert_eq!(
        store.usage(Scope::Namespace("away")).expect("usage"),
        before
    );
}

async fn versions<S: Store>(subject: &Subject<S>) {
    if !subject.store.caps().versions {
        return;
    }
    let store = &subject.store;
    subject.versioned_namespace("away-versions").await;
    let address = Address::object("away-versions", b"key");
    let first = subject.put("away-versions", "key", b"first").await.meta;
    let second = subject.put("away-versions", "key", b"second").await.meta;
    store
        .let_go(address, &first, Away(400))
        .await
        .expect("kept");
    store
        .let_go(address, &second, Away(401))
        .await
        .expect("current");
    is_away(subject, address, Some(first.version), &first, 400).await;
    is_away(subject, address, None, &second, 401).await;
    // The current one goes for good: the kept one comes forward, as it is.
    let only = DeleteOptions {
        version: Some(second.version),
        ..DeleteOptions::default()
    };
    store.delete(address, only).await.expect("delete");
    forgets(subject, &[401]);
    is_away(subject, address, None, &first, 400).await;
    // Hidden by a marker it is still there, and takes its bytes back where it stands.
    subject.delete("away-versions", "key").await;
    let version = Some(first.version);
    let meta = back(subject, address, version, 400, b"first").await;
    assert_eq!(meta.expect("take back"), first);
    let object = store.retrieve(address, version, ByteRange::Full).await;
    assert_eq!(drain(object.expect("retrieve")).await, b"first");
    forgets(subject, &[400]);
}

/// A body that is being read stays whole while its bytes are let go.
async fn bodies<S: Store>(subject: &Subject<S>) {
    let bytes = content(9, (2 << 20) + 77);
    let meta = subject.put("away", "read", &bytes).await.meta;
    let address = Address::object("away", b"read");
    let object = subject.store.retrieve(address, None, ByteRange::Full);
    let object = object.await.expect("retrieve");
    let gone = subject.store.let_go(address, &meta, Away(500)).await;
    gone.expect("let go");
    for other in 0..4 {
        let name = format!("other-{other}");
        subject.put("away", &name, &content(other, 1 << 20)).await;
    }
    assert_eq!(try_drain(object).await.expect("read"), bytes);
    let back = back(subject, address, None, 500, &bytes).await;
    assert_eq!(back.expect("take back"), meta);
    forgets(subject, &[500]);
}
