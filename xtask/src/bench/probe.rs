//! What is run for a row of a table.

use anyhow::Result;

use crate::bench::ceph::RGW;
use crate::bench::measure::{Bench, iperf3_way};
use crate::bench::peers::Server;
use crate::bench::redis::{EIGHT_CLIENTS, PIPELINED};
use crate::bench::sample::Sample;

/// What the engine reads of.
const ENGINE_SIZE: &str = "1G";
/// What fio is told where loads over a door stand beside it, which begin as long before their window.
const RAMP: &str = "--ramp_time=1";

/// What is run for a row.
pub enum Probe {
    /// `forebay bench s3` with these arguments against the server of this name.
    S3(&'static str, String),
    /// `forebay bench` with these arguments against the gRPC door of the server of this name.
    Direct(&'static str, String),
    /// The same against a server of its own that keeps no values in memory, over a new folder.
    Cold(String),
    /// `forebay bench` with these arguments, over a folder of its own.
    Own(String),
    /// `forebay bench` with these arguments, over nothing that was started here.
    Alone(String),
    /// `forebay bench` with these arguments, over the throwaway Ceph.
    Rados(String),
    /// Ceph's own load generator, `write` or `rand`, bytes of an object, operations in flight.
    RadosBench(&'static str, u64, usize),
    /// Whether the client gets or puts, and in so many streams.
    Iperf3(&'static str, usize),
    /// Block size, reads in flight of a job, jobs, of a file as large as what the engine reads.
    Fio(&'static str, usize, usize),
    /// Size of the file, block size, reads in flight, with as much load before the window as a door of ours has.
    FioOf(&'static str, &'static str, usize),
    /// The Redis of this name, `get` or `set`, bytes of a value, asked by eight clients.
    Redis(&'static str, &'static str, usize),
    /// The same asked by one client that has 32 requests under way.
    Pipelined(&'static str, &'static str, usize),
    /// The NBD server of this name, block size, reads in flight.
    Nbd(&'static str, &'static str, usize),
    /// Mooncake's transfer engine, `read` or `write`.
    Mooncake(&'static str),
    /// NIXL's OBJ back end on the server of this name, `read` or `write`.
    Nixl(&'static str, &'static str),
}

impl Probe {
    /// None when its peer is not there.
    pub fn measure(&self, bench: &Bench, servers: &[Server]) -> Result<Option<Sample>> {
        let server = |name: &str| servers.iter().find(|server| server.name == name);
        match self {
            Probe::S3(name, arguments) => {
                let measure = |server: &Server| bench.ours(arguments, &server.arguments());
                let sample = server(name).map(measure).transpose();
                // Also after a failure: what comes next needs the room.
                let collected = match *name {
                    RGW => bench.collect_garbage(),
                    _ => Ok(()),
                };
                let sample = sample?;
                collected.map(|()| sample)
            }
            Probe::Direct(name, arguments) => server(name)
                .map(|server| bench.direct(arguments, server))
                .transpose(),
            Probe::Cold(arguments) => bench.cold(arguments).map(Some),
            Probe::Own(arguments) => {
                let folder = bench.folder.display().to_string();
                let more = ["--dir".to_owned(), folder];
                bench.ours(arguments, &more).map(Some)
            }
            Probe::Alone(arguments) => bench.ours(arguments, &[]).map(Some),
            Probe::Rados(arguments) => bench.over_rados(arguments),
            Probe::RadosBench(mode, size, depth) => bench.rados_bench(mode, *size, *depth),
            Probe::Iperf3(op, streams) => bench.iperf3(op, *streams),
            Probe::Fio(block, depth, jobs) => bench.fio(ENGINE_SIZE, block, *depth, *jobs, None),
            Probe::FioOf(size, block, depth) => bench.fio(size, block, *depth, 1, Some(RAMP)),
            Probe::Redis(name, op, size) => server(name)
                .map(|server| bench.redis(server, op, *size, EIGHT_CLIENTS))
                .transpose(),
            Probe::Pipelined(name, op, size) => server(name)
                .map(|server| bench.redis(server, op, *size, PIPELINED))
                .transpose(),
            Probe::Nbd(name, block, depth) => match server(name) {
                Some(server) => bench.nbd(server, block, *depth),
                None => Ok(None),
            },
            Probe::Mooncake(op) => bench.mooncake(op),
            Probe::Nixl(name, op) => match server(name) {
                Some(server) => bench.nixl(server, op),
                None => Ok(None),
            },
        }
    }

    /// Whether it is a load of ours on a server of ours, or on none; peers are not there when only ours runs.
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Probe::S3(..) | Probe::Direct(..) | Probe::Cold(_) | Probe::Own(_) | Probe::Alone(_)
        )
    }

    /// The server that must run for it.
    pub fn server(&self) -> Option<&'static str> {
        match self {
            Probe::S3(name, _)
            | Probe::Direct(name, _)
            | Probe::Redis(name, _, _)
            | Probe::Pipelined(name, _, _)
            | Probe::Nbd(name, _, _)
            | Probe::Nixl(name, _) => Some(name),
            Probe::Cold(_)
            | Probe::Own(_)
            | Probe::Alone(_)
            | Probe::Rados(_)
            | Probe::RadosBench(..)
            | Probe::Iperf3(..)
            | Probe::Fio(..)
            | Probe::FioOf(..)
            | Probe::Mooncake(_) => None,
        }
    }

    /// The command, as one would type it.
    pub fn command(&self) -> String {
        match self {
            Probe::S3(_, arguments)
            | Probe::Direct(_, arguments)
            | Probe::Cold(arguments)
            | Probe::Own(arguments)
            | Probe::Alone(arguments) => format!("forebay bench {arguments}"),
            Probe::Rados(arguments) => format!("forebay bench {arguments} --pool POOL"),
            Probe::RadosBench(mode, size, depth) => {
                format!("rados bench SECONDS {mode} -b {size} -t {depth}")
            }
            Probe::Iperf3(op, streams) => {
                let way = iperf3_way(op).map(|way| format!(" {way}"));
                format!(
                    "iperf3 -c HOST -P {streams} -O 1{}",
                    way.unwrap_or_default()
                )
            }
            Probe::Fio(block, depth, jobs) => fio(ENGINE_SIZE, block, *depth, *jobs),
            Probe::FioOf(size, block, depth) => fio(size, block, *depth, 1) + " " + RAMP,
            Probe::Redis(_, op, size) => {
                format!(
                    "redis-benchmark -t {op} -d {size} {}",
                    EIGHT_CLIENTS.join(" ")
                )
            }
            Probe::Pipelined(_, op, size) => {
                format!("redis-benchmark -t {op} -d {size} {}", PIPELINED.join(" "))
            }
            Probe::Nbd(_, block, depth) => {
                format!("fio --rw=randread --ioengine=nbd --bs={block} --iodepth={depth}")
            }
            Probe::Mooncake(op) => format!("lab/peers/mooncake_tcp.py --op {op}"),
            Probe::Nixl(_, op) => format!("lab/peers/nixl_obj.py --op {op}"),
        }
    }
}

fn fio(size: &str, block: &str, depth: usize, jobs: usize) -> String {
    format!(
        "fio --rw=randread --direct=1 --ioengine=io_uring --size={size} --bs={block} --iodepth={depth} --numjobs={jobs}"
    )
}
