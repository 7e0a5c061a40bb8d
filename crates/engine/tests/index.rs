//! The index's file fails, and holds more than memory does: what is not in the damaged part is read on, and nothing that was acknowledged
//! is lost.

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::{Config, Engine};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_io::{Disk, File, OpenOptions};
use forebay_mem::Pool;
use forebay_store::{
    Address, DeleteOptions, ErrorKind, ListOptions, NamespaceConfig, Result, Space, Store,
    Versioning,
};
use support::{bytes, config, content, get, put, spoil_in_index, tenant, try_open, uncached};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

const KEYS: u64 = 300;
/// Values that are kept when others take their place, in a namespace of their own.
const KEPT: u64 = 5;

const SECTOR: usize = 512;

fn open_with(disk: &SimDisk, config: Config) -> Engine<SimDisk> {
    try_open(disk, config).unwrap()
}

fn open(disk: &SimDisk) -> Engine<SimDisk> {
    open_with(disk, uncached())
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Inline: the index has it.
fn value(number: u64) -> Vec<u8> {
    bytes(number + 1, 50)
}

async fn store_one(engine: &Engine<SimDisk>, number: u64) -> Result<()> {
    let key = key(number);
    let stored = put(engine, Address::object("n", &key), &value(number)).await;
    stored.map(drop)
}

async fn store(engine: &Engine<SimDisk>, numbers: Range<u64>) {
    for number in numbers {
        store_one(engine, number).await.unwrap();
    }
}

/// All rows are in the index and none is in memory.
async fn filled(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = open(disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    store(&engine, 0..KEYS).await;
    engine.close();
    drop(engine);
    open(disk)
}

/// The same, and values that others took the place of.
async fn filled_with_kept(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = filled(disk).await;
    let kept = NamespaceConfig {
        versioning: Versioning::Enabled,
        ..tenant("t")
    };
    engine.create_namespace("kept", kept).await.unwrap();
    for number in 0..=KEPT {
        let address = Address::object("kept", b"key");
        put(&engine, address, &value(number)).await.unwrap();
    }
    engine.close();
    drop(engine);
    open(disk)
}

async fn look(engine: &Engine<SimDisk>, number: u64) -> Result<()> {
    let found = get(engine, Address::object("n", &key(number))).await?;
    assert!(found == value(number), "{number}");
    Ok(())
}

async fn list(engine: &Engine<SimDisk>) -> Result<usize> {
    let page = engine.list(ListOptions::of("n", Space::Objects)).await?;
    Ok(page.items.len())
}

#[tokio::test]
async fn a_sector_that_cannot_be_read_is_in_the_way_of_its_rows_alone() {
    let disk = SimDisk::new(1);
    let engine = filled_with_kept(&disk).await;
    let lost = 100;
    spoil_in_index(&disk, &key(lost));
    assert_eq!(look(&engine, lost).await.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(list(&engine).await.unwrap_err().kind(), ErrorKind::Io);
    let found = engine.scrub(|_| ()).await.unwrap();
    assert!(found.damaged >= 1, "{found:?}");
    // Those of table kept come later.
    assert!(found.values >= 50 + KEPT, "{found:?}");
    let mut refused = 0;
    for number in 0..KEYS {
        if let Err(error) = look(&engine, number).await {
            assert_eq!(error.kind(), ErrorKind::Io, "{number}: {error:?}");
            assert!(number.abs_diff(lost) < 50, "{number}");
            refused += 1;
        }
    }
    assert!(refused < 50, "{refused}");
    store(&engine, KEYS..KEYS + 10).await;
    engine.checkpoint().await.unwrap();
    assert!(!engine.metrics().read_only);
    look(&engine, KEYS + 5).await.unwrap();
}

#[tokio::test]
async fn reads_that_fail_for_a_while_are_right_later() {
    let disk = SimDisk::new(2);
    let engine = filled(&disk).await;
    disk.set_faults(Faults {
        read_error: 1.0,
        ..Faults::default()
    });
    for number in (0..KEYS).step_by(7) {
        let error = look(&engine, number).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
    }
    assert_eq!(list(&engine).await.unwrap_err().kind(), ErrorKind::Io);
    disk.set_faults(Faults::default());
    for number in 0..KEYS {
        look(&engine, number).await.unwrap();
    }
    assert_eq!(list(&engine).await.unwrap(), KEYS as usize);
}

#[tokio::test]
async fn an_index_that_cannot_be_read_for_a_while_is_written_later() {
    let disk = SimDisk::new(5);
    let engine = filled(&disk).await;
    for number in 0..KEYS / 2 {
        delete(&engine, number).await.unwrap();
    }
    disk.set_faults(Faults {
        read_error: 1.0,
        ..Faults::default()
    });
    let error = engine.checkpoint().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
    disk.set_faults(Faults::default());
    assert_eq!(list(&engine).await.unwrap(), (KEYS / 2) as usize);
    store(&engine, KEYS..KEYS + 10).await;
    engine.checkpoint().await.unwrap();
    engine.close();
    drop(engine);
    let engine = open(&disk);
    assert_eq!(engine.metrics().replayed_groups, 0);
    for number in KEYS / 2..KEYS + 10 {
        look(&engine, number).await.unwrap();
    }
}

async fn delete(engine: &Engine<SimDisk>, number: u64) -> Result<()> {
    let key = key(number);
    let options = DeleteOptions::default();
    let deleted = engine.delete(Address::object("n", &key), options).await;
    deleted.map(drop)
}

/// Sectors of the index that cannot be read, and what is there.
struct Spoiled {
    disk: SimDisk,
    index: Vec<u8>,
    needle: Vec<u8>,
}

impl Spoiled {
    fn new(disk: &SimDisk, needle: Vec<u8>) -> Spoiled {
        let index = content(disk, "index");
        spoil_in_index(disk, &needle);
        Spoiled {
            disk: disk.clone(),
            index,
            needle,
        }
    }

    /// They can be read again.
    fn heal(&self) {
        let options = OpenOptions {
            create: false,
            read_only: false,
            direct: false,
        };
        let file = self.disk.open("index", options).unwrap();
        let windows = self.index.windows(self.needle.len()).enumerate();
        for (at, _) in windows.filter(|(_, window)| *window == self.needle) {
            let sector = at / SECTOR * SECTOR;
            let bytes = &self.index[sector..sector + SECTOR];
            // Others may have been written meanwhile.
            let read = file.read_exact_at(sector as u64, &mut [0; SECTOR]);
            if read.is_err() {
                file.write_all_at(sector as u64, bytes).unwrap();
            }
        }
        file.sync_data().unwrap();
    }
}

/// Deletes or replaces all values where a sector that holds the bytes of one cannot be read: that needs it no more than the others, also
/// not in the store that opens next; and when it can be read again nothing of it is back.
async fn changed_around_a_sector(
    config: Config,
    change: impl AsyncFn(&Engine<SimDisk>, u64) -> Result<()>,
    is_changed: impl Fn(Result<Vec<u8>>) -> bool,
) {
    let disk = SimDisk::new(7);
    filled(&disk).await.close();
    let engine = open_with(&disk, config.clone());
    for number in 0..KEYS {
        look(&engine, number).await.unwrap();
    }
    let middle = 100;
    let spoiled = Spoiled::new(&disk, value(middle));
    // From the middle outwards: whatever pages the index joins, one that cannot be read is beside them.
    let mut numbers: Vec<_> = (0..KEYS).collect();
    numbers.sort_by_key(|number| number.abs_diff(middle));
    for number in numbers {
        change(&engine, number).await.unwrap();
    }
    engine.checkpoint().await.unwrap();
    assert!(!engine.metrics().read_only);
    let all_are_changed = async |engine: &Engine<SimDisk>| {
        for number in 0..KEYS {
            let found = get(engine, Address::object("n", &key(number))).await;
            assert!(is_changed(found), "{number}");
        }
    };
    all_are_changed(&engine).await;
    let lost = disk.crash(1);
    engine.close();
    drop(engine);
    for disk in [lost, disk] {
        for is_healed in [false, true, true] {
            if is_healed {
                let spoiled = Spoiled {
                    disk: disk.clone(),
                    index: spoiled.index.clone(),
                    needle: spoiled.needle.clone(),
                };
                spoiled.heal();
            }
            let engine = open_with(&disk, config.clone());
            all_are_changed(&engine).await;
            store_one(&engine, KEYS).await.unwrap();
            engine.checkpoint().await.unwrap();
            all_are_changed(&engine).await;
            engine.close();
        }
    }
}

fn recent() -> Config {
    Config {
        recent_bytes: config().recent_bytes,
        ..uncached()
    }
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_deleted_and_replaced() {
    let replace = async |engine: &Engine<SimDisk>, number| {
        let key = key(number);
        let stored = put(engine, Address::object("n", &key), b"another").await;
        stored.map(drop)
    };
    for config in [uncached(), recent()] {
        let is_gone =
            |found: Result<Vec<u8>>| found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
        changed_around_a_sector(config.clone(), delete, is_gone).await;
        let is_another = |found: Result<Vec<u8>>| found.is_ok_and(|found| found == b"another");
        changed_around_a_sector(config, replace, is_another).await;
    }
}

/// Where the next rows go.
#[tokio::test]
async fn values_are_taken_where_the_index_cannot_be_read() {
    let disk = SimDisk::new(9);
    filled(&disk).await.close();
    let mut there = KEYS;
    for round in 0..3 {
        let engine = open(&disk);
        if round == 0 {
            spoil_in_index(&disk, &value(KEYS - 1));
        }
        store(&engine, there..there + 40).await;
        there += 40;
        engine.checkpoint().await.unwrap();
        assert!(!engine.metrics().read_only);
        let lost = disk.crash(round);
        engine.close();
        drop(engine);
        for disk in [&lost, &disk] {
            let engine = open(disk);
            for number in (0..KEYS - 100).chain(KEYS..there) {
                look(&engine, number).await.unwrap();
            }
        }
    }
}

/// What waits for its place is in memory: when it is much, only what makes it less goes on.
#[tokio::test]
async fn what_waits_for_a_place_in_the_index_is_bounded() {
    const CLIENTS: u64 = 50;
    const EACH: u64 = 1000;
    let disk = SimDisk::new(11);
    filled(&disk).await.close();
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let pool = Pool::new(32 << 20);
    let engine = Engine::open(disk.clone(), clock.clone(), pool, uncached()).unwrap();
    let spoiled = Spoiled::new(&disk, value(KEYS - 1));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let engine = engine.clone();
        clients.spawn(async move {
            let first = KEYS + client * EACH;
            let mut there = first;
            while store_one(&engine, there).await.is_ok() {
                there += 1;
            }
            assert!((1..EACH).contains(&(there - first)), "{there}");
            first..there
        });
    }
    let there = clients.join_all().await;
    engine.checkpoint().await.unwrap();
    let refused = store_one(&engine, 0).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused:?}");
    delete(&engine, KEYS).await.unwrap();
    let lost = disk.crash(1);
    let opened = open(&lost);
    let all_are_there = async |engine: &Engine<SimDisk>| {
        for number in there.iter().map(|there| there.end - 1) {
            look(engine, number).await.unwrap();
        }
    };
    all_are_there(&engine).await;
    all_are_there(&opened).await;
    spoiled.heal();
    // It is noticed while there are changes all the time.
    for number in 1..7 {
        clock.advance(Duration::from_secs(5));
        delete(&engine, KEYS + number).await.unwrap();
    }
    let begun = Instant::now();
    while let Err(error) = store_one(&engine, 0).await {
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(1));
    }
    store(&engine, 0..10).await;
    all_are_there(&engine).await;
}

/// What memory tells needs no look into the index.
#[tokio::test]
async fn a_value_that_was_read_lately_is_replaced_without_a_read() {
    let disk = SimDisk::new(10);
    filled(&disk).await.close();
    let engine = open_with(&disk, recent());
    for number in 0..20 {
        look(&engine, number).await.unwrap();
    }
    let before = disk.operations().reads;
    store(&engine, 0..10).await;
    for number in 10..20 {
        delete(&engine, number).await.unwrap();
    }
    assert_eq!(disk.operations().reads, before);
}

/// The index is opened again for it, and nobody who reads notices.
#[test]
fn what_can_be_read_is_read_while_pages_beside_others_are_written() {
    let runtime = || Builder::new_current_thread().build().unwrap();
    let disk = SimDisk::new(8);
    let sound = 0..20;
    let engine = runtime().block_on(async {
        filled(&disk).await.close();
        let engine = open(&disk);
        let lost = 150;
        spoil_in_index(&disk, &value(lost));
        let mut numbers: Vec<_> = (sound.end..KEYS).collect();
        numbers.sort_by_key(|number| number.abs_diff(lost));
        for number in numbers {
            delete(&engine, number).await.unwrap();
        }
        engine
    });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            runtime().block_on(async {
                while !is_over.load(Relaxed) {
                    for number in sound.clone() {
                        look(&engine, number).await.unwrap();
                    }
                }
            });
        });
        let written = runtime().block_on(engine.checkpoint());
        is_over.store(true, Relaxed);
        written.unwrap();
    });
}

/// One operation after the other fails while the index is written.
#[tokio::test]
async fn reads_go_on_when_the_index_cannot_be_written() {
    const NEW: u64 = 40;
    let made = SimDisk::new(4);
    filled(&made).await.close();
    let mut latched = 0;
    for at in 0.. {
        // All of it is on the medium.
        let disk = made.crash(at);
        let engine = open(&disk);
        store(&engine, KEYS..KEYS + NEW).await;
        let before = disk.operations().total();
        disk.set_faults(Faults {
            error_at: Some(before + at),
            ..Faults::default()
        });
        let done = engine.checkpoint().await;
        let is_over = disk.operations().total() <= before + at;
        disk.set_faults(Faults::default());
        for number in (0..KEYS + NEW).step_by(5) {
            look(&engine, number)
                .await
                .unwrap_or_else(|error| panic!("{at}: {number}: {error:?}"));
        }
        assert_eq!(list(&engine).await.unwrap(), (KEYS + NEW) as usize, "{at}");
        if done.is_err() {
            assert!(engine.metrics().read_only, "{at}");
            latched += 1;
        }
        let lost = disk.crash(at);
        engine.close();
        drop(engine);
        for disk in [lost, disk] {
            let engine = open(&disk);
            for number in (0..KEYS + NEW).step_by(3) {
                look(&engine, number).await.unwrap();
            }
        }
        if is_over {
            break;
        }
    }
    assert!(latched > 10, "{latched}");
}

/// The file system is full while the index is written, and later it is not.
#[tokio::test]
async fn an_index_without_room_is_written_once_there_is_some() {
    let disk = SimDisk::new(3);
    let engine = filled(&disk).await;
    let large = 1 << 40;
    disk.set_capacity(Some(large));
    let taken = large - disk.free_bytes().unwrap();
    disk.set_capacity(Some(taken));
    let mut there = KEYS;
    let error = loop {
        match store_one(&engine, there).await {
            Ok(()) => there += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    let error = engine.checkpoint().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert!(!engine.metrics().read_only);
    for number in 0..there {
        look(&engine, number).await.unwrap();
    }
    for number in 0..10 {
        let options = DeleteOptions::default();
        engine
            .delete(Address::object("n", &key(number)), options)
            .await
            .unwrap();
    }
    let lost = disk.crash(3);
    lost.set_capacity(None);
    let lost = open(&lost);
    for number in 10..there {
        look(&lost, number).await.unwrap();
    }
    // Somebody else makes room.
    disk.set_capacity(Some(taken + (64 << 20)));
    let begun = Instant::now();
    while let Err(error) = store_one(&engine, there).await {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(1));
    }
    store(&engine, there..there + 10).await;
    engine.close();
    drop(engine);
    let engine = open(&disk);
    for number in 10..there + 10 {
        look(&engine, number).await.unwrap();
    }
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
}
