//! What else goes on while values past their time are dropped: changes, quotas, and what is told of usage.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::Clock;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Address, ErrorKind, NamespaceConfig, Quota, Scope, Store, Usage};
use parking_lot::{Condvar, Mutex};
use support::watched::{Touch, Watched};
use support::{bytes, config, open, put, put_until, tenant, uncached};

/// More than one sweep takes.
const MANY: u64 = 600;

/// A namespace with much that is past its time, in an index of which each read takes a millisecond once it is slow; and another with room for one
/// value, which has one that expired after all of that.
struct Slow {
    engine: Engine<Watched>,
    is_slow: Arc<AtomicBool>,
}

impl Slow {
    async fn new() -> Slow {
        let now = 1_700_000_000_000;
        let clock = Arc::new(SimClock::new(now));
        let is_slow = Arc::new(AtomicBool::new(false));
        let disk = Watched::new(SimDisk::new(1), {
            let (clock, is_slow) = (clock.clone(), is_slow.clone());
            move |touch| {
                if touch == Touch::ReadIndex && is_slow.load(SeqCst) {
                    clock.advance(Duration::from_millis(1));
                }
            }
        });
        let engine = open(&disk, clock.clone(), uncached());
        engine.create_namespace("n", tenant("t")).await.unwrap();
        let one = NamespaceConfig {
            quota: Quota {
                objects: Some(1),
                bytes: None,
            },
            ..tenant("u")
        };
        engine.create_namespace("one", one).await.unwrap();
        for number in 0..MANY {
            let key = format!("many/{number}");
            let address = Address::object("n", key.as_bytes());
            put_until(&engine, address, b"value", now + 1000)
                .await
                .unwrap();
        }
        let former = Address::object("one", b"former");
        put_until(&engine, former, b"value", now + 1500)
            .await
            .unwrap();
        engine.checkpoint().await.unwrap();
        clock.advance(Duration::from_secs(2));
        Slow { engine, is_slow }
    }
}

#[tokio::test]
async fn nobody_waits_until_much_is_dropped_of_a_slow_index() {
    let Slow { engine, is_slow } = Slow::new().await;
    is_slow.store(true, SeqCst);
    let before = engine.metrics().records;
    put(&engine, Address::object("n", b"lasting"), b"value")
        .await
        .unwrap();
    let changes = engine.metrics().records - before;
    assert!((2..20).contains(&changes), "{changes}");
    while engine.sweep().await.unwrap() {}
    let changes = engine.metrics().records - before;
    assert!(changes > MANY, "{changes}");
}

/// What others have that is past its time is dropped before.
#[tokio::test]
async fn a_quota_has_the_room_of_what_is_past_its_time() {
    let Slow { engine, .. } = Slow::new().await;
    let used = engine.usage(Scope::Namespace("one")).unwrap();
    assert_eq!(used, Usage::default());
    let [next, another] = [b"1", b"2"].map(|key| Address::object("one", key));
    put(&engine, next, b"value").await.unwrap();
    let refused = put(&engine, another, b"value").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused:?}");
}

/// How often the disk is read to tell what a namespace holds when so much of another was dropped, and is in the index until the next checkpoint.
async fn reads_for_usage(count: u64) -> u64 {
    let now = 1_700_000_000_000;
    let clock = Arc::new(SimClock::new(now));
    let disk = SimDisk::new(1);
    let roomy = Config {
        segment_bytes: Config::default().segment_bytes,
        ..uncached()
    };
    let engine = open(&disk, clock.clone(), roomy);
    engine.create_namespace("n", tenant("t")).await.unwrap();
    engine.create_namespace("other", tenant("u")).await.unwrap();
    let lasting = Address::object("other", b"lasting");
    put(&engine, lasting, b"value").await.unwrap();
    for number in 0..count {
        let key = format!("key/{number}");
        let address = Address::object("n", key.as_bytes());
        put_until(&engine, address, b"value", now + 1000)
            .await
            .unwrap();
    }
    engine.checkpoint().await.unwrap();
    clock.advance(Duration::from_secs(2));
    while engine.sweep().await.unwrap() {}
    let before = disk.operations().reads;
    let used = engine.usage(Scope::Namespace("other")).unwrap();
    assert_eq!(used.objects, 1);
    disk.operations().reads - before
}

#[tokio::test]
async fn what_was_dropped_of_one_namespace_is_not_looked_through_for_another() {
    let (few, many) = (reads_for_usage(50).await, reads_for_usage(3000).await);
    assert!(many <= few + 4, "{few} reads of 50, {many} of 3000");
}

/// A clock at which the journal's thread stands still where it has written a group, which nobody sees yet, while it is to wait.
#[derive(Debug)]
struct Held {
    clock: SimClock,
    disk: SimDisk,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// It asked for the time of day when so much had been written: that is where it begins to decide a group.
    deciding: Option<u64>,
    is_to_wait: bool,
    waits: bool,
}

impl Held {
    fn by_journal(&self, look: impl FnOnce(&mut parking_lot::MutexGuard<'_, State>)) {
        if thread::current().name() == Some("forebay-journal") {
            look(&mut self.state.lock());
        }
    }

    fn shut(&self) {
        self.state.lock().is_to_wait = true;
    }

    /// Until the journal's thread stands still.
    fn wait(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.waits);
    }

    fn open(&self) {
        self.state.lock().is_to_wait = false;
        self.changed.notify_all();
    }
}

impl Clock for Held {
    fn unix_millis(&self) -> u64 {
        self.by_journal(|state| state.deciding = Some(self.disk.operations().writes));
        self.clock.unix_millis()
    }

    fn monotonic(&self) -> Duration {
        self.by_journal(|state| {
            let written = self.disk.operations().writes;
            if state.deciding.is_some_and(|before| before < written) {
                state.deciding = None;
                if state.is_to_wait {
                    state.waits = true;
                    self.changed.notify_all();
                    self.changed.wait_while(state, |state| state.is_to_wait);
                }
            }
        });
        self.clock.monotonic()
    }
}

#[tokio::test]
async fn what_a_sweep_is_about_to_drop_is_not_counted_out_twice() {
    let now = 1_700_000_000_000;
    let disk = SimDisk::new(1);
    let clock = Arc::new(Held {
        clock: SimClock::new(now),
        disk: disk.clone(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let engine = open(&disk, clock.clone(), config());
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let lasting = Address::object("n", b"lasting");
    put(&engine, lasting, &bytes(1, 5000)).await.unwrap();
    let usage = || {
        let of = |scope| engine.usage(scope).unwrap();
        [of(Scope::Namespace("n")), of(Scope::Tenant("t"))]
    };
    let without = usage();
    let brief = Address::object("n", b"brief");
    put_until(&engine, brief, &bytes(2, 3000), now + 1000)
        .await
        .unwrap();
    clock.clock.advance(Duration::from_secs(2));
    assert_eq!(usage(), without);
    clock.shut();
    let sweeping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.sweep().await }
    });
    tokio::task::yield_now().await;
    clock.wait();
    let amid = usage();
    clock.open();
    sweeping.await.unwrap().unwrap();
    assert_eq!((amid, usage()), (without, without));
}
