//! A store that nobody changes for a while has everything in its index.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::Engine;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, ErrorKind, Store};
use support::{config, get, open, put, tenant};

/// After so long without changes everything is in the index, as `docs/engine-format.md` says.
const IDLE: Duration = Duration::from_secs(10);
const LEFT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn what_changed_reaches_the_index_when_the_store_is_idle() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let disk = SimDisk::new(1);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    put(&engine, address, b"value").await.unwrap();
    let before = engine.metrics().checkpoints;
    // A command has the journal's thread look at the clock, and wait for what is left of the time.
    clock.advance(IDLE - LEFT);
    engine.sweep().await.unwrap();
    assert_eq!(engine.metrics().checkpoints, before);
    clock.advance(LEFT);
    another_checkpoint(&engine, before);
    assert_eq!(get(&engine, address).await.unwrap(), b"value");
    drop(engine);
    assert_eq!(
        open(&disk.crash(7), clock, config())
            .metrics()
            .replayed_groups,
        0
    );
}

/// The store has to wake up by itself: nobody calls.
fn another_checkpoint(engine: &Engine<SimDisk>, before: u64) {
    let begun = Instant::now();
    while engine.metrics().checkpoints == before {
        assert!(begun.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(5));
    }
}

/// What found no room in the index, which nobody changes any more, gets there when there is room.
#[tokio::test]
async fn what_found_no_room_reaches_the_index_when_the_store_is_idle() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let disk = SimDisk::new(3);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    put(&engine, Address::object("n", b"k"), &[7; 2000])
        .await
        .unwrap();
    disk.set_capacity(Some(0));
    let refused = engine.checkpoint().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused:?}");
    let before = engine.metrics().checkpoints;
    disk.set_capacity(None);
    clock.advance(IDLE - LEFT);
    engine.sweep().await.unwrap();
    clock.advance(LEFT);
    another_checkpoint(&engine, before);
}

#[tokio::test]
async fn what_was_there_before_a_checkpoint_is_in_the_index_when_it_is_answered() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let disk = SimDisk::new(2);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let keys: Vec<_> = (0..200).map(|number| format!("k{number}")).collect();
    for key in &keys {
        put(&engine, Address::object("n", key.as_bytes()), b"value")
            .await
            .unwrap();
    }
    engine.checkpoint().await.unwrap();
    // Power is lost at once: what only the journal had would be replayed.
    let engine = open(&disk.crash(3), clock, config());
    assert_eq!(engine.metrics().replayed_groups, 0);
    for key in &keys {
        let value = get(&engine, Address::object("n", key.as_bytes())).await;
        assert_eq!(value.unwrap(), b"value");
    }
}
