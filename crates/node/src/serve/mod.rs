//! `forebay serve`: a leaf, its doors, and the process around them.

pub mod args;
mod cache;
mod cold;
pub mod config;
mod credentials;
mod device;
mod direct;
mod doors;
mod ending;
mod exec;
mod http;
mod leaf;
mod limits;
pub mod live;
mod logs;
mod metrics;
mod node;
pub mod nvme;
mod rpc;
mod shards;
pub mod socket;
mod stack;
mod tending;
mod tls;
mod welcome;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use forebay_control::Identities;
use forebay_fabric::Sessions;
use forebay_io::files::Directory;
use forebay_io::{Clock, Disk, SystemClock};
use forebay_mem::Pool;
use tokio::sync::watch;

use crate::exit::{Exit, Failure, Outcome};
use args::{Backend, ServeArgs};
use device::Device;
use doors::Listeners;
use ending::Signals;
use leaf::Leaf;
use limits::Memory;
use logs::Logs;
use node::Node;
use shards::STACK_BYTES;

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
    doors::check(args)?;
    forget_ready_file(args);
    limits::raise_descriptors();
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
    match &args.backend {
        Backend::Engine => {
            let sessions = sessions(args, &system);
            let disk = Device::open(disk, args).await?;
            let leaf = Leaf::engine(disk, system, pool.clone(), &memory, args)?;
            serve(args, leaf, pool, clock, sessions).await
        }
        Backend::Memory | Backend::Rados(_) if args.device.is_some() => Err(Failure::new(
            Exit::Usage,
            "--device keeps the values of --backend engine",
        )),
        Backend::Memory => {
            let _lock = disk.lock().map_err(Failure::io(args.dir.display()))?;
            let capacity = args.capacity.map_or(u64::MAX, |size| size.0);
            let leaf = Leaf::memory(pool.clone(), clock.clone(), capacity);
            serve(args, leaf, pool, clock, sessions(args, &system)).await
        }
        Backend::Rados(place) => {
            let _lock = disk.lock().map_err(Failure::io(args.dir.display()))?;
            let leaf = Leaf::rados(place, &args.ceph, pool.clone(), clock.clone()).await?;
            serve(args, leaf, pool, clock, sessions(args, &system)).await
        }
    }
}

/// Their links are connections of the shards, which S3 shares with them.
fn sessions(args: &ServeArgs, clock: &Arc<SystemClock>) -> Arc<Sessions> {
    let limits = forebay_fabric::sessions::Limits {
        links_in_all: args.connections as usize,
        ..forebay_fabric::sessions::Limits::default()
    };
    Arc::new(Sessions::new(clock.clone(), limits))
}

async fn serve(
    args: &ServeArgs,
    leaf: Leaf,
    pool: Pool,
    clock: UnixClock,
    sessions: Arc<Sessions>,
) -> Outcome {
    let mut signals = Signals::watch()?;
    let (node, listeners) = Node::assemble(args, leaf, pool, clock, sessions).await?;
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

/// Whoever waits for a server must not find the last one's doors.
fn forget_ready_file(args: &ServeArgs) {
    if let Some(path) = &args.ready_file {
        // Usually there is none.
        let _ = std::fs::remove_file(path);
    }
}

/// Makes the root key at the first start and writes it to DIR/credentials; writes the file again when it is gone or when the
/// environment gives the key.
async fn prepare_credentials<S: forebay_store::Store>(
    args: &ServeArgs,
    identities: &Identities<S>,
    listeners: &Listeners,
) -> Outcome {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let given = match (
        variable("FOREBAY_ACCESS_KEY"),
        variable("FOREBAY_SECRET_KEY"),
    ) {
        (Some(id), Some(secret)) => Some((id, secret)),
        (None, None) => None,
        _ => {
            return Err(Failure::new(
                Exit::Usage,
                "FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY belong together",
            ));
        }
    };
    let path = credentials_path(&args.dir);
    // A memory leaf forgets its keys; the file still holds them for those who use it. New ones beside a damaged file would be
    // nobody's.
    let kept = match (&given, &args.backend) {
        (None, Backend::Memory) if path.exists() => {
            let (kept, _) = forebay_client::Credentials::from_file(&path, "default")
                .map_err(|error| Failure::new(Exit::Failed, error))?;
            Some((kept.access_key, kept.secret_key))
        }
        _ => None,
    };
    let chosen = given.clone().or(kept);
    let key = identities
        .ensure_root(
            chosen
                .as_ref()
                .map(|(id, secret)| (id.as_str(), secret.as_str())),
        )
        .await?;
    if given.is_some() || !path.exists() {
        credentials::write(&path, &key, listeners.s3_url().as_deref())
            .map_err(Failure::io(path.display()))?;
    }
    Ok(())
}

/// Where the root access key is.
pub fn credentials_path(dir: &Path) -> std::path::PathBuf {
    dir.join("credentials")
}

/// Returns when the process is to end; a sender that is gone means the same.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}
