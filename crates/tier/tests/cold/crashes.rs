//! Ends at any step: the process is gone, what the store and the far side hold stays.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

use forebay_store::{Address, Store, Versioning};

use crate::support::{World, content, object, swept_twice, versions};

/// Polls at most `polls` times; tells whether it was done by then.
fn poll_some<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).any(|_| matches!(future.as_mut().poll(&mut context), Poll::Ready(_)))
}

/// What every crash leaves: values that can be read, and after two sweeps as many copies as values whose bytes are cold.
async fn is_whole(world: &mut World, key: &str, bytes: &[u8]) {
    world.restart();
    swept_twice(world.mover()).await;
    assert!(world.mover().tidy().await);
    let mut cold = 0;
    for (key, meta) in versions(&*world.hot, "ns").await {
        let address = Address::object("ns", &key);
        let away = world.hot.away(address, Some(meta.version)).await;
        cold += usize::from(away.expect("there").is_some());
    }
    assert_eq!(
        world.far.names().await.len(),
        cold,
        "no copy without its value"
    );
    assert_eq!(world.get(key).await, bytes);
}

#[tokio::test]
async fn moving_out_may_end_at_any_step() {
    for size in [5000, (9 << 20) + 17] {
        let bytes = content(1, size);
        let mut steps = 0;
        loop {
            let mut world = World::new(Versioning::Off).await;
            world.never_back().await;
            let meta = world.put("key", &bytes).await;
            world.far.knobs.slow.store(true, SeqCst);
            let mover = world.mover().clone();
            let done = poll_some(mover.move_out(object("key"), &meta), steps);
            drop(mover);
            is_whole(&mut world, "key", &bytes).await;
            assert_eq!(world.is_cold("key").await, done, "after {steps} steps");
            if done {
                break;
            }
            steps += 1;
        }
        assert!(steps > 3, "each call to the far side is a step");
    }
}

#[tokio::test]
async fn coming_back_may_end_at_any_step() {
    let bytes = content(2, 300_001);
    // The task that brings it back is the process: it is given so many turns.
    for turns in 0..12 {
        let mut world = World::new(Versioning::Off).await;
        world.put_away("key", &bytes).await;
        world.far.knobs.slow.store(true, SeqCst);
        let mover = world.mover().clone();
        let recall = tokio::spawn(async move { mover.recall(object("key"), None).await });
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        // From here on the far side is not there for it.
        world.far.knobs.down.store(true, SeqCst);
        let back = recall.await.expect("no panic").is_ok();
        world.far.knobs.down.store(false, SeqCst);
        assert_eq!(world.is_cold("key").await, !back);
        is_whole(&mut world, "key", &bytes).await;
    }
}

#[tokio::test]
async fn a_copy_outlives_its_value_by_a_crash_and_no_longer() {
    let mut world = World::new(Versioning::Off).await;
    world.put_away("gone", b"these bytes").await;
    world.put_away("kept", b"those bytes").await;
    world.delete("gone").await;
    // What was forgotten was told to a process that ends before it could do anything about it.
    assert_eq!(world.hot.forgotten().len(), 1);
    world.restart();
    assert!(world.mover().tidy().await);
    assert_eq!(world.far.names().await.len(), 2);
    assert_eq!(swept_twice(world.mover()).await, 1);
    assert_eq!(world.far.names().await.len(), 1);
    assert_eq!(world.get("kept").await, b"those bytes");
}

#[tokio::test]
async fn a_sweep_spares_what_is_referred_to_and_others() {
    let world = World::new(Versioning::Enabled).await;
    let first = world.put_away("key", b"first bytes").await;
    let second = world.put_away("key", b"second bytes").await;
    assert_ne!(first.version, second.version);
    let other = object_store::path::Path::from("tier/0022/00000001/000000000000000000000001");
    let strange = object_store::path::Path::from("tier/0011/notes.txt");
    use object_store::ObjectStoreExt;
    for path in [&other, &strange] {
        let put = world.far.objects.put(path, "not ours".into()).await;
        put.expect("put");
    }
    assert_eq!(swept_twice(world.mover()).await, 0);
    assert_eq!(world.far.names().await.len(), 4);

    // A namespace that went takes its copies along, at the latest by a sweep.
    for (key, meta) in versions(&*world.hot, "ns").await {
        let options = forebay_store::DeleteOptions {
            version: Some(meta.version),
            ..forebay_store::DeleteOptions::default()
        };
        let address = Address::object("ns", &key);
        world.hot.delete(address, options).await.expect("delete");
    }
    world.hot.delete_namespace("ns").await.expect("delete");
    // Who was told of them is gone.
    assert_eq!(world.hot.forgotten().len(), 2);
    assert_eq!(swept_twice(world.mover()).await, 2);
    assert_eq!(world.far.names().await, [strange, other]);
}
