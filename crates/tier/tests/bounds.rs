//! Memory has a bound, whatever values are made of.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;

use forebay_store::suite::TestClock;
use forebay_store::{Address, NamespaceConfig, Scope, Store};
use forebay_tier::Tier;
use support::{NS, Probe};

const LONG: usize = 100 << 10;
const MEMORY: u64 = 1 << 20;

#[tokio::test]
async fn attributes_count() {
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    let tier = support::tier(&store, &Probe::default(), support::config(MEMORY, &clock));
    let long = support::long_attributes(LONG);
    for at in 0..200 {
        support::put_with(&tier, &format!("{at}"), &long).await;
    }
    let held = tier.metrics().expect("on").objects;
    assert!((1..=MEMORY / LONG as u64).contains(&held), "{held}");
}

#[tokio::test]
async fn attributes_that_grow_count() {
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    let tier = support::tier(&store, &Probe::default(), support::config(MEMORY, &clock));
    let (short, long) = (support::long_attributes(1), support::long_attributes(LONG));
    let keys: Vec<String> = (0..50).map(|at| format!("{at}")).collect();
    for key in &keys {
        support::put_with(&tier, key, &short).await;
    }
    assert_eq!(tier.metrics().expect("on").objects, 50);
    for key in &keys {
        let address = Address::object(NS, key.as_bytes());
        let amended = tier.amend(address, None, None, long.clone()).await;
        amended.expect("it is there");
        let found = support::get(&tier, key).await.expect("it is there");
        assert_eq!(found, support::bytes(0, 0));
    }
    let held = tier.metrics().expect("on").objects;
    assert!((1..=MEMORY / LONG as u64).contains(&held), "{held}");
    for key in &keys {
        support::delete(&tier, key).await;
    }
    let left = tier.metrics().expect("on");
    assert_eq!((left.objects, left.memory_bytes), (0, 0));
}

#[tokio::test]
async fn what_is_on_the_disk_has_a_bound_in_memory() {
    const VALUES: u64 = 10_000;
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    let mut config = support::config(MEMORY, &clock);
    config.disk_bytes = 256 << 20;
    let tier = Tier::with_disk(Arc::new(store), config, None, support::memory(&clock));
    let tended = tier.clone();
    let tending = tokio::spawn(async move { tended.tend().await });
    for at in 0..VALUES {
        support::put(&tier, &format!("{at}"), &support::bytes(at, 1)).await;
        tokio::task::yield_now().await;
    }
    let metrics = tier.metrics().expect("on");
    // In memory each counts 1024 bytes at least, and as known of the disk 704, of an eighth of the memory and a 512th of the disk.
    let most = MEMORY / 1024 + (MEMORY / 8 + (256 << 20) / 512) / 704;
    assert!(
        metrics.spills > 500 && metrics.objects < most,
        "{metrics:?}"
    );
    tending.abort();
}

#[tokio::test]
async fn what_is_not_for_the_disk_does_not_go_there() {
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    let disk = support::memory(&clock);
    for (is_off, puts) in [(false, 300), (true, 0)] {
        let mut config = support::config(MEMORY, &clock);
        config.disk_bytes = 256 << 20;
        if is_off {
            config.off_disk.push(NS.to_owned());
        }
        let tier = Tier::with_disk(Arc::new(store.clone()), config, None, disk.clone());
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        for at in 0..500 {
            support::put(&tier, &format!("{at}"), &support::bytes(at, 5000)).await;
            tokio::task::yield_now().await;
        }
        let metrics = tier.metrics().expect("on");
        assert!(
            metrics.spills >= puts && metrics.evictions > 300,
            "{metrics:?}"
        );
        assert!(!is_off || metrics.spills == 0 && metrics.disk_bytes == 0);
        tending.abort();
    }
    let left = disk.usage(Scope::Namespace("cache")).expect("there");
    assert_eq!(left.bytes, 0, "what an earlier one put there is gone");
}
