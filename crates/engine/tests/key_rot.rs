//! Keys of the index that rotted, beside rows that are in memory alone: a list is in order, without gaps and repetitions, or refused.

mod support;

use std::sync::Arc;

use forebay_engine::{Config, Engine};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{Address, After, ErrorKind, Item, ListOptions, Result, Space, Store};
use support::{bytes, config, content, put, tenant};

const KEYS: u64 = 240;
const PAGE: usize = 4096;

fn open(disk: &SimDisk) -> Engine<SimDisk> {
    let unchecked = Config {
        index_check_bytes: 0,
        recent_bytes: 0,
        cache_bytes: 0,
        ..config()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), unchecked).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Every second key, in the index alone.
async fn filled(disk: &SimDisk) {
    let engine = open(disk);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in (0..KEYS).step_by(2) {
        put(
            &engine,
            Address::object("n", &key(number)),
            &bytes(number, 40),
        )
        .await
        .unwrap();
    }
    engine.close();
}

/// Where keys are in the index: what leads to a page, and some of the rows.
fn places(disk: &SimDisk) -> Vec<usize> {
    let index = content(disk, "index");
    let starts = index.windows(4).enumerate();
    let starts = starts.filter(|(_, window)| *window == b"key0");
    let is_branch = |at: &usize| index[at / PAGE * PAGE] == 2;
    let (branches, rows): (Vec<_>, Vec<_>) = starts.map(|(at, _)| at).partition(is_branch);
    assert!(!branches.is_empty());
    let step = rows.len() / 25;
    branches
        .into_iter()
        .chain(rows.into_iter().step_by(step))
        .collect()
}

/// A key before all others, one behind, and neighbours: byte of the key, and bit.
const FLIPS: [(usize, u8); 5] = [(0, 5), (0, 2), (7, 1), (8, 1), (8, 3)];

async fn page(engine: &Engine<SimDisk>, after: After<'_>, limit: usize) -> Result<Vec<Vec<u8>>> {
    let options = ListOptions {
        after,
        limit,
        ..ListOptions::of("n", Space::Objects)
    };
    let page = engine.list(options).await?;
    let keys = page.items.into_iter().map(|item| match item {
        Item::Value(key, _) => key.to_vec(),
        Item::Prefix(_) => panic!("there is no delimiter"),
    });
    Ok(keys.collect())
}

fn is_damage<T>(found: &Result<T>) -> bool {
    found
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::Corrupt)
}

#[tokio::test]
async fn a_list_leaves_out_nothing_and_repeats_nothing() {
    let disk = SimDisk::new(1);
    filled(&disk).await;
    let mut refused = 0;
    for (turn, place) in places(&disk).into_iter().enumerate() {
        for (within, bit) in FLIPS {
            let rotten = disk.crash(turn as u64);
            rotten.rot("index", (place + within) as u64, bit).unwrap();
            let engine = open(&rotten);
            let mut there: Vec<Vec<u8>> = (0..KEYS).step_by(2).map(key).collect();
            for number in (0..KEYS).filter(|number| number % 8 == 1 || number % 8 == 4) {
                let value = bytes(number, 60);
                // Beside a row that is damaged nobody can tell whether there is one.
                match put(&engine, Address::object("n", &key(number)), &value).await {
                    Ok(_) => there.push(key(number)),
                    put => assert!(is_damage(&put), "{number}: {put:?}"),
                }
            }
            there.sort();
            there.dedup();
            for limit in [1, 5, 1000] {
                let mut last = None;
                let mut seen = 0;
                loop {
                    let after = last.as_deref().map_or(After::Start, After::Key);
                    let listed = page(&engine, after, limit).await;
                    let expected = &there[seen..there.len().min(seen + limit)];
                    match listed {
                        Ok(keys) => assert_eq!(keys, expected, "byte {within} at {place}"),
                        listed => {
                            assert!(is_damage(&listed), "{listed:?}");
                            refused += 1;
                        }
                    }
                    // After what is refused it goes on, wherever that is.
                    seen += expected.len();
                    match expected.last() {
                        Some(key) => last = Some(key.clone()),
                        None => break,
                    }
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}
