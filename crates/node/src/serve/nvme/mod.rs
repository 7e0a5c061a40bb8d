//! The NVMe doors of this node: what they show to whom, over TCP and to clients of this host by vfio-user.

pub mod flags;
mod follow;
pub mod metrics;
mod peer;
mod vfio_user;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_control::api::{NamespaceChange, NewNamespace};
use forebay_control::{Admin, Identities, Kind, Published, ROOT_TENANT, What};
use forebay_io::files::{Directory, OpenFile};
use forebay_io::{Disk, OpenOptions, SystemClock};
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
use super::{absolute, stopped};
use crate::exit::{Exit, Failure, Outcome};
use flags::{Export, NvmeTls, Place};

pub use vfio_user::path as device_path;

/// Blocks of exports: what every host can use.
const LBA_SHIFT: u8 = 9;

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

/// A file or device that is open.
struct Exported {
    export: Export,
    file: OpenFile,
    read_only: bool,
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
        let value_bytes_max = u32::try_from(args.nvme_value.0).ok();
        let value_bytes_max = value_bytes_max.filter(|bytes| *bytes <= target::VALUE_BYTES_MAX);
        let Some(value_bytes_max) = value_bytes_max else {
            return Err(Failure::new(
                Exit::Usage,
                "--nvme-value: hosts move a value with one command, at most 128MiB",
            ));
        };
        let mut exports = Vec::new();
        for export in &args.export {
            let exported = open_export(export, &args.dir)?;
            let published = identities.publish_block(&export.name, export.nsid).await;
            published.map_err(|error| flag("export", &export.name, error))?;
            exports.push(exported);
        }
        for wanted in &args.nvme_namespace {
            let nsid = Some(Some(wanted.nsid.unwrap_or(0)));
            let config = NamespaceChange {
                nsid,
                ..NamespaceChange::default()
            };
            let name = &wanted.namespace;
            let published = match admin.namespace(name) {
                Ok(_) => admin.change_namespace(name, config).await,
                Err(error) if error.kind == Kind::NotFound => {
                    let new = NewNamespace {
                        name: name.clone(),
                        tenant: ROOT_TENANT.to_owned(),
                        config,
                    };
                    admin.create_namespace(new).await
                }
                Err(error) => Err(error),
            };
            published.map_err(|error| flag("nvme-namespace", name, error))?;
        }
        let uuid = identities.subsystem_uuid().await?;
        let config = TargetConfig {
            nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{}", hyphenated(&uuid)),
            serial: uuid.chars().take(20).collect(),
            value_bytes_max,
            controllers_max: u16::try_from(args.connections).unwrap_or(u16::MAX),
            allow_any_host: args.nvme_allow_any_host,
            tls_required: args.nvme_tls == NvmeTls::Required,
            ..TargetConfig::default()
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
    let backing = match &published.what {
        What::KeyValue { namespace, id } => Backing::KeyValue {
            namespace: namespace.clone(),
            id: Some(*id),
        },
        What::Block { name } => {
            let exported = exports.iter().find(|one| one.export.name == *name)?;
            Backing::Block {
                file: exported.file.clone(),
                lba_shift: LBA_SHIFT,
                read_only: exported.read_only,
                tenant: Some(ROOT_TENANT.to_owned()),
            }
        }
    };
    let uuid = u128::from_str_radix(&published.uuid, 16).ok()?;
    Some(target::Published {
        nsid: published.nsid,
        uuid: uuid.to_be_bytes(),
        backing,
    })
}

/// Opens what is exported: for writing when that is allowed.
fn open_export(export: &Export, dir: &Path) -> Outcome<Exported> {
    let shown = &export.place;
    let failed = |error| Failure::io(format_args!("--export {shown}"))(error);
    let path = match &export.place {
        Place::Path(path) => absolute(path),
        Place::Memory(bytes) => {
            return Ok(Exported {
                export: export.clone(),
                file: OpenFile::in_memory(*bytes).map_err(failed)?,
                read_only: false,
            });
        }
    };
    let real = std::fs::canonicalize(&path).map_err(failed)?;
    if real.starts_with(std::fs::canonicalize(dir).map_err(failed)?) {
        return Err(Failure::new(
            Exit::Usage,
            format_args!("--export {shown}: the data directory's own files are not for export"),
        ));
    }
    let (Some(folder), Some(name)) = (real.parent(), real.file_name().and_then(|n| n.to_str()))
    else {
        return Err(Failure::new(
            Exit::Usage,
            format_args!("--export {shown}: not a file or device"),
        ));
    };
    let disk = Directory::open(folder).map_err(failed)?;
    let open = |read_only| {
        let options = OpenOptions {
            create: false,
            read_only,
            direct: true,
        };
        disk.open(name, options)
    };
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let (file, read_only) = match open(false) {
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            (open(true).map_err(failed)?, true)
        }
        opened => (opened.map_err(failed)?, false),
    };
    tracing::info!(name = export.name, path = %real.display(), read_only, "exported");
    Ok(Exported {
        export: export.clone(),
        file,
        read_only,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_people_do() {
        assert_eq!(
            hyphenated("0123456789abcdef0123456789abcdef"),
            "01234567-89ab-cdef-0123-456789abcdef"
        );
    }

    #[test]
    fn files_of_the_data_directory_are_not_exported() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        std::fs::create_dir(&dir).unwrap();
        for (path, fine) in [("disk", true), ("data/data", false)] {
            let path = folder.path().join(path);
            std::fs::write(&path, [0; 4096]).unwrap();
            let export = Export {
                name: "x".to_owned(),
                place: Place::Path(path),
                nsid: None,
            };
            assert_eq!(open_export(&export, &dir).is_ok(), fine);
        }
    }
}
