//! Placement groups that answer nobody.

use tokio::task::spawn_blocking;

use super::*;
use crate::names::NAMESPACES;
use crate::support::OwnPool;
use crate::sys::{Errno, Watching};

/// More than there are storage daemons.
const REPLICAS: &str = "10";
const AT_MOST: Duration = Duration::from_secs(30);

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn watching_waits_no_longer_than_anything_else() {
    let cluster = cluster();
    let mut config = short_lived(&cluster);
    let pool = OwnPool::make(&cluster, format!("inactive-{}", config.base), "1");
    config.pool.clone_from(&pool.name);
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        for bound in ["size", "min_size"] {
            pool.set("set", bound, REPLICAS);
        }
        let core = store.core();
        while core.reload().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let registry = core.registry.clone();
        let watch = spawn_blocking(move || {
            let begun = Watching::begin(&registry, NAMESPACES, |_| {});
            begun.map(drop)
        });
        let begun = tokio::time::timeout(AT_MOST, watch).await;
        let begun = begun.expect("the library gives up by itself").unwrap();
        assert_eq!(begun, Err(Errno(libc::ETIMEDOUT)));
    });
}
