//! `docs/performance.md`, written from what was measured.

use std::fmt::Write as _;
use std::path::Path;

use crate::bench::figures::{Contender, Figure, Results};
use crate::bench::hits;
use crate::bench::idle::{Idle, WATCHED};
use crate::bench::sample::Sample;

const INTRODUCTION: &str = "\
# Performance

Written by `cargo xtask bench`; do not edit.

Every S3 server is measured by the same client, `forebay bench s3`: each connection has one request in flight, signed by
Signature Version 4, and asks again as soon as it has its answer. Client and servers share one machine, over loopback. Servers run
with their defaults (but that Garage compresses nothing, and SeaweedFS may make as many volumes as it needs), which for the peers below
do not make a PUT durable. All contenders of a table are measured one right
after the other, round by round; ratios are taken within a round, and medians over the rounds are shown. What the GETs of
a table read is 256 MiB together (16 MiB for 4 KiB objects), which fits the cache that every server's defaults give it, or the
system's page cache where the server relies on that; the engine's own reads bypass every cache, as fio's do, and land in huge pages
where the system has them, as fio's do not. Between two measurements everything
that servers left to be written later is written.

A Forebay PUT is durable when it is acknowledged. SeaweedFS, s3s-fs and Garage acknowledge, by default, before anything is synced.
MB and GB are 10^6 and 10^9 bytes; CPU is user and system time of the server's process. iperf3's is what it says of its two ends, which send and
receive and do nothing else.

Tables named Direct are about payloads that go straight between the server and registered memory of the client: `forebay bench
direct` (values durable when they are acknowledged) and `forebay bench kv` (a namespace with relaxed durability), one generating
thread, one connection, checksums made and compared on both sides unless a row says otherwise. iperf3 has as many connections. Redis
is measured by its own redis-benchmark, by eight clients that each have one request under way, with as many values of the same size; NIXL and Mooncake by the scripts in `lab/peers`, eight
blocks a call, which is also how ours is asked beside them. Mooncake moves bytes between the memories of two processes and keeps
nothing. NIXL writes to a server of ours that keeps values as the one beside it does. Cold reads are of values that a new server has just
stored, as fio's are of a file that it has just laid out. Rows of values in memory are those of a server with `--backend memory`, which, like Redis with its defaults and like Mooncake,
has nothing on a device when it acknowledges.

Tables named NVMe are about `forebay bench nvme`: our own host and our own target, one queue. Blocks in memory are an export of the
server's own memory, as nbdkit's are; blocks of files and durable values lie on a file system in memory unless a table is about the
device. Over TCP both sides look for what comes for some time before they sleep; over vfio-user the host polls, or sleeps where a device
is waited for. The rates that SPDK publishes, which are asked for, are of a core polling at each end. nbdkit is read by fio; Redis is
asked by one client with 32 requests under way.

Tables named Ceph are about one throwaway cluster of one monitor and one OSD that keeps its objects in memory, which it was made to take
before, with the allocator that Ceph's own packages have: our store in one process (`forebay bench rados`) beside Ceph's own load generator,
and our S3 gateway beside Ceph's own, both with their defaults, which keep no values; a row of ours with a cache says so. CPU is that of
the gateway alone: what the OSD does for it is not in it. What comes out of the cache is compared with our engine, by the same doors.

Tables named Execute are about `forebay bench exec`: functions called over the waist, in this process, over objects in the engine's
cache, with one call in flight. Native is the same counting over the same reads, compiled into the program. CPU is that of all threads.

Commands are shown without `--endpoint` and keys: that they are asked of is the server that a row or its table names, with `--cache 0` where reads are
cold and with `--backend memory` where values are in memory.

The program measured is what `cargo xtask dist` builds: link-time optimisation, modules compiled, and laid out by a profile of these
loads.
";

/// The whole document.
pub fn document(results: &Results, rounds: usize, seconds: f64, trace: Option<&Path>) -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut line = |words: &str| {
        text.push_str(words);
        text.push('\n');
    };
    line("\n## Machine and run\n");
    line(&results.machine);
    let rounds = match rounds {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    line(&format!(
        "\n{rounds}, windows of {seconds} s. Loads over a door begin 1 s before, or as their command says; fio begins as what it stands beside; those of the engine, a pool, functions, files and memory with the window.\n"
    ));
    line("| measured | version |\n|---|---|");
    for (name, version) in &results.versions {
        line(&format!("| {name} | {version} |"));
    }
    if !results.absent.is_empty() {
        line(&format!(
            "\nNot installed when this ran: {}.",
            results.absent.join(", ")
        ));
    }
    line("\n![Throughput beside the peers](performance/throughput.svg)\n");
    line("![CPU beside the peers](performance/cpu.svg)");
    text.push_str(&tables(&results.figures));
    text.push_str(&cache(results, trace));
    text.push_str(&idle(results));
    text
}

/// A table a figure, with how its bounds came out.
pub fn tables(figures: &[Figure]) -> String {
    let mut text = String::new();
    for figure in figures {
        let _ = write!(
            text,
            "\n## {}\n\n| | ops/s | MB/s | p50 us | p99 us | p99.9 us | client CPU s/GB | server CPU s/GB | \
             server CPU us/op | errors |\n|---|---|---|---|---|---|---|---|---|---|\n",
            figure.name
        );
        for contender in &figure.contenders {
            text.push_str(&row(contender));
        }
        text.push('\n');
        for contender in &figure.contenders {
            for (round, sample) in (1..).zip(&contender.rounds) {
                if let Some(why) = &sample.failure {
                    let (name, why) = (contender.name, why.trim().replace('\n', " "));
                    let _ = writeln!(text, "- {name} was not measured in round {round}: {why}");
                }
            }
        }
        for check in figure.checks() {
            let _ = writeln!(text, "- {}", check.text);
        }
        let mut commands: Vec<String> = figure.contenders.iter().map(Contender::command).collect();
        commands.dedup();
        let _ = writeln!(text, "\n`{}`", commands.join("`, `"));
    }
    text
}

fn row(contender: &Contender) -> String {
    let number = |get: fn(&Sample) -> Option<f64>, places: usize| match contender.median(get) {
        Some(value) if value > 0.0 => format!("{value:.places$}"),
        _ => "-".to_owned(),
    };
    let errors: u64 = contender.rounds.iter().map(|sample| sample.errors).sum();
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {errors} |\n",
        contender.name,
        number(|sample| Some(sample.ops_per_s), 0),
        number(|sample| Some(sample.mb_per_s), 1),
        number(|sample| Some(sample.p50_us), 0),
        number(|sample| Some(sample.p99_us), 0),
        number(|sample| Some(sample.p999_us), 0),
        number(|sample| sample.client_cpu_s_per_gb, 3),
        number(|sample| sample.server_cpu_s_per_gb, 3),
        number(Sample::server_cpu_us_per_op, 1),
    )
}

fn cache(results: &Results, trace: Option<&Path>) -> String {
    let mut text = String::from(
        "\n## Cache: hits on a trace\n\nOf all blocks asked for, in percent; ours pays its own overhead from the same memory, the others \
         are simulated. Replayed once: nothing here is a matter of time.\n\n\
         | blocks that fit | this cache | S3-FIFO as published | W-TinyLFU | LRU | optimum | all that could be |\n\
         |---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for hits in &results.hits {
        let of = [
            hits.tier,
            hits.s3_fifo,
            hits.w_tinylfu,
            hits.lru,
            hits.optimum,
            hits.ceiling,
        ];
        let of = of.map(|ratio| format!("{:.1}", ratio * 100.0)).join(" | ");
        let _ = writeln!(text, "| {} | {of} |", hits.blocks());
    }
    text.push('\n');
    for check in results.hits.iter().flat_map(hits::Hits::checks) {
        let _ = writeln!(text, "- {}", check.text);
    }
    let trace = trace.and_then(Path::file_name).map(Path::new);
    let _ = writeln!(
        text,
        "\n`forebay bench {}`",
        hits::arguments(trace).join(" ")
    );
    text
}

fn idle(results: &Results) -> String {
    let mut text = format!(
        "\n## Idle\n\nWatched for {} s without a request.\n\n| | CPU, % of a core | resident MiB |\n|---|---|---|\n",
        WATCHED.as_secs()
    );
    let mut row = |name: &str, idle: &Option<Idle>| {
        if let Some(idle) = idle {
            let _ = writeln!(
                text,
                "| {name} | {:.3} | {:.1} |",
                idle.cpu_percent, idle.rss_mib
            );
        }
    };
    row("just started", &results.idle);
    row(
        "after all of the above, its cache full",
        &results.idle_after,
    );
    if let Some(idle) = &results.idle {
        let _ = writeln!(text, "\n- {}", idle.check().text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{contender, figure};
    use crate::bench::probe::Probe;

    #[test]
    fn what_was_not_measured_is_told_in_words() {
        let mut made = figure(
            "made",
            vec![contender("ours", Probe::Iperf3("get", 8))],
            vec![],
        );
        let measured = Sample::default();
        let failed = Sample {
            errors: 1,
            failure: Some("forebay ended with 1:\nno room\n".to_owned()),
            ..Sample::default()
        };
        made.contenders[0].rounds = vec![measured, failed];
        let told = tables(&[made]);
        let line = "\n- ours was not measured in round 2: forebay ended with 1: no room\n";
        assert!(told.contains(line), "{told}");
    }
}
