//! The engine on a real directory: values of all sizes come back, also after reopening, and space is reused.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_engine::{Audit, Config, Engine, OpenError};
use forebay_io::SystemClock;
use forebay_io::files::Directory;
use forebay_mem::{Pool, Region};
use forebay_store::{
    Address, Body, ByteRange, DeleteOptions, ErrorKind, ListOptions, Scope, Seal, Source, Space,
    Store, StoreOptions, Usage,
};
use support::alone::is_alone;
use support::{bytes, config, get, get_range, open, put, tenant};
use tempfile::TempDir;

const SIZES: [usize; 12] = [
    0,
    1,
    2048,
    2049,
    4096,
    32 << 10,
    (32 << 10) + 1,
    65_536,
    100_000,
    1 << 20,
    (1 << 20) + 1,
    7_000_000,
];

fn clock() -> Arc<SystemClock> {
    Arc::new(SystemClock::default())
}

/// A directory with a store in it, which has the namespace `photos`.
async fn photos(config: Config) -> (TempDir, Directory, Engine<Directory>) {
    let temp = tempfile::tempdir().unwrap();
    let disk = Directory::open(temp.path()).unwrap();
    let engine = open(&disk, clock(), config);
    let made = engine.create_namespace("photos", tenant("ann")).await;
    made.unwrap();
    (temp, disk, engine)
}

fn list_all<'a>() -> ListOptions<'a> {
    ListOptions {
        namespace: "photos",
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after: forebay_store::After::Start,
        limit: 1000,
    }
}

/// Its extents lie side by side: what is freed is one run.
#[tokio::test]
async fn memory_of_a_value_is_let_go_when_nobody_can_find_it_any_more() {
    let (_temp, _disk, engine) = photos(Config {
        // Any part of it has room for all of the value: which parts its pieces go to is drawn anew at each start.
        cache_bytes: 32 << 20,
        ..config()
    })
    .await;
    let address = Address::object("photos", b"k");
    // Two extents, side by side.
    let value = bytes(1, 3 << 19);
    put(&engine, address, &value).await.unwrap();
    assert!(get(&engine, address).await.unwrap() == value);
    assert!(engine.metrics().cache_bytes >= value.len() as u64);
    let deleted = engine.delete(address, DeleteOptions::default()).await;
    deleted.unwrap();
    assert_eq!(engine.metrics().cache_bytes, 0);
}

/// What another process does with the file of values while it has it, as one that was killed does until its last write has ended.
#[tokio::test]
async fn a_store_waits_for_the_writes_of_a_former_process() {
    let (temp, disk, engine) = photos(config()).await;
    let address = Address::object("photos", b"k");
    let value = bytes(1, 3_000_000);
    put(&engine, address, &value).await.unwrap();
    let mut options = std::fs::OpenOptions::new();
    let former = options
        .read(true)
        .write(true)
        .open(temp.path().join("data"));
    let former = former.unwrap();
    assert!(former.try_lock().is_err());
    // Who reads from a store that is closed is in nobody's way.
    let mut object = engine
        .retrieve(address, None, ByteRange::Full)
        .await
        .unwrap();
    engine.close();
    former.try_lock().unwrap();
    let reopened = || Engine::open(disk.clone(), clock(), Pool::new(64 << 20), config());
    let refused = reopened().err().unwrap();
    assert!(matches!(refused, OpenError::Locked(_)), "{refused:?}");
    drop(former);
    let engine = reopened().unwrap();
    assert!(get(&engine, address).await.unwrap() == value);
    assert!(object.body.next().await.unwrap().is_some());
}

#[tokio::test]
async fn values_of_all_sizes_survive_reopening() {
    let temp = tempfile::tempdir().unwrap();
    let disk = Directory::open(temp.path()).unwrap();
    let mut total = 0;
    for clean in [true, false] {
        let engine = open(&disk, clock(), config());
        if clean {
            engine
                .create_namespace("photos", tenant("ann"))
                .await
                .unwrap();
        }
        for (at, size) in SIZES.into_iter().enumerate() {
            let key = format!("{clean}/{at:02}");
            let value = bytes(at as u64, size);
            let stored = put(&engine, Address::object("photos", key.as_bytes()), &value)
                .await
                .unwrap();
            assert_eq!(stored.meta.size, size as u64);
            assert_eq!(
                get(&engine, Address::object("photos", key.as_bytes()))
                    .await
                    .unwrap(),
                value
            );
            total += size as u64;
        }
        if clean {
            engine.close();
        }
    }
    let engine = open(&disk, clock(), config());
    for clean in [true, false] {
        for (at, size) in SIZES.into_iter().enumerate() {
            let key = format!("{clean}/{at:02}");
            let address = Address::object("photos", key.as_bytes());
            let value = bytes(at as u64, size);
            assert_eq!(get(&engine, address).await.unwrap(), value);
            for range in [
                (0, 0),
                (size / 2, size - size / 3),
                (size.saturating_sub(5), size + 9),
            ] {
                let range = ByteRange::Inclusive(range.0 as u64, range.1 as u64);
                let Some(expected) = range.resolve(size as u64) else {
                    let error = get_range(&engine, address, range).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::RangeNotSatisfiable);
                    continue;
                };
                let expected = &value[expected.start as usize..expected.end as usize];
                assert_eq!(get_range(&engine, address, range).await.unwrap(), expected);
            }
        }
    }
    let usage = engine.usage(Scope::Namespace("photos")).unwrap();
    assert_eq!(
        usage,
        Usage {
            objects: 2 * SIZES.len() as u64,
            bytes: total
        }
    );
    assert_eq!(
        engine.list(list_all()).await.unwrap().items.len(),
        2 * SIZES.len()
    );
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!((scrubbed.damaged, scrubbed.bytes), (0, total));
}

#[tokio::test]
async fn space_of_replaced_and_deleted_values_is_reused() {
    let (_temp, disk, engine) = photos(config()).await;
    let address = Address::object("photos", b"k");
    for round in 0..40 {
        put(&engine, address, &bytes(round, 3_000_000))
            .await
            .unwrap();
    }
    assert!(
        engine.metrics().space_bytes < 16 << 20,
        "{:?}",
        engine.metrics()
    );
    engine
        .delete(address, DeleteOptions::default())
        .await
        .unwrap();
    engine.close();
    let engine = open(&disk, clock(), config());
    assert_eq!(engine.audit().unwrap(), Audit::default());
    assert_eq!(
        engine.usage(Scope::Tenant("ann")).unwrap(),
        Usage::default()
    );
}

#[tokio::test]
async fn parts_are_joined_without_moving() {
    let (_temp, disk, engine) = photos(config()).await;
    let sizes = [5_000_000, 100, 0, 2_000_000];
    let mut whole = Vec::new();
    for (at, size) in sizes.into_iter().enumerate() {
        let key = format!("up/{at}");
        let value = bytes(at as u64, size);
        put(&engine, Address::staging("photos", key.as_bytes()), &value)
            .await
            .unwrap();
        whole.extend(value);
    }
    let keys: Vec<String> = (0..sizes.len()).map(|at| format!("up/{at}")).collect();
    let keys = keys.iter().map(|key| Source::any(key.as_bytes()));
    let keys: Vec<Source<'_>> = keys.collect();
    let target = Address::object("photos", b"joined");
    let written = || forebay_io::counters().written_bytes;
    let before = written();
    let stored = engine
        .compose(target, &keys, &[], StoreOptions::default(), Seal::default())
        .await
        .unwrap();
    if is_alone() {
        assert!(written() - before <= 64 << 10, "a record, and no bytes");
    }
    assert_eq!(stored.meta.crc64nvme, crc_fast::crc64_nvme(&whole));
    engine.close();
    let engine = open(&disk, clock(), config());
    assert_eq!(get(&engine, target).await.unwrap(), whole);
    let range = ByteRange::Inclusive(4_999_990, 5_000_200);
    assert_eq!(
        get_range(&engine, target, range).await.unwrap(),
        whole[4_999_990..=5_000_200]
    );
    assert_eq!(
        engine.usage(Scope::Namespace("photos")).unwrap(),
        Usage {
            objects: 1,
            bytes: whole.len() as u64
        }
    );
    engine
        .delete(target, DeleteOptions::default())
        .await
        .unwrap();
    engine.close();
    assert_eq!(
        open(&disk, clock(), config()).audit().unwrap(),
        Audit::default()
    );
}

#[tokio::test]
async fn a_client_that_scribbles_is_not_taken_for_damage() {
    let (_temp, _disk, engine) = photos(Config {
        cache_bytes: 0,
        ..config()
    })
    .await;
    let address = Address::object("photos", b"k");
    let size = 300_000;
    put(&engine, address, &bytes(1, size)).await.unwrap();
    let target = Region::anonymous(size).unwrap();
    let target = target.slice(0..size).unwrap();
    let (scribbled, ended) = (target.clone(), Arc::new(AtomicBool::new(false)));
    let until = ended.clone();
    let scribbler = std::thread::spawn(move || {
        let mut turn = 0_u8;
        while !until.load(Relaxed) {
            turn = turn.wrapping_add(1);
            for at in (0..size).step_by(1000) {
                scribbled.write(at, &[turn]);
            }
        }
    });
    for _ in 0..50 {
        engine
            .retrieve_into(address, None, ByteRange::Full, target.clone())
            .await
            .unwrap();
    }
    ended.store(true, Relaxed);
    scribbler.join().unwrap();
    assert!(engine.findings().is_empty());
    assert_eq!(engine.metrics().corrupt_blocks, 0);
}

#[tokio::test]
async fn a_reader_keeps_what_it_reads() {
    let (_temp, _disk, engine) = photos(Config {
        cache_bytes: 0,
        ..config()
    })
    .await;
    let address = Address::object("photos", b"k");
    let old = bytes(1, 6_000_000);
    put(&engine, address, &old).await.unwrap();
    let mut object = engine
        .retrieve(address, None, ByteRange::Full)
        .await
        .unwrap();
    for round in 2..12 {
        put(&engine, address, &bytes(round, 6_000_000))
            .await
            .unwrap();
    }
    engine
        .delete(address, DeleteOptions::default())
        .await
        .unwrap();
    let mut read = Vec::new();
    while let Some(buf) = forebay_store::Body::next(&mut object.body).await.unwrap() {
        read.extend_from_slice(&buf);
    }
    assert!(read == old);
}

#[tokio::test]
async fn a_directory_serves_one_process_and_one_format() {
    let temp = tempfile::tempdir().unwrap();
    let disk = Directory::open(temp.path()).unwrap();
    let engine = open(&disk, clock(), config());
    let again = Engine::open(disk.clone(), clock(), Pool::new(1 << 20), config());
    assert!(matches!(again, Err(OpenError::Locked(_))));
    engine.close();
    drop(engine);
    let path = temp.path().join("data");
    let mut data = std::fs::read(&path).unwrap();
    data[8] = 9;
    data[4096 + 8] = 9;
    std::fs::write(&path, &data).unwrap();
    let newer = Engine::open(disk.clone(), clock(), Pool::new(1 << 20), config());
    let Err(refused) = newer else {
        panic!("opened");
    };
    assert!(matches!(refused, OpenError::Version { found: 9 }));
    let said = refused.to_string();
    assert!(said.contains("use a forebay that reads 9"), "{said}");
    data[..8192].fill(7);
    std::fs::write(&path, &data).unwrap();
    let other = Engine::open(disk, clock(), Pool::new(1 << 20), config());
    assert!(matches!(other, Err(OpenError::NotAStore)));
}

/// Small damage to a store does not become the loss of all of it.
#[tokio::test]
async fn what_is_left_of_a_store_is_not_made_anew() {
    for closes in [true, false] {
        let temp = tempfile::tempdir().unwrap();
        let engine = open(&Directory::open(temp.path()).unwrap(), clock(), config());
        engine.create_namespace("n", tenant("t")).await.unwrap();
        let address = Address::object("n", b"key");
        put(&engine, address, &bytes(1, 100_000)).await.unwrap();
        if closes {
            engine.close();
        }
        let copied = |name: &str| std::fs::read(temp.path().join(name)).unwrap();
        let (data, index) = (copied("data"), copied("index"));
        drop(engine);
        let zeroed = [&[0; 8192], &data[8192..]].concat();
        let mut damages = vec![Some(zeroed)];
        // Of a store whose index knows of nothing yet, nothing would be left to tell.
        if closes {
            damages.push(None);
        }
        for damage in damages {
            let there = tempfile::tempdir().unwrap();
            std::fs::write(there.path().join("index"), &index).unwrap();
            if let Some(damaged) = &damage {
                std::fs::write(there.path().join("data"), damaged).unwrap();
            }
            let disk = Directory::open(there.path()).unwrap();
            let again = Engine::open(disk.clone(), clock(), Pool::new(1 << 20), config());
            assert!(matches!(again, Err(OpenError::NotAStore)));
            drop(again);
            // With the file back, all is there.
            std::fs::write(there.path().join("data"), &data).unwrap();
            let engine = open(&disk, clock(), config());
            let value = get(&engine, address).await.unwrap();
            assert!(value == bytes(1, 100_000));
        }
    }
}

#[tokio::test]
async fn a_store_that_was_closed_leaves_the_directory_alone() {
    let temp = tempfile::tempdir().unwrap();
    let disk = Directory::open(temp.path()).unwrap();
    let closed = open(&disk, clock(), config());
    closed
        .create_namespace("photos", tenant("ann"))
        .await
        .unwrap();
    let address = Address::object("photos", b"k");
    put(&closed, address, &bytes(1, 900)).await.unwrap();
    closed.close();
    let engine = open(&disk, clock(), config());
    let address = |key: &'static [u8; 2]| Address::object("photos", key);
    for (key, seed) in [(b"k1", 2), (b"k2", 3)] {
        put(&engine, address(key), &bytes(seed, 900)).await.unwrap();
        engine.checkpoint().await.unwrap();
    }
    // Whoever had the store before goes only now; then all is as after `kill -9`.
    drop(closed);
    let copy = tempfile::tempdir().unwrap();
    for name in ["data", "index"] {
        std::fs::copy(temp.path().join(name), copy.path().join(name)).unwrap();
    }
    let engine = open(&Directory::open(copy.path()).unwrap(), clock(), config());
    assert_eq!(get(&engine, address(b"k1")).await.unwrap(), bytes(2, 900));
    assert_eq!(get(&engine, address(b"k2")).await.unwrap(), bytes(3, 900));
}

#[tokio::test]
async fn long_records_at_once_fit_their_segments() {
    let (_temp, disk, engine) = photos(config()).await;
    let attributes = forebay_store::Attributes::builder()
        .set("a", vec![7; 500_000])
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..24)
        .map(|client| {
            let (engine, attributes) = (engine.clone(), attributes.clone());
            tokio::spawn(async move {
                let key = format!("k{client}");
                let address = Address::object("photos", key.as_bytes());
                put(&engine, address, &bytes(client, 3000)).await.unwrap();
                engine.amend(address, None, None, attributes).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(engine.metrics().checkpoints > 5);
    drop(engine);
    let engine = open(&disk, clock(), config());
    for client in 0..24 {
        let key = format!("k{client}");
        let address = Address::object("photos", key.as_bytes());
        assert_eq!(get(&engine, address).await.unwrap(), bytes(client, 3000));
        assert_eq!(
            engine.stat(address, None).await.unwrap().attributes,
            attributes
        );
    }
}
