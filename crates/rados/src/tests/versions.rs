//! Older versions while a key changes: what is current and what is kept change places.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::DeleteOptions;

use super::*;
use crate::support::versioned;

const NS: &str = "versions";
const ROUNDS: usize = 100;

fn key() -> Address<'static> {
    Address::object(NS, b"k")
}

/// Puts another version over the first, and removes it, again and again; `look` looks all the while.
async fn put_over_and_remove(store: &RadosStore, look: impl AsyncFn()) {
    let over = AtomicBool::new(false);
    let changing = async {
        for _ in 0..ROUNDS {
            put(store, key(), b"second").await;
            let options = DeleteOptions {
                version: Some(store.stat(key(), None).await.unwrap().version),
                ..DeleteOptions::default()
            };
            store.delete(key(), options).await.unwrap();
        }
        over.store(true, Relaxed);
    };
    let looking = async {
        while !over.load(Relaxed) {
            look().await;
        }
    };
    tokio::join!(changing, looking);
}

#[test]
fn a_version_is_listed_whatever_is_put_over_it() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        versioned(&store, NS).await;
        put(&store, key(), b"first").await;
        let first = store.stat(key(), None).await.unwrap().version;
        let look = async || {
            let listed = versions(&store, NS).await;
            assert!(listed.contains(&first), "{listed:?}");
        };
        put_over_and_remove(&store, look).await;
        assert_eq!(versions(&store, NS).await, [first]);
    });
}

#[test]
fn a_version_keeps_its_stripes_whatever_is_put_over_it() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        versioned(&store, NS).await;
        put(&store, key(), &bytes(1, (5 << 20) + 1)).await;
        let stripes = segments(&store, NS, Space::Objects, b"k").await;
        let stripes: HashSet<u128> = stripes.iter().map(|segment| segment.id).collect();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let named = Named::object(b"k".to_vec());
        let look = async || {
            let (_, referenced) = core.look_raw(&namespace, &named).await.unwrap();
            assert!(referenced.is_superset(&stripes), "{referenced:?}");
        };
        put_over_and_remove(&store, look).await;
        assert!(get(&store, key()).await == bytes(1, (5 << 20) + 1));
    });
}

#[test]
fn a_key_that_is_far_ahead_takes_no_other_along() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        let core = store.core();
        let (before, far) = (core.fresh(0).0, u64::MAX / 2);
        assert!(core.fresh(far).0 > far);
        let after = core.fresh(0).0;
        assert!(before < after && after < far);
    });
}
