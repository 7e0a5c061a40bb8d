//! The published set of the NVMe doors, and nbdkit, which serves blocks of its memory over NBD.

use anyhow::Result;

use crate::bench::figures::{Bound, Figure, contender, figure};
use crate::bench::measure::{Bench, read_fio};
use crate::bench::peers::{Server, first_line, listening, ports, quiet};
use crate::bench::probe::Probe;
use crate::bench::redis::DEFAULTS;
use crate::bench::sample::Sample;
use crate::tool::output;

const OURS: &str = "Forebay, NVMe/TCP";
const VFIO_USER: &str = "Forebay, vfio-user";
const ENGINE: &str = "Forebay's engine on the namespace";
const RAW: &str = "the namespace, raw";
const DURABLE: &str = "Forebay, NVMe/TCP, each on a file before it is acknowledged";
/// What tables call nbdkit.
pub const NBDKIT: &str = "nbdkit, memory, NBD over TCP";
/// What SPDK publishes for one queue on a machine of this kind, polling with a core at each end.
const SPDK_ONE: f64 = 67_000.0;
const SPDK_32: f64 = 384_000.0;
/// Blocks in the server's memory.
const BLOCKS: &str = "--blocks-in-memory";
/// A file system in memory.
const FILES: &str = "--dir /dev/shm";
/// Values in the server's memory alone.
const VALUES: &str = "--backend memory";
/// How much nbdkit serves and fio reads: as much as ours.
const DISK: &str = "256M";

/// One generating thread, which is one queue.
fn load(op: &str, size: &str, depth: usize, where_to: &str) -> String {
    format!("nvme --op {op} --size {size} --concurrency {depth} --threads 1 {where_to}")
}

/// All tables of the NVMe doors.
pub fn published() -> Vec<Figure> {
    let mut figures = over_tcp();
    figures.extend(over_vfio_user());
    figures.extend(values());
    figures
}

fn over_tcp() -> Vec<Figure> {
    let reads = |size: &str, depth| {
        let arguments = load("read", size, depth, BLOCKS);
        contender(OURS, Probe::Alone(arguments))
    };
    let remote = |name, op| {
        let arguments = load(op, "1MiB", 16, FILES);
        contender(name, Probe::Alone(arguments))
    };
    vec![
        figure(
            "NVMe: reads of 4 KiB over TCP, one in flight, blocks in memory",
            vec![
                reads("4KiB", 1),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "4k", 1)),
            ],
            vec![Bound::PerSecond(SPDK_ONE)],
        ),
        figure(
            "NVMe: reads of 4 KiB over TCP, 32 in flight, blocks in memory",
            vec![
                reads("4KiB", 32),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "4k", 32)),
            ],
            vec![Bound::PerSecond(SPDK_32), Bound::Rate(NBDKIT, 3.0)],
        ),
        figure(
            "NVMe: reads of 128 KiB over TCP, 8 in flight, blocks in memory",
            vec![
                reads("128KiB", 8),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "128k", 8)),
                contender("iperf3", Probe::Iperf3("get", 1)),
            ],
            vec![Bound::Bytes("iperf3", 0.7)],
        ),
        figure(
            "NVMe: GET 1 MiB from an engine whose data is on a namespace elsewhere, 16 in flight",
            vec![remote(ENGINE, "get"), remote(RAW, "read")],
            vec![Bound::Bytes(RAW, 0.8)],
        ),
    ]
}

fn over_vfio_user() -> Vec<Figure> {
    let ours = |op, size: &str, depth, more: &str| {
        load(op, size, depth, &format!("--path vfio-user {more}"))
    };
    let memory = ours("read", "4KiB", 32, BLOCKS);
    // Who polls takes a core from the device.
    let disk = ours("read", "4KiB", 32, "--sleep");
    let cold = ours("retrieve", "1MiB", 16, "--sleep --cold");
    vec![
        figure(
            "NVMe: reads of 4 KiB over vfio-user, 32 in flight, blocks in memory",
            vec![contender(VFIO_USER, Probe::Alone(memory))],
            vec![Bound::PerSecond(1_000_000.0)],
        ),
        figure(
            "NVMe: reads of 4 KiB over vfio-user, 32 in flight, blocks of a file",
            vec![
                contender(VFIO_USER, Probe::Own(disk)),
                contender("fio", Probe::FioOf(DISK, "4k", 32)),
            ],
            vec![Bound::Rate("fio", 0.9)],
        ),
        figure(
            "NVMe: KV Retrieve of 1 MiB over vfio-user, cold, 16 in flight",
            vec![
                contender(VFIO_USER, Probe::Own(cold)),
                contender("fio", Probe::FioOf(DISK, "1M", 16)),
            ],
            vec![Bound::NoCopies],
        ),
    ]
}

fn values() -> Vec<Figure> {
    let table = |name, op, redis| {
        figure(
            name,
            vec![
                contender(OURS, Probe::Alone(load(op, "4KiB", 32, VALUES))),
                contender(DURABLE, Probe::Alone(load(op, "4KiB", 32, FILES))),
                contender(DEFAULTS, Probe::Pipelined(DEFAULTS, redis, 4096)),
            ],
            vec![Bound::Rate(DEFAULTS, 1.0)],
        )
    };
    vec![
        table(
            "NVMe: KV Store of 4 KiB over TCP, 32 in flight, values in memory",
            "store",
            "set",
        ),
        table(
            "NVMe: KV Retrieve of 4 KiB over TCP, 32 in flight, values in memory",
            "retrieve",
            "get",
        ),
    ]
}

/// nbdkit with a disk in its memory.
pub fn nbdkit(bench: &Bench) -> Result<Option<Server>> {
    let Some(program) = bench.find("nbdkit") else {
        return Ok(None);
    };
    let [port] = ports()?;
    let child = quiet(
        bench
            .command(&program)
            .args([
                "--foreground",
                "--ipaddr",
                "127.0.0.1",
                "--port",
                &port.to_string(),
            ])
            .args(["memory", DISK]),
    )?;
    let version = first_line(&program, &["--version"]);
    listening(NBDKIT, port, child, version).map(Some)
}

impl Bench {
    /// Random reads by fio of a disk that is served over NBD, written before.
    pub fn nbd(&self, server: &Server, block: &str, depth: usize) -> Result<Option<Sample>> {
        let Some(program) = self.find("fio") else {
            return Ok(None);
        };
        let fio = |mode: &str, block: &str, depth: usize| {
            let mut fio = self.command(&program);
            fio.args(["--name=bench", "--ioengine=nbd", "--output-format=json"])
                .arg(format!(
                    "--uri={}",
                    server.endpoint.replace("http:", "nbd:")
                ))
                .arg(format!("--rw={mode}"))
                .arg(format!("--bs={block}"))
                .arg(format!("--iodepth={depth}"))
                .arg(format!("--size={DISK}"));
            fio
        };
        output(&mut fio("write", "1M", 4))?;
        let window = format!("--runtime={}", self.seconds.ceil());
        let told = output(fio("randread", block, depth).args(["--time_based", &window]))?;
        read_fio(&told).map(Some)
    }
}
