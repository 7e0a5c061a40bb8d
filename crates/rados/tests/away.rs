//! Bytes let go and taken back, where other hands and other gateways have a say.

mod support;

use std::time::Duration;

use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, Away, DeleteOptions, ErrorKind, Seal, Store, StoreOptions, Upload, VersionId,
};
use support::{bytes, cluster, config, fresh, get, open, put, rados, runtime, space, versioned};

const NS: &str = "away";
/// Longer than an object.
const STRIPED: usize = (9 << 20) + 70_001;
const INLINE: usize = 300_001;

fn at(key: &str) -> Address<'_> {
    Address::object(NS, key.as_bytes())
}

async fn let_go(store: &RadosStore, key: &str, name: u128) {
    let meta = store.stat(at(key), None).await.unwrap();
    store.let_go(at(key), &meta, Away(name)).await.unwrap();
}

async fn take_back(store: &RadosStore, key: &str, name: u128, value: &[u8]) {
    let upload = store.take_back(at(key), None, Away(name)).await;
    let mut upload = upload.unwrap();
    for piece in value.chunks(1 << 20) {
        upload.write(piece.to_vec().into()).await.unwrap();
    }
    upload.commit(Seal::default()).await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn nothing_is_left_of_bytes_that_went() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            grace: Duration::ZERO,
            ..config(&cluster)
        };
        let place = format!("{}/{NS}", config.base);
        let stripes = format!("{place}//stripes");
        let store = open(config, clock);
        space(&store, NS).await;
        for (key, len, name) in [("striped", STRIPED, 1), ("inline", INLINE, 2)] {
            let value = bytes(7, len);
            put(&store, at(key), &value).await;
            let_go(&store, key, name).await;
            store.settle().await.unwrap();
            store.sweep().await.unwrap();
            let listed = rados(&cluster, &stripes, &["ls"]);
            assert_eq!(listed, b"", "{key}: the stripes are gone");
            let data = rados(&cluster, &place, &["get", key, "-"]);
            assert_eq!(data, b"", "{key}: the object is empty");
            assert!(store.audit(NS).await.unwrap().is_clean());
            take_back(&store, key, name, &value).await;
            assert_eq!(get(&store, at(key)).await, value);
            store.settle().await.unwrap();
            assert!(store.audit(NS).await.unwrap().is_clean());
            assert_eq!(store.forgotten(), [Away(name)]);
            store
                .delete(at(key), DeleteOptions::default())
                .await
                .unwrap();
        }
        // What came back is as it would be had it been stored: a whole value is its key's object.
        let value = bytes(8, INLINE);
        put(&store, at("key"), &value).await;
        let_go(&store, "key", 3).await;
        take_back(&store, "key", 3, &value).await;
        assert_eq!(rados(&cluster, &place, &["get", "key", "-"]), value);
        store.close().await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn another_hand_writes_over_it() {
    let cluster = cluster();
    let config = config(&cluster);
    let place = format!("{}/{NS}", config.base);
    let folder = std::env::temp_dir().join(&config.base);
    std::fs::write(&folder, b"theirs").unwrap();
    let file = folder.to_str().unwrap().to_owned();
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        space(&store, NS).await;
        put(&store, at("key"), &bytes(1, STRIPED)).await;
        let_go(&store, "key", 1).await;
        rados(&cluster, &place, &["put", "key", &file]);
        assert_eq!(get(&store, at("key")).await, b"theirs");
        assert_eq!(store.away(at("key"), None).await.unwrap(), None);
        assert_eq!(store.forgotten(), [Away(1)]);
        store.settle().await.unwrap();
        assert!(store.audit(NS).await.unwrap().is_clean());
        store.close().await;
    });
    std::fs::remove_file(folder).unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn between_gateways() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            grace: Duration::from_secs(600),
            ..config(&cluster)
        };
        let one = open(config.clone(), clock.clone());
        space(&one, NS).await;
        let other = open(config, clock.clone());
        let value = bytes(3, INLINE);
        put(&one, at("key"), &value).await;
        // The first remembers the value as it was.
        assert_eq!(get(&one, at("key")).await, value);
        let seen = other.stat(at("key"), None).await.unwrap();
        other.let_go(at("key"), &seen, Away(1)).await.unwrap();
        assert_eq!(one.away(at("key"), None).await.unwrap(), Some(Away(1)));
        let read = one
            .retrieve(at("key"), None, forebay_store::ByteRange::Full)
            .await;
        assert_eq!(read.err().unwrap().away(), Some((&seen, Away(1))));
        let again = one.let_go(at("key"), &seen, Away(2)).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::PreconditionFailed);

        // Both take the bytes back: one of them does.
        let mut both = Vec::new();
        for store in [&one, &other] {
            let back = store.take_back(at("key"), Some(VersionId::NULL), Away(1));
            let mut upload = back.await.unwrap();
            upload.write(value.clone().into()).await.unwrap();
            both.push(upload);
        }
        let mut won = 0;
        for upload in both {
            match upload.commit(Seal::default()).await {
                Ok(stored) => {
                    assert_eq!(stored.meta, seen);
                    won += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(get(&one, at("key")).await, value);
        assert_eq!(get(&other, at("key")).await, value);

        // The copy may be being read through the other one: it is told of when the grace is over.
        assert_eq!([one.forgotten(), other.forgotten()].concat(), []);
        clock.advance(600_000);
        assert_eq!([one.forgotten(), other.forgotten()].concat(), [Away(1)]);
        other.close().await;
        one.close().await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_becomes_an_older_version_while_it_comes_back_is_to_come_once_more() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = fresh(&cluster, TestClock::default());
        versioned(&store, NS).await;
        let value = bytes(3, INLINE);
        put(&store, at("key"), &value).await;
        let meta = store.stat(at("key"), None).await.unwrap();
        store.let_go(at("key"), &meta, Away(1)).await.unwrap();
        let version = Some(meta.version);
        let mut late = store
            .take_back(at("key"), version, Away(1))
            .await
            .expect("begin");
        late.write(value.clone().into()).await.unwrap();
        let options = StoreOptions::default();
        let newer = store.store(at("key"), options).await.unwrap();
        newer.commit(Seal::default()).await.unwrap();
        let refused = late.commit(Seal::default()).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::PreconditionFailed);
        let mut again = store.take_back(at("key"), version, Away(1)).await.unwrap();
        again.write(value.clone().into()).await.unwrap();
        assert_eq!(again.commit(Seal::default()).await.unwrap().meta, meta);
        assert_eq!(store.away(at("key"), version).await.unwrap(), None);
        store.settle().await.unwrap();
        assert!(store.audit(NS).await.unwrap().is_clean());
        store.close().await;
    });
}
