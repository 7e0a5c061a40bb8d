//! Stores on the cluster that `FOREBAY_CEPH_CONF` names (`cargo xtask ceph` starts one); without it tests say so and pass.
#![allow(dead_code, reason = "each test file uses a part")]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;

const POOL_BYTES: usize = 64 << 20;

/// The cluster to test on: its configuration and a pool.
pub struct Cluster {
    pub conf: PathBuf,
    pub pool: String,
}

/// The cluster that the environment names.
pub fn cluster() -> Option<Cluster> {
    let Some(conf) = std::env::var_os("FOREBAY_CEPH_CONF") else {
        eprintln!("SKIP: FOREBAY_CEPH_CONF names no cluster's configuration");
        return None;
    };
    if let Err(missing) = forebay_rados::librados_version() {
        eprintln!("SKIP: {missing}");
        return None;
    }
    let pool = std::env::var("FOREBAY_CEPH_POOL").unwrap_or_else(|_| "forebay".to_owned());
    Some(Cluster {
        conf: conf.into(),
        pool,
    })
}

/// What a store of the tests' is opened with, in a part of the pool of its own.
pub fn config(cluster: &Cluster) -> Config {
    Config {
        base: format!("t{:016x}", RandomState::new().hash_one(0)),
        conf: Some(cluster.conf.clone()),
        lease: Duration::from_secs(10),
        ..Config::new(cluster.pool.clone())
    }
}

/// An empty store.
pub fn fresh(cluster: &Cluster, clock: TestClock) -> RadosStore {
    open(config(cluster), clock)
}

/// A store on what is there.
pub fn open(config: Config, clock: TestClock) -> RadosStore {
    let told = move || clock.now();
    RadosStore::open(config, Pool::new(POOL_BYTES), told).expect("open the store")
}
