//! Several processes on one store: one applies the policies, and all know what the others' readers want.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, MemoryStore, NamespaceConfig, Object, Result, Store, VersionId, Versioning,
};
use forebay_tier::cold::{Cold, Policy};
use tokio::sync::Semaphore;

use crate::support::{World, content, drain, object, one_of};

const DAY: u64 = 24 * 3600 * 1000;
const MINUTE: u64 = 60_000;
/// Longer than anything that a process tells only now and then stays untold.
const HOUR: u64 = 60 * MINUTE;
const AGREED: &str = "agreed";

/// A store with a policy, and two processes on it.
async fn two(policy: &Policy) -> (World, [Cold<MemoryStore>; 2]) {
    let world = World::new(Versioning::Off).await;
    let config = NamespaceConfig {
        tenant: "system".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = world.hot.create_namespace(AGREED, config);
    made.await.expect("namespace");
    world.policy(policy).await;
    let process = || {
        let far = Arc::new(world.far.clone());
        one_of(Some(AGREED), DAY, world.hot.clone(), far, &world.clock)
    };
    let both = [process(), process()];
    (world, both)
}

async fn pass(process: &Cold<MemoryStore>) {
    process.mover().expect("a bucket").run_all().await;
}

async fn read(process: &Cold<MemoryStore>, key: &str) -> Vec<u8> {
    let found = process.retrieve(object(key), None, ByteRange::Full);
    drain(found.await.expect("there")).await.expect("read")
}

fn everything() -> Policy {
    Policy {
        larger_than: 0,
        ..Policy::default()
    }
}

#[tokio::test]
async fn one_applies_policies_until_it_is_gone() {
    let (world, [one, other]) = two(&everything()).await;
    world.put("first", b"bytes").await;
    pass(&one).await;
    assert!(world.is_cold("first").await);
    world.put("second", b"bytes").await;
    pass(&other).await;
    assert!(!world.is_cold("second").await, "it is not its turn");
    // It was not heard of for long enough.
    world.clock.advance(26 * MINUTE);
    pass(&other).await;
    assert!(world.is_cold("second").await);
    world.put("third", b"bytes").await;
    pass(&one).await;
    assert!(!world.is_cold("third").await, "it was too late");
    // Who leaves gives its turn back; who never had it takes nothing away.
    assert!(one.mover().expect("a bucket").close().await);
    pass(&one).await;
    assert!(!world.is_cold("third").await);
    assert!(other.mover().expect("a bucket").close().await);
    pass(&one).await;
    assert!(world.is_cold("third").await);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_gives_its_turn_back_whether_or_not_the_far_side_answers() {
    let (world, [one, other]) = two(&everything()).await;
    world.put("first", b"bytes").await;
    pass(&one).await;
    assert!(world.is_cold("first").await);
    world.far.knobs.keeps.store(true, SeqCst);
    world.delete("first").await;
    let closing = one.mover().expect("a bucket").close();
    let closed = tokio::time::timeout(Duration::from_secs(1), closing).await;
    assert!(closed.is_err(), "the copy is still to go");
    world.put("second", b"bytes").await;
    pass(&other).await;
    assert!(world.is_cold("second").await, "it is its turn");
}

#[tokio::test]
async fn what_one_reads_stays_near_for_all() {
    let policy = Policy {
        not_read_for_ms: Some(7 * DAY),
        ..everything()
    };
    let (world, [one, other]) = two(&policy).await;
    for process in [&one, &other] {
        pass(process).await;
    }
    world.put("read", b"read at the other one").await;
    world.put("unread", b"never read").await;
    for _ in 0..3 {
        world.clock.advance(3 * DAY);
        read(&other, "read").await;
        pass(&other).await;
    }
    world.clock.advance(HOUR);
    pass(&one).await;
    assert!(world.is_cold("unread").await);
    assert!(!world.is_cold("read").await);
    world.clock.advance(7 * DAY - HOUR);
    pass(&one).await;
    assert!(!world.is_cold("read").await, "reads may not be told yet");
    world.clock.advance(HOUR);
    pass(&one).await;
    assert!(world.is_cold("read").await);
}

#[tokio::test]
async fn what_came_back_at_one_is_not_sent_away_by_the_other() {
    let (world, [one, other]) = two(&everything()).await;
    let bytes = content(3, 300_001);
    world.put("key", &bytes).await;
    pass(&one).await;
    assert!(world.is_cold("key").await);
    assert_eq!(read(&other, "key").await, bytes);
    assert!(!world.is_cold("key").await);
    pass(&other).await;
    pass(&one).await;
    assert!(!world.is_cold("key").await, "it rests");
    world.clock.advance(DAY + HOUR);
    pass(&one).await;
    assert!(world.is_cold("key").await);
}

#[tokio::test]
async fn both_move_the_same_value() {
    let (world, [one, other]) = two(&everything()).await;
    let bytes = content(4, 300_001);
    let meta = world.put("key", &bytes).await;
    let (first, second) = tokio::join!(
        one.mover()
            .expect("a bucket")
            .move_out(object("key"), &meta),
        other
            .mover()
            .expect("a bucket")
            .move_out(object("key"), &meta),
    );
    assert!(first.is_ok() != second.is_ok(), "one of them moves it");
    for process in [&one, &other] {
        assert!(process.mover().expect("a bucket").tidy().await);
    }
    assert_eq!(world.far.names().await.len(), 1, "the other's copy goes");
    assert_eq!(read(&one, "key").await, bytes);
}

/// A store whose values are read, for one process, when a test says.
#[derive(Clone)]
struct Gate {
    asked: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Detour<MemoryStore> for Gate {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<<MemoryStore as Store>::Body>> {
        // What they tell each other is read at once.
        if address.namespace == "ns" {
            self.asked.add_permits(1);
            drop(self.open.acquire().await.expect("never closed"));
        }
        store.retrieve(address, version, range).await
    }
}

#[tokio::test]
async fn two_pass_over_the_same_values_at_once() {
    let (world, [one, _]) = two(&everything()).await;
    for key in 0..12 {
        world.put(&format!("{key:02}"), b"value").await;
    }
    let gate = Gate {
        asked: Arc::new(Semaphore::new(0)),
        open: Arc::new(Semaphore::new(0)),
    };
    let near = Around {
        store: MemoryStore::clone(&world.hot),
        detour: gate.clone(),
    };
    let far = Arc::new(world.far.clone());
    let late = one_of(Some(AGREED), DAY, Arc::new(near), far, &world.clock);
    let (late, one) = (late.mover(), one.mover());
    let (late, first) = tokio::join!(late.expect("a bucket").run("ns"), async {
        // By then the other one knows what is to go.
        drop(gate.asked.acquire().await.expect("never closed"));
        let passed = one.expect("a bucket").run("ns").await;
        gate.open.add_permits(Semaphore::MAX_PERMITS);
        passed
    });
    assert_eq!(first.expect("run").moved, 12);
    let late = late.expect("run");
    assert_eq!((late.moved, late.failed, late.gave_up), (0, 0, false));
    assert_eq!(late.cold, 0, "none was when it looked");
}
