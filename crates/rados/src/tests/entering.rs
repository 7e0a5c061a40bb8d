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

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_no_storage_daemon_takes_in_one_write_is_entered() {
    let cluster = cluster();
    // Together more than `osd_max_write_size`.
    const LINES: u128 = 100;
    const LINE_BYTES: usize = 1 << 20;
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let journal = &namespace.journal;
        let pending = Pending {
            named: Named::object(b"k".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let entry = names::pending(core.number());
        let entered = journal.enter(vec![(entry.clone(), pending.encode())]);
        entered.await.unwrap();
        let name = |number| names::garbage(u64::MAX, number);
        let lines = (0..LINES).map(|number| (name(number), vec![0; LINE_BYTES]));
        journal.later(lines.collect(), [entry]);
        core.flush_journal(&namespace).await.unwrap();
        // What comes afterwards does, too.
        put(&store, Address::object(NS, b"k"), b"v").await;
        is_entered(&store).await;
        let mut found = 0;
        let each = |_, _| found += 1;
        let read = core.keys(&namespace.index, journal.object(), names::GARBAGE, each);
        read.await.unwrap();
        assert_eq!(found, LINES);
        journal.later(Vec::new(), (0..LINES).map(name));
        core.flush_journal(&namespace).await.unwrap();
    });
}
