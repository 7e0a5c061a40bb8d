//! The project's own chores: `cargo xtask check`, `test`, `bench` and `generate`.
//!
//! A rule of this project is a command here or it is only advice. Nothing in this crate is shipped.
//!
//! - `check`: format, lints, licences and bans, layering, documents.
//! - `test`: unit and document tests, then real clients against the real binary, its deaths among them.
//! - `fuzz`: parsers of foreign bytes, each for some seconds.
//! - `ceph`: a command, such as the tests of one crate, beside a throwaway Ceph.
//! - `bench`: the published figures, beside the peers that are installed; never part of a test.
//! - `dist`: the program as it is shipped and measured.
//! - `modules`: the functions that are shipped as source, built as WebAssembly.
//! - `generate`: the code made from the published `.proto` files.
//!
//! It has no state of its own: what it builds or downloads lies under `target/`.

#![forbid(unsafe_code)]

mod bench;
mod ceph;
mod check;
mod counts;
mod deps;
mod dist;
mod docs;
mod fuzz;
mod generate;
mod interop;
mod layers;
mod metadata;
mod modules;
mod runners;
mod spdx;
mod steps;
mod test;
mod tool;
mod venv;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of this workspace")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that can be said about the sources without running them.
    Check {
        /// Runs only this check.
        #[arg(long)]
        only: Option<String>,
    },
    /// Every test, ending with one line of totals.
    Test {
        /// Ten times as many crashes, 10000 transfers over each bad link, a minute of each history, the suites of compiled functions, jit and
        /// exec-jit, and the fuzzers compiled.
        #[arg(long)]
        thorough: bool,
        /// Runs only this suite.
        #[arg(long)]
        only: Option<String>,
    },
    /// Every fuzzer, from the kept seeds.
    Fuzz {
        /// How long each.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Runs only this target.
        #[arg(long)]
        only: Option<String>,
    },
    /// A command beside a throwaway Ceph, which it finds by CEPH_CONF and FOREBAY_CEPH_CONF.
    Ceph {
        /// How many OSDs.
        #[arg(long, default_value_t = 3)]
        osds: u32,
        /// What they keep their objects in: memstore or bluestore.
        #[arg(long, default_value = "memstore")]
        store: String,
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// The published figures, and `docs/performance.md` written from them.
    Bench(bench::Args),
    /// What is shipped, laid out by a profile of the published loads; says where it is.
    Dist,
    /// The WebAssembly modules of `modules/`, built under `target/`.
    Modules,
    /// The code and descriptors made from the `.proto` files.
    Generate,
}

fn main() -> std::process::ExitCode {
    let passed = match Args::parse().chore {
        Chore::Check { only } => check::run(only.as_deref()),
        Chore::Test { thorough, only } => test::run(thorough, only.as_deref()),
        Chore::Fuzz { seconds, only } => fuzz::run(seconds, only.as_deref()),
        Chore::Ceph {
            osds,
            store,
            command,
        } => ceph::run(osds, &store, &command),
        Chore::Bench(args) => bench::run(&args),
        Chore::Dist => dist::run_and_tell(),
        Chore::Modules => modules::run(),
        Chore::Generate => generate::run(),
    };
    match passed {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
