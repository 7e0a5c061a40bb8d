//! What a namespace with relaxed durability promises: no more than its bound is lost, whether or not anything else happens.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_engine::{Engine, FILES, Metrics};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_io::{Clock, UnixMillis};
use forebay_store::{Address, Durability, ErrorKind, NamespaceConfig, Store};
use support::{config, content, get, length, open, put, replace, tenant};

const BOUND_MS: u32 = 50;
const NOW: u64 = 1_700_000_000_000;

/// Once broken, the journal's thread panics when it looks at the time.
#[derive(Debug, Clone)]
struct Brittle {
    clock: SimClock,
    broken: Arc<AtomicBool>,
}

impl Clock for Brittle {
    fn unix_millis(&self) -> UnixMillis {
        self.clock.unix_millis()
    }

    fn monotonic(&self) -> Duration {
        let is_journal = std::thread::current().name() == Some("forebay-journal");
        assert!(!(is_journal && self.broken.load(SeqCst)), "broken");
        self.clock.monotonic()
    }
}

struct Relaxed {
    clock: Brittle,
    disk: SimDisk,
    engine: Engine<SimDisk>,
    /// Syncs up to now.
    syncs: u64,
}

async fn relaxed() -> Relaxed {
    let clock = Brittle {
        clock: SimClock::new(NOW),
        broken: Arc::default(),
    };
    let disk = SimDisk::new(1);
    let engine = open(&disk, Arc::new(clock.clone()), config());
    let config = NamespaceConfig {
        durability: Durability::Relaxed {
            within_ms: BOUND_MS,
        },
        ..tenant("t")
    };
    engine.create_namespace("n", config).await.unwrap();
    engine.settle().await.unwrap();
    Relaxed {
        syncs: engine.metrics().syncs,
        clock,
        disk,
        engine,
    }
}

/// What is on a disk, on one that takes every write.
fn copied(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(1);
    for name in FILES {
        replace(&copy, name, &content(disk, name));
    }
    copy
}

impl Relaxed {
    fn pass(&self, millis: u64) {
        self.clock.clock.advance(Duration::from_millis(millis));
    }

    /// Whether the store syncs: its own thread has to wake up, since nobody calls.
    fn syncs_late(&self) -> bool {
        self.comes_to(|metrics| metrics.syncs > self.syncs)
    }

    fn comes_to(&self, is_there: impl Fn(Metrics) -> bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if is_there(self.engine.metrics()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The index cannot be written any more, which the store finds when a segment of the journal is full: the first value in the next
    /// one is answered early, and then the store takes no more. Tells that value's key.
    async fn loses_its_index(&mut self) -> [u8; 4] {
        for offset in (0..length(&self.disk, "index") + (8 << 20)).step_by(512) {
            self.disk.wear("index", offset).unwrap();
        }
        for number in 0_u32.. {
            let key = number.to_be_bytes();
            put(&self.engine, Address::object("n", &key), &key)
                .await
                .unwrap();
            let syncs = self.engine.metrics().syncs;
            if syncs > self.syncs {
                self.syncs = syncs;
                assert!(self.comes_to(|metrics| metrics.read_only));
                return key;
            }
        }
        unreachable!("a segment is never full")
    }

    /// Whether the value is there after power loss: always, or sometimes not.
    async fn survives(&self, key: &[u8]) -> bool {
        for seed in 0..32 {
            let clock = Arc::new(SimClock::new(NOW));
            let engine = open(&copied(&self.disk.crash(seed)), clock, config());
            match get(&engine, Address::object("n", key)).await {
                Ok(value) => assert_eq!(value, key),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    return false;
                }
            }
        }
        true
    }
}

#[tokio::test]
async fn a_relaxed_change_is_durable_within_its_bound_although_nothing_follows() {
    let store = relaxed().await;
    put(&store.engine, Address::object("n", b"k"), b"k")
        .await
        .unwrap();
    assert_eq!(store.engine.metrics().syncs, store.syncs, "answered early");
    assert!(!store.survives(b"k").await);
    store.pass(u64::from(BOUND_MS));
    assert!(store.syncs_late());
    assert!(store.survives(b"k").await);
}

#[tokio::test]
async fn changes_that_follow_do_not_put_the_bound_off() {
    let store = relaxed().await;
    for key in [b"a", b"b", b"c"] {
        put(&store.engine, Address::object("n", key), key)
            .await
            .unwrap();
        assert_eq!(store.engine.metrics().syncs, store.syncs);
        store.pass(20);
    }
    put(&store.engine, Address::object("n", b"d"), b"d")
        .await
        .unwrap();
    assert!(store.syncs_late());
    assert!(store.survives(b"a").await);
}

#[tokio::test]
async fn the_bound_is_kept_although_the_store_takes_no_more() {
    let mut store = relaxed().await;
    let key = store.loses_its_index().await;
    store.pass(u64::from(BOUND_MS));
    assert!(store.syncs_late());
    assert!(store.survives(&key).await);
}

#[tokio::test]
async fn a_store_that_takes_no_more_closes_with_everything_durable() {
    let mut store = relaxed().await;
    let key = store.loses_its_index().await;
    store.engine.close();
    assert!(store.survives(&key).await);
}

#[tokio::test]
async fn what_was_answered_early_stays_although_the_journal_panics() {
    let store = relaxed().await;
    put(&store.engine, Address::object("n", b"k"), b"k")
        .await
        .unwrap();
    assert!(!store.survives(b"k").await);
    store.clock.broken.store(true, SeqCst);
    let address = Address::object("n", b"more");
    let error = put(&store.engine, address, b"more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(store.syncs_late());
    assert!(store.survives(b"k").await);
    let error = put(&store.engine, address, b"more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

/// A sync after one that failed would tell nothing: what it was to write may be gone.
#[tokio::test]
async fn a_sync_that_failed_is_not_tried_again() {
    let store = relaxed().await;
    put(&store.engine, Address::object("n", b"k"), b"k")
        .await
        .unwrap();
    store.disk.set_faults(Faults {
        sync_error: 1.0,
        ..Faults::default()
    });
    store.pass(u64::from(BOUND_MS));
    assert!(store.comes_to(|metrics| metrics.read_only));
    store.disk.set_faults(Faults::default());
    store.engine.close();
    assert_eq!(store.engine.metrics().syncs, store.syncs);
}
