//! Group commit: changes that wait together share a sync.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use forebay_io::Clock;
use forebay_io::sim::SimDisk;
use forebay_store::{Address, Seal, Store, StoreOptions, Upload};
use parking_lot::{Condvar, Mutex};
use support::{bytes, config, fill, get, open, tenant};
use tokio::task::{JoinSet, yield_now};

/// The journal's thread asks for the time when it begins a group: there it waits while the gate is shut.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Clock for Gate {
    fn unix_millis(&self) -> u64 {
        if thread::current().name() == Some("forebay-journal") {
            let mut shut = self.shut.lock();
            self.opened.wait_while(&mut shut, |shut| *shut);
        }
        1_700_000_000_000
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

#[tokio::test]
async fn changes_that_wait_together_share_a_sync() {
    const WRITERS: usize = 64;
    let gate = Arc::new(Gate::default());
    let engine = open(&SimDisk::new(1), gate.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let before = engine.metrics();
    *gate.shut.lock() = true;
    let asked = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let (engine, asked) = (engine.clone(), asked.clone());
        writers.spawn(async move {
            let key = format!("k{number}");
            let address = Address::object("n", key.as_bytes());
            let upload = engine.store(address, StoreOptions::default()).await;
            let mut upload = upload.unwrap();
            let value = bytes(number as u64, 4096);
            let (buf, _) = fill(upload.buffer(value.len()).await.unwrap(), &value);
            upload.write(buf).await.unwrap();
            asked.fetch_add(1, SeqCst);
            upload.commit(Seal::default()).await.unwrap();
            assert_eq!(get(&engine, address).await.unwrap(), value);
        });
    }
    while asked.load(SeqCst) < WRITERS {
        yield_now().await;
    }
    *gate.shut.lock() = false;
    gate.opened.notify_all();
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
    let after = engine.metrics();
    assert_eq!(after.records - before.records, WRITERS as u64 + 1);
    assert_eq!(
        (after.groups - before.groups, after.syncs - before.syncs),
        (1, 1)
    );
}
