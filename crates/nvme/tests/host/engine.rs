//! An engine whose data lies on a target: the target goes and comes back, forgets what was not synced, and the engine's process dies.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::SystemClock;
use forebay_io::files::Directory;
use forebay_mem::{Pool, Region};
use forebay_nvme::initiator::{NamespaceDisk, NamespaceUrl, Options, Place, Scheme};
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, NamespaceConfig, Result, Seal, Store, StoreOptions, Upload,
};

use super::support::{BLOCK, Kept, NQN, Running, open, options, pattern, place, simulated};

const BYTES: u64 = 96 << 20;

fn config() -> Config {
    Config {
        segment_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 0,
        index_cache_bytes: 1 << 20,
        ..Config::default()
    }
}

async fn disk(target: &Running, directory: &Path) -> NamespaceDisk {
    disk_with(target, directory, Some(Duration::from_secs(120))).await
}

async fn disk_with(
    target: &Running,
    directory: &Path,
    patience: Option<Duration>,
) -> NamespaceDisk {
    let url = NamespaceUrl {
        scheme: Scheme::Block,
        place: Place::Tcp {
            address: place(target.address),
            subsystem: NQN.to_owned(),
        },
        nsid: BLOCK,
    };
    let options = Options {
        patience,
        ..options()
    };
    let local = Directory::open(directory).unwrap();
    NamespaceDisk::connect(local, &url, options, 2)
        .await
        .unwrap()
}

/// Opens on a thread that may block.
fn engine(disk: NamespaceDisk) -> std::result::Result<Engine<NamespaceDisk>, OpenError> {
    let clock = Arc::new(SystemClock::default());
    tokio::task::block_in_place(|| Engine::open(disk, clock, Pool::new(64 << 20), config()))
}

async fn put(engine: &Engine<NamespaceDisk>, key: &str, value: &[u8]) -> Result<()> {
    let address = Address::object("n", key.as_bytes());
    let mut upload = engine.store(address, StoreOptions::default()).await?;
    let mut rest = value;
    while !rest.is_empty() {
        let mut buf = upload.buffer(rest.len()).await?;
        let len = buf.capacity().min(rest.len());
        buf.set_len(len);
        buf.copy_from_slice(&rest[..len]);
        upload.write(buf.freeze()).await?;
        rest = &rest[len..];
    }
    upload.commit(Seal::default()).await.map(drop)
}

async fn get(engine: &Engine<NamespaceDisk>, key: &str) -> Result<Vec<u8>> {
    let address = Address::object("n", key.as_bytes());
    let mut found = engine.retrieve(address, None, ByteRange::Full).await?;
    let mut value = Vec::new();
    while let Some(buf) = found.body.next().await? {
        value.extend_from_slice(&buf);
    }
    Ok(value)
}

async fn namespace(engine: &Engine<NamespaceDisk>) {
    let config = NamespaceConfig {
        tenant: "t".to_owned(),
        ..NamespaceConfig::default()
    };
    engine.create_namespace("n", config).await.unwrap();
}

/// What a process that is killed leaves in its directory.
fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn value(number: u64) -> Vec<u8> {
    let len = [100, 5000, 40_000, 300_000, 2_500_000][number as usize % 5];
    pattern(len, number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_engine_serves_from_a_target_that_goes_and_comes_back() {
    let kept = std::thread::spawn(|| Kept::new(simulated(BYTES).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    let directory = tempfile::tempdir().unwrap();
    let impatient = Some(Duration::from_millis(500));
    let engine = engine(disk_with(&target, directory.path(), impatient).await).unwrap();
    namespace(&engine).await;
    for number in 0..10 {
        put(&engine, &number.to_string(), &value(number))
            .await
            .unwrap();
    }
    for number in 0..10 {
        assert!(get(&engine, &number.to_string()).await.unwrap() == value(number));
    }
    // Straight into a client's memory.
    let region = Region::anonymous(3 << 20).unwrap();
    let into = region.slice(0..3 << 20).unwrap();
    let landed = engine
        .retrieve_into(
            Address::object("n", b"4"),
            None,
            ByteRange::Full,
            into.clone(),
        )
        .await
        .unwrap();
    let mut seen = vec![0; 2_500_000];
    assert!(into.read(0, &mut seen) && seen == value(4));
    drop(landed);

    let address = target.kill();
    let failed = get(&engine, "3").await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    let storing = {
        let engine = engine.clone();
        tokio::spawn(async move { put(&engine, "late", &value(3)).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!storing.is_finished(), "a change waits for the target");
    let target = Running::start(&kept, Some(address));
    storing.await.unwrap().unwrap();
    for number in 0..10 {
        assert!(get(&engine, &number.to_string()).await.unwrap() == value(number));
    }
    assert!(get(&engine, "late").await.unwrap() == value(3));
    tokio::task::block_in_place(|| engine.close());
    target.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_engine_that_is_killed_loses_nothing_that_it_acknowledged() {
    let kept = std::thread::spawn(|| Kept::new(simulated(BYTES).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    let directory = tempfile::tempdir().unwrap();
    let first = engine(disk(&target, directory.path()).await).unwrap();
    namespace(&first).await;
    for number in 0..12 {
        put(&first, &number.to_string(), &value(number))
            .await
            .unwrap();
    }
    // One is under way.
    let address = Address::object("n", b"unfinished");
    let mut upload = first.store(address, StoreOptions::default()).await.unwrap();
    let mut buf = upload.buffer(1 << 20).await.unwrap();
    buf.set_len(1 << 20);
    upload.write(buf.freeze()).await.unwrap();

    let left = copied(directory.path());
    let second = engine(disk(&target, left.path()).await).unwrap();
    for number in 0..12 {
        assert!(get(&second, &number.to_string()).await.unwrap() == value(number));
    }
    let absent = get(&second, "unfinished").await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    // The data alone is no store.
    let empty = tempfile::tempdir().unwrap();
    let other = disk(&target, empty.path()).await;
    assert!(matches!(engine(other), Err(OpenError::NoIndex)));
    drop(upload);
    tokio::task::block_in_place(|| drop((first, second)));
    target.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_target_that_loses_power_takes_nothing_that_was_acknowledged() {
    for seed in 0..4 {
        let (mut medium, file) = simulated(BYTES);
        let mut kept = std::thread::spawn(|| Kept::new(file)).join().unwrap();
        let mut target = Running::start(&kept, None);
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(disk(&target, directory.path()).await).unwrap();
        namespace(&engine).await;
        let mut acknowledged = Vec::new();
        for round in 0..3 {
            // Some are under way when the power goes.
            let storing: Vec<_> = (0..6)
                .map(|number| {
                    let number = seed * 100 + round * 10 + number;
                    let engine = engine.clone();
                    tokio::spawn(async move {
                        put(&engine, &number.to_string(), &value(number))
                            .await
                            .unwrap();
                        number
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(seed * 7)).await;
            let address = target.kill();
            medium = medium.crash(seed * 10 + round);
            kept.blocks = open(&medium);
            target = Running::start(&kept, Some(address));
            for one in storing {
                acknowledged.push(one.await.unwrap());
            }
            for number in &acknowledged {
                assert!(get(&engine, &number.to_string()).await.unwrap() == value(*number));
            }
        }
        // And once more, now with the engine's process.
        let address = target.kill();
        medium = medium.crash(seed);
        kept.blocks = open(&medium);
        target = Running::start(&kept, Some(address));
        let left = copied(directory.path());
        let second = self::engine(disk(&target, left.path()).await).unwrap();
        for number in &acknowledged {
            assert!(get(&second, &number.to_string()).await.unwrap() == value(*number));
        }
        tokio::task::block_in_place(|| drop((engine, second)));
        target.kill();
    }
}
