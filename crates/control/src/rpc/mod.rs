//! The gRPC door: package `forebay.v1` (room `api`) over the store, the identities and the sessions of a server.
//!
//! - [`Service`]: the services behind one admission.
//! - [`serve`]: connections, TLS, reflection, and an end.
//! - [`tls_config`]: certificates from PEM.
//!
//! Payloads go by a session's link, straight into or out of the client's memory (the module `transfer`); a message carries at most
//! [`INLINE_BYTES_MAX`] of one.

mod admin;
mod admission;
mod answers;
mod attributes;
mod conversation;
mod convert;
mod execute;
mod identity;
mod incoming;
mod metrics;
mod objects;
mod reflection;
mod sessions;
mod status;
mod transfer;
mod watch;

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::v1::admin_server::AdminServer;
use forebay_api::v1::execution_server::ExecutionServer;
use forebay_api::v1::objects_server::ObjectsServer;
use forebay_api::v1::sessions_server::SessionsServer;
use forebay_api::v1::watch_server::WatchServer;
use forebay_fabric::Sessions;
use forebay_store::limits::{EXIST_BATCH_MAX, KEY_BYTES_MAX, LIST_ITEMS_MAX};
use forebay_store::live::{Live, LiveTenant};
use forebay_store::waiting::Shares;
use forebay_store::{NamespaceInfo, Store};
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::service::Routes;

use self::admission::{Bound, Gate, Identify, InFlight};
use self::identity::{Caller, Peer};
use self::metrics::{Metrics, Way, Which};
use self::status::{Outcome, Refusal};
use crate::changes::Changes;
use crate::{Admin, Identities};

pub use self::execute::OUTPUT_BYTES_MAX;
pub use self::incoming::{TlsError, tls_config};

/// The largest value that a message carries, in bytes.
pub const INLINE_BYTES_MAX: usize = 1 << 20;
/// The most keys of one Exist or LongestPrefix.
pub const EXIST_KEYS_MAX: usize = EXIST_BATCH_MAX;
/// The most elements of one Gather or Scatter.
pub const ELEMENTS_MAX: usize = 10_000;

/// A key and what goes with it in a batch: a place with a grant, a range, a condition, tags and lengths.
const ELEMENT_BYTES_MAX: usize = KEY_BYTES_MAX + 256;
/// The longest message of object calls: a full batch of the longest keys.
const OBJECT_MESSAGE_BYTES_MAX: usize = ELEMENTS_MAX * ELEMENT_BYTES_MAX;
/// The longest message of the others: names and numbers.
const OTHER_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// What is chosen for the door.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where sessions make their links, the best first, as [`Sessions`](forebay_api::v1::sessions_server::Sessions) tells them.
    pub paths: Vec<forebay_api::v1::Path>,
    /// The most connections. A tenant has no more of them than it leaves to others.
    pub connections: usize,
    /// The most calls in flight.
    pub calls: usize,
    /// The most calls in flight of one tenant.
    pub calls_of_tenant: usize,
    /// The most watches; a tenant may have a quarter of them.
    pub watches: usize,
    /// The most bytes of memory that calls in flight hold together: of their messages, of what is made of those, and of values, lists and
    /// outputs on their way to a reader. As many again for watches.
    pub call_bytes: usize,
    /// What tenants have of the store's buffers while links carry payload of calls; of the door of those links, too, where there is one.
    pub carried: Arc<Shares>,
    /// How long a connection may be without a call of somebody known, and a message on its way.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            paths: Vec::new(),
            connections: 4096,
            calls: 1024,
            calls_of_tenant: 512,
            watches: 1024,
            call_bytes: 8 * OBJECT_MESSAGE_BYTES_MAX,
            carried: Shares::new(64 << 20),
            patience: Duration::from_secs(30),
        }
    }
}

/// The service as the generated servers take it: its streams hold it too.
struct Door<S>(Arc<Service<S>>);

impl<S> Deref for Door<S> {
    type Target = Service<S>;

    fn deref(&self) -> &Service<S> {
        &self.0
    }
}

/// The services over a store.
pub struct Service<S> {
    store: Arc<S>,
    identities: Arc<Identities<S>>,
    admin: Arc<Admin<S>>,
    sessions: Arc<Sessions>,
    changes: Changes<S>,
    config: Config,
    /// Those on which somebody is known.
    connections: Arc<InFlight>,
    calls: Arc<InFlight>,
    watches: Arc<InFlight>,
    metrics: Arc<Metrics>,
    /// Calls of objects and functions, by tenant.
    live: Arc<Live>,
    /// Whether the door closes: what would never end by itself ends then. Whoever works beside the connections listens while it does.
    closing: tokio::sync::watch::Sender<bool>,
}

impl<S: Store> Service<S> {
    /// Over a store, its identities and their administration, and the table of sessions that all doors share. From now on an
    /// access key that is removed or replaced takes its sessions with it.
    pub fn new(
        store: Arc<S>,
        identities: Arc<Identities<S>>,
        admin: Arc<Admin<S>>,
        sessions: Arc<Sessions>,
        config: Config,
    ) -> Arc<Service<S>> {
        sessions::end_with_their_keys(&identities, &sessions);
        let bound = |calls, of_tenant| Bound {
            calls,
            of_tenant,
            bytes: config.call_bytes,
        };
        Arc::new(Service {
            changes: Changes::new(store.clone()),
            connections: InFlight::new(bound(config.connections, config.connections)),
            calls: InFlight::new(bound(config.calls, config.calls_of_tenant)),
            watches: InFlight::new(bound(config.watches, (config.watches / 4).max(1))),
            store,
            identities,
            admin,
            sessions,
            config,
            metrics: Arc::default(),
            live: Arc::default(),
            closing: tokio::sync::watch::Sender::new(false),
        })
    }

    /// Adds what the door counts to what a node tells.
    pub fn register(&self, registry: &mut Registry) {
        let in_flight = [
            ("call", self.calls.clone()),
            ("watch", self.watches.clone()),
        ];
        metrics::register(self.metrics.clone(), in_flight, registry);
    }

    /// What each tenant's calls of objects and functions did so far. Payload is what went in messages; what went by links is told with them.
    pub fn live(&self) -> Vec<LiveTenant> {
        self.live.look()
    }

    /// Payload of a call went to the client.
    fn sent(&self, caller: &Caller, way: Way, bytes: u64) {
        self.metrics.sent(way, bytes);
        if let (Way::Message, Some(served)) = (way, caller.served()) {
            served.sent(bytes);
        }
    }

    /// Payload of a call came from the client.
    fn received(&self, caller: &Caller, way: Way, bytes: u64) {
        self.metrics.received(way, bytes);
        if let (Way::Message, Some(served)) = (way, caller.served()) {
            served.received(bytes);
        }
    }

    /// What stands before a service.
    fn gate(self: &Arc<Self>, which: Which) -> Gate {
        let service = self.clone();
        let prove = move |request: &Request<Body>| {
            let peer = request.extensions().get::<Peer>();
            let identified = identity::identify(&service.identities, request.headers(), peer);
            if let Some(peer) = peer {
                match &identified {
                    Ok(caller) => peer.seat(caller.tenant(), &service.connections)?,
                    Err(_) => {
                        tracing::debug!(peer = %peer.address, path = request.uri().path(), "who calls is not proved");
                    }
                }
            }
            identified.map(Some)
        };
        let (identify, in_flight): (Identify, _) = match which {
            Which::Admin | Which::Sessions | Which::Objects | Which::Execution => {
                (Arc::new(prove), &self.calls)
            }
            Which::Watch => (Arc::new(prove), &self.watches),
            // The interface is no secret.
            Which::Reflection => (Arc::new(|_| Ok(None)), &self.watches),
        };
        let live = match which {
            Which::Objects | Which::Execution => Some(self.live.clone()),
            Which::Admin | Which::Sessions | Which::Watch | Which::Reflection => None,
        };
        Gate {
            identify,
            in_flight: in_flight.clone(),
            metrics: self.metrics.clone(),
            which,
            live,
            patience: self.config.patience,
        }
    }

    /// The namespace of that name, if it is the caller's own.
    fn own_namespace(&self, caller: &Caller, name: &str) -> Outcome<Arc<NamespaceInfo>> {
        self.store
            .namespace(name)
            .ok()
            .filter(|namespace| namespace.config.tenant == caller.tenant())
            .ok_or_else(|| Refusal::no_namespace(name))
    }

    /// Whether the key that a caller proved to hold is still what it was then.
    fn stands(&self, caller: &Caller) -> bool {
        let key = caller.key();
        self.identities
            .find(&key.id)
            .is_some_and(|now| now.secret == key.secret && now.tenant == key.tenant)
    }

    /// Refuses a caller whose key is not what it was.
    fn must_stand(&self, caller: &Caller) -> Outcome<()> {
        match self.stands(caller) {
            true => Ok(()),
            false => Err(Refusal::key_gone()),
        }
    }

    /// Refuses a caller whose key is not what it was, and a name that no longer stands for its namespace.
    fn may_begin(&self, caller: &Caller, namespace: &NamespaceInfo) -> Outcome<()> {
        self.must_stand(caller)?;
        self.still(namespace)
    }

    /// Refuses a name that no longer stands for this namespace. Numbers are never used again, and a namespace never changes its
    /// tenant: the number alone tells.
    fn still(&self, namespace: &NamespaceInfo) -> Outcome<()> {
        match self.store.namespace(&namespace.name) {
            Ok(now) if now.id == namespace.id => Ok(()),
            _ => Err(Refusal::no_namespace(&namespace.name)),
        }
    }

    fn limits(&self) -> forebay_api::v1::Limits {
        let sessions = self.sessions.limits();
        forebay_api::v1::Limits {
            key_bytes_max: KEY_BYTES_MAX as u32,
            value_bytes_max: self.store.caps().value_bytes_max,
            inline_bytes_max: INLINE_BYTES_MAX as u32,
            exist_keys_max: EXIST_KEYS_MAX as u32,
            elements_max: ELEMENTS_MAX as u32,
            list_entries_max: LIST_ITEMS_MAX as u32,
            message_bytes_max: OBJECT_MESSAGE_BYTES_MAX as u32,
            lease_ms_max: sessions.lease.as_millis() as u64,
            grant_ms_max: sessions.grant.as_millis() as u64,
        }
    }
}

/// Why the door does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptors are no description of the interface.
    #[error("the interface cannot be reflected: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown`, then lets calls in progress end. Speaks plain HTTP/2 without `tls`, which is for loopback alone: bearer
/// tokens and sessions' keys travel.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve<S: Store>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    service: Arc<Service<S>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let Config {
        connections,
        patience,
        ..
    } = service.config;
    let door = || Door(service.clone());
    let admin = AdminServer::new(door()).max_decoding_message_size(OTHER_MESSAGE_BYTES_MAX);
    let sessions = SessionsServer::new(door()).max_decoding_message_size(OTHER_MESSAGE_BYTES_MAX);
    let objects = ObjectsServer::new(door()).max_decoding_message_size(OBJECT_MESSAGE_BYTES_MAX);
    let execution =
        ExecutionServer::new(door()).max_decoding_message_size(OBJECT_MESSAGE_BYTES_MAX);
    let watch = WatchServer::new(door()).max_decoding_message_size(OTHER_MESSAGE_BYTES_MAX);
    let reflection = service.gate(Which::Reflection);
    let routes = Routes::new(service.gate(Which::Admin).guard(admin))
        .add_service(service.gate(Which::Sessions).guard(sessions))
        .add_service(service.gate(Which::Objects).guard(objects))
        .add_service(service.gate(Which::Execution).guard(execution))
        .add_service(service.gate(Which::Watch).guard(watch))
        .add_service(reflection.clone().guard(reflection::v1()?))
        .add_service(reflection.guard(reflection::v1alpha()?));
    let connections = incoming::connections(listener, tls, connections);
    conversation::hold(connections, routes.prepare(), patience, async {
        shutdown.await;
        service.closing.send_replace(true);
    })
    .await;
    // What clients that are gone had asked for is given up.
    service.closing.closed().await;
    Ok(())
}
