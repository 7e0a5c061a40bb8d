//! Older versions while a key changes: what is current and what is kept change places.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::{Body, ByteRange, DeleteOptions, StoreError};

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

/// Changes bytes of a whole value where they lie, as a device does that is failing: neither time nor length show it.
async fn rot(store: &RadosStore, len: usize) {
    let core = store.core();
    let namespace = core.namespace(NS).unwrap();
    let named = Named::object(b"k".to_vec());
    let seen = core.look(&namespace, &named).await.unwrap();
    let (place, object) = namespace.object(Space::Objects, b"k");
    let mut op = WriteOp::new(place).guard(Guard::Exists);
    op.write(len as u64 - 1, b"?");
    let stamp = seen.head.as_ref().map(|head| head.stamp);
    let written = core.access.write(place, &object, op, stamp, 0);
    written.await.unwrap();
}

#[test]
fn a_damaged_value_stays_damaged_as_an_older_version() {
    let Some(cluster) = cluster() else {
        return;
    };
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        versioned(&store, NS).await;
        let len = (1 << 20) + 70_000;
        for removed in [false, true] {
            put(&store, key(), &bytes(1, len)).await;
            let first = store.stat(key(), None).await.unwrap().version;
            rot(&store, len).await;
            // What is current is replaced and removed all the same.
            if removed {
                store.delete(key(), Default::default()).await.unwrap();
            } else {
                put(&store, key(), b"second").await;
                assert_eq!(get(&store, key()).await, b"second");
            }
            let read = async |range| {
                let found = store.retrieve(key(), Some(first), range).await?;
                let mut body = found.body;
                let mut read = Vec::new();
                while let Some(buf) = body.next().await? {
                    read.extend_from_slice(&buf);
                }
                Ok::<_, StoreError>(read)
            };
            let refused = read(ByteRange::Full).await.map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
            // Its other blocks are as they were.
            let sound = read(ByteRange::Inclusive(0, 999)).await.unwrap();
            assert!(sound == bytes(1, 1000));
        }
    });
}
