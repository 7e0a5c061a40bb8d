//! Buffer memory that does not suffice for everybody at once.

mod support;

use std::time::Duration;

use forebay_mem::Pool;
use forebay_rados::RadosStore;
use forebay_store::suite::TestClock;
use forebay_store::{Address, Seal, Store, StoreOptions, Upload};
use futures_util::future::join_all;
use support::{bytes, cluster, config, get, open, put, runtime, space, versioned};

const NS: &str = "memory";
const POOL_BYTES: usize = 4 << 20;
const VALUE_BYTES: usize = 1 << 20;
/// As many as the pool has memory for.
const WRITERS: u8 = (POOL_BYTES / VALUE_BYTES) as u8;
const AT_MOST: Duration = Duration::from_secs(30);

/// Uploads whose bytes are all there, in buffers of the pool.
async fn arrived(store: &RadosStore) -> Vec<impl Upload + use<>> {
    let mut uploads = Vec::new();
    for key in 0..WRITERS {
        let options = StoreOptions {
            size: Some(VALUE_BYTES as u64),
            ..StoreOptions::default()
        };
        let upload = store.store(Address::object(NS, &[key]), options).await;
        let mut upload = upload.unwrap();
        let mut buf = upload.buffer(VALUE_BYTES).await.unwrap();
        buf.set_len(VALUE_BYTES);
        upload.write(buf.freeze()).await.unwrap();
        uploads.push(upload);
    }
    uploads
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_keeps_what_is_replaced_waits_for_nobody_s_buffers() {
    let cluster = cluster();
    runtime().block_on(async {
        let (pool, clock) = (Pool::new(POOL_BYTES), TestClock::default());
        let told = move || clock.now();
        let store = RadosStore::open(config(&cluster), pool.clone(), told).unwrap();
        versioned(&store, NS).await;
        for _ in 0..3 {
            let uploads = arrived(&store).await;
            assert!(pool.try_take(1).is_err(), "nothing is left for a copy");
            let commits = uploads.into_iter().map(|one| one.commit(Seal::default()));
            let done = tokio::time::timeout(AT_MOST, join_all(commits)).await;
            for stored in done.expect("nobody waits for ever") {
                stored.unwrap();
            }
        }
        store.settle().await.unwrap();
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_reads_what_is_longer_than_expected_waits_for_nobody_s_buffers() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let writer = open(config.clone(), clock.clone());
        space(&writer, NS).await;
        let first = Address::object(NS, b"first");
        put(&writer, first, &bytes(1, VALUE_BYTES)).await;
        let keys: Vec<[u8; 1]> = (0..4 * WRITERS).map(|key| [key]).collect();
        for key in &keys {
            let value = bytes(key[0], 3 * VALUE_BYTES);
            put(&writer, Address::object(NS, key), &value).await;
        }
        // One that remembers no record, and has seen a shorter value.
        let (pool, told) = (Pool::new(POOL_BYTES), move || clock.now());
        let reader = RadosStore::open(config, pool, told).unwrap();
        assert!(get(&reader, first).await == bytes(1, VALUE_BYTES));
        let reads = keys
            .iter()
            .map(|key| get(&reader, Address::object(NS, key)));
        let read = tokio::time::timeout(AT_MOST, join_all(reads)).await;
        for (key, value) in keys.iter().zip(read.expect("nobody waits for ever")) {
            assert!(value == bytes(key[0], 3 * VALUE_BYTES));
        }
    });
}
