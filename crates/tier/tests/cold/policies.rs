//! What goes, what stays, and what comes back for good.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_store::{ByteRange, Store, Versioning};
use forebay_tier::cold::{Bucket, Cold, Config, Policy, Recall};

use crate::support::{HOME, World, config, content, drain, object};

const DAY: u64 = 24 * 3600 * 1000;

/// Twelve values, and the policy: each goes when nobody has read it for a day.
async fn fill(world: &World) -> Policy {
    let policy = Policy {
        not_read_for_ms: Some(DAY),
        larger_than: 0,
        ..Policy::default()
    };
    world.policy(&policy).await;
    for key in 0..12 {
        world.put(&format!("{key:02}"), b"value").await;
    }
    policy
}

#[tokio::test]
async fn by_age_size_and_prefix() {
    let world = World::new(Versioning::Off).await;
    world
        .policy(&Policy {
            after_ms: Some(30 * DAY),
            larger_than: 1000,
            prefix: "logs/".to_owned(),
            ..Policy::default()
        })
        .await;
    world.put("logs/old", &content(1, 5000)).await;
    world.put("logs/old-small", &content(2, 1000)).await;
    world.put("other", &content(3, 5000)).await;
    world.clock.advance(29 * DAY);
    world.put("logs/new", &content(4, 5000)).await;
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!((passed.moved, passed.cold), (0, 0));
    world.clock.advance(DAY);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(
        (passed.moved, passed.moved_bytes, passed.cold),
        (1, 5000, 1)
    );
    assert!(world.is_cold("logs/old").await);
    for near in ["logs/old-small", "other", "logs/new"] {
        assert!(!world.is_cold(near).await, "{near}");
    }
    let again = world.mover().run("ns").await.expect("run");
    assert_eq!((again.moved, again.cold, again.cold_bytes), (0, 1, 5000));
}

#[tokio::test]
async fn without_a_policy_nothing_goes() {
    let world = World::new(Versioning::Off).await;
    world.put("key", &content(1, 500_000)).await;
    world.clock.advance(1000 * DAY);
    world.mover().run_all().await;
    assert!(!world.is_cold("key").await);
    assert_eq!(world.far.names().await.len(), 0);
}

#[tokio::test]
async fn by_the_last_read() {
    let world = World::new(Versioning::Off).await;
    world
        .policy(&Policy {
            not_read_for_ms: Some(7 * DAY),
            larger_than: 0,
            ..Policy::default()
        })
        .await;
    world.put("read", b"read now and then").await;
    world.put("unread", b"never read").await;
    world.clock.advance(8 * DAY);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(passed.moved, 0, "it is not known what was read before");
    for _ in 0..3 {
        world.clock.advance(3 * DAY);
        world
            .read("read", ByteRange::Inclusive(0, 3))
            .await
            .expect("read");
    }
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(passed.moved, 1);
    assert!(world.is_cold("unread").await);
    assert!(!world.is_cold("read").await);
}

#[tokio::test(start_paused = true)]
async fn what_is_read_while_a_pass_takes_long_is_known_after_a_crash() {
    let world = World::new(Versioning::Off).await;
    fill(&world).await;
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("reads");
    let process = || {
        let config = Config {
            reads: Some(path.clone()),
            ..config(&world.clock)
        };
        let bucket = Bucket::new(Arc::new(world.far.clone()), HOME);
        Cold::new(world.hot.clone(), bucket, config)
    };
    let killed = process();
    let mover = killed.mover().expect("a bucket").clone();
    mover.run("ns").await.expect("run");
    world.clock.advance(2 * DAY);
    // No copy can be read back.
    world.far.knobs.holds.store(1, SeqCst);
    let passing = tokio::spawn(async move { mover.run_all().await });
    while world.far.knobs.gets.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let found = killed.retrieve(object("11"), None, ByteRange::Full);
    let found = drain(found.await.expect("there")).await.expect("read");
    assert_eq!(found, b"value");
    tokio::time::advance(Duration::from_secs(601)).await;
    while !path.exists() {
        tokio::task::yield_now().await;
    }
    passing.abort();
    world.far.knobs.holds.store(0, SeqCst);
    let restarted = process();
    let passed = restarted.mover().expect("a bucket").run("ns").await;
    assert_eq!(passed.expect("run").moved, 11);
    assert!(!world.is_cold("11").await);
}

#[tokio::test]
async fn what_is_read_or_ruled_out_while_others_go_stays() {
    for ruled_out in [false, true] {
        let world = Arc::new(World::new(Versioning::Off).await);
        let policy = fill(&world).await;
        world.mover().run("ns").await.expect("run");
        world.clock.advance(2 * DAY);
        world.far.knobs.slow.store(true, SeqCst);
        let running = tokio::spawn({
            let world = world.clone();
            async move { world.mover().run("ns").await }
        });
        while world.far.knobs.calls.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        if ruled_out {
            world
                .policy(&Policy {
                    prefix: "other".to_owned(),
                    ..policy
                })
                .await;
        } else {
            assert_eq!(world.get("11").await, b"value");
        }
        let passed = running.await.expect("no panic").expect("run");
        assert!(passed.moved > 0 && passed.failed == 0);
        assert!(!world.is_cold("11").await);
    }
}

#[tokio::test]
async fn what_came_back_rests_a_day() {
    let world = World::new(Versioning::Off).await;
    world
        .policy(&Policy {
            after_ms: Some(DAY),
            larger_than: 0,
            ..Policy::default()
        })
        .await;
    world.put("key", b"these bytes").await;
    world.clock.advance(2 * DAY);
    assert_eq!(world.mover().run("ns").await.expect("run").moved, 1);
    assert_eq!(world.get("key").await, b"these bytes");
    assert!(!world.is_cold("key").await);
    assert_eq!(world.mover().run("ns").await.expect("run").moved, 0);
    world.clock.advance(DAY + 1000);
    assert_eq!(world.mover().run("ns").await.expect("run").moved, 1);
}

#[tokio::test]
async fn kept_versions_go_too_and_never_is_never() {
    let world = World::new(Versioning::Enabled).await;
    world
        .policy(&Policy {
            after_ms: Some(0),
            larger_than: 0,
            recall: Recall::Never,
            ..Policy::default()
        })
        .await;
    for number in 0..5 {
        world.put("key", &content(number, 2000)).await;
    }
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(passed.moved, 5);
    assert_eq!(world.far.names().await.len(), 5);
    assert_eq!(world.get("key").await, content(4, 2000));
    assert!(world.is_cold("key").await);
    assert!(
        world
            .mover()
            .recall(crate::support::object("key"), None)
            .await
            .expect("recall")
    );
    assert!(!world.is_cold("key").await);
    assert!(
        !world
            .mover()
            .recall(crate::support::object("key"), None)
            .await
            .expect("recall")
    );
}

#[tokio::test(start_paused = true)]
async fn copies_of_values_that_are_gone_go_while_others_are_on_their_way() {
    let world = World::new(Versioning::Off).await;
    world
        .policy(&Policy {
            after_ms: Some(0),
            ..Policy::default()
        })
        .await;
    world.put_away("gone", &content(1, 5000)).await;
    let copy = world.far.names().await.remove(0);
    world.put("going", &content(2, 100_000)).await;
    // It is not read back until the end of this.
    world.far.knobs.holds.store(50_000, SeqCst);
    let before = world.gets();
    let mover = world.mover().clone();
    let tending = tokio::spawn(async move { mover.tend().await });
    tokio::task::yield_now().await;
    tokio::time::advance(Duration::from_secs(601)).await;
    while world.gets() == before {
        tokio::task::yield_now().await;
    }
    world.delete("gone").await;
    tokio::time::advance(Duration::from_secs(6)).await;
    let mut left = 10_000;
    while world.far.names().await.contains(&copy) {
        left -= 1;
        assert!(left > 0, "the copy is still there");
        tokio::task::yield_now().await;
    }
    tending.abort();
}
