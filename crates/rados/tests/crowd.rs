//! Many at once: nobody keeps from others what the library is done with, however long he is in coming to look.

mod support;

use std::time::Duration;

use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;
use forebay_store::{Address, Body, ByteRange, Store, StoreOptions, Upload};
use futures_util::future::join_all;
use support::{Cluster, bytes, cluster, config, get, put, runtime, space};

const NS: &str = "crowd";
/// More than have room with the library for eight pieces each: so many an upload sends without looking what became of them.
const UPLOADERS: u8 = 40;
/// Many more than have room for a stripe each: a busy machine may be done with one before it is looked for.
const READERS: usize = 120;
/// Some pieces more than that.
const STRIPED: usize = 13 << 20;
/// Enough for everybody: what is short is not memory.
const POOL_BYTES: usize = 1 << 30;
const AT_MOST: Duration = Duration::from_secs(30);

fn store(cluster: &Cluster) -> RadosStore {
    let (config, clock) = (config(cluster), TestClock::default());
    let config = Config {
        grace: Duration::ZERO,
        ..config
    };
    RadosStore::open(config, Pool::new(POOL_BYTES), move || clock.now()).unwrap()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(AT_MOST, work).await;
    done.expect("nobody waits for ever")
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn uploads_wait_for_nobody_who_waits() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = store(&cluster);
        space(&store, NS).await;
        let value = bytes(1, STRIPED);
        let keys: Vec<[u8; 1]> = (0..UPLOADERS).map(|number| [number]).collect();
        let at = |key| Address::object(NS, key);
        in_time(join_all(
            keys.iter().map(|key| put(&store, at(key), &value)),
        ))
        .await;
        assert!(get(&store, at(&keys[0])).await == value);
        for key in &keys {
            store.delete(at(key), Default::default()).await.unwrap();
        }
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean() && audit.keys == 0, "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn writers_who_stop_keep_nobody_out() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = store(&cluster);
        space(&store, NS).await;
        put(&store, Address::object(NS, b"k"), b"v").await;
        let mut left = Vec::new();
        for number in 0..UPLOADERS {
            let options = StoreOptions {
                size: Some(STRIPED as u64),
                ..StoreOptions::default()
            };
            let key = [number];
            let upload = store.store(Address::object(NS, &key), options);
            let mut upload = upload.await.unwrap();
            for _ in 0..8 {
                let piece = bytes(number, 1 << 20).into();
                in_time(upload.write(piece)).await.unwrap();
            }
            left.push(upload);
        }
        assert_eq!(in_time(get(&store, Address::object(NS, b"k"))).await, b"v");
        drop(left);
        store.close().await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn readers_who_stop_keep_nobody_out() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = store(&cluster);
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, STRIPED)).await;
        // A block, which is there at once, and then all of a stripe.
        let range = ByteRange::From((4 << 20) - (64 << 10));
        let mut left = Vec::new();
        for _ in 0..READERS {
            let mut found = store.retrieve(key, None, range).await.unwrap();
            let first = in_time(found.body.next()).await.unwrap();
            assert!(first.is_some());
            left.push(found);
        }
        let meta = in_time(store.stat(key, None)).await.unwrap();
        assert_eq!(meta.size, STRIPED as u64);
    });
}
