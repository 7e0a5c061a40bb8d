//! Rows whose place in the index cannot be read, or is garbage: they wait, and nothing that was acknowledged is lost meanwhile.

mod support;

use std::ops::Range;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::SimDisk;
use forebay_io::{Disk, File, OpenOptions};
use forebay_mem::PAGE_BYTES;
use forebay_store::{Address, DeleteOptions, ErrorKind, Result, Store};
use support::{
    bytes, config, content, get, put, rot_in_index, spoil_in_index, tenant, try_open, uncached,
};

const KEYS: u64 = 300;

fn accepting() -> Config {
    Config {
        accept_damaged_index: true,
        ..uncached()
    }
}

fn open(disk: &SimDisk) -> Engine<SimDisk> {
    try_open(disk, uncached()).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Inline: the index has it.
fn value(number: u64) -> Vec<u8> {
    bytes(number + 1, 50)
}

async fn store(engine: &Engine<SimDisk>, numbers: Range<u64>) {
    for number in numbers {
        let key = key(number);
        put(engine, Address::object("n", &key), &value(number))
            .await
            .unwrap();
    }
}

async fn delete(engine: &Engine<SimDisk>, number: u64) {
    let key = key(number);
    let options = DeleteOptions::default();
    let deleted = engine.delete(Address::object("n", &key), options).await;
    deleted.unwrap();
}

async fn look(engine: &Engine<SimDisk>, number: u64) -> Result<()> {
    let found = get(engine, Address::object("n", &key(number))).await?;
    assert!(found == value(number), "{number}");
    Ok(())
}

async fn kind_of(engine: &Engine<SimDisk>, number: u64) -> Option<ErrorKind> {
    look(engine, number).await.err().map(|error| error.kind())
}

/// All rows are in the index and none is in memory.
async fn filled(disk: &SimDisk) {
    let engine = open(disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    store(&engine, 0..KEYS).await;
    engine.close();
}

/// Where the pages begin that hold these bytes.
fn pages(disk: &SimDisk, needle: &[u8]) -> Vec<usize> {
    let index = content(disk, "index");
    let windows = index.windows(needle.len()).enumerate();
    let places = windows.filter(|(_, window)| *window == needle);
    let pages: Vec<_> = places.map(|(at, _)| at / PAGE_BYTES * PAGE_BYTES).collect();
    assert!(!pages.is_empty());
    pages
}

fn index(disk: &SimDisk) -> impl File {
    let options = OpenOptions {
        create: false,
        read_only: false,
        direct: false,
    };
    disk.open("index", options).unwrap()
}

fn rewrite(disk: &SimDisk, pages: &[usize], content: impl Fn(usize) -> Vec<u8>) {
    let file = index(disk);
    for page in pages {
        file.write_all_at(*page as u64, &content(*page)).unwrap();
    }
    file.sync_data().unwrap();
}

/// What could not be read is zeroes now, or what rotted.
fn erase(disk: &SimDisk, pages: &[usize]) {
    rewrite(disk, pages, |_| vec![0; PAGE_BYTES]);
}

/// A drive gives zeroes for a sector that it replaced.
#[tokio::test]
async fn a_page_that_is_garbage_is_in_the_way_of_its_rows_alone() {
    let lost = 100;
    for was_unread in [true, false] {
        let disk = SimDisk::new(1);
        filled(&disk).await;
        let pages = pages(&disk, &value(lost));
        let engine = open(&disk);
        if was_unread {
            for page in &pages {
                disk.spoil("index", *page as u64).unwrap();
            }
            delete(&engine, lost).await;
            engine.checkpoint().await.unwrap();
            erase(&disk, &pages);
        } else {
            erase(&disk, &pages);
            delete(&engine, lost).await;
        }
        delete(&engine, lost + 1).await;
        engine.checkpoint().await.unwrap();
        assert!(!engine.metrics().read_only);
        let killed = disk.crash(1);
        engine.close();
        drop(engine);
        for (disk, config) in [(&killed, accepting()), (&disk, uncached())] {
            for round in 0..2 {
                let engine = try_open(disk, config.clone()).unwrap();
                for number in 0..KEYS {
                    match kind_of(&engine, number).await {
                        Some(ErrorKind::NotFound) => {
                            assert!((lost..lost + 2).contains(&number), "{number}");
                        }
                        Some(kind) => {
                            assert_eq!(kind, ErrorKind::Corrupt);
                            assert!(number.abs_diff(lost) < 50, "{number}");
                        }
                        None => assert!(!(lost..lost + 2).contains(&number), "{number}"),
                    }
                }
                store(&engine, KEYS + round..KEYS + round + 1).await;
                engine.checkpoint().await.unwrap();
                look(&engine, KEYS + round).await.unwrap();
                engine.close();
            }
        }
    }
}

/// A store in which rows wait, those of these values among them.
async fn waiting(disk: &SimDisk, numbers: Range<u64>) -> Engine<SimDisk> {
    filled(disk).await;
    let engine = open(disk);
    // Where the next rows go.
    spoil_in_index(disk, &value(KEYS - 1));
    store(&engine, numbers).await;
    engine.checkpoint().await.unwrap();
    engine
}

#[tokio::test]
async fn waiting_rows_are_not_lost_with_the_key_of_the_row_that_tells_of_them() {
    let disk = SimDisk::new(2);
    let there = KEYS..KEYS + 10;
    waiting(&disk, there.clone()).await.close();
    // The keys lie one behind the other.
    let keys = b"journalstoreunplaced";
    let at = content(&disk, "index");
    let at = at.windows(keys.len()).enumerate();
    for (at, _) in at.filter(|(_, window)| window == keys) {
        disk.rot("index", (at + keys.len() - 1) as u64, 1).unwrap();
    }
    let refused = try_open(&disk, uncached()).err();
    assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
    let engine = try_open(&disk, accepting()).unwrap();
    let findings = engine.findings();
    assert!(
        findings
            .iter()
            .any(|found| found.what.contains("put right")),
        "{findings:?}"
    );
    engine.close();
    drop(engine);
    let engine = open(&disk);
    assert!(engine.findings().is_empty());
    for number in there {
        look(&engine, number).await.unwrap();
    }
}

#[tokio::test]
async fn waiting_rows_go_on_to_wait_where_their_own_table_cannot_be_read() {
    let disk = SimDisk::new(3);
    let there = KEYS..KEYS + 120;
    let engine = waiting(&disk, there.clone()).await;
    for round in 1..4 {
        spoil_in_index(&disk, &value(KEYS + 30 * round));
        store(&engine, there.end + round..there.end + round + 1).await;
        engine.checkpoint().await.unwrap();
        assert!(!engine.metrics().read_only);
    }
    let killed = disk.crash(1);
    engine.close();
    drop(engine);
    for disk in [killed, disk] {
        let engine = open(&disk);
        for number in there.clone().chain(there.end + 1..there.end + 4) {
            look(&engine, number).await.unwrap();
        }
    }
}

/// They are in one page: that it cannot be read need be found out only once.
#[tokio::test]
async fn a_checkpoint_does_not_read_again_for_each_row_what_it_could_not() {
    let mut reads = Vec::new();
    for count in [2, 20] {
        let disk = SimDisk::new(4);
        filled(&disk).await;
        let cached = Config {
            index_cache_bytes: config().index_cache_bytes,
            ..uncached()
        };
        let engine = try_open(&disk, cached).unwrap();
        spoil_in_index(&disk, &value(KEYS - 1));
        store(&engine, KEYS..KEYS + count).await;
        engine.checkpoint().await.unwrap();
        let before = disk.operations().reads;
        store(&engine, 0..1).await;
        engine.checkpoint().await.unwrap();
        reads.push(disk.operations().reads - before);
    }
    assert!(reads[1] < reads[0] + 10, "{reads:?}");
}

fn large(name: &str, number: u64) -> Vec<u8> {
    bytes(1000 * name.len() as u64 + number, 100_000)
}

async fn put_large(engine: &Engine<SimDisk>, name: &str, numbers: Range<u64>) {
    for number in numbers {
        let key = format!("{name}/{number}");
        let address = Address::object("n", key.as_bytes());
        put(engine, address, &large(name, number)).await.unwrap();
    }
}

async fn large_are_right(engine: &Engine<SimDisk>, name: &str, numbers: Range<u64>) {
    for number in numbers {
        let key = format!("{name}/{number}");
        let found = get(engine, Address::object("n", key.as_bytes())).await;
        assert!(found.unwrap() == large(name, number), "{key}");
    }
}

/// A deletion waits, and is lost; the entry can be read again, or never will be. Others have its space.
#[tokio::test]
async fn a_value_that_is_back_has_nothing_of_what_others_have() {
    const LARGE: u64 = 30;
    for is_back in [true, false] {
        let disk = SimDisk::new(5);
        filled(&disk).await;
        let remembering = Config {
            recent_bytes: config().recent_bytes,
            ..uncached()
        };
        let engine = try_open(&disk, remembering).unwrap();
        // Amid others, so that those that come later are elsewhere.
        let lost = Address::object("n", b"key000100/lost");
        let crc = put(&engine, lost, &large("lost", LARGE)).await.unwrap();
        let crc = crc.meta.crc64nvme.to_le_bytes();
        engine.checkpoint().await.unwrap();
        let before = content(&disk, "index");
        let mut pages = pages(&disk, &crc);
        spoil_in_index(&disk, &crc);
        let options = DeleteOptions::default();
        engine.delete(lost, options).await.unwrap();
        engine.checkpoint().await.unwrap();
        engine.sweep().await.unwrap();
        put_large(&engine, "others", 0..LARGE).await;
        let namespace = engine.namespace("n").unwrap().id.to_be_bytes();
        engine.close();
        drop(engine);
        // The row that waits: its table, and its key there.
        let row = [&[0], &namespace[..], &[0], lost.key].concat();
        rot_in_index(&disk, &row);
        let refused = try_open(&disk, accepting()).err();
        assert!(matches!(refused, Some(OpenError::Store(_))), "{refused:?}");
        // Others may have been written meanwhile.
        let read = |page: &usize| index(&disk).read_exact_at(*page as u64, &mut [0; PAGE_BYTES]);
        pages.retain(|page| read(page).is_err());
        match is_back {
            true => rewrite(&disk, &pages, |page| {
                before[page..page + PAGE_BYTES].to_vec()
            }),
            false => erase(&disk, &pages),
        }
        let engine = try_open(&disk, accepting()).unwrap();
        let findings = engine.findings();
        let is_dropped = findings.iter().any(|found| found.what.contains("dropped"));
        assert_eq!(is_dropped, is_back, "{findings:?}");
        if is_back {
            assert_eq!(engine.audit().unwrap().doubled, 0);
            engine.delete(lost, options).await.unwrap();
            engine.sweep().await.unwrap();
        }
        put_large(&engine, "more", 0..LARGE).await;
        for name in ["others", "more"] {
            large_are_right(&engine, name, 0..LARGE).await;
        }
    }
}
