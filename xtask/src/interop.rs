//! Real clients against the real binary: each group has an environment, a server and a log of its
//! own, so groups run side by side.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};

use crate::ceph::Ceph;
use crate::runners::{self, SILENCE, SILENCE_OF_PYTEST};
use crate::steps::{Counts, Unavailable, unfetched};
use crate::tool::{NEXTEST, cargo, command, installed, root, target};
use crate::venv::{debian, logged, prepare, quietly, tail, was_cut_off};
use crate::{counts, modules};

/// A folder of tests.
pub struct Group {
    /// The folder under `interop/`, and the name for `--only`.
    pub name: &'static str,
    /// What the tests run in.
    pub kind: Kind,
    /// Whether it is a skip, and no failure, that its environment cannot be made for another reason than the network.
    pub optional: bool,
}

/// The tests of the leaf `rados`, as they were built with all others.
const LEAF: [&str; 7] = [
    "nextest",
    "run",
    "--workspace",
    "--profile",
    "ceph",
    "-E",
    "package(forebay-rados)",
];
/// The same where there is no nextest: built again.
const LEAF_BY_CARGO: [&str; 3] = ["test", "--package", "forebay-rados"];

/// Groups that `ceph` runs too, their servers over a throwaway Ceph: every client of the S3 door, and functions.
const OVER_CEPH: [&str; 6] = ["rust", "sdk", "ai", "cli", "data", "exec"];
/// What it runs of the group `nvme` there.
const GUEST_OVER_CEPH: &str = "nvme/test_guest.py::test_values_by_passthrough_are_objects[plain]";
/// The same when there is time.
const GUEST_OVER_CEPH_THOROUGH: &str = "nvme/test_guest.py::test_values_by_passthrough_are_objects";
/// That Ceph: what an OSD had is there when it was killed and comes back.
const CLUSTER: [&str; 6] = ["--osds", "3", "--store", "bluestore", "--size", "4096"];

/// Random runs of each kind of the conformance suite there, when there is time.
const CASES_THOROUGH: &str = "48";

/// How a group is run.
pub enum Kind {
    /// pytest in the environment of this name.
    Python(&'static str),
    /// The same with a throwaway Ceph, on which the leaf `rados` is tested before.
    Ceph(&'static str),
    /// cargo, in the workspace of its own under `interop/`.
    Rust,
}

/// All groups, the longest first: none is to be left alone at the end.
pub const GROUPS: &[Group] = &[
    Group {
        name: "ceph",
        kind: Kind::Ceph("sdk"),
        optional: false,
    },
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
        name: "exec",
        kind: Kind::Python("exec"),
        optional: false,
    },
    Group {
        name: "lab",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "cli",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "sdk",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "crash",
        kind: Kind::Python("sdk"),
        optional: false,
    },
    Group {
        name: "data",
        kind: Kind::Python("data"),
        optional: false,
    },
    Group {
        name: "ai",
        kind: Kind::Python("ai"),
        optional: true,
    },
    Group {
        name: "rpc",
        kind: Kind::Python("rpc"),
        optional: false,
    },
];

/// Groups that run the modules that come with the source.
const RUN_MODULES: [&str; 2] = ["nvme", "exec"];

/// The workspace of the group `rust`.
const RUST_CLIENTS: &str = "interop/rust/Cargo.toml";

/// What compiles C for the group `exec`.
const COMPILERS: [&str; 2] = ["clang", "lld"];

/// Programs that the group `cli` takes from the machine.
const PROGRAMS: [&str; 2] = ["rclone", "s3cmd"];

/// How a group ended.
pub struct Outcome {
    /// Its tests, counted.
    pub counts: Counts,
    /// How long it ran, preparation apart.
    pub took: Duration,
}

/// What groups run in, and what was to be there beside that and is not.
#[derive(Default)]
pub struct Prepared {
    environments: Vec<Environment>,
    /// By the names of the groups.
    broken: Vec<(&'static str, Error)>,
}

/// An environment that was made, or why it was not.
struct Environment {
    name: &'static str,
    python: Result<PathBuf>,
}

/// Makes all that these groups need, one after the other: pip is bound by the disk.
pub fn prepare_all(groups: &[&'static Group]) -> Prepared {
    let mut needed = groups.to_vec();
    if groups
        .iter()
        .any(|group| matches!(group.kind, Kind::Ceph(_)))
    {
        let more = |client: &&Group| !groups.iter().any(|group| group.name == client.name);
        needed.extend(over_ceph().filter(more));
    }
    let mut prepared = Prepared::default();
    for group in needed {
        let log = log(&format!("setup-{}", group.name));
        let mut wanted = Vec::new();
        if group.name == "cli" {
            wanted.push(debian(&PROGRAMS, &log));
        }
        if group.name == "exec" {
            wanted.push(debian(&COMPILERS, &log));
        }
        if RUN_MODULES.contains(&group.name) {
            let ready = modules::prepare();
            wanted.push(ready.and_then(|()| modules::build().map(drop)));
        }
        // The tests of what is missing skip themselves. What this machine cannot have is no failure beside them.
        for error in wanted.into_iter().filter_map(Result::err) {
            match error.is::<Unavailable>() {
                true => eprintln!("interop {}: {error:#}", group.name),
                false => prepared.broken.push((group.name, error)),
            }
        }
        let environments = &mut prepared.environments;
        if let Kind::Python(name) | Kind::Ceph(name) = group.kind
            && !environments.iter().any(|one| one.name == name)
        {
            let python = prepare(name, &log).map_err(|error| group.unprepared(error));
            environments.push(Environment { name, python });
        }
    }
    prepared
}

impl Group {
    /// Why its environment is not there.
    fn unprepared(&self, error: Error) -> Error {
        match self.optional && !was_cut_off(&error) {
            true => Unavailable(format!("{error:#}")).into(),
            false => error,
        }
    }
}

/// Variables for the tests of a group.
pub type Variables = [(&'static str, String)];

fn over_ceph() -> impl Iterator<Item = &'static Group> {
    GROUPS
        .iter()
        .filter(|group| OVER_CEPH.contains(&group.name))
}

/// What groups run with.
pub struct Runner<'a> {
    /// What was made for them.
    pub prepared: &'a Prepared,
    /// The server under test.
    pub binary: &'a Path,
    /// Variables for every test.
    pub variables: &'a Variables,
    /// Whether heavy tests run at their full size.
    pub thorough: bool,
}

impl Runner<'_> {
    /// Runs one group to its end. What it says goes to the log of this name.
    pub fn run(&self, group: &Group, name: &str) -> Outcome {
        let begun = Instant::now();
        Outcome {
            counts: self.counts(group, name, &[]),
            took: begun.elapsed(),
        }
    }

    /// Runs a group with these variables more. What it says goes to the log of this name.
    fn counts(&self, group: &Group, name: &str, more: &Variables) -> Counts {
        let log = log(name);
        let _ = std::fs::remove_file(&log);
        let counts = match group.kind {
            Kind::Rust => self.rust(&log, more),
            Kind::Python(environment) => self
                .python(environment)
                .and_then(|python| self.pytest(&[group.name], python, more, &log)),
            Kind::Ceph(environment) => match Ceph::up(&CLUSTER) {
                Err(error) if error.is::<Unavailable>() => Ok(skipped(name, &error)),
                Err(error) => Err(error),
                Ok(ceph) => self.beside(&ceph, group, environment, &log),
            },
        };
        let mut counts = counts.unwrap_or_else(|error| {
            if error.is::<Unavailable>() {
                return skipped(name, &error);
            }
            eprintln!("interop {name}: {error:#}");
            Counts {
                failed: 1,
                ..Counts::default()
            }
        });
        if counts.failed > 0 {
            eprintln!("--- {}\n{}\n---", log.display(), tail(&log, 150));
        }
        let broken = self.prepared.broken.iter();
        for (_, error) in broken.filter(|(of, _)| *of == group.name) {
            eprintln!("interop {name}: {error:#}");
            counts.failed += 1;
        }
        counts
    }

    /// The leaf's own tests on this cluster, then those of this group, then those of the groups that run over Ceph too.
    fn beside(&self, ceph: &Ceph, group: &Group, environment: &str, log: &Path) -> Result<Counts> {
        let mut counts = self.leaf(ceph, log)?;
        let kept = log.with_extension("leaf.log");
        std::fs::rename(log, &kept)?;
        if counts.failed > 0 {
            eprintln!("--- {}\n{}\n---", kept.display(), tail(&kept, 150));
        }
        let backend = [
            ("FOREBAY_INTEROP_BACKEND", "rados".to_owned()),
            ("FOREBAY_INTEROP_CEPH", ceph.name().to_owned()),
            ("CEPH_CONF", ceph.variable("CEPH_CONF")?.to_owned()),
        ];
        let guest = match self.thorough {
            true => GUEST_OVER_CEPH_THOROUGH,
            false => GUEST_OVER_CEPH,
        };
        let tests = [group.name, guest];
        counts += self.pytest(&tests, self.python(environment)?, &backend, log)?;
        for client in over_ceph() {
            counts += self.counts(client, &format!("{}-{}", group.name, client.name), &backend);
        }
        Ok(counts)
    }

    /// The leaf's own tests.
    fn leaf(&self, ceph: &Ceph, log: &Path) -> Result<Counts> {
        let (words, read): (&[&str], fn(&str) -> Counts) = match installed(NEXTEST) {
            true => (&LEAF, counts::nextest),
            false => (&LEAF_BY_CARGO, counts::cargo),
        };
        let mut leaf = cargo();
        leaf.args(words)
            .args(["--locked", "--no-fail-fast"])
            .args(["--", "--include-ignored", "--skip", "victim"])
            .envs(self.variables.to_vec());
        if self.thorough {
            leaf.env("FOREBAY_CEPH_CASES", CASES_THOROUGH);
        }
        let counts = finish(ceph.known_to(&mut leaf), log, read)?;
        // nextest counts the tests of all others as left out.
        Ok(Counts {
            skipped: 0,
            ..counts
        })
    }

    fn python(&self, name: &str) -> Result<&Path> {
        let mut environments = self.prepared.environments.iter();
        match environments.find(|one| one.name == name) {
            Some(Environment {
                python: Ok(python), ..
            }) => Ok(python),
            Some(Environment {
                python: Err(error), ..
            }) => {
                let told = format!("no environment: {error:#}");
                Err(match error.is::<Unavailable>() {
                    true => Unavailable(told).into(),
                    false => Error::msg(told),
                })
            }
            None => Err(anyhow::anyhow!("no environment {name} was prepared")),
        }
    }

    fn pytest(
        &self,
        tests: &[&str],
        python: &Path,
        more: &Variables,
        log: &Path,
    ) -> Result<Counts> {
        let mut pytest = command(python);
        pytest
            .current_dir(root().join("interop"))
            .args(["-B", "-m", "pytest"])
            .args(tests)
            .env("FOREBAY_BIN", self.binary)
            .env("FOREBAY_MODULES", modules::folder())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs([self.variables, more].concat());
        finish_within(&mut pytest, log, SILENCE_OF_PYTEST, counts::pytest)
    }

    fn rust(&self, log: &Path, more: &Variables) -> Result<Counts> {
        let test = |arguments: &[&str]| {
            let mut test = cargo();
            test.args(["test", "--locked", "--manifest-path", RUST_CLIENTS])
                .args(arguments)
                .env("CARGO_TARGET_DIR", target().join("interop").join("rust"))
                .env("FOREBAY_BIN", self.binary)
                .envs(more.to_vec());
            test
        };
        let fetch = ["fetch", "--locked", "--manifest-path", RUST_CLIENTS];
        quietly(cargo().args(fetch), log).map_err(unfetched)?;
        quietly(&mut test(&["--no-run"]), log).context("cannot be built")?;
        finish(&mut test(&[]), log, counts::cargo)
    }
}

fn skipped(name: &str, why: &Error) -> Counts {
    eprintln!("SKIP interop {name}: {why:#}");
    Counts {
        skipped: 1,
        ..Counts::default()
    }
}

/// Runs a runner of Rust tests and reads its closing lines.
fn finish(runner: &mut Command, log: &Path, counts: fn(&str) -> Counts) -> Result<Counts> {
    finish_within(runner, log, SILENCE, counts)
}

/// The same of one that may say nothing for so long.
fn finish_within(
    runner: &mut Command,
    log: &Path,
    silence: Duration,
    counts: fn(&str) -> Counts,
) -> Result<Counts> {
    let mut child = logged(runner, log)?.spawn()?;
    let said = || std::fs::metadata(log).map_or(0, |about| about.len());
    let status = runners::wait(&mut child, silence, said)?;
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    let counts = runners::tally(&text, status, counts);
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        eprintln!("{line}");
    }
    Ok(counts)
}

fn log(name: &str) -> PathBuf {
    let folder = target().join("interop").join("log");
    // A folder that cannot be made shows itself when the log is opened.
    let _ = std::fs::create_dir_all(&folder);
    folder.join(format!("{name}.log"))
}
