//! A target with a namespace of keys and values (1), one of blocks of 512 bytes (2), and a thread that serves its clients.

#[path = "../../../mem/tests/alone/mod.rs"]
pub mod alone;

use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_exec::{Exec, Executor};
use forebay_io::files::Directory;
use forebay_io::{Disk, OpenOptions, SystemClock};
use forebay_mem::{PAGE_BYTES, Pool, Region};
use forebay_nvme::target::{Backing, Published, Target, TargetConfig, Viewer};
use forebay_nvme::vfio_user::client::{
    Device, DeviceMay, DoorbellMode, Error, Mapping, QueueOptions, QueuePair,
};
use forebay_nvme::vfio_user::{Ended, serve};
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, StoreOptions, Verb, head};
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::{
    CompletionQueueEntry, SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry,
};
use forebay_proto::vfio_user::{DmaUnmap, Request};
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::programs;

pub const KV: u32 = 1;
pub const BLOCK: u32 = 2;
pub const BLOCK_BYTES: usize = 512;
pub const BLOCKS: u64 = 256 << 10;
/// The largest value.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

type File = <Directory as Disk>::File;

/// What is served, and its folder.
pub struct World {
    pub target: Arc<Target<Exec<MemoryStore>, File>>,
    pub pool: Pool,
    folder: tempfile::TempDir,
}

/// A client that is being served.
pub struct Served {
    thread: JoinHandle<Ended>,
    stop: oneshot::Sender<()>,
    clock: mpsc::UnboundedSender<bool>,
}

impl Served {
    /// Waits for the client to have gone.
    pub fn ended(self) -> Ended {
        self.thread.join().unwrap()
    }

    /// From now on whatever the server waits for with a bound is over at once, unless there is something to do.
    pub fn stop_clock(&self) {
        self.clock.send(true).unwrap();
    }

    /// Time passes again.
    pub fn start_clock(&self) {
        self.clock.send(false).unwrap();
    }

    /// Tells it to stop, and waits.
    pub fn stop(self) -> Ended {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

/// A socket that is served until this is gone.
pub struct Listening {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Listening {
    /// Ends it at once, with its clients' devices.
    pub fn kill(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

impl World {
    pub async fn new() -> World {
        World::over(Pool::new(512 << 20), None, VALUE_BYTES_MAX).await
    }

    /// One whose values are at most so long.
    pub async fn with_values_of(bytes_max: usize) -> World {
        World::over(Pool::new(512 << 20), None, bytes_max).await
    }

    /// One whose values functions can be run over.
    pub async fn executing() -> World {
        let pool = Pool::new(512 << 20);
        World::running(programs::executor(pool.clone()), pool).await
    }

    /// The same where they have so much time.
    pub async fn executing_within(deadline: Duration) -> World {
        World::executing_among(512 << 20, deadline).await
    }

    /// And so many bytes of buffers.
    pub async fn executing_among(bytes: usize, deadline: Duration) -> World {
        let pool = Pool::new(bytes);
        World::running(programs::executor_within(deadline, pool.clone()), pool).await
    }

    async fn running(executor: Arc<Executor>, pool: Pool) -> World {
        let world = World::over(pool, Some(executor.clone()), VALUE_BYTES_MAX).await;
        let store = world.target.store();
        programs::allow(&**store, &executor, "tenant", "others").await;
        world
    }

    /// One with few buffers.
    pub async fn scarce(bytes: usize) -> World {
        World::over(Pool::new(bytes), None, VALUE_BYTES_MAX).await
    }

    async fn over(pool: Pool, executor: Option<Arc<Executor>>, value_bytes_max: usize) -> World {
        let folder = tempfile::tempdir().unwrap();
        let now = std::sync::atomic::AtomicU64::new(1_800_000_000_000);
        let clock = move || now.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let store = Arc::new(Exec::new(MemoryStore::new(pool.clone(), clock), executor));
        let config = NamespaceConfig {
            tenant: "tenant".to_owned(),
            ..NamespaceConfig::default()
        };
        store.create_namespace("values", config).await.unwrap();
        let disk = Directory::open(folder.path()).unwrap();
        let options = OpenOptions {
            create: true,
            read_only: false,
            direct: false,
        };
        use forebay_io::File as _;
        let file = disk.open("blocks", options).unwrap();
        file.set_len(BLOCKS * BLOCK_BYTES as u64).unwrap();
        let config = TargetConfig {
            nqn: "nqn.2026-01.org.example:test".to_owned(),
            serial: "1".to_owned(),
            value_bytes_max: value_bytes_max as u32,
            ..TargetConfig::default()
        };
        let clock = Arc::new(SystemClock::default());
        let target = Target::new(store, pool.clone(), clock, config);
        target.publish(vec![
            Published {
                nsid: KV,
                uuid: [1; 16],
                backing: Backing::KeyValue {
                    namespace: "values".to_owned(),
                    id: None,
                },
            },
            Published {
                nsid: BLOCK,
                uuid: [2; 16],
                backing: Backing::Block {
                    file,
                    lba_shift: 9,
                    read_only: false,
                    tenant: None,
                },
            },
        ]);
        World {
            target: Arc::new(target),
            pool,
            folder,
        }
    }

    /// A connection and the thread at its other end.
    pub fn connect(&self) -> (UnixStream, Served) {
        let (near, far) = StdUnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let target = self.target.clone();
        let (stop, stopped) = oneshot::channel();
        let (clock, mut ticks) = mpsc::unbounded_channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let served = async {
                let stream = UnixStream::from_std(far).unwrap();
                let viewer = Viewer::Tenant("tenant".to_owned());
                // A sender that is dropped stops nobody.
                let stopped = async {
                    if stopped.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                let told = async {
                    while let Some(stop) = ticks.recv().await {
                        match stop {
                            true => tokio::time::pause(),
                            false => tokio::time::resume(),
                        }
                    }
                    std::future::pending().await
                };
                tokio::select! {
                    ended = serve(stream, &target, viewer, stopped) => ended,
                    ended = told => ended,
                }
            };
            LocalSet::new().block_on(&runtime, served)
        });
        let near = UnixStream::from_std(near).unwrap();
        let served = Served {
            thread,
            stop,
            clock,
        };
        (near, served)
    }

    /// Serves whoever connects to a new socket.
    pub fn listen(&self) -> (PathBuf, Listening) {
        let socket = self.folder.path().join("cntrl");
        let listening = self.listen_at(&socket);
        (socket, listening)
    }

    /// Serves whoever connects to this socket.
    pub fn listen_at(&self, socket: &Path) -> Listening {
        let _ = std::fs::remove_file(socket);
        let listener = StdUnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let target = self.target.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let served = async {
                let listener = UnixListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let target = target.clone();
                    tokio::task::spawn_local(async move {
                        let viewer = Viewer::Tenant("tenant".to_owned());
                        serve(stream, &target, viewer, std::future::pending()).await
                    });
                }
            };
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = served => {}
                    _ = stopped => {}
                }
            });
        });
        Listening { thread, stop }
    }

    pub async fn device(&self, mode: DoorbellMode) -> (Device, Served) {
        let (stream, served) = self.connect();
        (Device::over(stream, mode).await.unwrap(), served)
    }
}

/// A device and one pair of queues.
pub struct Host {
    pub device: Device,
    pub queue: QueuePair,
    pub served: Served,
}

impl Host {
    pub async fn new(world: &World, mode: DoorbellMode) -> Host {
        let (device, served) = world.device(mode).await;
        let queue = device.create_queue(QueueOptions::default()).await.unwrap();
        Host {
            device,
            queue,
            served,
        }
    }

    /// Memory of its own that the device may reach.
    pub async fn memory(&self, bytes: usize) -> Mapping {
        self.device
            .map(Region::memfd(bytes).unwrap())
            .await
            .unwrap()
    }

    /// Memory that the device has to ask for.
    pub async fn lent(&self, bytes: usize) -> Mapping {
        let region = Region::anonymous(bytes).unwrap();
        let may = DeviceMay::ReadAndWrite;
        self.device.lend(region, may).await.unwrap()
    }

    /// Makes one command and waits for its end.
    pub async fn execute(&mut self, entry: &SubmissionQueueEntry) -> CompletionQueueEntry {
        let mut all = self.execute_all(std::slice::from_ref(entry)).await;
        all.pop().unwrap()
    }

    /// Makes commands at once, and waits for all of them.
    pub async fn execute_all(
        &mut self,
        entries: &[SubmissionQueueEntry],
    ) -> Vec<CompletionQueueEntry> {
        let mut ended = Vec::new();
        for entry in entries {
            assert!(self.queue.submit(entry));
        }
        self.queue.ring().await.unwrap();
        while ended.len() < entries.len() {
            let ended = &mut ended;
            self.queue.wait(|one| ended.push(one)).await.unwrap();
        }
        ended
    }

    pub async fn store(&mut self, key: &[u8], from: &Mapping, len: usize) -> CompletionQueueEntry {
        let command = from.point(store(key, len), 0, len).unwrap();
        self.execute(&command).await
    }

    pub async fn retrieve(
        &mut self,
        key: &[u8],
        into: &Mapping,
        len: usize,
    ) -> CompletionQueueEntry {
        let command = into.point(retrieve(key, len), 0, len).unwrap();
        self.execute(&command).await
    }
}

pub fn store(key: &[u8], len: usize) -> SubmissionQueueEntry {
    let command = KvCommand::Store {
        key: KeyAt::Inline(Key::new(key).unwrap()),
        value_bytes: len as u32,
        options: StoreOptions::default(),
    };
    command.entry(7, KV)
}

pub fn retrieve(key: &[u8], len: usize) -> SubmissionQueueEntry {
    let command = KvCommand::Retrieve {
        key: Key::new(key).unwrap(),
        buffer_bytes: len as u32,
    };
    command.entry(8, KV)
}

/// With the key at the head of its payload, and room for so many bytes behind it.
pub fn retrieve_by_head(room: usize) -> SubmissionQueueEntry {
    let buffer_bytes = room as u32;
    KvCommand::RetrieveByHead { buffer_bytes }.entry(9, KV)
}

pub fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { first, count }
}

pub fn read(cid: u16, first: u64, count: u32) -> SubmissionQueueEntry {
    let blocks = blocks(first, count);
    NvmCommand::Read { blocks }.entry(cid, BLOCK)
}

pub fn write(cid: u16, first: u64, count: u32) -> SubmissionQueueEntry {
    let blocks = blocks(first, count);
    NvmCommand::Write { blocks, fua: false }.entry(cid, BLOCK)
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn put(mapping: &Mapping, offset: usize, bytes: &[u8]) {
    let whole = mapping.region().slice(0..mapping.region().len()).unwrap();
    assert!(whole.write(offset, bytes));
}

pub fn get(mapping: &Mapping, offset: usize, len: usize) -> Vec<u8> {
    let whole = mapping.region().slice(0..mapping.region().len()).unwrap();
    let mut bytes = vec![0; len];
    assert!(whole.read(offset, &mut bytes));
    bytes
}

pub fn status(error: Error) -> Status {
    match error {
        Error::Status(status) => status.code(),
        other => panic!("{other}"),
    }
}

/// The world still works.
pub async fn still_serves(world: &World) {
    let mut host = Host::new(world, DoorbellMode::Shadow).await;
    let memory = host.memory(PAGE_BYTES).await;
    assert_eq!(
        host.store(b"alive", &memory, 100).await.status,
        Status::SUCCESS
    );
}

pub fn unmap(address: u64, size: u64, all: bool) -> Request<'static> {
    Request::DmaUnmap(DmaUnmap { all, address, size })
}

/// Values are stored and looked up by keys at the head of the payload, and keys of lengths that there are none of are refused.
pub async fn keys_travel_at_the_head(host: &mut Host, memory: &Mapping) {
    let value = pattern(50_000, 3);
    for key_len in [1, 17, 255] {
        let key = pattern(key_len, 9);
        let mut payload = head::encode(&key).unwrap();
        let head_len = payload.len();
        payload.extend_from_slice(&value);
        // It may begin anywhere: the head is then in two pieces.
        for offset in [0, 4094] {
            put(memory, offset, &payload);
            let store = KvCommand::Store {
                key: KeyAt::Head,
                value_bytes: value.len() as u32,
                options: StoreOptions::default(),
            };
            let store = memory
                .point(store.entry(1, KV), offset, payload.len())
                .unwrap();
            assert_eq!(host.execute(&store).await.status, Status::SUCCESS);
            let verb = Verb::Exist;
            let exist = KvCommand::ExtendedKey { verb }
                .entry(2, KV)
                .with_cdw(10, head_len as u32);
            let exist = memory.point(exist, offset, head_len).unwrap();
            let found = host.execute(&exist).await;
            assert_eq!(
                (found.status, found.result as u32),
                (Status::SUCCESS, value.len() as u32)
            );
            // The value comes back behind the head, as much of it as there is room for.
            put(memory, offset + head_len, &vec![0; value.len()]);
            for room in [0, 10, value.len()] {
                let len = head_len + room;
                let retrieve = memory.point(retrieve_by_head(room), offset, len);
                let found = host.execute(&retrieve.unwrap()).await;
                assert_eq!(
                    (found.status, found.result as usize),
                    (Status::SUCCESS, value.len())
                );
                assert!(get(memory, offset, len) == payload[..len]);
                assert!(
                    get(memory, offset + len, value.len() - room)
                        .iter()
                        .all(|byte| *byte == 0)
                );
            }
        }
    }
    // The head is a segment of its own, the value goes elsewhere.
    let key = pattern(255, 9);
    put(memory, 100, &head::encode(&key).unwrap());
    let block = |offset: usize, length: usize| {
        let address = memory.address() + offset as u64;
        SglDescriptor::data_block(address, length as u32).encode()
    };
    put(
        memory,
        4096,
        &[block(100, 257), block(8192, 50_000)].concat(),
    );
    put(memory, 8192, &[0; 50_000]);
    let apart = retrieve_by_head(50_000).with_sgl(SglDescriptor {
        kind: SglKind::LastSegment,
        subtype: SglSubtype::Address,
        address: memory.address() + 4096,
        length: 32,
    });
    assert_eq!(host.execute(&apart).await.status, Status::SUCCESS);
    assert!(get(memory, 8192, 50_000) == value);
    // There is no such value.
    put(memory, 102, b"another");
    let none = host.execute(&apart).await.status.code();
    assert_eq!(none, Status::KV_KEY_DOES_NOT_EXIST);
    // Lengths of keys that there are none of.
    for length in [0u16, 256, 65535] {
        put(memory, 0, &length.to_le_bytes());
        let retrieve = memory.point(retrieve_by_head(10), 0, 4096).unwrap();
        assert_eq!(
            host.execute(&retrieve).await.status.code(),
            Status::INVALID_KEY_SIZE
        );
        let key = KeyAt::Head;
        let options = StoreOptions::default();
        let store = KvCommand::Store {
            key,
            value_bytes: 10,
            options,
        }
        .entry(1, KV);
        let store = memory.point(store, 0, 4096).unwrap();
        assert_eq!(
            host.execute(&store).await.status.code(),
            Status::INVALID_KEY_SIZE
        );
    }
}
