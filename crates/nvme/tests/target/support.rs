//! A target over stores in memory, and a host with a payload.

use std::sync::Arc;
use std::time::Duration;

use forebay_io::sim::{SimClock, SimDisk, SimFile};
use forebay_io::{Clock, Disk, File, OpenOptions};
use forebay_mem::{Buf, BufMut, Pool, Region, RegionSlice};
use forebay_nvme::target::{Backing, Host, Payload, Published, Session, Target, TargetConfig};
use forebay_proto::nvme::fabrics::Connect;
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{Controller, Status, SubmissionQueueEntry};
use forebay_store::{
    Address, DeleteOptions, MemoryStore, NamespaceConfig, Quota, Seal, Store, Upload,
};

pub const SUBSYSTEM: &str = "nqn.2026-01.example:pool";
pub const KV: u32 = 1;
pub const BLOCK: u32 = 2;
pub const OTHERS: u32 = 3;
pub const READ_ONLY: u32 = 4;
pub const BLOCK_BYTES: usize = 512;
pub const BLOCKS: u64 = 64;
pub const VALUE_BYTES_MAX: u32 = 4 << 20;
const NOW_MS: u64 = 1_000_000;

/// How a payload moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As bytes of a stream.
    Stream,
    /// In memory that is mapped in one piece.
    Memory,
    /// In memory that is mapped in pieces of this many bytes.
    Pieces(usize),
}

pub const WAYS: [Way; 4] = [
    Way::Stream,
    Way::Memory,
    Way::Pieces(512),
    Way::Pieces(64 << 10),
];

/// The data of one command.
pub struct Data {
    way: Way,
    memory: Arc<Region>,
    len: usize,
    at: usize,
    /// Bytes that come before the host is gone.
    pub comes: usize,
}

impl Data {
    pub fn none() -> Data {
        Data::room(Way::Stream, 0)
    }

    /// Room for bytes to the host.
    pub fn room(way: Way, len: usize) -> Data {
        Data {
            way,
            memory: Region::anonymous(len.max(1)).unwrap(),
            len,
            at: 0,
            comes: len,
        }
    }

    /// Bytes to the controller.
    pub fn of(way: Way, bytes: &[u8]) -> Data {
        let data = Data::room(way, bytes.len());
        let all = data.memory.slice(0..bytes.len()).unwrap();
        assert!(all.write(0, bytes));
        data
    }

    /// What the host's memory holds.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        assert!(self.memory.slice(0..self.len).unwrap().read(0, &mut bytes));
        bytes
    }

    /// How many bytes were moved.
    pub fn moved(&self) -> usize {
        self.at
    }

    fn piece(&mut self, len: u64) -> Option<RegionSlice> {
        let most = match self.way {
            Way::Stream => return None,
            Way::Memory => self.len,
            Way::Pieces(len) => len,
        };
        let len = (len as usize).min(most).min(self.len - self.at);
        let piece = self.memory.slice(self.at..self.at + len);
        self.at += len;
        piece.filter(|piece| !piece.is_empty())
    }
}

impl Payload for Data {
    fn len(&self) -> u64 {
        self.len as u64
    }

    async fn ready(&mut self) -> Result<(), Status> {
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        tokio::task::yield_now().await;
        if self.at + len > self.comes {
            return Err(Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let from = self.memory.slice(self.at..self.at + len).unwrap();
        let start = into.len();
        into.set_len(start + len);
        assert!(from.read(0, &mut into[start..]));
        self.at += len;
        Ok(())
    }

    fn source(&mut self, len: u64) -> Option<RegionSlice> {
        self.piece(len)
    }

    fn target(&mut self, len: u64) -> Option<RegionSlice> {
        self.piece(len)
    }

    fn turn(&mut self) {
        self.at = 0;
    }

    async fn send(&mut self, buf: Buf) -> Result<(), Status> {
        tokio::task::yield_now().await;
        let into = self.memory.slice(self.at..self.at + buf.len());
        assert!(into.expect("no more than there is room for").write(0, &buf));
        self.at += buf.len();
        Ok(())
    }
}

/// The data of a command that is slow to arrive: meanwhile the namespace `values` goes, and is made anew for the tenant `others`, with
/// a value of `key`.
pub struct Slow<'s, S> {
    pub data: Data,
    pub store: &'s S,
    pub passed: bool,
}

impl<S: Store> Slow<'_, S> {
    async fn pass(&mut self) {
        if std::mem::replace(&mut self.passed, true) {
            return;
        }
        let key = Address::object("values", b"key");
        let deleted = self.store.delete(key, DeleteOptions::default());
        deleted.await.unwrap();
        self.store.delete_namespace("values").await.unwrap();
        let config = NamespaceConfig {
            tenant: "others".to_owned(),
            ..NamespaceConfig::default()
        };
        let made = self.store.create_namespace("values", config);
        made.await.unwrap();
        let upload = self
            .store
            .store(key, forebay_store::StoreOptions::default());
        let mut upload = upload.await.unwrap();
        upload.write(Buf::from(b"theirs".to_vec())).await.unwrap();
        upload.commit(Seal::default()).await.unwrap();
    }
}

impl<S: Store> Payload for Slow<'_, S> {
    fn len(&self) -> u64 {
        self.data.len()
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.pass().await;
        self.data.ready().await
    }

    async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        self.pass().await;
        self.data.receive(into, len).await
    }

    fn source(&mut self, len: u64) -> Option<RegionSlice> {
        self.data.source(len)
    }

    fn target(&mut self, len: u64) -> Option<RegionSlice> {
        self.data.target(len)
    }

    fn turn(&mut self) {
        self.data.turn();
    }

    async fn send(&mut self, buf: Buf) -> Result<(), Status> {
        self.data.send(buf).await
    }
}

pub struct Fixture {
    pub store: Arc<MemoryStore>,
    pub target: Target<MemoryStore, SimFile>,
    pub clock: SimClock,
    pub session: Arc<Session<MemoryStore>>,
    pub controller: Controller,
    pub disk: SimDisk,
}

pub fn host(nqn: &str, tenant: &str) -> Host {
    Host {
        nqn: nqn.to_owned(),
        tenant: tenant.to_owned(),
        secret: None,
        tls_key: None,
        subsystem_secret: None,
    }
}

pub fn connect(hostnqn: &str) -> Connect {
    Connect {
        qid: 0,
        entries: 32,
        no_sq_flow_control: true,
        kato_ms: 5000,
        host_id: [9; 16],
        cntlid: 0xffff,
        subnqn: SUBSYSTEM.to_owned(),
        hostnqn: hostnqn.to_owned(),
    }
}

pub fn enable(controller: &mut Controller) {
    let cc = u64::from(Configuration::ENABLE.0);
    controller.write_property(offset::CC, 4, cc).unwrap();
}

pub fn key_value(nsid: u32, namespace: &str) -> Published<SimFile> {
    Published {
        nsid,
        uuid: [nsid as u8; 16],
        backing: Backing::KeyValue {
            namespace: namespace.to_owned(),
            id: None,
        },
    }
}

pub fn block(nsid: u32, file: SimFile, read_only: bool) -> Published<SimFile> {
    Published {
        nsid,
        uuid: [nsid as u8; 16],
        backing: Backing::Block {
            file,
            lba_shift: 9,
            read_only,
            tenant: None,
        },
    }
}

impl Fixture {
    pub async fn new() -> Fixture {
        Fixture::over(Pool::new(64 << 20)).await
    }

    /// With buffers of this pool.
    pub async fn over(pool: Pool) -> Fixture {
        let clock = SimClock::new(NOW_MS);
        let time = clock.clone();
        let store = Arc::new(MemoryStore::new(pool.clone(), move || time.unix_millis()));
        for (name, tenant) in [("values", "ours"), ("theirs", "others")] {
            let config = NamespaceConfig {
                tenant: tenant.to_owned(),
                quota: Quota {
                    bytes: Some(32 << 20),
                    objects: Some(10_000),
                },
                ..NamespaceConfig::default()
            };
            store.create_namespace(name, config).await.unwrap();
        }
        let disk = SimDisk::new(1);
        let options = OpenOptions {
            create: true,
            read_only: false,
            direct: false,
        };
        let file = disk.open("blocks", options).unwrap();
        file.set_len(BLOCKS * BLOCK_BYTES as u64 + 100).unwrap();
        let config = TargetConfig {
            nqn: SUBSYSTEM.to_owned(),
            value_bytes_max: VALUE_BYTES_MAX,
            controllers_max: 16,
            ..TargetConfig::default()
        };
        let target = Target::new(store.clone(), pool, Arc::new(clock.clone()), config);
        target.set_hosts(vec![
            host("nqn.our-host", "ours"),
            host("nqn.their-host", "others"),
        ]);
        target.publish(vec![
            key_value(KV, "values"),
            block(BLOCK, file.clone(), false),
            key_value(OTHERS, "theirs"),
            block(READ_ONLY, file, true),
        ]);
        let admitted = target.connect(0, &connect("nqn.our-host")).unwrap();
        let mut controller = admitted.controller;
        enable(&mut controller);
        Fixture {
            store,
            target,
            clock,
            session: admitted.session,
            controller,
            disk,
        }
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// What a command comes to: DW0 and DW1, or a status without its further bits.
    pub async fn execute(
        &mut self,
        entry: &SubmissionQueueEntry,
        data: &mut Data,
    ) -> Result<u64, Status> {
        let command = self.controller.io(0, 1, entry).map_err(Status::code)?;
        let (status, result) = self.target.execute(&self.session, &command, data).await;
        match status.is_success() {
            true => Ok(result),
            false => {
                assert_eq!(result, 0);
                Err(status.code())
            }
        }
    }

    pub async fn kv(&mut self, command: KvCommand, data: &mut Data) -> Result<u64, Status> {
        self.execute(&command.entry(1, KV), data).await
    }

    pub async fn store(&mut self, key: &[u8], value: &[u8], way: Way) -> Result<u64, Status> {
        self.store_with(key, value, StoreOptions::default(), way)
            .await
    }

    pub async fn store_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: StoreOptions,
        way: Way,
    ) -> Result<u64, Status> {
        let (key, data) = match Key::new(key) {
            Some(key) => (KeyAt::Inline(key), value.to_vec()),
            None => (KeyAt::Head, headed(key, value)),
        };
        let command = KvCommand::Store {
            key,
            value_bytes: value.len() as u32,
            options,
        };
        self.kv(command, &mut Data::of(way, &data)).await
    }

    /// The value's length, and as much of it as `room` takes.
    pub async fn retrieve(
        &mut self,
        key: &[u8],
        room: usize,
        way: Way,
    ) -> Result<(u64, Vec<u8>), Status> {
        let command = KvCommand::Retrieve {
            key: Key::new(key).unwrap(),
            buffer_bytes: room as u32,
        };
        let mut data = Data::room(way, room);
        let size = self.kv(command, &mut data).await?;
        let mut bytes = data.bytes();
        bytes.truncate(size.min(room as u64) as usize);
        Ok((size, bytes))
    }

    pub async fn nvm(&mut self, command: NvmCommand, data: &mut Data) -> Result<(), Status> {
        let entry = command.entry(1, BLOCK);
        self.execute(&entry, data).await.map(|result| {
            assert_eq!(result, 0);
        })
    }

    pub async fn read(&mut self, blocks: Blocks, way: Way) -> Result<Vec<u8>, Status> {
        let mut data = Data::room(way, blocks.count as usize * BLOCK_BYTES);
        self.nvm(NvmCommand::Read { blocks }, &mut data).await?;
        Ok(data.bytes())
    }
}

/// A key and what follows it.
pub fn headed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut data = (key.len() as u16).to_le_bytes().to_vec();
    data.extend_from_slice(key);
    data.extend_from_slice(value);
    data
}
