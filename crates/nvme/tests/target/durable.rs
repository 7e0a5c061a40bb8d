//! What a host is promised of values when power fails.

use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::sim::{SimClock, SimDisk, SimFile};
use forebay_mem::Pool;
use forebay_nvme::target::{Target, TargetConfig, Viewer};
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::{Fuse, IoCommand, IoVerb};
use forebay_store::{Address, ByteRange, Durability, ErrorKind, NamespaceConfig, Result, Store};

use crate::support::{Data, KV, SUBSYSTEM, Way, key_value};

fn open(disk: &SimDisk, pool: &Pool) -> Engine<SimDisk> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let config = Config {
        segment_bytes: 1 << 20,
        growth_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 0,
        index_cache_bytes: 1 << 20,
        ..Config::default()
    };
    Engine::open(disk.clone(), clock, pool.clone(), config).unwrap()
}

fn io(command: KvCommand, bytes: u64) -> IoCommand {
    IoCommand {
        nsid: KV,
        fuse: Fuse::None,
        verb: IoVerb::Kv(command),
        bytes_to_controller: bytes,
        bytes_to_host: 0,
    }
}

/// The value after power failed, one way of several.
async fn after_a_crash(disk: &SimDisk, seed: u64) -> Result<Vec<u8>> {
    let engine = open(&disk.crash(seed), &Pool::new(64 << 20));
    let address = Address::object("values", b"key");
    let found = engine.retrieve(address, None, ByteRange::Full).await?;
    found.bytes().await
}

#[tokio::test]
async fn what_was_flushed_survives_in_a_namespace_of_relaxed_durability() {
    let (disk, pool) = (SimDisk::new(1), Pool::new(64 << 20));
    let engine = open(&disk, &pool);
    let config = NamespaceConfig {
        tenant: "ours".to_owned(),
        durability: Durability::Relaxed { within_ms: 1000 },
        ..NamespaceConfig::default()
    };
    engine.create_namespace("values", config).await.unwrap();
    engine.settle().await.unwrap();
    let config = TargetConfig {
        nqn: SUBSYSTEM.to_owned(),
        ..TargetConfig::default()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let target = Target::<_, SimFile>::new(Arc::new(engine), pool, clock, config);
    target.publish(vec![key_value(KV, "values")]);
    let session = target.attach(Viewer::Everything).unwrap();
    let store = KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes: 5,
        options: StoreOptions::default(),
    };
    let mut data = Data::of(Way::Stream, b"value");
    let (status, _) = target.execute(&session, &io(store, 5), &mut data).await;
    assert!(status.is_success());
    let mut lost = 0;
    for seed in 0..32 {
        lost += match after_a_crash(&disk, seed).await {
            Ok(value) => i32::from(value != b"value"),
            Err(error) => i32::from(error.kind() == ErrorKind::NotFound),
        };
    }
    assert!(lost > 0, "it is answered early");
    let mut nothing = Data::none();
    let flush = io(KvCommand::Flush, 0);
    let (status, _) = target.execute(&session, &flush, &mut nothing).await;
    assert!(status.is_success());
    for seed in 0..32 {
        assert_eq!(
            after_a_crash(&disk, seed).await.unwrap(),
            b"value",
            "{seed}"
        );
    }
}
