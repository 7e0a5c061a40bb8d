//! The engine's own threads: when one ends by a panic, nobody waits for it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, ErrorKind, Store};
use support::watched::{Touch, Watched};
use support::{config, get, open, put, tenant};

#[tokio::test]
async fn a_panic_while_the_index_is_written_keeps_nobody_waiting() {
    let broken = Arc::new(AtomicBool::new(false));
    let sim = SimDisk::new(1);
    let disk = Watched::new(sim.clone(), {
        let broken = broken.clone();
        move |touch| {
            let is_index = thread::current().name() == Some("forebay-index");
            let breaks = is_index && touch == Touch::FreeBytes && broken.load(SeqCst);
            assert!(!breaks, "broken");
        }
    });
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    put(&engine, address, b"value").await.unwrap();
    broken.store(true, SeqCst);
    let refused = engine.checkpoint().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused:?}");
    let refused = put(&engine, address, b"other").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused:?}");
    assert_eq!(get(&engine, address).await.unwrap(), b"value");
    engine.close();
    let engine = open(&sim, clock, config());
    assert_eq!(get(&engine, address).await.unwrap(), b"value");
}
