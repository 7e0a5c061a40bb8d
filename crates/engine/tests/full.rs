//! A file system without space: values and the index share it, and neither may take what the other needs to go on.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::Disk;
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{
    Address, Attributes, DeleteOptions, Durability, ErrorKind, NamespaceConfig, Scope, Seal, Store,
    StoreOptions, VersionId, Versioning,
};
use support::{
    bytes, check_space, config, get, get_version, groups, length, places_of_map, put, put_with,
    tenant,
};

const RESERVE_BYTES: u64 = 8 << 20;
const CAPACITY_BYTES: u64 = 40 << 20;

fn try_open(disk: &SimDisk, config: Config) -> Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1));
    Engine::open(disk.clone(), clock, Pool::new(64 << 20), config)
}

fn with_reserve() -> Config {
    Config {
        reserve_bytes: RESERVE_BYTES,
        ..config()
    }
}

fn small(number: u64) -> Vec<u8> {
    bytes(number + 1, 1500)
}

async fn remove(engine: &Engine<SimDisk>, key: &str) {
    let address = Address::object("n", key.as_bytes());
    engine
        .delete(address, DeleteOptions::default())
        .await
        .unwrap();
}

/// Stores values until there is no space; tells how many there was space for.
async fn fill(engine: &Engine<SimDisk>, name: &str, value: impl Fn(u64) -> Vec<u8>) -> u64 {
    for number in 0.. {
        let key = format!("{name}{number:06}");
        let stored = put(engine, Address::object("n", key.as_bytes()), &value(number)).await;
        if let Err(error) = stored {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{number}: {error:?}");
            return number;
        }
    }
    0
}

async fn check(engine: &Engine<SimDisk>, name: &str, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let key = format!("{name}{number:06}");
        let value = get(engine, Address::object("n", key.as_bytes())).await;
        assert!(value.unwrap() == small(number), "{key}");
    }
}

/// Values fill the disk and go, and small ones, which are in the index, fill it again.
async fn filled_twice(disk: &SimDisk) -> (Engine<SimDisk>, u64) {
    let engine = try_open(disk, with_reserve()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    disk.set_capacity(Some(CAPACITY_BYTES));
    let large = fill(&engine, "large", |number| bytes(number, 1 << 20)).await;
    assert!(large > 20, "{large}");
    for number in 0..large {
        remove(&engine, &format!("large{number:06}")).await;
    }
    let count = fill(&engine, "small", small).await;
    // Most of what the large ones had, the index has now.
    assert!(count > 10_000, "{count}");
    (engine, count)
}

#[tokio::test]
async fn small_values_leave_the_index_room_to_go_on() {
    let disk = SimDisk::new(1);
    let (engine, count) = filled_twice(&disk).await;
    assert!(disk.free_bytes().unwrap() < RESERVE_BYTES);
    engine.checkpoint().await.unwrap();
    check(&engine, "small", (0..count).step_by(97)).await;
    engine.close();
    let disk = disk.crash(7);
    let engine = try_open(&disk, with_reserve()).unwrap();
    check(&engine, "small", 0..count).await;
    for number in 0..count {
        remove(&engine, &format!("small{number:06}")).await;
    }
    engine.checkpoint().await.unwrap();
    // Both kinds find space again.
    let large = fill(&engine, "large", |number| bytes(number, 1 << 20)).await;
    assert!(large > 20, "{large}");
    for number in 0..large {
        remove(&engine, &format!("large{number:06}")).await;
    }
    let again = fill(&engine, "small", small).await;
    assert!(again > count / 2, "{again} of {count}");
    check(&engine, "small", 0..again).await;
    check_space(&engine).await;
}

#[tokio::test]
async fn without_room_in_the_index_only_what_frees_some_goes_on() {
    let disk = SimDisk::new(2);
    let (engine, _) = filled_twice(&disk).await;
    let mut config = engine.namespace("n").unwrap().config.clone();
    config.versioning = Versioning::Enabled;
    let changed = engine.update_namespace("n", None, config.clone()).await;
    changed.expect("it takes no more than before");
    let no_space = |refused: forebay_store::Result<()>| {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    };
    let rules = Attributes::builder().set("rules", vec![b'r'; 100_000]);
    config.attributes = rules.build().unwrap();
    let changed = engine.update_namespace("n", None, config).await;
    no_space(changed.map(drop));
    let made = engine.create_namespace("m", tenant("t")).await;
    no_space(made.map(drop));
    let delete = async |key: &[u8], version| {
        let options = DeleteOptions {
            version,
            ..DeleteOptions::default()
        };
        engine.delete(Address::object("n", key), options).await
    };
    no_space(delete(b"small000000", None).await.map(drop));
    no_space(delete(b"never", None).await.map(drop));
    let removed = delete(b"small000000", Some(VersionId::NULL)).await;
    assert!(removed.expect("a value goes for good").existed);
    check_space(&engine).await;
}

/// A store with little room for values, in a namespace that answers early.
async fn relaxed() -> Engine<SimDisk> {
    let bounded = Config {
        capacity_bytes: 8 << 20,
        ..config()
    };
    let engine = try_open(&SimDisk::new(5), bounded).unwrap();
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 60_000 },
        ..tenant("t")
    };
    engine.create_namespace("n", relaxed).await.unwrap();
    engine
}

async fn put_sized(engine: &Engine<SimDisk>, key: &str, value: &[u8], size: Option<u64>) {
    let options = StoreOptions {
        size,
        ..StoreOptions::default()
    };
    let address = Address::object("n", key.as_bytes());
    let stored = put_with(engine, address, value, options, Seal::default()).await;
    stored.unwrap();
}

/// It is answered early that they go, and their space is not used again before that is durable: somebody who needs it does not wait until it
/// would be.
#[tokio::test]
async fn what_went_in_a_relaxed_namespace_leaves_room_at_once() {
    // Some wait for the journal, others do not.
    for len in [5_000, 20_000, 1 << 20] {
        let engine = relaxed().await;
        let value = |number| bytes(number, len);
        assert!(fill(&engine, "k", value).await > 4);
        for size in [None, Some(len as u64)] {
            remove(&engine, "k000000").await;
            put_sized(&engine, "k000000", &value(0), size).await;
        }
    }
}

/// Who writes beside it does not wait for a sync that cannot help.
#[tokio::test]
async fn a_value_that_is_refused_syncs_only_where_as_much_was_freed_as_it_takes() {
    const NEEDED: usize = 5;
    let engine = relaxed().await;
    let count = fill(&engine, "k", |number| bytes(number, 4096)).await;
    assert!(count > 1000, "{count}");
    engine.settle().await.unwrap();
    let before = engine.metrics().syncs;
    // What goes is never side by side, so that there is no room at any time.
    for (freed, number) in (1..=4 * NEEDED).zip((100..).step_by(2)) {
        remove(&engine, &format!("k{number:06}")).await;
        let address = Address::object("n", b"long");
        let refused = put(&engine, address, &bytes(1, NEEDED * 4096)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
        let syncs = engine.metrics().syncs - before;
        assert_eq!(syncs, (freed / NEEDED) as u64, "{freed}");
    }
}

/// There are enough free granules for it, but what lies side by side is not free before what went is durable.
#[tokio::test]
async fn room_in_pieces_is_not_taken_for_room() {
    let engine = relaxed().await;
    let granule = |number| bytes(number, 4096);
    let count = fill(&engine, "k", granule).await;
    assert!(count > 1000, "{count}");
    for number in (100..120).step_by(2) {
        remove(&engine, &format!("k{number:06}")).await;
    }
    engine.settle().await.unwrap();
    for number in 200..220 {
        remove(&engine, &format!("k{number:06}")).await;
    }
    let long = bytes(1, 5 * 4096);
    put_sized(&engine, "long", &long, Some(5 * 4096)).await;
    let found = get(&engine, Address::object("n", b"long")).await;
    assert!(found.unwrap() == long);
}

/// The store does not see who else takes room of the file system, and makes some.
#[tokio::test]
async fn room_that_others_make_is_used() {
    let disk = SimDisk::new(4);
    let engine = try_open(&disk, with_reserve()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let large = 1 << 40;
    disk.set_capacity(Some(large));
    let taken = large - disk.free_bytes().unwrap();
    disk.set_capacity(Some(taken + (1 << 20)));
    let address = Address::object("n", b"k");
    put(&engine, address, &small(1)).await.unwrap();
    engine.checkpoint().await.unwrap();
    let refused = put(&engine, address, &small(2)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused:?}");
    disk.set_capacity(None);
    put(&engine, address, &small(3)).await.unwrap();
    let amended = engine
        .amend(address, None, None, Attributes::default())
        .await;
    amended.unwrap();
}

/// There is no other place in the journal for what comes next: the index has no room for what is there.
#[tokio::test]
async fn a_write_that_fails_where_the_index_has_no_room_is_refused_alone() {
    let disk = SimDisk::new(6);
    let engine = try_open(&disk, with_reserve()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..300 {
        let key = format!("small{number:06}");
        let address = Address::object("n", key.as_bytes());
        put(&engine, address, &small(number)).await.unwrap();
    }
    let large = 1 << 40;
    disk.set_capacity(Some(large));
    let taken = large - disk.free_bytes().unwrap();
    disk.set_capacity(Some(taken));
    let held_up = engine.checkpoint().await.unwrap_err();
    assert_eq!(held_up.kind(), ErrorKind::NoSpace, "{held_up:?}");
    disk.set_faults(Faults {
        error_at: Some(disk.operations().total()),
        ..Faults::default()
    });
    let address = Address::object("n", b"small000000");
    let refused = engine.delete(address, DeleteOptions::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused:?}");
    assert!(refused.message().contains("nothing was changed"));
    remove(&engine, "small000000").await;
    assert!(!engine.metrics().read_only);
    engine.close();
    let disk = disk.crash(3);
    disk.set_capacity(None);
    let engine = try_open(&disk, with_reserve()).unwrap();
    check(&engine, "small", 1..300).await;
    let usage = engine.usage(Scope::Namespace("n")).unwrap();
    assert_eq!(usage.objects, 299);
    check_space(&engine).await;
}

/// A store whose journal has what its index lacks, on a disk that has little room for the index.
async fn unsettled(count: u64) -> SimDisk {
    let disk = SimDisk::new(3);
    let engine = try_open(&disk, config()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..count {
        let key = format!("small{number:06}");
        let address = Address::object("n", key.as_bytes());
        put(&engine, address, &small(number)).await.unwrap();
    }
    with_little_room(&disk)
}

/// The disk as power loss leaves it, with room for one transaction of the index.
fn with_little_room(disk: &SimDisk) -> SimDisk {
    let found = disk.crash(1);
    let taken: u64 = ["data", "index"]
        .map(|name| length(&found, name))
        .iter()
        .sum();
    found.set_capacity(Some(taken + (2 << 20)));
    found
}

/// The index takes what the journal has in several transactions when room is short. Power may go between any two; and a journal that
/// is damaged then cannot be cut where the index has some of what follows.
#[tokio::test]
async fn an_index_that_has_half_of_the_journal_is_made_whole() {
    const COUNT: u64 = 200;
    let unsettled = unsettled(COUNT).await;
    let places = groups(&unsettled);
    let (mut cut, mut refused) = (0, 0);
    for at in (0..).step_by(7) {
        let disk = unsettled.crash(at);
        disk.set_faults(Faults {
            power_off_at: Some(at),
            ..Faults::default()
        });
        if try_open(&disk, config()).is_ok() {
            break;
        }
        let disk = disk.crash(at);
        let damaged = disk.crash(at);
        let place = places[places.len() / 2] as u64;
        damaged.rot("data", place + 30, 3).unwrap();
        if let Err(OpenError::Journal { group, .. }) = try_open(&damaged, config()) {
            let lose = Config {
                lose_journal_from: Some(group),
                ..config()
            };
            match try_open(&damaged, lose) {
                Err(OpenError::Journal { group: again, .. }) => {
                    assert_eq!(again, group, "{at}");
                    refused += 1;
                }
                Err(error) => panic!("{at}: {error:?}"),
                Ok(engine) => {
                    // The first group made the namespace.
                    let there = group - 2;
                    check(&engine, "small", 0..there).await;
                    let usage = engine.usage(Scope::Namespace("n")).unwrap();
                    assert_eq!(usage.objects, there, "{at}");
                    check_space(&engine).await;
                    cut += 1;
                }
            }
        }
        let engine = try_open(&disk, config()).unwrap();
        check(&engine, "small", 0..COUNT).await;
        let usage = engine.usage(Scope::Namespace("n")).unwrap();
        assert_eq!(usage.objects, COUNT, "{at}");
        check_space(&engine).await;
    }
    assert!(cut > 0 && refused > 0, "{cut} cut, {refused} refused");
}

/// What is damaged of the map of space then is made anew of what there is once the journal is in the index.
#[tokio::test]
async fn a_map_of_space_that_is_damaged_half_way_is_made_anew() {
    const LARGE: u64 = 4;
    const SMALL: u64 = 200;
    let large = |number| bytes(1000 + number, 1 << 20);
    let disk = SimDisk::new(4);
    let engine = try_open(&disk, config()).unwrap();
    let versioned = NamespaceConfig {
        versioning: Versioning::Enabled,
        ..tenant("t")
    };
    engine.create_namespace("n", versioned).await.unwrap();
    let mut versions = Vec::new();
    for number in 0..LARGE {
        let key = format!("large{number:06}");
        let address = Address::object("n", key.as_bytes());
        let stored = put(&engine, address, &large(number)).await.unwrap();
        versions.push((key, stored.meta.version));
    }
    engine.checkpoint().await.unwrap();
    for (key, _) in &versions {
        // The large ones are kept from now on: among other rows, which are written later.
        let address = Address::object("n", key.as_bytes());
        put(&engine, address, b"newer").await.unwrap();
    }
    for number in 0..SMALL {
        let key = format!("small{number:06}");
        let address = Address::object("n", key.as_bytes());
        put(&engine, address, &small(number)).await.unwrap();
    }
    let unsettled = with_little_room(&disk);
    let unchecked = Config {
        index_check_bytes: 0,
        ..config()
    };
    let accepting = Config {
        accept_damaged_index: true,
        ..unchecked.clone()
    };
    for at in (0..).step_by(23) {
        let disk = unsettled.crash(at);
        disk.set_faults(Faults {
            power_off_at: Some(at),
            ..Faults::default()
        });
        if try_open(&disk, unchecked.clone()).is_ok() {
            break;
        }
        let disk = disk.crash(at);
        for place in places_of_map(&disk) {
            disk.rot("index", place + 7, 2).unwrap();
        }
        let engine = try_open(&disk, accepting.clone()).unwrap();
        let findings = engine.findings();
        assert!(findings[0].what.contains("made anew"), "{at}: {findings:?}");
        check(&engine, "small", 0..SMALL).await;
        check_space(&engine).await;
        for (number, (key, version)) in versions.iter().enumerate() {
            let address = Address::object("n", key.as_bytes());
            let value = get_version(&engine, address, *version).await.unwrap();
            assert!(value == large(number as u64), "{at}: {key}");
        }
    }
}

/// A sync that failed leaves the last group seen, but not on the medium. Then the index takes the journal in several transactions, and
/// power goes between two of them.
#[tokio::test]
async fn a_group_that_a_failed_sync_left_is_kept_before_the_index_has_half_of_it() {
    const COUNT: u64 = 8;
    let mut half = 0;
    for at in (0..).step_by(2) {
        let disk = SimDisk::new(at);
        let engine = try_open(&disk, config()).unwrap();
        engine.create_namespace("n", tenant("t")).await.unwrap();
        let put_wide = async |number: u64| {
            let wide = Attributes::builder().set("wide", vec![b'w'; 100_000]);
            let seal = Seal {
                attributes: wide.build().unwrap(),
                ..Seal::default()
            };
            let key = format!("small{number:06}");
            let address = Address::object("n", key.as_bytes());
            let options = StoreOptions::default();
            put_with(&engine, address, &small(number), options, seal).await
        };
        for number in 0..COUNT {
            put_wide(number).await.unwrap();
        }
        disk.set_faults(Faults {
            sync_error: 1.0,
            ..Faults::default()
        });
        let unknown = put_wide(COUNT).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
        engine.close();
        drop(engine);
        let taken: u64 = ["data", "index"]
            .map(|name| length(&disk, name))
            .iter()
            .sum();
        disk.set_capacity(Some(taken + (2 << 20)));
        disk.set_faults(Faults {
            power_off_at: Some(disk.operations().total() + at),
            ..Faults::default()
        });
        if try_open(&disk, config()).is_ok() {
            break;
        }
        for crash in 0..4 {
            let found = disk.crash(crash);
            let engine = try_open(&found, config()).unwrap_or_else(|error| {
                panic!("{at}, {crash}: {error:?}");
            });
            check(&engine, "small", 0..COUNT).await;
            check_space(&engine).await;
        }
        half += 1;
    }
    assert!(half > 10, "{half}");
}
