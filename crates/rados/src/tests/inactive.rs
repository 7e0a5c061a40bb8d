//! Placement groups that answer nobody.

use tokio::task::spawn_blocking;

use super::*;
use crate::names::NAMESPACES;
use crate::support::ceph;
use crate::sys::{Errno, Watching};

/// More than there are storage daemons.
const REPLICAS: &str = "10";
const AT_MOST: Duration = Duration::from_secs(30);

/// A pool of the test's own.
struct Pool<'c>(&'c Cluster, String);

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        let Pool(cluster, name) = self;
        let sure = "--yes-i-really-really-mean-it";
        ceph(cluster, &["osd", "pool", "delete", name, name, sure]);
    }
}

#[test]
fn watching_waits_no_longer_than_anything_else() {
    let Some(cluster) = cluster() else {
        return;
    };
    let mut config = short_lived(&cluster);
    let pool = format!("inactive-{}", config.base);
    if ceph(&cluster, &["osd", "pool", "create", &pool, "1"]).is_none() {
        eprintln!("SKIP: there is no command ceph");
        return;
    }
    let made = Pool(&cluster, pool.clone());
    config.pool.clone_from(&pool);
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        for bound in ["size", "min_size"] {
            ceph(&cluster, &["osd", "pool", "set", &pool, bound, REPLICAS]).unwrap();
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
    drop(made);
}
