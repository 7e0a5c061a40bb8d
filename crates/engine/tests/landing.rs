//! What lands in a client's memory lands before the client is answered, also when the answer is an error.

mod support;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Waker};

use forebay_io::SystemClock;
use forebay_io::sim::SimDisk;
use forebay_mem::Region;
use forebay_store::{Address, Body, ByteRange, ErrorKind, Store};
use support::watched::{Watched, Watcher};
use support::{bytes, config, open, put, tenant};

/// Has the first read into a client's memory fail, and the others be late.
#[derive(Clone, Default)]
struct Uneven {
    reads: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

impl Watcher for Uneven {
    async fn lands(
        &self,
        read: impl Future<Output = io::Result<usize>> + Send,
    ) -> io::Result<usize> {
        if self.reads.fetch_add(1, SeqCst) == 0 {
            return Err(io::ErrorKind::Other.into());
        }
        self.under_way.fetch_add(1, SeqCst);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let read = read.await;
        self.under_way.fetch_sub(1, SeqCst);
        read
    }
}

#[tokio::test]
async fn an_error_waits_for_what_is_under_way() {
    let uneven = Uneven::default();
    let disk = Watched::by(SimDisk::new(1), uneven.clone());
    let mut config = config();
    config.cache_bytes = 0;
    let engine = open(&disk, Arc::new(SystemClock::default()), config);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    let size = 6 << 20;
    put(&engine, address, &bytes(1, size)).await.unwrap();
    let target = Region::anonymous(size).unwrap().slice(0..size).unwrap();
    let placed = engine.retrieve_into(address, None, ByteRange::Full, target.clone());
    assert_eq!(placed.await.unwrap_err().kind(), ErrorKind::Io);
    assert!(uneven.reads.load(SeqCst) > 1, "several at a time");
    assert_eq!(uneven.under_way.load(SeqCst), 0);
    let placed = engine.retrieve_into(address, None, ByteRange::Full, target.clone());
    placed.await.unwrap();
    let mut found = vec![0; size];
    assert!(target.read(0, &mut found) && found == bytes(1, size));
}

#[tokio::test]
async fn what_is_in_memory_leaves_others_their_turn() {
    let mut config = config();
    config.cache_bytes = 64 << 20;
    let engine = open(&SimDisk::new(1), Arc::new(SystemClock::default()), config);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    let size = 32 << 20;
    put(&engine, address, &bytes(1, size)).await.unwrap();
    let found = engine.retrieve(address, None, ByteRange::Full).await;
    let mut body = found.unwrap().body;
    while body.next().await.unwrap().is_some() {}
    let target = Region::anonymous(size).unwrap().slice(0..size).unwrap();
    let mut placing = pin!(engine.retrieve_into(address, None, ByteRange::Full, target.clone()));
    let mut turns = 1;
    let mut context = Context::from_waker(Waker::noop());
    while placing.as_mut().poll(&mut context).is_pending() {
        turns += 1;
        tokio::task::yield_now().await;
    }
    assert!(turns >= 4, "{turns}");
    let mut found = vec![0; size];
    assert!(target.read(0, &mut found) && found == bytes(1, size));
}

/// Its space is free from when it is replaced: what a reader found in memory keeps nothing but its bytes.
#[tokio::test]
async fn what_was_found_in_memory_stays_what_it_was() {
    let engine = open(&SimDisk::new(1), Arc::new(SystemClock::default()), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let address = Address::object("n", b"k");
    for (seed, size) in [(1, 4096), (2, 200_000), (3, 1 << 20)] {
        let old = bytes(seed, size);
        put(&engine, address, &old).await.unwrap();
        let range = ByteRange::Inclusive(1000, size as u64 - 2);
        let target = Region::anonymous(size).unwrap().slice(0..size).unwrap();
        // The first look leaves it in memory, where it is not there since it was stored.
        for _ in 0..2 {
            let placed = engine.retrieve_into(address, None, range, target.clone());
            placed.await.unwrap();
            let mut placed = vec![0; size - 1001];
            assert!(target.read(0, &mut placed) && placed == old[1000..size - 1]);
        }
        let mut body = engine.retrieve(address, None, range).await.unwrap().body;
        for round in 10..20 {
            put(&engine, address, &bytes(round, size)).await.unwrap();
        }
        engine.checkpoint().await.unwrap();
        let mut read = Vec::new();
        while let Some(buf) = body.next().await.unwrap() {
            read.extend_from_slice(&buf);
        }
        assert!(read == old[1000..size - 1], "{size}");
    }
    assert!(engine.metrics().cache_hits > 0);
    assert!(engine.findings().is_empty());
}
