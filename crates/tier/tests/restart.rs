//! The local disk: what leaves memory comes back, also after a restart, and is never believed unseen.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;

use forebay_store::suite::{Around, TestClock};
use forebay_store::{Address, DeleteOptions, MemoryStore, NamespaceConfig, Space, Store};
use forebay_tier::Tier;
use support::{Below, Probe};
use tokio::task::JoinHandle;

const VALUE: usize = 100_000;

/// What outlives a tier.
struct World {
    store: MemoryStore,
    disk: MemoryStore,
    probe: Probe,
    clock: TestClock,
}

impl World {
    async fn new() -> World {
        let clock = TestClock::default();
        World {
            store: support::with_namespace(&clock, NamespaceConfig::default()).await,
            disk: support::memory(&clock),
            probe: Probe::default(),
            clock,
        }
    }

    /// A tier with a disk, and the task that tends it.
    async fn open(&self) -> (Tier<Below>, JoinHandle<()>) {
        self.open_with(|_| ()).await
    }

    async fn open_with(
        &self,
        change: impl FnOnce(&mut forebay_tier::Config),
    ) -> (Tier<Below>, JoinHandle<()>) {
        let mut config = support::config(250_000, &self.clock);
        config.disk_bytes = 64 << 20;
        change(&mut config);
        let below = Around {
            store: self.store.clone(),
            detour: self.probe.clone(),
        };
        let tier = Tier::with_disk(Arc::new(below), config, None, self.disk.clone());
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        (tier, tending)
    }
}

async fn filled(tier: &Tier<Below>) {
    for at in 0..20_u64 {
        support::put(tier, &format!("{at}"), &support::bytes(at, VALUE)).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

async fn read_all(tier: &Tier<Below>, seed: impl Fn(u64) -> u64) {
    for at in 0..20_u64 {
        let got = support::get(tier, &format!("{at}")).await.expect("there");
        assert!(got == support::bytes(seed(at), VALUE), "{at}");
    }
}

#[tokio::test]
async fn what_left_memory_is_on_the_disk_and_survives_a_restart() {
    let world = World::new().await;
    let (tier, tending) = world.open().await;
    filled(&tier).await;
    read_all(&tier, |at| at).await;
    // A piece may be asked for while it is on its way to the disk.
    assert!(world.probe.retrieves() <= 3);
    let metrics = tier.metrics().expect("on");
    assert!(
        metrics.disk_hits >= 15 && metrics.spills >= 15,
        "{metrics:?}"
    );
    tending.abort();
    drop(tier);

    let (tier, tending) = world.open().await;
    let before = world.probe.retrieves();
    read_all(&tier, |at| at).await;
    let metrics = tier.metrics().expect("on");
    assert!(
        metrics.disk_hits >= 15 && metrics.checks >= 15,
        "{metrics:?}"
    );
    assert!(
        world.probe.retrieves() - before <= 5,
        "what was in memory alone"
    );
    tending.abort();
}

#[tokio::test]
async fn what_changed_while_it_was_down_is_not_served() {
    let world = World::new().await;
    let (tier, tending) = world.open().await;
    filled(&tier).await;
    tending.abort();
    drop(tier);
    for at in 0..10_u64 {
        support::put(
            &world.store,
            &format!("{at}"),
            &support::bytes(at + 1000, VALUE),
        )
        .await;
    }
    support::delete(&world.store, "19").await;
    let (tier, tending) = world.open().await;
    assert!(support::get(&tier, "19").await.is_err());
    support::put(&world.store, "19", &support::bytes(19, VALUE)).await;
    read_all(&tier, |at| if at < 10 { at + 1000 } else { at }).await;
    tending.abort();
}

#[tokio::test]
async fn a_disk_that_lies_costs_a_miss() {
    let world = World::new().await;
    let (tier, tending) = world.open().await;
    filled(&tier).await;
    // Every other piece is gone, and nobody told the cache.
    let list = forebay_store::ListOptions {
        namespace: "cache",
        space: Space::Staging,
        prefix: b"",
        delimiter: None,
        after: Default::default(),
        limit: 1000,
    };
    let page = world.disk.list(list).await.expect("a list");
    for item in page.items.iter().step_by(2) {
        if let forebay_store::Item::Value(key, _) = item {
            let address = Address::staging("cache", key);
            let gone = world.disk.delete(address, DeleteOptions::default()).await;
            gone.expect("deleted");
        }
    }
    read_all(&tier, |at| at).await;
    let retrieves = world.probe.retrieves();
    assert!((5..=12).contains(&retrieves), "{retrieves}");
    tending.abort();
}

#[tokio::test]
async fn neither_the_disk_nor_a_restart_makes_anything_younger() {
    const TTL: u64 = 100_000;
    let world = World::new().await;
    let (tier, tending) = world.open_with(|config| config.ttl_ms = Some(TTL)).await;
    support::put(&tier, "0", &support::bytes(0, VALUE)).await;
    world.clock.advance(TTL / 2);
    for at in 1..20_u64 {
        support::put(&tier, &format!("{at}"), &support::bytes(at, VALUE)).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    let read = async |tier: &Tier<Below>| {
        let before = world.probe.retrieves();
        support::get(tier, "0").await.expect("there");
        world.probe.retrieves() - before
    };
    assert_eq!(read(&tier).await, 0, "it is on the disk");
    tending.abort();
    drop(tier);
    let (tier, tending) = world.open_with(|config| config.ttl_ms = Some(TTL)).await;
    assert_eq!(read(&tier).await, 0, "it is on the disk");
    world.clock.advance(TTL / 2);
    assert_eq!(read(&tier).await, 1, "its time is over");
    tending.abort();
}
