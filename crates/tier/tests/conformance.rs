//! The suite that every store is held to, over a tier in each of its modes.
use std::sync::Arc;

use forebay_mem::Pool;
use forebay_store::MemoryStore;
use forebay_store::suite::{Suite, TestClock};
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
        let tending = tokio::spawn(async move { tended.tend().await.expect("the disk works") });
        (tier, Tending(tending))
    }));
}
