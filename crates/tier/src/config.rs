//! What can be chosen for a cache.

use std::fmt;
use std::sync::Arc;

use crate::PolicyKind;

/// How sure a hit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The store is asked before every hit: nothing old is ever served, and a hit costs a look at the store's metadata.
    Strict,
    /// The store is asked when it was not for so many milliseconds: what is served was current at most so long ago.
    Within(u64),
}

impl Default for Trust {
    fn default() -> Trust {
        Trust::Within(1000)
    }
}

/// What is never given up, as long as it fits: keys of a namespace that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The namespace's name.
    pub namespace: String,
    /// The prefix; empty for the whole namespace.
    pub prefix: Vec<u8>,
}

/// What a tenant's share counts, beside 1 for each tenant that is not named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The tenant's name.
    pub tenant: String,
    /// At least 1.
    pub weight: u32,
}

/// Milliseconds since 1970, by the clock that the store uses too.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Chosen when a [`Tier`](crate::Tier) is made.
#[derive(Clone)]
pub struct Config {
    /// Buffers that it may hold, in bytes.
    pub memory_bytes: u64,
    /// What the local disk may hold, in bytes of values; without a disk 0.
    pub disk_bytes: u64,
    /// Namespaces of which nothing goes to the local disk.
    pub off_disk: Vec<String>,
    /// How sure a hit is.
    pub trust: Trust,
    /// What leaves.
    pub policy: PolicyKind,
    /// Nothing stays longer than so many milliseconds.
    pub ttl_ms: Option<u64>,
    /// What stays.
    pub pins: Vec<Pin>,
    /// Who may hold how much when there is not enough for all.
    pub shares: Vec<Share>,
    /// A range of at most so many bytes goes through the cache, and in one go for many readers; of a longer one each reader has
    /// its own.
    pub span_bytes_max: u64,
    /// Whether a namespace that said [`Relaxed`](forebay_store::Durability::Relaxed) is answered before the store has
    /// committed, and how many bytes may wait so together; 0 is no.
    pub write_back_bytes: u64,
    /// The time.
    pub clock: Clock,
}

impl Config {
    /// A cache of `memory_bytes`, with everything else as it is by default.
    pub fn new(memory_bytes: u64, clock: Clock) -> Config {
        Config {
            memory_bytes,
            disk_bytes: 0,
            off_disk: Vec::new(),
            trust: Trust::default(),
            policy: PolicyKind::default(),
            ttl_ms: None,
            pins: Vec::new(),
            shares: Vec::new(),
            span_bytes_max: 64 << 20,
            write_back_bytes: 0,
            clock,
        }
    }
}

impl Config {
    /// Whether pieces of a namespace may go to the local disk.
    pub(crate) fn is_for_disk(&self, namespace: &str) -> bool {
        self.off_disk.iter().all(|off| off != namespace)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("memory_bytes", &self.memory_bytes)
            .field("disk_bytes", &self.disk_bytes)
            .field("trust", &self.trust)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
