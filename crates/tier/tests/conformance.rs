//! The suite that every store is held to, over a tier in each of its modes.
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_io::Clock;
use forebay_io::sim::SimDisk;
use forebay_mem::Pool;
use forebay_store::MemoryStore;
use forebay_store::suite::{Suite, TestClock, check_layer};
use forebay_tier::{Config, PolicyKind, Tier, Trust};
use tokio::task::JoinHandle;

/// Ends a task with its test.
struct Tending(JoinHandle<()>);

impl Drop for Tending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn below(clock: &TestClock) -> MemoryStore {
    let clock = clock.clone();
    MemoryStore::new(Pool::new(64 << 20), move || clock.now())
}

fn config(memory_bytes: u64, clock: &TestClock) -> Config {
    let clock = clock.clone();
    Config::new(memory_bytes, Arc::new(move || clock.now()))
}

mod off {
    use super::*;

    forebay_store::conformance!(Suite::new(async |clock: TestClock| (
        Tier::off(Arc::new(below(&clock))),
        ()
    )));
}

mod in_memory {
    use super::*;

    forebay_store::conformance!(Suite::new(async |clock: TestClock| (
        Tier::new(Arc::new(below(&clock)), config(64 << 20, &clock), None),
        ()
    )));
}

mod strict {
    use super::*;

    forebay_store::conformance!(Suite::new(async |clock: TestClock| {
        let mut config = config(64 << 20, &clock);
        config.trust = Trust::Strict;
        (Tier::new(Arc::new(below(&clock)), config, None), ())
    }));
}

/// So small that nearly everything leaves at once.
mod cramped {
    use super::*;

    forebay_store::conformance!(Suite::new(async |clock: TestClock| {
        let mut config = config(20_000, &clock);
        config.policy = PolicyKind::WTinyLfu;
        (Tier::new(Arc::new(below(&clock)), config, None), ())
    }));
}

/// What leaves memory goes to a disk and comes back from it.
mod with_disk {
    use super::*;

    forebay_store::conformance!(Suite::new(async |clock: TestClock| {
        let mut config = config(20_000, &clock);
        config.disk_bytes = 1 << 20;
        let disk = below(&clock);
        let tier = Tier::with_disk(Arc::new(below(&clock)), config, None, disk);
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        (tier, Tending(tending))
    }));
}

/// As a node has it: an engine below, an engine as the disk.
mod engines {
    use super::*;

    #[derive(Debug)]
    struct Told(TestClock);

    impl Clock for Told {
        fn unix_millis(&self) -> u64 {
            self.0.now()
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.now())
        }
    }

    fn engine(seed: u64, clock: &TestClock, pool: &Pool) -> Engine<SimDisk> {
        let config = forebay_engine::Config {
            segment_bytes: 1 << 20,
            growth_bytes: 8 << 20,
            reserve_bytes: 0,
            cache_bytes: 0,
            ..forebay_engine::Config::default()
        };
        let clock = Arc::new(Told(clock.clone()));
        Engine::open(SimDisk::new(seed), clock, pool.clone(), config).expect("a new engine")
    }

    async fn make(clock: TestClock) -> (Tier<Engine<SimDisk>>, Tending) {
        let pool = Pool::new(64 << 20);
        let mut config = config(500_000, &clock);
        config.disk_bytes = 16 << 20;
        let store = Arc::new(engine(1, &clock, &pool));
        let disk = engine(2, &clock, &pool);
        let tier = Tier::with_disk(store, config, Some(&pool), disk);
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        (tier, Tending(tending))
    }

    forebay_store::conformance!(Suite::new(make).with_cases(12));
}

#[tokio::test]
async fn what_the_layer_passes_on() {
    check_layer(async |store| Tier::off(Arc::new(store)), &[]).await;
    let config = config(64 << 20, &TestClock::default());
    // What is kept is placed from where it is kept.
    let kept = async |store| Tier::new(Arc::new(store), config, None);
    check_layer(kept, &["retrieve_into"]).await;
}
