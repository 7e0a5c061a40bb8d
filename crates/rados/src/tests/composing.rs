//! Compositions that are cut short, and what meets them: who makes sure that nothing comes late, and what comes late all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::{DeleteOptions, Item, ListOptions, Result, Usage, VersionId};
use futures_util::FutureExt;
use tokio::task::unconstrained;

use super::*;
use crate::change::{Decide, Decision, Step};
use crate::claims::staged;
use crate::core::Core;
use crate::heads::{CLAIM, Seen};
use crate::kept::KeptView;
use crate::plan::Draft;
use crate::pool::names_in;
use crate::support::versioned;
use crate::sys::Errno;
use crate::under_way::{Garbage, Taken};
use crate::upload::new_head;

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
    let options = ListOptions::of(NS, Space::Staging);
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

/// Claims the part for a composition of the dead gateway; what it was.
async fn claim(core: &Arc<Core>, namespace: &Arc<Namespace>) -> Seen {
    let part = staged(b"part".to_vec());
    let seen = core.look(namespace, &part).await.unwrap();
    let (place, object) = namespace.object(part.space, &part.key);
    let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
    op.set_xattr(CLAIM, &NUMBER.to_le_bytes());
    let stamp = seen.head.as_ref().map(|head| head.stamp);
    let claimed = core.access.write(place, &object, op, stamp, 0);
    claimed.await.unwrap();
    seen
}

/// Leaves what a gateway leaves that dies before the target is what it was to be. What it had sent to make it that.
async fn leave_begun(store: &RadosStore, namespace: &Arc<Namespace>, null: bool) -> Head {
    put(store, part(), &bytes(1, PART)).await;
    store.settle().await.unwrap();
    let core = store.core();
    let pending = Pending {
        named: Named::object(b"k".to_vec()),
        composes: true,
        freed: Vec::new(),
    };
    let entry = (names::pending(NUMBER), pending.encode());
    namespace.journal.enter(vec![entry]).await.unwrap();
    let keys = vec![b"part".to_vec()];
    let mut op = WriteOp::new(&namespace.index).guard(Guard::Absent);
    op.write_full(&Taken { keys }.encode());
    let object = names::composition(NUMBER);
    let said = core.access.write(&namespace.index, &object, op, None, 0);
    said.await.unwrap();
    let claimed = claim(core, namespace).await;
    register_dead(store, DEAD).await;
    let mut head = claimed.head.as_deref().cloned().unwrap();
    head.key = None;
    head.composition = Some(NUMBER);
    head.usage = Usage {
        objects: 1,
        bytes: PART as u64,
    };
    head.current.as_mut().unwrap().null = null;
    head
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_makes_sure_that_nothing_comes_late_takes_no_bytes_from_the_target() {
    let cluster = cluster();
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
            core.fence(&namespace, &first).await.unwrap();
            drop(held);
            while !over.load(Relaxed) {
                core.fence(&namespace, &first).await.unwrap();
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
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_was_composed_too_late_and_once_more_keeps_its_stripes() {
    let cluster = cluster();
    runtime().block_on(async {
        for keeps in [false, true] {
            let store = open(short_lived(&cluster), TestClock::default());
            match keeps {
                false => space(&store, NS).await,
                true => versioned(&store, NS).await,
            }
            let namespace = store.core().namespace(NS).unwrap();
            let head = leave_begun(&store, &namespace, !keeps).await;
            assert_eq!(store.sweep().await.unwrap(), 1);
            // As one did that made no way for it.
            create_late(&store, &namespace, b"k", &head).await;
            compose(&store, &[Source::any(b"part")]).await;
            if keeps {
                let options = DeleteOptions {
                    version: Some(VersionId(head.last_seq)),
                    ..DeleteOptions::default()
                };
                let deleted = store.delete(target(), options).await.unwrap();
                assert!(deleted.existed);
            }
            is_clean(&store).await;
            assert!(get(&store, target()).await == bytes(1, PART));
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_the_dead_sent_does_not_come_after_its_composition_was_undone() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let head = leave_begun(&store, &namespace, true).await;
        let key = Named::object(b"k".to_vec());
        let made = core.make_way(&namespace, &key).await.unwrap().unwrap();
        let none = store.stat(target(), None).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        let (place, object) = namespace.object(key.space, &key.key);
        let mut late = WriteOp::new(place).guard(Guard::Version(made.version));
        set_record(&mut late, &namespace, &head.encode(), made.pieces);
        assert_eq!(store.sweep().await.unwrap(), 1);
        let there = names_in(namespace.data()).await.unwrap();
        assert!(there.is_empty(), "what was made way for does not come");
        let stamp = Some(head.stamp);
        let arrived = core.access.write(place, &object, late, stamp, 0).await;
        let refused = [libc::ENOENT, libc::ERANGE, libc::EOVERFLOW];
        assert!(
            refused.map(|errno| Err(Errno(errno))).contains(&arrived),
            "{arrived:?}"
        );
        compose(&store, &[Source::any(b"part")]).await;
        is_clean(&store).await;
        assert!(get(&store, target()).await == bytes(1, PART));
    });
}

/// Makes a key what a composition would, and says at which version each time.
struct Joined<'j> {
    core: &'j Arc<Core>,
    made: Head,
    versions: &'j mut Vec<u64>,
}

impl Decide for Joined<'_> {
    type Answer = ();

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<()>> {
        self.versions.push(seen.version);
        let old = seen.head.as_deref().cloned();
        let mut head = old.unwrap_or_else(|| new_head(&Named::object(b"k".to_vec())));
        head.usage = self.made.usage;
        head.current.clone_from(&self.made.current);
        let view = KeptView::default();
        let draft = Draft::begin(Space::Objects, head, view, self.core.now());
        let mut step = Step::new(draft);
        step.composition = Some(NUMBER);
        Ok(Decision::Do(step, ()))
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_waits_for_a_composition_keeps_no_target_from_it() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        leave_begun(&store, &namespace, true).await;
        let claimed = staged(b"part".to_vec());
        let lock = |named: &Named| {
            let locking = core.lock(namespace.id, named);
            unconstrained(locking).now_or_never()
        };
        let looking = async {
            let waits = async {
                while lock(&claimed).is_some() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(waits, "the removal of what is claimed has its lock").await;
            // Of so many some would have the same one.
            for number in 0..20_000_u32 {
                let target = Named::object(number.to_be_bytes().to_vec());
                assert!(lock(&target).is_some(), "{number} waits for the part");
            }
        };
        tokio::select! {
            removed = store.delete(part(), DeleteOptions::default()) => panic!("{removed:?}"),
            () = looking => {}
        }
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_composition_makes_way_for_what_it_sends() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let made = leave_begun(&store, &namespace, true).await;
        let mut versions = Vec::new();
        let joined = Joined {
            core,
            made,
            versions: &mut versions,
        };
        let key = Named::object(b"k".to_vec());
        let changed = core.change(&namespace, &key, false, joined).await;
        changed.unwrap();
        assert!(
            matches!(versions[..], [0, made] if made > 0),
            "{versions:?}"
        );
        assert_eq!(store.sweep().await.unwrap(), 1);
        assert_eq!(staged_keys(&store).await, [b""; 0]);
        is_clean(&store).await;
        assert!(get(&store, target()).await == bytes(1, PART));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn the_claim_of_a_composition_that_is_over_keeps_no_part() {
    let cluster = cluster();
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
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_change_that_was_cut_short_frees_no_joined_part() {
    let cluster = cluster();
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
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_composition_that_nobody_waits_for_is_finished() {
    let cluster = cluster();
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
            let there = names_in(&namespace.index).await.unwrap();
            there.iter().any(|name| name.starts_with(b"compose."))
        };
        let over = async {
            while said().await || !store.core().pending(&namespace).await.unwrap().is_empty() {
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

/// Has the journal say that the part's stripes are garbage whose time is over.
async fn let_go(store: &RadosStore, meant_for: Option<Named>) {
    let segment = segments(store, NS, Space::Staging, b"part").await[0];
    let garbage = Garbage { segment, meant_for };
    let entry = (names::garbage(0, segment.id), garbage.encode());
    let namespace = store.core().namespace(NS).unwrap();
    namespace.journal.enter(vec![entry]).await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_part_that_came_late_keeps_its_stripes_where_it_is_joined() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, part(), &bytes(1, PART)).await;
        let_go(&store, Some(staged(b"part".to_vec()))).await;
        compose(&store, &[Source::any(b"part")]).await;
        is_clean(&store).await;
        assert!(get(&store, target()).await == bytes(1, PART));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_part_whose_stripes_go_is_not_joined() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, part(), &bytes(1, PART)).await;
        put(&store, target(), b"before").await;
        let_go(&store, None).await;
        let (options, seal) = (StoreOptions::default(), Seal::default());
        let parts = [Source::any(b"part")];
        let refused = store.compose(target(), &parts, &[], options, seal).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(get(&store, target()).await, b"before");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_change_that_was_cut_short_frees_no_joined_part_whose_key_is_there_again() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(short_lived(&cluster), TestClock::default());
        space(&store, NS).await;
        put(&store, part(), &bytes(1, PART)).await;
        let freed = segments(&store, NS, Space::Staging, b"part").await;
        let namespace = store.core().namespace(NS).unwrap();
        let pending = Pending {
            named: staged(b"part".to_vec()),
            composes: false,
            freed,
        };
        let entry = (names::pending(NUMBER), pending.encode());
        namespace.journal.enter(vec![entry]).await.unwrap();
        register_dead(&store, DEAD).await;
        compose(&store, &[Source::any(b"part")]).await;
        put(&store, part(), &bytes(2, PART)).await;
        store.settle().await.unwrap();
        assert_eq!(store.sweep().await.unwrap(), 1);
        is_clean(&store).await;
        assert!(get(&store, target()).await == bytes(1, PART));
        assert!(get(&store, part()).await == bytes(2, PART));
    });
}
