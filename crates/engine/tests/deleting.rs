//! What it takes to delete versions of one key, however many of them went a moment ago.

mod support;

use std::sync::Arc;

use forebay_engine::Config;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, DeleteOptions, Durability, NamespaceConfig, Store, Versioning};
use support::{open, put, tenant, uncached};

/// How often the disk is read while so many versions of a key are deleted, the newest first, and after that for a look at the key. What is
/// gone is in the index until the next checkpoint.
async fn reads_for_deletes(versions: u64) -> u64 {
    let disk = SimDisk::new(1);
    let roomy = Config {
        segment_bytes: Config::default().segment_bytes,
        ..uncached()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&disk, clock, roomy);
    let versioned = NamespaceConfig {
        versioning: Versioning::Enabled,
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("n", versioned).await.unwrap();
    let address = Address::object("n", b"k");
    let mut oldest = Vec::new();
    for _ in 0..versions {
        oldest.push(put(&engine, address, b"value").await.unwrap().meta.version);
    }
    engine.checkpoint().await.unwrap();
    let before = disk.operations().reads;
    for version in oldest.into_iter().rev() {
        let options = DeleteOptions {
            version: Some(version),
            ..DeleteOptions::default()
        };
        assert!(engine.delete(address, options).await.unwrap().existed);
    }
    assert!(engine.stat(address, None).await.is_err());
    disk.operations().reads - before
}

#[tokio::test]
async fn a_delete_costs_the_same_however_many_were_deleted_before() {
    let (few, many) = (reads_for_deletes(50).await, reads_for_deletes(1000).await);
    assert!(many < 30 * few, "{few} reads of 50, {many} of 1000");
}
