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
mod machine;
mod measure;
mod nvme;
mod peers;
mod probe;
mod redis;
mod report;
mod sample;
mod scripts;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bench::figures::{Check, Figure, Results};
use crate::bench::hits::Hits;
use crate::bench::idle::Idle;
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
    let removed = bench.remove();
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
        Ok(Bench {
            binary,
            folder: std::fs::canonicalize(&folder)?,
            seconds: 1.0,
            search: Vec::new(),
            listed: 20_000,
            ceph: std::cell::OnceCell::new(),
        })
    }

    fn remove(&self) -> Result<()> {
        let folder = &self.folder;
        std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))
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
    let removed = bench.remove();
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
