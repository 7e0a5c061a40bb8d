//! Rows of namespaces, quotas and usage that rotted: a store opens all the same when that is accepted. What is used is counted anew; what
//! is lost is said.

mod support;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::SimDisk;
use forebay_store::{
    Address, DeleteOptions, ErrorKind, NamespaceConfig, Quota, Scope, Space, Store, Usage,
    Versioning,
};
use support::{bytes, check_space, config, content, get, put, tenant, try_open};

const NAMES: [&str; 3] = ["amber", "birch", "cedar"];
const QUOTA: Quota = Quota {
    bytes: Some(0x1122_3344_5566),
    objects: None,
};
/// Each namespace has so many more than the one before.
const VALUES: u64 = 5;
const VALUE_BYTES: usize = 5000;

/// A small index is checked as a whole when it is opened, a large one row by row.
fn checking(index_check_bytes: u64) -> [Config; 2] {
    [false, true].map(|accept_damaged_index| Config {
        index_check_bytes,
        accept_damaged_index,
        ..config()
    })
}

fn number(namespace: usize) -> u32 {
    namespace as u32 + 1
}

/// Values, kept versions and a marker, staged values; all in the index.
async fn filled(disk: &SimDisk) -> Vec<Usage> {
    let engine = try_open(disk, config()).unwrap();
    for (at, name) in NAMES.into_iter().enumerate() {
        let versioned = NamespaceConfig {
            versioning: Versioning::Enabled,
            ..tenant("tenant")
        };
        engine.create_namespace(name, versioned).await.unwrap();
        for key in 0..VALUES * u64::from(number(at)) {
            let address = Address::object(name, b"k");
            put(&engine, address, &bytes(key, VALUE_BYTES))
                .await
                .unwrap();
        }
        let options = DeleteOptions::default();
        let address = Address::object(name, b"k");
        engine.delete(address, options).await.unwrap();
        for (key, size) in [(b"k", 900), (b"p", 6000)] {
            for space in [Space::Objects, Space::Staging] {
                let address = Address {
                    space,
                    ..Address::object(name, key)
                };
                put(&engine, address, &bytes(1, size)).await.unwrap();
            }
        }
    }
    engine.set_tenant_quota("tenant", QUOTA).await.unwrap();
    let used = used(&engine, &NAMES);
    engine.close();
    used
}

fn used(engine: &Engine<SimDisk>, names: &[&str]) -> Vec<Usage> {
    let used = |name: &&str| engine.usage(Scope::Namespace(name)).unwrap();
    names.iter().map(used).collect()
}

fn places(disk: &SimDisk, needle: &[u8]) -> Vec<u64> {
    let index = content(disk, "index");
    let windows = index.windows(needle.len()).enumerate();
    let places = windows.filter(|(_, window)| *window == needle);
    let places: Vec<u64> = places.map(|(at, _)| at as u64).collect();
    assert!(!places.is_empty());
    places
}

/// What a row of table usage holds.
fn usage_row(usage: Usage) -> Vec<u8> {
    [usage.objects.to_le_bytes(), usage.bytes.to_le_bytes()].concat()
}

fn rot(disk: &SimDisk, needle: &[u8], within: u64) {
    for at in places(disk, needle) {
        disk.rot("index", at + within, 2).unwrap();
    }
}

/// Refused until it is accepted; then it opens, says what was damaged, and needs no leave any more.
fn open_damaged(disk: &SimDisk, index_check_bytes: u64, what: &str) -> Engine<SimDisk> {
    let [strict, accepting] = checking(index_check_bytes);
    let refused = try_open(disk, strict.clone()).err();
    assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
    let engine = try_open(disk, accepting).unwrap();
    let findings = engine.findings();
    assert!(
        findings.iter().any(|finding| finding.what.contains(what)),
        "{findings:?}"
    );
    engine.close();
    drop(engine);
    let engine = try_open(disk, strict).unwrap();
    assert!(engine.findings().is_empty());
    engine
}

#[tokio::test]
async fn what_is_used_is_counted_anew() {
    for index_check_bytes in [0, u64::MAX] {
        for lost in 0..NAMES.len() {
            // The value, or the end of the key, which is before it and those of the rows behind.
            for in_key in [false, true] {
                let disk = SimDisk::new(1);
                let before = filled(&disk).await;
                match in_key {
                    false => rot(&disk, &usage_row(before[lost]), 1),
                    true => {
                        let keys: Vec<u8> = (1..=3_u32)
                            .flat_map(|number| number.to_be_bytes())
                            .collect();
                        let needle = [&keys[..], &usage_row(before[0])].concat();
                        rot(&disk, &needle, 4 * lost as u64 + 3);
                    }
                }
                let engine = open_damaged(&disk, index_check_bytes, "counted anew");
                assert_eq!(used(&engine, &NAMES), before, "{lost}, {in_key}");
                let all = before.iter().copied().fold(Usage::default(), Usage::plus);
                assert_eq!(engine.usage(Scope::Tenant("tenant")).unwrap(), all);
                check_space(&engine).await;
            }
        }
    }
}

/// What the journal holds is counted too.
#[tokio::test]
async fn what_is_used_is_counted_anew_under_a_journal() {
    let disk = SimDisk::new(2);
    let before = filled(&disk).await;
    let engine = try_open(&disk, config()).unwrap();
    put(&engine, Address::object(NAMES[2], b"new"), b"value")
        .await
        .unwrap();
    let expected = used(&engine, &NAMES);
    let killed = disk.crash(3);
    drop(engine);
    for usage in [before[1], before[2]] {
        rot(&killed, &usage_row(usage), 1);
    }
    let engine = open_damaged(&killed, 0, "counted anew");
    assert_eq!(used(&engine, &NAMES), expected);
}

#[tokio::test]
async fn a_namespace_whose_row_is_damaged_is_lost() {
    for index_check_bytes in [0, u64::MAX] {
        let disk = SimDisk::new(3);
        let before = filled(&disk).await;
        // Its number, and what else begins its row.
        let row = [
            &number(2).to_le_bytes()[..],
            &1_700_000_000_000_u64.to_le_bytes(),
        ];
        rot(&disk, &row.concat(), 1);
        let engine = open_damaged(&disk, index_check_bytes, "\"cedar\" of table namespace");
        assert_eq!(used(&engine, &NAMES[..2]), before[..2]);
        let address = Address::object(NAMES[2], b"k");
        let kind = get(&engine, address).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::NoSuchNamespace);
        // What it held stays where it is, and is nobody else's.
        for name in ["new", NAMES[2]] {
            let info = engine
                .create_namespace(name, tenant("tenant"))
                .await
                .unwrap();
            assert!(info.id > number(2));
            assert_eq!(used(&engine, &[name]), [Usage::default()]);
        }
        check_space(&engine).await;
    }
}

#[tokio::test]
async fn numbers_are_not_given_twice_when_the_greatest_is_lost() {
    for lost in [None, Some(2)] {
        let disk = SimDisk::new(4);
        filled(&disk).await;
        if let Some(lost) = lost {
            let row = [
                &number(lost).to_le_bytes()[..],
                &1_700_000_000_000_u64.to_le_bytes(),
            ];
            rot(&disk, &row.concat(), 1);
        }
        // Keys lie one behind the other, of which the first is empty; then come the values: the greatest number, and its checksum.
        let greatest = [NAMES.concat().as_bytes(), &number(2).to_le_bytes()].concat();
        rot(&disk, &greatest, NAMES.concat().len() as u64);
        let engine = open_damaged(&disk, 0, "\"\" of table namespace");
        let info = engine
            .create_namespace("new", tenant("tenant"))
            .await
            .unwrap();
        assert_eq!(info.id, number(3));
    }
}

#[tokio::test]
async fn a_quota_whose_row_is_damaged_is_lost() {
    for index_check_bytes in [0, u64::MAX] {
        let disk = SimDisk::new(5);
        let before = filled(&disk).await;
        rot(&disk, &QUOTA.bytes.unwrap().to_le_bytes(), 1);
        let engine = open_damaged(&disk, index_check_bytes, "\"tenant\" of table tenant");
        assert_eq!(engine.tenant_quota("tenant"), Quota::default());
        assert_eq!(used(&engine, &NAMES), before);
        engine.set_tenant_quota("tenant", QUOTA).await.unwrap();
        assert_eq!(engine.tenant_quota("tenant"), QUOTA);
    }
}

/// A page that cannot be read may well be there again.
#[tokio::test]
async fn what_is_used_is_counted_anew_and_namespaces_are_not_given_up_where_a_page_cannot_be_read()
{
    for index_check_bytes in [0, u64::MAX] {
        let disk = SimDisk::new(6);
        let before = filled(&disk).await;
        let names = places(&disk, NAMES.concat().as_bytes());
        for at in places(&disk, &usage_row(before[0])) {
            disk.spoil("index", at).unwrap();
        }
        let [strict, accepting] = checking(index_check_bytes);
        let refused = try_open(&disk, strict).err();
        assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
        let engine = try_open(&disk, accepting.clone()).unwrap();
        let findings = engine.findings();
        let finding = findings.last().unwrap();
        assert!(finding.what.contains("counted anew"), "{findings:?}");
        assert_eq!(used(&engine, &NAMES), before);
        engine.close();
        drop(engine);
        // The page is as it was, but nothing needs it any more.
        let [unchecked, _] = checking(0);
        let engine = try_open(&disk, unchecked.clone()).unwrap();
        assert_eq!(used(&engine, &NAMES), before);
        engine.close();
        drop(engine);
        let readable = disk.crash(1);
        for at in names {
            disk.spoil("index", at).unwrap();
        }
        let refused = try_open(&disk, accepting).err();
        assert!(matches!(refused, Some(OpenError::Store(_))), "{refused:?}");
        let engine = try_open(&readable, unchecked).unwrap();
        assert_eq!(used(&engine, &NAMES), before);
    }
}

const CROWD: u64 = 400;

/// Each namespace has few values but the second, which has many; all in the index.
async fn crowded(disk: &SimDisk) -> Vec<Usage> {
    let engine = try_open(disk, config()).unwrap();
    for name in NAMES {
        engine
            .create_namespace(name, tenant("tenant"))
            .await
            .unwrap();
        let values = if name == NAMES[1] { CROWD } else { VALUES };
        for number in 0..values {
            let key = format!("{name}/{number:06}");
            let address = Address::object(name, key.as_bytes());
            put(&engine, address, &[7; 50]).await.unwrap();
        }
    }
    let used = used(&engine, &NAMES);
    engine.close();
    used
}

/// It opens: of the second namespace nearly all is counted, and the others use what they did `before`.
fn assert_counted(disk: &SimDisk, before: &[Usage]) {
    let [_, accepting] = checking(0);
    let engine = try_open(disk, accepting).unwrap();
    let counted = used(&engine, &NAMES);
    assert_eq!((counted[0], counted[2]), (before[0], before[2]));
    let objects = counted[1].objects;
    assert!((CROWD - 50..CROWD).contains(&objects), "{objects}");
}

/// Entries of one namespace cannot be read: what others use is counted all the same, and so is what it has beside them.
#[tokio::test]
async fn what_is_used_is_counted_around_entries_that_cannot_be_read() {
    let disk = SimDisk::new(7);
    let before = crowded(&disk).await;
    // The first uses as much as the last.
    for used in &before[..2] {
        rot(&disk, &usage_row(*used), 3);
    }
    for at in places(&disk, format!("{}/{:06}", NAMES[1], CROWD / 2).as_bytes()) {
        disk.spoil("index", at).unwrap();
    }
    assert_counted(&disk, &before);
}

/// They are in two places, one of them the end: nothing between those is left out.
#[tokio::test]
async fn what_is_used_is_counted_between_entries_that_cannot_be_read() {
    let disk = SimDisk::new(7);
    let before = crowded(&disk).await;
    rot(&disk, &usage_row(before[1]), 3);
    for (name, number) in [(NAMES[1], CROWD / 4), (NAMES[2], VALUES - 1)] {
        for at in places(&disk, format!("{name}/{number:06}").as_bytes()) {
            disk.spoil("index", at).unwrap();
        }
    }
    let [_, accepting] = checking(0);
    let engine = try_open(&disk, accepting).unwrap();
    let mut there = 0;
    for number in 0..CROWD {
        let key = format!("{}/{number:06}", NAMES[1]);
        let found = get(&engine, Address::object(NAMES[1], key.as_bytes())).await;
        there += u64::from(found.is_ok());
    }
    let counted = used(&engine, &NAMES);
    assert_eq!((counted[0], counted[2]), (before[0], before[2]));
    assert_eq!(counted[1].objects, there);
    assert!((CROWD - 100..CROWD - 1).contains(&there), "{there}");
}

/// They are where one namespace ends and the next begins.
#[tokio::test]
async fn what_a_namespace_uses_is_counted_behind_first_entries_that_cannot_be_read() {
    let disk = SimDisk::new(7);
    let before = crowded(&disk).await;
    rot(&disk, &usage_row(before[1]), 3);
    for at in places(&disk, format!("{}/{:06}", NAMES[1], 0).as_bytes()) {
        disk.spoil("index", at).unwrap();
    }
    assert_counted(&disk, &before);
}

/// It may be before any of the rows that only the journal has.
#[tokio::test]
async fn an_entry_whose_key_is_damaged_is_counted_once() {
    let disk = SimDisk::new(8);
    let roomy = Config {
        segment_bytes: Config::default().segment_bytes,
        ..config()
    };
    let engine = try_open(&disk, roomy.clone()).unwrap();
    for name in NAMES {
        engine
            .create_namespace(name, tenant("tenant"))
            .await
            .unwrap();
    }
    let values: [(&str, &[u8]); 3] = [
        (NAMES[0], b"first"),
        (NAMES[0], b"middle"),
        (NAMES[2], b"last"),
    ];
    for (name, key) in values {
        put(&engine, Address::object(name, key), &[7; 50])
            .await
            .unwrap();
    }
    let before = used(&engine, &NAMES);
    engine.checkpoint().await.unwrap();
    for number in 0..CROWD {
        let key = number.to_be_bytes();
        put(&engine, Address::object(NAMES[1], &key), &[7; 50])
            .await
            .unwrap();
    }
    let killed = disk.crash(1);
    drop(engine);
    rot(&killed, &usage_row(before[0]), 1);
    for at in places(&killed, b"middle") {
        killed.rot("index", at, 6).unwrap();
    }
    let accepting = Config {
        index_check_bytes: 0,
        accept_damaged_index: true,
        ..roomy
    };
    let engine = try_open(&killed, accepting).unwrap();
    let counted = engine.usage(Scope::Namespace(NAMES[0])).unwrap();
    assert_eq!((counted.objects, counted.bytes), (2, 50));
}
