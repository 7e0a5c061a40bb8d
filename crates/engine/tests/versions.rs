//! Versions that move between the current place and the kept ones while they are read.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, DeleteOptions, NamespaceConfig, Store, Versioning};
use support::{config, open, put, tenant};

#[tokio::test]
async fn a_version_that_always_was_there_is_always_found() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&SimDisk::new(1), clock, config());
    let versioned = NamespaceConfig {
        versioning: Versioning::Enabled,
        ..tenant("t")
    };
    engine.create_namespace("n", versioned).await.unwrap();
    let address = Address::object("n", b"k");
    let first = put(&engine, address, b"first").await.unwrap();
    let first = first.meta.version;
    let ended = Arc::new(AtomicBool::new(false));
    let (reader, until) = (engine.clone(), ended.clone());
    let reader = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        while !until.load(Relaxed) {
            let found = runtime.block_on(reader.stat(address, Some(first)));
            assert_eq!(found.unwrap().version, first);
        }
    });
    for _ in 0..2000 {
        let second = put(&engine, address, b"second").await.unwrap();
        // The first one is current again.
        let options = DeleteOptions {
            version: Some(second.meta.version),
            ..DeleteOptions::default()
        };
        engine.delete(address, options).await.unwrap();
        if reader.is_finished() {
            break;
        }
    }
    ended.store(true, Relaxed);
    reader.join().unwrap();
}
