//! `forebay`: the rooms wired into a server, and its command line.
//!
//! - [`serve`]: a leaf of the store, its doors, the threads that serve them, the admin API, metrics, the process.
//! - [`cli`]: what a person or script does with a running server: copy, list, look, remove, administer, measure.
//! - [`environment`]: what its variables say.
//! - [`exit`]: how a command ends.
//!
//! No protocol and no storage is implemented here: this room opens the others and joins them.
//!
//! # How it is tested
//! The binary itself, as users run it: `tests/`.
#![forbid(unsafe_code)]

mod cli;
mod environment;
mod exit;
#[cfg(test)]
mod nobody;
mod serve;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                let lines: Vec<_> = failure.message.split('\n').map(cli::plain).collect();
                eprintln!("forebay: {}", lines.join("\n"));
            }
            failure.exit.into()
        }
    }
}
