//! Values past their time: they count no more, and what they took is used again.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::Clock;
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::PAGE_BYTES;
use forebay_store::{
    Address, Attributes, DeleteOptions, ErrorKind, ListOptions, Meta, NamespaceConfig, Scope, Seal,
    Source, Space, Store, StoreOptions, Usage,
};
use support::{
    bytes, check_space, config, get, open, put, put_with, rot_in_index, spoil_in_index, tenant,
};

/// Inline, small, of one extent, of several.
const SIZES: [usize; 4] = [900, 3000, 200_000, 3_000_000];
/// More than one sweep takes.
const MANY: u64 = 600;
/// More than is looked at in one go.
const CROWD: u64 = 5000;

async fn put_until(engine: &Engine<SimDisk>, key: &str, value: &[u8], expires: u64) -> Meta {
    let address = Address::object("n", key.as_bytes());
    support::put_until(engine, address, value, expires)
        .await
        .unwrap()
        .meta
}

async fn swept(engine: &Engine<SimDisk>) {
    while engine.sweep().await.unwrap() {}
    check_space(engine).await;
}

fn taken(engine: &Engine<SimDisk>) -> u64 {
    let metrics = engine.metrics();
    metrics.space_bytes - metrics.space_free_bytes
}

#[tokio::test]
async fn what_is_past_its_time_counts_no_more_and_gives_its_space_back() {
    let now = 1_700_000_000_000;
    let clock = Arc::new(SimClock::new(now));
    let disk = SimDisk::new(1);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let brief = NamespaceConfig {
        ttl_ms: Some(1000),
        ..tenant("t")
    };
    engine.create_namespace("brief", brief).await.unwrap();
    let lasting = bytes(1, 5000);
    put(&engine, Address::object("n", b"lasting"), &lasting)
        .await
        .unwrap();
    swept(&engine).await;
    let (usage, space) = (engine.usage(Scope::Tenant("t")).unwrap(), taken(&engine));
    for (at, size) in SIZES.into_iter().enumerate() {
        let value = bytes(at as u64, size);
        put_until(&engine, &format!("own/{at}"), &value, now + 1000).await;
        let key = [at as u8 + 1];
        put(&engine, Address::object("brief", &key), &value)
            .await
            .unwrap();
    }
    for number in 0..MANY {
        put_until(&engine, &format!("many/{number}"), &[7; 3000], now + 1000).await;
    }
    let full = engine.usage(Scope::Tenant("t")).unwrap();
    assert_eq!(full.objects, usage.objects + 2 * SIZES.len() as u64 + MANY);
    clock.advance(Duration::from_secs(2));
    swept(&engine).await;
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), usage);
    assert_eq!(
        engine.usage(Scope::Namespace("brief")).unwrap(),
        Usage::default()
    );
    assert_eq!(taken(&engine), space);
    drop(engine);
    let engine = open(&disk.crash(2), clock, config());
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), usage);
    assert_eq!(taken(&engine), space);
    let found = get(&engine, Address::object("n", b"lasting")).await;
    assert_eq!(found.unwrap(), lasting);
}

/// Rows of the index that rotted, and values whose rows did: neither stops the others, nor the store when it opens.
#[tokio::test]
async fn what_is_damaged_does_not_keep_the_rest_from_expiring() {
    let now = 1_700_000_000_000;
    let clock = Arc::new(SimClock::new(now));
    let disk = SimDisk::new(1);
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let namespace = engine.namespace("n").unwrap().id;
    let value = bytes(1, 1500);
    let key = |number: u64| format!("key/{number}");
    for number in 0..8 {
        put_until(&engine, &key(number), &value, now + 1000 + number).await;
    }
    // A value of two parts has a layout of its own.
    for part in [b"part/1", b"part/2"] {
        let address = Address {
            space: Space::Staging,
            ..Address::object("n", part)
        };
        put(&engine, address, &bytes(2, 4321)).await.unwrap();
    }
    let seal = Seal {
        expires: Some(now + 1004),
        ..Seal::default()
    };
    let sources = [Source::any(b"part/1"), Source::any(b"part/2")];
    let joined = Address::object("n", b"joined");
    let options = StoreOptions::default();
    engine
        .compose(joined, &sources, &[], options, seal)
        .await
        .unwrap();
    let marked = Seal {
        expires: Some(now + 1005),
        attributes: Attributes::builder()
            .set("mark", bytes(3, 200))
            .build()
            .unwrap(),
        ..Seal::default()
    };
    let address = Address::object("n", b"marked");
    put_with(&engine, address, &value, StoreOptions::default(), marked)
        .await
        .unwrap();
    drop(engine);
    let row_of = |key: &str| {
        let size = 1500_u64.to_le_bytes();
        [&size[..], &namespace.to_be_bytes(), &[0], key.as_bytes()].concat()
    };
    // The first to expire and one amid the others; and where one value's bytes are, and another's entry.
    rot_in_index(&disk, &row_of(&key(0)));
    rot_in_index(&disk, &row_of(&key(3)));
    rot_in_index(
        &disk,
        &[&2_u32.to_le_bytes()[..], &4321_u64.to_le_bytes()].concat(),
    );
    rot_in_index(&disk, &bytes(3, 200)[50..150]);
    let unchecked = Config {
        index_check_bytes: 0,
        ..config()
    };
    let engine = open(&disk, clock.clone(), unchecked);
    let lasting = Address::object("n", b"a lasting one");
    put(&engine, lasting, &value).await.unwrap();
    clock.advance(Duration::from_secs(2));
    while engine.sweep().await.unwrap() {}
    let noted = engine.metrics().corrupt_blocks;
    assert_eq!(noted, 4, "{:?}", engine.findings());
    let mut keys: Vec<_> = engine.findings().into_iter().map(|f| f.key).collect();
    keys.sort();
    assert_eq!(keys, [&b""[..], b"", b"joined", b"marked"]);
    // What is left: what rotted, and what does not expire. Of rows that rotted nothing tells what they let go.
    let left = engine.usage(Scope::Namespace("n")).unwrap();
    assert_eq!(left.objects, 3);
    // What expires later, or earlier, is dropped all the same, and nothing is noted again.
    put_until(&engine, "an early one", &value, now + 1).await;
    put_until(&engine, "a late one", &value, now + 10_000).await;
    clock.advance(Duration::from_secs(20));
    while engine.sweep().await.unwrap() {}
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), left);
    assert_eq!(engine.metrics().corrupt_blocks, noted);
    assert!(!engine.metrics().read_only);
}

/// Values of which each expires a second after the one before it, in the index alone. Every other one has space of its own.
struct Series {
    disk: SimDisk,
    clock: Arc<SimClock>,
    engine: Engine<SimDisk>,
    config: Config,
    namespace: u32,
}

impl Series {
    const COUNT: u64 = 400;

    /// What cannot be read is not hidden by memory.
    async fn new() -> Series {
        Series::cached(0).await
    }

    async fn cached(index_cache_bytes: usize) -> Series {
        let now = 1_700_000_000_000;
        let clock = Arc::new(SimClock::new(now));
        let disk = SimDisk::new(1);
        let config = Config {
            index_cache_bytes,
            index_check_bytes: 0,
            recent_bytes: 0,
            ..config()
        };
        let engine = open(&disk, clock.clone(), config.clone());
        engine.create_namespace("n", tenant("t")).await.unwrap();
        let namespace = engine.namespace("n").unwrap().id;
        for number in 0..Series::COUNT {
            let expires = now + 1000 * (number + 1);
            put_until(
                &engine,
                &Series::key(number),
                &Series::value(number),
                expires,
            )
            .await;
        }
        engine.close();
        drop(engine);
        Series {
            engine: open(&disk, clock.clone(), config.clone()),
            disk,
            clock,
            config,
            namespace,
        }
    }

    fn key(number: u64) -> String {
        format!("key/{number:06}")
    }

    fn value(number: u64) -> Vec<u8> {
        bytes(number, if number.is_multiple_of(2) { 50 } else { 3000 })
    }

    /// The row of table expiry that names a value.
    fn row(&self, number: u64) -> Vec<u8> {
        let size = Series::value(number).len() as u64;
        let (size, namespace) = (size.to_le_bytes(), self.namespace.to_be_bytes());
        [&size[..], &namespace, &[0], Series::key(number).as_bytes()].concat()
    }

    /// How many values with space of their own there are.
    fn left(&self) -> u64 {
        taken(&self.engine) / PAGE_BYTES as u64
    }

    /// As time goes by all of them expire.
    async fn pass(&self) {
        for _ in 0..Series::COUNT / 8 + 2 {
            self.clock.advance(Duration::from_secs(8));
            while self.engine.sweep().await.unwrap() {}
            self.engine.checkpoint().await.unwrap();
        }
        // What readers kept comes back two looks later.
        for _ in 0..4 {
            self.engine.sweep().await.unwrap();
        }
        assert!(!self.engine.metrics().read_only);
    }
}

/// The entry of a value cannot be read, with those beside it.
#[tokio::test]
async fn a_value_that_cannot_be_read_does_not_keep_the_rest_from_expiring() {
    let series = Series::new().await;
    assert_eq!(series.left(), Series::COUNT / 2);
    let key = Series::key(100);
    let address = Address::object("n", key.as_bytes());
    let crc = series.engine.stat(address, None).await.unwrap().crc64nvme;
    spoil_in_index(&series.disk, &crc.to_le_bytes());
    series.pass().await;
    let findings = series.engine.findings();
    assert!((1..80).contains(&findings.len()), "{findings:?}");
    assert!(findings.iter().any(|found| found.key == key));
    assert!(series.left() < 40, "{}", series.left());
}

/// It is found out once for all that is there.
#[tokio::test]
async fn what_cannot_be_read_is_looked_at_again_with_few_reads() {
    let series = Series::cached(1 << 20).await;
    let key = Series::key(100);
    let address = Address::object("n", key.as_bytes());
    let crc = series.engine.stat(address, None).await.unwrap().crc64nvme;
    series.engine.close();
    spoil_in_index(&series.disk, &crc.to_le_bytes());
    let series = Series {
        engine: open(&series.disk, series.clock.clone(), series.config.clone()),
        ..series
    };
    series.pass().await;
    let before = series.disk.operations().reads;
    series.clock.advance(Duration::from_secs(3600));
    while series.engine.sweep().await.unwrap() {}
    let reads = series.disk.operations().reads - before;
    assert!((1..20).contains(&reads), "{reads}");
}

/// The bytes of small values cannot be read: they need not be.
#[tokio::test]
async fn a_value_whose_bytes_cannot_be_read_expires() {
    let series = Series::new().await;
    spoil_in_index(&series.disk, &Series::value(100));
    series.pass().await;
    assert_eq!(series.left(), 0);
    let used = series.engine.usage(Scope::Namespace("n")).unwrap();
    assert_eq!(used, Usage::default());
    assert_eq!(series.engine.findings(), []);
}

/// For a while there is no way to the index.
#[tokio::test]
async fn what_could_not_be_read_for_a_while_expires_later() {
    let series = Series::new().await;
    series.clock.advance(Duration::from_secs(8));
    series.disk.set_faults(Faults {
        read_error: 1.0,
        ..Faults::default()
    });
    while series.engine.sweep().await.unwrap() {}
    series.disk.set_faults(Faults::default());
    series.pass().await;
    assert_eq!(series.left(), 0);
    assert_eq!(
        series.engine.usage(Scope::Namespace("n")).unwrap(),
        Usage::default()
    );
}

/// What says when values expire cannot be read, of some of them.
#[tokio::test]
async fn times_of_expiry_that_cannot_be_read_are_in_the_way_of_their_values_alone() {
    for number in [0, 150] {
        let mut series = Series::new().await;
        spoil_in_index(&series.disk, &series.row(number));
        if number == 0 {
            // They are the first that a store looks for when it opens.
            series.engine.close();
            series.engine = open(&series.disk, series.clock.clone(), series.config.clone());
        }
        let lasting = Address::object("n", b"lasting");
        put(&series.engine, lasting, &[1; 50]).await.unwrap();
        series.pass().await;
        // Those of one page, and of the minute behind it.
        assert!(
            (1..(100 + 60) / 2).contains(&series.left()),
            "{number}: {}",
            series.left()
        );
        let before = series.left();
        let later = series.clock.unix_millis() + 90_000;
        put_until(&series.engine, "later", &[2; 3000], later).await;
        series.clock.advance(Duration::from_secs(100));
        swept(&series.engine).await;
        assert_eq!(series.left(), before, "{number}");
        assert_eq!(get(&series.engine, lasting).await.unwrap(), [1; 50]);
    }
}

/// There is no way to the index for a while, and to the first that expires never.
#[tokio::test]
async fn what_could_not_be_read_for_a_while_behind_what_is_lost_expires_later() {
    let series = Series::new().await;
    spoil_in_index(&series.disk, &series.row(0));
    for is_fault in [false, true, false] {
        let faults = Faults {
            read_error: if is_fault { 1.0 } else { 0.0 },
            ..Faults::default()
        };
        series.disk.set_faults(faults);
        for _ in 0..10 {
            series.clock.advance(Duration::from_secs(8));
            while series.engine.sweep().await.unwrap() {}
        }
    }
    series.pass().await;
    series.clock.advance(Duration::from_secs(3600));
    swept(&series.engine).await;
    // Those of one page.
    assert!((1..50).contains(&series.left()), "{}", series.left());
}

/// A namespace in which very much is past its time, and one value is not, behind all of that.
async fn crowded(engine: &Engine<SimDisk>, clock: &SimClock) {
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let expires = clock.unix_millis() + 1000;
    for number in 0..CROWD {
        put_until(engine, &format!("key/{number:06}"), b"value", expires).await;
    }
    put(engine, Address::object("n", b"last"), b"value")
        .await
        .unwrap();
    clock.advance(Duration::from_secs(2));
}

/// Nobody else waits until all of it is looked at.
#[tokio::test]
async fn a_namespace_is_deleted_although_much_of_it_is_being_dropped() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&SimDisk::new(1), clock.clone(), config());
    crowded(&engine, &clock).await;
    let refused = engine.delete_namespace("n").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NamespaceNotEmpty, "{refused:?}");
    let last = Address::object("n", b"last");
    engine.delete(last, DeleteOptions::default()).await.unwrap();
    engine.delete_namespace("n").await.unwrap();
    swept(&engine).await;
    assert_eq!(taken(&engine), 0);
}

/// Nor are values in its way that are gone, however many they are.
#[tokio::test]
async fn a_namespace_is_deleted_once_it_was_emptied() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let roomy = Config {
        segment_bytes: Config::default().segment_bytes,
        ..config()
    };
    let engine = open(&SimDisk::new(1), clock, roomy);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let keys: Vec<_> = (0..CROWD).map(|number| number.to_be_bytes()).collect();
    for key in &keys {
        put(&engine, Address::object("n", key), b"value")
            .await
            .unwrap();
    }
    for key in &keys {
        let address = Address::object("n", key);
        engine
            .delete(address, DeleteOptions::default())
            .await
            .unwrap();
    }
    engine.delete_namespace("n").await.unwrap();
}

/// What is put there while it is being deleted keeps it.
#[tokio::test]
async fn a_namespace_that_is_not_empty_any_more_is_not_deleted() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&SimDisk::new(1), clock.clone(), config());
    crowded(&engine, &clock).await;
    let last = Address::object("n", b"last");
    engine.delete(last, DeleteOptions::default()).await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut deleting = pin!(engine.delete_namespace("n"));
    assert!(deleting.as_mut().poll(&mut context).is_pending());
    engine.settle().await.unwrap();
    // It has begun to look.
    assert!(deleting.as_mut().poll(&mut context).is_pending());
    let first = Address::object("n", b"a first one");
    put(&engine, first, b"value").await.unwrap();
    let refused = deleting.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NamespaceNotEmpty, "{refused:?}");
}

/// Nobody else waits for a list that shows nothing of it.
#[tokio::test]
async fn a_list_of_what_is_being_dropped_gives_others_a_turn() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = open(&SimDisk::new(2), clock.clone(), config());
    crowded(&engine, &clock).await;
    let options = || ListOptions::of("n", Space::Objects);
    let mut list = pin!(engine.list(options()));
    let mut versions = pin!(engine.list_versions(options()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(list.as_mut().poll(&mut context).is_pending());
    assert!(versions.as_mut().poll(&mut context).is_pending());
    assert_eq!(list.await.unwrap().items.len(), 1);
    assert_eq!(versions.await.unwrap().items.len(), 1);
}
