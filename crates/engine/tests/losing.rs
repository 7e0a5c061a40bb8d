//! A store whose journal is damaged, opened at the cost of what came after the damage: it is as it was before, and nothing in it is
//! wrong.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{Address, DeleteOptions, ErrorKind, Store};
use support::{Random, bytes, config, get, groups, put, tenant};

const KEYS: u64 = 6;
const STEPS: u64 = 60;

fn try_open(disk: &SimDisk, lose_from: Option<u64>) -> Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let config = Config {
        lose_journal_from: lose_from,
        ..config()
    };
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), config)
}

/// The group that is missing, as a refusal names it.
fn missing(disk: &SimDisk) -> u64 {
    match try_open(disk, None).err() {
        Some(OpenError::Journal { group, .. }) => group,
        other => panic!("not refused: {other:?}"),
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number}").into_bytes()
}

/// What is under each key: a seed and a size.
type Content = BTreeMap<u64, (u64, usize)>;

struct Story {
    disk: SimDisk,
    engine: Engine<SimDisk>,
    /// What there was when the journal had so many groups.
    states: BTreeMap<usize, Content>,
}

/// Values of all sizes put, replaced and removed, one change a group.
async fn story(seed: u64) -> Story {
    let disk = SimDisk::new(seed);
    let engine = try_open(&disk, None).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let mut content = Content::new();
    let mut states = BTreeMap::from([(groups(&disk).len(), content.clone())]);
    let mut random = Random::new(seed);
    for step in 0..STEPS {
        let number = random.below(KEYS);
        let key = key(number);
        let address = Address::object("n", &key);
        if random.below(4) == 0 {
            engine
                .delete(address, DeleteOptions::default())
                .await
                .unwrap();
            content.remove(&number);
        } else {
            let size = [700, 5000, 70_000, 300_000][random.below(4) as usize];
            put(&engine, address, &bytes(step, size)).await.unwrap();
            content.insert(number, (step, size));
        }
        states.insert(groups(&disk).len(), content.clone());
    }
    Story {
        disk,
        engine,
        states,
    }
}

/// Everything is as in `content`, but what was overwritten since may be refused. Says how much was.
async fn check(engine: &Engine<SimDisk>, content: &Content, what: &str) -> u32 {
    let mut refused = 0;
    for number in 0..KEYS {
        let key = key(number);
        let found = get(engine, Address::object("n", &key)).await;
        match (found, content.get(&number)) {
            (Ok(found), Some((seed, size))) => {
                assert!(found == bytes(*seed, *size), "{what}: k{number} is wrong");
            }
            (Err(error), Some(_)) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
                refused += 1;
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{what}"),
            (Ok(_), None) => panic!("{what}: k{number} is there"),
        }
    }
    refused
}

#[tokio::test]
async fn it_is_as_it_was_before_the_damage() {
    let mut refused = 0;
    for seed in 1..5 {
        let Story {
            disk,
            engine,
            states,
        } = story(seed).await;
        let places = groups(&disk);
        let (_, before) = places.split_last().unwrap();
        for (number, at) in before.iter().enumerate().skip(1) {
            let what = format!("seed {seed}, group at {at}");
            // A bit of a group, or a sector of it.
            let damaged = disk.crash(1);
            match number % 2 {
                0 => damaged.rot("data", (at + 30) as u64, 3).unwrap(),
                _ => damaged.spoil("data", *at as u64).unwrap(),
            }
            let group = missing(&damaged);
            for other in [group - 1, group + 1] {
                let opened = try_open(&damaged, Some(other));
                assert!(matches!(opened, Err(OpenError::Journal { .. })), "{what}");
            }
            let opened = try_open(&damaged, Some(group)).unwrap();
            let (_, content) = states.range(..=number).next_back().unwrap();
            refused += check(&opened, content, &what).await;
            // It goes on from there, also over power loss, and needs no leave any more.
            let fresh = bytes(1000, 40_000);
            let mut content = content.clone();
            put(&opened, Address::object("n", &key(0)), &fresh)
                .await
                .unwrap();
            content.insert(0, (1000, 40_000));
            let again = try_open(&damaged.crash(2), None).unwrap();
            check(&again, &content, &what).await;
        }
        drop(engine);
    }
    assert!(
        refused > 0,
        "no space that a lost change had freed was used again"
    );
}

/// Where nothing is, nothing was lost: but that is not known before it was read.
#[tokio::test]
async fn a_sector_behind_the_last_group_that_cannot_be_read() {
    let Story {
        disk,
        engine,
        states,
    } = story(9).await;
    let places = groups(&disk);
    let (_, content) = states.last_key_value().unwrap();
    for behind in [1, 50] {
        let damaged = disk.crash(1);
        let at = places.last().unwrap() + behind * 4096;
        damaged.spoil("data", at as u64).unwrap();
        let group = missing(&damaged);
        drop(try_open(&damaged, Some(group)).unwrap());
        let opened = try_open(&damaged, None).unwrap();
        check(&opened, content, "behind the last").await;
    }
    drop(engine);
}

/// The last value was acknowledged, as nothing in the journal tells; nor would it if power had failed amid its writing.
#[tokio::test]
async fn a_sector_of_the_last_value_that_cannot_be_read() {
    let Story {
        disk,
        engine,
        states,
    } = story(10).await;
    let (_, before) = states.last_key_value().unwrap();
    let last = bytes(1000, 300_000);
    let address = Address::object("n", b"k0");
    put(&engine, address, &last).await.unwrap();
    let damaged = disk.crash(1);
    let data = support::content(&damaged, "data");
    let at = data.windows(64).position(|part| part == &last[..64]);
    damaged.spoil("data", at.unwrap() as u64).unwrap();
    let group = missing(&damaged);
    assert_eq!(missing(&damaged), group, "the refusal changed nothing");
    for other in [group - 1, group + 1] {
        let opened = try_open(&damaged, Some(other));
        assert!(matches!(opened, Err(OpenError::Journal { .. })));
    }
    let opened = try_open(&damaged, Some(group)).unwrap();
    check(&opened, before, "the last value").await;
    drop(opened);
    let opened = try_open(&damaged, None).unwrap();
    check(&opened, before, "the last value, opened again").await;
    drop(engine);
}

/// Two values cannot be read of which the second took the place of the first: what is lost begins with the first.
#[tokio::test]
async fn sectors_of_two_last_values_that_cannot_be_read() {
    let Story {
        disk,
        engine,
        states,
    } = story(11).await;
    let (_, before) = states.last_key_value().unwrap();
    let values = [bytes(1000, 300_000), bytes(1001, 300_000)];
    for value in &values {
        let address = Address::object("n", b"new");
        put(&engine, address, value).await.unwrap();
    }
    let damaged = disk.crash(1);
    let data = support::content(&damaged, "data");
    for value in values {
        let at = data.windows(64).position(|part| part == &value[..64]);
        damaged.spoil("data", at.unwrap() as u64).unwrap();
    }
    let group = missing(&damaged);
    let opened = try_open(&damaged, Some(group)).unwrap();
    check(&opened, before, "the last two values").await;
    drop(engine);
}

#[tokio::test]
async fn an_index_that_is_too_old() {
    let disk = SimDisk::new(3);
    let engine = try_open(&disk, None).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    put(&engine, Address::object("n", &key(0)), &bytes(0, 900))
        .await
        .unwrap();
    engine.close();
    drop(engine);
    let old = support::content(&disk, "index");
    let engine = try_open(&disk, None).unwrap();
    put(&engine, Address::object("n", &key(1)), &bytes(1, 900))
        .await
        .unwrap();
    engine.close();
    drop(engine);
    let engine = try_open(&disk, None).unwrap();
    // Later ones stay behind what is written over the first.
    for number in 2..5 {
        let address = key(number);
        let address = Address::object("n", &address);
        put(&engine, address, &bytes(number, 900)).await.unwrap();
    }
    let damaged = disk.crash(1);
    support::replace(&damaged, "index", &old);
    let group = missing(&damaged);
    let opened = try_open(&damaged, Some(group)).unwrap();
    check(&opened, &Content::from([(0, (0, 900))]), "an old index").await;
    put(&opened, Address::object("n", &key(3)), &bytes(3, 900))
        .await
        .unwrap();
    let again = try_open(&damaged.crash(2), None).unwrap();
    let content = Content::from([(0, (0, 900)), (3, (3, 900))]);
    check(&again, &content, "an old index, used again").await;
    drop((opened, engine));
}
