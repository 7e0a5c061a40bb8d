//! The published set over Ceph: our store beside `rados bench`, our gateway beside Ceph's own, all on one throwaway cluster of one
//! OSD that keeps its objects in memory.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bench::figures::{Bound, FOREBAY, Figure, contender, figure};
use crate::bench::machine;
use crate::bench::measure::Bench;
use crate::bench::peers::{self, Server, first_line, ports};
use crate::bench::probe::Probe;
use crate::bench::sample::Sample;
use crate::ceph::{Ceph, POOL};
use crate::tool::output;

/// What tables call our server over Ceph.
pub const GATEWAY: &str = "Forebay over Ceph";
/// What tables call the same with a cache that holds all that is asked for.
pub const CACHED: &str = "Forebay over Ceph, cached";
/// What tables call Ceph's own S3 gateway.
pub const RGW: &str = "RGW";
const STORE: &str = "Forebay's store";
const RADOS_BENCH: &str = "rados bench";
/// Operations in flight.
const DEPTH: usize = 16;
/// Of the OSD, in MiB: all that a generator writes from one collection of garbage to the next, also what it replaced itself. The least is
/// for two cores, the most for 5 GB/s in a warm-up of 1 s and a window of 5 s. It takes up to twice as much memory.
const OSD_MIB: RangeInclusive<u64> = 8192..=32_768;
/// Values of this many bytes fill it once.
const FILL_BYTES: u64 = 4 << 20;
/// How long that may take.
const FILL_ONCE: Duration = Duration::from_secs(120);
/// How long the gateway's collection of garbage may take, in seconds.
const COLLECTING: &str = "120";
/// How long `rados bench` writes what it is to read.
const FILLING: Duration = Duration::from_secs(2);

/// All tables over Ceph.
pub fn published() -> Vec<Figure> {
    let store = |name, op: &str, mode, size: &str, bytes| {
        // One thread asks for all, as in `rados bench`.
        let arguments = format!("rados --op {op} --size {size} --concurrency {DEPTH} --shards 1");
        figure(
            name,
            vec![
                contender(STORE, Probe::Rados(arguments)),
                contender(RADOS_BENCH, Probe::RadosBench(mode, bytes, DEPTH)),
            ],
            vec![Bound::Rate(RADOS_BENCH, 0.9)],
        )
    };
    let s3 = |name, op: &str, size: &str, times| {
        let arguments = format!("s3 --op {op} --size {size}");
        let asked = |name| contender(name, Probe::S3(name, arguments.clone()));
        // What is asked for is ours without a cache; with one is told beside it, where it can help.
        let mut contenders = vec![asked(GATEWAY), asked(RGW)];
        if op == "get" {
            contenders.push(asked(CACHED));
        }
        figure(
            name,
            contenders,
            vec![Bound::Rate(RGW, times), Bound::Cpu(RGW, 0.5)],
        )
    };
    let cached = |name, probe: fn(&'static str) -> Probe| {
        let ours = contender(CACHED, probe(CACHED));
        let engine = contender(FOREBAY, probe(FOREBAY));
        figure(name, vec![ours, engine], vec![Bound::Rate(FOREBAY, 0.95)])
    };
    vec![
        cached(
            "Ceph: GET 1 MiB out of the cache, S3, 8 connections",
            |name| Probe::S3(name, "s3 --op get --size 1MiB --warm-up 3".to_owned()),
        ),
        cached(
            "Ceph: GET 1 MiB out of the cache, shared memory, 8 connections",
            |name| {
                let arguments = "direct --op get --size 1MiB --path shm --concurrency 8 --threads 1 --warm-up 3";
                Probe::Direct(name, arguments.to_owned())
            },
        ),
        store(
            "Ceph: put of 4 KiB, 16 in flight",
            "put",
            "write",
            "4KiB",
            4 << 10,
        ),
        store(
            "Ceph: get of 4 KiB, 16 in flight",
            "get",
            "rand",
            "4KiB",
            4 << 10,
        ),
        store(
            "Ceph: put of 4 MiB, 16 in flight",
            "put",
            "write",
            "4MiB",
            4 << 20,
        ),
        store(
            "Ceph: get of 4 MiB, 16 in flight",
            "get",
            "rand",
            "4MiB",
            4 << 20,
        ),
        // With others RGW waits for the delayed acknowledgement of each answer's first part.
        s3(
            "Ceph: S3 GET 4 KiB, 8 connections, clients that acknowledge at once",
            "get",
            "4KiB --quick-ack",
            3.0,
        ),
        s3("Ceph: S3 GET 1 MiB, 8 connections", "get", "1MiB", 2.0),
        s3("Ceph: S3 GET 64 MiB, 8 connections", "get", "64MiB", 2.0),
        s3("Ceph: S3 PUT 4 KiB, 8 connections", "put", "4KiB", 3.0),
        s3("Ceph: S3 PUT 1 MiB, 8 connections", "put", "1MiB", 2.0),
        s3("Ceph: S3 PUT 64 MiB, 8 connections", "put", "64MiB", 2.0),
    ]
}

/// Our server, with its defaults, over the cluster.
pub fn gateway(bench: &Bench) -> Result<Option<Server>> {
    over_cluster(bench, "gateway", GATEWAY, POOL, &[])
}

/// The same, apart from the other in the pool, with room for a few hundred values of 1 MiB in memory.
pub fn cached_gateway(bench: &Bench) -> Result<Option<Server>> {
    let place = format!("{POOL}/cached");
    over_cluster(bench, "cached", CACHED, &place, &["--cache-memory", "2GiB"])
}

fn over_cluster(
    bench: &Bench,
    folder: &str,
    name: &'static str,
    place: &str,
    more: &[&str],
) -> Result<Option<Server>> {
    let Some(ceph) = bench.ceph() else {
        return Ok(None);
    };
    let backend = format!("rados:{place}");
    let conf = ceph.variable("CEPH_CONF")?;
    let mut flags = vec!["--backend", &backend, "--ceph-conf", conf];
    flags.extend(more);
    peers::forebay(bench, folder, name, &flags).map(Some)
}

/// Ceph's own gateway, with its defaults; it goes with the cluster.
pub fn rgw(bench: &Bench) -> Result<Option<Server>> {
    let Some(ceph) = bench.ceph() else {
        return Ok(None);
    };
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| ceph.variable(name));
    let [access_key, secret_key] = keys;
    Ok(Some(Server {
        name: RGW,
        version: first_line("radosgw".as_ref(), &["--version"]),
        endpoint: ceph.variable("S3_ENDPOINT")?.to_owned(),
        rpc: None,
        console: None,
        keys: [access_key?.to_owned(), secret_key?.to_owned()],
        pid: ceph.pid("rgw")?,
        child: None,
    }))
}

impl Bench {
    /// The cluster; none where there can be none.
    fn ceph(&self) -> Option<&Ceph> {
        let start = || -> Result<Ceph> {
            let [port] = ports()?.map(|port| port.to_string());
            let osd_mib = osd_mib(machine::available_mib());
            let size = osd_mib.to_string();
            let ceph = Ceph::up(&["--osds", "1", "--size", &size, "--rgw", &port])?;
            self.use_once(&ceph, osd_mib)?;
            Ok(ceph)
        };
        let started = self.ceph.get_or_init(|| {
            start()
                .map_err(|error| eprintln!("no Ceph: {error:#}"))
                .ok()
        });
        started.as_ref()
    }

    /// Has Ceph's own gateway remove what was deleted, which it leaves for hours: after some rounds the OSD would be full.
    pub fn collect_garbage(&self) -> Result<()> {
        let Some(ceph) = self.ceph() else {
            return Ok(());
        };
        // A full OSD may answer nobody.
        let mut admin = self.command("timeout");
        admin.args([
            "--foreground",
            COLLECTING,
            "radosgw-admin",
            "gc",
            "process",
            "--include-all",
        ]);
        output(ceph.known_to(&mut admin)).map(drop)
    }

    /// `forebay bench` with these arguments against the cluster.
    pub fn over_rados(&self, arguments: &str) -> Result<Option<Sample>> {
        let Some(ceph) = self.ceph() else {
            return Ok(None);
        };
        let conf = ceph.variable("CEPH_CONF")?;
        let more = ["--ceph-conf", conf, "--pool", POOL].map(str::to_owned);
        self.ours(arguments, &more).map(Some)
    }

    /// Ceph's own load generator.
    pub fn rados_bench(&self, mode: &str, size: u64, depth: usize) -> Result<Option<Sample>> {
        let Some(ceph) = self.ceph() else {
            return Ok(None);
        };
        let window = |seconds: f64| format!("{}", seconds.ceil());
        let told = if mode == "write" {
            self.write(ceph, &window(self.seconds), size, depth, &[])?
        } else {
            self.write(ceph, &window(FILLING.as_secs_f64()), size, depth, &[])?;
            let seconds = window(self.seconds);
            self.rados(ceph, &["bench", &seconds, mode, "-t", &depth.to_string()])?
        };
        self.rados(ceph, &["cleanup"])?;
        read(&told, size).map(Some)
    }

    /// Has the OSD take most of the memory that it will keep values in. A page that the system never gave away is cleared first, here and
    /// maybe by a host too: who writes into a new OSD measures that.
    fn use_once(&self, ceph: &Ceph, osd_mib: u64) -> Result<()> {
        let objects = ((osd_mib << 20) / 4 * 3 / FILL_BYTES).to_string();
        let seconds = FILL_ONCE.as_secs().to_string();
        let more = ["--max-objects", &objects];
        self.write(ceph, &seconds, FILL_BYTES, DEPTH, &more)?;
        self.rados(ceph, &["cleanup"]).map(drop)
    }

    /// Has Ceph's load generator write values of `size` bytes and leave them there.
    fn write(
        &self,
        ceph: &Ceph,
        seconds: &str,
        size: u64,
        depth: usize,
        more: &[&str],
    ) -> Result<String> {
        let (size, depth) = (size.to_string(), depth.to_string());
        let bench = ["bench", seconds, "write", "--no-cleanup"];
        let load = ["-b", &size, "-t", &depth];
        self.rados(ceph, &[&bench[..], &load, more].concat())
    }

    /// Ceph's tool, about the pool.
    fn rados(&self, ceph: &Ceph, arguments: &[&str]) -> Result<String> {
        let mut rados = self.command("rados");
        rados.args(["--pool", POOL]).args(arguments);
        output(ceph.known_to(&mut rados))
    }
}

/// How large the OSD is where so much memory can be had: at its largest, two thirds of that are in use.
fn osd_mib(available_mib: u64) -> u64 {
    (available_mib / 3).clamp(*OSD_MIB.start(), *OSD_MIB.end())
}

/// Reads the closing lines: `Total time run: 5.0`, `Total writes made: 100` (or `reads`).
fn read(text: &str, size: u64) -> Result<Sample> {
    let number = |names: &[&str]| {
        let value = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            names
                .contains(&name.trim())
                .then(|| value.trim().parse().ok())?
        });
        value.with_context(|| format!("rados bench told no {}", names[0]))
    };
    let seconds: f64 = number(&["Total time run"])?;
    let ops_per_s = number(&["Total writes made", "Total reads made"])? / seconds;
    Ok(Sample {
        ops_per_s,
        mb_per_s: ops_per_s * size as f64 / 1e6,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_osd_grows_with_the_machine_within_bounds() {
        let gib = |gib: u64| gib << 10;
        for (available, osd) in [(0, 8), (21, 8), (60, 20), (500, 32)] {
            assert_eq!(osd_mib(gib(available)), gib(osd));
        }
    }

    #[test]
    fn closing_lines_of_rados_bench() {
        let text = "  sec Cur ops   started  finished  avg MB/s\nTotal time run:         2.5\n\
                    Total writes made:      1000\nWrite size:             4096\n";
        let sample = read(text, 4096).expect("figures");
        assert!((sample.ops_per_s - 400.0).abs() < 1e-9 && (sample.mb_per_s - 1.6384).abs() < 1e-9);
        assert!(read("Total time run: 2.5", 4096).is_err());
    }
}
