//! A scrub and what else its thread has to do.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, Durability, NamespaceConfig, Store};
use support::{config, open, put, tenant};

const VALUES: u64 = 5000;
/// Values that a scrub looks at before others get their turn, at most.
const TURN: u64 = 64;

/// None of their bytes are waited for: they are in the index, or there are none.
#[tokio::test]
async fn a_scrub_of_small_values_gives_others_a_turn() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&SimDisk::new(1), clock, config());
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("n", relaxed).await.unwrap();
    for number in 0..VALUES {
        let value: &[u8] = if number % 2 == 0 { b"" } else { b"value" };
        let key = number.to_be_bytes();
        put(&engine, Address::object("n", &key), value)
            .await
            .unwrap();
    }
    let (turns, ended) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let other = tokio::spawn({
        let (turns, ended) = (turns.clone(), ended.clone());
        async move {
            while !ended.load(Relaxed) {
                turns.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!((scrubbed.values, scrubbed.damaged), (VALUES, 0));
    let turns = turns.load(Relaxed);
    ended.store(true, Relaxed);
    other.await.unwrap();
    assert!(turns >= VALUES / TURN, "{turns}");
}
