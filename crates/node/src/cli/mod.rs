//! The command line.

mod address;
mod admin;
mod bench;
mod copy;
mod credentials;
mod doctor;
mod door;
mod exec;
mod glob;
mod grants;
mod here;
mod hosts;
mod interrupt;
mod list;
mod modules;
mod nvme;
mod objects;
mod paths;
mod period;
mod probe;
mod remote;
mod server;
mod show;
mod tiers;
mod top;
mod versions;

use std::ffi::OsString;
use std::future::Future;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{Exit, Failure, Outcome};
use crate::serve::{self, args::ServeArgs};
use interrupt::Interrupt;
pub use show::plain;

/// A direct object store
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 120,
    after_help = "\
Objects are named fb://NAMESPACE/KEY; a namespace is an S3 bucket of the same name.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 denied, 5 refused by limit."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
    Cp(copy::CopyArgs),
    Ls(list::ListArgs),
    Stat(objects::StatArgs),
    Cat(objects::CatArgs),
    Rm(objects::RemoveArgs),
    Exec(exec::ExecArgs),
    /// Measure a running endpoint, or a private server
    Bench(forebay_bench::Args),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Admin(admin::AdminArgs),
    Nvme(nvme::NvmeArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example: forebay completions bash > /etc/bash_completion.d/forebay")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command that `argv` names.
pub fn run(argv: Vec<OsString>) -> Outcome {
    let cli = match parse(&argv)? {
        Some(cli) => cli,
        None => return Ok(()),
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Cp(args) => wait_to_the_end(copy::run(args)),
        Command::Ls(args) => wait(list::run(args)),
        Command::Stat(args) => wait(objects::stat(args)),
        Command::Cat(args) => wait(objects::cat(args)),
        Command::Rm(args) => wait(objects::remove(args)),
        Command::Exec(args) => wait(exec::run(args)),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => wait_to_the_end(doctor::run(args)),
        Command::Top(args) => wait(top::run(args)),
        Command::Admin(args) => wait(admin::run(args)),
        Command::Nvme(args) => wait(nvme::run(args)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
            show::bytes(&script)
        }
    }
}

/// Parses, for `serve` together with its configuration file; `None` when help or version was printed.
fn parse(argv: &[OsString]) -> Outcome<Option<Cli>> {
    let mut command = without_empty_variables(Cli::command());
    command.build();
    // What a flag or a variable goes with may stand in the file: mistakes count when the two are one.
    let given = without_empty_variables(Cli::command())
        .ignore_errors(true)
        .try_get_matches_from(argv);
    let config = given.as_ref().ok().and_then(|given| {
        let given = given.subcommand_matches("serve")?;
        let file = given.get_one::<std::path::PathBuf>("config")?;
        Some((given, file, command.find_subcommand("serve")?))
    });
    let matches = match config {
        None => matches(command, argv)?,
        Some((given, file, flags)) => {
            let merged = serve::config::merge(argv, file, flags, given)?;
            matches(command, &merged)?
        }
    };
    matches
        .map(|matches| Cli::from_arg_matches(&matches))
        .transpose()
        .map_err(|error| Failure::new(Exit::Usage, error))
}

/// Takes a variable that is set to nothing as one that is not set, as whoever reads others does.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let without = |arg: clap::Arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        Some(_) | None => arg,
    };
    let command = command.mut_args(without);
    command.mut_subcommands(without_empty_variables)
}

fn matches(command: clap::Command, argv: &[OsString]) -> Outcome<Option<clap::ArgMatches>> {
    match command.try_get_matches_from(argv) {
        Ok(matches) => Ok(Some(matches)),
        Err(error) => {
            // clap writes help to standard output and mistakes to standard error, with colours where they are wanted.
            let _ = error.print();
            match error.use_stderr() {
                true => Err(Failure::new(Exit::Usage, "")),
                false => Ok(None),
            }
        }
    }
}

/// Runs a command, of which nothing is left to do when it is interrupted.
fn wait(command: impl Future<Output = Outcome>) -> Outcome {
    wait_to_the_end(async { Interrupt::watch()?.or(command).await })
}

/// Runs a command that looks after interrupts itself.
fn wait_to_the_end(command: impl Future<Output = Outcome>) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(Failure::io("cannot start"))?;
    let outcome = runtime.block_on(command);
    // A thread that waits for standard input has nothing left to do.
    runtime.shutdown_background();
    outcome
}
