//! Uploads that outlive their store: another one on the same directory never finds their bytes where it put its own.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::{Engine, EngineUpload, OpenError};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{Address, ErrorKind, Seal, Store, StoreOptions, Upload};
use support::{bytes, config, fill, get, put, tenant};

const EXTENT_BYTES: usize = 1 << 20;
const VALUES: u8 = 2;

fn try_open(disk: &SimDisk) -> Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), config())
}

async fn begun(engine: &Engine<SimDisk>) -> EngineUpload<SimDisk> {
    let address = Address::object("n", b"old");
    let options = StoreOptions::default();
    engine.store(address, options).await.unwrap()
}

async fn send(upload: &mut EngineUpload<SimDisk>) -> forebay_store::Result<()> {
    let value = bytes(1, EXTENT_BYTES);
    let (buf, len) = fill(upload.buffer(value.len()).await?, &value);
    assert_eq!(len, EXTENT_BYTES);
    upload.write(buf).await
}

/// Values of the next store in as much space as the upload would have taken.
async fn stored(engine: &Engine<SimDisk>) {
    for number in 0..VALUES {
        let value = bytes(10 + u64::from(number), EXTENT_BYTES);
        put(engine, Address::object("n", &[number]), &value)
            .await
            .unwrap();
    }
}

async fn check(engine: &Engine<SimDisk>) {
    assert_eq!(engine.scrub(|_| ()).await.unwrap().damaged, 0);
    for number in 0..VALUES {
        let found = get(engine, Address::object("n", &[number])).await.unwrap();
        assert!(found == bytes(10 + u64::from(number), EXTENT_BYTES));
    }
}

#[tokio::test]
async fn an_upload_writes_nothing_after_its_store_closed() {
    let disk = SimDisk::new(1);
    let former = try_open(&disk).unwrap();
    former.create_namespace("n", tenant("t")).await.unwrap();
    let mut upload = begun(&former).await;
    former.close();
    let engine = try_open(&disk).unwrap();
    stored(&engine).await;
    let refused = send(&mut upload).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert!(upload.commit(Seal::default()).await.is_err());
    check(&engine).await;
}

/// Tells whether the directory was still held when the store had closed.
async fn closes_amid_a_write(seed: u64) -> bool {
    let disk = SimDisk::new(seed);
    let former = try_open(&disk).unwrap();
    former.create_namespace("n", tenant("t")).await.unwrap();
    let mut upload = begun(&former).await;
    send(&mut upload).await.unwrap();
    former.close();
    let held = match try_open(&disk) {
        // Its write had ended.
        Ok(engine) => {
            stored(&engine).await;
            assert!(upload.commit(Seal::default()).await.is_err());
            check(&engine).await;
            return false;
        }
        Err(OpenError::Locked(_)) => true,
        Err(error) => panic!("{error:?}"),
    };
    match seed % 2 {
        0 => drop(upload),
        _ => assert!(upload.commit(Seal::default()).await.is_err()),
    }
    let begun = Instant::now();
    let engine = loop {
        match try_open(&disk) {
            Err(OpenError::Locked(_)) if begun.elapsed() < Duration::from_secs(60) => {
                thread::sleep(Duration::from_millis(1));
            }
            opened => break opened.unwrap(),
        }
    };
    stored(&engine).await;
    check(&engine).await;
    held
}

#[tokio::test]
async fn a_store_lets_its_directory_go_when_the_last_write_has_ended() {
    let mut held = 0;
    for seed in 0..16 {
        held += u32::from(closes_amid_a_write(seed).await);
    }
    assert!(held > 0);
}
