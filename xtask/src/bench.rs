//! `cargo xtask bench`: the published figures, ours beside the peers that are installed, in one run.
//!
//! Every figure is measured in rounds, its contenders one right after the other in each round, so that whatever else the machine
//! does falls on all of them; a ratio is taken within a round and the median of the rounds is told. All S3 endpoints are measured
//! by the same client, `forebay bench s3`; the direct path by `forebay bench direct`, others beside it by their own load generators.
//!
//! Rewrites `docs/performance.md` and the pictures in `docs/performance/`.

mod ceph;
mod chart;
mod direct;
mod exec;
mod figures;
mod hits;
mod idle;
mod keeper;
mod machine;
mod measure;
mod nvme;
mod peers;
mod probe;
mod redis;
mod report;
mod sample;
mod scripts;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::figures::{Check, Figure, Results};
use crate::bench::hits::Hits;
use crate::bench::idle::Idle;
use crate::bench::keeper::Keeper;
use crate::bench::measure::Bench;
use crate::dist;
use crate::tool::{root, target};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Length of each measured window.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds; an odd number has a median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where servers keep their data, in a new folder that is removed afterwards [default: the target folder].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Folders to look for peers in, before the PATH.
    #[arg(long)]
    peers: Vec<PathBuf>,
    /// Only figures whose name contains this, in whatever case; the document is then not rewritten.
    #[arg(long)]
    only: Option<String>,
    /// A trace for `forebay bench cache`, with the requests that Mooncake publishes for example [default: a made-up one].
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Objects in the longer list.
    #[arg(long, default_value_t = 1_000_000)]
    listed: u64,
    /// The program to measure [default: built with the profile that is shipped].
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Puts every load of ours once on this program, which is there to count what it does.
pub fn practise(binary: &Path) -> Result<()> {
    let bench = Bench::of(binary, None)?;
    let practised = figures::practise(&bench);
    let removed = bench.end();
    practised?;
    removed
}

impl Bench {
    /// Short windows on this program, with a new folder in `folder` or the target folder.
    fn of(binary: &Path, folder: Option<&Path>) -> Result<Bench> {
        let binary = std::fs::canonicalize(binary)
            .with_context(|| format!("{} is not there", binary.display()))?;
        let parent = folder.map_or_else(target, Path::to_owned);
        std::fs::create_dir_all(&parent)?;
        // Nobody else's, whoever measures at the same time.
        let folder = parent.join(format!("bench-data-{}", std::process::id()));
        std::fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let folder = std::fs::canonicalize(&folder)?;
        Ok(Bench {
            keeper: Keeper::of(&folder)?,
            binary,
            folder,
            seconds: 1.0,
            search: Vec::new(),
            listed: 20_000,
            ceph: std::cell::OnceCell::new(),
        })
    }

    /// A command whose process, and what that starts, does not outlive the bench.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.keeper.command(program)
    }

    /// Ends what still runs, and removes the folder.
    fn end(self) -> Result<()> {
        self.keeper.end()
    }
}

/// Measures, prints and, unless only a part was wanted, rewrites the document. False when a figure is below its bound.
pub fn run(args: &Args) -> Result<bool> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => dist::build()?,
    };
    let bench = Bench {
        seconds: args.seconds,
        search: args.peers.clone(),
        listed: args.listed,
        ..Bench::of(&binary, args.dir.as_deref())?
    };
    let measured =
        figures::run(&bench, args.rounds.max(1), args.only.as_deref()).and_then(|results| {
            let hits = match args.only {
                None => bench.hits(args.trace.as_deref())?,
                Some(_) => Vec::new(),
            };
            Ok(Results { hits, ..results })
        });
    let told = measured.and_then(|results| tell(args, &results));
    let removed = bench.end();
    let passed = told?;
    removed.map(|()| passed)
}

/// Prints and writes; whether all bounds are met.
fn tell(args: &Args, results: &Results) -> Result<bool> {
    println!("{}", report::tables(&results.figures));
    if args.only.is_none() {
        let pictures = root().join("docs/performance");
        std::fs::create_dir_all(&pictures)?;
        std::fs::write(
            pictures.join("throughput.svg"),
            chart::throughput(&results.figures),
        )?;
        std::fs::write(pictures.join("cpu.svg"), chart::cpu(&results.figures))?;
        std::fs::write(
            root().join("docs/performance.md"),
            report::document(results, args.rounds, args.seconds, args.trace.as_deref()),
        )?;
    }
    let mut checks: Vec<Check> = results.figures.iter().flat_map(Figure::checks).collect();
    checks.extend(results.idle.as_ref().map(Idle::check));
    checks.extend(results.hits.iter().flat_map(Hits::checks));
    Ok(checks.iter().all(|check| check.met))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn nothing_outlives_a_bench() {
        let parent = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
        let bench = Bench::of(&std::env::current_exe().unwrap(), Some(&parent)).unwrap();
        let folder = bench.folder.clone();
        std::fs::write(folder.join("data"), b"data").unwrap();
        let mut server = peers::quiet(bench.command("sleep").arg("1000")).unwrap();
        // As its input ends when this program does.
        drop(bench);
        assert!(!folder.exists());
        assert_eq!(server.wait().unwrap().signal(), Some(9));
        std::fs::remove_dir(&parent).unwrap();
    }
}
