//! The published set: who is measured doing what, and what is asked of the result.

use anyhow::Result;

use crate::bench::hits::Hits;
use crate::bench::idle::{self, Idle};
use crate::bench::machine;
use crate::bench::measure::Bench;
use crate::bench::peers::{self, Server};
use crate::bench::probe::Probe;
use crate::bench::sample::{Sample, median};
use crate::bench::{ceph, direct, exec, nvme};

/// One table.
pub struct Figure {
    /// Its heading.
    pub name: &'static str,
    /// Ours first.
    pub contenders: Vec<Contender>,
    bounds: Vec<Bound>,
}

/// One row of a table.
pub struct Contender {
    /// Who.
    pub name: &'static str,
    probe: Probe,
    /// A sample a round.
    pub rounds: Vec<Sample>,
}

/// What is asked of ours.
pub enum Bound {
    /// So many times the rate of that contender.
    Rate(&'static str, f64),
    /// So many times the bytes a second of that contender.
    Bytes(&'static str, f64),
    /// At most so many times the server CPU seconds per GB of that contender.
    Cpu(&'static str, f64),
    /// At most so many microseconds of server CPU for an operation.
    CpuPerOp(f64),
    /// At most so many seconds of server CPU for 10^9 bytes.
    CpuPerGb(f64),
    /// A 99.9th percentile below so many microseconds.
    P999(f64),
    /// A median of at most so many microseconds.
    P50(f64),
    /// So many operations a second.
    PerSecond(f64),
    /// At most so many times the client CPU seconds per GB of that contender.
    ClientCpu(&'static str, f64),
    /// The server copied none of the payload in memory.
    NoCopies,
    /// So many calls of functions for each second of CPU time.
    CallsPerCpu(f64),
    /// At most so many bytes to the caller for each byte of the object.
    Moved(f64),
}

/// How a bound came out.
pub struct Check {
    /// What was asked and what came.
    pub text: String,
    /// Whether it is met.
    pub met: bool,
}

/// All of a run.
pub struct Results {
    /// The machine.
    pub machine: String,
    /// Names and versions of what was measured.
    pub versions: Vec<(&'static str, String)>,
    /// Peers that were not to be had.
    pub absent: Vec<&'static str>,
    /// Tables.
    pub figures: Vec<Figure>,
    /// A server that has just started.
    pub idle: Option<Idle>,
    /// The same server after the load.
    pub idle_after: Option<Idle>,
    /// The cache on a trace, a size each.
    pub hits: Vec<Hits>,
}

/// Our server with its defaults.
pub const FOREBAY: &str = "Forebay";
/// Our server keeping values in memory alone.
pub const MEMORY: &str = "Forebay, values in memory";
const FIO_A_CORE: &str = "fio, a job a core";
const LISTED: &str = "Forebay, the longer list";
const LARGE_LIST: &str = "Forebay with the longer list";

fn s3(arguments: &str, names: &[&'static str]) -> Vec<Contender> {
    names
        .iter()
        .map(|name| contender(name, Probe::S3(name, format!("s3 {arguments}"))))
        .collect()
}

/// A row.
pub fn contender(name: &'static str, probe: Probe) -> Contender {
    Contender {
        name,
        probe,
        rounds: Vec::new(),
    }
}

/// A table.
pub fn figure(name: &'static str, contenders: Vec<Contender>, bounds: Vec<Bound>) -> Figure {
    Figure {
        name,
        contenders,
        bounds,
    }
}

fn published(bench: &Bench) -> Vec<Figure> {
    const ALL: [&str; 4] = [FOREBAY, "SeaweedFS", "s3s-fs", "Garage"];
    let mut large_get = s3("--op get --size 64MiB", &[FOREBAY, "SeaweedFS"]);
    large_get.push(contender("iperf3", Probe::Iperf3("get", 8)));
    let mut medium_get = s3("--op get --size 1MiB", &ALL);
    medium_get.push(contender("iperf3", Probe::Iperf3("get", 8)));
    let mut small_put = s3("--op put --size 4KiB --concurrency 64", &ALL);
    // What the machine and HTTP allow: nothing is stored.
    small_put.extend(s3("--op put --size 4KiB --concurrency 64", &[MEMORY]));
    let files = |threads| Probe::Own(format!("files --size 4KiB --concurrency {threads}"));
    small_put.push(contender("one fsync each, 1 thread", files(1)));
    small_put.push(contender("one fsync each, 64 threads", files(64)));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let engine = |size: &'static str, depth: usize| {
        let ours = format!("engine --op get --cold --size {size} --concurrency {depth}");
        let block = if size == "1MiB" { "1M" } else { "4k" };
        vec![
            contender("Forebay's engine", Probe::Own(ours)),
            contender("fio", Probe::Fio(block, depth, 1)),
            contender(FIO_A_CORE, Probe::Fio(block, (depth / cores).max(1), cores)),
        ]
    };
    let fio = || vec![Bound::Bytes("fio", 0.9), Bound::Bytes(FIO_A_CORE, 0.9)];
    let list = "s3 --op list --size 0 --concurrency 1 --objects";
    vec![
        figure(
            "GET 4 KiB, 8 connections, clients that acknowledge at once",
            s3("--op get --size 4KiB --quick-ack", &ALL),
            vec![
                Bound::Rate("SeaweedFS", 4.0),
                Bound::Rate("s3s-fs", 2.0),
                Bound::CpuPerOp(25.0),
            ],
        ),
        figure(
            "GET 4 KiB, 8 connections, ordinary clients",
            s3("--op get --size 4KiB", &ALL),
            vec![Bound::P999(30_000.0)],
        ),
        figure(
            "GET 1 MiB, 8 connections",
            medium_get,
            vec![
                Bound::Rate("SeaweedFS", 2.0),
                Bound::Cpu("SeaweedFS", 0.5),
                Bound::Bytes("iperf3", 0.6),
            ],
        ),
        figure(
            "GET 64 MiB, 8 connections",
            large_get,
            vec![
                Bound::Rate("SeaweedFS", 2.0),
                Bound::Cpu("SeaweedFS", 0.5),
                Bound::Bytes("iperf3", 0.6),
            ],
        ),
        figure(
            "PUT 1 MiB, 8 connections, UNSIGNED-PAYLOAD",
            s3("--op put --size 1MiB", &ALL),
            vec![Bound::Rate("Garage", 3.0), Bound::CpuPerGb(2.5)],
        ),
        figure(
            "PUT 1 MiB, 8 connections, signed payload",
            s3("--op put --size 1MiB --signed-payload", &ALL),
            vec![Bound::Rate("Garage", 2.0), Bound::CpuPerGb(2.5)],
        ),
        figure(
            "PUT 4 KiB, 64 connections",
            small_put,
            vec![Bound::Rate("one fsync each, 1 thread", 10.0)],
        ),
        figure(
            "Engine, cold reads of 1 MiB, 16 at a time",
            engine("1MiB", 16),
            fio(),
        ),
        figure(
            "Engine, cold reads of 4 KiB, 32 at a time",
            engine("4KiB", 32),
            fio(),
        ),
        figure(
            "Listing 1000 keys",
            vec![
                contender(
                    LISTED,
                    Probe::S3(LARGE_LIST, format!("{list} {}", bench.listed)),
                ),
                contender(
                    "Forebay, 10000 objects",
                    Probe::S3(FOREBAY, format!("{list} 10000")),
                ),
            ],
            vec![Bound::Rate("Forebay, 10000 objects", 0.5)],
        ),
    ]
}

/// Puts every load of ours once on the program, which ends by itself so that it can tell what it counted.
pub fn practise(bench: &Bench) -> Result<()> {
    let mut figures = published(bench);
    figures.extend(direct::published());
    figures.extend(nvme::published());
    figures.extend(exec::published());
    let servers = own_servers(bench, &figures)?;
    for figure in &figures {
        for contender in figure.contenders.iter().filter(|one| one.probe.is_ours()) {
            eprintln!("{}: {}", figure.name, contender.name);
            contender.probe.measure(bench, &servers)?;
        }
    }
    servers.into_iter().try_for_each(Server::end)
}

/// Ours that these figures ask, the one with its defaults first.
fn own_servers(bench: &Bench, figures: &[Figure]) -> Result<Vec<Server>> {
    let mut servers = vec![peers::forebay(bench, "forebay", FOREBAY, &[])?];
    for (folder, name, flags) in [
        ("forebay-list", LARGE_LIST, &[][..]),
        ("forebay-memory", MEMORY, &["--backend", "memory"]),
    ] {
        if figures.iter().any(|figure| figure.asks(name)) {
            servers.push(peers::forebay(bench, folder, name, flags)?);
        }
    }
    Ok(servers)
}

/// Measures the published set, or the part of it whose names contain `only`.
pub fn run(bench: &Bench, rounds: usize, only: Option<&str>) -> Result<Results> {
    let mut figures = published(bench);
    figures.extend(direct::published());
    figures.extend(nvme::published());
    figures.extend(exec::published());
    figures.extend(ceph::published());
    let wanted = only.map(str::to_lowercase);
    figures.retain(|figure| {
        let name = figure.name.to_lowercase();
        wanted.as_ref().is_none_or(|wanted| name.contains(wanted))
    });
    let machine = machine::describe(&bench.folder);
    let mut servers = own_servers(bench, &figures)?;
    let pid = servers[0].pid;
    let everything = only.is_none();
    let idle = everything.then(|| idle::watch(pid)).transpose()?;
    let asked = |server: &str| figures.iter().any(|figure| figure.asks(server));
    let mut absent = Vec::new();
    for (name, start) in peers::ALL {
        if asked(name) {
            match start(bench)? {
                Some(server) => servers.push(server),
                None => absent.push(name),
            }
        }
    }
    // There is nothing to compare where ours has nothing to stand on.
    figures.retain(|figure| {
        let server = figure
            .contenders
            .first()
            .and_then(|ours| ours.probe.server());
        server.is_none_or(|server| !absent.contains(&server))
    });
    for program in ["fio", "iperf3"] {
        if bench.find(program).is_none() {
            absent.push(program);
        }
    }
    for (name, module) in [("Mooncake", direct::MOONCAKE), ("NIXL", direct::NIXL)] {
        if bench.python(module).is_none() {
            absent.push(name);
        }
    }
    for round in 1..=rounds {
        for figure in &mut figures {
            // Whoever comes later may find the device in another mood: each round begins with somebody else.
            let first = (round - 1) % figure.contenders.len();
            let (later, sooner) = figure.contenders.split_at_mut(first);
            for contender in sooner.iter_mut().chain(later) {
                bench.settle()?;
                let what = format!("{}: {}", figure.name, contender.name);
                let sample = match contender.probe.measure(bench, &servers) {
                    Ok(None) => continue,
                    Ok(Some(sample)) => sample,
                    // The others are not measured in vain.
                    Err(error) => {
                        eprintln!("{what}: {error:#}");
                        Sample {
                            errors: 1,
                            failure: Some(format!("{error:#}")),
                            ..Sample::default()
                        }
                    }
                };
                eprintln!(
                    "round {round} of {rounds}, {what}: {:.0} ops/s, {:.1} MB/s, {} errors",
                    sample.ops_per_s, sample.mb_per_s, sample.errors
                );
                contender.rounds.push(sample);
            }
        }
    }
    figures.retain(|figure| figure.contenders.iter().any(Contender::is_measured));
    for figure in &mut figures {
        figure
            .contenders
            .retain(|contender| contender.is_measured() || contender.is_ours());
    }
    Ok(Results {
        machine,
        versions: servers
            .iter()
            .filter(|server| ![LARGE_LIST, MEMORY].contains(&server.name))
            .map(|server| (server.name, server.version.clone()))
            .collect(),
        absent,
        figures,
        idle,
        idle_after: everything.then(|| idle::watch(pid)).transpose()?,
        hits: Vec::new(),
    })
}

impl Contender {
    fn is_measured(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// Whether it is called after us.
    fn is_ours(&self) -> bool {
        self.name.starts_with(FOREBAY)
    }

    /// What is wrong with ours whatever is asked of it.
    fn failure(&self) -> Option<Check> {
        let errors: u64 = self.rounds.iter().map(|sample| sample.errors).sum();
        let what = match self.is_measured() {
            false => "was not measured".to_owned(),
            true if errors > 0 => format!("has failed, {errors} times"),
            true => return None,
        };
        Some(Check {
            text: format!("{} {what}: missed", self.name),
            met: false,
        })
    }

    /// The command that measured it, as one would type it.
    pub fn command(&self) -> String {
        self.probe.command()
    }

    /// The median of one number over the rounds in which it could be measured.
    pub fn median(&self, number: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let measured = self.rounds.iter().filter(|sample| sample.is_measured());
        median(measured.filter_map(number))
    }
}

impl Figure {
    fn asks(&self, server: &str) -> bool {
        self.contenders
            .iter()
            .any(|contender| contender.probe.server() == Some(server))
    }

    /// The median, over the rounds in which both could be measured, of ours divided by that contender's.
    pub fn ratio(&self, of: &str, number: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let ours = self.contenders.first()?;
        let theirs = self
            .contenders
            .iter()
            .find(|contender| contender.name == of)?;
        let pairs = ours.rounds.iter().zip(&theirs.rounds);
        let measured = pairs.filter(|(ours, theirs)| ours.is_measured() && theirs.is_measured());
        median(measured.filter_map(|(ours, theirs)| {
            let theirs = number(theirs).filter(|theirs| *theirs > 0.0)?;
            Some(number(ours)? / theirs)
        }))
    }

    /// What failed of ours, then how its bounds came out; those about a peer that is not there are left out.
    pub fn checks(&self) -> Vec<Check> {
        let Some(ours) = self.contenders.first() else {
            return Vec::new();
        };
        let failures = self.contenders.iter().filter(|one| one.is_ours());
        let bounds = self.bounds.iter().filter_map(|bound| {
            let (told, limit, below, what) = match bound {
                Bound::Rate(of, times) => {
                    let told = self.ratio(of, |sample| Some(sample.rate()))?;
                    (told, *times, false, format!("times the rate of {of}"))
                }
                Bound::Bytes(of, times) => {
                    let told = self.ratio(of, |sample| Some(sample.mb_per_s))?;
                    (told, *times, false, format!("times the MB/s of {of}"))
                }
                Bound::Cpu(of, times) => {
                    let told = self.ratio(of, |sample| sample.server_cpu_s_per_gb)?;
                    (told, *times, true, format!("times the CPU s/GB of {of}"))
                }
                Bound::CpuPerOp(us) => {
                    let told = ours.median(Sample::server_cpu_us_per_op)?;
                    (told, *us, true, "us of server CPU a request".to_owned())
                }
                Bound::CpuPerGb(seconds) => {
                    let told = ours.median(|sample| sample.server_cpu_s_per_gb)?;
                    (told, *seconds, true, "CPU s/GB".to_owned())
                }
                Bound::P50(us) => {
                    let told = ours.median(|sample| Some(sample.p50_us))?;
                    (told, *us, true, "us in the median".to_owned())
                }
                Bound::PerSecond(rate) => {
                    let told = ours.median(|sample| Some(sample.ops_per_s))?;
                    (told, *rate, false, "operations a second".to_owned())
                }
                Bound::ClientCpu(of, times) => {
                    let told = self.ratio(of, |sample| sample.client_cpu_s_per_gb)?;
                    (
                        told,
                        *times,
                        true,
                        format!("times the client CPU s/GB of {of}"),
                    )
                }
                Bound::NoCopies => {
                    let told = ours.median(|sample| sample.copied_bytes)?;
                    (
                        told,
                        0.0,
                        true,
                        "bytes of payload copied by the server".to_owned(),
                    )
                }
                Bound::CallsPerCpu(calls) => {
                    let told = ours.median(|sample| sample.calls_per_cpu_s)?;
                    (told, *calls, false, "calls for a CPU second".to_owned())
                }
                Bound::Moved(share) => {
                    let told = ours.median(|sample| sample.moved_share)?;
                    (told, *share, true, "of the bytes moved".to_owned())
                }
                Bound::P999(us) => {
                    let told = ours.median(|sample| Some(sample.p999_us))?;
                    (told, *us, true, "us at the 99.9th percentile".to_owned())
                }
            };
            let met = if below { told <= limit } else { told >= limit };
            let word = if below { "at most" } else { "at least" };
            let verdict = if met { "met" } else { "missed" };
            Some(Check {
                text: format!("{told:.2} {what}; asked {word} {limit}: {verdict}"),
                met,
            })
        });
        failures
            .filter_map(Contender::failure)
            .chain(bounds)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_rates(name: &'static str, rates: &[f64]) -> Contender {
        let sample = |rate: &f64| Sample {
            ops_per_s: *rate,
            p999_us: 50.0,
            ..Sample::default()
        };
        Contender {
            rounds: rates.iter().map(sample).collect(),
            ..contender(name, Probe::Iperf3("get", 8))
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let made = figure(
            "made",
            vec![
                with_rates("ours", &[10.0, 40.0, 90.0]),
                with_rates("theirs", &[10.0, 10.0, 10.0]),
            ],
            vec![
                Bound::Rate("theirs", 4.0),
                Bound::Rate("absent", 9.0),
                Bound::P999(49.0),
                Bound::CpuPerOp(1.0),
            ],
        );
        let met: Vec<bool> = made.checks().iter().map(|check| check.met).collect();
        assert_eq!(met, [true, false]);
    }

    #[test]
    fn a_round_that_failed_is_no_number() {
        let mut made = figure(
            "made",
            vec![
                with_rates("ours", &[0.0, 40.0, 0.0]),
                with_rates("theirs", &[10.0, 10.0, 10.0]),
                with_rates("also theirs", &[10.0, 0.0, 10.0]),
            ],
            Vec::new(),
        );
        for (contender, round) in [(0, 0), (0, 2), (2, 1)] {
            made.contenders[contender].rounds[round].failure = Some("it fell".to_owned());
        }
        let rate = |sample: &Sample| Some(sample.rate());
        assert_eq!(made.contenders[0].median(rate), Some(40.0));
        assert_eq!(made.ratio("theirs", rate), Some(4.0));
        assert_eq!(made.ratio("also theirs", rate), None, "in no round both");
    }

    #[test]
    fn ours_that_fails_or_is_not_measured_is_no_success() {
        let mut made = figure(
            "made",
            vec![
                with_rates(MEMORY, &[10.0, 40.0]),
                with_rates("theirs", &[10.0]),
            ],
            vec![Bound::NoCopies],
        );
        assert_eq!(made.checks().len(), 0, "nobody told of copies");
        made.contenders[1].rounds[0].errors = 1;
        assert_eq!(made.checks().len(), 0, "theirs is theirs");
        made.contenders[0].rounds[1].errors = 3;
        let failed = |made: &Figure| match made.checks().as_slice() {
            [check] if !check.met => check.text.clone(),
            _ => panic!("one failed check is expected"),
        };
        assert!(failed(&made).starts_with("Forebay, values in memory has failed, 3 times"));
        made.contenders[0].rounds.clear();
        assert!(failed(&made).starts_with("Forebay, values in memory was not measured"));
    }
}
