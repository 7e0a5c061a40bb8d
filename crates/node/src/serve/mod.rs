//! `forebay serve`: a leaf, its doors, and the process around them.

mod admin;
pub mod args;
mod cache;
mod cold;
pub mod config;
mod console;
pub mod credentials;
mod device;
mod direct;
mod ending;
mod exec;
mod held;
mod http;
mod keyring;
mod leaf;
mod limits;
mod listeners;
pub mod live;
mod logs;
mod metrics;
mod node;
pub mod nvme;
mod own_socket;
mod owner;
mod places;
mod rpc;
mod s3;
mod shards;
pub mod socket;
mod stack;
mod tending;
mod tls;
mod together;
mod welcome;
mod whole_file;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_fabric::Sessions;
use forebay_io::files::Directory;
use forebay_io::{Clock, SystemClock};
use forebay_mem::Pool;
use tokio::sync::watch;

use crate::exit::{Failure, Outcome};
use args::{Backend, ServeArgs};
use device::Device;
use ending::Signals;
use held::{Held, hold};
use leaf::Leaf;
use limits::Memory;
use listeners::Listeners;
use logs::Logs;
use node::Node;
use shards::STACK_BYTES;

/// How long an acceptor rests after the system refused it a connection: it may be out of descriptors.
const REST: Duration = Duration::from_millis(200);

type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &ServeArgs) -> Outcome {
    // The gRPC door's tasks, and short functions in them, run on the thread of the runtime. The stack of the process' first thread is
    // as large as whoever started it has said.
    let served = thread::scope(|scope| {
        thread::Builder::new()
            .name("forebay-serve".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || run_here(args))
            .map(|thread| thread.join())
    });
    match served.map_err(Failure::io("cannot start"))? {
        Ok(outcome) => outcome,
        Err(panic) => resume_unwind(panic),
    }
}

fn run_here(args: &ServeArgs) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        // Modules are checked on its blocking threads.
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(Failure::io("cannot start"))?;
    let outcome = runtime.block_on(async {
        let logs = Logs::start(args)?;
        let outcome = open(args).await;
        logs.end().await;
        outcome
    });
    // What still blocks a worker thread has nothing left to say.
    runtime.shutdown_background();
    outcome
}

async fn open(args: &ServeArgs) -> Outcome {
    listeners::check(args)?;
    together::check(args)?;
    limits::raise_descriptors();
    let args = &limits::within_descriptors(args);
    // There may be much to read before anything is served.
    let mut signals = Signals::watch()?;
    let (node, listeners, _held) = tokio::select! {
        started = start(args) => started?,
        signal = signals.next() => {
            tracing::info!(signal, "ended before anything was served");
            return Ok(());
        }
    };
    serve(args, node, listeners, signals).await
}

/// What is to be served, with doors that are bound and closed; and what keeps other servers out of DIR, where the leaf does not.
async fn start(args: &ServeArgs) -> Outcome<(Node, Listeners, Option<Held>)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.dir)
        .map_err(Failure::io(args.dir.display()))?;
    let system = Arc::new(SystemClock::default());
    let clock: UnixClock = {
        let system = system.clone();
        Arc::new(move || system.unix_millis())
    };
    let memory = Memory::of(args);
    let pool = Pool::new(memory.pool);
    let disk = Directory::open(&args.dir).map_err(Failure::io(args.dir.display()))?;
    let held = hold(&disk, args).await?;
    let (leaf, held) = match &args.backend {
        Backend::Engine => {
            let disk = Device::open(disk, args).await?;
            // It takes the directory itself.
            drop(held);
            let leaf = Leaf::engine(disk, system.clone(), pool.clone(), &memory, args);
            (leaf.await?, None)
        }
        Backend::Memory => {
            let capacity = args.capacity.map_or(u64::MAX, |size| size.0);
            let leaf = Leaf::memory(pool.clone(), clock.clone(), capacity);
            (leaf, Some(held))
        }
        Backend::Rados(place) => {
            let leaf = Leaf::rados(place, &args.ceph, pool.clone(), clock.clone());
            (leaf.await?, Some(held))
        }
    };
    let sessions = sessions(args, &system, memory.pool);
    let (node, listeners) = Node::assemble(args, leaf, pool, clock, sessions).await?;
    Ok((node, listeners, held))
}

/// Their links are connections of the shards, which S3 shares with them; a half of so many bytes as buffers have may wait in them for what
/// their peers owe.
fn sessions(args: &ServeArgs, clock: &Arc<SystemClock>, pool_bytes: usize) -> Arc<Sessions> {
    let limits = forebay_fabric::sessions::Limits {
        links_in_all: args.connections as usize,
        backlog: pool_bytes / 2,
        ..forebay_fabric::sessions::Limits::default()
    };
    Arc::new(Sessions::new(clock.clone(), limits))
}

async fn serve(
    args: &ServeArgs,
    node: Node,
    listeners: Listeners,
    mut signals: Signals,
) -> Outcome {
    let open = node.open(args, &listeners)?;
    listeners.write_ready_file(args)?;
    welcome::print(args, &listeners, &node.disk_io);
    // The doors have their own: when they close, nothing keeps a port.
    drop(listeners);
    tracing::info!(dir = %args.dir.display(), disk_io = %node.disk_io, shards = node.shards.count(), "serving");
    let signal = tokio::select! {
        signal = signals.next() => signal,
        never = node.tend() => match never {},
    };
    tracing::info!(signal, connections = node.shards.connections(), "draining");
    ending::end(args, node, open, signals).await
}

/// As another process names it.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns when the process is to end; a sender that is gone means the same.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}
