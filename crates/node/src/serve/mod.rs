//! `forebay serve`: a leaf, its doors, and the process around them.

pub mod args;
mod cache;
mod cold;
pub mod config;
mod credentials;
mod device;
mod direct;
mod doors;
mod exec;
mod http;
mod leaf;
mod limits;
pub mod live;
mod logs;
mod metrics;
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
use std::time::Duration;

use forebay_control::rpc::Service;
use forebay_control::{Admin, Identities};
use forebay_fabric::Sessions;
use forebay_io::files::Directory;
use forebay_io::{Clock, Disk, SystemClock};
use forebay_mem::Pool;
use forebay_s3::Door;
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{Exit, Failure, Outcome};
use args::{Backend, ServeArgs};
use cache::metrics::TierMetrics;
use cold::ColdSide;
use device::Device;
use direct::Direct;
use doors::{Keyring, Listeners};
use leaf::Leaf;
use limits::Memory;
use logs::Logs;
use metrics::NodeMetrics;
use nvme::Nvme;
use nvme::metrics::NvmeMetrics;
use shards::{STACK_BYTES, Shards};
use tending::Tending;

/// How long requests in progress may take after SIGTERM.
const DRAIN: Duration = Duration::from_secs(6);
/// How long what was answered may take to be committed after that: longer than any backend tries.
const LANDING: Duration = Duration::from_secs(120);
/// How long closing the leaf may take after that, so that the process ends within 10 s.
const CLOSE: Duration = Duration::from_secs(3);

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
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let cold = ColdSide::open(args, &leaf, &pool, &clock).await?;
    let store = stack::stack(&cold.store, args, &pool, &clock)?;
    let listeners = Listeners::bind(args)?;
    let identities = Arc::new(Identities::open(store.clone(), clock.clone()).await?);
    prepare_credentials(args, &identities, &listeners).await?;
    let keyring = Arc::new(Keyring::default());
    let followed = keyring.clone();
    identities.on_keys_changed(move |keys| followed.replace(keys));

    if let Some(executor) = store.executor() {
        exec::follow(executor, &identities);
    }

    let tier = store.below().clone();
    let (shards, disk_io) = Shards::start(
        args.shards.map_or_else(limits::shards, usize::from),
        args.connections,
        !args.no_uring,
    )
    .await
    .map_err(Failure::io("cannot start the shards"))?;
    let shards = Arc::new(shards);
    let (stop, stopping) = watch::channel(false);
    let (end, ending) = watch::channel(false);

    let door = Door::with_direct(
        store.clone(),
        keyring,
        clock.clone(),
        doors::s3_config(args, pool.usage().limit as u64),
        doors::lenders(args, &listeners, &sessions),
    );
    let direct = Arc::new(Direct {
        door: forebay_direct::Door::new(store.clone(), forebay_direct::Config::default()),
        sessions: sessions.clone(),
    });
    let mut registry = Registry::default();
    door.metrics().register(&mut registry);
    direct.door.metrics().register(&mut registry);
    leaf.register(&mut registry);
    cold.register(&mut registry);
    if let Some(executor) = store.executor() {
        executor.register(&mut registry);
    }
    registry.register_collector(Box::new(TierMetrics(tier.clone())));
    registry.register_collector(Box::new(NodeMetrics {
        store: store.clone(),
        pool: pool.clone(),
        shards: shards.clone(),
        disk_io: disk_io.clone(),
        started_s: clock() / 1000,
    }));
    let tending = Arc::new(Tending::new(
        leaf.clone(),
        cold.administered(),
        door.clone(),
        clock,
        listeners.server(args, &shards, &disk_io),
    ));
    let admin = Arc::new(Admin::new(
        store.clone(),
        identities.clone(),
        tending.clone(),
    ));
    // Made even when its door stays closed: it ends the sessions of keys that are removed.
    let rpc_config = rpc::config(args, &listeners, &args.dir);
    let nvme = Nvme::open(args, &admin, identities.clone(), store.clone(), pool).await?;
    registry.register_collector(Box::new(NvmeMetrics(nvme.clone())));
    let service = Service::new(
        store,
        identities.clone(),
        admin.clone(),
        sessions,
        rpc_config,
    );
    service.register(&mut registry);
    let shm = (!args.no_direct).then(|| direct.shm(&shards, &stopping));
    let requests = socket::bind(&args.dir)?.open(shm, stopping.clone());

    doors::open_s3(&listeners, &shards, &door, &stopping)?;
    doors::open_direct(&listeners, &shards, &direct, &stopping)?;
    nvme.open_tcp(&listeners, &args.dir, &shards, &stopping)?;
    nvme.open_devices(args, &shards, &stopping)?;
    doors::open_admin(requests, admin, direct.clone(), &stopping);
    let calls = rpc::open(&listeners, service, &stopping)?;
    doors::open_console(
        &listeners,
        Arc::new(RwLock::new(registry)),
        &stopping,
        &ending,
    )?;
    listeners.write_ready_file(args)?;
    welcome::print(args, &listeners, &disk_io);
    // The doors have their own: when they close, nothing keeps a port.
    drop(listeners);
    tracing::info!(dir = %args.dir.display(), disk_io = %disk_io, shards = shards.count(), "serving");

    let ended = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        never = tending.tend() => match never {},
        never = identities.follow() => match never {},
        never = direct.expire() => match never {},
        never = nvme.follow() => match never {},
        never = cache::tend(&tier) => match never {},
    };
    tracing::info!(
        signal = ended,
        connections = shards.connections(),
        "draining"
    );
    // Every receiver may be gone already: then there is nobody to tell.
    let _ = stop.send(true);
    let drained = async {
        door.drain().await;
        shards.drained().await;
        if let Some(calls) = calls {
            // It fails only when it panicked, which it has told already.
            let _ = calls.await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!(
            connections = shards.connections(),
            "requests still in progress are cut off"
        );
    }
    // What was answered before the backend committed it takes as long as the backend does, which has its own patience.
    if tokio::time::timeout(LANDING, tier.land()).await.is_err() {
        let bytes = tier.metrics().map_or(0, |metrics| metrics.write_back_bytes);
        tracing::error!(
            bytes,
            "acknowledged values are lost: the backend does not commit them"
        );
    }
    // Until now it told that this process drains.
    let _ = end.send(true);
    socket::remove(&args.dir);
    forget_ready_file(args);
    let closing = tokio::task::spawn_blocking(move || {
        cold.close();
        leaf.close();
    });
    match tokio::time::timeout(CLOSE, closing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(Failure::new(Exit::Failed, error)),
        // What was acknowledged is safe; the next start has more of the journal to replay.
        Err(_) => tracing::warn!("the index is not up to date: the disk is slow"),
    }
    tracing::info!("ended");
    Ok(())
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

fn on(kind: SignalKind) -> Outcome<tokio::signal::unix::Signal> {
    signal(kind).map_err(Failure::io("cannot watch for signals"))
}
