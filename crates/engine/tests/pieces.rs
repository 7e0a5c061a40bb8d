//! Values in so many pieces that no record of the journal has room to free them all: they go like any other.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::Clock;
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_store::limits::ATTRIBUTES_BYTES_MAX;
use forebay_store::{
    Address, Attributes, Body, ByteRange, DeleteOptions, Durability, ErrorKind, NamespaceConfig,
    Result, Scope, Seal, Source, Space, Store, StoreOptions, Usage,
};
use support::{bytes, check_space, config, get, open, put, put_with, tenant};
use tokio::task::JoinSet;

const NOW: u64 = 1_700_000_000_000;
const GRANULE: usize = 4096;
/// Of the value: so many whole MiB that all of them and the longest attributes are too long for a record.
const PIECES: usize = 133 * 256;
/// Of one part.
const PART: usize = 3000;
/// Of one row of a layout.
const LAYOUT_EXTENTS_MAX: usize = 1024;
const OBJECT: Address<'_> = Address {
    namespace: "n",
    space: Space::Objects,
    key: b"joined",
};

fn full(pieces: usize) -> Config {
    Config {
        capacity_bytes: (2 * pieces * GRANULE) as u64,
        index_check_bytes: 0,
        cache_bytes: 0,
        ..config()
    }
}

fn staged(key: &[u8]) -> Address<'_> {
    Address {
        space: Space::Staging,
        ..Address::object("n", key)
    }
}

/// A store that is full but for so many granules, no two of them beside each other.
async fn splintered(disk: &SimDisk, clock: Arc<SimClock>, pieces: usize) -> Engine<SimDisk> {
    let engine = open(disk, clock, full(pieces));
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("fill", relaxed).await.unwrap();
    engine.create_namespace("n", tenant("n")).await.unwrap();
    let key = |number: usize| format!("{number:08}").into_bytes();
    for first in (0..2 * pieces).step_by(256) {
        let mut writers = JoinSet::new();
        for number in first..first + 256 {
            let engine = engine.clone();
            writers.spawn(async move {
                let key = key(number);
                let address = Address::object("fill", &key);
                put(&engine, address, &[1; GRANULE]).await.unwrap();
            });
        }
        writers.join_all().await;
    }
    for number in (0..2 * pieces).step_by(2) {
        let key = key(number);
        let address = Address::object("fill", &key);
        let options = DeleteOptions::default();
        engine.delete(address, options).await.unwrap();
    }
    engine.checkpoint().await.unwrap();
    engine
}

async fn joined(engine: &Engine<SimDisk>, seal: Seal) -> Vec<u8> {
    let mut value = Vec::new();
    let mut keys = Vec::new();
    for (number, at) in (0..PIECES).step_by(PART).enumerate() {
        let part = bytes(number as u64, PART.min(PIECES - at) * GRANULE);
        let key = format!("part/{number}").into_bytes();
        put(engine, staged(&key), &part).await.unwrap();
        keys.push(key);
        value.extend(part);
    }
    let sources: Vec<_> = keys.iter().map(|key| Source::any(key)).collect();
    let options = StoreOptions::default();
    engine
        .compose(OBJECT, &sources, &[], options, seal)
        .await
        .unwrap();
    value
}

/// What makes the value go.
#[derive(Debug, Clone, Copy)]
enum End {
    Deleted,
    Replaced,
    Expired,
}

async fn end(engine: &Engine<SimDisk>, clock: &SimClock, how: End) -> Result<()> {
    match how {
        End::Deleted => {
            let deleted = engine.delete(OBJECT, DeleteOptions::default()).await?;
            assert!(deleted.existed);
            Ok(())
        }
        // With the longest attributes: the record is long already.
        End::Replaced => {
            let attributes = Attributes::builder()
                .set("a", vec![7; ATTRIBUTES_BYTES_MAX - 64])
                .build()
                .unwrap();
            let seal = Seal {
                attributes,
                ..Seal::default()
            };
            let options = StoreOptions::default();
            put_with(engine, OBJECT, b"new", options, seal)
                .await
                .map(drop)
        }
        End::Expired => {
            clock.advance(Duration::from_secs(2));
            engine.sweep().await.map(drop)
        }
    }
}

/// The value is whole, or gone and weighs nothing, although not all of its space may be free yet; then all of it is.
async fn check(engine: &Engine<SimDisk>, clock: &SimClock, how: End, value: &[u8], ended: bool) {
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
    let usage = |bytes| Usage { objects: 1, bytes };
    let new = usage(3);
    let left = match get(engine, OBJECT).await {
        Ok(found) if found == b"new" => new,
        Ok(found) => {
            assert!(!ended && found == value, "{how:?}");
            let there = engine.usage(Scope::Namespace("n")).unwrap();
            assert_eq!(there, usage(value.len() as u64));
            end(engine, clock, how).await.unwrap();
            match how {
                End::Replaced => new,
                End::Deleted | End::Expired => Usage::default(),
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
            Usage::default()
        }
    };
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), left);
    while engine.sweep().await.unwrap() {}
    check_space(engine).await;
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), left);
    let metrics = engine.metrics();
    assert_eq!(metrics.space_free_bytes, metrics.space_bytes / 2);
    assert!(!metrics.read_only && engine.findings().is_empty());
}

#[tokio::test]
async fn a_value_in_many_pieces_goes_in_several_records() {
    let clock = Arc::new(SimClock::new(NOW));
    let disk = SimDisk::new(1);
    let engine = splintered(&disk, clock.clone(), PIECES).await;
    let metrics = engine.metrics();
    assert_eq!(metrics.space_free_bytes, metrics.space_bytes / 2);
    let seal = Seal {
        expires: Some(NOW + 1000),
        ..Seal::default()
    };
    let value = joined(&engine, seal).await;
    assert_eq!(engine.metrics().space_free_bytes, 0);
    drop(engine);
    for how in [End::Replaced, End::Deleted, End::Expired] {
        let mut groups = 0;
        // The power goes while it ends, or soon after, or not at all.
        for power_off in [Some(2), Some(5), None] {
            let disk = disk.crash(2);
            let clock = Arc::new(SimClock::new(NOW));
            let engine = open(&disk, clock.clone(), full(PIECES));
            let before = engine.metrics().groups;
            disk.set_faults(Faults {
                power_off_at: power_off.map(|after| disk.operations().total() + after),
                ..Faults::default()
            });
            let ended = end(&engine, &clock, how).await.is_ok();
            // Without power more is due for ever.
            for _ in 0..8 {
                drop(engine.sweep().await);
            }
            if power_off.is_none() {
                groups = engine.metrics().groups - before;
                check(&engine, &clock, how, &value, ended).await;
            }
            let disk = disk.crash(3);
            drop(engine);
            let now = clock.unix_millis();
            let clock = Arc::new(SimClock::new(now));
            let engine = open(&disk, clock.clone(), full(PIECES));
            check(&engine, &clock, how, &value, ended).await;
        }
        assert!(groups > 1, "{how:?} in {groups}");
    }
}

#[tokio::test]
async fn more_parts_than_can_be_freed_are_not_joined() {
    let clock = Arc::new(SimClock::new(NOW));
    let engine = open(&SimDisk::new(1), clock, config());
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("n", relaxed).await.unwrap();
    let keys: Vec<_> = (0..4000).map(|number| format!("{number}")).collect();
    for key in &keys {
        put(&engine, staged(key.as_bytes()), &[1; GRANULE])
            .await
            .unwrap();
    }
    let sources: Vec<_> = keys.iter().map(|key| Source::any(key.as_bytes())).collect();
    let options = StoreOptions::default;
    let join = |count| engine.compose(OBJECT, &sources[..count], &[], options(), Seal::default());
    let error = join(4000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("pieces"), "{error}");
    join(3000).await.unwrap();
    assert_eq!(get(&engine, OBJECT).await.unwrap(), [1; 3000 * GRANULE]);
    engine
        .delete(OBJECT, DeleteOptions::default())
        .await
        .unwrap();
    check_space(&engine).await;
}

/// Where its parts are is looked up when it comes to them.
#[tokio::test]
async fn a_reader_has_all_of_a_value_of_many_parts_that_goes_meanwhile() {
    const LARGE: usize = 6 << 20;
    let uncached = Config {
        cache_bytes: 0,
        ..config()
    };
    let engine = open(&SimDisk::new(3), Arc::new(SimClock::new(NOW)), uncached);
    engine.create_namespace("n", tenant("n")).await.unwrap();
    let mut value = Vec::new();
    let keys = [b"1", b"2", b"3", b"4"];
    for (seed, key) in keys.into_iter().enumerate() {
        let part = bytes(seed as u64, LARGE);
        put(&engine, staged(key), &part).await.unwrap();
        value.extend(part);
    }
    let sources = keys.map(|key| Source::any(key));
    let (options, seal) = (StoreOptions::default(), Seal::default());
    engine
        .compose(OBJECT, &sources, &[], options, seal)
        .await
        .unwrap();
    let object = engine.retrieve(OBJECT, None, ByteRange::Full).await;
    let mut body = object.unwrap().body;
    let mut found = body.next().await.unwrap().unwrap().to_vec();
    engine
        .delete(OBJECT, DeleteOptions::default())
        .await
        .unwrap();
    engine.checkpoint().await.unwrap();
    let next = Address::object("n", b"next");
    put(&engine, next, &bytes(9, 4 * LARGE)).await.unwrap();
    while let Some(buf) = body.next().await.unwrap() {
        found.extend_from_slice(&buf);
    }
    assert!(found == value);
    drop(body);
    check_space(&engine).await;
}

/// The last row of its layout is a short one.
#[tokio::test]
async fn a_reader_has_all_of_a_long_value_in_pieces_that_goes_meanwhile() {
    const ROOM: usize = 9 * 128;
    let clock = Arc::new(SimClock::new(NOW));
    let engine = splintered(&SimDisk::new(4), clock, ROOM).await;
    let value = bytes(5, (LAYOUT_EXTENTS_MAX + 2) * GRANULE);
    put(&engine, OBJECT, &value).await.unwrap();
    let object = engine.retrieve(OBJECT, None, ByteRange::Full).await;
    let mut body = object.unwrap().body;
    let mut found = body.next().await.unwrap().unwrap().to_vec();
    let options = DeleteOptions::default();
    engine.delete(OBJECT, options).await.unwrap();
    while let Some(buf) = body.next().await.unwrap() {
        found.extend_from_slice(&buf);
    }
    assert!(found == value && engine.findings().is_empty());
    drop(body);
    check_space(&engine).await;
}

/// A reader that never ends keeps the value's space, and what tells where that is: both are counted, and end with it.
#[tokio::test]
async fn what_a_reader_keeps_of_a_long_value_that_went_is_counted() {
    let uncached = Config {
        cache_bytes: 0,
        ..config()
    };
    let engine = open(&SimDisk::new(3), Arc::new(SimClock::new(NOW)), uncached);
    engine.create_namespace("n", tenant("n")).await.unwrap();
    let value = bytes(1, 6 << 20);
    put(&engine, OBJECT, &value).await.unwrap();
    let kept = || {
        let metrics = engine.metrics();
        (metrics.space_kept_bytes, metrics.kept_layout_bytes)
    };
    let mut body = engine
        .retrieve(OBJECT, None, ByteRange::Full)
        .await
        .unwrap()
        .body;
    assert_eq!(kept(), (0, 0));
    engine
        .delete(OBJECT, DeleteOptions::default())
        .await
        .unwrap();
    // Each command has the journal look for what can be used again.
    engine.sweep().await.unwrap();
    // Six pieces of a MiB, each with the checksums of its blocks.
    assert_eq!(kept(), (6 << 20, 4 + 6 * (12 + 16 * 4)));
    let mut read = Vec::new();
    while let Some(buf) = body.next().await.unwrap() {
        read.extend_from_slice(&buf);
    }
    assert!(read == value);
    drop(body);
    assert_eq!(kept(), (0, 0));
    check_space(&engine).await;
}
