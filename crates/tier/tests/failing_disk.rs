//! A cache whose disk takes nothing.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_store::suite::{Around, Detour, TestClock};
use forebay_store::{
    ErrorKind, MemoryStore, NamespaceConfig, NamespaceInfo, Result, Seal, Store, StoreError,
    Stored, Upload,
};
use forebay_tier::Tier;

/// A disk that fails.
#[derive(Clone)]
struct Failing {
    /// Whether it is prepared before.
    at_first: bool,
    /// So many are taken before.
    takes: u64,
    commits: Arc<AtomicU64>,
}

fn failed() -> StoreError {
    StoreError::new(ErrorKind::Io, "as the test said")
}

impl Detour<MemoryStore> for Failing {
    async fn create_namespace(
        &self,
        store: &MemoryStore,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        match self.at_first {
            true => Err(failed()),
            false => store.create_namespace(name, config).await,
        }
    }

    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        match self.commits.fetch_add(1, SeqCst) < self.takes {
            true => upload.commit(seal).await,
            false => Err(failed()),
        }
    }
}

#[tokio::test]
async fn a_disk_that_fails_is_given_up() {
    for (at_first, takes) in [(false, 0), (false, 100), (true, 0)] {
        let clock = TestClock::default();
        let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
        let mut config = support::config(1 << 20, &clock);
        config.disk_bytes = 1 << 30;
        let failing = Failing {
            at_first,
            takes,
            commits: Arc::default(),
        };
        let disk = Around {
            store: support::memory(&clock),
            detour: failing.clone(),
        };
        let tier = Tier::with_disk(Arc::new(store), config, None, disk);
        let tended = tier.clone();
        let tending = tokio::spawn(async move { tended.tend().await });
        let value = support::bytes(1, 10_000);
        let mut most = 0;
        for at in 0..1000 {
            support::put(&tier, &format!("{at}"), &value).await;
            tokio::task::yield_now().await;
            clock.advance(200);
            let on_disk = tier.metrics().expect("on").disk_bytes;
            most = most.max(on_disk);
        }
        // The store gives no notices: with the disk all that there is to tend has ended.
        tending.await.expect("no panic");
        support::put(&tier, "another", &value).await;
        let metrics = tier.metrics().expect("on");
        // A minute's.
        assert!(failing.commits.load(SeqCst) <= 301 + takes);
        assert!(metrics.evictions > 500, "{metrics:?}");
        let dropped = metrics.evictions - takes;
        assert_eq!(metrics.spills_dropped, dropped, "none waits");
        assert_eq!((metrics.spills, most > 0), (takes, takes > 0));
        // Nor is anything known of what was there.
        assert_eq!(metrics.disk_bytes, 0);
        let in_memory = metrics.memory_bytes / value.len() as u64;
        assert!(metrics.objects <= in_memory, "{metrics:?}");
        assert_eq!(support::get(&tier, "0").await.expect("there"), value);
    }
}
