//! What a namespace with relaxed durability promises: no more than its bound is lost, whether or not anything else happens.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::Engine;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, Durability, ErrorKind, NamespaceConfig, Store};
use support::{config, get, open, put, tenant};

const BOUND_MS: u32 = 50;
const NOW: u64 = 1_700_000_000_000;

struct Relaxed {
    clock: SimClock,
    disk: SimDisk,
    engine: Engine<SimDisk>,
    /// Syncs up to now.
    syncs: u64,
}

async fn relaxed() -> Relaxed {
    let clock = SimClock::new(NOW);
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

impl Relaxed {
    fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Whether the store syncs: its own thread has to wake up, since nobody calls.
    fn syncs_late(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if self.engine.metrics().syncs > self.syncs {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Whether the value is there after power loss: always, or sometimes not.
    async fn survives(&self, key: &[u8]) -> bool {
        for seed in 0..32 {
            let clock = Arc::new(SimClock::new(NOW));
            let engine = open(&self.disk.crash(seed), clock, config());
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
