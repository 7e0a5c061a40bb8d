//! A store that nobody changes for a while has everything in its index.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, Store};
use support::{config, get, open, put, tenant};

#[tokio::test]
async fn what_changed_reaches_the_index_when_the_store_is_idle() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let disk = SimDisk::new(1);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    put(&engine, address, b"value").await.unwrap();
    let before = engine.metrics().checkpoints;
    clock.advance(Duration::from_secs(60));
    // Any command makes the journal look at the clock; this one changes nothing.
    while engine.metrics().checkpoints == before {
        engine.sweep().await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&engine, address).await.unwrap(), b"value");
    drop(engine);
    assert_eq!(
        open(&disk.crash(7), clock, config())
            .metrics()
            .replayed_groups,
        0
    );
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
