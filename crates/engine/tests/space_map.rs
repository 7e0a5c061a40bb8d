//! Rows of the map of space that rotted: a store opens all the same when that is accepted, and gives out nothing that a value has.

mod support;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::SimDisk;
use forebay_store::{Address, Attributes, DeleteOptions, ErrorKind, Seal, Store, StoreOptions};
use support::{
    bytes, check_space, config, get, places_of_map, put, put_with, rot_in_index, tenant, try_open,
};

const VALUES: u64 = 12;
const VALUE_BYTES: usize = 600_000;

fn accepting() -> Config {
    Config {
        accept_damaged_index: true,
        ..config()
    }
}

fn mark() -> Vec<u8> {
    bytes(1000, 200)
}

/// Values with a hole between them; all of it is in the index.
async fn filled(disk: &SimDisk) {
    let engine = try_open(disk, config()).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    for number in 0..VALUES as u8 {
        let value = bytes(u64::from(number), VALUE_BYTES);
        let attributes = Attributes::builder().set("mark", mark()).build().unwrap();
        let seal = Seal {
            attributes: match number {
                0 => attributes,
                _ => Attributes::default(),
            },
            ..Seal::default()
        };
        let options = StoreOptions::default();
        put_with(
            &engine,
            Address::object("n", &[number]),
            &value,
            options,
            seal,
        )
        .await
        .unwrap();
    }
    let options = DeleteOptions::default();
    engine
        .delete(Address::object("n", &[4]), options)
        .await
        .unwrap();
    engine.checkpoint().await.unwrap();
    engine.close();
}

fn rot_value(disk: &SimDisk) {
    for at in places_of_map(disk) {
        disk.rot("index", at + 7, 2).unwrap();
    }
}

fn rot_key(disk: &SimDisk) {
    for at in places_of_map(disk) {
        disk.rot("index", at - 1, 2).unwrap();
    }
}

async fn right(engine: &Engine<SimDisk>, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let address = [number as u8];
        let value = get(engine, Address::object("n", &address)).await.unwrap();
        assert!(value == bytes(number, VALUE_BYTES), "{number}");
    }
}

#[tokio::test]
async fn what_a_damaged_row_said_is_found_again() {
    for (turn, rot) in [rot_value, rot_key].into_iter().enumerate() {
        for index_check_bytes in [0, u64::MAX] {
            let disk = SimDisk::new(1);
            filled(&disk).await;
            rot(&disk);
            let checking = |config| Config {
                index_check_bytes,
                ..config
            };
            let refused = try_open(&disk, checking(config())).err();
            assert!(matches!(refused, Some(OpenError::Index(_))), "{refused:?}");
            let engine = try_open(&disk, checking(accepting())).unwrap();
            let findings = engine.findings();
            let finding = findings.last().unwrap();
            assert!(finding.what.contains("made anew"), "{turn}: {findings:?}");
            check_space(&engine).await;
            // Room for some of them is in the hole.
            for number in VALUES..VALUES + 4 {
                let value = bytes(number, VALUE_BYTES);
                put(&engine, Address::object("n", &[number as u8]), &value)
                    .await
                    .unwrap();
            }
            right(&engine, (0..VALUES + 4).filter(|number| *number != 4)).await;
            check_space(&engine).await;
            engine.close();
            drop(engine);
            // It is whole again.
            let engine = try_open(&disk, checking(config())).unwrap();
            right(&engine, (0..VALUES + 4).filter(|number| *number != 4)).await;
            check_space(&engine).await;
        }
    }
}

/// What the journal holds is said on top of what was found.
#[tokio::test]
async fn what_a_damaged_row_said_is_found_again_under_a_journal() {
    let disk = SimDisk::new(2);
    filled(&disk).await;
    let engine = try_open(&disk, config()).unwrap();
    let options = DeleteOptions::default();
    engine
        .delete(Address::object("n", &[7]), options)
        .await
        .unwrap();
    for number in VALUES..VALUES + 2 {
        let value = bytes(number, VALUE_BYTES);
        put(&engine, Address::object("n", &[number as u8]), &value)
            .await
            .unwrap();
    }
    let killed = disk.crash(3);
    drop(engine);
    rot_value(&killed);
    let engine = try_open(&killed, accepting()).unwrap();
    let there = (0..VALUES + 2).filter(|number| ![4, 7].contains(number));
    right(&engine, there).await;
    check_space(&engine).await;
}

/// A value's entry is damaged too: where its bytes are nothing tells.
#[tokio::test]
async fn what_nothing_tells_of_is_not_given_out() {
    let disk = SimDisk::new(4);
    filled(&disk).await;
    rot_value(&disk);
    rot_in_index(&disk, &mark()[50..150]);
    let engine = try_open(&disk, accepting()).unwrap();
    let findings = engine.findings();
    let finding = findings.last().unwrap();
    assert!(finding.what.contains("stay taken"), "{findings:?}");
    for number in VALUES..VALUES + 4 {
        let value = bytes(number, VALUE_BYTES);
        put(&engine, Address::object("n", &[number as u8]), &value)
            .await
            .unwrap();
    }
    let there = || (1..VALUES + 4).filter(|number| *number != 4);
    right(&engine, there()).await;
    let damaged = get(&engine, Address::object("n", &[0])).await.unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corrupt);
    // What stays taken is what there was, and no more.
    let deleted = engine.delete(Address::object("n", &[0]), DeleteOptions::default());
    deleted.await.unwrap();
    engine.checkpoint().await.unwrap();
    let audit = engine.audit().unwrap();
    assert!(audit.leaked > 0, "{audit:?}");
    assert_eq!(audit.doubled, 0);
    engine.close();
    drop(engine);
    let engine = try_open(&disk, config()).unwrap();
    assert!(engine.findings().is_empty());
    right(&engine, there()).await;
}
