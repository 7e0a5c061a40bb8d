//! Opening a store takes as long as the journal is, however much the store holds.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::sim::{Operations, SimClock, SimDisk};
use forebay_io::{Disk, File, OpenOptions};
use forebay_store::{
    Address, DeleteOptions, Durability, NamespaceConfig, Seal, Store, StoreOptions,
};
use support::{bytes, config, open, put, put_with, tenant};

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

/// What it takes to open a store of so many values, of which some are in the journal alone.
async fn operations(values: u64) -> Operations {
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
    disk.operations()
}

#[tokio::test]
async fn opening_reads_as_much_of_a_large_store_as_of_a_small_one() {
    let (small, large) = (operations(100).await, operations(10_000).await);
    assert!(large.reads < small.reads + 64, "{small:?} {large:?}");
    assert!(large.writes < small.writes + 64, "{small:?} {large:?}");
}

/// Where the file has a hole, any of its free space may be one. None of that is looked at before it is needed.
#[tokio::test]
async fn opening_does_nothing_about_free_space() {
    const VALUES: u8 = 60;
    let disk = SimDisk::new(2);
    let engine = opened(&disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for key in 0..VALUES {
        let address = Address::object("n", std::slice::from_ref(&key));
        put(&engine, address, &bytes(u64::from(key), 200_000))
            .await
            .unwrap();
    }
    for key in (0..VALUES).step_by(2) {
        let address = Address::object("n", std::slice::from_ref(&key));
        let options = DeleteOptions::default();
        engine.delete(address, options).await.unwrap();
    }
    engine.close();
    drop(engine);
    let options = OpenOptions {
        create: false,
        read_only: false,
        direct: false,
    };
    let data = disk.open("data", options).unwrap();
    let len = data.len().unwrap();
    data.set_len(len + (1 << 20)).unwrap();
    data.sync_data().unwrap();
    let resized = disk.operations().resizes;
    let engine = opened(&disk);
    // The library under the index may say its length.
    assert!(disk.operations().resizes < resized + 3);
    // All of it is found, and no more than there is, although the file system has nothing left.
    let held = ["data", "index"].map(|name| {
        let file = disk.open(name, options).unwrap();
        file.held_bytes().unwrap()
    });
    disk.set_capacity(Some(held.iter().sum()));
    for key in (0..VALUES).step_by(2) {
        let address = Address::object("n", std::slice::from_ref(&key));
        let value = bytes(u64::from(key), 200_000);
        let options = StoreOptions {
            size: Some(200_000),
            ..StoreOptions::default()
        };
        let stored = put_with(&engine, address, &value, options, Seal::default()).await;
        stored.unwrap();
    }
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
}
