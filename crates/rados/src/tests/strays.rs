//! Stripes that may be nobody's: those go that nothing refers to, and no others.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_store::ByteRange;
use futures_util::future::poll_immediate;
use tokio::sync::OwnedSemaphorePermit;

use super::*;
use crate::access::UNITS;
use crate::claims::staged;
use crate::core::Core;
use crate::pool::names_in;
use crate::support::{drain, versioned};

const NS: &str = "strays";
/// A gateway that nobody has ever seen.
const DEAD: u64 = 11;
/// Longer than an object.
const STRIPED: usize = (5 << 20) + 1;
const PART: usize = 70_000;

fn at(key: &[u8]) -> Address<'_> {
    Address::object(NS, key)
}

fn part() -> Address<'static> {
    Address::staging(NS, b"part")
}

async fn stripes(store: &RadosStore) -> usize {
    let namespace = store.core().namespace(NS).unwrap();
    names_in(&namespace.stripes).await.unwrap().len()
}

/// Nothing is under way any more, and no stripes are left but what values have.
async fn is_clean(store: &RadosStore) {
    for _ in 0..2 {
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
    }
    let audit = store.audit(NS).await.unwrap();
    assert!(audit.is_clean(), "{audit:#?}");
    assert!(strays(store).await.is_empty());
}

/// What the journal calls strays.
async fn strays(store: &RadosStore) -> Vec<u128> {
    let core = store.core();
    let namespace = core.namespace(NS).unwrap();
    core.flush_journal(&namespace).await.unwrap();
    let mut strays = Vec::new();
    let each = |name: bytes::Bytes, _| strays.extend(names::stray_id(&name).map(|(_, id)| id));
    let journal = namespace.journal.object();
    let read = core.keys(&namespace.index, journal, names::STRAYS, each);
    read.await.unwrap();
    strays
}

/// Removes the object of a key, and nothing else.
async fn remove_object(core: &Core, namespace: &Namespace, space: Space, key: &[u8]) {
    let (place, object) = namespace.object(space, key);
    let mut op = WriteOp::new(place).guard(Guard::Exists);
    op.remove();
    let removed = core.access.write(place, &object, op, None, 0);
    removed.await.unwrap();
}

/// Has a gateway die that has removed the part, before anybody was told.
async fn die_removing(store: &RadosStore, namespace: &Arc<Namespace>) {
    let freed = segments(store, NS, Space::Staging, b"part").await;
    store.settle().await.unwrap();
    let pending = Pending {
        named: staged(b"part".to_vec()),
        composes: false,
        freed,
    };
    let entry = (names::pending(u128::from(DEAD) << 64), pending.encode());
    namespace.journal.enter(vec![entry]).await.unwrap();
    remove_object(store.core(), namespace, Space::Staging, b"part").await;
    register_dead(store, DEAD).await;
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_part_whose_removal_was_cut_short_leaves_no_stripes() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let namespace = store.core().namespace(NS).unwrap();
        for is_replaced in [false, true] {
            put(&store, part(), &bytes(1, PART)).await;
            die_removing(&store, &namespace).await;
            if is_replaced {
                put(&store, part(), &bytes(2, PART)).await;
            }
            assert_eq!(store.sweep().await.unwrap(), 1);
            is_clean(&store).await;
            assert_eq!(stripes(&store).await, usize::from(is_replaced));
        }
        assert!(get(&store, part()).await == bytes(2, PART));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_stray_that_somebody_has_stays() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            grace: Duration::from_secs(600),
            ..short_lived(&cluster)
        };
        let store = open(config, clock.clone());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        put(&store, part(), &bytes(1, PART)).await;
        put(&store, at(b"striped"), &bytes(2, STRIPED)).await;
        put(&store, at(b"a\0b"), &bytes(3, STRIPED)).await;
        let mut all = segments(&store, NS, Space::Staging, b"part").await;
        for key in [&b"striped"[..], b"a\0b"] {
            all.extend(segments(&store, NS, Space::Objects, key).await);
        }
        let options = StoreOptions {
            size: Some(STRIPED as u64),
            ..StoreOptions::default()
        };
        let mut upload = store.store(at(b"coming"), options).await.unwrap();
        for piece in bytes(4, STRIPED)[..2 << 20].chunks(1 << 20) {
            upload.write(piece.to_vec().into()).await.unwrap();
        }
        let lines = crate::strays::lines(core.grace_from_now(), &all).collect();
        namespace.journal.enter(lines).await.unwrap();
        // One of them passes on.
        let (parts, seal) = ([Source::any(b"part")], Seal::default());
        let joined = store.compose(at(b"joined"), &parts, &[], StoreOptions::default(), seal);
        joined.await.unwrap();
        store.sweep().await.unwrap();
        assert_eq!(strays(&store).await.len(), all.len(), "the grace lasts");
        assert_eq!(store.find_strays(NS).await.unwrap(), 0);
        clock.advance(600_001);
        store.sweep().await.unwrap();
        assert!(strays(&store).await.is_empty());
        for piece in bytes(4, STRIPED)[2 << 20..].chunks(1 << 20) {
            upload.write(piece.to_vec().into()).await.unwrap();
        }
        upload.commit(Seal::default()).await.unwrap();
        assert!(get(&store, at(b"joined")).await == bytes(1, PART));
        for (seed, key) in (2..).zip([&b"striped"[..], b"a\0b", b"coming"]) {
            assert!(get(&store, at(key)).await == bytes(seed, STRIPED));
        }
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn stripes_of_what_another_hand_removed_are_found() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        for (seed, key) in (0..).zip([b"a", b"b", b"c"]) {
            put(&store, at(key), &bytes(seed, STRIPED)).await;
        }
        // However few are looked for at once, each is.
        let first = core.stripes_after(&namespace, None, 2).await.unwrap();
        let (last, _) = first.last_key_value().unwrap();
        let rest = core
            .stripes_after(&namespace, Some(*last), 2)
            .await
            .unwrap();
        assert_eq!((first.len(), rest.len()), (2, 1));
        assert!(first.values().chain(rest.values()).all(|last| *last == 1));
        remove_object(core, &namespace, Space::Objects, b"b").await;
        store.adopt(NS).await.unwrap();
        assert_eq!(store.audit(NS).await.unwrap().orphans.len(), 2);
        assert_eq!(store.find_strays(NS).await.unwrap(), 1);
        assert_eq!(store.find_strays(NS).await.unwrap(), 0, "they are known");
        is_clean(&store).await;
        assert_eq!(stripes(&store).await, 4);
        for (seed, key) in [(0, b"a"), (2, b"c")] {
            assert!(get(&store, at(key)).await == bytes(seed, STRIPED));
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn where_something_cannot_be_read_all_stripes_stay() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        for address in [at(b"k"), part()] {
            let Address { space, key, .. } = address;
            put(&store, address, &bytes(1, STRIPED)).await;
            put(&store, at(b"gone"), &bytes(2, STRIPED)).await;
            store.settle().await.unwrap();
            let (place, object) = namespace.object(space, key);
            let mut op = WriteOp::new(place).guard(Guard::Exists);
            op.set_xattr(b"forebay", b"\x04\0\0\0????");
            let damaged = core.access.write(place, &object, op, None, 0);
            damaged.await.unwrap();
            remove_object(core, &namespace, Space::Objects, b"gone").await;
            let refused = store.find_strays(NS).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
            let lost = Segment {
                id: 1,
                len: 1,
                stripe_bytes: core.config.object_bytes,
            };
            let lines = crate::strays::lines(0, &[lost]).collect();
            namespace.journal.enter(lines).await.unwrap();
            let refused = store.sweep().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
            assert_eq!(strays(&store).await, [1], "it is looked for again");
            assert_eq!(stripes(&store).await, 4);
            // What it led to goes when it is gone.
            remove_object(core, &namespace, space, key).await;
            store.adopt(NS).await.unwrap();
            core.find_out(&namespace, staged(b"part".to_vec()));
            assert_eq!(store.find_strays(NS).await.unwrap(), 2);
            is_clean(&store).await;
            assert_eq!(stripes(&store).await, 0);
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn of_a_namespace_that_was_made_anew_nothing_is_taken() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let old = core.namespace(NS).unwrap();
        store.delete_namespace(NS).await.unwrap();
        space(&store, NS).await;
        put(&store, at(b"k"), &bytes(1, STRIPED)).await;
        let refused = core.find_strays(&old).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSuchNamespace);
        is_clean(&store).await;
        assert!(get(&store, at(b"k")).await == bytes(1, STRIPED));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_goes_with_a_composition_is_known_until_it_is_gone() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        put(&store, part(), &bytes(1, PART)).await;
        put(&store, Address::staging(NS, b"other"), &bytes(2, PART)).await;
        let goes = segments(&store, NS, Space::Staging, b"other").await[0];
        // It goes no further than to claim its parts.
        let held = core.lock(namespace.id, &Named::object(b"k".to_vec())).await;
        let joining = async {
            let (parts, seal) = ([Source::any(b"part")], Seal::default());
            let also: [&[u8]; 1] = [b"other"];
            let joined = store.compose(at(b"k"), &parts, &also, StoreOptions::default(), seal);
            joined.await.unwrap();
        };
        let looking = async {
            let named = async {
                while strays(&store).await != [goes.id] {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon(named, "the journal names it").await;
            drop(held);
        };
        tokio::join!(joining, looking);
        is_clean(&store).await;
        assert_eq!(stripes(&store).await, 1);
        assert!(get(&store, at(b"k")).await == bytes(1, PART));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn stripes_of_older_versions_are_no_strays() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        versioned(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        // The second one gets its stripes when it is replaced.
        let lens = [STRIPED, PART, PART];
        let mut kept = Vec::new();
        for (seed, len) in (1..).zip(lens) {
            put(&store, at(b"k"), &bytes(seed, len)).await;
            kept.push(store.stat(at(b"k"), None).await.unwrap().version);
        }
        store.settle().await.unwrap();
        assert_eq!(store.find_strays(NS).await.unwrap(), 0);
        // Nor are they when they are taken for such.
        let all = core.stripes_after(&namespace, None, 100).await.unwrap();
        assert_eq!(all.len(), 2);
        let stripe_bytes = core.config.object_bytes;
        let all = all.into_iter();
        let all: Vec<_> = all
            .filter_map(|(id, last)| Segment::up_to(id, last, stripe_bytes))
            .collect();
        let lines = crate::strays::lines(0, &all).collect();
        namespace.journal.enter(lines).await.unwrap();
        is_clean(&store).await;
        for ((seed, len), version) in (1..).zip(lens).zip(kept) {
            let found = store.retrieve(at(b"k"), Some(version), ByteRange::Full);
            assert!(drain(found.await.unwrap()).await == bytes(seed, len));
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_a_change_lets_go_is_no_stray() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            grace: Duration::from_secs(600),
            ..short_lived(&cluster)
        };
        let store = open(config, clock.clone());
        space(&store, NS).await;
        put(&store, at(b"k"), &bytes(1, STRIPED)).await;
        store.settle().await.unwrap();
        let namespace = store.core().namespace(NS).unwrap();
        let mut held = Vec::new();
        for shard in &namespace.shards {
            held.push(shard.hold().await);
        }
        // As long as the index does not know of it the journal says that it is under way,
        store.delete(at(b"k"), Default::default()).await.unwrap();
        assert_eq!(store.find_strays(NS).await.unwrap(), 0);
        drop(held);
        // and that it is garbage until the grace is over.
        store.settle().await.unwrap();
        assert_eq!(store.find_strays(NS).await.unwrap(), 0);
        assert_eq!(stripes(&store).await, 2);
        clock.advance(600_001);
        is_clean(&store).await;
        assert_eq!(stripes(&store).await, 0);
    });
}

/// Waits until a gateway has begun so many looks at objects.
async fn begins_to_look(core: &Core, looks: usize) {
    let begun = async {
        while core.access.reads.load(Relaxed) < looks {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(begun, "it looks").await;
}

/// Lets a gateway look that waits for the room that others have, and no further.
async fn look_once(core: &Core, others: OwnedSemaphorePermit) -> OwnedSemaphorePermit {
    let mut next = std::pin::pin!(core.access.crowd(UNITS));
    // In line behind the look, and before what comes after it.
    assert!(poll_immediate(next.as_mut()).await.is_none());
    drop(others);
    next.await
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_looks_for_strays_meets_what_passes_on() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&two, NS).await;
        let core = one.core();
        let reads = || core.access.reads.load(Relaxed);
        let finding = async || assert_eq!(one.find_strays(NS).await.unwrap(), 0);
        // Under way when the stripes are listed, staged before anything is looked at.
        let len = 1 << 20;
        let mut upload = two.store(part(), StoreOptions::default()).await.unwrap();
        upload.write(bytes(1, len).into()).await.unwrap();
        let written = async {
            while stripes(&one).await == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(written, "the stripe is there").await;
        let others = core.access.crowd(UNITS).await;
        let before = reads();
        let passing = async {
            begins_to_look(core, before + 1).await;
            upload.commit(Seal::default()).await.unwrap();
            two.settle().await.unwrap();
            drop(others);
        };
        tokio::join!(finding(), passing);
        // Staged when what is under way was looked at, and another's before what is staged is.
        let mut others = core.access.crowd(UNITS).await;
        let before = reads();
        let passing = async {
            for section in 1..=3 {
                begins_to_look(core, before + section).await;
                others = look_once(core, others).await;
            }
            begins_to_look(core, before + 4).await;
            let (parts, seal) = ([Source::any(b"part")], Seal::default());
            let joined = two.compose(at(b"joined"), &parts, &[], StoreOptions::default(), seal);
            joined.await.unwrap();
            two.settle().await.unwrap();
            drop(others);
        };
        tokio::join!(finding(), passing);
        is_clean(&two).await;
        assert!(get(&two, at(b"joined")).await == bytes(1, len));
    });
}
