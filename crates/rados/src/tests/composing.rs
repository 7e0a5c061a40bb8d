//! Compositions that are cut short, and what meets them: who makes sure that nothing comes late, and what comes late all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::{After, DeleteOptions, Item, ListOptions};

use super::*;
use crate::claims::staged;
use crate::core::Core;
use crate::heads::CLAIM;

const NS: &str = "joined";
/// A gateway that nobody has ever seen, and a composition of its.
const DEAD: u64 = 7;
const NUMBER: u128 = (DEAD as u128) << 64 | 1;
/// More than are worked on at once.
const PARTS: u8 = 64;
const PART: usize = 70_000;

fn target() -> Address<'static> {
    Address::object(NS, b"k")
}

fn part() -> Address<'static> {
    Address::staging(NS, b"part")
}

async fn compose(store: &RadosStore, parts: &[Source<'_>]) {
    let (options, seal) = (StoreOptions::default(), Seal::default());
    let joined = store.compose(target(), parts, &[], options, seal).await;
    joined.unwrap();
}

async fn staged_keys(store: &RadosStore) -> Vec<Vec<u8>> {
    let options = ListOptions {
        namespace: NS,
        space: Space::Staging,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit: 1000,
    };
    let page = store.list(options).await.unwrap();
    let key = |item| match item {
        Item::Value(key, _) | Item::Prefix(key) => key.to_vec(),
    };
    page.items.into_iter().map(key).collect()
}

/// Nothing is left lying.
async fn is_clean(store: &RadosStore) {
    for _ in 0..2 {
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
    }
    let audit = store.audit(NS).await.unwrap();
    assert!(audit.is_clean(), "{audit:#?}");
}

/// Claims the part for a composition of the dead gateway.
async fn claim(core: &Arc<Core>, namespace: &Arc<Namespace>) {
    let part = staged(b"part".to_vec());
    let seen = core.look(namespace, &part).await.unwrap();
    let (place, object) = namespace.object(part.space, &part.key);
    let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
    op.set_xattr(CLAIM, &NUMBER.to_le_bytes());
    let stamp = seen.head.as_ref().map(|head| head.stamp);
    let claimed = core.access.write(place, &object, op, stamp, 0);
    claimed.await.unwrap();
}

#[test]
fn who_makes_sure_that_nothing_comes_late_takes_no_bytes_from_the_target() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let keys: Vec<[u8; 2]> = (0..PARTS).map(|number| [b'p', number]).collect();
        let mut whole = Vec::new();
        for (number, key) in (0..).zip(&keys) {
            let value = bytes(number, PART);
            put(&store, Address::staging(NS, key), &value).await;
            whole.extend(value);
        }
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let first = staged(keys[0].to_vec());
        // It goes no further than to claim its parts.
        let held = core.lock(namespace.id, &Named::object(b"k".to_vec())).await;
        let over = AtomicBool::new(false);
        let joining = async {
            let parts: Vec<_> = keys.iter().map(|key| Source::any(key)).collect();
            compose(&store, &parts).await;
            over.store(true, Relaxed);
        };
        let fencing = async {
            let claimed = async {
                while core.look(&namespace, &first).await.unwrap().claim.is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(claimed, "the first part is claimed").await;
            core.look_fenced(&namespace, &first).await.unwrap();
            drop(held);
            while !over.load(Relaxed) {
                core.look_fenced(&namespace, &first).await.unwrap();
            }
        };
        tokio::join!(joining, fencing);
        // As a door does that has completed an upload.
        for key in staged_keys(&store).await {
            let gone = store.delete(Address::staging(NS, &key), DeleteOptions::default());
            gone.await.unwrap();
        }
        is_clean(&store).await;
        assert!(get(&store, target()).await == whole);
    });
}

#[test]
fn the_claim_of_a_composition_that_is_over_keeps_no_part() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, part(), b"joined").await;
        store.settle().await.unwrap();
        let namespace = store.core().namespace(NS).unwrap();
        claim(store.core(), &namespace).await;
        let parts = [Source::any(b"part")];
        let options = StoreOptions::default();
        let joined = store.compose(target(), &parts, &[b"part"], options, Seal::default());
        joined.await.unwrap();
        assert_eq!(get(&store, target()).await, b"joined");
        is_clean(&store).await;
    });
}

#[test]
fn a_change_that_was_cut_short_frees_no_joined_part() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let part = Address::staging(NS, b"part");
        put(&store, part, &bytes(1, 70_000)).await;
        let freed = segments(&store, NS, Space::Staging, b"part").await;
        store.settle().await.unwrap();
        // A gateway that nobody knows said that it would remove the part, and died before it did.
        let (core, gateway) = (store.core(), 7);
        let namespace = core.namespace(NS).unwrap();
        let pending = Pending {
            named: staged(b"part".to_vec()),
            composes: false,
            freed,
        };
        let entry = (
            names::pending(u128::from(gateway) << 64 | 1),
            pending.encode(),
        );
        namespace.journal.enter(vec![entry]).await.unwrap();
        register_dead(&store, gateway).await;
        let key = Address::object(NS, b"k");
        let parts = [Source::any(b"part")];
        let joined = store.compose(key, &parts, &[], StoreOptions::default(), Seal::default());
        joined.await.unwrap();
        store.settle().await.unwrap();
        assert_eq!(store.sweep().await.unwrap(), 1);
        store.sweep().await.unwrap();
        assert!(get(&store, key).await == bytes(1, 70_000));
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}

#[test]
fn a_composition_that_nobody_waits_for_is_finished() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let namespace = store.core().namespace(NS).unwrap();
        for round in 0..24_u8 {
            let parts = [[b'a', round], [b'b', round], [b'c', round]];
            for part in &parts {
                put(&store, Address::staging(NS, part), &bytes(1, 70_000)).await;
            }
            let sources = [0, 1, 2].map(|at: usize| Source::any(&parts[at]));
            let key = [b'k', round];
            let key = Address::object(NS, &key);
            let joined =
                store.compose(key, &sources, &[], StoreOptions::default(), Seal::default());
            let cut = tokio::time::timeout(Duration::from_micros(400 * u64::from(round)), joined);
            if let Ok(joined) = cut.await {
                joined.unwrap();
            }
        }
        let said = async || {
            let there = crate::audit::names_in(&namespace.index).await.unwrap();
            there.iter().any(|name| name.starts_with(b"compose."))
        };
        let over = async {
            while said().await || !store.core().composing.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), over).await;
        in_time.expect("every composition comes to an end");
        store.settle().await.unwrap();
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}
