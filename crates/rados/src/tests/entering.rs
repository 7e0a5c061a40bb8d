//! What the keeper enters in the index by itself.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

const NS: &str = "entered";

/// Nothing is under way any more, without anybody asking for that.
async fn is_entered(store: &RadosStore) {
    let core = store.core();
    let namespace = core.namespace(NS).unwrap();
    let entered = async {
        while !core.pending(&namespace).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(entered, "it is entered").await;
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn every_change_is_entered() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        for value in [b"1", b"2", b"3"] {
            put(&store, key, value).await;
            is_entered(&store).await;
        }
        // What comes while the keeper is at it is entered after it.
        let namespace = store.core().namespace(NS).unwrap();
        let shard = namespace.shard(&names::entry(key.space, key.key));
        let stuck = shard.hold().await;
        put(&store, key, b"4").await;
        let begun = async {
            while namespace.told.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(begun, "the keeper begins").await;
        put(&store, key, b"5").await;
        put(&store, Address::object(NS, b"other"), b"6").await;
        drop(stuck);
        is_entered(&store).await;
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean() && audit.keys == 2, "{audit:?}");
    });
}
