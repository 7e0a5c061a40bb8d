//! The NVMe doors of this node: what they show to whom, over TCP and to clients of this host by vfio-user.

mod exports;
pub mod flags;
mod follow;
pub mod metrics;
mod numbers;
mod peer;
#[cfg(test)]
mod tests;
mod vfio_user;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_bench::Size;
use forebay_control::{Admin, Identities, Published, What};
use forebay_io::SystemClock;
use forebay_io::files::OpenFile;
use forebay_mem::Pool;
use forebay_nvme::target::{self, Backing, Host, Target, TargetConfig};
use forebay_nvme::tcp;
use forebay_proto::nvme::auth::Secret;
use forebay_proto::nvme::discovery::{DiscoveryEntry, SecureChannel, SubsystemType, TRANSPORT_TCP};
use forebay_proto::nvme::psk::TlsKey;
use forebay_store::Store;
use tokio::sync::watch;

use super::args::ServeArgs;
use super::listeners::Listeners;
use super::owner::Owner;
use super::shards::{Serve, Shards};
use super::stopped;
use crate::exit::{Exit, Failure, Outcome};
use exports::Exported;
use flags::NvmeTls;

pub use vfio_user::path as device_path;

/// What the doors have in common.
pub struct Nvme<S: Store> {
    /// What hosts see.
    pub target: Arc<Target<S, OpenFile>>,
    tcp: tcp::Door<S, OpenFile>,
    /// Clients of vfio-user that are served now.
    devices: AtomicUsize,
    identities: Arc<Identities<S>>,
    store: Arc<S>,
}

impl<S: Store> Nvme<S> {
    /// Publishes what the flags name, and follows what administrators change from now on.
    pub async fn open(
        args: &ServeArgs,
        admin: &Admin<S>,
        identities: Arc<Identities<S>>,
        store: Arc<S>,
        pool: Pool,
    ) -> Outcome<Arc<Nvme<S>>> {
        let mut config = TargetConfig::default();
        let mut exports = Vec::new();
        // What closed doors would show is nobody's matter.
        if !args.no_nvme || args.vfio_user.is_some() {
            config.value_bytes_max = value_bytes_max(args.nvme_value)?;
            exports = exports::open(&args.export, &args.dir, identities.is_shared())?;
            let namespaces = &args.nvme_namespace;
            numbers::give(&args.export, namespaces, admin, &identities, &*store).await?;
        }
        let uuid = identities.subsystem_uuid().await?;
        let config = TargetConfig {
            nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{}", hyphenated(&uuid)),
            serial: uuid.chars().take(20).collect(),
            controllers_max: u16::try_from(args.connections).unwrap_or(u16::MAX),
            allow_any_host: args.nvme_allow_any_host,
            tls_required: args.nvme_tls == NvmeTls::Required,
            ..config
        };
        let clock = Arc::new(SystemClock::default());
        let target = Arc::new(Target::new(store.clone(), pool, clock, config));
        let shown = target.clone();
        identities.on_nvme_changed(move |hosts, published| {
            shown.set_hosts(hosts.iter().map(|host| admitted(host)).collect());
            let published = published.iter();
            shown.publish(
                published
                    .filter_map(|one| shown_as(one, &exports))
                    .collect(),
            );
        });
        Ok(Arc::new(Nvme {
            tcp: tcp::Door::new(target.clone()),
            devices: AtomicUsize::new(0),
            target,
            identities,
            store,
        }))
    }

    /// Gives the connections of the TCP door to the shards, and tells hosts that discover where it is.
    pub fn open_tcp(
        self: &Arc<Nvme<S>>,
        listeners: &Listeners,
        dir: &Path,
        shards: &Arc<Shards>,
        stopping: &watch::Receiver<bool>,
    ) -> Outcome {
        let Some(bound) = &listeners.nvme else {
            return Ok(());
        };
        let address = bound.address;
        let owner = owner(dir)?;
        self.target.set_addresses(vec![DiscoveryEntry {
            transport: TRANSPORT_TCP,
            address_family: if address.is_ipv4() { 1 } else { 2 },
            kind: SubsystemType::Nvm,
            port_id: 1,
            service: address.port().to_string(),
            subnqn: self.target.config().nqn.clone(),
            address: address.ip().to_string(),
            secure_channel: SecureChannel::NotSpecified,
        }]);
        let (nvme, stop) = (self.clone(), stopping.clone());
        let serve: Serve = Arc::new(move |stream, peer| {
            let (nvme, stop) = (nvme.clone(), stop.clone());
            Box::pin(async move {
                let trusted = match stream.local_addr().and_then(|own| peer::user(own, peer)) {
                    Ok(user) => user.is_some_and(|user| owner.admits(user)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot tell whose a connection is");
                        false
                    }
                };
                nvme.tcp.serve_trusted(stream, trusted, stopped(stop)).await;
            })
        });
        bound.open("NVMe", shards, serve, stopping)
    }

    /// Opens the socket of vfio-user, where one is asked for.
    pub fn open_devices(
        self: &Arc<Nvme<S>>,
        args: &ServeArgs,
        shards: &Arc<Shards>,
        stopping: &watch::Receiver<bool>,
    ) -> Outcome {
        if let Some(dir) = &args.vfio_user {
            let socket = vfio_user::bind(dir, owner(&args.dir)?)?;
            let (nvme, shards) = (self.clone(), shards.clone());
            tokio::spawn(vfio_user::serve(socket, nvme, shards, stopping.clone()));
        }
        Ok(())
    }
}

fn value_bytes_max(flag: Size) -> Outcome<u32> {
    let bytes = u32::try_from(flag.0).ok();
    let bytes = bytes.filter(|bytes| *bytes <= target::VALUE_BYTES_MAX);
    bytes.ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "--nvme-value: hosts move a value with one command, at most 128MiB",
        )
    })
}

fn owner(dir: &Path) -> Outcome<Owner> {
    Owner::of(dir).map_err(Failure::io(dir.display()))
}

fn flag(name: &str, value: &str, error: forebay_control::Error) -> Failure {
    let failure = Failure::from(error);
    Failure::new(failure.exit, format_args!("--{name} {value}: {failure}"))
}

/// As the doors know a host. Its secret and its key were checked when they were kept.
fn admitted(host: &forebay_control::Host) -> Host {
    Host {
        nqn: host.nqn.clone(),
        tenant: host.tenant.clone(),
        secret: host.chap_secret.as_deref().and_then(Secret::parse),
        tls_key: host.tls_key.as_deref().and_then(TlsKey::parse),
        subsystem_secret: None,
    }
}

/// As the doors show what has a number; nothing for an export that is not open now.
fn shown_as(published: &Published, exports: &[Exported]) -> Option<target::Published<OpenFile>> {
    let kept = u128::from_str_radix(&published.uuid, 16).ok()?;
    let kept = kept.to_be_bytes();
    let (uuid, backing) = match &published.what {
        What::KeyValue { namespace, id } => {
            let namespace = namespace.clone();
            let id = Some(*id);
            (kept, Backing::KeyValue { namespace, id })
        }
        What::Block { name } => {
            let exported = exports.iter().find(|one| one.name == *name)?;
            (exported.uuid(kept), exported.backing())
        }
    };
    Some(target::Published {
        nsid: published.nsid,
        uuid,
        backing,
    })
}

/// A UUID of 32 digits as people write it.
fn hyphenated(uuid: &str) -> String {
    let mut text = String::with_capacity(36);
    for (at, digit) in uuid.chars().enumerate() {
        if matches!(at, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}
