//! Values whose rows rotted can be deleted and replaced, alone; what they took is not given out again.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{
    Address, Attributes, Condition, DeleteOptions, Deleted, ErrorKind, ListOptions,
    NamespaceConfig, Scope, Seal, Source, Space, Store, StoreOptions, Usage, VersionId, Versioning,
};
use support::{bytes, config, get, open, put, put_with, rot_in_index, tenant};

fn opened(disk: &SimDisk) -> Engine<SimDisk> {
    let unchecked = Config {
        index_check_bytes: 0,
        ..config()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    open(disk, clock, unchecked)
}

async fn made(disk: &SimDisk, versioning: Versioning) -> Engine<SimDisk> {
    let engine = opened(disk);
    let config = NamespaceConfig {
        versioning,
        ..tenant("t")
    };
    engine.create_namespace("n", config).await.unwrap();
    engine
}

/// Bytes of the entry of the value `seed`, which is found by them in the index.
fn mark(seed: u64) -> Vec<u8> {
    bytes(1000 + seed, 200)
}

/// A value of several blocks, whose entry has a mark.
async fn put_marked(engine: &Engine<SimDisk>, key: &[u8], seed: u64) -> VersionId {
    let attributes = Attributes::builder().set("mark", mark(seed));
    let seal = Seal {
        attributes: attributes.build().unwrap(),
        ..Seal::default()
    };
    let (address, options) = (Address::object("n", key), StoreOptions::default());
    let stored = put_with(engine, address, &bytes(seed, 100_000), options, seal).await;
    stored.unwrap().meta.version
}

async fn delete(
    engine: &Engine<SimDisk>,
    key: &[u8],
    version: Option<VersionId>,
) -> forebay_store::Result<Deleted> {
    let options = DeleteOptions {
        version,
        ..DeleteOptions::default()
    };
    engine.delete(Address::object("n", key), options).await
}

async fn kind_of(engine: &Engine<SimDisk>, key: &[u8]) -> ErrorKind {
    let found = get(engine, Address::object("n", key)).await;
    found.unwrap_err().kind()
}

async fn listed(engine: &Engine<SimDisk>) -> usize {
    let everything = ListOptions::of("n", Space::Objects);
    engine.list(everything).await.unwrap().items.len()
}

/// The keys of what was found damaged.
fn found(engine: &Engine<SimDisk>) -> Vec<Vec<u8>> {
    let findings = engine.findings().into_iter();
    findings
        .filter(|finding| finding.namespace == "n" && finding.what.contains("stays taken"))
        .map(|finding| finding.key.to_vec())
        .collect()
}

#[tokio::test]
async fn a_damaged_entry_is_deleted_and_replaced() {
    let disk = SimDisk::new(1);
    let engine = made(&disk, Versioning::Off).await;
    for seed in 0..4 {
        put_marked(&engine, &[b'k', seed as u8], seed).await;
    }
    drop(engine);
    rot_in_index(&disk, &mark(1)[50..150]);
    rot_in_index(&disk, &mark(2)[50..150]);
    let engine = opened(&disk);
    for key in [b"k\x01", b"k\x02"] {
        assert_eq!(kind_of(&engine, key).await, ErrorKind::Corrupt);
        let address = Address::object("n", key);
        // Whether a condition holds of it nobody can tell.
        let options = StoreOptions {
            condition: Condition::IfAbsent,
            ..StoreOptions::default()
        };
        let refused = put_with(&engine, address, b"new", options, Seal::default()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let deleted = delete(&engine, b"k\x01", None).await.unwrap();
    assert!(deleted.existed);
    put(&engine, Address::object("n", b"k\x02"), b"new")
        .await
        .unwrap();
    assert_eq!(found(&engine), [b"k\x01", b"k\x02"]);
    for turn in 0..3 {
        let engine = match turn {
            0 => engine.clone(),
            1 => {
                engine.checkpoint().await.unwrap();
                engine.clone()
            }
            _ => opened(&disk.crash(3)),
        };
        assert_eq!(kind_of(&engine, b"k\x01").await, ErrorKind::NotFound);
        let value = get(&engine, Address::object("n", b"k\x02")).await.unwrap();
        assert_eq!(value, b"new");
        for seed in [0, 3] {
            let key = [b'k', seed as u8];
            let value = get(&engine, Address::object("n", &key)).await.unwrap();
            assert!(value == bytes(seed, 100_000));
        }
        assert_eq!(listed(&engine).await, 3);
        // The bytes of what rotted are counted for ever: nothing tells how many they were.
        let usage = engine.usage(Scope::Namespace("n")).unwrap();
        assert_eq!((usage.objects, usage.bytes), (3, 4 * 100_000 + 3));
        let audit = engine.audit().unwrap();
        assert_eq!((audit.leaked, audit.doubled), (2 * 25, 0), "{audit:?}");
    }
    for key in [b"k\x00", b"k\x02", b"k\x03"] {
        delete(&engine, key, None).await.unwrap();
    }
    engine.delete_namespace("n").await.unwrap();
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), Usage::default());
}

#[tokio::test]
async fn a_value_whose_layout_is_damaged_is_deleted_and_replaced() {
    let disk = SimDisk::new(2);
    let engine = made(&disk, Versioning::Off).await;
    for (key, size) in [(b"joined/1", 5001), (b"joined/2", 5003)] {
        for part in [b"part/1", b"part/2"] {
            let address = Address {
                space: Space::Staging,
                ..Address::object("n", part)
            };
            put(&engine, address, &bytes(size, size as usize))
                .await
                .unwrap();
        }
        let sources = [Source::any(b"part/1"), Source::any(b"part/2")];
        let (address, options) = (Address::object("n", key), StoreOptions::default());
        engine
            .compose(address, &sources, &[], options, Seal::default())
            .await
            .unwrap();
    }
    put_marked(&engine, b"whole", 1).await;
    drop(engine);
    for size in [5001_u64, 5003] {
        rot_in_index(
            &disk,
            &[&2_u32.to_le_bytes()[..], &size.to_le_bytes()].concat(),
        );
    }
    let engine = opened(&disk);
    assert_eq!(kind_of(&engine, b"joined/1").await, ErrorKind::Corrupt);
    delete(&engine, b"joined/1", None).await.unwrap();
    put(&engine, Address::object("n", b"joined/2"), b"new")
        .await
        .unwrap();
    assert_eq!(found(&engine), [b"joined/1", b"joined/2"]);
    engine.checkpoint().await.unwrap();
    for engine in [engine.clone(), opened(&disk.crash(3))] {
        assert_eq!(kind_of(&engine, b"joined/1").await, ErrorKind::NotFound);
        let value = get(&engine, Address::object("n", b"joined/2")).await;
        assert_eq!(value.unwrap(), b"new");
        let value = get(&engine, Address::object("n", b"whole")).await.unwrap();
        assert!(value == bytes(1, 100_000));
        let usage = engine.usage(Scope::Namespace("n")).unwrap();
        assert_eq!((usage.objects, usage.bytes), (2, 100_000 + 3));
        let audit = engine.audit().unwrap();
        assert_eq!((audit.leaked, audit.doubled), (4 * 2, 0), "{audit:?}");
    }
}

#[tokio::test]
async fn what_replaces_a_damaged_version_leaves_the_others() {
    let disk = SimDisk::new(3);
    let engine = made(&disk, Versioning::Enabled).await;
    let mut versions = Vec::new();
    for seed in 0..3 {
        versions.push(put_marked(&engine, b"k", seed).await);
    }
    let marker = delete(&engine, b"m", None).await.unwrap().version;
    put_marked(&engine, b"m", 3).await;
    drop(engine);
    // Of one key the second of three versions, of the other the current one, which is after a marker.
    rot_in_index(&disk, &mark(1)[50..150]);
    rot_in_index(&disk, &mark(3)[50..150]);
    let engine = opened(&disk);
    // Without the newest the damaged one would be current.
    let refused = delete(&engine, b"k", Some(versions[2])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let deleted = delete(&engine, b"k", Some(versions[1])).await.unwrap();
    assert!(deleted.existed && !deleted.marker);
    delete(&engine, b"k", Some(versions[2])).await.unwrap();
    let value = get(&engine, Address::object("n", b"k")).await.unwrap();
    assert!(value == bytes(0, 100_000));
    // Which version the damaged one is nobody can tell, but it is not the marker.
    let refused = delete(&engine, b"m", Some(VersionId(1 << 40))).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
    delete(&engine, b"m", marker).await.unwrap();
    assert_eq!(kind_of(&engine, b"m").await, ErrorKind::Corrupt);
    put(&engine, Address::object("n", b"m"), b"new")
        .await
        .unwrap();
    assert_eq!(found(&engine), [b"k", b"m"]);
    engine.checkpoint().await.unwrap();
    for engine in [engine.clone(), opened(&disk.crash(3))] {
        let value = get(&engine, Address::object("n", b"k")).await.unwrap();
        assert!(value == bytes(0, 100_000));
        let value = get(&engine, Address::object("n", b"m")).await.unwrap();
        assert_eq!(value, b"new");
        let usage = engine.usage(Scope::Namespace("n")).unwrap();
        assert_eq!(usage.objects, 2);
        assert_eq!(listed(&engine).await, 2);
    }
}
