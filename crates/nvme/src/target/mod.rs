//! What a node shows to hosts, and how their commands are executed; the same for every transport.
//!
//! - [`Target`]: which hosts may come and what they see; it admits them and executes their I/O commands.
//! - [`Host`], [`Published`]: what it is told by whoever runs it, as often as it changes.
//! - [`Session`]: what lives as long as a controller and belongs to none of its queues.
//! - [`Payload`]: the data of one command, which the transport moves.
//!
//! # How a transport drives it
//! Over Fabrics [`Target::connect`] answers the Connect of an admin queue with a [`Controller`](forebay_proto::nvme::Controller) and a
//! session; a device gets them by [`Target::attach`]. Before an admin command the transport calls [`Target::prepare`]; an I/O command
//! that [`Controller::io`](forebay_proto::nvme::Controller::io) let pass goes to [`Target::execute`], two halves of a fused
//! operation to [`Target::execute_fused`]. [`Target::changed`] returns when something may have changed; [`Target::update`] then shows it
//! and says whether to go on, and events may follow.
//!
//! # Status codes
//! `status` holds what each failure of the store is called.

mod admission;
mod block;
mod bound;
mod counters;
mod entered;
mod execute;
mod fused;
mod identifiers;
mod kv;
mod landing;
mod lending;
mod live;
mod parts;
mod payload;
mod program;
mod results;
mod session;
mod shown;
mod status;
mod syncs;
mod transfer;

pub(crate) use admission::TCP_QUEUE_ENTRIES_MAX;
pub use admission::{Admitted, Arrival, Proven};
pub use counters::{Counted, Executed};
pub use fused::{Fused, Fuser};
pub(crate) use identifiers::Connection;
pub(crate) use lending::{Hosts, Lent, Share, held_bytes};
pub use live::LiveController;
pub use payload::Payload;
pub use session::{Change, Prepared, Session, Viewer};
pub use shown::{Backing, Host, Published};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_io::{Clock, File};
use forebay_mem::Pool;
use forebay_proto::nvme::discovery::{DiscoveryEntry, DiscoveryLog};
use forebay_store::Store;
use parking_lot::RwLock;
use tokio::sync::Semaphore;

use counters::Counters;
use identifiers::Identifiers;
use landing::UnderWay;
use lending::Lending;
use live::Live;
use session::Watchers;
use shown::Shown;

/// The largest value that can be configured, in bytes: hosts move a value with one command.
pub const VALUE_BYTES_MAX: u32 = 128 << 20;

/// Results that wait to be fetched take at most this part of the pool.
const RESULTS_SHARE: usize = 8;

/// Commands that wait for their hosts hold at most this part of the pool: the rest serves whatever waits for nobody.
const LENDING_SHARE: u64 = 2;

/// Proofs of hosts that are computed at once: each takes milliseconds of a processor, and anybody may ask for one.
const PROVING_MAX: usize = 2;

/// What is chosen for a target.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// The subsystem's NVMe Qualified Name.
    pub nqn: String,
    /// SN: at most 20 ASCII characters.
    pub serial: String,
    /// MN: at most 40.
    pub model: String,
    /// FR: at most 8.
    pub firmware: String,
    /// The largest value, in bytes: at most [`VALUE_BYTES_MAX`].
    pub value_bytes_max: u32,
    /// What KV namespaces without a bound of their own may hold, in bytes.
    pub capacity_bytes: u64,
    /// Entries of a queue: 32 to 65536; over TCP 1024 at most.
    pub queue_entries_max: u32,
    /// I/O queues of a controller.
    pub io_queues_max: u16,
    /// Data that may follow a command in its capsule on an I/O queue, in bytes; a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Controllers at once, of all transports. One host has at most a quarter of them, and as many connections; those that have still to
    /// prove who they are have a quarter together, those that ask for discovery another, and of either half by one address (of IPv6, by
    /// one network of 64 bits).
    pub controllers_max: u16,
    /// Whether hosts that nobody made known see every namespace.
    pub allow_any_host: bool,
    /// Whether hosts must come by TLS, where their transport has it: then those without a key may not come.
    pub tls_required: bool,
    /// The longest result of a function, in bytes; 0: none are run.
    pub result_bytes_max: u32,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            nqn: String::new(),
            serial: String::new(),
            model: "Forebay".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            value_bytes_max: 64 << 20,
            capacity_bytes: 1 << 50,
            queue_entries_max: 128,
            io_queues_max: 64,
            in_capsule_bytes: 16 << 10,
            controllers_max: 1024,
            allow_any_host: false,
            tls_required: false,
            result_bytes_max: 16 << 20,
        }
    }
}

/// A subsystem and what is behind it.
#[derive(Debug)]
pub struct Target<S: Store, F: File> {
    store: Arc<S>,
    pool: Pool,
    clock: Arc<dyn Clock>,
    config: TargetConfig,
    shown: RwLock<Shown<F>>,
    discovery: RwLock<DiscoveryLog>,
    generation: AtomicU64,
    identifiers: Arc<Identifiers>,
    watchers: Watchers,
    counters: Counters,
    live: Arc<Live>,
    results: Arc<results::Room>,
    parts: parts::Room,
    lending: Arc<Lending>,
    /// Changes of values that are with the store.
    under_way: UnderWay,
    /// One for each proof that is computed.
    proving: Arc<Semaphore>,
}

impl<S: Store, F: File> Target<S, F> {
    /// A target that shows nothing yet and knows no host. Buffers for blocks and lists come from `pool`.
    pub fn new(
        store: Arc<S>,
        pool: Pool,
        clock: Arc<dyn Clock>,
        config: TargetConfig,
    ) -> Target<S, F> {
        let config = TargetConfig {
            value_bytes_max: config.value_bytes_max.min(VALUE_BYTES_MAX),
            in_capsule_bytes: config.in_capsule_bytes / 16 * 16,
            ..config
        };
        Target {
            results: results::Room::new(pool.usage().limit / RESULTS_SHARE),
            parts: parts::Room::new(pool.usage().limit, &store.caps()),
            store,
            lending: Arc::new(Lending::new(pool.usage().limit as u64 / LENDING_SHARE)),
            pool,
            clock,
            identifiers: Identifiers::new(config.controllers_max),
            config,
            shown: RwLock::new(Shown::default()),
            discovery: RwLock::default(),
            generation: AtomicU64::new(1),
            watchers: Watchers::default(),
            counters: Counters::default(),
            live: Arc::default(),
            under_way: UnderWay::default(),
            proving: Arc::new(Semaphore::new(PROVING_MAX)),
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// The store behind its KV namespaces.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// What all commands together may hold while they wait for their hosts.
    pub(crate) fn lending(&self) -> &Arc<Lending> {
        &self.lending
    }

    /// What was executed since it was made.
    pub fn executed(&self) -> Executed {
        self.counters.read()
    }

    /// What the controllers of hosts and devices do now, the oldest first.
    pub fn live(&self) -> Vec<LiveController> {
        self.live.look()
    }

    /// Replaces the hosts that may come. Associations of hosts that may not any more, that belong to another tenant now, or that have to
    /// prove something else, end.
    pub fn set_hosts(&self, hosts: Vec<Host>) {
        // What discovery tells a host depends on what is known of it.
        self.change_discovery(|_| self.shown.write().set_hosts(hosts));
    }

    /// Replaces what is published. Commands in progress end as they began.
    pub fn publish(&self, published: Vec<Published<F>>) {
        self.shown.write().set_published(published);
        self.tell();
    }

    /// Looks at the store again: a published namespace may have come, gone, or have other bounds.
    pub fn refresh(&self) {
        self.tell();
    }

    /// Replaces the ways to this subsystem that discovery tells of.
    pub fn set_addresses(&self, entries: Vec<DiscoveryEntry>) {
        self.change_discovery(|log| log.entries = entries);
    }

    /// Whoever reads the log meanwhile sees neither the change with the old generation nor the reverse.
    fn change_discovery(&self, change: impl FnOnce(&mut DiscoveryLog)) {
        let mut log = self.discovery.write();
        change(&mut log);
        log.generation = self.generation.fetch_add(1, Relaxed) + 1;
        drop(log);
        self.watchers.wake();
    }

    fn tell(&self) {
        self.generation.fetch_add(1, Relaxed);
        self.watchers.wake();
    }
}
