//! Bits that flip in what is stored: bytes are right or refused, what is damaged is named, and nothing that was acknowledged goes
//! without a word.

mod support;

use forebay_engine::{Config, Engine, Finding, OpenError};
use forebay_io::sim::SimDisk;
use forebay_mem::{PAGE_BYTES, Region};
use forebay_store::{
    Address, Attributes, ByteRange, ErrorKind, ListOptions, Seal, Space, Store, StoreOptions,
};
use support::{bytes, config, content, get, groups, put, put_with, rot_in_index, tenant, try_open};

const SIZES: [usize; 5] = [900, 3000, 40_000, 200_000, 1_200_000];
/// Where a group's payload begins.
const GROUP_HEADER_BYTES: usize = 72;

async fn empty(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = try_open(disk, config()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    engine
}

async fn filled(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = empty(disk).await;
    for (at, size) in SIZES.into_iter().enumerate() {
        let key = [at as u8 + 1];
        put(&engine, Address::object("n", &key), &bytes(at as u64, size))
            .await
            .unwrap();
    }
    engine
}

async fn get_into(
    engine: &Engine<SimDisk>,
    address: Address<'_>,
    size: usize,
) -> forebay_store::Result<Vec<u8>> {
    let target = Region::anonymous(size.max(1)).unwrap();
    let target = target.slice(0..size).unwrap();
    engine
        .retrieve_into(address, None, ByteRange::Full, target.clone())
        .await?;
    let mut value = vec![0; size];
    assert!(target.read(0, &mut value));
    Ok(value)
}

/// Every value is right, or refused as corrupt (or the store does not open): nothing is missing, nothing is wrong. A store whose index is
/// damaged opens when that is accepted, unless the library under it cannot do without what is damaged.
async fn right_or_refused(disk: &SimDisk, what: &str) -> bool {
    let mut opened = try_open(disk, config());
    let accepted = matches!(opened, Err(OpenError::Index(_)));
    if accepted {
        let accepting = Config {
            accept_damaged_index: true,
            ..config()
        };
        opened = try_open(disk, accepting);
    }
    let engine = match opened {
        Ok(engine) => engine,
        Err(OpenError::Store(error)) => {
            let is_refused = match accepted {
                // The library says so of what it keeps for itself; without the row of where the journal is there is nothing to open.
                true => [
                    "is corrupt",
                    "is damaged",
                    "cannot be read",
                    "of table state",
                ]
                .iter()
                .any(|words| error.message().contains(words)),
                false => matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io),
            };
            assert!(is_refused, "{what}: {error:?}");
            return true;
        }
        Err(
            OpenError::NotAStore
            | OpenError::Version { .. }
            | OpenError::NoIndex
            | OpenError::Mismatch
            | OpenError::Journal { .. },
        ) => return true,
        Err(error) => panic!("{what}: {error:?}"),
    };
    if engine.namespace("n").is_err() {
        let said = |finding: &Finding| finding.what.contains("of table namespace");
        assert!(engine.findings().iter().any(said), "{what}");
        return true;
    }
    let mut refused = false;
    for (at, size) in SIZES.into_iter().enumerate() {
        let key = [at as u8 + 1];
        let address = Address::object("n", &key);
        // The second finds in memory what the first left there.
        for value in [
            get_into(&engine, address, size).await,
            get(&engine, address).await,
        ] {
            match value {
                Ok(value) => assert!(value == bytes(at as u64, size), "{what}: wrong bytes"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
                    refused = true;
                }
            }
        }
    }
    if refused {
        let scrubbed = engine.scrub(|_| ()).await.unwrap();
        assert!(scrubbed.damaged > 0, "{what}");
        assert!(!engine.findings().is_empty(), "{what}");
    }
    refused
}

/// Flips bits of a file, one at a time, and tells how many of them were noticed.
async fn rot_everywhere(disk: &SimDisk, name: &str, len: u64, state: &mut u64) -> u32 {
    let mut noticed = 0;
    for _ in 0..150 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let offset = (*state >> 8) % len;
        let rotten = disk.crash(*state);
        rotten.rot(name, offset, (*state & 7) as u8).unwrap();
        let what = format!("bit {} of byte {offset} of {name}", *state & 7);
        noticed += u32::from(right_or_refused(&rotten, &what).await);
    }
    noticed
}

#[tokio::test]
async fn rot_is_found_and_never_served() {
    let disk = SimDisk::new(6);
    drop(filled(&disk).await);
    let mut noticed = 0;
    let mut state = 0x1234_5678_9abc_def1_u64;
    for name in disk.names() {
        let len = content(&disk, &name).len() as u64;
        noticed += rot_everywhere(&disk, &name, len, &mut state).await;
    }
    assert!(noticed > 0);
}

/// Bits of what the index holds: most of its file is free. Where tables begin the library alone has a checksum for.
#[tokio::test]
async fn rot_of_a_full_index_is_found_and_never_served() {
    let disk = SimDisk::new(13);
    drop(filled(&disk).await);
    let index = content(&disk, "index");
    let is_of_tables = |page: &[u8]| page.windows(13).any(|names| names == b"currentexpiry");
    let pages = index.chunks(PAGE_BYTES).enumerate();
    let held: Vec<usize> = pages
        .filter(|(_, page)| !is_of_tables(page))
        .flat_map(|(number, page)| {
            let held = page.iter().enumerate().filter(|(_, byte)| **byte != 0);
            held.map(move |(within, _)| number * PAGE_BYTES + within)
        })
        .collect();
    for (turn, at) in held.iter().step_by(held.len() / 120).enumerate() {
        let rotten = disk.crash(turn as u64);
        let bit = (turn % 8) as u8;
        rotten.rot("index", *at as u64, bit).unwrap();
        let what = format!("bit {bit} of byte {at} of the index");
        right_or_refused(&rotten, &what).await;
    }
}

/// The store was killed: what it acknowledged is in the journal alone.
#[tokio::test]
async fn rot_of_a_live_journal_is_found_and_never_served() {
    let disk = SimDisk::new(7);
    let engine = filled(&disk).await;
    // Nothing tells whether the last group had ever been durable: it may go.
    put(&engine, Address::object("n", b"last"), b"value")
        .await
        .unwrap();
    let groups = groups(&disk);
    let (first, last) = (groups[0], groups[groups.len() - 1]);
    assert!(groups.len() > SIZES.len());
    let mut noticed = 0;
    for at in (first..last).step_by(397) {
        let rotten = disk.crash(at as u64);
        rotten.rot("data", at as u64, (at % 8) as u8).unwrap();
        let what = format!("a bit of byte {at} of the journal");
        noticed += u32::from(right_or_refused(&rotten, &what).await);
    }
    assert!(noticed > 0);
    drop(engine);
}

#[tokio::test]
async fn a_rotten_group_that_was_durable_is_refused() {
    let disk = SimDisk::new(8);
    let engine = empty(&disk).await;
    let key = |number: u64| format!("k{number}").into_bytes();
    for number in 0..10 {
        put(
            &engine,
            Address::object("n", &key(number)),
            &bytes(number, 900),
        )
        .await
        .unwrap();
    }
    let groups = groups(&disk);
    let (last, before) = groups.split_last().unwrap();
    assert_eq!(before.len(), 10, "a namespace and nine values");
    for at in before {
        for within in [20, GROUP_HEADER_BYTES + 30] {
            let rotten = disk.crash(1);
            rotten.rot("data", (at + within) as u64, 5).unwrap();
            for _ in 0..2 {
                // Also a second time: the refusal changed nothing.
                let refused = try_open(&rotten, config()).err();
                let Some(OpenError::Journal { what, .. }) = refused else {
                    panic!("opened without the group at {at}: {refused:?}");
                };
                assert!(what.contains(&format!("byte {at} of file data")), "{what}");
            }
        }
    }
    let rotten = disk.crash(1);
    rotten.rot("data", (last + 100) as u64, 5).unwrap();
    let engine = try_open(&rotten, config()).unwrap();
    for number in 0..9 {
        let key = key(number);
        let value = get(&engine, Address::object("n", &key)).await.unwrap();
        assert_eq!(value, bytes(number, 900));
    }
}

#[tokio::test]
async fn a_rotten_inline_value_is_named_and_counted() {
    let disk = SimDisk::new(9);
    let engine = empty(&disk).await;
    for number in 0..3 {
        let key = [b'k', number];
        let value = bytes(u64::from(number), 1500);
        put(&engine, Address::object("n", &key), &value)
            .await
            .unwrap();
    }
    drop(engine);
    rot_in_index(&disk, &bytes(1, 1500)[700..800]);
    let unchecked = Config {
        index_check_bytes: 0,
        ..config()
    };
    let damaged = |finding: &Finding| {
        assert_eq!(
            (&finding.namespace[..], &finding.key[..]),
            ("n", &b"k\x01"[..])
        );
    };
    let engine = try_open(&disk, unchecked.clone()).unwrap();
    let address = Address::object("n", b"k\x01");
    for read in [
        get(&engine, address).await,
        get_into(&engine, address, 1500).await,
    ] {
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("n/k\u{1}"), "{error}");
    }
    assert_eq!(engine.metrics().corrupt_blocks, 2);
    engine.findings().iter().for_each(damaged);
    assert_eq!(engine.findings().len(), 1);
    drop(engine);
    let engine = try_open(&disk, unchecked).unwrap();
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!((scrubbed.values, scrubbed.damaged), (3, 1));
    engine.findings().iter().for_each(damaged);
    assert_eq!(engine.findings().len(), 1);
}

#[tokio::test]
async fn a_scrub_goes_on_after_a_rotten_row() {
    let disk = SimDisk::new(10);
    let engine = empty(&disk).await;
    let marks = |number: u8| bytes(100 + u64::from(number), 200);
    for number in 0..4 {
        let key = [b'k', number];
        let attributes = Attributes::builder()
            .set("mark", marks(number))
            .build()
            .unwrap();
        let seal = Seal {
            attributes,
            ..Seal::default()
        };
        let value = bytes(u64::from(number), 1500);
        let options = StoreOptions::default();
        put_with(&engine, Address::object("n", &key), &value, options, seal)
            .await
            .unwrap();
    }
    drop(engine);
    rot_in_index(&disk, &marks(1)[50..150]);
    rot_in_index(&disk, &bytes(2, 1500)[700..800]);
    let unchecked = Config {
        index_check_bytes: 0,
        ..config()
    };
    let engine = try_open(&disk, unchecked).unwrap();
    let error = engine
        .stat(Address::object("n", b"k\x01"), None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("n/k\u{1}"), "{error}");
    let everything = ListOptions::of("n", Space::Objects);
    let error = engine.list(everything).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("k\\x01"), "{error}");
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!((scrubbed.values, scrubbed.damaged), (4, 2));
    let mut keys: Vec<_> = engine
        .findings()
        .into_iter()
        .map(|finding| finding.key)
        .collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys, [&b"k\x01"[..], &b"k\x02"[..]]);
}

#[tokio::test]
async fn a_scrub_names_what_cannot_be_read_and_goes_on() {
    let disk = SimDisk::new(11);
    drop(filled(&disk).await);
    let data = content(&disk, "data");
    let value = bytes(4, 1_200_000);
    // Extents begin on pages of the file, and what is before the end of one is whole pages.
    let place = |at: usize| {
        let within = at % PAGE_BYTES;
        let mut places = (within..data.len() - 64).step_by(PAGE_BYTES);
        let found = places.find(|place| data[*place..].starts_with(&value[at..at + 64]));
        found.unwrap() as u64
    };
    let (first, second) = (place(70_000), place(1_100_000));
    disk.spoil("data", first).unwrap();
    disk.spoil("data", second).unwrap();
    let engine = try_open(&disk, config()).unwrap();
    let address = Address::object("n", &[5]);
    for read in [
        get(&engine, address).await,
        get_into(&engine, address, value.len()).await,
    ] {
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains("n/\u{5}"), "{error}");
    }
    assert!(engine.findings().is_empty(), "it may pass");
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!(scrubbed.values, SIZES.len() as u64);
    assert_eq!(scrubbed.damaged, 1);
    let findings = engine.findings();
    assert_eq!(findings.len(), 2, "{findings:?}");
    for finding in findings {
        assert_eq!((&finding.namespace[..], &finding.key[..]), ("n", &[5][..]));
        assert!(finding.what.contains("cannot be read"), "{}", finding.what);
    }
}

/// What was found is no more when it was stored anew.
#[tokio::test]
async fn a_scrub_after_a_repair_finds_nothing() {
    let disk = SimDisk::new(13);
    drop(filled(&disk).await);
    let data = content(&disk, "data");
    let value = bytes(3, SIZES[3]);
    let part = &value[100_000..100_064];
    let at = data.windows(64).position(|window| window == part).unwrap();
    disk.rot("data", at as u64, 5).unwrap();
    let engine = try_open(&disk, config()).unwrap();
    let address = Address::object("n", &[4]);
    get(&engine, address).await.unwrap_err();
    assert_eq!(engine.scrub(|_| ()).await.unwrap().damaged, 1);
    assert_eq!(engine.findings().len(), 1);
    put(&engine, address, &value).await.unwrap();
    assert_eq!(engine.scrub(|_| ()).await.unwrap().damaged, 0);
    assert_eq!(engine.findings(), []);
}

/// Four values in the index, and a journal that has room for more.
async fn settled(disk: &SimDisk) -> Engine<SimDisk> {
    let engine = try_open(disk, roomy()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for key in [b"key0", b"key1", b"key2", b"key3"] {
        put(&engine, Address::object("n", key), b"settled")
            .await
            .unwrap();
    }
    engine.checkpoint().await.unwrap();
    engine
}

fn roomy() -> Config {
    Config {
        segment_bytes: 16 << 20,
        index_check_bytes: 0,
        index_cache_bytes: 0,
        ..config()
    }
}

fn rot_key(disk: &SimDisk, key: &[u8]) {
    let index = content(disk, "index");
    let windows = index.windows(key.len()).enumerate();
    for (at, _) in windows.filter(|(_, window)| *window == key) {
        disk.rot("index", at as u64, 6).unwrap();
    }
}

/// A row whose key is damaged is one value, also where many were stored since behind which it may be.
#[tokio::test]
async fn a_row_beside_its_place_is_counted_once() {
    let disk = SimDisk::new(14);
    let engine = settled(&disk).await;
    for number in 0..300 {
        let key = format!("key2{number:03}");
        put(&engine, Address::object("n", key.as_bytes()), b"fresh")
            .await
            .unwrap();
    }
    rot_key(&disk, b"key3");
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!((scrubbed.values, scrubbed.damaged), (304, 1));
}

#[tokio::test]
async fn what_a_row_beside_its_place_keeps_from_being_read_is_named() {
    let disk = SimDisk::new(15);
    drop(settled(&disk).await);
    rot_key(&disk, b"key2");
    let engine = try_open(&disk, roomy()).unwrap();
    let mut refused = vec![b"+ey2".to_vec()];
    for key in [b"key0", b"key1", b"key3"] {
        if let Err(error) = get(&engine, Address::object("n", key)).await {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            refused.push(key.to_vec());
        }
    }
    assert!(refused.len() > 1);
    let scrubbed = engine.scrub(|_| ()).await.unwrap();
    assert_eq!(
        (scrubbed.values, scrubbed.damaged),
        (4, refused.len() as u64)
    );
    let findings = engine.findings();
    let mut found: Vec<_> = findings.iter().map(|found| found.key.to_vec()).collect();
    found.sort();
    assert_eq!(found, refused);
}

/// Refused until it is accepted; then what is damaged is refused, and all else is there.
#[tokio::test]
async fn a_damaged_index_is_opened_when_that_is_accepted() {
    let disk = SimDisk::new(11);
    drop(filled(&disk).await);
    rot_in_index(&disk, &bytes(0, SIZES[0])[500..600]);
    for _ in 0..2 {
        let refused = try_open(&disk, config()).err();
        assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
    }
    let accepting = Config {
        accept_damaged_index: true,
        ..config()
    };
    let engine = try_open(&disk, accepting).unwrap();
    assert_eq!(engine.findings().len(), 1);
    let error = get(&engine, Address::object("n", &[1])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for (at, size) in SIZES.into_iter().enumerate().skip(1) {
        let key = [at as u8 + 1];
        let value = get(&engine, Address::object("n", &key)).await.unwrap();
        assert!(value == bytes(at as u64, size));
    }
    put(&engine, Address::object("n", b"new"), b"value")
        .await
        .unwrap();
}

/// Neither a row whose key is damaged nor what leads to a row makes it absent.
#[tokio::test]
async fn a_damaged_key_is_refused_and_not_absent() {
    const KEYS: u64 = 300;
    const PAGE: usize = 4096;
    let key = |number: u64| format!("key{number:06}").into_bytes();
    let unchecked = || Config {
        index_check_bytes: 0,
        recent_bytes: 0,
        ..config()
    };
    let disk = SimDisk::new(12);
    let engine = empty(&disk).await;
    for number in 0..KEYS {
        let address = key(number);
        put(&engine, Address::object("n", &address), &bytes(number, 40))
            .await
            .unwrap();
    }
    engine.close();
    drop(engine);
    let index = content(&disk, "index");
    let starts = index.windows(4).enumerate();
    let starts = starts.filter(|(_, window)| *window == b"key0");
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    let is_branch = |at: &usize| index[at / PAGE * PAGE] == 2;
    let (branches, leaves): (Vec<usize>, Vec<usize>) = starts.into_iter().partition(is_branch);
    assert!(!branches.is_empty());
    let some = leaves.iter().step_by(leaves.len() / 60);
    let mut refused = 0;
    for (turn, start) in branches.iter().chain(some).enumerate() {
        // From the greatest change of order to the least.
        for (within, bit) in [(0, 6), (0, 0), (5, 3), (6, 1), (7, 0), (8, 0)] {
            let rotten = disk.crash(turn as u64);
            let at = (start + within) as u64;
            rotten.rot("index", at, bit).unwrap();
            let engine = try_open(&rotten, unchecked()).unwrap();
            for number in 0..KEYS {
                match get(&engine, Address::object("n", &key(number))).await {
                    Ok(value) => assert!(value == bytes(number, 40)),
                    Err(error) => {
                        let kind = error.kind();
                        assert_eq!(kind, ErrorKind::Corrupt, "{number}, {at}: {error:?}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}
