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
//! - [`Histogram`], [`Point`]: how latencies are kept and how a result is written.
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
mod cache;
mod cpu;
mod direct;
mod embedded;
mod engine;
mod error;
mod exec;
mod files;
mod histogram;
mod load;
mod memory;
mod nvme;
mod payload;
mod point;
mod rados;
pub mod s3;
mod server;
mod size;

use std::fmt;

use serde::Serialize;

pub use args::{
    Args, DirectArgs, DirectOp, EngineArgs, EngineOp, FilesArgs, Kind, MemoryArgs, NvmeArgs,
    NvmeOp, NvmePath, Op, S3Args,
};
pub use cache::{CacheArgs, CachePoint};
pub use error::Error;
pub use exec::{ExecArgs, ExecOp, ExecPoint};
pub use histogram::Histogram;
pub use point::Point;
pub use rados::RadosArgs;
pub use size::Size;

/// A result.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// Of a load.
    Load(Box<Point>),
    /// Of functions.
    Exec(Box<ExecPoint>),
    /// Of a cache.
    Cache(CachePoint),
}

impl Measured {
    /// Whether there were operations and all of them failed: then nothing was measured.
    #[must_use]
    pub fn failed(&self) -> bool {
        match self {
            Measured::Load(point) => point.errors > 0 && point.ops_per_s == 0.0,
            // Without a result there is no point of these.
            Measured::Exec(_) | Measured::Cache(_) => false,
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measured::Load(point) => point.fmt(f),
            Measured::Exec(point) => point.fmt(f),
            Measured::Cache(point) => point.fmt(f),
        }
    }
}

/// Measures what the arguments say: a point for every combination of operation, size and concurrency, in that order.
///
/// # Errors
/// When the endpoint cannot be reached or prepared, or a private server or directory cannot be had. Failed operations are not
/// errors: each point counts its own.
pub fn run(args: &Args) -> Result<Vec<Measured>, Error> {
    let points = match &args.kind {
        Kind::Cache(args) => {
            let points = cache::run(args)?.into_iter();
            return Ok(points.map(Measured::Cache).collect());
        }
        Kind::Exec(args) => {
            let points = exec::run(args)?.into_iter();
            let exec = |point| Measured::Exec(Box::new(point));
            return Ok(points.map(exec).collect());
        }
        Kind::S3(args) => s3::run(args),
        Kind::Direct(args) => direct::run(args, direct::DIRECT),
        Kind::Kv(args) => direct::run(args, direct::KV),
        Kind::Nvme(args) => nvme::run(args),
        Kind::Engine(args) => engine::run(args),
        Kind::Rados(args) => rados::run(args),
        Kind::Files(args) => files::run(args),
        Kind::Memory(args) => memory::run(args),
    }?;
    let load = |point| Measured::Load(Box::new(point));
    Ok(points.into_iter().map(load).collect())
}
