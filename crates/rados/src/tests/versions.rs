//! Older versions while a key changes: what is current and what is kept change places.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::listing::versions_before;
use forebay_store::{
    After, Attributes, Body, ByteRange, DeleteOptions, StoreError, VersionPage, Versioning,
};

use super::*;
use crate::kept::Search;
use crate::record::{Kept, Layout, Value};
use crate::support::{drain, versioned};

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

/// Of a namespace that keeps versions, all of which expire after a second.
fn passing() -> NamespaceConfig {
    NamespaceConfig {
        tenant: "acme".to_owned(),
        ttl_ms: Some(1000),
        versioning: Versioning::Enabled,
        ..NamespaceConfig::default()
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_version_is_listed_whatever_is_put_over_it() {
    let cluster = cluster();
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
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_version_keeps_its_stripes_whatever_is_put_over_it() {
    let cluster = cluster();
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
            let looked = core.look_for(&namespace, &named, &stripes).await;
            assert_eq!(looked.unwrap().1, stripes);
        };
        put_over_and_remove(&store, look).await;
        assert!(get(&store, key()).await == bytes(1, (5 << 20) + 1));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_key_that_is_far_ahead_takes_no_other_along() {
    let cluster = cluster();
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
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_damaged_value_stays_damaged_as_an_older_version() {
    let cluster = cluster();
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

/// A page of versions behind another one.
async fn page(store: &RadosStore, after: After<'_>, limit: usize) -> VersionPage {
    let options = ListOptions {
        namespace: NS,
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after,
        limit,
    };
    store.list_versions(options).await.unwrap()
}

fn ids(page: &VersionPage) -> Vec<VersionId> {
    let id = |item: &VersionItem| match item {
        VersionItem::Value { meta, .. } => meta.version,
        VersionItem::Marker { version, .. } => *version,
        VersionItem::Prefix(_) => panic!("no delimiter was given"),
    };
    page.items.iter().map(id).collect()
}

/// Puts so many versions; they come back oldest first.
async fn put_many(store: &RadosStore, count: usize) -> Vec<VersionId> {
    let mut versions = Vec::new();
    for _ in 0..count {
        put(store, key(), b"v").await;
        versions.push(store.stat(key(), None).await.unwrap().version);
    }
    versions
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_page_of_versions_reads_what_it_shows() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        versioned(&store, NS).await;
        let mut versions = put_many(&store, 150).await;
        versions.reverse();
        store.settle().await.unwrap();
        // The oldest cannot be read.
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let (place, object) = namespace.object(Space::Objects, b"k");
        let seen = core.look(&namespace, &Named::object(b"k".to_vec())).await;
        let stamp = seen.unwrap().head.unwrap().stamp;
        let oldest = Kept::name(versions[149].0);
        let mut op = WriteOp::new(place).guard(Guard::Exists);
        op.omap_set([(&oldest[..], &b"????"[..])]);
        let written = core.access.write(place, &object, op, Some(stamp), 0);
        written.await.unwrap();
        for limit in [1, 10] {
            let first = page(&store, After::Start, limit).await;
            assert!(first.more && first.passed_over.is_empty());
            assert_eq!(ids(&first), versions[..limit]);
            let amid = page(&store, After::Version(b"k", versions[99]), limit).await;
            assert!(amid.more && amid.passed_over.is_empty());
            assert_eq!(ids(&amid), versions[100..100 + limit]);
        }
        let all = page(&store, After::Start, 1000).await;
        assert!(!all.more && !all.passed_over.is_empty());
        assert_eq!(ids(&all), versions[..149], "but the oldest");
        // Who enters the key in the index has no need of what is kept.
        core.find_out(&namespace, Named::object(b"k".to_vec()));
        store.settle().await.unwrap();
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_page_goes_on_behind_any_version() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        versioned(&store, NS).await;
        let mut state = 7_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        put(&store, Address::object(NS, b"k\0"), b"another").await;
        let mut known = vec![VersionId::NULL];
        for _ in 0..60 {
            let versioning = match random(3) {
                0 => Versioning::Suspended,
                _ => Versioning::Enabled,
            };
            let config = NamespaceConfig {
                tenant: "acme".to_owned(),
                versioning,
                ..NamespaceConfig::default()
            };
            store.update_namespace(NS, None, config).await.unwrap();
            let version = match random(2) {
                0 => None,
                _ => Some(known[random(known.len() as u32) as usize]),
            };
            let options = DeleteOptions {
                version,
                ..DeleteOptions::default()
            };
            match random(3) {
                0 => drop(store.delete(key(), options).await.unwrap()),
                _ => put(&store, key(), b"v").await,
            }
            let all = page(&store, After::Start, 1000).await;
            let here = ids(&all);
            let here = &here[..here.len() - 1];
            known.extend(here.first());
            known.sort();
            known.dedup();
            for version in &known {
                let rest = page(&store, After::Version(b"k", *version), 1000).await;
                let passed = versions_before(here.iter().copied(), *version);
                // Of one that is gone the null version may be the newer one, which no id tells.
                let is_gone = !here.contains(version);
                let may_pass = is_gone && here.get(passed) == Some(&VersionId::NULL);
                let passed = [passed, passed + usize::from(may_pass)];
                let is_right = passed.iter().any(|at| rest.items == all.items[*at..]);
                assert!(is_right, "{version:?} of {here:?}: {:?}", ids(&rest));
            }
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn more_versions_than_are_dropped_at_once_expire() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(short_lived(&cluster), clock.clone());
        store.create_namespace(NS, passing()).await.unwrap();
        put_many(&store, 600).await;
        clock.advance(500);
        let stays = put_many(&store, 3).await;
        clock.advance(600);
        assert_eq!(versions(&store, NS).await.len(), 3);
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
        store.settle().await.unwrap();
        let usage = store.usage(Scope::Namespace(NS)).unwrap();
        assert_eq!(usage.objects, 3);
        let mut left = versions(&store, NS).await;
        left.reverse();
        assert_eq!(left, stays);
        clock.advance(1000);
        store.sweep().await.unwrap();
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean() && audit.keys == 0, "{audit:?}");
    });
}

/// Has so many older versions beside a value, which expire when it does.
async fn keep_many(store: &RadosStore, count: u64) {
    keep_striped(store, count, 0).await;
}

/// The same of such as have a byte in each of so many segments.
async fn keep_striped(store: &RadosStore, count: u64, segments: u64) {
    let core = store.core();
    let namespace = core.namespace(NS).unwrap();
    let named = Named::object(b"k".to_vec());
    let seen = core.look(&namespace, &named).await.unwrap();
    let mut head = Head::clone(seen.head.as_ref().unwrap());
    let current = head.current.clone().unwrap();
    let segment = |id| Segment {
        id: u128::from(id),
        len: 1,
        stripe_bytes: core.config.object_bytes,
    };
    let older = (1..=count).map(|before| {
        let ids = before * segments..(before + 1) * segments;
        Kept::Value(Value {
            seq: current.seq - before,
            size: segments,
            layout: Layout::Striped(ids.map(segment).collect()),
            ..current.clone()
        })
    });
    let older: Vec<_> = older
        .map(|kept| (Kept::name(kept.seq()), kept.encode()))
        .collect();
    head.kept += count as u32;
    head.usage.objects += count;
    head.usage.bytes += count * segments;
    let (place, object) = namespace.object(Space::Objects, b"k");
    let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
    set_record(&mut op, &namespace, &head.encode(), seen.pieces);
    op.omap_set(older.iter().map(|(name, kept)| (&name[..], &kept[..])));
    let written = core.access.write(place, &object, op, Some(head.stamp), 0);
    written.await.unwrap();
    core.heads.forget(namespace.id, &named);
    core.find_out(&namespace, named);
    store.settle().await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn strays_are_looked_for_however_often_a_key_changes() {
    let cluster = cluster();
    // So many are not looked through between two changes.
    const COUNT: u64 = 20_000;
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(short_lived(&cluster), clock.clone());
        versioned(&store, NS).await;
        let len = (5 << 20) + 1;
        put(&store, key(), &bytes(1, len)).await;
        let oldest = store.stat(key(), None).await.unwrap().version;
        clock.advance(1000);
        put(&store, key(), b"v").await;
        keep_many(&store, COUNT).await;
        let over = AtomicBool::new(false);
        let changing = async {
            while !over.load(Relaxed) {
                let amended = store.amend(key(), None, None, Attributes::EMPTY);
                amended.await.unwrap();
            }
        };
        let looking = async {
            let found = store.find_strays(NS).await;
            over.store(true, Relaxed);
            assert_eq!(found.unwrap(), 0);
        };
        tokio::join!(changing, looking);
        let found = store.retrieve(key(), Some(oldest), ByteRange::Full).await;
        assert!(drain(found.unwrap()).await == bytes(1, len));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn of_versions_that_expire_each_is_read_once() {
    let cluster = cluster();
    const COUNT: u64 = 5000;
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(config(&cluster), clock.clone());
        store.create_namespace(NS, passing()).await.unwrap();
        put(&store, key(), b"v").await;
        store.settle().await.unwrap();
        keep_many(&store, COUNT).await;
        let held = || store.usage(Scope::Namespace(NS)).unwrap().objects;
        assert_eq!(held(), COUNT + 1);
        clock.advance(1001);
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let only = core.cleaning.lock().await;
        let reads = || core.access.reads.load(Relaxed);
        let before = reads();
        core.expire(&namespace).await.unwrap();
        let read = reads() - before;
        // Some hundred at a time, and what there is to look at besides.
        assert!(read < 50, "{read} reads");
        assert_eq!(held(), 0);
        drop(only);
        for _ in 0..2 {
            store.settle().await.unwrap();
            store.sweep().await.unwrap();
        }
        let audit = store.audit(NS).await.unwrap();
        assert!(audit.is_clean() && audit.keys == 0, "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn no_more_versions_expire_at_once_than_a_line_of_the_journal_may_name() {
    let cluster = cluster();
    // As many as a value has that was put together.
    const SEGMENTS: u64 = 10_000;
    const COUNT: u64 = 8;
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(config(&cluster), clock.clone());
        store.create_namespace(NS, passing()).await.unwrap();
        put(&store, key(), b"v").await;
        store.settle().await.unwrap();
        keep_striped(&store, COUNT, SEGMENTS).await;
        clock.advance(1001);
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let named = Named::object(b"k".to_vec());
        let seen = core.look(&namespace, &named).await.unwrap();
        let mut search = Search::new();
        let looked = core.expired(&namespace, &named, &seen, core.now(), &mut search);
        let view = looked.await.unwrap().expect("nobody changes it");
        assert_eq!(view.expired.len(), 7, "the others go with the next change");
        core.expire(&namespace).await.unwrap();
        let held = store.usage(Scope::Namespace(NS)).unwrap();
        assert_eq!((held.objects, held.bytes), (0, 0));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_is_current_next_is_behind_any_number_of_versions_past_their_time() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(config(&cluster), clock.clone());
        versioned(&store, NS).await;
        put(&store, key(), b"lasting").await;
        let lasting = store.stat(key(), None).await.unwrap().version;
        let now = NamespaceConfig {
            tenant: "acme".to_owned(),
            versioning: Versioning::Enabled,
            ..NamespaceConfig::default()
        };
        let passing = NamespaceConfig {
            ttl_ms: Some(1000),
            ..now.clone()
        };
        store.update_namespace(NS, None, passing).await.unwrap();
        put_many(&store, 700).await;
        store.update_namespace(NS, None, now).await.unwrap();
        let current = put_many(&store, 1).await[0];
        clock.advance(2000);
        let options = DeleteOptions {
            version: Some(current),
            ..DeleteOptions::default()
        };
        store.delete(key(), options).await.unwrap();
        assert_eq!(get(&store, key()).await, b"lasting");
        assert_eq!(store.stat(key(), None).await.unwrap().version, lasting);
    });
}
