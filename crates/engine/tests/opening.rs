//! Opening a store takes as long as the journal is, however much the store holds.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::sim::{Operations, SimClock, SimDisk};
use forebay_io::{Disk, File, OpenOptions};
use forebay_store::{Address, Durability, NamespaceConfig, Store};
use support::{bytes, config, open, put, tenant};

/// Without the check of a small index, which reads all of it.
fn unchecked() -> Config {
    Config {
        index_check_bytes: 0,
        ..config()
    }
}

fn opened(disk: &SimDisk) -> Engine<SimDisk> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    open(disk, clock, unchecked())
}

/// What it takes to open a store of so many values, of which some are in the journal alone; and the pages of its index.
async fn operations(values: u64) -> (Operations, u64) {
    let disk = SimDisk::new(1);
    let engine = opened(&disk);
    let config = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("n", config).await.unwrap();
    for number in 0..values {
        let key = format!("k{number:06}");
        let len = [100, 1000, 3000][number as usize % 3];
        let address = Address::object("n", key.as_bytes());
        put(&engine, address, &bytes(number, len)).await.unwrap();
        if number + 50 == values {
            engine.checkpoint().await.unwrap();
        }
    }
    engine.settle().await.unwrap();
    let disk = disk.crash(1);
    let reopened = opened(&disk);
    assert_eq!(reopened.metrics().replayed_groups, 49);
    let options = OpenOptions {
        create: false,
        read_only: true,
        direct: false,
    };
    let done = disk.operations();
    let index = disk.open("index", options).unwrap().len().unwrap();
    (done, index / 4096)
}

#[tokio::test]
async fn opening_reads_as_much_of_a_large_store_as_of_a_small_one() {
    let ((small, _), (large, pages)) = (operations(100).await, operations(10_000).await);
    // Built with its own assertions, the library under the index walks it once.
    let walk = if cfg!(debug_assertions) { pages } else { 0 };
    assert!(large.reads < small.reads + walk + 64, "{small:?} {large:?}");
    assert!(large.writes < small.writes + 64, "{small:?} {large:?}");
}
