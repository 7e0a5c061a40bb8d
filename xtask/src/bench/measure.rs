//! One measurement by one program.

use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bench::keeper::Keeper;
use crate::bench::peers::{self, Server, ports, quiet};
use crate::bench::sample::Sample;
use crate::ceph::Ceph;
use crate::tool::{command, output, run};

/// What every measurement needs.
pub struct Bench {
    /// The program measured.
    pub binary: PathBuf,
    /// Where data goes.
    pub folder: PathBuf,
    /// Length of a window.
    pub seconds: f64,
    /// Folders with peers.
    pub search: Vec<PathBuf>,
    /// Objects in the longer list.
    pub listed: u64,
    /// Ends what was started and removes the folder: before the Ceph goes on which some of it stands.
    pub keeper: Keeper,
    /// A throwaway Ceph, started when it is first asked for, where it can be had.
    pub ceph: OnceCell<Option<Ceph>>,
}

/// The flag with which the client of iperf3 gets rather than puts.
pub fn iperf3_way(op: &str) -> Option<&'static str> {
    (op == "get").then_some("-R")
}

impl Bench {
    /// Runs `forebay bench` with arguments divided by spaces, and more of them.
    pub fn ours(&self, arguments: &str, more: &[String]) -> Result<Sample> {
        let text = output(
            self.command(&self.binary)
                .arg("bench")
                .args(arguments.split(' '))
                .args(more)
                .args(["--json", "--seconds", &self.seconds.to_string()]),
        )?;
        let line = text.lines().next().context("no point was printed")?;
        serde_json::from_str(line).with_context(|| format!("not a point: {line}"))
    }

    /// Has everything written that servers left to be written later, so that nobody pays for who was measured before.
    pub fn settle(&self) -> Result<()> {
        run(command("sync").arg("--file-system").arg(&self.folder))
    }

    /// Runs `forebay bench` against the gRPC door of a server of ours, and asks the server what it copied meanwhile.
    pub fn direct(&self, arguments: &str, server: &Server) -> Result<Sample> {
        let before = copied_bytes(server)?;
        let sample = self.ours(arguments, &server.direct_arguments())?;
        Ok(Sample {
            copied_bytes: Some(copied_bytes(server)? - before),
            ..sample
        })
    }

    /// The same against a server of its own that keeps no values in memory, over a folder that goes with it: a device may well keep what
    /// it was asked for before.
    pub fn cold(&self, arguments: &str) -> Result<Sample> {
        let folder = self.folder.join("cold");
        std::fs::create_dir_all(&folder)?;
        let name = "Forebay without a cache";
        let server = peers::forebay(self, "cold/forebay", name, &["--cache", "0"]);
        let sample = server.and_then(|server| {
            let sample = self.direct(arguments, &server);
            server.end()?;
            sample
        });
        std::fs::remove_dir_all(&folder)?;
        sample
    }

    /// TCP streams over loopback, and what it costs to send or receive and do nothing else.
    pub fn iperf3(&self, op: &str, streams: usize) -> Result<Option<Sample>> {
        let Some(program) = self.find("iperf3") else {
            return Ok(None);
        };
        let [port] = ports()?;
        let port = port.to_string();
        let mut server =
            quiet(
                self.command(&program)
                    .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]),
            )?;
        sleep(Duration::from_millis(500));
        let text = output(
            self.command(&program)
                .args([
                    "-c",
                    "127.0.0.1",
                    "-p",
                    &port,
                    "-P",
                    &streams.to_string(),
                    "-J",
                    "-O",
                    "1",
                    "-t",
                ])
                .arg(self.seconds.ceil().to_string())
                .args(iperf3_way(op)),
        );
        // It serves once; should the client have failed, it still waits.
        let _ = server.kill();
        server.wait()?;
        let told: serde_json::Value = serde_json::from_str(&text?)?;
        let bits = told["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .context("iperf3 told no rate")?;
        let mb_per_s = bits / 8e6;
        let cpu = |end: &str| {
            let percent = told["end"]["cpu_utilization_percent"][end].as_f64()?;
            Some(percent / 100.0 / (mb_per_s / 1e3))
        };
        Ok(Some(Sample {
            mb_per_s,
            client_cpu_s_per_gb: cpu("host_total"),
            server_cpu_s_per_gb: cpu("remote_total"),
            ..Sample::default()
        }))
    }

    /// Random direct reads of a file that fio lays out itself, on the file system that holds our data. The file is to be as large as
    /// what ours reads, and as new: a device may well keep what it was asked for before. `ramp` has it read before the window, too.
    pub fn fio(
        &self,
        size: &str,
        block: &str,
        depth: usize,
        jobs: usize,
        ramp: Option<&str>,
    ) -> Result<Option<Sample>> {
        let Some(program) = self.find("fio") else {
            return Ok(None);
        };
        let file = self.folder.join("fio");
        let text = output(
            self.command(&program)
                .args([
                    "--name=bench",
                    "--rw=randread",
                    "--direct=1",
                    "--ioengine=io_uring",
                ])
                .arg(format!("--size={size}"))
                .args(["--time_based", "--group_reporting", "--output-format=json"])
                .arg(format!("--bs={block}"))
                .arg(format!("--iodepth={depth}"))
                .arg(format!("--numjobs={jobs}"))
                .arg(format!("--runtime={}", self.seconds.ceil()))
                .args(ramp)
                .arg(format!("--filename={}", file.display())),
        );
        // What it says counts more than a file that it may not have made.
        let text = text?;
        std::fs::remove_file(&file)?;
        read_fio(&text).map(Some)
    }
}

/// Reads what fio tells of the reads of its only group, after notes that may stand before.
pub fn read_fio(text: &str) -> Result<Sample> {
    let object = text.find('{').map_or("", |at| &text[at..]);
    let told: serde_json::Value = serde_json::from_str(object)?;
    let read = &told["jobs"][0]["read"];
    let number = |path: &serde_json::Value| path.as_f64().unwrap_or_default();
    let percentile = |name: &str| number(&read["clat_ns"]["percentile"][name]) / 1e3;
    if number(&read["iops"]) == 0.0 {
        bail!("fio read nothing");
    }
    Ok(Sample {
        ops_per_s: number(&read["iops"]),
        mb_per_s: number(&read["bw_bytes"]) / 1e6,
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
        p999_us: percentile("99.900000"),
        ..Sample::default()
    })
}

/// Copies that only values on their way in are subject to: what is read was put before, by the same command.
const COPIES_OF_PUTS: [&str; 3] = [
    r#"where="http_body""#,
    r#"where="read_from""#,
    r#"where="engine_repack""#,
];

/// What the server says it copied of values on their way out.
fn copied_bytes(server: &Server) -> Result<f64> {
    let console = server.console.as_deref().context("no console")?;
    let mut stream = TcpStream::connect(console)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let counters = text
        .lines()
        .filter(|line| line.starts_with("forebay_copied_bytes_total"))
        .filter(|line| !COPIES_OF_PUTS.iter().any(|site| line.contains(site)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counters.sum())
}
