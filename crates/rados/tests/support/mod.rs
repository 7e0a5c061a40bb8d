//! Stores on the cluster that `FOREBAY_CEPH_CONF` names; its tests are ignored where nobody asks for them (`cargo xtask ceph` starts one).
#![allow(dead_code, reason = "each test file uses a part")]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, Body, ByteRange, Condition, NamespaceConfig, Object, Seal, Store, StoreOptions,
    Upload, Versioning,
};
use tokio::runtime::{Builder, Runtime};

const POOL_BYTES: usize = 64 << 20;

/// The cluster to test on: its configuration and a pool.
pub struct Cluster {
    pub conf: PathBuf,
    pub pool: String,
}

/// The cluster that the environment names.
pub fn cluster() -> Cluster {
    let conf = std::env::var_os("FOREBAY_CEPH_CONF");
    let conf = conf.expect("FOREBAY_CEPH_CONF names a cluster's configuration");
    let pool = std::env::var("FOREBAY_CEPH_POOL").unwrap_or_else(|_| "forebay".to_owned());
    Cluster {
        conf: conf.into(),
        pool,
    }
}

/// What a store of the tests' is opened with, in a part of the pool of its own.
pub fn config(cluster: &Cluster) -> Config {
    Config {
        base: format!("t{:016x}", RandomState::new().hash_one(0)),
        conf: Some(cluster.conf.clone()),
        // More than a small machine has by default.
        connections: 2,
        lease: Duration::from_secs(10),
        adopt: None,
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

pub fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

pub async fn space(store: &RadosStore, name: &str) {
    let config = NamespaceConfig {
        tenant: "acme".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace(name, config).await.unwrap();
}

pub async fn versioned(store: &RadosStore, name: &str) {
    let config = NamespaceConfig {
        tenant: "acme".to_owned(),
        versioning: Versioning::Enabled,
        ..NamespaceConfig::default()
    };
    store.create_namespace(name, config).await.unwrap();
}

pub async fn put(store: &RadosStore, address: Address<'_>, bytes: &[u8]) {
    let options = StoreOptions {
        size: Some(bytes.len() as u64),
        condition: Condition::None,
    };
    let mut upload = store.store(address, options).await.unwrap();
    for piece in bytes.chunks(1 << 20) {
        upload.write(piece.to_vec().into()).await.unwrap();
    }
    upload.commit(Seal::default()).await.unwrap();
}

pub async fn get(store: &RadosStore, address: Address<'_>) -> Vec<u8> {
    let found = store.retrieve(address, None, ByteRange::Full);
    drain(found.await.unwrap()).await
}

/// What is left of a value.
pub async fn drain<B: Body>(mut object: Object<B>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(buf) = object.body.next().await.unwrap() {
        bytes.extend_from_slice(&buf);
    }
    bytes
}

/// A pool of a test's own, which goes with it.
pub struct OwnPool<'c> {
    cluster: &'c Cluster,
    pub name: String,
}

impl<'c> OwnPool<'c> {
    /// One of so many placement groups.
    pub fn make(cluster: &'c Cluster, name: String, groups: &str) -> OwnPool<'c> {
        ceph(cluster, &["osd", "pool", "create", &name, groups]);
        OwnPool { cluster, name }
    }

    /// Sets (`verb`) one of its properties.
    pub fn set(&self, verb: &str, property: &str, value: &str) {
        let command = ["osd", "pool", verb, &self.name, property, value];
        ceph(self.cluster, &command);
    }
}

impl Drop for OwnPool<'_> {
    fn drop(&mut self) {
        let (name, sure) = (&self.name, "--yes-i-really-really-mean-it");
        ceph(self.cluster, &["osd", "pool", "delete", name, name, sure]);
    }
}

/// Ceph's administrator.
pub fn ceph(cluster: &Cluster, args: &[&str]) -> Vec<u8> {
    let mut command = Command::new("ceph");
    command.arg("--conf").arg(&cluster.conf).args(args);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.expect("Ceph's commands are installed");
    assert!(output.status.success(), "ceph {args:?}");
    output.stdout
}

/// Ceph's own command line, as another hand.
pub fn rados(cluster: &Cluster, namespace: &str, args: &[&str]) -> Vec<u8> {
    let mut command = Command::new("rados");
    command
        .arg("--conf")
        .arg(&cluster.conf)
        .args(["-p", &cluster.pool, "-N", namespace]);
    let output = command.args(args).stderr(Stdio::inherit()).output();
    let output = output.expect("Ceph's commands are installed");
    assert!(output.status.success(), "rados {args:?}");
    output.stdout
}

pub fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let mix = |at: usize| (at as u32).wrapping_mul(2_654_435_761) >> 24;
    (0..len).map(|at| mix(at) as u8 ^ seed).collect()
}
