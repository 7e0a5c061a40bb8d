//! What a sweep deletes, and what it spares: a copy may look like nobody's while another process gives it its value, or reads it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_store::{ByteRange, ErrorKind, MemoryStore, NamespaceConfig, Store, Versioning};
use forebay_tier::cold::{Cold, Mover};

use crate::support::{World, content, drain, object, one_of};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// Of several parts.
const LARGE: usize = (9 << 20) + 17;

/// One in which nothing comes back.
async fn world() -> World {
    let world = World::new(Versioning::Off).await;
    world.never_back().await;
    world
}

/// One of several processes on the store of a world, which sweep what was nobody's for a day.
fn process(world: &World) -> Cold<MemoryStore> {
    let far = Arc::new(world.far.clone());
    one_of(Some("agreed"), DAY, world.hot.clone(), far, &world.clock)
}

fn mover(process: &Cold<MemoryStore>) -> Arc<Mover<MemoryStore>> {
    process.mover().expect("a bucket").clone()
}

async fn read(process: &Cold<MemoryStore>) -> Vec<u8> {
    let found = process.retrieve(object("key"), None, ByteRange::Full);
    drain(found.await.expect("there")).await.expect("read")
}

async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
    }
}

/// How many copies a sweep deletes, and how many wait.
async fn swept(process: &Cold<MemoryStore>) -> (u64, u64) {
    let swept = mover(process).sweep().await.expect("sweep");
    (swept.deleted, swept.waiting)
}

#[tokio::test]
async fn a_copy_that_took_days_is_spared_until_its_value_has_it() {
    let world = world().await;
    let (one, other) = (process(&world), process(&world));
    let bytes = content(1, LARGE);
    let meta = world.put("key", &bytes).await;
    let knobs = &world.far.knobs;
    knobs.slow.store(true, SeqCst);
    knobs.holds.store(1, SeqCst);
    let moving = mover(&one);
    let moving = tokio::spawn(async move { moving.move_out(object("key"), &meta).await });
    until(|| knobs.calls.load(SeqCst) > 0).await;
    // The parts take their time; then the copy is read back.
    world.clock.advance(DAY + HOUR);
    until(|| knobs.gets.load(SeqCst) > 0).await;
    assert_eq!(swept(&other).await, (0, 1));
    world.clock.advance(HOUR);
    knobs.holds.store(0, SeqCst);
    moving.await.expect("no panic").expect("moved");
    assert!(world.is_cold("key").await);
    world.clock.advance(2 * DAY);
    assert_eq!(swept(&other).await, (0, 0));
    assert_eq!(read(&other).await, bytes);
    // That it was nobody's once counts for nothing when its value ends.
    world.delete("key").await;
    assert_eq!(world.hot.forgotten().len(), 1);
    assert_eq!(swept(&other).await, (0, 1));
}

#[tokio::test]
async fn a_copy_that_a_sweep_may_take_for_nobodys_is_not_given_to_its_value() {
    let world = world().await;
    let one = process(&world);
    let bytes = content(3, LARGE);
    let meta = world.put("key", &bytes).await;
    let knobs = &world.far.knobs;
    knobs.holds.store(1, SeqCst);
    let moving = mover(&one);
    let moving = tokio::spawn(async move { moving.move_out(object("key"), &meta).await });
    until(|| knobs.gets.load(SeqCst) > 0).await;
    world.clock.advance(DAY);
    knobs.holds.store(0, SeqCst);
    let error = moving.await.expect("no panic").expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(!world.is_cold("key").await);
    assert!(mover(&one).tidy().await);
    assert_eq!(world.far.names().await.len(), 0);
}

#[tokio::test]
async fn what_was_nobodys_for_a_day_is_deleted_whoever_found_it() {
    let world = world().await;
    world.put_away("kept", b"these bytes").await;
    world.put_away("ended", b"those bytes").await;
    world.delete("ended").await;
    // Who was told of it is gone.
    assert_eq!(world.hot.forgotten().len(), 1);
    assert_eq!(swept(&process(&world)).await, (0, 1));
    world.clock.advance(DAY - 1);
    assert_eq!(swept(&process(&world)).await, (0, 1));
    world.clock.advance(1);
    assert_eq!(swept(&process(&world)).await, (1, 0));
    assert_eq!(
        world.far.names().await.len(),
        1,
        "its mark went with it, too"
    );
    assert_eq!(world.get("kept").await, b"these bytes");
}

#[tokio::test]
async fn a_copy_is_spared_while_another_process_reads_it() {
    let world = world().await;
    let (one, other) = (process(&world), process(&world));
    let bytes = content(2, LARGE);
    world.put_away("key", &bytes).await;
    world.clock.advance(2 * DAY);
    let found = other.retrieve(object("key"), None, ByteRange::Full).await;
    let found = found.expect("there");
    // Who was told of it is gone before it could do anything about it.
    world.put("key", b"another").await;
    assert_eq!(world.hot.forgotten().len(), 1);
    assert_eq!(swept(&one).await, (0, 1));
    assert!(drain(found).await.expect("read") == bytes);
}

#[tokio::test(start_paused = true)]
async fn what_was_nobodys_for_a_day_is_gone_at_the_next_sweep() {
    let world = world().await;
    for number in 0..20 {
        let key = format!("ended {number}");
        world.put_away(&key, b"those bytes").await;
        world.delete(&key).await;
    }
    // Who was told of them is gone.
    assert_eq!(world.hot.forgotten().len(), 20);
    world.far.knobs.takes_ms.store(60_000, SeqCst);
    let agreed = NamespaceConfig {
        tenant: "acme".to_owned(),
        ..NamespaceConfig::default()
    };
    let agreed = world.hot.create_namespace("agreed", agreed);
    agreed.await.expect("a name");
    let mover = mover(&process(&world));
    let tending = tokio::spawn(async move { mover.tend().await });
    let step = Duration::from_secs(600);
    let mut marked = false;
    let mut steps = 0;
    while !(marked && world.far.names().await.is_empty()) {
        assert!(steps < 27 * 6, "some are still there");
        steps += 1;
        world.clock.advance(600_000);
        tokio::time::sleep(step).await;
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        marked |= world.far.names().await.len() == 40;
    }
    assert!(steps >= 24 * 6, "they were somebody's a day ago");
    tending.abort();
}
