//! What is left of changes that were not carried to their end, or that come too late: nothing is lost by it, and nothing stays.

use std::sync::Arc;

use forebay_mem::BLOCK_MAX_BYTES;
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    Attributes, Away, Body, ByteRange, Item, ListOptions, NamespaceConfig, Upload,
};

use super::*;
use crate::change::{Decide, Decision, Step};
use crate::core::Core;
use crate::heads::Seen;
use crate::plan::Draft;
use crate::pool::names_in;
use crate::support::{drain, versioned};
use crate::sys::Errno;
use crate::under_way::Intent;

/// A gateway that nobody has ever seen.
const DEAD: u64 = 9;
const NS: &str = "left";
/// Longer than an object.
const STRIPED: usize = (5 << 20) + 1;
/// The data of its key's object.
const WHOLE: usize = 70_000;

fn at(key: &[u8]) -> Address<'_> {
    Address::object(NS, key)
}

fn named(key: &[u8]) -> Named {
    Named::object(key.to_vec())
}

async fn keys(store: &RadosStore) -> Vec<Vec<u8>> {
    let options = ListOptions::of(NS, Space::Objects);
    let page = store.list(options).await.unwrap();
    let key = |item| match item {
        Item::Value(key, _) | Item::Prefix(key) => key.to_vec(),
    };
    page.items.into_iter().map(key).collect()
}

/// Nothing of a gateway's own is under way any more, and nothing is left lying.
async fn is_clean(store: &RadosStore) {
    store.settle().await.unwrap();
    store.sweep().await.unwrap();
    store.settle().await.unwrap();
    store.sweep().await.unwrap();
    let audit = store.audit(NS).await.unwrap();
    assert!(audit.is_clean(), "{audit:#?}");
}

/// Has a journal say that a gateway that died was to write a value of these stripes.
async fn intend(namespace: &Namespace, key: &[u8], segment: Segment) {
    let intent = Intent {
        named: named(key),
        segment,
    };
    let entry = names::intent(u128::from(DEAD) << 64 | 1);
    let entered = namespace.journal.enter(vec![(entry, intent.encode())]);
    entered.await.unwrap();
}

/// Another hand writes an object, as `rados put` does.
async fn write_as_another(core: &Core, namespace: &Namespace, key: &[u8], bytes: &[u8]) {
    let (place, object) = namespace.object(Space::Objects, key);
    let mut op = WriteOp::new(place);
    op.write_full(bytes);
    let written = core.access.write(place, &object, op, None, 0);
    written.await.unwrap();
}

async fn head_of(store: &RadosStore, namespace: &Arc<Namespace>, key: &[u8]) -> Arc<Head> {
    let seen = store.core().look(namespace, &named(key)).await.unwrap();
    seen.head.unwrap()
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_loses_a_race_leaves_no_copy() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let gateways = [open(config.clone(), clock.clone()), open(config, clock)];
        versioned(&gateways[0], NS).await;
        let write = async |store: &RadosStore, mark: u8| {
            for round in 0..20 {
                put(store, at(b"k"), &bytes(mark ^ round, WHOLE)).await;
                if round % 5 == 4 {
                    store.delete(at(b"k"), Default::default()).await.unwrap();
                }
            }
        };
        tokio::join!(write(&gateways[0], 0), write(&gateways[1], 128));
        for store in &gateways {
            store.settle().await.unwrap();
        }
        for store in &gateways {
            is_clean(store).await;
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_commit_that_nobody_waits_for_leaves_no_stripes() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        versioned(&store, NS).await;
        for round in 0..40_u64 {
            let len = match round % 2 {
                0 => WHOLE,
                _ => STRIPED,
            };
            let options = StoreOptions {
                size: Some(len as u64),
                ..StoreOptions::default()
            };
            let mut upload = store.store(at(b"k"), options).await.unwrap();
            for piece in bytes(1, len).chunks(BLOCK_MAX_BYTES) {
                upload.write(piece.to_vec().into()).await.unwrap();
            }
            let commit = upload.commit(Seal::default());
            let cut = tokio::time::timeout(Duration::from_micros(150 * round), commit);
            if let Ok(stored) = cut.await {
                stored.unwrap();
            }
        }
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn an_upload_that_is_given_up_removes_no_more_than_was_written() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let namespace = store.core().namespace(NS).unwrap();
        // More stripes than could be removed in any time.
        let options = StoreOptions {
            size: Some(VALUE_BYTES_MAX),
            ..StoreOptions::default()
        };
        let mut upload = store.store(at(b"k"), options).await.unwrap();
        for piece in bytes(1, STRIPED).chunks(BLOCK_MAX_BYTES) {
            upload.write(piece.to_vec().into()).await.unwrap();
        }
        let stripes = async || names_in(&namespace.stripes).await.unwrap();
        assert!(!stripes().await.is_empty());
        drop(upload);
        let announced = async || {
            let mut found = false;
            let journal = namespace.journal.object();
            let each = |_, _| found = true;
            let core = store.core();
            let read = core.keys(&namespace.index, journal, names::INTENTS, each);
            read.await.unwrap();
            found
        };
        let given_up = async {
            while !stripes().await.is_empty() || announced().await {
                // What is said of it no more goes with the next that is said.
                put(&store, at(b"another"), b"v").await;
            }
        };
        soon(given_up, "nothing is left of it").await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_the_dead_sent_does_not_arrive_after_the_sweep() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        for key in [b"a", b"b"] {
            put(&store, at(key), &bytes(1, WHOLE)).await;
        }
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        // One was to get another value in its object, the other one in stripes.
        let pending = Pending {
            named: named(b"a"),
            composes: false,
            freed: Vec::new(),
        };
        let entry = (names::pending(u128::from(DEAD) << 64), pending.encode());
        namespace.journal.enter(vec![entry]).await.unwrap();
        let segment = Segment {
            id: u128::from(DEAD) << 64 | 1,
            len: STRIPED as u64,
            stripe_bytes: core.config.object_bytes,
        };
        intend(&namespace, b"b", segment).await;
        let mut late = Vec::new();
        for key in [b"a", b"b"] {
            let seen = core.look(&namespace, &named(key)).await.unwrap();
            let (place, object) = namespace.object(Space::Objects, key);
            let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
            op.write_full(b"late");
            late.push((place, object, op));
        }
        assert_eq!(store.sweep().await.unwrap(), 1);
        for (place, object, op) in late {
            let arrived = core.access.write(place, &object, op, None, 0).await;
            let refused = [Err(Errno(libc::ERANGE)), Err(Errno(libc::EOVERFLOW))];
            assert!(refused.contains(&arrived), "{arrived:?}");
        }
        for key in [b"a", b"b"] {
            assert!(get(&store, at(key)).await == bytes(1, WHOLE));
        }
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_value_that_is_created_after_the_sweep_keeps_its_stripes() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            grace: Duration::from_secs(600),
            ..short_lived(&cluster)
        };
        let store = open(config, clock.clone());
        space(&store, NS).await;
        put(&store, at(b"a"), &bytes(1, STRIPED)).await;
        store.settle().await.unwrap();
        let namespace = store.core().namespace(NS).unwrap();
        let segment = segments(&store, NS, Space::Objects, b"a").await[0];
        intend(&namespace, b"b", segment).await;
        assert_eq!(store.sweep().await.unwrap(), 1);
        let head = head_of(&store, &namespace, b"a").await;
        create_late(&store, &namespace, b"b", &head).await;
        clock.advance(600_001);
        for _ in 0..2 {
            store.sweep().await.unwrap();
            assert!(get(&store, at(b"b")).await == bytes(1, STRIPED));
        }
        assert_eq!(keys(&store).await, [b"a", b"b"]);
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_another_hand_wrote_over_a_key_takes_no_older_version() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        versioned(&store, NS).await;
        put(&store, at(b"k"), &bytes(1, WHOLE)).await;
        let first = store.stat(at(b"k"), None).await.unwrap().version;
        put(&store, at(b"k"), &bytes(2, WHOLE)).await;
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let seen = core.look(&namespace, &named(b"k")).await.unwrap();
        let mut kept = Vec::new();
        let each = |older| kept.push(older);
        let all = core.each_kept(&namespace, &named(b"k"), &seen, each).await;
        all.unwrap().expect("nobody changes it");
        let segment = kept[0].value().expect("the first value").segments()[0];
        write_as_another(core, &namespace, b"k", b"theirs").await;
        // As if the one who kept it had died before the journal was told.
        intend(&namespace, b"k", segment).await;
        assert_eq!(store.sweep().await.unwrap(), 1);
        store.sweep().await.unwrap();
        assert_eq!(get(&store, at(b"k")).await, b"theirs");
        let kept = store.retrieve(at(b"k"), Some(first), ByteRange::Full);
        assert!(drain(kept.await.unwrap()).await == bytes(1, WHOLE));
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_key_that_the_index_does_not_know_is_entered() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, at(b"a"), &bytes(1, STRIPED)).await;
        store.settle().await.unwrap();
        let namespace = store.core().namespace(NS).unwrap();
        let head = head_of(&store, &namespace, b"a").await;
        for key in [b"b", b"c"] {
            create_late(&store, &namespace, key, &head).await;
            assert_eq!(store.adopt(NS).await.unwrap().more, 1);
            assert_eq!(store.adopt(NS).await.unwrap().more, 0);
        }
        assert_eq!(keys(&store).await, [b"a", b"b", b"c"]);
        let usage = store.usage(Scope::Namespace(NS)).unwrap();
        assert_eq!((usage.objects, usage.bytes), (3, 3 * STRIPED as u64));
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_key_that_no_name_holds_is_entered() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, at(b"a\0"), &bytes(1, STRIPED)).await;
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let head = head_of(&store, &namespace, b"a\0").await;
        let head = Head {
            key: Some(b"b\0".to_vec()),
            ..Head::clone(&head)
        };
        create_late(&store, &namespace, b"b\0", &head).await;
        assert_eq!(store.adopt(NS).await.unwrap().more, 1);
        assert_eq!(store.adopt(NS).await.unwrap().more, 0);
        assert_eq!(keys(&store).await, [b"a\0", b"b\0"]);
        is_clean(&store).await;
        // What comes for a namespace of this name that is gone is nobody's.
        for key in [b"a\0", b"b\0"] {
            store.delete(at(key), Default::default()).await.unwrap();
        }
        store.delete_namespace(NS).await.unwrap();
        space(&store, NS).await;
        create_late(&store, &namespace, b"b\0", &head).await;
        let gone = store.stat(at(b"b\0"), None).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        create_late(&store, &namespace, b"b\0", &head).await;
        assert_eq!(store.adopt(NS).await.unwrap().more, 0);
        assert!(keys(&store).await.is_empty());
        let there = names_in(namespace.named()).await.unwrap();
        assert!(there.is_empty(), "it is gone");
        put(&store, at(b"b\0"), b"new").await;
        assert_eq!(get(&store, at(b"b\0")).await, b"new");
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_long_object_is_read_to_its_end_whatever_becomes_of_its_record() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let value = bytes(3, 2 * STRIPED);
        write_as_another(core, &namespace, b"long", &value).await;
        let key = at(b"long");
        let mut object = store.retrieve(key, None, ByteRange::Full).await.unwrap();
        let mut read = Vec::new();
        let away = Away(1);
        for step in 0.. {
            let Some(buf) = object.body.next().await.unwrap() else {
                break;
            };
            read.extend_from_slice(&buf);
            match step {
                0 => {
                    let mut tags = Attributes::EMPTY.to_builder();
                    tags.insert("tags", b"x");
                    let tags = tags.build().unwrap();
                    store.amend(key, None, None, tags).await.unwrap();
                }
                1 => core.fence(&namespace, &named(b"long")).await.unwrap(),
                2 => {
                    let meta = store.stat(key, None).await.unwrap();
                    let moved = store.let_go(key, &meta, away).await.unwrap_err();
                    assert_eq!(moved.kind(), ErrorKind::PreconditionFailed);
                }
                _ => {}
            }
        }
        assert!(read == value, "{} bytes", read.len());
        // Its bytes are in stripes now, and go from there.
        assert!(get(&store, key).await == value);
        let meta = store.stat(key, None).await.unwrap();
        store.let_go(key, &meta, away).await.unwrap();
        let gone = store.retrieve(key, None, ByteRange::Full).await;
        assert!(gone.is_err_and(|error| error.away().is_some()));
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn taking_over_that_nobody_waits_for_leaves_nothing_under_way() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        for round in 0..40_u8 {
            let key = [b'k', b'0' + round];
            write_as_another(core, &namespace, &key, &bytes(round, 1000)).await;
            let looking = store.stat(at(&key), None);
            let cut = Duration::from_micros(75 * u64::from(round));
            if let Ok(looked) = tokio::time::timeout(cut, looking).await {
                looked.unwrap();
            }
        }
        let settled = async {
            while !core.pending(&namespace).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        soon(settled, "the index finds out what became of each").await;
    });
}

/// The names of changes that a journal says are under way.
async fn under_way(core: &Core, namespace: &Namespace) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let each = |name: bytes::Bytes, _| names.push(name.to_vec());
    let journal = namespace.journal.object();
    let read = core.keys(&namespace.index, journal, names::PENDING, each);
    read.await.unwrap();
    names
}

/// A change that comes too late twice, and whose gateway counts as dead in between.
struct Unlucky<'u> {
    core: &'u Arc<Core>,
    namespace: &'u Arc<Namespace>,
    said: &'u mut Vec<Vec<Vec<u8>>>,
}

impl Decide for Unlucky<'_> {
    type Answer = ();

    async fn decide(&mut self, seen: &Seen) -> forebay_store::Result<Decision<()>> {
        let (core, namespace) = (self.core, self.namespace);
        self.said.push(under_way(core, namespace).await);
        let head = seen.head.as_deref().cloned().unwrap();
        if self.said.len() == 2 {
            core.pulse.lose();
        }
        if self.said.len() < 3 {
            let (place, object) = namespace.object(Space::Objects, b"k");
            let mut op = WriteOp::new(place).guard(Guard::Exists);
            op.set_xattr(b"another", b"hand");
            let stamp = Some(head.stamp);
            let written = core.access.write(place, &object, op, stamp, 0);
            written.await.unwrap();
        }
        let view = core.kept(namespace, &named(b"k"), seen, None).await;
        let draft = Draft::begin(Space::Objects, head, view?.unwrap_or_default(), core.now());
        Ok(Decision::Do(Step::new(draft), ()))
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_was_swept_says_anew_what_it_does() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, at(b"k"), b"v").await;
        is_clean(&store).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let mut said = Vec::new();
        let unlucky = Unlucky {
            core,
            namespace: &namespace,
            said: &mut said,
        };
        let key = named(b"k");
        let changed = core.change(&namespace, &key, false, unlucky);
        changed.await.unwrap();
        let [before, first, second] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(before.is_empty() && first.len() == 1 && second.len() == 1);
        assert_ne!(first, second, "the first may be removed by who swept");
        is_clean(&store).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_cannot_be_forgotten_yet_is_not_lost() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, at(b"k"), b"v").await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let broken = names::pending(u128::from(DEAD) << 64);
        let entered = namespace.journal.enter(vec![(broken.clone(), Vec::new())]);
        entered.await.unwrap();
        store.delete(at(b"k"), Default::default()).await.unwrap();
        store.settle().await.unwrap();
        let entry = names::entry(Space::Objects, b"k");
        let shard = namespace.shard(&entry);
        let refused = async {
            while shard.forget_gone(core, &namespace).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(refused, "the journal cannot be read").await;
        namespace.journal.later(Vec::new(), [broken]);
        namespace.journal.flush().await.unwrap();
        let forgotten = async {
            loop {
                // The keeper may have taken them meanwhile.
                let _ = shard.forget_gone(core, &namespace).await;
                let mut there = false;
                let each = |name: bytes::Bytes, _| there |= name == entry[..];
                let read = core.keys(&namespace.index, &shard.object, &entry, each);
                read.await.unwrap();
                if !there {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(forgotten, "the entry of a key that is gone goes").await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_was_found_of_a_gone_key_holds_no_more_once_somebody_looked_again() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        // The entry stays as long as somebody changes the key.
        let pending = Pending {
            named: named(b"k"),
            composes: false,
            freed: Vec::new(),
        };
        let entry = (names::pending(core.number()), pending.encode());
        namespace.journal.enter(vec![entry]).await.unwrap();
        put(&store, at(b"k"), b"v").await;
        store.settle().await.unwrap();
        let (place, object) = namespace.object(Space::Objects, b"k");
        let mut op = WriteOp::new(place);
        op.remove();
        let removed = core.access.write(place, &object, op, None, 0);
        removed.await.unwrap();
        let entry = names::entry(Space::Objects, b"k");
        let mut found = Vec::new();
        for _ in 0..3 {
            core.find_out(&namespace, named(b"k"));
            store.settle().await.unwrap();
            let each = |_, value: bytes::Bytes| found.push(value);
            let shard = &namespace.shard(&entry).object;
            let read = core.keys(&namespace.index, shard, &entry, each);
            read.await.unwrap();
        }
        let [first, second, third] = &found[..] else {
            panic!("{found:?}");
        };
        // Else who saw the key before it was gone would enter it.
        assert!(first != second && second != third && first != third);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_another_hand_wrote_expires_with_its_namespace() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(config(&cluster), clock.clone());
        let passing = NamespaceConfig {
            tenant: "acme".to_owned(),
            ttl_ms: Some(1000),
            ..NamespaceConfig::default()
        };
        store.create_namespace(NS, passing).await.unwrap();
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        write_as_another(core, &namespace, b"k", b"theirs").await;
        let begun = clock.now();
        let expires = store.stat(at(b"k"), None).await.unwrap().expires;
        assert_eq!(expires, Some(begun + 1000), "from when it was taken over");
        clock.advance(1001);
        let gone = async {
            // Once the index knows of it.
            while store.audit(NS).await.unwrap().keys > 0 {
                store.sweep().await.unwrap();
            }
        };
        soon(gone, "it is dropped").await;
    });
}
