//! Sectors that cannot be read when a store is opened: they are in the way of what they hold, and of nothing else.

mod support;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::{Faults, SimDisk};
use forebay_mem::PAGE_BYTES;
use forebay_store::{Address, ErrorKind, Result, Store};
use support::{
    bytes, check_space, config, content, get, places_of_map, put, replace, spoil_in_index, tenant,
    try_open,
};

const KEYS: u64 = 300;
const LARGE_BYTES: usize = 600_000;

/// A small index is read as a whole when it is opened, of a large one what is needed.
const CHECKED: [u64; 2] = [u64::MAX, 0];

fn checking(index_check_bytes: u64) -> Config {
    Config {
        index_check_bytes,
        recent_bytes: 0,
        ..config()
    }
}

fn accepting(index_check_bytes: u64) -> Config {
    Config {
        accept_damaged_index: true,
        ..checking(index_check_bytes)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Small values in the index, large ones beside it, and nothing in the journal.
async fn filled(disk: &SimDisk) {
    let engine = try_open(disk, config()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..KEYS {
        let key = key(number);
        let address = Address::object("n", &key);
        put(&engine, address, &bytes(number, 50)).await.unwrap();
    }
    for number in 0..4 {
        let address = [number as u8];
        let value = bytes(number, LARGE_BYTES);
        put(&engine, Address::object("n", &address), &value)
            .await
            .unwrap();
    }
    engine.close();
}

async fn look(engine: &Engine<SimDisk>, number: u64) -> Result<()> {
    let value = get(engine, Address::object("n", &key(number))).await?;
    assert!(value == bytes(number, 50), "{number}");
    Ok(())
}

async fn large_are_right(engine: &Engine<SimDisk>) {
    for number in 0..4 {
        let address = [number as u8];
        let value = get(engine, Address::object("n", &address)).await.unwrap();
        assert!(value == bytes(number, LARGE_BYTES), "{number}");
    }
}

fn is_refused(disk: &SimDisk, config: Config) {
    for _ in 0..2 {
        let refused = try_open(disk, config.clone()).err();
        assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_sector_of_the_index_is_in_the_way_of_its_rows_alone() {
    let disk = SimDisk::new(1);
    filled(&disk).await;
    let lost = 100;
    let index = content(&disk, "index");
    let places = index.windows(9).enumerate();
    for (at, _) in places.filter(|(_, window)| *window == key(lost)) {
        disk.spoil("index", at as u64).unwrap();
    }
    is_refused(&disk, checking(u64::MAX));
    for config in [checking(0), accepting(0), accepting(u64::MAX)] {
        let checked = config.index_check_bytes > 0;
        let engine = try_open(&disk, config).unwrap();
        assert_eq!(engine.findings().len(), usize::from(checked));
        let mut refused = 0;
        for number in 0..KEYS {
            if let Err(error) = look(&engine, number).await {
                assert_eq!(error.kind(), ErrorKind::Io, "{number}: {error:?}");
                assert!(number.abs_diff(lost) < 50, "{number}");
                refused += 1;
            }
        }
        assert!((1..50).contains(&refused), "{refused}");
        large_are_right(&engine).await;
        let address = Address::object("n", b"new");
        put(&engine, address, b"value").await.unwrap();
        engine.checkpoint().await.unwrap();
        engine.close();
    }
}

/// It looks for nobody's bytes in vain without a word.
#[tokio::test]
async fn a_scrub_names_the_values_of_which_the_index_does_not_give_the_bytes() {
    let disk = SimDisk::new(7);
    filled(&disk).await;
    let lost = 100;
    spoil_in_index(&disk, &bytes(lost, 50));
    let engine = try_open(&disk, checking(0)).unwrap();
    for _ in 0..2 {
        let scrubbed = engine.scrub(|_| ()).await.unwrap();
        let findings = engine.findings();
        assert_eq!(scrubbed.damaged, findings.len() as u64, "{findings:?}");
        let mut named = findings.iter().filter(|found| found.key == key(lost));
        let found = named.next().unwrap();
        assert!(found.what.contains("cannot be read"), "{found:?}");
    }
}

#[tokio::test]
async fn a_sector_of_the_map_of_space_is_made_anew() {
    for index_check_bytes in CHECKED {
        let disk = SimDisk::new(2);
        filled(&disk).await;
        for at in places_of_map(&disk) {
            disk.spoil("index", at).unwrap();
        }
        is_refused(&disk, checking(index_check_bytes));
        let engine = try_open(&disk, accepting(index_check_bytes)).unwrap();
        let findings = engine.findings();
        let finding = findings.last().unwrap();
        assert!(finding.what.contains("made anew"), "{findings:?}");
        check_space(&engine).await;
        large_are_right(&engine).await;
        put(&engine, Address::object("n", b"new"), &bytes(9, 100_000))
            .await
            .unwrap();
        engine.close();
        drop(engine);
        // The sector is as it was, but nothing needs it any more.
        let engine = try_open(&disk, checking(0)).unwrap();
        assert!(engine.findings().is_empty());
        large_are_right(&engine).await;
        check_space(&engine).await;
    }
}

/// It may well pass: what one read did not give is looked for again, or the store does not open.
#[tokio::test]
async fn one_read_that_fails_when_a_store_is_opened_loses_nothing() {
    let disk = SimDisk::new(3);
    filled(&disk).await;
    let engine = try_open(&disk, config()).unwrap();
    let last = bytes(9, LARGE_BYTES);
    for key in [b"first", b"later"] {
        put(&engine, Address::object("n", key), &last)
            .await
            .unwrap();
    }
    let (mut opened, mut at) = (0, 0);
    loop {
        let disk = disk.crash(1);
        disk.set_faults(Faults {
            error_at: Some(at),
            ..Faults::default()
        });
        let engine = try_open(&disk, checking(0));
        if disk.operations().total() <= at {
            break;
        }
        if let Ok(engine) = engine {
            let value = get(&engine, Address::object("n", b"later")).await;
            assert!(value.unwrap() == last, "{at}");
            opened += 1;
        }
        at += 1;
    }
    assert!(opened > 10, "{opened} of {at}");
    drop(engine);
}

/// Either copy of the superblock is enough; the other is written again.
#[tokio::test]
async fn a_copy_of_the_superblock_is_enough() {
    let rot: fn(&SimDisk, u64) = |disk, at| disk.rot("data", at + 20, 3).unwrap();
    let spoil: fn(&SimDisk, u64) = |disk, at| disk.spoil("data", at).unwrap();
    let disk = SimDisk::new(4);
    filled(&disk).await;
    for damage in [rot, spoil] {
        for copy in [0, 4096] {
            let damaged = disk.crash(1);
            damage(&damaged, copy);
            let engine = try_open(&damaged, config()).unwrap();
            let findings = engine.findings();
            assert!(
                findings.len() == 1 && findings[0].what.contains("superblock"),
                "{findings:?}"
            );
            large_are_right(&engine).await;
            engine.close();
            drop(engine);
            // Of power loss too.
            let damaged = damaged.crash(2);
            damage(&damaged, 4096 - copy);
            let engine = try_open(&damaged, config()).unwrap();
            large_are_right(&engine).await;
            engine.close();
            drop(engine);
            let engine = try_open(&damaged, config()).unwrap();
            assert!(engine.findings().is_empty());
        }
    }
}

#[tokio::test]
async fn without_a_copy_of_the_superblock_that_can_be_read_nothing_is_made() {
    let disk = SimDisk::new(5);
    filled(&disk).await;
    // Neither copy; one, where the other is zeroes.
    for zeroed in [None, Some(0), Some(PAGE_BYTES)] {
        let damaged = disk.crash(1);
        if let Some(copy) = zeroed {
            let mut data = content(&damaged, "data");
            data[copy..copy + PAGE_BYTES].fill(0);
            replace(&damaged, "data", &data);
        }
        for copy in [0, PAGE_BYTES] {
            if zeroed != Some(copy) {
                damaged.spoil("data", copy as u64).unwrap();
            }
        }
        for _ in 0..2 {
            let refused = try_open(&damaged, config()).err();
            assert!(matches!(refused, Some(OpenError::Io { .. })), "{refused:?}");
        }
    }
    // Nor over what was never a store.
    let blank = SimDisk::new(6);
    replace(&blank, "data", &vec![0; 64 << 10]);
    blank.spoil("data", 4096).unwrap();
    let refused = try_open(&blank, config()).err();
    assert!(matches!(refused, Some(OpenError::Io { .. })), "{refused:?}");
}
