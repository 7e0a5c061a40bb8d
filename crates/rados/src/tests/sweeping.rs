//! What keeps no sweep from its work, and whom a sweep finds.

use std::sync::Arc;
use std::time::Instant;

use forebay_store::{After, ErrorKind, Item, ListOptions, NamespaceConfig, Result, Upload};

use super::*;
use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::Parts;
use crate::heads::Seen;
use crate::namespaces::GATEWAYS;
use crate::plan::Draft;
use crate::pool::names_in;
use crate::sys::{Errno, Lease};
use crate::under_way::{Garbage, Taken};

/// A gateway that nobody has ever seen.
const DEAD: u64 = 7;
const TTL_MS: u64 = 1000;

/// A namespace whose values expire.
async fn passing(store: &RadosStore, name: &str) {
    let config = NamespaceConfig {
        tenant: "acme".to_owned(),
        ttl_ms: Some(TTL_MS),
        ..NamespaceConfig::default()
    };
    store.create_namespace(name, config).await.unwrap();
}

/// Makes a key what a composition of this number has made it.
struct Composed<'c> {
    core: &'c Arc<Core>,
    namespace: &'c Arc<Namespace>,
    named: &'c Named,
    number: u128,
}

impl Decide for Composed<'_> {
    type Answer = ();

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<()>> {
        let head = seen.head.as_deref().cloned().unwrap();
        let view = self.core.kept(self.namespace, self.named, seen, None);
        let view = view.await?.unwrap();
        let draft = Draft::begin(self.named.space, head, view, self.core.now());
        let mut step = Step::new(draft);
        step.composition = Some(self.number);
        Ok(Decision::Do(step, ()))
    }
}

/// Leaves what a gateway leaves that dies once the target is what it was to be, and the index knows it.
async fn leave_composed(store: &RadosStore, namespace: &str, key: &[u8]) {
    let core = store.core();
    let namespace = core.namespace(namespace).unwrap();
    let (named, number) = (Named::object(key.to_vec()), u128::from(DEAD) << 64 | 1);
    let composed = Composed {
        core,
        namespace: &namespace,
        named: &named,
        number,
    };
    let changed = core.change(&namespace, &named, false, composed).await;
    changed.unwrap();
    let mut op = WriteOp::new(&namespace.index).guard(Guard::Absent);
    op.write_full(&Taken { keys: Vec::new() }.encode());
    let object = names::composition(number);
    let said = core.access.write(&namespace.index, &object, op, None, 0);
    said.await.unwrap();
    store.settle().await.unwrap();
    register_dead(store, DEAD).await;
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_expires_does_not_wait_for_who_is_dead() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = open(short_lived(&cluster), clock.clone());
        passing(&store, "passing").await;
        put(&store, Address::object("passing", b"k"), b"joined").await;
        leave_composed(&store, "passing", b"k").await;
        clock.advance(2 * TTL_MS);
        assert_eq!(store.sweep().await.unwrap(), 1);
        store.sweep().await.unwrap();
        let audit = store.audit("passing").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 0, "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_cannot_be_cleaned_up_keeps_nothing_else() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let config = Config {
            patience: Duration::from_secs(2),
            ..short_lived(&cluster)
        };
        let store = open(config, clock.clone());
        for name in ["first", "second"] {
            passing(&store, name).await;
            for key in [b"a", b"b", b"c"] {
                put(&store, Address::object(name, key), b"passing").await;
            }
        }
        store.settle().await.unwrap();
        let core = store.core();
        let first = core.namespace("first").unwrap();
        let (place, object) = first.object(Space::Objects, b"b");
        let mut op = WriteOp::new(place).guard(Guard::Exists);
        op.set_xattr(b"forebay", b"\x04\0\0\0????");
        core.access
            .write(place, &object, op, None, 0)
            .await
            .unwrap();
        // Of a gateway that died, another change of the same key.
        let pending = Pending {
            named: Named::object(b"b".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let entry = (names::pending(u128::from(DEAD) << 64), pending.encode());
        first.journal.enter(vec![entry]).await.unwrap();
        leave_composed(&store, "second", b"b").await;
        clock.advance(2 * TTL_MS);
        // More often than there may be changes under way that a list does not care for.
        for _ in 0..6 {
            let refused = store.sweep().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        }
        let left = |name| store.usage(Scope::Namespace(name)).unwrap().objects;
        assert_eq!((left("first"), left("second")), (1, 0));
        let waiting = || first.shards.iter().map(|shard| shard.waiting());
        assert!(waiting().sum::<usize>() <= 1);
        // Others of its namespace are entered, listed and forgotten, and not only when somebody sweeps.
        let _nobody_sweeps = (core.sweeping.lock().await, core.cleaning.lock().await);
        let others = [b"a1", b"a2", b"c1", b"c2", b"d1", b"d2"];
        for key in others {
            put(&store, Address::object("first", key), b"after it").await;
        }
        assert_eq!(listed(&store, "first", b"a").await, [b"a1", b"a2"]);
        for key in others {
            let gone = store.delete(Address::object("first", key), Default::default());
            gone.await.unwrap();
        }
        assert!(listed(&store, "first", b"a").await.is_empty());
        // What is joined there is joined, and may be changed again.
        put(&store, Address::staging("first", b"part"), b"joined").await;
        let key = Address::object("first", b"e1");
        let parts = [Source::any(b"part")];
        let joined = store.compose(key, &parts, &[], StoreOptions::default(), Seal::default());
        joined.await.unwrap();
        store.delete(key, Default::default()).await.unwrap();
        let forgotten = async {
            while entries(core, &first).await != [names::entry(Space::Objects, b"b")] {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), forgotten).await;
        in_time.expect("entries of keys that are gone go");
        assert!(waiting().sum::<usize>() <= 1);
    });
}

async fn listed(store: &RadosStore, namespace: &str, prefix: &[u8]) -> Vec<Vec<u8>> {
    let options = ListOptions {
        namespace,
        space: Space::Objects,
        prefix,
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

/// The names of all entries of keys.
async fn entries(core: &Core, namespace: &Namespace) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    for shard in &namespace.shards {
        let each = |name: bytes::Bytes, _| entries.push(name.to_vec());
        let read = core.keys(&namespace.index, &shard.object, &[names::OBJECTS], each);
        read.await.unwrap();
    }
    entries
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_a_gateway_leaves_under_way_is_swept() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "left").await;
        let options = StoreOptions {
            size: Some(9 << 20),
            ..StoreOptions::default()
        };
        let upload = one.store(Address::object("left", b"k"), options).await;
        let mut upload = upload.unwrap();
        for _ in 0..5 {
            upload.write(bytes(1, 1 << 20).into()).await.unwrap();
        }
        one.close().await;
        drop(upload);
        let begun = Instant::now();
        while two.sweep().await.unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody sweeps");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let namespace = two.core().namespace("left").unwrap();
        let stripes = names_in(&namespace.stripes).await.unwrap();
        assert!(stripes.is_empty(), "{} stripes", stripes.len());
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn stripes_of_an_upload_that_outlives_its_namespace_are_swept() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "gone").await;
        let namespace = two.core().namespace("gone").unwrap();
        let options = StoreOptions {
            size: Some(9 << 20),
            ..StoreOptions::default()
        };
        let upload = one.store(Address::object("gone", b"k"), options).await;
        let mut upload = upload.unwrap();
        for _ in 0..5 {
            upload.write(bytes(1, 1 << 20).into()).await.unwrap();
        }
        one.delete_namespace("gone").await.unwrap();
        one.sweep().await.unwrap();
        assert_eq!(registered_orphans(&one).await, 1, "it is being written");
        for _ in 0..3 {
            upload.write(bytes(1, 1 << 20).into()).await.unwrap();
        }
        one.close().await;
        drop(upload);
        let begun = Instant::now();
        let stripes = loop {
            two.sweep().await.unwrap();
            let stripes = names_in(&namespace.stripes).await.unwrap();
            if stripes.is_empty() || begun.elapsed() > Duration::from_secs(60) {
                break stripes;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        };
        assert!(stripes.is_empty(), "{} stripes", stripes.len());
        assert_eq!(registered_orphans(&two).await, 0);
    });
}

/// Has a journal say something.
async fn say(namespace: &Namespace, entries: Vec<(Vec<u8>, Vec<u8>)>) {
    namespace.journal.enter(entries).await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn stripes_of_a_namespace_are_no_burden_to_the_registry() {
    const SEGMENTS: usize = 2500;
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "gone").await;
        let (core, namespace) = (one.core(), one.core().namespace("gone").unwrap());
        let other = two.core().gateway;
        let later = core.now() + 3_600_000;
        let mut garbage = Vec::new();
        let mut add = |id: u128| {
            let segment = Segment {
                id,
                len: 1 << 20,
                stripe_bytes: 4 << 20,
            };
            let entry = Garbage::of(segment).encode();
            garbage.push((names::garbage(later, id), entry));
            segment
        };
        for _ in 1..SEGMENTS {
            add(core.number());
        }
        // One of the other gateway's, which removes it itself.
        let theirs = add(u128::from(other) << 64 | 1);
        say(&namespace, garbage).await;
        let stripe = names::stripe(theirs.id, 0);
        let mut op = WriteOp::new(&namespace.stripes);
        op.write_full(b"stripe");
        let written = core.access.write(&namespace.stripes, &stripe, op, None, 0);
        written.await.unwrap();
        one.delete_namespace("gone").await.unwrap();
        assert_eq!(registered_orphans(&one).await, 1);
        one.sweep().await.unwrap();
        let mut lines = Vec::new();
        let object = names::orphans(namespace.id);
        let each = |name: bytes::Bytes, _| lines.push(name);
        core.keys(&core.registry, &object, b"", each).await.unwrap();
        assert_eq!(lines, [format!("{:032x}", theirs.id)], "the other's");
        two.sweep().await.unwrap();
        assert_eq!(registered_orphans(&two).await, 0);
        assert!(names_in(&namespace.stripes).await.unwrap().is_empty());
        let left = names_in(&core.registry).await.unwrap();
        assert!(!left.contains(&object), "its object is gone");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn changes_under_way_are_no_keys() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, "deleted").await;
        let part = Address::staging("deleted", b"part");
        put(&store, part, b"v").await;
        store.settle().await.unwrap();
        // A gateway died in the midst of a change.
        let namespace = store.core().namespace("deleted").unwrap();
        let pending = Pending {
            named: Named::object(b"k".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let name = names::pending(u128::from(DEAD) << 64 | 1);
        say(&namespace, vec![(name, pending.encode())]).await;
        let deleted = async || store.delete_namespace("deleted").await.unwrap_err().kind();
        assert_eq!(deleted().await, ErrorKind::Busy);
        assert!(get(&store, part).await == b"v");
        let key = Address::object("deleted", b"key");
        put(&store, key, b"v").await;
        store.settle().await.unwrap();
        assert_eq!(deleted().await, ErrorKind::NamespaceNotEmpty);
        store.delete(key, Default::default()).await.unwrap();
        store.sweep().await.unwrap();
        assert_eq!(deleted().await, ErrorKind::NamespaceNotEmpty);
        store.delete(part, Default::default()).await.unwrap();
        store.delete_namespace("deleted").await.unwrap();
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_has_unregistered_is_swept_all_the_same() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, "left").await;
        put(&store, Address::object("left", b"k"), b"acknowledged").await;
        store.settle().await.unwrap();
        let namespace = store.core().namespace("left").unwrap();
        let pending = Pending {
            named: Named::object(b"k".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let entry = (names::pending(u128::from(DEAD) << 64), pending.encode());
        namespace.journal.enter(vec![entry]).await.unwrap();
        assert_eq!(store.sweep().await.unwrap(), 1);
        assert_eq!(store.sweep().await.unwrap(), 0);
        let pending = store.core().pending(&namespace).await.unwrap();
        assert!(pending.is_empty(), "{pending:?}");
        assert_eq!(
            get(&store, Address::object("left", b"k")).await,
            b"acknowledged"
        );
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_was_forgotten_is_known_again() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        let core = one.core();
        let name = registered_name(core.gateway);
        core.forget_registered(&name).await.unwrap();
        core.reload().await.unwrap();
        assert!(!core.notices.is_alone(), "the other one is there");
        let known = async {
            let mut known = false;
            while !known {
                let each = |found: bytes::Bytes, _| known |= found == name[..];
                let registry = &two.core().registry;
                let read = core.keys(registry, names::NAMESPACES, GATEWAYS, each);
                read.await.unwrap();
            }
        };
        soon(known, "it enters itself once it reads that it is not").await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn nobody_comes_back_while_he_is_swept() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = Config {
            // Long enough to be renewed in time on a machine that does much else.
            lease: Duration::from_secs(8),
            patience: Duration::from_secs(1),
            ..short_lived(&cluster)
        };
        let store = open(config.clone(), TestClock::default());
        space(&store, "left").await;
        put(&store, Address::object("left", b"k"), b"acknowledged").await;
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace("left").unwrap();
        let pending = Pending {
            named: Named::object(b"k".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let entry = (names::pending(u128::from(DEAD) << 64), pending.encode());
        namespace.journal.enter(vec![entry]).await.unwrap();
        register_dead(&store, DEAD).await;
        // The index does not answer for longer than the dead one's lock is held at a time.
        let entry = names::entry(Space::Objects, b"k");
        let stuck = namespace.shard(&entry).hold().await;
        let long = config.lease + 2 * core.access.patience() + Duration::from_secs(1);
        let coming_back = async {
            tokio::time::sleep(long).await;
            let lease = Lease::new(&core.registry, &names::gateway(DEAD), b"back").unwrap();
            let taken = tokio::task::spawn_blocking(move || lease.take(config.lease));
            let taken = taken.await.unwrap();
            drop(stuck);
            taken
        };
        let (swept, taken) = tokio::join!(store.sweep(), coming_back);
        assert_eq!(taken, Err(Errno(libc::EBUSY)));
        assert_eq!(swept.unwrap(), 1);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_gone_key_that_was_busy_when_its_gateway_left_is_found() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "gone").await;
        two.core().refresh().await.unwrap();
        put(&one, Address::object("gone", b"k"), b"v").await;
        let core = two.core();
        let namespace = core.namespace("gone").unwrap();
        // A change that takes as long as the gateway that leaves is there.
        let pending = Pending {
            named: Named::object(b"k".to_vec()),
            composes: false,
            freed: Vec::new(),
        };
        let name = names::pending(core.number());
        let entered = namespace
            .journal
            .enter(vec![(name.clone(), pending.encode())]);
        entered.await.unwrap();
        let gone = one.delete(Address::object("gone", b"k"), Default::default());
        gone.await.unwrap();
        one.close().await;
        assert_eq!(entries(core, &namespace).await.len(), 1, "it is busy");
        namespace.journal.later(Vec::new(), [name]);
        namespace.journal.flush().await.unwrap();
        let forgotten = async {
            while !entries(core, &namespace).await.is_empty() {
                two.sweep().await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(60), forgotten).await;
        in_time.expect("the entry goes");
        two.close().await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_namespace_whose_deletion_was_cut_short_is_deleted() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "deleted").await;
        space(&one, "damaged").await;
        put(&one, Address::object("damaged", b"k"), b"v").await;
        one.settle().await.unwrap();
        let core = one.core();
        let close = async |name: &str| {
            let namespace = core.namespace(name).unwrap();
            let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
            op.remove();
            let journal = namespace.journal.object();
            let closed = core.access.write(&namespace.index, journal, op, None, 0);
            closed.await.unwrap();
        };
        // Who deleted it died when it had decided that; the other one's journal is lost, which says nothing of the kind.
        close("deleted").await;
        close("damaged").await;
        let namespace = two.core().namespace("deleted").unwrap();
        two.sweep().await.unwrap();
        for store in [&one, &two] {
            assert!(store.namespace("deleted").is_err());
            assert!(store.namespace("damaged").is_ok());
        }
        let left = names_in(&namespace.index).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
        space(&two, "deleted").await;
        put(&one, Address::object("deleted", b"k"), b"v").await;
    });
}

/// What waits there to be removed.
async fn garbage(core: &Core, namespace: &Namespace) -> usize {
    core.flush_journal(namespace).await.unwrap();
    let mut found = 0;
    let each = |_, _| found += 1;
    let journal = namespace.journal.object();
    let read = core.keys(&namespace.index, journal, names::GARBAGE, each);
    read.await.unwrap();
    found
}

/// Says that stripes are let go whose time is over.
async fn let_go(store: &RadosStore, name: &str, count: usize) -> Arc<Namespace> {
    let core = store.core();
    let namespace = core.namespace(name).unwrap();
    let line = |_| {
        let segment = Segment {
            id: core.number(),
            len: 1,
            stripe_bytes: core.config.object_bytes,
        };
        let name = names::garbage(0, segment.id);
        (name, Garbage::of(segment).encode())
    };
    let lines = (0..count).map(line).collect();
    namespace.journal.enter(lines).await.unwrap();
    namespace
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn nobody_who_died_waits_for_what_was_let_go() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, "busy").await;
        let namespace = let_go(&store, "busy", 100).await;
        register_dead(&store, DEAD).await;
        let core = store.core();
        assert_eq!(core.sweep().await.unwrap(), 1);
        assert_eq!(garbage(core, &namespace).await, 100);
        core.collect().await.unwrap();
        assert_eq!(garbage(core, &namespace).await, 0);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_has_let_much_go_gives_way_to_others() {
    let cluster = cluster();
    // More than one look gives.
    const COUNT: usize = 1030;
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, "busy").await;
        let namespace = let_go(&store, "busy", COUNT).await;
        let core = store.core();
        let (mut after, mut parts) = (Vec::new(), Parts::default());
        let mut turn = async |length| {
            let turn = core.collect_some(&namespace, &mut after, core.now(), length, &mut parts);
            turn.await.unwrap()
        };
        // However short a turn is something is done in it.
        for done in 1..=3 {
            assert!(turn(Duration::ZERO).await, "there is more");
            assert_eq!(garbage(core, &namespace).await, COUNT - done);
        }
        assert!(!turn(Duration::MAX).await, "that is all");
        assert_eq!(garbage(core, &namespace).await, 0);
        parts.end().unwrap();
    });
}
