//! Hosts coming.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use forebay_io::File;
use forebay_proto::nvme::auth::Authentication;
use forebay_proto::nvme::discovery::{DiscoveryLog, SecureChannel, SubsystemType};
use forebay_proto::nvme::fabrics::{Connect, DISCOVERY_NQN, Refused, connect_at};
use forebay_proto::nvme::psk::{Identity, TlsKey};
use forebay_proto::nvme::{
    Controller, ControllerConfig, ControllerKind, HostIdentity, Status, Subsystem, Transport,
};
use forebay_store::Store;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::identifiers::{Holder, Network};
use super::live::Counting;
use super::session::{FUSING_MAX, Session, Viewer};
use super::{Target, bound, parts, results};

/// Entries of a queue over TCP: tags name the places of commands in so many bits.
pub(crate) const TCP_QUEUE_ENTRIES_MAX: u32 = 1024;

/// What a transport knows of a host beside its words.
#[derive(Debug, Clone, Default)]
pub struct Arrival {
    /// Whether it is run by whoever owns what is behind the target: then it may come, and sees everything, also when nobody made it
    /// known.
    pub trusted: bool,
    /// Our own address that it came to.
    pub local: Option<IpAddr>,
    /// Its address.
    pub peer: Option<IpAddr>,
    /// What it has proven by TLS; `None`: it came in the clear.
    pub proven: Option<Arc<Proven>>,
}

/// What a handshake of TLS has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// The host's NQN.
    pub host: String,
    /// The subsystem's, for which the key was derived.
    pub subsystem: String,
    /// The key that both ends have.
    pub key: TlsKey,
}

/// What an admitted host gets.
pub struct Admitted<S: Store> {
    /// Its controller, disabled.
    pub controller: Controller,
    /// What goes with it.
    pub session: Arc<Session<S>>,
    /// DW0 of the Connect's completion.
    pub result: u64,
}

impl<S: Store> fmt::Debug for Admitted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Randomness from the system. Without any there is nothing to be secret with; every kernel that runs this has some.
pub(super) fn random(bytes: &mut [u8]) {
    forebay_io::random(bytes).expect("the system gives random bytes");
}

impl<S: Store, F: File> Target<S, F> {
    /// Whose namespaces a host sees; `None` when it may not come. `trusted`: it may, also when nobody made it known.
    pub(super) fn viewer_of(&self, nqn: &str, trusted: bool) -> Option<Viewer> {
        let any = trusted || self.config.allow_any_host;
        match self.shown.read().host(nqn) {
            Some(host) => Some(Viewer::Tenant(host.tenant.clone())),
            None => any.then_some(Viewer::Everything),
        }
    }

    /// Whether a connection may be another queue of a session's controller: it has the same key, and by itself would be shown the same.
    pub(crate) fn may_join(&self, session: &Session<S>, arrival: &Arrival) -> bool {
        let viewer_of = |host: &str| self.viewer_of(host, arrival.trusted);
        session.proven() == arrival.proven.as_deref()
            && session.host().and_then(viewer_of).as_ref() == Some(&session.viewer)
    }

    fn tls_key_of(&self, nqn: &str) -> Option<TlsKey> {
        self.shown.read().host(nqn)?.tls_key.clone()
    }

    /// Whether a host may use namespaces by a connection of this kind: one that has a key comes by TLS, with that key.
    pub(super) fn is_secure_enough(&self, nqn: &str, proven: Option<&Proven>) -> bool {
        match (self.tls_key_of(nqn), proven) {
            (Some(key), Some(proven)) => proven.host == nqn && proven.key == key,
            (None, None) => !self.config.tls_required,
            _ => false,
        }
    }

    /// What a host has to prove; `None`: nothing.
    pub(super) fn authentication_of(&self, nqn: &str) -> Option<Authentication> {
        let shown = self.shown.read();
        let host = shown.host(nqn)?;
        Some(Authentication {
            host: host.secret.clone()?,
            subsystem: host.subsystem_secret.clone(),
        })
    }

    /// Answers the Connect of an admin queue.
    ///
    /// # Errors
    /// What to complete the command with.
    pub fn connect(&self, now_ms: u64, connect: &Connect) -> Result<Admitted<S>, Refused> {
        self.connect_by(now_ms, connect, Arrival::default())
    }

    /// As [`connect`](Target::connect), with what the transport knows of the host beside its words.
    ///
    /// # Errors
    /// As there.
    pub fn connect_by(
        &self,
        now_ms: u64,
        connect: &Connect,
        arrival: Arrival,
    ) -> Result<Admitted<S>, Refused> {
        let entries_max = self.config.queue_entries_max.min(TCP_QUEUE_ENTRIES_MAX);
        Controller::check_admin_connect(connect, entries_max)?;
        if let Some(proven) = &arrival.proven {
            if proven.host != connect.hostnqn {
                return Err(Status::CONNECT_INVALID_HOST.into());
            }
            if proven.subsystem != connect.subnqn {
                return Err(Refused::in_data(connect_at::SUBNQN));
            }
        }
        let viewer = self.viewer_of(&connect.hostnqn, arrival.trusted);
        let secure = self.is_secure_enough(&connect.hostnqn, arrival.proven.as_deref());
        let (kind, viewer) = match (&connect.subnqn, viewer) {
            // Whoever asks is told where to look; what it may not see is left out.
            (name, viewer) if name == DISCOVERY_NQN => {
                let nobody = Viewer::Tenant(String::new());
                (ControllerKind::Discovery, viewer.unwrap_or(nobody))
            }
            (name, _) if *name != self.config.nqn => {
                return Err(Refused::in_data(connect_at::SUBNQN));
            }
            (_, None) => return Err(Status::CONNECT_INVALID_HOST.into()),
            _ if !secure => return Err(Status::CONNECT_INVALID_HOST.into()),
            (_, Some(viewer)) => (ControllerKind::Io, viewer),
        };
        let authentication = match kind {
            ControllerKind::Io => self.authentication_of(&connect.hostnqn),
            ControllerKind::Discovery => None,
        };
        let network = Network::of(arrival.peer);
        // By TLS it has proven its name, whatever it asks for and has to prove besides.
        let is_known = arrival.proven.is_some();
        let holder = match kind {
            ControllerKind::Discovery if !is_known => Holder::Discovery(network),
            ControllerKind::Io if !is_known && authentication.is_some() => {
                Holder::Unproven(network)
            }
            _ => Holder::Host(connect.hostnqn.as_str().into()),
        };
        let session = self
            .session(
                holder,
                Some(connect.hostnqn.clone()),
                viewer,
                arrival,
                authentication.clone(),
                kind,
            )
            .ok_or(Status::CONNECT_CONTROLLER_BUSY)?;
        let config = ControllerConfig {
            kind,
            transport: Transport::Tcp {
                in_capsule_bytes: self.config.in_capsule_bytes,
            },
            host: HostIdentity {
                nqn: connect.hostnqn.clone(),
                id: connect.host_id,
            },
            queue_entries_max: entries_max,
            // No more than it may have connections for.
            io_queues_max: self
                .config
                .io_queues_max
                .min(self.identifiers.io_queues_max()),
            kato_ms: connect.kato_ms,
            authentication,
            ..self.controller_config(session.cntlid())
        };
        let controller = self.controller(now_ms, config, &session);
        Ok(Admitted {
            result: controller.connect_result(),
            controller,
            session,
        })
    }

    /// The key by an identity that a host offers to TLS: for the subsystem, and for discovery.
    pub(crate) fn key_by(&self, identity: &Identity<'_>) -> Option<TlsKey> {
        let ours = identity.subsystem == self.config.nqn || identity.subsystem == DISCOVERY_NQN;
        self.tls_key_of(identity.host).filter(|_| ours)
    }

    /// A session for a device; its controller is made by [`device`](Target::device). `None` when there are too many.
    pub fn attach(&self, viewer: Viewer) -> Option<Arc<Session<S>>> {
        let arrival = Arrival::default();
        self.session(
            Holder::Device,
            None,
            viewer,
            arrival,
            None,
            ControllerKind::Io,
        )
    }

    /// The controller of a device with `vectors` interrupts as it is after power was turned on: made anew after each of its resets.
    pub fn device(&self, now_ms: u64, session: &Session<S>, vectors: u16) -> Controller {
        let config = ControllerConfig {
            transport: Transport::Pcie { vectors },
            ..self.controller_config(session.cntlid())
        };
        self.controller(now_ms, config, session)
    }

    fn controller_config(&self, cntlid: u16) -> ControllerConfig {
        ControllerConfig {
            cntlid,
            kind: ControllerKind::Io,
            transport: Transport::Pcie { vectors: 0 },
            host: HostIdentity::default(),
            queue_entries_max: self.config.queue_entries_max,
            io_queues_max: self.config.io_queues_max,
            // A key may travel with a value; the transfer is rounded up to a power of two anyway.
            transfer_bytes_max: u64::from(self.config.value_bytes_max),
            result_bytes_max: self.config.result_bytes_max,
            kato_ms: 0,
            authentication: None,
            random,
        }
    }

    fn controller(
        &self,
        now_ms: u64,
        config: ControllerConfig,
        session: &Session<S>,
    ) -> Controller {
        match config.kind {
            ControllerKind::Io => {
                let subsystem = self.snapshot(&session.viewer);
                Controller::new(now_ms, config, Arc::new(subsystem))
            }
            ControllerKind::Discovery => {
                let subsystem = Subsystem {
                    nqn: DISCOVERY_NQN.to_owned(),
                    serial: self.config.serial.clone(),
                    model: self.config.model.clone(),
                    firmware: self.config.firmware.clone(),
                    generation: 0,
                    namespaces: Vec::new(),
                };
                let mut controller = Controller::new(now_ms, config, Arc::new(subsystem));
                controller.set_discovery(self.discovery_for(session));
                controller
            }
        }
    }

    fn session(
        &self,
        holder: Holder,
        host: Option<String>,
        viewer: Viewer,
        arrival: Arrival,
        authentication: Option<Authentication>,
        kind: ControllerKind,
    ) -> Option<Arc<Session<S>>> {
        let identifier = Arc::new(self.identifiers.take(holder)?);
        let host: Option<Arc<str>> = host.map(Arc::from);
        Some(Arc::new(Session {
            identifier,
            kind,
            live: Counting::new(&self.live, viewer.clone(), host.clone()),
            host,
            arrival,
            authentication,
            viewer,
            bound: Mutex::new(bound::Bound::default()),
            parts: Mutex::new(parts::Parts::default()),
            unfinished: Notify::new(),
            results: results::Results::of(&self.results),
            fusing: Semaphore::new(FUSING_MAX),
            changes: self.watchers.subscribe(),
            seen: self.generation().into(),
        }))
    }

    /// What discovery tells a host: subsystems only when it may come; where a door listens on any address, the one that it came to.
    pub(super) fn discovery_for(&self, session: &Session<S>) -> Arc<DiscoveryLog> {
        // Held until it is known what is known of the host: that is of this generation, too.
        let whole = self.discovery.read();
        let mut log = DiscoveryLog::clone(&whole);
        let Arrival { trusted, local, .. } = session.arrival;
        let may_come = |host: &str| self.viewer_of(host, trusted).is_some();
        if !session.host().is_none_or(may_come) {
            log.entries.retain(|entry| entry.kind != SubsystemType::Nvm);
        }
        let keyed = session
            .host()
            .is_some_and(|host| self.tls_key_of(host).is_some());
        for entry in &mut log.entries {
            entry.secure_channel = match entry.kind {
                SubsystemType::Nvm if keyed || self.config.tls_required => SecureChannel::Required,
                _ => SecureChannel::NotRequired,
            };
            let any = entry
                .address
                .parse()
                .is_ok_and(|ip: IpAddr| ip.is_unspecified());
            if let (true, Some(local)) = (any, local) {
                entry.address = local.to_string();
                entry.address_family = if local.is_ipv4() { 1 } else { 2 };
            }
        }
        Arc::new(log)
    }
}
