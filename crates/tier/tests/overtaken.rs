//! A value that was answered early and did not land at once, and what others make of its key meanwhile.
#![forbid(unsafe_code)]

mod support;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use forebay_store::suite::{Around, Detour, TestClock};
use forebay_store::{
    Durability, ErrorKind, MemoryStore, NamespaceConfig, Result, Seal, Store, StoreError, Stored,
    Upload,
};
use forebay_tier::Tier;

/// What another gateway does to the key.
#[derive(Debug, Clone, Copy)]
enum Other {
    Store,
    Delete,
}

impl Other {
    async fn act(self, store: &MemoryStore) {
        match self {
            Other::Store => drop(support::put(store, "k", b"other").await),
            Other::Delete => support::delete(store, "k").await,
        }
    }

    /// What there is then.
    async fn check(self, store: &impl Store) {
        match (self, support::get(store, "k").await) {
            (Other::Store, found) => assert_eq!(found.expect("it was stored"), b"other"),
            (Other::Delete, found) => {
                let error = found.expect_err("it was deleted");
                assert_eq!(error.kind(), ErrorKind::NotFound);
            }
        }
    }
}

/// How a commit goes wrong.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// Whether the store carries it out all the same.
    done: bool,
    told: ErrorKind,
    /// What others do before that is told.
    before: Option<Other>,
}

/// What was done, and nobody was told.
const UNTOLD: Fault = Fault {
    done: true,
    told: ErrorKind::OutcomeUnknown,
    before: None,
};
/// What was refused, and nothing changed.
const REFUSED: Fault = Fault {
    done: false,
    told: ErrorKind::Busy,
    before: None,
};

/// Commits go wrong as it is said here, one after the other, then none does.
#[derive(Clone)]
struct Faults {
    faults: Arc<Mutex<VecDeque<Fault>>>,
    store: MemoryStore,
    clock: TestClock,
}

impl Detour<MemoryStore> for Faults {
    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        let fault = self.faults.lock().expect("no panic").pop_front();
        let Some(fault) = fault else {
            return upload.commit(seal).await;
        };
        if fault.done {
            upload.commit(seal).await?;
        }
        self.clock.advance(30_000);
        if let Some(other) = fault.before {
            other.act(&self.store).await;
        }
        Err(StoreError::new(fault.told, "as the test said"))
    }
}

type Faulty = Tier<Around<MemoryStore, Faults>>;

/// A tier over a store whose commits go wrong so, and that store.
async fn faulty(faults: &[Fault]) -> (Faulty, MemoryStore) {
    let clock = TestClock::default();
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 100 },
        ..NamespaceConfig::default()
    };
    let store = support::with_namespace(&clock, relaxed).await;
    let below = Around {
        store: store.clone(),
        detour: Faults {
            faults: Arc::new(Mutex::new(faults.iter().copied().collect())),
            store: store.clone(),
            clock: clock.clone(),
        },
    };
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 1 << 20;
    (Tier::new(Arc::new(below), config, None), store)
}

/// Waits until the tier waits to store again what went wrong.
async fn until_it_pauses(tier: &Faulty) {
    let faults = &tier.store_below().detour.faults;
    while !faults.lock().expect("no panic").is_empty() {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_do_before_it_is_stored_again_stays() {
    for fault in [UNTOLD, REFUSED] {
        for other in [Other::Store, Other::Delete] {
            let (tier, store) = faulty(&[fault]).await;
            support::put(&store, "k", b"before").await;
            support::put(&tier, "k", b"value").await;
            until_it_pauses(&tier).await;
            other.act(&store).await;
            tier.settle().await.expect("nothing to fail");
            other.check(&store).await;
            other.check(&tier).await;
            assert_eq!(tier.metrics().expect("on").write_backs_lost, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_do_before_anybody_is_told_stays() {
    // Of what was surely not stored nothing tells whether it came later.
    for (fault, lost) in [(UNTOLD, 0), (REFUSED, 1)] {
        for other in [Other::Store, Other::Delete] {
            let before = Some(other);
            let (tier, store) = faulty(&[Fault { before, ..fault }]).await;
            support::put(&store, "k", b"before").await;
            assert_eq!(support::get(&tier, "k").await.expect("there"), b"before");
            support::put(&tier, "k", b"value").await;
            tier.settle().await.expect("nothing to fail");
            other.check(&store).await;
            assert_eq!(tier.metrics().expect("on").write_backs_lost, lost);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_is_replaced() {
    let value = support::bytes(1, 5000);
    for fault in [UNTOLD, REFUSED] {
        for known in [false, true] {
            let (tier, store) = faulty(&[fault, REFUSED, fault]).await;
            support::put(&store, "k", b"before").await;
            if known {
                assert_eq!(support::get(&tier, "k").await.expect("there"), b"before");
            }
            support::put(&tier, "k", &value).await;
            tier.settle().await.expect("nothing to fail");
            assert_eq!(support::get(&store, "k").await.expect("landed"), value);
            assert_eq!(support::get(&tier, "k").await.expect("landed"), value);
            assert_eq!(tier.metrics().expect("on").write_backs_lost, 0);
        }
    }
}
