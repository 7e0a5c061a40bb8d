//! Pages of the index that are garbage, or cannot be read: all that lies between them is looked at, and what cannot be is said.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_engine::{Config, Engine};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_mem::PAGE_BYTES;
use forebay_store::{Address, DeleteOptions, ErrorKind, Store};
use support::watched::{Touch, Watched};
use support::{
    bytes, config, content, get, put, replace, rot_in_index, tenant, try_open, uncached,
};

/// Of two namespaces.
const KEYS: [(&str, u64); 2] = [("first", 600), ("last", 150)];
/// What a page of rows begins with.
const LEAF: u8 = 1;

/// Nothing is written to the index before the store closes: no page of it is one that was let go.
fn settling_late() -> Config {
    Config {
        segment_bytes: Config::default().segment_bytes,
        ..uncached()
    }
}

fn open(disk: &SimDisk) -> Engine<SimDisk> {
    try_open(disk, settling_late()).unwrap()
}

fn key(namespace: &str, number: u64) -> Vec<u8> {
    format!("{namespace}/{number:06}").into_bytes()
}

async fn store(engine: &Engine<SimDisk>, namespace: &str, number: u64) {
    let key = key(namespace, number);
    let address = Address::object(namespace, &key);
    put(engine, address, &bytes(number, 50)).await.unwrap();
}

async fn delete(engine: &Engine<SimDisk>, namespace: &str, number: u64) {
    let key = key(namespace, number);
    let address = Address::object(namespace, &key);
    let deleted = engine.delete(address, DeleteOptions::default()).await;
    deleted.unwrap();
}

async fn filled() -> SimDisk {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    for (namespace, count) in KEYS {
        engine
            .create_namespace(namespace, tenant("t"))
            .await
            .unwrap();
        for number in 0..count {
            store(&engine, namespace, number).await;
        }
    }
    engine.close();
    disk
}

/// Where the pages of rows begin that hold one of these.
fn pages(disk: &SimDisk, keys: &[(&str, u64)]) -> BTreeSet<usize> {
    let index = content(disk, "index");
    let mut pages = BTreeSet::new();
    for (namespace, number) in keys {
        let key = key(namespace, *number);
        let places = index.windows(key.len()).enumerate();
        let places = places.filter(|(_, window)| *window == key);
        let found = places.map(|(at, _)| at / PAGE_BYTES * PAGE_BYTES);
        pages.extend(found.filter(|page| index[*page] == LEAF));
    }
    assert_eq!(pages.len(), keys.len());
    pages
}

/// As where a drive replaced sectors that it could not read.
fn erase(disk: &SimDisk, pages: &BTreeSet<usize>) {
    let mut index = content(disk, "index");
    for page in pages {
        index[*page..][..PAGE_BYTES].fill(0);
    }
    replace(disk, "index", &index);
}

fn spoil(disk: &SimDisk, pages: &BTreeSet<usize>) {
    for page in pages {
        disk.spoil("index", *page as u64).unwrap();
    }
}

/// The values that are found.
async fn found(engine: &Engine<SimDisk>, namespace: &str, count: u64) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for number in 0..count {
        let key = key(namespace, number);
        match get(engine, Address::object(namespace, &key)).await {
            Ok(value) => {
                assert!(value == bytes(number, 50), "{number}");
                found.insert(number);
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::NotFound
                ),
                "{number}: {error:?}"
            ),
        }
    }
    found
}

/// A scrub looks at all values that are found; in how many places it found none.
async fn scrub(engine: &Engine<SimDisk>) -> usize {
    let mut there = 0;
    for (namespace, count) in KEYS {
        there += found(engine, namespace, count).await.len() as u64;
    }
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!(scrubbed.values, there, "{:?}", engine.findings());
    scrubbed.damaged as usize
}

/// What is said of places where nothing can be read.
fn said(engine: &Engine<SimDisk>) -> Vec<String> {
    let findings = engine.findings().into_iter();
    let said = findings.map(|found| found.what);
    said.filter(|what| what.contains("no row of table"))
        .collect()
}

#[tokio::test]
async fn a_scrub_looks_at_all_rows_between_pages_that_cannot_be_read() {
    let disk = filled().await;
    let [(first, _), (last, count)] = KEYS;
    let end = (last, count - 1);
    let everywhere = [
        vec![(first, 100), (first, 300)],
        // No row before them can be read; or none behind; or neither.
        vec![(first, 0), (first, 200), (first, 400)],
        vec![(first, 200), (last, 50), end],
        vec![(first, 0), (first, 300), end],
    ];
    for keys in everywhere {
        let pages = pages(&disk, &keys);
        for damage in [erase, spoil] {
            let disk = disk.crash(1);
            damage(&disk, &pages);
            let engine = open(&disk);
            assert_eq!(scrub(&engine).await, keys.len(), "{:?}", engine.findings());
            assert_eq!(said(&engine).len(), keys.len(), "{:?}", engine.findings());
            engine.close();
        }
    }
}

/// What lies behind it is removed in memory, and then comes a page that cannot be read.
#[tokio::test]
async fn a_damaged_row_beside_what_cannot_be_read_is_named() {
    let disk = filled().await;
    let (name, count) = KEYS[0];
    let page = pages(&disk, &[(name, 100)]);
    let spoilt = disk.crash(1);
    spoil(&spoilt, &page);
    let there = found(&open(&spoilt), name, count).await;
    let before: Vec<u64> = there.range(..100).rev().take(3).copied().collect();
    // Some are removed in memory, and one of them is damaged too.
    for (damaged, removed) in [(1, vec![0]), (2, vec![0, 1]), (0, vec![0, 1])] {
        let disk = disk.crash(1);
        let engine = open(&disk);
        let key = key(name, before[damaged]);
        let stat = engine.stat(Address::object(name, &key), None).await;
        let crc = stat.unwrap().crc64nvme;
        for removed in &removed {
            delete(&engine, name, before[*removed]).await;
        }
        rot_in_index(&disk, &crc.to_le_bytes());
        spoil(&disk, &page);
        engine.scrub(|_| ()).await.unwrap();
        let findings = engine.findings();
        let is_named = findings.iter().any(|found| found.key == key);
        assert_eq!(is_named, !removed.contains(&damaged), "{findings:?}");
        engine.close();
    }
}

/// Each read that fails may take a device seconds: a way past hundreds of them is not gone step by step.
#[tokio::test]
async fn few_of_many_pages_that_cannot_be_read_are_tried() {
    const ROWS: u64 = 1500;
    const WHOLE: u64 = 20;
    let key = |number: u64| format!("{number:06}{}", "-".repeat(900)).into_bytes();
    let disk = SimDisk::new(2);
    let engine = open(&disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..ROWS {
        let key = key(number);
        put(&engine, Address::object("n", &key), b"").await.unwrap();
    }
    engine.close();
    let index = content(&disk, "index");
    let middle = WHOLE..ROWS - WHOLE;
    let is_of_middle = |page: &[u8]| {
        let rows = page.windows(8).filter(|window| window.ends_with(b"--"));
        let numbers = rows.filter_map(|row| std::str::from_utf8(&row[..6]).ok()?.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        let is_row = page[0] == LEAF && !numbers.is_empty();
        is_row && numbers.iter().all(|number| middle.contains(number))
    };
    let pages = index.chunks(PAGE_BYTES).enumerate();
    let pages = pages.filter(|(_, page)| is_of_middle(page));
    let pages: BTreeSet<usize> = pages.map(|(number, _)| number * PAGE_BYTES).collect();
    assert!(pages.len() > 300, "{}", pages.len());
    spoil(&disk, &pages);
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let watched = Watched::new(disk, move |touch| {
        counted.fetch_add(usize::from(touch == Touch::ReadIndex), Relaxed);
    });
    let cached = Config {
        index_cache_bytes: config().index_cache_bytes,
        ..settling_late()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = support::open(&watched, clock, cached);
    let before = reads.load(Relaxed);
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    let reads = reads.load(Relaxed) - before;
    assert_eq!(scrubbed.damaged, 1, "{:?}", engine.findings());
    assert!(scrubbed.values >= 2 * WHOLE, "{scrubbed:?}");
    assert!(reads < pages.len(), "{reads} for {}", pages.len());
    engine.close();
}

/// Rows are there, or removed, in memory, and later in the index as far as they have a place there.
#[tokio::test]
async fn rows_in_memory_are_looked_at_where_the_index_cannot_be_read() {
    let disk = filled().await;
    let (name, count) = KEYS[0];
    let pages = pages(&disk, &[(name, 100), (name, 300)]);
    for damage in [erase, spoil] {
        let disk = disk.crash(1);
        let engine = open(&disk);
        for number in [100, 101] {
            store(&engine, name, number).await;
        }
        damage(&disk, &pages);
        let there = found(&engine, name, count).await;
        let before: Vec<u64> = there.range(..100).rev().take(2).copied().collect();
        let behind: Vec<u64> = there.range(102..).take(2).copied().collect();
        assert_eq!(scrub(&engine).await, 2);
        let said_first = said(&engine);
        for number in [before[0], behind[0]] {
            let key = String::from_utf8(key(name, number)).unwrap();
            assert!(said_first[0].contains(&key), "{key}: {said_first:?}");
        }
        for number in before.into_iter().chain(behind) {
            delete(&engine, name, number).await;
        }
        assert_eq!(scrub(&engine).await, 2);
        assert_eq!(said(&engine), said_first);
        engine.checkpoint().await.unwrap();
        assert_eq!(scrub(&engine).await, 2);
        let there = found(&engine, name, count).await;
        assert!(there.contains(&100) && there.contains(&101));
        engine.close();
    }
}
