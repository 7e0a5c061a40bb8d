//! Many at once: nobody keeps from others what the library is done with, however long he is in coming to look.

mod support;

use std::time::Duration;

use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;
use forebay_store::{Address, Body, ByteRange, Store};
use futures_util::future::join_all;
use support::{Cluster, bytes, cluster, config, get, put, runtime, space};

const NS: &str = "crowd";
/// More than are with the library with eight pieces each.
const UPLOADERS: u8 = 40;
/// More than are with the library with a stripe each.
const READERS: usize = 70;
/// Nine pieces in three stripes.
const STRIPED: usize = 9 << 20;
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
fn uploads_wait_for_nobody_who_waits() {
    let Some(cluster) = cluster() else {
        return;
    };
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
fn readers_who_stop_keep_nobody_out() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = store(&cluster);
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, STRIPED)).await;
        let mut left = Vec::new();
        for _ in 0..READERS {
            let mut found = store.retrieve(key, None, ByteRange::Full).await.unwrap();
            let first = in_time(found.body.next()).await.unwrap();
            assert!(first.is_some());
            left.push(found);
        }
        let meta = in_time(store.stat(key, None)).await.unwrap();
        assert_eq!(meta.size, STRIPED as u64);
    });
}
