//! What a cluster refuses: a client that it has blocklisted, and what a pool's quota has no room for.

mod support;

use std::time::{Duration, Instant};

use forebay_rados::RadosStore;
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, ByteRange, ErrorKind, Result, Seal, Store, StoreOptions, Stored, Upload,
};
use support::{
    Cluster, OwnPool, bytes, ceph, cluster, config, get, open, put, rados, runtime, space,
};

const NS: &str = "refused";
const PATIENCE: Duration = Duration::from_secs(5);
/// An operation may take so long; twice, and some time for a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

async fn try_put(store: &RadosStore, key: &[u8], bytes: &[u8]) -> Result<Stored> {
    let options = StoreOptions {
        size: Some(bytes.len() as u64),
        ..StoreOptions::default()
    };
    let mut upload = store.store(Address::object(NS, key), options).await?;
    for piece in bytes.chunks(1 << 20) {
        upload.write(piece.to_vec().into()).await?;
    }
    upload.commit(Seal::default()).await
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(AT_MOST, work).await;
    done.expect("nothing waits for ever")
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_is_blocklisted_is_told_so() {
    let cluster = cluster();
    runtime().block_on(async {
        let mut config = config(&cluster);
        config.patience = PATIENCE;
        config.lease = Duration::from_secs(6);
        // What goes by another one would go on until the lease is over.
        config.connections = 1;
        let registry = format!("{}//forebay", config.base);
        let store = open(config.clone(), TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, 70_000)).await;
        let address = address_of_watcher(&cluster, &registry).await;
        ceph(&cluster, &["osd", "blocklist", "add", &address, "60"]);
        let told = in_time(async {
            loop {
                match try_put(&store, b"k", &bytes(2, 70_000)).await {
                    // The storage daemons have not all heard of it.
                    Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    Err(error) => break error,
                }
            }
        });
        let told = told.await;
        assert!(told.to_string().contains("blocklisted"), "{told}");
        for len in [70_000, 6 << 20] {
            let told = in_time(try_put(&store, b"new", &bytes(3, len))).await;
            let told = told.unwrap_err();
            let unknown = matches!(told.kind(), ErrorKind::Io | ErrorKind::OutcomeUnknown);
            assert!(
                unknown && told.to_string().contains("blocklisted"),
                "{told}"
            );
        }
        let told = in_time(store.retrieve(key, None, ByteRange::Full)).await;
        let told = told.map(drop).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Io);
        assert!(told.to_string().contains("blocklisted"), "{told}");
        in_time(store.close()).await;
        // Another connection is another client: what was acknowledged is there, and what the first one left is cleaned up.
        let store = open(config, TestClock::default());
        assert_eq!(get(&store, key).await.len(), 70_000);
        let begun = Instant::now();
        while store.sweep().await.unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody sweeps");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean() && audit.keys == 1, "{audit:?}");
    });
}

/// The only client that watches the store's registry.
async fn address_of_watcher(cluster: &Cluster, registry: &str) -> String {
    loop {
        // "watcher=127.0.0.1:0/2718281828 client.4123 cookie=94..."
        let told = rados(cluster, registry, &["listwatchers", "namespaces"]);
        let told = String::from_utf8(told).unwrap();
        let word = told.split_whitespace().next();
        if let Some(address) = word.and_then(|word| word.strip_prefix("watcher=")) {
            return address.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_quota_that_is_reached_refuses_values_and_nothing_else() {
    let cluster = cluster();
    runtime().block_on(async {
        let mut config = config(&cluster);
        config.patience = PATIENCE;
        let pool = OwnPool::make(&cluster, format!("quota-{}", config.base), "4");
        config.pool.clone_from(&pool.name);
        let store = open(config, TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, 70_000)).await;
        let quota = |most| pool.set("set-quota", "max_objects", most);
        quota("1");
        // The monitor looks from time to time.
        let mut stored = 0_u32;
        let told = in_time(async {
            loop {
                stored += 1;
                match try_put(&store, &stored.to_le_bytes(), b"v").await {
                    Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    Err(error) => break error,
                }
            }
        });
        let told = told.await;
        assert_eq!(told.kind(), ErrorKind::NoSpace, "{told}");
        assert!(told.to_string().contains("quota"), "{told}");
        let told = in_time(try_put(&store, b"large", &bytes(2, 6 << 20))).await;
        assert_eq!(told.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(in_time(get(&store, key)).await, bytes(1, 70_000));
        in_time(store.delete(key, Default::default()))
            .await
            .unwrap();
        let gone = in_time(store.stat(key, None)).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        quota("0");
        let again = async {
            while let Err(error) = try_put(&store, b"k", b"room again").await {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        in_time(again).await;
        assert_eq!(get(&store, key).await, b"room again");
        store.settle().await.unwrap();
        store.close().await;
    });
}
