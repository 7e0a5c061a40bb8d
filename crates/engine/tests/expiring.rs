//! Values past their time: they count no more, and what they took is used again.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, Meta, NamespaceConfig, Scope, Seal, Store, StoreOptions, Usage};
use support::{bytes, check_space, config, get, open, put, put_with, tenant};

/// Inline, small, of one extent, of several.
const SIZES: [usize; 4] = [900, 3000, 200_000, 3_000_000];
/// More than one sweep takes.
const MANY: u64 = 600;

async fn put_until(engine: &Engine<SimDisk>, key: &str, value: &[u8], expires: u64) -> Meta {
    let address = Address::object("n", key.as_bytes());
    let seal = Seal {
        expires: Some(expires),
        ..Seal::default()
    };
    let stored = put_with(engine, address, value, StoreOptions::default(), seal).await;
    stored.unwrap().meta
}

async fn swept(engine: &Engine<SimDisk>) {
    while engine.sweep().await.unwrap() {}
    check_space(engine).await;
}

fn taken(engine: &Engine<SimDisk>) -> u64 {
    let metrics = engine.metrics();
    metrics.space_bytes - metrics.space_free_bytes
}

#[tokio::test]
async fn what_is_past_its_time_counts_no_more_and_gives_its_space_back() {
    let now = 1_700_000_000_000;
    let clock = Arc::new(SimClock::new(now));
    let disk = SimDisk::new(1);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let brief = NamespaceConfig {
        ttl_ms: Some(1000),
        ..tenant("t")
    };
    engine.create_namespace("brief", brief).await.unwrap();
    let lasting = bytes(1, 5000);
    put(&engine, Address::object("n", b"lasting"), &lasting)
        .await
        .unwrap();
    swept(&engine).await;
    let (usage, space) = (engine.usage(Scope::Tenant("t")).unwrap(), taken(&engine));
    for (at, size) in SIZES.into_iter().enumerate() {
        let value = bytes(at as u64, size);
        put_until(&engine, &format!("own/{at}"), &value, now + 1000).await;
        let key = [at as u8 + 1];
        put(&engine, Address::object("brief", &key), &value)
            .await
            .unwrap();
    }
    for number in 0..MANY {
        put_until(&engine, &format!("many/{number}"), &[7; 3000], now + 1000).await;
    }
    let full = engine.usage(Scope::Tenant("t")).unwrap();
    assert_eq!(full.objects, usage.objects + 2 * SIZES.len() as u64 + MANY);
    clock.advance(Duration::from_secs(2));
    swept(&engine).await;
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), usage);
    assert_eq!(
        engine.usage(Scope::Namespace("brief")).unwrap(),
        Usage::default()
    );
    assert_eq!(taken(&engine), space);
    drop(engine);
    let engine = open(&disk.crash(2), clock, config());
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), usage);
    assert_eq!(taken(&engine), space);
    let found = get(&engine, Address::object("n", b"lasting")).await;
    assert_eq!(found.unwrap(), lasting);
}
