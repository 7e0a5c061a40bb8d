//! The flags of `forebay serve`; each long name is also a key of the configuration file.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use forebay_bench::Size;
use forebay_nvme::initiator::{NamespaceUrl, Scheme};

use super::cache::flags::CacheArgs;
use super::cold::ColdArgs;
use super::exec::ExecArgs;
use super::leaf::{CephArgs, Place};
use super::nvme::flags::{Export, NvmeTls, Publish, host_nqn};

/// What keeps the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Files of DIR
    Engine,
    /// Memory: everything is gone when the server ends, for tests
    Memory,
    /// A pool of a Ceph cluster
    Rados(Place),
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Backend, String> {
        match (text, text.strip_prefix("rados:")) {
            ("engine", _) => Ok(Backend::Engine),
            ("memory", _) => Ok(Backend::Memory),
            (_, Some(place)) => place.parse().map(Backend::Rados),
            _ => Err("there are engine, memory, rados:POOL and rados:POOL/NAMESPACE".to_owned()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Engine => f.write_str("engine"),
            Backend::Memory => f.write_str("memory"),
            Backend::Rados(place) if place.base.is_empty() => write!(f, "rados:{}", place.pool),
            Backend::Rados(place) => write!(f, "rados:{}/{}", place.pool, place.base),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// How entity tags are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Etag {
    /// MD5, as S3 does
    Md5,
    /// From the CRC-64/NVME that is made anyway: several times faster for one connection
    Crc64nvme,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| {
        "an IP address and a port are asked for, such as 127.0.0.1:9000 or [::]:9000".to_owned()
    };
    text.parse().map_err(wrong)
}

/// Where traces go: this program speaks no TLS to collectors.
#[cfg(feature = "otlp")]
fn collector(text: &str) -> Result<String, String> {
    let url = text.parse::<http::Uri>().ok();
    let is_http = |url: &http::Uri| url.scheme_str() == Some("http") && url.host().is_some();
    match url.as_ref().is_some_and(is_http) {
        true => Ok(text.to_owned()),
        false => Err("there are only http:// collectors, such as http://127.0.0.1:4317".to_owned()),
    }
}

/// A namespace that can keep the values.
fn blocks(text: &str) -> Result<NamespaceUrl, String> {
    let url = text.parse().ok();
    let url = url.filter(|url: &NamespaceUrl| url.scheme == Scheme::Block);
    url.ok_or_else(|| {
        "values lie on nvme+tcp://HOST[:PORT]/SUBNQN/NSID or nvme+vfio-user:///SOCKET/NSID"
            .to_owned()
    })
}

/// With less, transfers of the usual sizes find no buffers.
fn memory(text: &str) -> Result<Size, String> {
    match text.parse::<Size>()? {
        size if size.0 >= 8 << 20 => Ok(size),
        _ => Err("at least 8MiB".to_owned()),
    }
}

const EXAMPLES: &str = "\
Examples:
  forebay serve                                  ./forebay-data, every door on 127.0.0.1
  forebay serve /srv/objects --s3 0.0.0.0:443 --s3-tls-cert cert.pem --s3-tls-key key.pem
  forebay serve --nvme-namespace cache=1 --export disk=/srv/disk.img:2     NVMe hosts see keys and values, and blocks
  forebay serve /srv/index --device nvme+tcp://10.0.0.7:4420/nqn.2026-01.org.example:pool/1     values lie on that namespace
  forebay serve --config /etc/forebay.toml       a line there is a flag here: s3 = \"0.0.0.0:9000\"

The first start makes the tenant `root` with one access key and writes it to DIR/credentials (mode 0600, AWS format), unless
FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY give the pair. SIGTERM drains and ends with 0 within 10 s. With --cache-write-back it waits,
for two minutes or until another signal, for what the backend has yet to commit, and ends with 1 when some of it is lost. What was
acknowledged survives SIGKILL at any moment, but in namespaces of relaxed durability.";

/// Serve objects
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Where data, credentials and the socket for this host live; made when missing
    #[arg(default_value = "./forebay-data")]
    pub dir: PathBuf,
    /// A TOML file with these flags as keys; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What keeps the data: engine (files of DIR), memory (everything is gone at the end, for tests), rados:POOL[/NAMESPACE] (Ceph)
    #[arg(long, value_name = "BACKEND", default_value_t = Backend::Engine)]
    pub backend: Backend,
    /// Keep values on a namespace of blocks elsewhere, nvme+tcp://HOST:PORT/SUBNQN/NSID or nvme+vfio-user:///SOCKET/NSID; DIR keeps their index, and belongs to it
    #[arg(long, value_name = "URL", value_parser = blocks)]
    pub device: Option<NamespaceUrl>,
    /// Our NVMe Qualified Name for the device [default: of /etc/nvme/hostnqn, else one that is made up once and kept in DIR]
    #[arg(long, value_name = "NQN", requires = "device", value_parser = host_nqn)]
    pub device_host_nqn: Option<String>,
    /// What proves it (DH-HMAC-CHAP): DHHC-1:... [env: FOREBAY_DEVICE_CHAP_SECRET]
    #[arg(long, value_name = "SECRET", requires = "device")]
    pub device_chap_secret: Option<String>,
    /// The key of TLS to the device: NVMeTLSkey-1:... [env: FOREBAY_DEVICE_TLS_KEY]
    #[arg(long, value_name = "KEY", requires = "device")]
    pub device_tls_key: Option<String>,
    /// Address of the S3 door; port 0 picks one
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:9000")]
    pub s3: SocketAddr,
    /// Close the S3 door
    #[arg(long)]
    pub no_s3: bool,
    /// Domain for virtual-host style requests (BUCKET.DOMAIN); may be repeated
    #[arg(long, value_name = "DOMAIN")]
    pub s3_domain: Vec<String>,
    /// The region that the S3 door names
    #[arg(
        long,
        value_name = "NAME",
        default_value = "us-east-1",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub s3_region: String,
    /// How entity tags of objects are made
    #[arg(long, value_enum, default_value_t = Etag::Md5)]
    pub s3_etag: Etag,
    /// S3 requests served at once, of one tenant no more than are free beside its own; more are told to slow down
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub s3_requests: u32,
    /// Answer a GET whose token is not served with the object as a body, as for aws-c-s3; else it is declined with 501
    #[arg(long)]
    pub s3_decline_body: bool,
    /// Read the headers in which other vendors carry tokens, and refuse what is malformed; all else there is declined, as without
    #[arg(long)]
    pub s3_vendor_tokens: bool,
    /// Certificate chain (PEM): the S3 door then speaks TLS
    #[arg(long, value_name = "FILE", requires = "s3_tls_key")]
    pub s3_tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "s3_tls_cert")]
    pub s3_tls_key: Option<PathBuf>,
    /// Address of the gRPC door: administration, sessions, objects; port 0 picks one
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:9001")]
    pub rpc: SocketAddr,
    /// Close the gRPC door
    #[arg(long)]
    pub no_rpc: bool,
    /// Certificate chain (PEM): the gRPC door then speaks TLS
    #[arg(long, value_name = "FILE", requires = "rpc_tls_key")]
    pub rpc_tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "rpc_tls_cert")]
    pub rpc_tls_key: Option<PathBuf>,
    /// Certificates (PEM) that sign clients' certificates: who shows one needs no token
    #[arg(long, value_name = "FILE", requires = "rpc_tls_cert")]
    pub rpc_client_ca: Option<PathBuf>,
    /// Address of the direct door: iWARP, remote memory access over TCP; port 0 picks one
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:9002")]
    pub direct: SocketAddr,
    /// Certificate chain (PEM): the direct door then speaks TLS
    #[arg(long, value_name = "FILE", requires = "direct_tls_key")]
    pub direct_tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "direct_tls_cert")]
    pub direct_tls_key: Option<PathBuf>,
    /// Close the direct door and shared memory: payloads then go as bodies
    #[arg(long)]
    pub no_direct: bool,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:9003")]
    pub console: SocketAddr,
    /// Close the console
    #[arg(long)]
    pub no_console: bool,
    /// Address of the NVMe/TCP door; port 0 picks one
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:4420")]
    pub nvme: SocketAddr,
    /// Close the NVMe/TCP door
    #[arg(long)]
    pub no_nvme: bool,
    /// Publish a namespace to NVMe hosts as keys and values; made when missing; may be repeated
    #[arg(long, value_name = "NAME[=NSID]")]
    pub nvme_namespace: Vec<Publish>,
    /// Export a file or device, or SIZE bytes of memory, to NVMe hosts as blocks; or nothing, which frees NAME's number; may be repeated
    #[arg(long, value_name = "NAME=PATH|memory:SIZE[:NSID]|none")]
    pub export: Vec<Export>,
    /// Let any NVMe host in and show it all that is published; else those that `admin host add` knows, and on loopback DIR's owner
    #[arg(long)]
    pub nvme_allow_any_host: bool,
    /// Whether NVMe/TCP hosts must come by TLS: allowed (those that have a key must) or required (all must)
    #[arg(long, value_name = "WHEN", default_value = "allowed", value_enum)]
    pub nvme_tls: NvmeTls,
    /// The longest value that NVMe hosts may store, at most 128MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub nvme_value: Size,
    /// Serve NVMe controllers to virtual machines and programs of this host on sockets in DIR (vfio-user)
    #[arg(long, value_name = "DIR")]
    pub vfio_user: Option<PathBuf>,
    /// Allow a plaintext or unauthenticated door on an address that is not loopback
    #[arg(long)]
    pub insecure: bool,
    /// Written as JSON {door: address} once every door listens
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Threads that serve connections [default: one a core, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Bound on buffer memory, at least 8MiB, mapped as it is needed [default: an eighth of the machine's or its control group's, at most 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub memory: Option<Size>,
    /// Part of the buffer memory that may keep values read before; 0 keeps none [default: half]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Bound on the space that values take on disk [default: the file system's]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Size>,
    /// Open a store whose journal is damaged as it was before GROUP, which the refusal names: what came after is lost
    #[arg(long, value_name = "GROUP")]
    pub lose_journal_from: Option<u64>,
    /// Open a store whose index is damaged: what is damaged in it is refused when it is read, or lost where a finding says so
    #[arg(long)]
    pub accept_damaged_index: bool,
    /// Connections open at once; more wait
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Reach the disk by threads, not by io_uring
    #[arg(long)]
    pub no_uring: bool,
    /// What is logged: error, warn, info, debug, trace, or target=level,...
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Send traces to an OpenTelemetry collector (gRPC), such as http://127.0.0.1:4317
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", value_parser = collector)]
    pub otlp: Option<String>,
    #[command(flatten)]
    pub ceph: CephArgs,
    #[command(flatten)]
    pub before: CacheArgs,
    #[command(flatten)]
    pub far: ColdArgs,
    #[command(flatten)]
    pub exec: ExecArgs,
}
