//! The doors of this node on TCP: bound, described, and where to find them.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use forebay_control::api;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use super::args::ServeArgs;
use super::nvme::flags::NvmeTls;
use super::shards::{DiskIo, Serve, Shards};
use super::{absolute, nvme, rpc, socket, tls, whole_file};
use crate::exit::{Exit, Failure, Outcome};

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: i32 = 4096;

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
    pub s3: Option<Bound>,
    pub rpc: Option<Bound>,
    pub direct: Option<Bound>,
    pub console: Option<Bound>,
    pub nvme: Option<Bound>,
}

/// One that is bound.
pub struct Bound {
    /// The flag that says where.
    flag: &'static str,
    listener: TcpListener,
    pub address: SocketAddr,
    /// Where it speaks TLS of its own.
    pub tls: Option<Arc<ServerConfig>>,
}

/// A door as others are told of it.
struct Told {
    name: &'static str,
    /// As it listens.
    listens: String,
    /// As clients of this host name it.
    reached: String,
}

impl Listeners {
    /// Binds every door that is to be open.
    pub fn bind(args: &ServeArgs) -> Outcome<Listeners> {
        let s3 = || {
            let tls = tls::http(args.s3_tls_cert.as_deref(), args.s3_tls_key.as_deref())?;
            Bound::bind("s3", args.s3, tls)
        };
        let rpc = || Bound::bind("rpc", args.rpc, rpc::tls(args)?);
        let direct = || {
            let (certificate, key) = (&args.direct_tls_cert, &args.direct_tls_key);
            let tls = tls::links(certificate.as_deref(), key.as_deref())?;
            Bound::bind("direct", args.direct, tls)
        };
        let console = || Bound::bind("console", args.console, None);
        let nvme = || Bound::bind("nvme", args.nvme, None);
        Ok(Listeners {
            s3: (!args.no_s3).then(s3).transpose()?,
            rpc: (!args.no_rpc).then(rpc).transpose()?,
            direct: (!args.no_direct).then(direct).transpose()?,
            console: (!args.no_console).then(console).transpose()?,
            nvme: (!args.no_nvme).then(nvme).transpose()?,
        })
    }

    /// The S3 door, as clients name it.
    pub fn s3_url(&self) -> Option<String> {
        self.s3.as_ref().map(Bound::url)
    }

    /// Where the direct door listens.
    pub fn direct_listens(&self) -> Option<SocketAddr> {
        self.direct.as_ref().map(|bound| bound.address)
    }

    /// Whether it speaks TLS.
    pub fn direct_is_secure(&self) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|bound| bound.tls.is_some())
    }

    /// Every door, that of vfio-user among them.
    fn each(&self, args: &ServeArgs) -> Vec<Told> {
        let told = |reached: fn(&Bound) -> String| {
            move |bound: &Bound| Told {
                name: bound.flag,
                listens: bound.address.to_string(),
                reached: reached(bound),
            }
        };
        let bound = [
            self.s3.as_ref().map(told(Bound::url)),
            self.rpc.as_ref().map(told(Bound::url)),
            self.direct.as_ref().map(told(Bound::reached)),
            self.console.as_ref().map(told(Bound::url)),
            self.nvme.as_ref().map(told(Bound::reached)),
        ];
        let bound = bound.into_iter().flatten();
        let device = args.vfio_user.as_ref().map(|dir| {
            let path = nvme::device_path(dir).display().to_string();
            Told {
                name: "vfio-user",
                listens: path.clone(),
                reached: path,
            }
        });
        bound.chain(device).collect()
    }

    /// Tells whoever waits where the doors are.
    pub fn write_ready_file(&self, args: &ServeArgs) -> Outcome {
        let Some(path) = &args.ready_file else {
            return Ok(());
        };
        let each = self.each(args).into_iter();
        let mut doors: BTreeMap<_, _> = each.map(|door| (door.name, door.listens)).collect();
        let socket = absolute(&socket::path(&args.dir)).display().to_string();
        if !args.no_direct {
            doors.insert("shm", socket.clone());
        }
        doors.insert("admin", socket);
        let text = serde_json::to_vec(&doors).map_err(|error| Failure::new(Exit::Failed, error))?;
        whole_file::write(path, &text, false).map_err(Failure::io(path.display()))
    }

    /// What the admin API says of this process.
    pub fn server(&self, args: &ServeArgs, shards: &Shards, disk_io: &DiskIo) -> api::Server {
        let each = self.each(args).into_iter();
        api::Server {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: 0,
            doors: each
                .map(|door| (door.name.to_owned(), door.reached))
                .collect(),
            backend: args.backend.to_string(),
            disk_io: disk_io.to_string(),
            shards: shards.count(),
        }
    }
}

/// Takes back what [`Listeners::write_ready_file`] told.
pub fn forget_ready_file(args: &ServeArgs) {
    if let Some(path) = &args.ready_file {
        // Usually there is none.
        let _ = std::fs::remove_file(path);
    }
}

impl Bound {
    fn bind(
        flag: &'static str,
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
    ) -> Outcome<Bound> {
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
            Ok(Bound {
                flag,
                address: listener.local_addr()?,
                listener,
                tls,
            })
        };
        bound().map_err(|error: std::io::Error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrInUse => " (port 0 picks a free one)",
                _ => "",
            };
            Failure::new(
                Exit::Failed,
                format_args!("--{flag} {address}: {error}{hint}"),
            )
        })
    }

    /// As clients name a door that speaks HTTP.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme(), reachable(self.address))
    }

    /// The same as it listens: who is told of it elsewhere knows what "any address" is there.
    pub fn listens(&self) -> String {
        format!("{}://{}", self.scheme(), self.address)
    }

    fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// As clients name a door that speaks something else.
    fn reached(&self) -> String {
        reachable(self.address).to_string()
    }

    /// The same socket on this thread's reactor.
    pub fn watched(&self) -> Outcome<tokio::net::TcpListener> {
        let watched = self.listener.set_nonblocking(true).and_then(|()| {
            let listener = self.listener.try_clone()?;
            tokio::net::TcpListener::from_std(listener)
        });
        watched.map_err(Failure::io(format_args!("--{}", self.flag)))
    }

    /// Gives the connections of this door, which people call `name`, to the shards.
    pub fn open(
        &self,
        name: &'static str,
        shards: &Arc<Shards>,
        serve: Serve,
        stopping: &watch::Receiver<bool>,
    ) -> Outcome {
        let listener = self.listener.try_clone();
        let listener = listener.map_err(Failure::io(format_args!("--{}", self.flag)))?;
        let (shards, stopping) = (shards.clone(), stopping.clone());
        tokio::spawn(async move {
            if let Err(error) = shards.accept(listener, serve, stopping).await {
                tracing::error!(%error, "the {name} door is closed");
            }
        });
        Ok(())
    }
}

/// An address that a client can connect to: "any address" means this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::from(([127, 0, 0, 1], v4.port()))
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from((Ipv6Addr::LOCALHOST, v6.port()))
        }
        address => address,
    }
}
