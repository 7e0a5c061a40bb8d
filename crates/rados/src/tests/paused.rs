//! A gateway that stood still while others took it for dead and cleaned up after it, as one in a suspended machine does: its own clock
//! stood still, too, so that it cannot tell.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_store::{Away, Condition, Upload, Usage};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;

use super::*;
use crate::access::UNITS;
use crate::change::{Decide, Decision};
use crate::claims::staged;
use crate::core::Core;
use crate::heads::Seen;
use crate::keeper::REFRESH;
use crate::record::Layout;
use crate::stripes::Piece;
use crate::sys::Lease;
use crate::upload::{Content, Put, RadosUpload};

const NS: &str = "paused";
/// Longer than an object.
const STRIPED: usize = (5 << 20) + 1;
const PART: usize = 70_000;

fn target() -> Address<'static> {
    Address::object(NS, b"k")
}

/// Two gateways, of which neither renews its lease by itself as long as a test lasts.
async fn two(cluster: &Cluster) -> (RadosStore, RadosStore) {
    let config = Config {
        lease: Duration::from_secs(3600),
        grace: Duration::ZERO,
        ..config(cluster)
    };
    let impatient = Config {
        patience: Duration::from_secs(1),
        ..config.clone()
    };
    let clock = TestClock::default();
    let stores = (open(config, clock.clone()), open(impatient, clock));
    space(&stores.0, NS).await;
    stores.1.core().refresh().await.unwrap();
    stores
}

/// The lock of the one that stands still has come to its end.
async fn end_lock(sweeper: &RadosStore, paused: &RadosStore) {
    let core = sweeper.core();
    let mut op = WriteOp::new(&core.registry).guard(Guard::Exists);
    op.remove();
    let object = names::gateway(paused.core().gateway);
    let removed = core.access.write(&core.registry, &object, op, None, 0);
    removed.await.unwrap();
}

/// The same, and somebody has it for so long who cleans up after it.
async fn take_lock(sweeper: &RadosStore, paused: &RadosStore, hold: Duration) {
    end_lock(sweeper, paused).await;
    let object = names::gateway(paused.core().gateway);
    let lease = Lease::new(&sweeper.core().registry, &object, b"sweeper").unwrap();
    let taken = spawn_blocking(move || lease.take(hold));
    taken.await.unwrap().unwrap();
}

/// The other one cleans up after the one that stands still, and forgets it.
async fn sweep(sweeper: &RadosStore, paused: &RadosStore) {
    end_lock(sweeper, paused).await;
    assert_eq!(sweeper.sweep().await.unwrap(), 1);
}

/// Puts and gets something: it goes on.
async fn goes_on(store: &RadosStore) {
    let key = Address::object(NS, b"another");
    put(store, key, &bytes(3, STRIPED)).await;
    assert!(get(store, key).await == bytes(3, STRIPED));
}

async fn is_clean(store: &RadosStore) {
    for _ in 0..2 {
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
    }
    let audit = store.audit(NS).await.unwrap();
    assert!(audit.is_clean(), "{audit:#?}");
}

/// Waits until somebody has claimed a part.
async fn claimed(core: &Arc<Core>, key: &[u8]) {
    let namespace = core.namespace(NS).unwrap();
    let part = staged(key.to_vec());
    let claimed = async {
        while core.look(&namespace, &part).await.unwrap().claim.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(claimed, "the part is claimed").await;
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_composition_that_was_undone_does_not_happen() {
    let cluster = cluster();
    runtime().block_on(async {
        for before in [None, Some(b"before")] {
            let (one, two) = two(&cluster).await;
            let parts = [[b'a'], [b'b']];
            for part in &parts {
                put(&one, Address::staging(NS, part), &bytes(part[0], PART)).await;
            }
            if let Some(before) = before {
                put(&one, target(), before).await;
            }
            one.settle().await.unwrap();
            let core = one.core();
            let namespace = core.namespace(NS).unwrap();
            // It has claimed its parts, and stands still.
            let held = core.lock(namespace.id, &Named::object(b"k".to_vec())).await;
            let sources = [Source::any(&parts[0]), Source::any(&parts[1])];
            let (options, seal) = (StoreOptions::default(), Seal::default());
            let joining = one.compose(target(), &sources, &[], options, seal.clone());
            let sweeping = async {
                for part in &parts {
                    claimed(two.core(), part).await;
                }
                sweep(&two, &one).await;
                drop(held);
            };
            let (joined, ()) = tokio::join!(joining, sweeping);
            joined.unwrap_err();
            match before {
                Some(before) => assert_eq!(get(&two, target()).await, before),
                None => {
                    let none = two.stat(target(), None).await.unwrap_err();
                    assert_eq!(none.kind(), ErrorKind::NotFound);
                }
            }
            // The parts are nobody's, and can be joined anew.
            let joined = one.compose(target(), &sources, &[], options, seal);
            joined.await.unwrap();
            let whole = [bytes(b'a', PART), bytes(b'b', PART)].concat();
            assert!(get(&one, target()).await == whole);
            goes_on(&one).await;
            is_clean(&one).await;
            assert!(get(&two, target()).await == whole);
        }
    });
}

/// A large value whose bytes are all there.
async fn uploaded(store: &RadosStore, address: Address<'_>, seed: u8) -> RadosUpload {
    let options = StoreOptions {
        size: Some(STRIPED as u64),
        ..StoreOptions::default()
    };
    let mut upload = store.store(address, options).await.unwrap();
    for piece in bytes(seed, STRIPED).chunks(1 << 20) {
        upload.write(piece.to_vec().into()).await.unwrap();
    }
    upload
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_value_whose_stripes_were_swept_is_not_committed() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        let (there, new) = (target(), Address::object(NS, b"new"));
        put(&one, there, &bytes(1, STRIPED)).await;
        one.settle().await.unwrap();
        let mut uploads = Vec::new();
        for address in [there, new, Address::staging(NS, b"part")] {
            uploads.push(uploaded(&one, address, 2).await);
        }
        sweep(&two, &one).await;
        for upload in uploads {
            let refused = upload.commit(Seal::default()).await.unwrap_err();
            assert_ne!(refused.kind(), ErrorKind::OutcomeUnknown, "{refused}");
        }
        assert!(get(&two, there).await == bytes(1, STRIPED));
        let none = two.stat(new, None).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        goes_on(&one).await;
        is_clean(&one).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn bytes_are_not_let_go_for_a_copy_that_may_be_swept() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        put(&one, target(), &bytes(1, PART)).await;
        one.settle().await.unwrap();
        let seen = one.stat(target(), None).await.unwrap();
        let core = one.core();
        let namespace = core.namespace(NS).unwrap();
        // The copy is complete, and it stands still.
        let held = core.lock(namespace.id, &Named::object(b"k".to_vec())).await;
        let letting_go = one.let_go(target(), &seen, Away(7));
        let sweeping = async {
            sweep(&two, &one).await;
            drop(held);
        };
        let (let_go, ()) = tokio::join!(letting_go, sweeping);
        let refused = let_go.unwrap_err();
        assert_ne!(refused.kind(), ErrorKind::OutcomeUnknown, "{refused}");
        assert!(get(&two, target()).await == bytes(1, PART));
        one.let_go(target(), &seen, Away(8)).await.unwrap();
        goes_on(&one).await;
        is_clean(&one).await;
    });
}

/// A value that is decided, said, and then waits for as long as operations of others have all the room.
struct Crowded<'c> {
    put: Put<'c>,
    crowd: &'c Mutex<Option<OwnedSemaphorePermit>>,
}

impl Decide for Crowded<'_> {
    type Answer = bool;

    async fn decide(&mut self, seen: &Seen) -> forebay_store::Result<Decision<bool>> {
        let decided = self.put.decide(seen).await;
        let crowd = self.put.core.access.crowd(UNITS).await;
        *self.crowd.lock() = Some(crowd);
        decided
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_value_that_is_created_late_is_not_acknowledged() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        let core = one.core();
        let namespace = core.namespace(NS).unwrap();
        let named = Named::object(b"k".to_vec());
        let life = core.pulse.life();
        let segment = Segment {
            id: core.number(),
            len: PART as u64,
            stripe_bytes: core.config.object_bytes,
        };
        let holding = core.held.hold(segment.id);
        let intended = core.intend(&namespace, &named, segment);
        intended.await.unwrap();
        let mut piece = Piece::default();
        piece.push(bytes(1, PART).into());
        let written = core.write_piece(&namespace, segment, 0, piece.finish());
        written.await.await.unwrap();
        let put_striped = Put {
            core,
            namespace: &namespace,
            named: &named,
            content: Content {
                size: PART as u64,
                crc64nvme: 0,
                layout: Layout::Striped(vec![segment]),
                bufs: Vec::new(),
            },
            seal: Seal::default(),
            condition: Condition::None,
            intents: vec![segment.id],
            life: Some(life),
            room: None,
            copy: None,
            freed: Usage::default(),
            composition: None,
        };
        let crowd = Mutex::default();
        let crowded = Crowded {
            put: put_striped,
            crowd: &crowd,
        };
        let sweeping = async {
            let said = async {
                while two.core().pending(&namespace).await.unwrap().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(said, "the change is said").await;
            // It was there when it was said, and is no more when it is sent.
            drop(holding);
            sweep(&two, &one).await;
            crowd.lock().take();
        };
        let changing = core.change(&namespace, &named, false, crowded);
        let (changed, ()) = tokio::join!(changing, sweeping);
        let refused = changed.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutcomeUnknown, "{refused}");
        put(&one, target(), &bytes(2, STRIPED)).await;
        assert!(get(&two, target()).await == bytes(2, STRIPED));
        goes_on(&one).await;
        is_clean(&one).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_is_being_cleaned_up_after_waits_until_that_is_over() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        take_lock(&two, &one, Duration::from_secs(2)).await;
        let paused = one.core();
        let life = paused.pulse.life();
        paused.prove_alive().await.unwrap();
        assert_eq!(paused.pulse.life(), life + 1);
        goes_on(&one).await;
        is_clean(&one).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn however_many_wait_for_a_lock_one_asks_for_it() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        take_lock(&two, &one, Duration::from_secs(2)).await;
        let core = one.core();
        let asks = || core.pulse.asks.load(Relaxed);
        let before = asks();
        let proofs = (0..200).map(|_| core.prove_alive());
        try_join_all(proofs).await.unwrap();
        let asked = asks() - before;
        assert!(asked <= 20, "{asked} times");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_is_forgotten_and_cannot_come_back_yet_hears_the_news() {
    let cluster = cluster();
    runtime().block_on(async {
        let (one, two) = two(&cluster).await;
        // Who cleaned up after it died before it let the lock go, too.
        let name = registered_name(one.core().gateway);
        two.core().forget_registered(&name).await.unwrap();
        take_lock(&two, &one, 2 * REFRESH).await;
        space(&two, "news").await;
        assert!(one.namespace("news").is_ok(), "it was told");
    });
}
