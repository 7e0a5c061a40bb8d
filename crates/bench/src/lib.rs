//! Load generators and what they measure: the figures behind `forebay bench`.
//!
//! Made of
//! - [`s3`]: a closed-loop S3 client (any endpoint, so that peers are measured by the same code) that costs as little CPU as a
//!   client can: non-blocking sockets, requests built in place, one signature each, bodies read into one reused buffer;
//! - `direct`: a closed loop over the direct path (shared memory, iWARP) or, for comparison, the same calls over HTTP;
//! - `nvme`: a closed loop over NVMe/TCP or vfio-user, of blocks or of values;
//! - `load`: threads, the measured window and what was seen in it, the same for all of these;
//! - `engine`: the embedded engine in this process, through the waist (`embedded` works on any store);
//! - `exec`: functions sent to the data, beside the same work done by the caller;
//! - `rados`: a pool of a Ceph cluster, through the same loop;
//! - `files`: the naive store that a durable PUT is compared with: a file and an fsync each;
//! - `cache`: hit ratios on traces, of the cache layer as it is and of simulations;
//! - `memory`: what a transfer through shared memory is compared with: one thread's memcpy;
//! - `server`: a private server, when no endpoint is given;
//! - `bounds`: what may be asked for;
//! - `belongings`: what has to go when this program is told to end;
//! - [`Histogram`], [`Point`]: how latencies are kept and how a result is written; [`Results`]: how it is handed out.
//!
//! It does not judge: nothing here asserts a time, and nothing here runs in a test suite except the parsers and the arithmetic.
//!
//! Invariants
//! - Every operation between the end of the warm-up and the end of the window is counted, as a success with its whole latency
//!   or as an error; none is dropped from the histogram.
//! - A body that a GET returns has been compared with what was stored, once for each size, before it is measured.
//! - Client CPU is that of the generating threads alone; server CPU is that of one process, or is not given.
//!
//! Tested by running every operation against a small HTTP server that answers whole, in pieces, in chunks and with errors.
#![forbid(unsafe_code)]

mod args;
mod belongings;
mod bounds;
mod cache;
mod cpu;
mod direct;
mod embedded;
mod engine;
mod error;
mod examples;
mod exec;
mod files;
mod histogram;
mod load;
mod measured;
mod memory;
mod nvme;
mod payload;
mod point;
mod rados;
pub mod s3;
mod server;
mod size;

pub use args::{
    Args, DirectArgs, DirectOp, EngineArgs, EngineOp, FilesArgs, Kind, MemoryArgs, NvmeArgs,
    NvmeOp, NvmePath, Op, S3Args,
};
pub use belongings::abandon;
pub use bounds::Seconds;
pub use cache::{CacheArgs, CachePoint};
pub use error::Error;
pub use exec::{ExecArgs, ExecOp, ExecPoint};
pub use histogram::Histogram;
pub use measured::{Measured, Results};
pub use point::Point;
pub use rados::RadosArgs;
pub use size::Size;

/// Measures what the arguments say: a point for every combination of operation, size and concurrency, in that order, handed out as soon
/// as it is there.
///
/// # Errors
/// When the endpoint cannot be reached or prepared, or a private server or directory cannot be had. Failed operations are not
/// errors: each point counts its own.
pub fn run(args: &Args, results: &Results) -> Result<(), Error> {
    match &args.kind {
        Kind::S3(args) => s3::run(args, results),
        Kind::Direct(args) => direct::run(args, direct::DIRECT, results),
        Kind::Kv(args) => direct::run(args, direct::KV, results),
        Kind::Nvme(args) => nvme::run(args, results),
        Kind::Engine(args) => engine::run(args, results),
        Kind::Exec(args) => exec::run(args, results),
        Kind::Rados(args) => rados::run(args, results),
        Kind::Files(args) => files::run(args, results),
        Kind::Memory(args) => memory::run(args, results),
        Kind::Cache(args) => cache::run(args, results),
    }
}
