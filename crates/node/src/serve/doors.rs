//! The doors of this node: bound, described, opened.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_control::{Admin, api};
use forebay_fabric::Sessions;
use forebay_s3::{AccessKey, AccessKeys, Door};
use forebay_store::Store;
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::args::{Etag, ServeArgs};
use super::direct::Direct;
use super::http::{Answer, Asked, MODULES_BYTES_MAX, WORDS_BYTES_MAX, serve};
use super::nvme::flags::NvmeTls;
use super::shards::{DiskIo, Serve, Shards};
use super::socket::Requests;
use super::{credentials, live, nvme, rpc, socket, stopped, tls};
use crate::exit::{Exit, Failure, Outcome};

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 4096;
/// How long a client may take to agree on keys.
pub const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses what would show data or keys to a network unasked (`--insecure`).
pub fn check(args: &ServeArgs) -> Outcome {
    let refuse = |door: &str, address: SocketAddr, remedy: &str| {
        Err(Failure::new(
            Exit::Usage,
            format_args!(
                "--{door} {address} would be open to the network without protection: {remedy}"
            ),
        ))
    };
    if args.insecure {
        return Ok(());
    }
    if !args.no_s3 && !args.s3.ip().is_loopback() && args.s3_tls_cert.is_none() {
        return refuse(
            "s3",
            args.s3,
            "give --s3-tls-cert and --s3-tls-key, or say --insecure",
        );
    }
    if !args.no_rpc && !args.rpc.ip().is_loopback() && args.rpc_tls_cert.is_none() {
        return refuse(
            "rpc",
            args.rpc,
            "give --rpc-tls-cert and --rpc-tls-key, or say --insecure",
        );
    }
    if !args.no_direct && !args.direct.ip().is_loopback() && args.direct_tls_cert.is_none() {
        return refuse(
            "direct",
            args.direct,
            "give --direct-tls-cert and --direct-tls-key, or say --insecure or --no-direct",
        );
    }
    if !args.no_nvme && !args.nvme.ip().is_loopback() && args.nvme_tls != NvmeTls::Required {
        return refuse(
            "nvme",
            args.nvme,
            "payloads travel in the clear: say --nvme-tls required, --insecure, or --no-nvme",
        );
    }
    if !args.no_console && !args.console.ip().is_loopback() {
        return refuse("console", args.console, "say --insecure, or --no-console");
    }
    Ok(())
}

/// Sockets that are bound and not yet served.
pub struct Listeners {
    s3: Option<(TcpListener, SocketAddr, Option<TlsAcceptor>)>,
    rpc: Option<Rpc>,
    direct: Option<(TcpListener, SocketAddr, Option<Arc<ServerConfig>>)>,
    console: Option<(TcpListener, SocketAddr)>,
    nvme: Option<(TcpListener, SocketAddr)>,
}

struct Rpc {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
}

impl Listeners {
    /// Binds every door that is to be open.
    pub fn bind(args: &ServeArgs) -> Outcome<Listeners> {
        let s3 = match args.no_s3 {
            true => None,
            false => {
                let tls = match (&args.s3_tls_cert, &args.s3_tls_key) {
                    (Some(certificate), Some(key)) => Some(tls::http(certificate, key)?),
                    _ => None,
                };
                let (listener, address) = bind("s3", args.s3)?;
                Some((listener, address, tls))
            }
        };
        let rpc = match args.no_rpc {
            true => None,
            false => {
                let tls = rpc::tls(args)?;
                let (listener, address) = bind("rpc", args.rpc)?;
                Some(Rpc {
                    listener,
                    address,
                    tls,
                })
            }
        };
        let direct = match args.no_direct {
            true => None,
            false => {
                let tls = match (&args.direct_tls_cert, &args.direct_tls_key) {
                    (Some(certificate), Some(key)) => Some(tls::links(certificate, key)?),
                    _ => None,
                };
                let (listener, address) = bind("direct", args.direct)?;
                Some((listener, address, tls))
            }
        };
        let console = match args.no_console {
            true => None,
            false => Some(bind("console", args.console)?),
        };
        let nvme = match args.no_nvme {
            true => None,
            false => Some(bind("nvme", args.nvme)?),
        };
        Ok(Listeners {
            s3,
            rpc,
            direct,
            console,
            nvme,
        })
    }

    /// The S3 door, as clients name it.
    pub fn s3_url(&self) -> Option<String> {
        let (_, address, tls) = self.s3.as_ref()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}", reachable(*address)))
    }

    /// The S3 door as it listens: who is told of it elsewhere knows what "any address" is there.
    pub fn s3_listens(&self) -> Option<String> {
        let (_, address, tls) = self.s3.as_ref()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }

    /// The gRPC door, as clients name it.
    pub fn rpc_url(&self) -> Option<String> {
        let rpc = self.rpc.as_ref()?;
        let scheme = if rpc.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}", reachable(rpc.address)))
    }

    /// The gRPC door's socket and its TLS.
    pub fn rpc(&self) -> Outcome<Option<(tokio::net::TcpListener, Option<Arc<ServerConfig>>)>> {
        let Some(rpc) = &self.rpc else {
            return Ok(None);
        };
        let listener = watched(&rpc.listener).map_err(Failure::io("--rpc"))?;
        Ok(Some((listener, rpc.tls.clone())))
    }

    /// Where the direct door listens.
    pub fn direct_listens(&self) -> Option<SocketAddr> {
        self.direct.as_ref().map(|(_, address, _)| *address)
    }

    /// Whether it speaks TLS.
    pub fn direct_is_secure(&self) -> bool {
        matches!(self.direct, Some((.., Some(_))))
    }

    /// The NVMe/TCP door, and where it listens.
    pub fn nvme(&self) -> Option<(&TcpListener, SocketAddr)> {
        self.nvme
            .as_ref()
            .map(|(listener, address)| (listener, *address))
    }

    /// The console, as a browser names it.
    pub fn console_url(&self) -> Option<String> {
        let (_, address) = self.console.as_ref()?;
        Some(format!("http://{}", reachable(*address)))
    }

    /// Tells whoever waits where the doors are.
    pub fn write_ready_file(&self, args: &ServeArgs) -> Outcome {
        let Some(path) = &args.ready_file else {
            return Ok(());
        };
        let mut doors = BTreeMap::new();
        if let Some((_, address, _)) = &self.s3 {
            doors.insert("s3", address.to_string());
        }
        if let Some(rpc) = &self.rpc {
            doors.insert("rpc", rpc.address.to_string());
        }
        if let Some((_, address, _)) = &self.direct {
            doors.insert("direct", address.to_string());
        }
        if let Some((_, address)) = &self.console {
            doors.insert("console", address.to_string());
        }
        if let Some((_, address)) = &self.nvme {
            doors.insert("nvme", address.to_string());
        }
        if let Some(dir) = &args.vfio_user {
            doors.insert("vfio-user", nvme::device_path(dir).display().to_string());
        }
        let socket = absolute(&socket::path(&args.dir));
        doors.insert("admin", socket.display().to_string());
        if !args.no_direct {
            doors.insert("shm", socket.display().to_string());
        }
        let text = serde_json::to_vec(&doors).map_err(|error| Failure::new(Exit::Failed, error))?;
        credentials::write_atomically(path, &text, false).map_err(Failure::io(path.display()))
    }

    /// What the admin API says of this process.
    pub fn server(&self, args: &ServeArgs, shards: &Shards, disk_io: &DiskIo) -> api::Server {
        let mut doors = BTreeMap::new();
        if let Some(url) = self.s3_url() {
            doors.insert("s3".to_owned(), url);
        }
        if let Some(url) = self.rpc_url() {
            doors.insert("rpc".to_owned(), url);
        }
        if let Some(address) = self.direct_listens().map(reachable) {
            doors.insert("direct".to_owned(), address.to_string());
        }
        if let Some(url) = self.console_url() {
            doors.insert("console".to_owned(), url);
        }
        if let Some((_, address)) = &self.nvme {
            doors.insert("nvme".to_owned(), reachable(*address).to_string());
        }
        if let Some(dir) = &args.vfio_user {
            let socket = nvme::device_path(dir).display().to_string();
            doors.insert("vfio-user".to_owned(), socket);
        }
        api::Server {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: 0,
            doors,
            backend: args.backend.to_string(),
            disk_io: disk_io.to_string(),
            shards: shards.count(),
        }
    }
}

/// As another process names it.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// An address that a client can connect to: "any address" means this host.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::from(([127, 0, 0, 1], v4.port()))
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, v6.port()))
        }
        address => address,
    }
}

fn bind(door: &str, address: SocketAddr) -> Outcome<(TcpListener, SocketAddr)> {
    let bound = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        forebay_io::socket::unpaced(&socket, address.ip());
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format_args!("--{door} {address}: {error} (port 0 picks a free one)"),
        )
    })
}

/// The S3 door's configuration, with buffers of a pool of `pool_bytes`.
pub fn s3_config(args: &ServeArgs, pool_bytes: u64) -> forebay_s3::Config {
    forebay_s3::Config {
        region: args.s3_region.clone(),
        domains: args.s3_domain.clone(),
        requests_in_flight: args.s3_requests as usize,
        pool_bytes,
        etag: match args.s3_etag {
            Etag::Md5 => forebay_s3::EtagKind::Md5,
            Etag::Crc64nvme => forebay_s3::EtagKind::Crc64Nvme,
        },
        decline_with_body: args.s3_decline_body,
        ..forebay_s3::Config::default()
    }
}

/// Gives the S3 door's connections to the shards.
pub fn open_s3<S: Store<Body: Unpin>>(
    listeners: &Listeners,
    shards: &Arc<Shards>,
    door: &Arc<Door<S>>,
    stopping: &watch::Receiver<bool>,
) -> Outcome {
    let Some((listener, _, tls)) = &listeners.s3 else {
        return Ok(());
    };
    let listener = listener.try_clone().map_err(Failure::io("--s3"))?;
    let (door, tls, down) = (door.clone(), tls.clone(), stopping.clone());
    let serve: Serve = Arc::new(move |stream, peer| {
        let (door, tls, down) = (door.clone(), tls.clone(), down.clone());
        Box::pin(async move {
            let shutdown = stopped(down);
            let Some(tls) = tls else {
                return door
                    .serve_connection(stream, Some(peer), false, shutdown)
                    .await;
            };
            match tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    door.serve_connection(stream, Some(peer), true, shutdown)
                        .await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
                Err(_) => tracing::debug!(%peer, "no TLS in time"),
            }
        })
    });
    let (shards, stopping) = (shards.clone(), stopping.clone());
    tokio::spawn(async move {
        if let Err(error) = shards.accept(listener, serve, stopping).await {
            tracing::error!(%error, "the S3 door is closed");
        }
    });
    Ok(())
}

/// Gives the connections of the direct door to the shards.
pub fn open_direct<S: Store>(
    listeners: &Listeners,
    shards: &Arc<Shards>,
    direct: &Arc<Direct<S>>,
    stopping: &watch::Receiver<bool>,
) -> Outcome {
    let Some((listener, _, tls)) = &listeners.direct else {
        return Ok(());
    };
    let listener = listener.try_clone().map_err(Failure::io("--direct"))?;
    let serve = direct.iwarp(tls.clone(), stopping);
    let (shards, stopping) = (shards.clone(), stopping.clone());
    tokio::spawn(async move {
        if let Err(error) = shards.accept(listener, serve, stopping).await {
            tracing::error!(%error, "the direct door is closed");
        }
    });
    Ok(())
}

/// Where the S3 door's clients may lend their memory; nowhere when the direct door is to stay closed.
pub fn lenders(
    args: &ServeArgs,
    listeners: &Listeners,
    sessions: &Arc<Sessions>,
) -> Option<forebay_s3::Direct> {
    (!args.no_direct).then(|| forebay_s3::Direct {
        uds: Some(absolute(&socket::path(&args.dir))),
        cm: listeners.direct_listens(),
        cm_tls: listeners.direct_is_secure(),
        vendor_carriers: args.s3_vendor_tokens,
        ..forebay_s3::Direct::new(sessions.clone())
    })
}

/// The same socket on this thread's reactor.
fn watched(listener: &TcpListener) -> std::io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener.try_clone()?)
}

/// Serves `/metrics`, `/healthz` and `/readyz`, until `ending`: whoever asks before then hears that the process is `stopping`.
pub fn open_console(
    listeners: &Listeners,
    registry: Arc<RwLock<Registry>>,
    stopping: &watch::Receiver<bool>,
    ending: &watch::Receiver<bool>,
) -> Outcome {
    let Some((listener, _)) = &listeners.console else {
        return Ok(());
    };
    let listener = watched(listener).map_err(Failure::io("--console"))?;
    let stopped = stopping.clone();
    let handle = move |asked: Asked| {
        let answer = console(&asked, &registry, *stopped.borrow());
        async move { answer }
    };
    tokio::spawn(serve(listener, handle, WORDS_BYTES_MAX, ending.clone()));
    Ok(())
}

fn console(asked: &Asked, registry: &RwLock<Registry>, stopping: bool) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET" | "HEAD", "/healthz") => Answer::text(200, "ok\n"),
        ("GET" | "HEAD", "/readyz") if stopping => Answer::text(503, "draining\n"),
        ("GET" | "HEAD", "/readyz") => Answer::text(200, "ready\n"),
        ("GET" | "HEAD", "/metrics") => {
            let mut text = String::new();
            match prometheus_client::encoding::text::encode(&mut text, &registry.read()) {
                Ok(()) => Answer {
                    status: 200,
                    content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    body: text.into_bytes(),
                },
                Err(error) => Answer::text(500, format!("{error}\n")),
            }
        }
        ("GET" | "HEAD", "/") => Answer::text(200, "forebay\n/metrics\n/healthz\n/readyz\n"),
        ("GET" | "HEAD", _) => Answer::text(404, "not found\n"),
        _ => Answer::text(405, "only GET\n"),
    }
}

/// Serves the admin API to this user, until `stopping`; the task ends when the requests in progress have.
pub fn open_admin<S: Store>(
    requests: Requests,
    admin: Arc<Admin<S>>,
    doors: Arc<live::Doors<S>>,
    stopping: &watch::Receiver<bool>,
) -> JoinHandle<()> {
    let handle = move |asked: Asked| {
        let (admin, doors) = (admin.clone(), doors.clone());
        async move {
            if (asked.method.as_str(), asked.path.as_str()) == ("GET", live::PATH) {
                return live::answer(&doors);
            }
            let reply = admin
                .handle(asked.method.as_str(), &asked.path, &asked.body)
                .await;
            Answer {
                status: reply.status,
                content_type: "application/json",
                body: reply.body,
            }
        }
    };
    tokio::spawn(serve(requests, handle, MODULES_BYTES_MAX, stopping.clone()))
}

/// The access keys as the S3 door asks for them, replaced whole at every change.
#[derive(Default)]
pub struct Keyring {
    keys: RwLock<HashMap<String, Arc<AccessKey>>>,
}

impl Keyring {
    /// Follows a change.
    pub fn replace(&self, keys: &[Arc<forebay_control::AccessKey>]) {
        let keys = keys.iter().map(|key| {
            let same = AccessKey {
                id: key.id.clone(),
                secret: key.secret.clone(),
                tenant: key.tenant.clone(),
            };
            (key.id.clone(), Arc::new(same))
        });
        *self.keys.write() = keys.collect();
    }
}

impl AccessKeys for Keyring {
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>> {
        self.keys.read().get(access_key_id).cloned()
    }
}
