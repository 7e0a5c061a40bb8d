//! What goes, what stays, and what comes back for good.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_mem::Region;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Attributes, ByteRange, ListOptions, MemoryStore, Result, Store, VersionId, VersionItem,
    VersionPage, Versioning,
};
use forebay_tier::cold::{Bucket, Cold, Config, Policy, RULES, Recall, Rules};

use crate::support::{HOME, World, config, content, drain, object, over};

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

/// Whatever is under a prefix goes after so many days.
fn after(prefix: &str, days: u64) -> Policy {
    Policy {
        after_ms: Some(days * DAY),
        larger_than: 0,
        prefix: prefix.to_owned(),
        ..Policy::default()
    }
}

#[tokio::test]
async fn each_rule_moves_its_own_until_it_is_removed() {
    let world = World::new(Versioning::Off).await;
    let mut rules = Rules::default();
    let large = Policy {
        larger_than: 4000,
        ..after("", 30)
    };
    assert!(rules.add("checkpoints", after("checkpoints/", 7)));
    assert!(rules.add("large", large));
    world.rules(&rules).await;
    world.put("checkpoints/1", &content(1, 5000)).await;
    world.put("checkpoints/2", &content(2, 10)).await;
    world.put("large", &content(3, 5000)).await;
    world.put("small", &content(4, 10)).await;
    world.clock.advance(7 * DAY);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!((passed.moved, passed.cold), (2, 2));
    assert!(world.is_cold("checkpoints/1").await && world.is_cold("checkpoints/2").await);
    world.clock.advance(23 * DAY);
    let passed = world.mover().run("ns").await.expect("run");
    let counts = (passed.moved, passed.cold, passed.cold_bytes);
    assert_eq!(counts, (1, 3, 10_010), "none is counted for two rules");
    assert!(world.is_cold("large").await && !world.is_cold("small").await);

    assert!(rules.remove("large"));
    world.rules(&rules).await;
    world.put("later", &content(5, 5000)).await;
    world.put("checkpoints/3", &content(6, 5000)).await;
    world.clock.advance(60 * DAY);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!((passed.moved, passed.cold), (1, 3));
    assert!(world.is_cold("checkpoints/3").await && !world.is_cold("later").await);
}

#[tokio::test]
async fn rules_for_keys_that_are_apart_leave_those_between() {
    let world = World::new(Versioning::Off).await;
    let mut rules = Rules::default();
    assert!(rules.add("first", after("a/", 1)));
    assert!(rules.add("last", after("z/", 1)));
    world.rules(&rules).await;
    for key in ["a/1", "m/1", "z/1"] {
        world.put(key, &content(1, 100)).await;
    }
    world.clock.advance(DAY);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!((passed.moved, passed.cold), (2, 2));
    assert!(!world.is_cold("m/1").await);
}

#[tokio::test]
async fn what_a_rule_that_says_never_does_not_cover_comes_back() {
    let world = World::new(Versioning::Off).await;
    let mut rules = Rules::default();
    let never = Policy {
        recall: Recall::Never,
        ..after("logs/", 1)
    };
    assert!(rules.add("logs", never));
    assert!(rules.add("checkpoints", after("checkpoints/", 1)));
    world.rules(&rules).await;
    for key in ["checkpoints/1", "logs/1"] {
        world.put_away(key, b"these bytes").await;
        assert_eq!(world.get(key).await, b"these bytes");
    }
    assert!(!world.is_cold("checkpoints/1").await);
    assert!(world.is_cold("logs/1").await);
}

#[tokio::test]
async fn a_policy_that_was_kept_before_there_were_rules_is_applied() {
    let world = World::new(Versioning::Off).await;
    let kept = r#"{"after_ms":86400000,"larger_than":0,"prefix":"logs/","recall":"never"}"#;
    let attributes = Attributes::builder().set(RULES, kept).build();
    world.attributes(attributes.expect("small")).await;
    world.put("logs/1", b"these bytes").await;
    world.put("other", b"these bytes").await;
    world.clock.advance(DAY);
    assert_eq!(world.mover().run("ns").await.expect("run").moved, 1);
    assert_eq!(world.get("logs/1").await, b"these bytes");
    assert!(world.is_cold("logs/1").await && !world.is_cold("other").await);
}

#[tokio::test]
async fn rules_that_cannot_be_read_move_nothing() {
    let world = World::new(Versioning::Off).await;
    let attributes = Attributes::builder().set(RULES, r#"{"rules":1}"#).build();
    world.attributes(attributes.expect("small")).await;
    world.put("key", &content(1, 500_000)).await;
    world.clock.advance(1000 * DAY);
    assert_eq!(world.mover().run("ns").await.expect("run").moved, 0);
    assert!(!world.is_cold("key").await);
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

#[tokio::test]
async fn what_is_not_there_was_not_read() {
    let world = World::new(Versioning::Off).await;
    let policy = fill(&world).await;
    world.mover().run("ns").await.expect("run");
    world.clock.advance(2 * DAY);
    let none = Some(VersionId(77));
    for key in ["00", "01"] {
        let found = world.cold.retrieve(object(key), none, ByteRange::Full);
        assert!(found.await.is_err(), "there is no such version");
    }
    let region = Region::anonymous(4096).expect("memory");
    let target = region.slice(0..4096).expect("inside");
    let into = |key, version| {
        let target = target.clone();
        let into = world
            .cold
            .retrieve_into(object(key), version, ByteRange::Full, target);
        async move { into.await.is_ok() }
    };
    assert!(!into("02", none).await && into("03", None).await);
    assert_eq!(world.get("04").await, b"value");
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(passed.moved, 10, "all but what was read");
    // What is away was read, too.
    world
        .policy(&Policy {
            recall: Recall::Never,
            ..policy
        })
        .await;
    assert_eq!(world.get("00").await, b"value");
    assert!(world.is_cold("00").await);
    let passed = world.mover().run("ns").await.expect("run");
    assert_eq!(passed.cold, 9, "it would not go now");
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

/// A store whose values are longer than any bucket takes, as it says.
#[derive(Clone)]
struct Huge;

impl Detour<MemoryStore> for Huge {
    async fn list_versions(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        let mut page = store.list_versions(options).await?;
        for item in &mut page.items {
            if let VersionItem::Value { meta, .. } = item {
                meta.size = 100 << 30;
            }
        }
        Ok(page)
    }
}

#[tokio::test]
async fn what_is_too_large_stays_and_is_no_failure() {
    let world = World::new(Versioning::Off).await;
    fill(&world).await;
    world.mover().run("ns").await.expect("run");
    world.clock.advance(2 * DAY);
    let near = Around {
        store: MemoryStore::clone(&world.hot),
        detour: Huge,
    };
    let cold = over(Arc::new(near), &world.far, &world.clock);
    let mover = cold.mover().expect("a bucket");
    mover.run("ns").await.expect("run");
    world.clock.advance(2 * DAY);
    let passed = mover.run("ns").await.expect("run");
    assert_eq!((passed.moved, passed.failed, passed.gave_up), (0, 0, false));
    assert!(!world.is_cold("00").await);
}
