//! Functions sent to the data: whether the node runs any, within which bounds, and which it may.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay_bench::Size;
use forebay_control::{AllowedModule, Identities, SYSTEM_NAMESPACE};
use forebay_exec::{Allowed, Executor, Keeping, Limits, Runs};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_store::Store;

use super::args::{Backend, ServeArgs};
use super::limits;
use crate::exit::{Exit, Failure, Outcome};

/// Whether functions run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Those of modules that `admin module add` allowed
    On,
    /// None
    Off,
}

/// The flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Functions")]
pub struct ExecArgs {
    /// Run functions of modules that `forebay admin module add` allowed
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub exec: Switch,
    /// How long a function may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub exec_deadline: u64,
    /// The most memory that a function may have
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub exec_memory: Size,
    /// Threads that run functions; one tenant may have all but one [default: one a core, and one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub exec_threads: Option<u16>,
}

/// Memories are addressed by 32 bits.
const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// What runs functions; nothing when they are off.
pub fn open(all: &ServeArgs, pool: &Pool) -> Outcome<Option<Arc<Executor>>> {
    let args = &all.exec;
    if args.exec == Switch::Off {
        return Ok(None);
    }
    if args.exec_memory.0 > MEMORY_BYTES_MAX {
        return Err(Failure::new(Exit::Usage, "--exec-memory is at most 4GiB"));
    }
    let usual = Limits::default();
    let threads = args.exec_threads.map_or(usual.threads, usize::from);
    let limits = Limits {
        threads,
        threads_per_tenant: threads.saturating_sub(1).max(1),
        deadline: Duration::from_millis(args.exec_deadline),
        memory_bytes: args.exec_memory.0 as usize,
        // Requests in flight always find the rest.
        waiting_output_bytes: (limits::pool_bytes(all) / 2) as usize,
        ..usual
    };
    let clock = Arc::new(SystemClock::default());
    let keeping = Keeping {
        folder: all.dir.join("modules"),
        // An engine's index needs what it reserves there even for deletes: compiled modules end well before.
        spare_bytes: match all.backend {
            Backend::Engine => 2 * forebay_engine::Config::default().reserve_bytes,
            Backend::Memory | Backend::Rados(_) => 0,
        },
    };
    Executor::start(limits, Runs::Best, Some(keeping), pool.clone(), clock)
        .map(Some)
        .map_err(|error| Failure::new(Exit::Failed, error))
}

/// Lets run what is allowed, from now on.
pub fn follow<S: Store>(executor: &Arc<Executor>, identities: &Identities<S>) {
    let executor = executor.clone();
    identities.on_modules_changed(move |modules| {
        executor.allow(modules.iter().filter_map(|module| allowed(module)));
    });
}

fn allowed(module: &AllowedModule) -> Option<Allowed> {
    Some(Allowed {
        digest: module.digest()?,
        tenant: module.tenant.clone(),
        namespace: module.namespace.clone(),
        namespace_id: module.namespace_id,
        name: module.name.clone(),
        number: module.number,
        function: module.function.clone(),
        place: (SYSTEM_NAMESPACE.to_owned(), module.key().into_bytes()),
    })
}
