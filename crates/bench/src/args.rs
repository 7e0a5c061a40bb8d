//! What to measure, as the command line says it.

use std::fmt::Display;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use forebay_client::direct::Choice;
use forebay_client::{Credentials, Endpoint};
use forebay_nvme::initiator::NamespaceUrl;

use crate::bounds::{Seconds, count, objects, window};
use crate::embedded::EmbeddedArgs;
use crate::{CacheArgs, Error, ExecArgs, RadosArgs, Size, examples};

/// Arguments of `forebay bench`.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Which generator.
    #[command(subcommand)]
    pub kind: Kind,
}

/// Which generator.
#[derive(Clone, Debug, Subcommand)]
pub enum Kind {
    /// An S3 endpoint: a running one, or a private server started for the measurement
    #[command(after_help = examples::S3)]
    S3(S3Args),
    /// The direct path: one value a call, between the store and registered memory
    #[command(after_help = examples::DIRECT)]
    Direct(DirectArgs),
    /// The direct path as a cache uses it: blocks in batches, in a namespace that answers stores before they are on disk
    #[command(after_help = examples::KV)]
    Kv(DirectArgs),
    /// NVMe/TCP: blocks and values of a namespace, of a running target or of a private server
    #[command(after_help = examples::NVME)]
    Nvme(NvmeArgs),
    /// The embedded engine over a directory, without a network
    #[command(after_help = examples::ENGINE)]
    Engine(EngineArgs),
    /// Functions sent to objects of the embedded engine, and the same work without
    #[command(after_help = examples::EXEC)]
    Exec(ExecArgs),
    /// A pool of a Ceph cluster through the store that `--backend rados` serves, without a network of ours
    #[command(after_help = examples::RADOS)]
    Rados(RadosArgs),
    /// The naive durable store for comparison: every value a file, written and fsynced
    #[command(after_help = examples::FILES)]
    Files(FilesArgs),
    /// One thread copying memory, for comparison with shared memory
    #[command(after_help = examples::MEMORY)]
    Memory(MemoryArgs),
    /// The hit ratio of the cache before a backend on a trace, beside simulations and the optimum
    #[command(after_help = examples::CACHE)]
    Cache(CacheArgs),
}

/// An operation on an S3 endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// GET random objects whole
    Get,
    /// PUT objects, replacing them in turn
    Put,
    /// HEAD random objects
    Head,
    /// List 1000 keys from a random place
    List,
    /// Three GETs for every PUT
    Mixed,
}

impl Op {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::Head => "head",
            Op::List => "list",
            Op::Mixed => "mixed",
        }
    }
}

/// Arguments of `forebay bench s3`.
#[derive(Clone, Debug, clap::Args)]
pub struct S3Args {
    /// Operations to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get")]
    pub op: Vec<Op>,
    /// Sizes of the objects
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Connections, each with one request in flight
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// Load before the window that is not counted
    #[arg(long, default_value = "1", value_name = "SECONDS")]
    pub warm_up: Seconds,
    /// How many objects to work on [default: as many as fill 256 MiB, at most 4096; 10000 to list]
    #[arg(long, value_parser = objects)]
    pub objects: Option<u64>,
    /// Generating threads [default: half the cores]
    #[arg(long, value_parser = count)]
    pub threads: Option<usize>,
    /// Sign the bodies of PUTs (SHA-256) in place of UNSIGNED-PAYLOAD
    #[arg(long)]
    pub signed_payload: bool,
    /// Acknowledge every segment at once (TCP_QUICKACK), which hides a server that stalls ordinary clients
    #[arg(long)]
    pub quick_ack: bool,
    /// A running endpoint, http://HOST:PORT [default: a private server]
    #[arg(long)]
    pub endpoint: Option<String>,
    /// The endpoint's process, whose CPU time is then told
    #[arg(long, requires = "endpoint", value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Made when it is missing
    #[arg(long, default_value = "bench")]
    pub bucket: String,
    /// Whose requests they are.
    #[command(flatten)]
    pub keys: Keys,
    /// Signs the requests
    #[arg(long, default_value = "us-east-1")]
    pub region: String,
    /// Where a private server keeps its data, in a new directory that is removed afterwards [default: the system's
    /// temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The private server starts with an empty cache of values and keeps none, so that GETs read the device
    #[arg(long, conflicts_with = "endpoint")]
    pub cold: bool,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// What a running endpoint knows its user by; a private server makes its own.
#[derive(Clone, Debug, clap::Args)]
pub struct Keys {
    /// Says to a running endpoint who asks
    #[arg(long, env = "FOREBAY_ACCESS_KEY")]
    pub access_key: Option<String>,
    /// Proves it
    #[arg(
        long,
        env = "FOREBAY_SECRET_KEY",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    pub secret_key: Option<String>,
}

impl Keys {
    /// Both.
    ///
    /// # Errors
    /// [`Error::Usage`] when one is missing.
    pub(crate) fn given(&self, endpoint: impl Display) -> Result<Credentials, Error> {
        let given = |key: &Option<String>, flag: &str, variable: &str| {
            key.clone().filter(|key| !key.is_empty()).ok_or_else(|| {
                Error::Usage(format!(
                    "{endpoint} needs keys: give {flag} or set {variable}"
                ))
            })
        };
        Ok(Credentials {
            access_key: given(&self.access_key, "--access-key", "FOREBAY_ACCESS_KEY")?,
            secret_key: given(&self.secret_key, "--secret-key", "FOREBAY_SECRET_KEY")?,
        })
    }
}

/// An operation of the direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectOp {
    /// Get random values whole
    Get,
    /// Put values, replacing them in turn
    Put,
    /// Get batches of random values, each with one call
    Gather,
    /// Put batches of values, each with one call
    Scatter,
    /// Ask for batches of random keys whether they hold values
    Exist,
}

impl DirectOp {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DirectOp::Get => "get",
            DirectOp::Put => "put",
            DirectOp::Gather => "gather",
            DirectOp::Scatter => "scatter",
            DirectOp::Exist => "exist",
        }
    }

    /// Whether the values must be there before.
    pub(crate) fn reads(self) -> bool {
        match self {
            DirectOp::Get | DirectOp::Gather | DirectOp::Exist => true,
            DirectOp::Put | DirectOp::Scatter => false,
        }
    }
}

/// Arguments of `forebay bench direct` and `forebay bench kv`.
#[derive(Clone, Debug, clap::Args)]
pub struct DirectArgs {
    /// Operations to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get")]
    pub op: Vec<DirectOp>,
    /// Sizes of the values
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Calls in flight, shared out over the threads
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Values of a gather or scatter, keys of an exist [default: 64; 1000 for exist]
    #[arg(long, value_parser = count)]
    pub batch: Option<usize>,
    /// The way payloads take: auto, shm, iwarp or http
    #[arg(long, default_value = "auto")]
    pub path: Choice,
    /// Links of each thread
    #[arg(long, default_value = "1", value_parser = count)]
    pub links: usize,
    /// Make no checksums over the client's memory
    #[arg(long)]
    pub no_checksum: bool,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// Load before the window that is not counted
    #[arg(long, default_value = "1", value_name = "SECONDS")]
    pub warm_up: Seconds,
    /// How many values to work on [default: as many as fill 256 MiB, at most 4096]
    #[arg(long, value_parser = objects)]
    pub objects: Option<u64>,
    /// Generating threads, each a client of its own [default: half the cores]
    #[arg(long, value_parser = count)]
    pub threads: Option<usize>,
    /// A running gRPC endpoint, http://HOST:PORT [default: a private server]
    #[arg(long, env = "FOREBAY_ENDPOINT")]
    pub endpoint: Option<Endpoint>,
    /// Certificates of the endpoint to trust (PEM) [default: the machine's]
    #[arg(long, requires = "endpoint", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The endpoint's process, whose CPU time is then told
    #[arg(long, requires = "endpoint", value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Made when it is missing [default: bench-direct, bench-kv]
    #[arg(long)]
    pub namespace: Option<String>,
    /// Whose requests they are.
    #[command(flatten)]
    pub keys: Keys,
    /// Where a private server keeps its data, in a new directory that is removed afterwards [default: the system's
    /// temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The private server keeps no values in memory, so that gets read the device
    #[arg(long, conflicts_with = "endpoint")]
    pub cold: bool,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// The way of NVMe commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NvmePath {
    /// NVMe/TCP
    Tcp,
    /// Queues in shared memory, by vfio-user
    VfioUser,
}

impl NvmePath {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NvmePath::Tcp => "nvme-tcp",
            NvmePath::VfioUser => "vfio-user",
        }
    }
}

/// An operation over NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NvmeOp {
    /// Read random blocks
    Read,
    /// Write blocks in turn
    Write,
    /// Store values, replacing them in turn
    Store,
    /// Retrieve random values whole
    Retrieve,
    /// Get random values of an engine whose data lies on blocks of the server
    Get,
}

impl NvmeOp {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NvmeOp::Read => "read",
            NvmeOp::Write => "write",
            NvmeOp::Store => "store",
            NvmeOp::Retrieve => "retrieve",
            NvmeOp::Get => "get",
        }
    }
}

/// Arguments of `forebay bench nvme`.
#[derive(Clone, Debug, clap::Args)]
pub struct NvmeArgs {
    /// Operations to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read")]
    pub op: Vec<NvmeOp>,
    /// Bytes of one command
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Commands in flight, shared out over the threads
    #[arg(long, value_delimiter = ',', default_value = "32", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// The way commands take
    #[arg(long, value_enum, default_value = "tcp")]
    pub path: NvmePath,
    /// Over vfio-user sleep between completions, instead of polling for them
    #[arg(long)]
    pub sleep: bool,
    /// A CRC32C over headers
    #[arg(long)]
    pub header_digest: bool,
    /// A CRC32C over data
    #[arg(long)]
    pub data_digest: bool,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// Load before the window that is not counted
    #[arg(long, default_value = "1", value_name = "SECONDS")]
    pub warm_up: Seconds,
    /// How many values, or places of the size, to work on [default: as many as fill 256 MiB; of values at most 4096]
    #[arg(long, value_parser = objects)]
    pub objects: Option<u64>,
    /// Generating threads, each a host with a queue of its own [default: half the cores]
    #[arg(long, value_parser = count)]
    pub threads: Option<usize>,
    /// A namespace, nvme+tcp://HOST:PORT/SUBNQN/NSID or kv://HOST:PORT/SUBNQN/NSID; on this machine also nvme+vfio-user:///SOCKET/NSID or
    /// kv:///SOCKET/NSID [default: those of a private server]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<NamespaceUrl>,
    /// The endpoint's process, whose CPU time is then told
    #[arg(long, requires = "endpoint", value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Write over the blocks of the endpoint
    #[arg(long, requires = "endpoint")]
    pub overwrite: bool,
    /// Where a private server keeps its data and the file that it exports, in new directories that are removed afterwards; in
    /// memory where it is a tmpfs [default: the system's temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The private server keeps no values in memory, so that retrieving reads the device
    #[arg(long, conflicts_with = "endpoint")]
    pub cold: bool,
    /// Where the private server keeps values, as `serve --backend` says it
    #[arg(long, default_value = "engine", conflicts_with = "endpoint")]
    pub backend: String,
    /// The private server keeps the blocks in its own memory
    #[arg(long, conflicts_with = "endpoint")]
    pub blocks_in_memory: bool,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// An operation on the embedded engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineOp {
    /// Retrieve random values whole
    Get,
    /// Store values, replacing them in turn
    Put,
}

impl EngineOp {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineOp::Get => "get",
            EngineOp::Put => "put",
        }
    }
}

/// Arguments of `forebay bench engine`.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// What is measured
    #[command(flatten)]
    pub load: EmbeddedArgs,
    /// Keep no values in memory, so that every read is one of the device
    #[arg(long)]
    pub cold: bool,
    /// Where the engine keeps its files, in a new directory that is removed afterwards [default: the system's temporary
    /// directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Arguments of `forebay bench files`.
#[derive(Clone, Debug, clap::Args)]
pub struct FilesArgs {
    /// Sizes of the values
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Threads, each writing one value at a time
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// Where the files go, in a new directory that is removed afterwards [default: the system's temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `forebay bench memory`.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Sizes of the values
    #[arg(long, value_delimiter = ',', default_value = "1MiB")]
    pub size: Vec<Size>,
    /// Places that values are copied to in turn
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Whether results are wanted as JSON objects.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.kind {
            Kind::S3(args) => args.json,
            Kind::Direct(args) | Kind::Kv(args) => args.json,
            Kind::Nvme(args) => args.json,
            Kind::Engine(args) => args.load.json,
            Kind::Exec(args) => args.json,
            Kind::Rados(args) => args.load.json,
            Kind::Files(args) => args.json,
            Kind::Memory(args) => args.json,
            Kind::Cache(args) => args.json,
        }
    }
}
