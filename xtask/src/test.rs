//! `cargo xtask test`: unit tests, document tests, clients, and the closing line.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::interop::{GROUPS, Group, Runner, prepare_all};
use crate::runners::{self, SILENCE};
use crate::steps::{Counts, Steps};
use crate::tool::{NEXTEST, cargo, installed, run as run_tool, target};
use crate::{counts, fuzz};

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
/// The longest payload that a token names.
const TOKEN_BYTES: u32 = (64 << 20) + 1;
const TOKEN_BYTES_THOROUGH: u32 = u32::MAX;
/// Groups at a time; the clients mostly wait for each other's disk.
const SIDE_BY_SIDE: usize = 3;

/// Suites that are no groups of clients.
const UNITS: [&str; 4] = ["unit", "jit", "fuzz", "doc"];

/// The tests of functions again, by the runtime that releases have.
const JIT: [&str; 4] = ["--package", "forebay-exec", "--features", "wasm-jit"];
/// The group whose tests run again by that runtime, in thorough runs.
const EXECUTING: &str = "exec";

/// Runs every suite, or only the one named.
pub fn run(thorough: bool, only: Option<&str>) -> Result<bool> {
    let chosen = |name: &str| only.is_none_or(|only| only == name);
    let groups: Vec<&'static Group> = GROUPS.iter().filter(|group| chosen(group.name)).collect();
    if !UNITS.into_iter().any(chosen) && groups.is_empty() {
        let known = UNITS
            .into_iter()
            .chain(GROUPS.iter().map(|group| group.name));
        let known: Vec<&str> = known.collect();
        bail!("there is no suite {only:?}; there are {}", known.join(", "));
    }
    let mut steps = Steps::new();
    std::thread::scope(|scope| {
        // pip waits for the network and the disk while rustc has the cores.
        let preparing = scope.spawn(|| prepare_all(&groups));
        if chosen("unit") {
            steps.count("unit", || unit(&["--workspace"]));
            if !installed(NEXTEST) {
                let why = format!("they need a process for each test, and there is no {NEXTEST}");
                steps.skip("checks of what a process opens, writes and copies", &why);
            }
        }
        if chosen("jit") {
            match thorough || only.is_some() {
                true => steps.count("jit", || unit(&JIT)),
                false => steps.skip(
                    "jit",
                    "its compiler takes minutes to build; --only jit, or --thorough",
                ),
            }
        }
        if chosen("fuzz") {
            match thorough || only.is_some() {
                true => steps.run("fuzz", fuzz::compile),
                false => steps.skip(
                    "fuzz",
                    "all is compiled anew for it; --only fuzz, or --thorough",
                ),
            }
        }
        if chosen("doc") {
            steps.count("doc", || {
                let doc = ["test", "--doc", "--workspace", "--locked"];
                counted(cargo().args(doc), SILENCE, counts::cargo)
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
        let (kills, transfers, gateway_kills, seconds, listed_keys, token_bytes) = if thorough {
            (
                KILLS_THOROUGH,
                TRANSFERS_THOROUGH,
                GATEWAY_KILLS_THOROUGH,
                HISTORY_SECONDS_THOROUGH,
                LISTED_KEYS_THOROUGH,
                TOKEN_BYTES_THOROUGH,
            )
        } else {
            (
                KILLS,
                TRANSFERS,
                GATEWAY_KILLS,
                HISTORY_SECONDS,
                LISTED_KEYS,
                TOKEN_BYTES,
            )
        };
        let variables = [
            ("FOREBAY_KILLS", kills),
            ("FOREBAY_TRANSFERS", transfers),
            ("FOREBAY_GATEWAY_KILLS", gateway_kills),
            ("FOREBAY_HISTORY_SECONDS", seconds),
            ("FOREBAY_LISTED_KEYS", listed_keys),
            ("FOREBAY_TOKEN_BYTES", token_bytes),
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
        let Some(group) = executing else {
            return;
        };
        let name = format!("{}-jit", group.name);
        if !thorough {
            return steps.skip(&format!("interop {name}"), "as jit is; --thorough");
        }
        // Last: this binary takes the place of the other.
        match build(&["--features", "wasm-jit"]) {
            Ok(_) => {
                let outcome = runner.run(group, &name);
                steps.add(&format!("interop {name}"), outcome.counts, outcome.took);
            }
            Err(error) => steps.run("build", || Err(error)),
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

/// Every test of these crates: by nextest where it is installed. A test whose machine lacks what it is about passes, and says so in a
/// file, by which it is counted as left out.
fn unit(crates: &[&str]) -> Result<Counts> {
    let told = target().join("skipped");
    // Of another run.
    let _ = std::fs::remove_file(&told);
    let (words, counts): (&[&str], fn(&str) -> Counts) = match installed(NEXTEST) {
        true => (&["nextest", "run", "--no-tests=pass"], counts::nextest),
        false => (&["test", "--lib", "--bins", "--tests"], counts::cargo),
    };
    let mut runner = cargo();
    runner
        .args(words)
        .args(crates)
        .args(["--locked", "--no-fail-fast"])
        .env("FOREBAY_SKIPPED", &told);
    let mut counts = counted(&mut runner, SILENCE, counts)?;
    for why in std::fs::read_to_string(&told).unwrap_or_default().lines() {
        eprintln!("SKIP {why}");
        counts.passed = counts.passed.saturating_sub(1);
        counts.skipped += 1;
    }
    Ok(counts)
}

/// The binary, and the examples that drive some of the tests, as the unit tests have them: of the whole workspace, because each choice of
/// packages has features of its own, with which everything would be compiled again.
fn build(features: &[&str]) -> Result<PathBuf> {
    let all = ["build", "--quiet", "--locked", "--workspace"];
    run_tool(
        cargo()
            .args(all)
            .args(["--bins", "--examples"])
            .args(features),
    )?;
    let binary = target().join("debug").join("forebay");
    if !binary.is_file() {
        bail!("{} was not built", binary.display());
    }
    Ok(binary)
}

/// Runs a test runner with its output on the terminal, and reads the same output for its counts. One that says nothing for `silence`
/// is ended, and has failed.
fn counted(runner: &mut Command, silence: Duration, counts: fn(&str) -> Counts) -> Result<Counts> {
    // nextest reports on standard error, cargo test on standard output: both are read.
    let mut child = runner
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let text = Arc::new(Mutex::new(String::new()));
    let out = child.stdout.take().map(|stream| copying(stream, &text));
    let err = child.stderr.take().map(|stream| copying(stream, &text));
    let status = runners::wait(&mut child, silence, || lock(&text).len() as u64)?;
    if status.is_some() {
        for copied in [out, err].into_iter().flatten() {
            // It does not panic.
            let _ = copied.join();
        }
    }
    Ok(runners::tally(&lock(&text), status, counts))
}

fn copying(stream: impl Read + Send + 'static, text: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let text = Arc::clone(text);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // A closed terminal must not end the tests.
            let _ = writeln!(std::io::stderr(), "{line}");
            let mut text = lock(&text);
            text.push_str(&line);
            text.push('\n');
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_that_counts_nothing_has_failed() {
        let counted = counted(&mut Command::new("true"), SILENCE, counts::nextest).unwrap();
        assert_eq!((counted.passed, counted.failed), (0, 1));
    }

    #[test]
    fn a_runner_that_hangs_has_failed() {
        let mut hangs = Command::new("sleep");
        let silence = Duration::from_millis(1);
        let counted = counted(hangs.arg("1000"), silence, counts::nextest).unwrap();
        assert_eq!((counted.passed, counted.failed), (0, 1));
    }
}
