//! Versions that move between the current place and the kept ones while they are read, and lists of them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_engine::{Config, Engine};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::listing::versions_before;
use forebay_store::{
    Address, After, DeleteOptions, Durability, ListOptions, NamespaceConfig, Space, Store,
    VersionId, VersionItem, VersionPage, Versioning,
};
use support::{Random, config, for_each_seed, open, put, tenant};

const KEY: &[u8] = b"k";

fn clock() -> Arc<SimClock> {
    Arc::new(SimClock::new(1_700_000_000_000))
}

fn versioned(versioning: Versioning) -> NamespaceConfig {
    NamespaceConfig {
        versioning,
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    }
}

async fn page(engine: &Engine<SimDisk>, after: After<'_>, limit: usize) -> VersionPage {
    let options = ListOptions {
        namespace: "n",
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after,
        limit,
    };
    engine.list_versions(options).await.unwrap()
}

fn id(item: &VersionItem) -> VersionId {
    match item {
        VersionItem::Value { meta, .. } => meta.version,
        VersionItem::Marker { version, .. } => *version,
        VersionItem::Prefix(_) => panic!("no delimiter was given"),
    }
}

/// Every page begins where [`versions_before`] says, whether its version is there, is gone, or never was.
async fn pages_of_one_seed(seed: u64) {
    let engine = open(&SimDisk::new(seed), clock(), config());
    let off = NamespaceConfig::default().versioning;
    engine.create_namespace("n", versioned(off)).await.unwrap();
    let address = Address::object("n", KEY);
    let neighbour = Address::object("n", b"k\0");
    let mut random = Random::new(seed);
    let mut greatest = 0;
    for step in 0..60 {
        if step > 2 && random.below(3) == 0 {
            let next = [Versioning::Enabled, Versioning::Suspended][random.below(2) as usize];
            engine
                .update_namespace("n", None, versioned(next))
                .await
                .unwrap();
        }
        let version = match random.below(3) {
            0 => None,
            _ => Some(VersionId(random.below(greatest + 1))),
        };
        let options = DeleteOptions {
            version,
            ..DeleteOptions::default()
        };
        match random.below(5) {
            0 => drop(put(&engine, neighbour, b"another").await.unwrap()),
            1 => drop(engine.delete(address, options).await.unwrap()),
            _ => {
                let stored = put(&engine, address, b"value").await.unwrap();
                greatest = greatest.max(stored.meta.version.0);
            }
        }
        let all = page(&engine, After::Start, 1000).await.items;
        let ids: Vec<_> = all
            .iter()
            .filter(|item| match item {
                VersionItem::Value { key, .. } | VersionItem::Marker { key, .. } => key == KEY,
                VersionItem::Prefix(_) => false,
            })
            .map(id)
            .collect();
        for version in (0..greatest + 2).map(VersionId) {
            let passed = versions_before(ids.iter().copied(), version);
            let rest = page(&engine, After::Version(KEY, version), 1000)
                .await
                .items;
            assert_eq!(rest, all[passed..], "{version:?} of {ids:?}");
        }
    }
}

#[test]
fn a_page_goes_on_behind_any_version() {
    for_each_seed(pages_of_one_seed);
}

/// How often the disk is read for a page near the end of so many versions.
async fn reads_for_a_page(versions: u64) -> u64 {
    let disk = SimDisk::new(1);
    let uncached = Config {
        index_cache_bytes: 0,
        ..config()
    };
    let engine = open(&disk, clock(), uncached);
    engine
        .create_namespace("n", versioned(Versioning::Enabled))
        .await
        .unwrap();
    let address = Address::object("n", KEY);
    let mut oldest = Vec::new();
    for _ in 0..versions {
        oldest.push(put(&engine, address, b"value").await.unwrap().meta.version);
    }
    engine.checkpoint().await.unwrap();
    let before = disk.operations().reads;
    let rest = page(&engine, After::Version(KEY, oldest[20]), 10).await;
    let found: Vec<_> = rest.items.iter().map(id).collect();
    let wanted: Vec<_> = oldest[10..20].iter().rev().copied().collect();
    assert_eq!(found, wanted);
    assert!(rest.more);
    disk.operations().reads - before
}

#[tokio::test]
async fn a_page_costs_what_it_shows() {
    let (few, many) = (reads_for_a_page(100).await, reads_for_a_page(5000).await);
    assert!(many < few + 40, "{few} reads of 100, {many} of 5000");
}

#[tokio::test]
async fn a_version_that_always_was_there_is_always_found() {
    let engine = open(&SimDisk::new(1), clock(), config());
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
