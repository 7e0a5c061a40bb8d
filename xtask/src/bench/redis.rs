//! Redis, and its own load generator.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result};

use crate::bench::measure::Bench;
use crate::bench::peers::{Server, first_line, listening, ports, quiet};
use crate::bench::sample::Sample;
use crate::tool::output;

/// What tables call it when nothing is durable.
pub const DEFAULTS: &str = "Redis, defaults: not durable";
/// What tables call it when every SET is.
pub const ALWAYS: &str = "Redis, appendfsync always";

/// Values that fill 256 MiB, at most 4096: as many as ours.
const VALUES_BYTES: usize = 256 << 20;
const VALUES_MAX: usize = 4096;
/// Eight clients, each with one request under way.
pub const EIGHT_CLIENTS: &[&str] = &["-c", "8"];
/// One client with 32.
pub const PIPELINED: &[&str] = &["-c", "1", "-P", "32"];
/// Requests of the first run, which only tells how many fill the window.
const TRIAL: usize = 2000;

/// Redis as it comes.
pub fn defaults(bench: &Bench) -> Result<Option<Server>> {
    start(bench, DEFAULTS, "redis", &[])
}

/// Redis that acknowledges what is on the device.
pub fn always(bench: &Bench) -> Result<Option<Server>> {
    let flags = ["--appendonly", "yes", "--appendfsync", "always"];
    start(bench, ALWAYS, "redis-always", &flags)
}

fn start(
    bench: &Bench,
    name: &'static str,
    folder: &str,
    flags: &[&str],
) -> Result<Option<Server>> {
    let (Some(program), Some(_)) = (bench.find("redis-server"), bench.find("redis-benchmark"))
    else {
        return Ok(None);
    };
    let folder = bench.folder.join(folder);
    std::fs::create_dir_all(&folder)?;
    let [port] = ports()?;
    let child = quiet(
        bench
            .command(&program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
            .arg(&folder)
            .args(flags),
    )?;
    let version = first_line(&program, &["--version"]);
    listening(name, port, child, version).map(Some)
}

impl Bench {
    /// `get` or `set` of random values by these clients.
    pub fn redis(&self, server: &Server, op: &str, size: usize, by: &[&str]) -> Result<Sample> {
        let program = self.find("redis-benchmark").context("no redis-benchmark")?;
        let port = server.endpoint.rsplit(':').next().unwrap_or_default();
        let values = (VALUES_BYTES / size).min(VALUES_MAX);
        let round = |op: &str, requests: usize| -> Result<Sample> {
            let text = output(
                self.command(&program)
                    .args(["-p", port, "--csv", "-t", op])
                    .args(by)
                    .args(["-d", &size.to_string(), "-r", &values.to_string()])
                    .args(["-n", &requests.to_string()]),
            )?;
            read(&text, size).with_context(|| format!("redis-benchmark told no rate: {text}"))
        };
        let errors = error_replies(port)?;
        if op == "get" {
            // Chosen at random, so several times as many as there are leave next to none out.
            round("set", values * 8)?;
        }
        let trial = round(op, TRIAL)?;
        let sample = round(op, ((trial.ops_per_s * self.seconds) as usize).max(TRIAL))?;
        Ok(Sample {
            errors: match (errors, error_replies(port)?) {
                (Some(before), Some(after)) => after.saturating_sub(before),
                _ => sample.errors,
            },
            ..sample
        })
    }
}

/// How many of its replies were errors so far, as it counts itself from 6.2 on: its load generator counts them as the others.
fn error_replies(port: &str) -> Result<Option<u64>> {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    stream.write_all(b"INFO stats\r\nQUIT\r\n")?;
    let mut told = String::new();
    stream.read_to_string(&mut told)?;
    Ok(read_errors(&told))
}

fn read_errors(info: &str) -> Option<u64> {
    let mut lines = info.lines();
    lines.find_map(|line| {
        line.strip_prefix("total_error_replies:")?
            .trim()
            .parse()
            .ok()
    })
}

/// Reads the line of figures: `"SET","rps","avg","min","p50","p95","p99","max"`, latencies in milliseconds.
fn read(csv: &str, size: usize) -> Option<Sample> {
    let line = csv.lines().rfind(|line| !line.contains("rps"))?;
    let numbers: Vec<f64> = line
        .split(',')
        .skip(1)
        .map(|cell| cell.trim_matches('"').parse())
        .collect::<Result<_, _>>()
        .ok()?;
    let [rate, _, _, p50, _, p99, ..] = numbers[..] else {
        return None;
    };
    Some(Sample {
        ops_per_s: rate,
        mb_per_s: rate * size as f64 / 1e6,
        p50_us: p50 * 1e3,
        p99_us: p99 * 1e3,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_redis_benchmark() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"GET\",\"50000.00\",\"0.133\",\"0.048\",\"0.135\",\"0.167\",\"0.215\",\"0.503\"\n";
        let sample = read(csv, 4096).expect("figures");
        assert!((sample.mb_per_s - 204.8).abs() < 1e-6);
        assert!((sample.p50_us - 135.0).abs() < 1e-6 && (sample.p99_us - 215.0).abs() < 1e-6);
        assert!(read("", 1).is_none());
    }

    #[test]
    fn errors_that_redis_tells_of() {
        let info =
            "$70\r\n# Stats\r\ntotal_commands_processed:9\r\ntotal_error_replies:3\r\n\r\n+OK\r\n";
        assert_eq!(read_errors(info), Some(3));
        assert_eq!(read_errors("-NOAUTH Authentication required.\r\n"), None);
    }
}
