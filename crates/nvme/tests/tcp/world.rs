//! A target with a namespace of keys and values (1) and one of blocks (2), and threads that serve it.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_io::files::Directory;
use forebay_io::{Disk, File as _, OpenOptions, SystemClock};
use forebay_mem::Pool;
use forebay_nvme::target::{Backing, Published, Target, TargetConfig};
use forebay_nvme::tcp::{Door, Limits};
use forebay_proto::nvme::fabrics::{CNTLID_DYNAMIC, Property};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{SubmissionQueueEntry, feature, opcode};
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::sync::{Notify, oneshot};
use tokio::task::LocalSet;

use crate::host::{Host, Options};
use crate::landing::Slow;

pub const KV: u32 = 1;
pub const BLOCK: u32 = 2;
pub const BLOCK_BYTES: usize = 4096;
pub const BLOCKS: u64 = 4096;
pub const NQN: &str = "nqn.2026-01.org.example:test";
pub const IN_CAPSULE_BYTES: usize = 16 << 10;
/// Threads that serve.
const SHARDS: usize = 2;
/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub type File = Slow;

/// What is served.
pub struct World<S: Store = MemoryStore> {
    pub address: SocketAddr,
    pub pool: Pool,
    pub target: Arc<Target<S, File>>,
    /// The blocks.
    pub file: File,
    pub door: Arc<Door<S, File>>,
    /// One for each connection that has ended.
    ended: mpsc::Receiver<()>,
    going: Arc<Notify>,
    trusting: Arc<AtomicBool>,
    narrow: Arc<AtomicBool>,
    shards: Vec<tokio::sync::mpsc::WeakUnboundedSender<Given>>,
    threads: Option<(Vec<JoinHandle<()>>, oneshot::Sender<()>)>,
    _folder: tempfile::TempDir,
}

impl<S: Store> Drop for World<S> {
    fn drop(&mut self) {
        if let Some((threads, stop)) = self.threads.take() {
            let _ = stop.send(());
            self.file.keep(false);
            self.file.keep_reads(false);
            for served in threads.into_iter().map(JoinHandle::join) {
                if !std::thread::panicking() {
                    served.unwrap();
                }
            }
        }
    }
}

/// Runs until it is ready, with all that it began.
fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, future);
}

/// What a shard is given.
enum Given {
    Stream(TcpStream),
    /// It says that it has this, and does nothing else until the other end is gone.
    Occupied(mpsc::Sender<()>, mpsc::Receiver<()>),
}

/// Serves the connections it is given, until there will be no more.
async fn shard<S: Store>(
    door: Arc<Door<S, File>>,
    going: Arc<Notify>,
    trusting: Arc<AtomicBool>,
    over: mpsc::Sender<()>,
    mut given: tokio::sync::mpsc::UnboundedReceiver<Given>,
) {
    while let Some(given) = given.recv().await {
        let stream = match given {
            Given::Stream(stream) => stream,
            Given::Occupied(begun, until) => {
                begun.send(()).unwrap();
                let _ = until.recv();
                continue;
            }
        };
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (door, going, over) = (door.clone(), going.clone(), over.clone());
        let trusted = trusting.load(SeqCst);
        tokio::task::spawn_local(async move {
            door.serve_trusted(stream, trusted, going.notified()).await;
            // Whoever waits for it may have failed.
            let _ = over.send(());
        });
    }
}

/// Gives connections to the shards in turn, so that the queues of a controller are on several.
async fn accept<S: Store>(
    store: Arc<S>,
    started: mpsc::Sender<SocketAddr>,
    narrow: Arc<AtomicBool>,
    shards: Vec<tokio::sync::mpsc::UnboundedSender<Given>>,
) {
    let config = NamespaceConfig {
        tenant: "tenant".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace("values", config).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    started.send(listener.local_addr().unwrap()).unwrap();
    for shard in shards.iter().cycle() {
        let (stream, _) = listener.accept().await.unwrap();
        if narrow.load(SeqCst) {
            forebay_io::socket::set_send_buffer(&stream, 4096).unwrap();
        }
        let stream = stream.into_std().unwrap();
        assert!(shard.send(Given::Stream(stream)).is_ok());
    }
}

impl World {
    pub fn new() -> World {
        World::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> World {
        World::with(limits, |_| {})
    }

    pub fn with(limits: Limits, choose: impl FnOnce(&mut TargetConfig)) -> World {
        World::over(Pool::new(512 << 20), limits, choose)
    }

    /// With buffers of this pool.
    pub fn over(pool: Pool, limits: Limits, choose: impl FnOnce(&mut TargetConfig)) -> World {
        let now = std::sync::atomic::AtomicU64::new(1_800_000_000_000);
        let clock = move || now.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let store = MemoryStore::new(pool.clone(), clock);
        World::of(store, pool, limits, choose)
    }
}

impl<S: Store> World<S> {
    /// With values in this store.
    pub fn of(
        store: S,
        pool: Pool,
        limits: Limits,
        choose: impl FnOnce(&mut TargetConfig),
    ) -> World<S> {
        let store = Arc::new(store);
        let folder = tempfile::tempdir().unwrap();
        let disk = Directory::open(folder.path()).unwrap();
        let options = OpenOptions {
            create: true,
            read_only: false,
            direct: false,
        };
        let file = File::new(disk.open("blocks", options).unwrap());
        file.set_len(BLOCKS * BLOCK_BYTES as u64).unwrap();
        let mut config = TargetConfig {
            nqn: NQN.to_owned(),
            serial: "1".to_owned(),
            in_capsule_bytes: IN_CAPSULE_BYTES as u32,
            allow_any_host: true,
            ..TargetConfig::default()
        };
        choose(&mut config);
        let clock = Arc::new(SystemClock::default());
        let target = Arc::new(Target::new(store.clone(), pool.clone(), clock, config));
        let door = Arc::new(Door::with_limits(target.clone(), limits));
        let (started, starting) = mpsc::channel();
        let (over, ended) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let going = Arc::new(Notify::new());
        let trusting = Arc::new(AtomicBool::new(false));
        let narrow = Arc::new(AtomicBool::new(false));
        let mut shards = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..SHARDS {
            let (give, given) = tokio::sync::mpsc::unbounded_channel();
            let (door, going, over) = (door.clone(), going.clone(), over.clone());
            let trusting = trusting.clone();
            threads.push(std::thread::spawn(move || {
                run(shard(door, going, trusting, over, given));
            }));
            shards.push(give);
        }
        let weak = shards.iter().map(|shard| shard.downgrade()).collect();
        let narrowing = narrow.clone();
        threads.push(std::thread::spawn(move || {
            run(async {
                tokio::select! {
                    () = accept(store, started, narrowing, shards) => {}
                    _ = stopped => {}
                }
            });
        }));
        let world = World {
            address: starting.recv().unwrap(),
            pool,
            target,
            file: file.clone(),
            door,
            ended,
            going,
            trusting,
            narrow,
            shards: weak,
            threads: Some((threads, stop)),
            _folder: folder,
        };
        world.publish(Some(file));
        world
    }

    /// Shows the values, and blocks if there are any.
    pub fn publish(&self, blocks: Option<File>) {
        let mut published = vec![Published {
            nsid: KV,
            uuid: [1; 16],
            backing: Backing::KeyValue {
                namespace: "values".to_owned(),
                id: None,
            },
        }];
        published.extend(blocks.map(|file| Published {
            nsid: BLOCK,
            uuid: [2; 16],
            backing: Backing::Block {
                file,
                lba_shift: BLOCK_BYTES.ilog2() as u8,
                read_only: false,
                tenant: None,
            },
        }));
        self.target.publish(published);
    }

    /// Waits until so many connections have ended since the last time.
    pub fn wait_for_ends(&self, connections: usize) {
        for _ in 0..connections {
            self.ended.recv_timeout(PATIENCE).expect("an end");
        }
    }

    /// Whether connections that come from now on are those of the server's owner.
    pub fn trust(&self, trusted: bool) {
        self.trusting.store(trusted, SeqCst);
    }

    /// The system keeps little of what is sent to connections that come from now on.
    pub fn narrow(&self) {
        self.narrow.store(true, SeqCst);
    }

    /// Tells all connections that the server stops.
    pub fn go(&self) {
        self.going.notify_waiters();
    }

    /// Keeps a shard busy with something else, until this is dropped. Connections are given to the shards in turn.
    pub fn occupy(&self, shard: usize) -> mpsc::Sender<()> {
        let (until, over) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel();
        let shard = self.shards[shard % SHARDS].upgrade().expect("a shard");
        assert!(shard.send(Given::Occupied(begun, over)).is_ok());
        has_begun.recv_timeout(PATIENCE).expect("a shard");
        until
    }

    /// I/O commands of all hosts that are in progress.
    pub fn in_flight(&self) -> u64 {
        let live = self.target.live();
        live.iter().map(|controller| controller.in_flight).sum()
    }

    /// Bytes of buffers that somebody holds.
    pub fn held(&self) -> usize {
        self.pool.usage().in_use
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// An admin queue whose controller is enabled.
    pub fn admin(&self, options: Options) -> Host {
        let mut host = Host::initialize(self.connect(), options);
        let cntlid = host.join(0, CNTLID_DYNAMIC).expect("a controller");
        host.cntlid = cntlid;
        let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
        host.ok(enable);
        let queues = SubmissionQueueEntry::new(opcode::admin::SET_FEATURES, 0, 0)
            .with_cdw(10, 7)
            .with_cdw(11, feature::queues(4, 4));
        host.ok(queues);
        host
    }

    /// An I/O queue of that controller.
    pub fn io(&self, admin: &Host, qid: u16, options: Options) -> Host {
        let mut host = Host::initialize(self.connect(), options);
        host.join(qid, admin.cntlid).expect("a queue");
        host
    }

    /// Both, with the first I/O queue.
    pub fn host(&self, options: Options) -> (Host, Host) {
        let admin = self.admin(options);
        let io = self.io(&admin, 1, options);
        (admin, io)
    }
}
