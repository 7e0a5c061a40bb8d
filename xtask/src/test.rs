//! `cargo xtask test`: unit tests, document tests, clients, and the closing line.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Result, bail};

use crate::interop::{GROUPS, Group, Runner, cargo_counts, prepare_all};
use crate::steps::{Counts, Steps};
use crate::tool::{cargo, run as run_tool, target};

/// Deaths of the server in the crash loop.
const KILLS: u32 = 20;
const KILLS_THOROUGH: u32 = 200;
/// Transfers over each link that loses or cuts.
const TRANSFERS: u32 = 400;
const TRANSFERS_THOROUGH: u32 = 10_000;
/// Deaths of a gateway over Ceph, and the seconds that each history of clients of two gateways is long.
const GATEWAY_KILLS: u32 = 4;
const GATEWAY_KILLS_THOROUGH: u32 = 100;
const HISTORY_SECONDS: u32 = 5;
const HISTORY_SECONDS_THOROUGH: u32 = 60;
/// Keys that are listed over Ceph.
const LISTED_KEYS: u32 = 20_000;
const LISTED_KEYS_THOROUGH: u32 = 1_000_000;
/// Groups at a time; the clients mostly wait for each other's disk.
const SIDE_BY_SIDE: usize = 3;

/// The tests of functions again, by the runtime that releases have.
const JIT: [&str; 4] = ["--package", "forebay-exec", "--features", "wasm-jit"];
/// The group whose tests run again by that runtime, in thorough runs.
const EXECUTING: &str = "exec";

/// Runs every suite, or only the one named.
pub fn run(thorough: bool, only: Option<&str>) -> Result<bool> {
    let chosen = |name: &str| only.is_none_or(|only| only == name);
    let groups: Vec<&'static Group> = GROUPS.iter().filter(|group| chosen(group.name)).collect();
    let units = ["unit", "jit", "doc"];
    if !units.into_iter().any(chosen) && groups.is_empty() {
        bail!(
            "there is no suite {only:?}; there are unit, jit, doc, rust, direct, nvme, ceph, lab, sdk, ai, cli, data, exec, rpc, crash"
        );
    }
    let mut steps = Steps::new();
    std::thread::scope(|scope| {
        // pip waits for the network and the disk while rustc has the cores.
        let preparing = scope.spawn(|| prepare_all(&groups));
        if chosen("unit") {
            steps.count("unit", || unit(&["--workspace"]));
        }
        // The compiler's build takes minutes.
        if chosen("jit") && (thorough || only.is_some()) {
            steps.count("jit", || unit(&JIT));
        }
        if chosen("doc") {
            steps.count("doc", || {
                counted(
                    cargo().args(["test", "--doc", "--workspace", "--locked"]),
                    cargo_counts,
                )
            });
        }
        if groups.is_empty() {
            return;
        }
        let binary = match build(&[]) {
            Ok(binary) => binary,
            Err(error) => return steps.run("build", || Err(error)),
        };
        let Ok(prepared) = preparing.join() else {
            return steps.run("interop", || bail!("preparing the environments panicked"));
        };
        let (kills, transfers, gateway_kills, seconds, listed_keys) = if thorough {
            (
                KILLS_THOROUGH,
                TRANSFERS_THOROUGH,
                GATEWAY_KILLS_THOROUGH,
                HISTORY_SECONDS_THOROUGH,
                LISTED_KEYS_THOROUGH,
            )
        } else {
            (
                KILLS,
                TRANSFERS,
                GATEWAY_KILLS,
                HISTORY_SECONDS,
                LISTED_KEYS,
            )
        };
        let variables = [
            ("FOREBAY_KILLS", kills),
            ("FOREBAY_TRANSFERS", transfers),
            ("FOREBAY_GATEWAY_KILLS", gateway_kills),
            ("FOREBAY_HISTORY_SECONDS", seconds),
            ("FOREBAY_LISTED_KEYS", listed_keys),
        ]
        .map(|(name, value)| (name, value.to_string()));
        let runner = Runner {
            prepared: &prepared,
            binary: &binary,
            variables: &variables,
            thorough,
        };
        let executing = groups.iter().copied().find(|group| group.name == EXECUTING);
        let waiting = Mutex::new(groups.iter().copied());
        let ended: Mutex<&mut Steps> = Mutex::new(&mut steps);
        std::thread::scope(|scope| {
            for _ in 0..SIDE_BY_SIDE {
                scope.spawn(|| {
                    loop {
                        let Some(group) = lock(&waiting).next() else {
                            break;
                        };
                        let outcome = runner.run(group, group.name);
                        let name = format!("interop {}", group.name);
                        lock(&ended).add(&name, outcome.counts, outcome.took);
                    }
                });
            }
        });
        // Last: this binary takes the place of the other.
        if let Some(group) = executing.filter(|_| thorough) {
            match build(&["--features", "wasm-jit"]) {
                Ok(_) => {
                    let name = format!("{}-jit", group.name);
                    let outcome = runner.run(group, &name);
                    steps.add(&format!("interop {name}"), outcome.counts, outcome.took);
                }
                Err(error) => steps.run("build", || Err(error)),
            }
        }
    });
    // Alone on its line, last: whoever runs this reads the result there.
    let total = steps.total();
    println!("{total}");
    Ok(total.failed == 0)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Every test of these crates: by nextest where it is installed.
fn unit(crates: &[&str]) -> Result<Counts> {
    let how = ["--locked", "--no-fail-fast"];
    if crate::tool::installed("cargo-nextest") {
        let nextest = ["nextest", "run", "--no-tests=pass"];
        return counted(cargo().args(nextest).args(crates).args(how), nextest_counts);
    }
    let test = ["test", "--lib", "--bins", "--tests"];
    counted(cargo().args(test).args(crates).args(how), cargo_counts)
}

/// The binary as the tests were built: one profile, so nothing is compiled twice.
fn build(features: &[&str]) -> Result<PathBuf> {
    let server = ["build", "--quiet", "--package", "forebay", "--locked"];
    run_tool(cargo().args(server).args(features))?;
    // What drives some of the tests.
    for examples in [
        ["--package", "forebay-client", "--examples"].as_slice(),
        &[
            "--package",
            "forebay-fabric",
            "--example",
            "rping",
            "--example",
            "exposed_file",
        ],
        &["--package", "forebay-history", "--examples"],
        &[
            "--package",
            "forebay-nvme",
            "--example",
            "vfio_user_execute",
        ],
    ] {
        run_tool(
            cargo()
                .args(["build", "--quiet", "--locked"])
                .args(examples),
        )?;
    }
    let binary = target().join("debug").join("forebay");
    if !binary.is_file() {
        bail!("{} was not built", binary.display());
    }
    Ok(binary)
}

/// Runs a test runner with its output on the terminal, and reads the same output for its counts.
fn counted(runner: &mut Command, counts: fn(&str) -> Counts) -> Result<Counts> {
    // nextest reports on standard error, cargo test on standard output: both are read.
    let mut child = runner
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let text = Mutex::new(String::new());
    std::thread::scope(|scope| {
        scope.spawn(|| out.map(|stream| copy(stream, &text)));
        scope.spawn(|| err.map(|stream| copy(stream, &text)));
    });
    let status = child.wait()?;
    let mut counts = counts(&lock(&text));
    if !status.success() && counts.failed == 0 || counts == Counts::default() {
        counts.failed += 1;
    }
    Ok(counts)
}

fn copy(stream: impl std::io::Read, text: &Mutex<String>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        // A closed terminal must not end the tests.
        let _ = writeln!(std::io::stderr(), "{line}");
        let mut text = lock(text);
        text.push_str(&line);
        text.push('\n');
    }
}

/// Reads `Summary [   0.5s] 12 tests run: 11 passed (1 slow), 1 failed, 2 skipped`.
fn nextest_counts(text: &str) -> Counts {
    let mut counts = Counts::default();
    let Some(line) = text
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("Summary ["))
    else {
        return counts;
    };
    let words: Vec<&str> = line
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else {
            continue;
        };
        match pair[1] {
            "passed" => counts.passed = number,
            "failed" | "timed" => counts.failed += number,
            "skipped" => counts.skipped = number,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_that_counts_nothing_has_failed() {
        let counted = counted(&mut Command::new("true"), nextest_counts).unwrap();
        assert_eq!((counted.passed, counted.failed), (0, 1));
    }

    #[test]
    fn summary_line() {
        let text = "  Summary [   0.512s] 12 tests run: 9 passed (1 slow), 2 failed, 1 timed out, 3 skipped";
        assert_eq!(
            nextest_counts(text),
            Counts {
                passed: 9,
                failed: 3,
                skipped: 3
            }
        );
    }
}
