//! What a store over RADOS is opened with.

use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

/// No more connections by default: an OSD has three threads for all of them by its own defaults.
const MOST_CONNECTIONS: usize = 4;
/// For each of so many processors a connection: what it carries has to be signed, summed and sent on by others.
const PROCESSORS_A_CONNECTION: usize = 4;

/// Which cluster, which pool, and how patiently.
#[derive(Debug, Clone)]
pub struct Config {
    /// The pool; it must be replicated (erasure-coded pools keep no keys beside data).
    pub pool: String,
    /// Keeps several stores in one pool apart: RADOS namespaces begin with it. Visible ASCII without `/`, or empty.
    pub base: String,
    /// The cluster's configuration file; without one librados looks in its usual places.
    pub conf: Option<PathBuf>,
    /// The client's name, without `client.`.
    pub id: String,
    /// The file with the client's key; without one the configuration names it.
    pub keyring: Option<PathBuf>,
    /// Connections to each OSD: one carries about 3 GB/s, whatever the OSD is made of, and costs a dozen threads that mostly sleep.
    pub connections: usize,
    /// Values of up to so many bytes are one object, larger ones are striped over objects of this length. A multiple of 64 KiB.
    pub object_bytes: u32,
    /// Parts of the index of a namespace that is made from now on.
    pub shards: u32,
    /// How long an operation on an object may take.
    pub patience: Duration,
    /// How long connecting, and asking monitors, may take.
    pub connect_patience: Duration,
    /// How long stripes that nothing refers to any more stay for those who read them.
    pub grace: Duration,
    /// How long after its last sign of life a gateway counts as dead.
    pub lease: Duration,
    /// How often the pool is looked through for objects that other hands wrote; `None`: only when somebody asks for it.
    pub adopt: Option<Duration>,
}

impl Config {
    /// The defaults for a pool.
    pub fn new(pool: impl Into<String>) -> Config {
        Config {
            pool: pool.into(),
            base: String::new(),
            conf: None,
            id: "admin".to_owned(),
            keyring: None,
            connections: connections(),
            object_bytes: 4 << 20,
            shards: 8,
            patience: Duration::from_secs(30),
            connect_patience: Duration::from_secs(15),
            grace: Duration::from_secs(600),
            lease: Duration::from_secs(60),
            adopt: Some(Duration::from_secs(3600)),
        }
    }
}

fn connections() -> usize {
    let processors = available_parallelism().map_or(1, usize::from);
    (processors / PROCESSORS_A_CONNECTION).clamp(1, MOST_CONNECTIONS)
}
