//! A target that can be stopped and started at the same place, with what it has kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_io::{Clock, File, SystemClock};
use forebay_mem::Pool;
use forebay_nvme::initiator::{Address, Controller, Options};
use forebay_nvme::target::{Backing, Host, Published, Target, TargetConfig};
use forebay_nvme::tcp::Door;
use forebay_proto::nvme::discovery::{DiscoveryEntry, SecureChannel, SubsystemType, TRANSPORT_TCP};
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

pub const NQN: &str = "nqn.2026-01.org.example:test";
pub const KV: u32 = 1;
pub const BLOCK: u32 = 2;
pub const TENANT: &str = "tenant";

/// What outlives a target's process.
#[derive(Clone)]
pub struct Kept<F> {
    pub store: Arc<MemoryStore>,
    pub blocks: F,
    pub hosts: Vec<Host>,
    /// How many controllers there may be.
    pub controllers_max: u16,
}

impl<F: File> Kept<F> {
    pub fn new(blocks: F) -> Kept<F> {
        let now = SystemClock::default();
        let clock = move || now.unix_millis();
        let store = Arc::new(MemoryStore::new(Pool::new(256 << 20), clock));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let config = NamespaceConfig {
            tenant: TENANT.to_owned(),
            ..NamespaceConfig::default()
        };
        runtime
            .block_on(store.create_namespace("values", config))
            .unwrap();
        Kept {
            store,
            blocks,
            hosts: Vec::new(),
            controllers_max: TargetConfig::default().controllers_max,
        }
    }
}

/// A running target.
pub struct Running {
    pub address: SocketAddr,
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Running {
    /// Starts a target, on any port or on that of an earlier one.
    pub fn start<F: File>(kept: &Kept<F>, at: Option<SocketAddr>) -> Running {
        let config = TargetConfig {
            nqn: NQN.to_owned(),
            serial: "1".to_owned(),
            in_capsule_bytes: 8192,
            allow_any_host: kept.hosts.is_empty(),
            controllers_max: kept.controllers_max,
            ..TargetConfig::default()
        };
        let pool = Pool::new(64 << 20);
        let clock = Arc::new(SystemClock::default());
        let target = Arc::new(Target::new(kept.store.clone(), pool, clock, config));
        target.set_hosts(kept.hosts.clone());
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
                    file: kept.blocks.clone(),
                    lba_shift: 12,
                    read_only: false,
                    tenant: None,
                },
            },
        ]);
        let (started, starting) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let door = Arc::new(Door::new(target.clone()));
            let served = async {
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_reuseaddr(true).unwrap();
                let at = at.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
                socket.bind(at).unwrap();
                let listener = socket.listen(128).unwrap();
                let address = listener.local_addr().unwrap();
                target.set_addresses(vec![DiscoveryEntry {
                    transport: TRANSPORT_TCP,
                    address_family: 1,
                    kind: SubsystemType::Nvm,
                    port_id: 1,
                    service: address.port().to_string(),
                    subnqn: NQN.to_owned(),
                    address: address.ip().to_string(),
                    secure_channel: SecureChannel::NotSpecified,
                }]);
                started.send(address).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let door = door.clone();
                    tokio::task::spawn_local(async move {
                        door.serve(stream, std::future::pending()).await;
                    });
                }
            };
            let served = async {
                tokio::select! {
                    () = served => {}
                    _ = stopped => {}
                }
            };
            LocalSet::new().block_on(&runtime, served);
        });
        Running {
            address: starting.recv().unwrap(),
            thread,
            stop,
        }
    }

    /// Ends it at once, with its connections.
    pub fn kill(self) -> SocketAddr {
        let _ = self.stop.send(());
        self.thread.join().unwrap();
        self.address
    }

    pub async fn connect(&self, options: Options) -> Controller {
        Controller::connect(place(self.address), NQN, options)
            .await
            .unwrap()
    }
}

pub fn place(address: SocketAddr) -> Address {
    address.to_string().parse().unwrap()
}

pub fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(20),
        command_timeout: Duration::from_secs(120),
        keep_alive: Duration::from_secs(60),
        pause: Duration::from_millis(1),
        pause_max: Duration::from_millis(20),
        ..Options::default()
    }
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

/// A simulated disk and a file of so many bytes on it.
pub fn simulated(bytes: u64) -> (forebay_io::sim::SimDisk, forebay_io::sim::SimFile) {
    let disk = forebay_io::sim::SimDisk::new(7);
    let file = open(&disk);
    file.set_len(bytes).unwrap();
    file.sync_data().unwrap();
    forebay_io::Disk::sync(&disk).unwrap();
    (disk, file)
}

pub fn open(disk: &forebay_io::sim::SimDisk) -> forebay_io::sim::SimFile {
    let options = forebay_io::OpenOptions {
        create: true,
        read_only: false,
        direct: false,
    };
    forebay_io::Disk::open(disk, "blocks", options).unwrap()
}
