//! Real clients against the real binary: each group has an environment, a server and a log of its
//! own, so groups run side by side.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::steps::Counts;
use crate::tool::{cargo, command, root, target};
use crate::venv::{debian, logged, prepare, quietly, tail};

/// A folder of tests.
pub struct Group {
    /// The folder under `interop/`, and the name for `--only`.
    pub name: &'static str,
    /// What the tests run in.
    pub kind: Kind,
    /// Whether it is a skip, and no failure, that its environment cannot be had.
    pub optional: bool,
}

/// How a group is run.
pub enum Kind {
    /// pytest in the environment of this name.
    Python(&'static str),
    /// cargo, in the workspace of its own under `interop/`.
    Rust,
}

/// All groups but the crash loop, the longest first.
pub const GROUPS: &[Group] = &[
    Group {
        name: "rust",
        kind: Kind::Rust,
        optional: false,
    },
    Group {
        name: "direct",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "nvme",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "lab",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "sdk",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "ai",
        kind: Kind::Python("ai"),
        optional: true,
    },
    Group {
        name: "cli",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "data",
        kind: Kind::Python("data"),
        optional: false,
    },
    Group {
        name: "rpc",
        kind: Kind::Python("rpc"),
        optional: false,
    },
];

/// Programs that the group `cli` takes from the machine.
const PROGRAMS: [&str; 2] = ["rclone", "s3cmd"];

/// How a group ended.
pub struct Outcome {
    /// Its tests, counted.
    pub counts: Counts,
    /// How long it ran, preparation apart.
    pub took: Duration,
}

/// An environment that was made, or why it was not.
pub struct Prepared {
    name: &'static str,
    python: Result<PathBuf>,
}

/// Makes every environment that these groups need, one after the other: pip is bound by the disk.
pub fn prepare_all(groups: &[&Group]) -> Vec<Prepared> {
    let mut made: Vec<Prepared> = Vec::new();
    for group in groups {
        let log = log(&format!("setup-{}", group.name));
        if group.name == "cli"
            && let Err(error) = debian(&PROGRAMS, &log)
        {
            // The tests of what is missing skip themselves.
            eprintln!("interop cli: {error:#}");
        }
        if let Kind::Python(name) = group.kind
            && !made.iter().any(|one| one.name == name)
        {
            made.push(Prepared {
                name,
                python: prepare(name, &log),
            });
        }
    }
    made
}

/// Variables for the tests of a group.
pub type Variables = [(&'static str, String)];

/// Runs one group to its end.
pub fn run(group: &Group, prepared: &[Prepared], binary: &Path, variables: &Variables) -> Outcome {
    let begun = Instant::now();
    let log = log(group.name);
    let _ = std::fs::remove_file(&log);
    let counts = match group.kind {
        Kind::Rust => rust(binary, &log),
        Kind::Python(name) => match prepared
            .iter()
            .find(|one| one.name == name)
            .map(|p| &p.python)
        {
            Some(Ok(python)) => pytest(group.name, python, binary, variables, &log),
            Some(Err(error)) if group.optional => {
                eprintln!("SKIP interop {}: {error:#}", group.name);
                Ok(Counts {
                    skipped: 1,
                    ..Counts::default()
                })
            }
            Some(Err(error)) => Err(anyhow::anyhow!("no environment: {error:#}")),
            None => Err(anyhow::anyhow!("no environment {name} was prepared")),
        },
    };
    let counts = counts.unwrap_or_else(|error| {
        eprintln!("interop {}: {error:#}", group.name);
        Counts {
            failed: 1,
            ..Counts::default()
        }
    });
    if counts.failed > 0 {
        eprintln!("--- {}\n{}\n---", log.display(), tail(&log, 150));
    }
    Outcome {
        counts,
        took: begun.elapsed(),
    }
}

fn pytest(
    name: &str,
    python: &Path,
    binary: &Path,
    variables: &Variables,
    log: &Path,
) -> Result<Counts> {
    let mut pytest = command(python);
    pytest
        .current_dir(root().join("interop"))
        .args(["-B", "-m", "pytest", name]);
    pytest
        .env("FOREBAY_BIN", binary)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables.iter().map(|(name, value)| (name, value)));
    finish(&mut pytest, log, pytest_counts)
}

fn rust(binary: &Path, log: &Path) -> Result<Counts> {
    let test = |more: &[&str]| {
        let mut test = cargo();
        test.args([
            "test",
            "--locked",
            "--manifest-path",
            "interop/rust/Cargo.toml",
        ])
        .args(more);
        test.env("CARGO_TARGET_DIR", target().join("interop").join("rust"));
        test.env("FOREBAY_BIN", binary);
        test
    };
    quietly(&mut test(&["--no-run"]), log).context("cannot be built")?;
    finish(&mut test(&[]), log, cargo_counts)
}

/// Runs a test runner and reads its closing lines; its exit status must agree with them.
fn finish(runner: &mut Command, log: &Path, counts: fn(&str) -> Counts) -> Result<Counts> {
    let status = logged(runner, log)?.status()?;
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    let mut counts = counts(&text);
    if !status.success() && counts.failed == 0 || counts == Counts::default() {
        counts.failed += 1;
    }
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        eprintln!("{line}");
    }
    Ok(counts)
}

/// Reads `3 failed, 40 passed, 1 skipped in 2.50s`.
fn pytest_counts(text: &str) -> Counts {
    let closing = text
        .lines()
        .rev()
        .find(|line| line.contains(" in ") && line.ends_with(['s', ')', '=']));
    let mut counts = Counts::default();
    let words: Vec<&str> = closing.unwrap_or_default().split([' ', ',']).collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else {
            continue;
        };
        match pair[1] {
            "passed" => counts.passed = number,
            "failed" | "error" | "errors" => counts.failed += number,
            "skipped" => counts.skipped = number,
            _ => {}
        }
    }
    counts
}

/// Adds up every `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
pub fn cargo_counts(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
    {
        for part in line.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let Some(Ok(number)) = words.next().map(str::parse::<u64>) else {
                continue;
            };
            match words.next() {
                Some("passed") => counts.passed += number,
                Some("failed") => counts.failed += number,
                Some("ignored") => counts.skipped += number,
                _ => {}
            }
        }
    }
    counts
}

fn log(name: &str) -> PathBuf {
    let folder = target().join("interop").join("log");
    // A folder that cannot be made shows itself when the log is opened.
    let _ = std::fs::create_dir_all(&folder);
    folder.join(format!("{name}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines() {
        let pytest = "x\n3 failed, 40 passed, 1 skipped, 2 warnings, 1 error in 2.50s (0:01:00)\n";
        assert_eq!(
            pytest_counts(pytest),
            Counts {
                passed: 40,
                failed: 4,
                skipped: 1
            }
        );
        assert_eq!(pytest_counts("no tests ran"), Counts::default());
        let cargo = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                     test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(
            cargo_counts(cargo),
            Counts {
                passed: 5,
                failed: 1,
                skipped: 1
            }
        );
    }
}
