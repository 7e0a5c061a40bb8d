//! A disk that fails, fills up and rots: errors are clear, reads go on, bytes are right or refused.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::{PAGE_BYTES, Pool};
use forebay_store::{
    Address, Condition, DeleteOptions, ErrorKind, NamespaceConfig, Quota, Scope, Seal, Store,
    StoreOptions, Usage,
};
use support::{bytes, check_space, config, get, put, put_with, tenant};
use tokio::task::JoinSet;

const SIZES: [usize; 5] = [900, 3000, 40_000, 200_000, 1_200_000];

fn try_open(disk: &SimDisk) -> Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), config())
}

async fn filled(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = try_open(disk).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for (at, size) in SIZES.into_iter().enumerate() {
        let key = [at as u8 + 1];
        put(&engine, Address::object("n", &key), &bytes(at as u64, size))
            .await
            .unwrap();
    }
    engine
}

#[tokio::test]
async fn a_failed_sync_stops_changes_but_not_reads() {
    let disk = SimDisk::new(1);
    let engine = filled(&disk).await;
    disk.set_faults(Faults {
        sync_error: 1.0,
        ..Faults::default()
    });
    let key = Address::object("n", b"new");
    let error = put(&engine, key, &[1; 100]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    disk.set_faults(Faults::default());
    let error = put(&engine, key, &[1; 100]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    let error = engine
        .delete(key, DeleteOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert_eq!(
        get(&engine, Address::object("n", &[2])).await.unwrap(),
        bytes(1, 3000)
    );
    assert!(engine.metrics().read_only);
    drop(engine);
    let engine = try_open(&disk).unwrap();
    put(&engine, key, &[1; 100]).await.unwrap();
}

/// What is lost with a failed sync was not there: nobody may have been refused because of it.
#[tokio::test]
async fn a_failed_sync_refuses_nothing_for_the_sake_of_what_is_lost() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let engine = filled(&disk).await;
        disk.set_faults(Faults {
            sync_error: 1.0,
            ..Faults::default()
        });
        let mut puts = JoinSet::new();
        for _ in 0..16 {
            let engine = engine.clone();
            puts.spawn(async move {
                let options = StoreOptions {
                    condition: Condition::IfAbsent,
                    ..StoreOptions::default()
                };
                let key = Address::object("n", b"new");
                put_with(&engine, key, &[1; 100], options, Seal::default()).await
            });
        }
        for outcome in puts.join_all().await {
            let kind = outcome.unwrap_err().kind();
            let expected = [ErrorKind::OutcomeUnknown, ErrorKind::ReadOnly];
            assert!(expected.contains(&kind), "{kind:?} with seed {seed}");
        }
    }
}

#[tokio::test]
async fn a_read_that_fails_is_an_error_and_may_be_repeated() {
    let disk = SimDisk::new(2);
    drop(filled(&disk).await);
    let engine = try_open(&disk).unwrap();
    let key = Address::object("n", &[4]);
    disk.set_faults(Faults {
        read_error: 1.0,
        ..Faults::default()
    });
    assert_eq!(get(&engine, key).await.unwrap_err().kind(), ErrorKind::Io);
    disk.set_faults(Faults::default());
    assert_eq!(get(&engine, key).await.unwrap(), bytes(3, 200_000));
}

#[tokio::test]
async fn a_read_of_the_index_that_fails_once_is_in_nobodys_way() {
    const KEYS: u32 = 500;
    let uncached = Config {
        index_cache_bytes: 0,
        recent_bytes: 0,
        ..config()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let reopened = |disk: &SimDisk| {
        let clock = clock.clone();
        Engine::open(disk.clone(), clock, Pool::new(32 << 20), uncached.clone()).unwrap()
    };
    let disk = SimDisk::new(6);
    let engine = reopened(&disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..KEYS {
        let key = number.to_be_bytes();
        let value = bytes(u64::from(number), 20);
        put(&engine, Address::object("n", &key), &value)
            .await
            .unwrap();
    }
    engine.close();
    drop(engine);
    let engine = reopened(&disk);
    for number in 0..KEYS {
        disk.set_faults(Faults {
            error_at: Some(disk.operations().total()),
            ..Faults::default()
        });
        let key = number.to_be_bytes();
        let value = get(&engine, Address::object("n", &key)).await.unwrap();
        assert!(value == bytes(u64::from(number), 20));
    }
}

#[tokio::test]
async fn a_write_that_fails_leaves_nothing() {
    let disk = SimDisk::new(3);
    let engine = filled(&disk).await;
    let before = engine.usage(Scope::Namespace("n")).unwrap();
    disk.set_faults(Faults {
        write_error: 1.0,
        ..Faults::default()
    });
    let key = Address::object("n", b"new");
    let error = put(&engine, key, &bytes(9, 3_000_000)).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace),
        "{error:?}"
    );
    disk.set_faults(Faults::default());
    assert_eq!(
        get(&engine, key).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), before);
    put(&engine, key, &bytes(9, 3_000_000)).await.unwrap();
    drop(engine);
    let audit = try_open(&disk).unwrap().audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
}

/// Fills and empties a store whose disk has a sector that cannot be written, at `at` behind the journal; tells how many changes were refused.
async fn refused_for_a_sector(at: u64) -> usize {
    let disk = SimDisk::new(at);
    let engine = filled(&disk).await;
    let extents = 2 * PAGE_BYTES as u64 + 2 * config().segment_bytes;
    disk.wear("data", extents + at).unwrap();
    let before = engine.usage(Scope::Namespace("n")).unwrap();
    let mut refused = 0;
    for round in 0..3 {
        let mut there = Vec::new();
        for number in 0..60_u64 {
            let key = format!("new{number}");
            let address = Address::object("n", key.as_bytes());
            let value = bytes(number, [5000, 30_000, 300_000][number as usize % 3]);
            match put(&engine, address, &value).await {
                Ok(_) => there.push((key, value)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{at}, {round}: {error:?}");
                    let missing = get(&engine, address).await.unwrap_err();
                    assert_eq!(missing.kind(), ErrorKind::NotFound);
                    refused += 1;
                }
            }
        }
        for (key, value) in &there {
            let address = Address::object("n", key.as_bytes());
            assert!(
                get(&engine, address).await.unwrap() == *value,
                "{at}: {key}"
            );
            engine
                .delete(address, DeleteOptions::default())
                .await
                .unwrap();
        }
        assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), before);
        assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), before);
        check_space(&engine).await;
    }
    assert!(!engine.metrics().read_only);
    engine.close();
    let engine = try_open(&disk.crash(at)).unwrap();
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), before);
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
    refused
}

#[tokio::test]
async fn a_sector_that_cannot_be_written_is_gone_round() {
    let mut refused = Vec::new();
    for at in (0..8).map(|step| step * 450_000) {
        refused.push(refused_for_a_sector(at).await);
    }
    // Each found it at most once.
    assert!(refused.iter().all(|count| *count <= 1), "{refused:?}");
    assert!(refused.contains(&1), "{refused:?}");
}

/// One write after the other fails, and none is tried again: either the change is refused and nothing of it is there, or it was not told
/// whether it is, and the store takes no more.
#[tokio::test]
async fn a_group_that_cannot_be_written_is_refused_alone() {
    let mut undone = 0;
    for at in 0.. {
        let disk = SimDisk::new(at);
        let engine = filled(&disk).await;
        let before = engine.usage(Scope::Namespace("n")).unwrap();
        disk.set_faults(Faults {
            error_at: Some(disk.operations().total() + at),
            ..Faults::default()
        });
        let operations = disk.operations();
        let address = Address::object("n", b"new");
        let done = put(&engine, address, &bytes(7, 5000)).await;
        let is_over = disk.operations().total() < operations.total() + at;
        disk.set_faults(Faults::default());
        match done {
            Ok(_) if is_over => break,
            // What failed then was done again, or was not needed.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Io => {
                undone += 1;
                let missing = get(&engine, address).await.unwrap_err();
                assert_eq!(missing.kind(), ErrorKind::NotFound, "{at}");
                assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), before);
                let lost = try_open(&disk.crash(at)).unwrap();
                let missing = get(&lost, address).await.unwrap_err();
                assert_eq!(missing.kind(), ErrorKind::NotFound, "{at}");
                put(&engine, address, &bytes(8, 5000)).await.unwrap();
                check_space(&engine).await;
                let there = try_open(&disk.crash(at)).unwrap();
                assert!(get(&there, address).await.unwrap() == bytes(8, 5000));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{at}: {error:?}");
                assert!(engine.metrics().read_only);
            }
        }
    }
    assert!(undone > 0);
}

#[tokio::test]
async fn a_full_disk_refuses_values_and_takes_deletes() {
    let disk = SimDisk::new(4);
    let engine = filled(&disk).await;
    disk.set_capacity(Some(24 << 20));
    let mut stored = Vec::new();
    let error = loop {
        let key = format!("more{:03}", stored.len());
        match put(
            &engine,
            Address::object("n", key.as_bytes()),
            &bytes(5, 1 << 20),
        )
        .await
        {
            Ok(_) => stored.push(key),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let declared = StoreOptions {
        size: Some(1 << 30),
        ..StoreOptions::default()
    };
    let early = engine
        .store(Address::object("n", b"huge"), declared)
        .await
        .err()
        .unwrap();
    assert_eq!(early.kind(), ErrorKind::NoSpace);
    for key in &stored {
        let address = Address::object("n", key.as_bytes());
        assert_eq!(get(&engine, address).await.unwrap(), bytes(5, 1 << 20));
        engine
            .delete(address, DeleteOptions::default())
            .await
            .unwrap();
    }
    // The journal gives freed space out after its next look at who reads.
    engine.checkpoint().await.unwrap();
    for key in &stored {
        put(
            &engine,
            Address::object("n", key.as_bytes()),
            &bytes(6, 1 << 20),
        )
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_quota_is_refused_before_bytes_are_taken() {
    let disk = SimDisk::new(5);
    let engine = try_open(&disk).unwrap();
    let config = NamespaceConfig {
        quota: Quota {
            bytes: Some(1000),
            objects: None,
        },
        ..tenant("t")
    };
    engine.create_namespace("n", config).await.unwrap();
    let declared = StoreOptions {
        size: Some(1001),
        ..StoreOptions::default()
    };
    let error = engine
        .store(Address::object("n", b"k"), declared)
        .await
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), Usage::default());
}
