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
