//! The published set of the NVMe doors, and nbdkit, which serves blocks of its memory over NBD.

use anyhow::Result;

use crate::bench::figures::{Bound, Figure, contender, figure};
use crate::bench::measure::{Bench, read_fio};
use crate::bench::peers::{Server, first_line, listening, ports, quiet};
use crate::bench::probe::Probe;
use crate::bench::redis::DEFAULTS;
use crate::bench::sample::Sample;
use crate::tool::{command, output};

const OURS: &str = "Forebay, NVMe/TCP";
/// What tables call nbdkit.
pub const NBDKIT: &str = "nbdkit, memory, NBD over TCP";
/// What SPDK publishes for one queue on a machine of this kind, polling with a core at each end.
const SPDK_ONE: f64 = 67_000.0;
const SPDK_32: f64 = 384_000.0;
/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// How much nbdkit serves: as much as ours.
const DISK: &str = "256M";

/// All tables of the NVMe doors.
pub fn published() -> Vec<Figure> {
    let ours = |op: &str, size: &str, depth: usize| {
        let arguments = format!(
            "nvme --op {op} --size {size} --concurrency {depth} --threads 1 --dir {MEMORY}"
        );
        contender(OURS, Probe::Alone(arguments))
    };
    let redis = |op| contender(DEFAULTS, Probe::Pipelined(DEFAULTS, op, 4096));
    vec![
        figure(
            "NVMe: reads of 4 KiB over TCP, one in flight, blocks in memory",
            vec![
                ours("read", "4KiB", 1),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "4k", 1)),
            ],
            vec![Bound::PerSecond(SPDK_ONE)],
        ),
        figure(
            "NVMe: reads of 4 KiB over TCP, 32 in flight, blocks in memory",
            vec![
                ours("read", "4KiB", 32),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "4k", 32)),
            ],
            vec![Bound::PerSecond(SPDK_32), Bound::Rate(NBDKIT, 3.0)],
        ),
        figure(
            "NVMe: reads of 128 KiB over TCP, 8 in flight, blocks in memory",
            vec![
                ours("read", "128KiB", 8),
                contender(NBDKIT, Probe::Nbd(NBDKIT, "128k", 8)),
                contender("iperf3", Probe::Iperf3(1)),
            ],
            vec![Bound::Bytes("iperf3", 0.7)],
        ),
        figure(
            "NVMe: KV Store of 4 KiB over TCP, 32 in flight, values in memory",
            vec![ours("store", "4KiB", 32), redis("set")],
            vec![Bound::Rate(DEFAULTS, 1.0)],
        ),
        figure(
            "NVMe: KV Retrieve of 4 KiB over TCP, 32 in flight, values in memory",
            vec![ours("retrieve", "4KiB", 32), redis("get")],
            vec![Bound::Rate(DEFAULTS, 1.0)],
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
        command(&program)
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
            let mut fio = command(&program);
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
