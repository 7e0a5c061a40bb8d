//! A target of few words, and whatever wrong ones a test gives it: one namespace of blocks (1), one of keys and values (2), both in
//! memory.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_proto::nvme::identify::{IdentifyKv, KvVendor};
use forebay_proto::nvme::kv::{KeyAt, KvCommand, ListStart, ListWriter, RangeKey, Verb, head};
use forebay_proto::nvme::nvm::{DsmRange, NvmCommand};
use forebay_proto::nvme::opcode::{self, admin, fabrics};
use forebay_proto::nvme::property::{Capabilities, offset};
use forebay_proto::nvme::{
    CompletionQueueEntry, Namespace, NamespaceKind, SglKind, SglSubtype, Status,
    SubmissionQueueEntry,
};
use forebay_proto::nvme_tcp::{
    Agreed, Crc32c, Data, Event, ICResp, Inbound, PduType, Progress, R2T, TermReq, Transfer,
    capsule_resp,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const SUBNQN: &str = "nqn.2026-01.org.example:fake";
pub const BLOCK_BYTES: usize = 512;
pub const BLOCKS: usize = 16384;
const IN_CAPSULE_BYTES: usize = 4096;

/// What to do with an I/O command.
pub enum Answer {
    /// As a target should.
    Proper,
    /// That it failed so, and nothing else.
    Fail(Status),
    /// Nothing, for ever.
    Silence,
    /// These bytes in place of an answer.
    Raw(Vec<u8>),
    /// End the connection.
    Close,
    /// As a target should, and then end the connection.
    Last,
}

type Conduct = dyn Fn(&SubmissionQueueEntry) -> Answer + Send + Sync;

/// What a target is like.
#[derive(Clone)]
pub struct Manner {
    /// The most data of a C2HData.
    pub c2h_bytes: usize,
    /// The most data of an R2T.
    pub r2t_bytes: u32,
    /// Whether reads end with their data.
    pub success: bool,
    /// CPDA.
    pub cpda: u8,
    /// MDTS.
    pub mdts: u8,
    /// The ICResp, when it is to be another one.
    pub icresp: Option<Vec<u8>>,
    /// Status of Connect.
    pub connect: Status,
    /// Whether data digests of C2HData are wrong, as long as this is not 0: counted down.
    pub wrong_digests: Arc<AtomicUsize>,
    pub conduct: Arc<Conduct>,
    /// I/O queues that are granted at most.
    pub queues: u32,
    /// Whether writes are lost when they are not flushed before the target is restarted.
    pub volatile: bool,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            c2h_bytes: 1 << 20,
            r2t_bytes: u32::MAX,
            success: true,
            cpda: 0,
            mdts: 0,
            icresp: None,
            connect: Status::SUCCESS,
            wrong_digests: Arc::default(),
            conduct: Arc::new(|_| Answer::Proper),
            queues: 64,
            volatile: false,
        }
    }
}

impl Manner {
    pub fn conduct(
        self,
        conduct: impl Fn(&SubmissionQueueEntry) -> Answer + Send + Sync + 'static,
    ) -> Manner {
        Manner {
            conduct: Arc::new(conduct),
            ..self
        }
    }
}

pub struct Fake {
    pub address: SocketAddr,
    pub shared: Arc<Kept>,
    task: tokio::task::JoinHandle<()>,
}

/// What outlives a connection.
pub struct Kept {
    pub blocks: Mutex<Vec<u8>>,
    /// As of the last flush.
    pub stable: Mutex<Vec<u8>>,
    pub values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Keys that handles stand for, as long as the association lasts.
    bound: Mutex<Vec<Option<Vec<u8>>>>,
    /// The name of the blocks; they are not there while it is 0.
    pub uuid: Mutex<[u8; 16]>,
    /// Nobody is told what namespaces are called while this is true.
    pub silent: tokio::sync::watch::Sender<bool>,
    pub writes: AtomicUsize,
    pub connections: AtomicUsize,
    pub keep_alives: AtomicUsize,
    /// Ends all connections when it changes.
    pub epoch: tokio::sync::watch::Sender<u64>,
    /// Connections of each epoch.
    living: tokio::sync::watch::Sender<BTreeMap<u64, usize>>,
    /// Why the host has ended a connection, the last time that it said so.
    pub terminated: tokio::sync::watch::Sender<Option<TermReq>>,
    /// Raises an event when it changes.
    pub events: tokio::sync::watch::Sender<u32>,
    manner: Mutex<Manner>,
}

impl Fake {
    pub async fn start(manner: Manner) -> Fake {
        Fake::start_at("127.0.0.1:0".parse().unwrap(), manner, None).await
    }

    /// Listens at an address, with what an earlier target has kept.
    pub async fn start_at(address: SocketAddr, manner: Manner, kept: Option<Arc<Kept>>) -> Fake {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = kept.unwrap_or_else(|| {
            Arc::new(Kept {
                blocks: Mutex::new(vec![0; BLOCKS * BLOCK_BYTES]),
                stable: Mutex::new(vec![0; BLOCKS * BLOCK_BYTES]),
                values: Mutex::default(),
                bound: Mutex::default(),
                uuid: Mutex::new([7; 16]),
                silent: tokio::sync::watch::Sender::new(false),
                writes: AtomicUsize::new(0),
                connections: AtomicUsize::new(0),
                keep_alives: AtomicUsize::new(0),
                epoch: tokio::sync::watch::Sender::new(0),
                living: tokio::sync::watch::Sender::default(),
                terminated: tokio::sync::watch::Sender::default(),
                events: tokio::sync::watch::Sender::new(0),
                manner: Mutex::new(manner.clone()),
            })
        });
        *shared.manner.lock() = manner;
        let kept = shared.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                kept.connections.fetch_add(1, SeqCst);
                let kept = kept.clone();
                let mut epoch = kept.epoch.subscribe();
                let now = *epoch.borrow();
                let living = kept.enter(now);
                tokio::spawn(async move {
                    // Nothing of a connection that was cut is carried out after a later one has begun.
                    let mut others = kept.living.subscribe();
                    let alone =
                        |living: &BTreeMap<u64, usize>| living.range(..now).next().is_none();
                    others.wait_for(alone).await.unwrap();
                    tokio::select! {
                        _ = serve(stream, kept.clone()) => {}
                        _ = epoch.wait_for(|epoch| *epoch != now) => {}
                    }
                    drop(living);
                });
            }
        });
        Fake {
            address,
            shared,
            task,
        }
    }

    /// Behaves otherwise from the next command on.
    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock() = manner;
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Stops listening and ends all connections; of a volatile one what was not flushed is gone.
    pub async fn stop(self) -> Arc<Kept> {
        self.task.abort();
        let _ = self.task.await;
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
        let mut living = self.shared.living.subscribe();
        living.wait_for(BTreeMap::is_empty).await.unwrap();
        if self.shared.manner.lock().volatile {
            let stable = self.shared.stable.lock().clone();
            *self.shared.blocks.lock() = stable;
        }
        self.shared
    }
}

/// A connection of an epoch, while it lives.
struct Living(Arc<Kept>, u64);

impl Kept {
    fn enter(self: &Arc<Kept>, epoch: u64) -> Living {
        self.living
            .send_modify(|living| *living.entry(epoch).or_default() += 1);
        Living(self.clone(), epoch)
    }

    fn key(&self, handle: u32) -> Result<Vec<u8>, Status> {
        let key = self.bound.lock()[handle as usize - 1].clone();
        key.ok_or(Status::INVALID_FIELD)
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.living.send_modify(|living| {
            let count = living.get_mut(&self.1).unwrap();
            *count -= 1;
            if *count == 0 {
                living.remove(&self.1);
            }
        });
    }
}

/// One connection.
struct Connection {
    stream: TcpStream,
    agreed: Agreed,
    kept: Arc<Kept>,
    out: Vec<u8>,
    /// Commands that await data.
    pending: HashMap<u16, Pending>,
    event: Option<u16>,
    qid: u32,
}

struct Pending {
    entry: SubmissionQueueEntry,
    data: Vec<u8>,
    transfer: Transfer,
}

async fn serve(mut stream: TcpStream, kept: Arc<Kept>) -> Option<()> {
    let manner = kept.manner.lock().clone();
    let mut inbound = Inbound::controller(8192);
    let mut received = Vec::new();
    let request = loop {
        match inbound.pdu(&received).ok()? {
            Progress::Pdu(pdu) => {
                received.drain(..pdu.head_bytes);
                let Event::ICReq(request) = pdu.event else {
                    return None;
                };
                break request;
            }
            Progress::Need(_) => more(&mut stream, &mut received).await?,
        }
    };
    let response = ICResp {
        cpda: manner.cpda,
        digests: request.digests,
        h2c_data_bytes_max: 64 << 10,
    };
    let bytes = manner.icresp.unwrap_or_else(|| response.encode().to_vec());
    stream.write_all(&bytes).await.ok()?;
    let agreed = Agreed::new(&request, &response).ok()?;
    inbound.initialized(&agreed);
    let mut events = kept.events.subscribe();
    let mut connection = Connection {
        stream,
        agreed,
        kept,
        out: Vec::new(),
        pending: HashMap::new(),
        event: None,
        qid: 0,
    };
    loop {
        let bytes = std::mem::take(&mut connection.out);
        connection.stream.write_all(&bytes).await.ok()?;
        let pdu = match inbound.pdu(&received).ok()? {
            Progress::Pdu(pdu) => pdu,
            Progress::Need(_) => {
                tokio::select! {
                    done = more(&mut connection.stream, &mut received) => done?,
                    Ok(()) = events.changed() => {
                        let result = u64::from(*events.borrow_and_update());
                        if let Some(cid) = connection.event.take() {
                            connection.complete(cid, Status::SUCCESS, result);
                        }
                    }
                }
                continue;
            }
        };
        let whole = pdu.head_bytes + pdu.data_bytes + pdu.trailer_bytes;
        while received.len() < whole {
            more(&mut connection.stream, &mut received).await?;
        }
        let data = received[pdu.head_bytes..pdu.head_bytes + pdu.data_bytes].to_vec();
        if pdu.trailer_bytes > 0 {
            assert!(received[..whole].ends_with(&crc(&data)), "data digest");
        }
        received.drain(..whole);
        match pdu.event {
            Event::CapsuleCmd(bytes) => {
                let entry = SubmissionQueueEntry::from_bytes(&bytes);
                let manner = connection.kept.manner.lock().clone();
                if entry.opcode() == admin::IDENTIFY && entry.cdw(10) & 0xff == 3 {
                    let mut silent = connection.kept.silent.subscribe();
                    silent.wait_for(|silent| !silent).await.ok()?;
                }
                let io = connection.qid > 0 && entry.opcode() != opcode::FABRICS;
                let answer = match io {
                    true => (manner.conduct)(&entry),
                    false => Answer::Proper,
                };
                match answer {
                    Answer::Proper => connection.command(entry, data, &manner),
                    Answer::Fail(status) => connection.complete(entry.cid(), status, 0),
                    Answer::Silence => {}
                    Answer::Raw(bytes) => connection.out.extend_from_slice(&bytes),
                    Answer::Close => return None,
                    Answer::Last => {
                        connection.command(entry, data, &manner);
                        connection.stream.write_all(&connection.out).await.ok()?;
                        return None;
                    }
                }
            }
            Event::Data(head) => connection.data(&head, &data),
            Event::Terminate(why) => {
                connection.kept.terminated.send_replace(Some(why));
                return None;
            }
            _ => return None,
        }
    }
}

async fn more(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(received).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

pub fn crc(bytes: &[u8]) -> [u8; 4] {
    let mut digest = Crc32c::new();
    digest.update(bytes);
    digest.field()
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn namespace(nsid: u32) -> Namespace {
    Namespace {
        nsid,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        kind: match nsid {
            1 => NamespaceKind::Block {
                lba_shift: 9,
                blocks: BLOCKS as u64,
                read_only: false,
            },
            _ => NamespaceKind::Kv {
                value_bytes_max: 16 << 20,
                keys_max: 0,
                capacity_bytes: 1 << 30,
                used_bytes: 0,
            },
        },
    }
}

impl Connection {
    fn complete(&mut self, cid: u16, status: Status, result: u64) {
        let entry = CompletionQueueEntry {
            result,
            cid,
            status: status.answered(),
            ..CompletionQueueEntry::default()
        };
        capsule_resp(&self.agreed.c2h, &entry.encode(false), &mut self.out);
    }

    fn answer(&mut self, cid: u16, data: &[u8], result: u64, manner: &Manner, whole: bool) {
        let framing = self.agreed.c2h;
        let mut at = 0;
        let ends = manner.success && whole && result == 0;
        for chunk in data.chunks(manner.c2h_bytes) {
            let last = at + chunk.len() == data.len();
            let head = Data {
                cccid: cid,
                ttag: 0,
                offset: at as u32,
                bytes: chunk.len() as u32,
                last,
                success: last && ends,
            };
            head.encode(PduType::C2HData, &framing, &mut self.out);
            self.out.extend_from_slice(chunk);
            if framing.trailer_bytes(chunk.len()) > 0 {
                let mut field = crc(chunk);
                let left = &manner.wrong_digests;
                if left
                    .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
                    .is_ok()
                {
                    field[0] ^= 1;
                }
                self.out.extend_from_slice(&field);
            }
            at += chunk.len();
        }
        if !ends || data.is_empty() {
            self.complete(cid, Status::SUCCESS, result);
        }
    }

    fn data(&mut self, head: &Data, bytes: &[u8]) {
        let manner = self.kept.manner.lock().clone();
        let pending = self.pending.get_mut(&head.cccid).unwrap();
        let last = pending.transfer.accept(head).unwrap();
        pending.data.extend_from_slice(bytes);
        if last {
            let pending = self.pending.remove(&head.cccid).unwrap();
            self.want(pending.entry, pending.data, &manner);
        }
    }

    /// Executes the command, or asks for more of its data.
    fn want(&mut self, entry: SubmissionQueueEntry, data: Vec<u8>, manner: &Manner) {
        let wanted = entry.sgl().length;
        let left = wanted - data.len() as u32;
        if left == 0 {
            return self.execute(entry, data, manner);
        }
        let request = R2T {
            cccid: entry.cid(),
            ttag: entry.cid() ^ 0x55,
            offset: data.len() as u32,
            bytes: left.min(manner.r2t_bytes),
        };
        request.encode(&self.agreed.c2h, &mut self.out);
        let transfer = Transfer::asked(&request);
        let pending = Pending {
            entry,
            data,
            transfer,
        };
        assert!(self.pending.insert(entry.cid(), pending).is_none());
    }

    fn command(&mut self, entry: SubmissionQueueEntry, data: Vec<u8>, manner: &Manner) {
        if entry.opcode() == opcode::FABRICS {
            return self.fabrics(&entry, &data, manner);
        }
        if self.qid == 0 {
            return self.admin(&entry, manner);
        }
        let sgl = entry.sgl();
        let inside = (sgl.kind, sgl.subtype) == (SglKind::DataBlock, SglSubtype::Offset);
        assert!(!inside || data.len() as u32 == sgl.length);
        if inside || entry.opcode() & 3 != 1 || sgl.length == 0 {
            self.execute(entry, data, manner);
        } else {
            assert!(sgl.length as usize > IN_CAPSULE_BYTES);
            self.want(entry, data, manner);
        }
    }

    fn admin(&mut self, entry: &SubmissionQueueEntry, manner: &Manner) {
        let cid = entry.cid();
        match entry.opcode() {
            admin::IDENTIFY => match self.identify(entry, manner) {
                Some(page) => self.answer(cid, &page, 0, manner, true),
                None => self.complete(cid, Status::INVALID_NAMESPACE_OR_FORMAT, 0),
            },
            admin::SET_FEATURES => {
                let granted = match entry.cdw(10) & 0xff {
                    7 => (entry.cdw(11) & 0xffff).min(manner.queues - 1) * 0x0001_0001,
                    _ => 0,
                };
                self.complete(cid, Status::SUCCESS, granted.into());
            }
            admin::KEEP_ALIVE => {
                self.kept.keep_alives.fetch_add(1, SeqCst);
                self.complete(cid, Status::SUCCESS, 0);
            }
            admin::ASYNC_EVENT_REQUEST => self.event = Some(cid),
            admin::GET_LOG_PAGE => {
                let dwords = (entry.cdw(10) >> 16 | entry.cdw(11) << 16) + 1;
                let from = entry.cdw64(12) as usize;
                let log = self.log(entry.cdw(10) as u8);
                let mut page = vec![0; dwords as usize * 4];
                let there = log.get(from..).unwrap_or_default();
                let len = there.len().min(page.len());
                page[..len].copy_from_slice(&there[..len]);
                self.answer(cid, &page, 0, manner, true);
            }
            _ => self.complete(cid, Status::SUCCESS, 0),
        }
    }

    fn fabrics(&mut self, entry: &SubmissionQueueEntry, data: &[u8], manner: &Manner) {
        let cid = entry.cid();
        match entry.nsid() as u8 {
            fabrics::CONNECT => {
                assert_eq!(data.len(), 1024);
                self.qid = entry.cdw(10) >> 16;
                if self.qid == 0 {
                    self.kept.bound.lock().fill(None);
                }
                self.complete(cid, manner.connect, 9);
            }
            fabrics::PROPERTY_GET => {
                let value = match entry.cdw(11) {
                    offset::CAP => Capabilities::new(128).0,
                    offset::CC => 0x0046_0061,
                    offset::CSTS => 1 | 2 << 2,
                    _ => 0,
                };
                self.complete(cid, Status::SUCCESS, value);
            }
            _ => self.complete(cid, Status::SUCCESS, 0),
        }
    }

    fn identify(&self, entry: &SubmissionQueueEntry, manner: &Manner) -> Option<Vec<u8>> {
        let mut page = vec![0; 4096];
        let uuid = *self.kept.uuid.lock();
        match (entry.cdw(10) & 0xff, entry.nsid()) {
            (0, 1) => {
                put(&mut page, 0, &(BLOCKS as u64).to_le_bytes());
                put(&mut page, 8, &(BLOCKS as u64).to_le_bytes());
                page[130] = 9;
            }
            (1, _) => {
                put(&mut page, 4, b"serial              ");
                page[77] = manner.mdts;
                put(&mut page, 78, &9u16.to_le_bytes());
                put(&mut page, 514, &64u16.to_le_bytes());
                put(&mut page, 520, &0xdu16.to_le_bytes());
                page[525] = manner.volatile.into();
                put(&mut page, 768, SUBNQN.as_bytes());
                let capsule = (IN_CAPSULE_BYTES + 64) / 16;
                put(&mut page, 1792, &(capsule as u32).to_le_bytes());
            }
            (2, above) => {
                for (at, nsid) in (above + 1..3).enumerate() {
                    put(&mut page, at * 4, &nsid.to_le_bytes());
                }
            }
            (3, 1) if uuid == [0; 16] => return None,
            (3, nsid @ 1..=2) => {
                let uuid = if nsid == 1 { uuid } else { [9; 16] };
                put(&mut page, 0, &[3, 16, 0, 0]);
                put(&mut page, 4, &uuid);
                put(&mut page, 20, &[4, 1, 0, 0, nsid as u8 - 1]);
            }
            (5, 2) => {
                let told = IdentifyKv {
                    capacity_bytes: 1 << 30,
                    key_bytes_max: 16,
                    value_bytes_max: 16 << 20,
                    vendor: KvVendor {
                        extended_keys: true,
                        ..KvVendor::default()
                    },
                    ..IdentifyKv::default()
                };
                return Some(told.encode());
            }
            _ => return None,
        }
        Some(page)
    }

    fn log(&self, log: u8) -> Vec<u8> {
        let mut page = vec![0; 2048];
        if log == 0x70 {
            page[0] = 5;
            page[8] = 1;
            put(&mut page, 1024, &[3, 1, 2]);
            put(&mut page, 1024 + 32, b"4420");
            put(&mut page, 1024 + 256, SUBNQN.as_bytes());
            put(&mut page, 1024 + 512, b"127.0.0.1");
        }
        page
    }

    fn execute(&mut self, entry: SubmissionQueueEntry, data: Vec<u8>, manner: &Manner) {
        let cid = entry.cid();
        let done = match entry.nsid() {
            1 => self.block(&entry, &data),
            _ => self.key_value(&entry, &data),
        };
        match done {
            Err(status) => self.complete(cid, status, 0),
            Ok((result, None)) => self.complete(cid, Status::SUCCESS, result),
            Ok((result, Some(data))) => {
                self.answer(cid, &data, result, manner, entry.nsid() == 1);
            }
        }
    }

    fn block(
        &self,
        entry: &SubmissionQueueEntry,
        data: &[u8],
    ) -> Result<(u64, Option<Vec<u8>>), Status> {
        let mut blocks = self.kept.blocks.lock();
        let place = |blocks: &forebay_proto::nvme::nvm::Blocks| {
            let from = blocks.first as usize * BLOCK_BYTES;
            from..from + blocks.count as usize * BLOCK_BYTES
        };
        match NvmCommand::parse(entry, &namespace(1))? {
            NvmCommand::Flush => *self.kept.stable.lock() = blocks.clone(),
            NvmCommand::Read { blocks: which } => {
                return Ok((0, Some(blocks[place(&which)].to_vec())));
            }
            NvmCommand::Write { blocks: which, .. } => {
                self.kept.writes.fetch_add(1, SeqCst);
                blocks[place(&which)].copy_from_slice(data);
            }
            NvmCommand::Compare { blocks: which } => {
                if blocks[place(&which)] != *data {
                    return Err(Status::COMPARE_FAILURE);
                }
            }
            NvmCommand::WriteZeroes { blocks: which, .. } => blocks[place(&which)].fill(0),
            NvmCommand::DatasetManagement { .. } => {
                for range in data.chunks_exact(16) {
                    let range = DsmRange::decode(range.try_into().unwrap());
                    let from = range.first as usize * BLOCK_BYTES;
                    blocks[from..from + range.count as usize * BLOCK_BYTES].fill(0);
                }
            }
            NvmCommand::Verify { .. } => {}
        }
        Ok((0, None))
    }

    fn key_value(
        &self,
        entry: &SubmissionQueueEntry,
        data: &[u8],
    ) -> Result<(u64, Option<Vec<u8>>), Status> {
        let mut values = self.kept.values.lock();
        let absent = Status::KV_KEY_DOES_NOT_EXIST;
        let led = |data: &[u8]| {
            let len = head::key_len([data[0], data[1]]).unwrap();
            (data[2..2 + len].to_vec(), data[2 + len..].to_vec())
        };
        let clip = |value: &[u8], from: u64, room: u32| {
            let rest = value.get(from as usize..).unwrap_or_default();
            rest[..rest.len().min(room as usize)].to_vec()
        };
        match KvCommand::parse(entry, &namespace(2))? {
            KvCommand::Flush => {}
            KvCommand::Store {
                key,
                value_bytes,
                options,
            } => {
                let (key, value) = match key {
                    KeyAt::Inline(key) => (key.as_bytes().to_vec(), data.to_vec()),
                    KeyAt::Head => led(data),
                };
                assert_eq!(value.len(), value_bytes as usize);
                match values.contains_key(&key) {
                    true if options.if_absent => return Err(Status::KEY_EXISTS),
                    false if options.if_exists => return Err(absent),
                    _ => values.insert(key, value),
                };
            }
            KvCommand::Retrieve { key, buffer_bytes } => {
                let value = values.get(key.as_bytes()).ok_or(absent)?;
                return Ok((value.len() as u64, Some(clip(value, 0, buffer_bytes))));
            }
            KvCommand::Delete { key } => {
                values.remove(key.as_bytes()).ok_or(absent)?;
            }
            KvCommand::Exist { key } => {
                values.get(key.as_bytes()).ok_or(absent)?;
            }
            KvCommand::List {
                start,
                extended,
                buffer_bytes,
            } => {
                assert!(extended);
                let mut page = vec![0; buffer_bytes as usize];
                let mut list = ListWriter::new(&mut page).unwrap();
                let from = match start {
                    ListStart::First => Vec::new(),
                    ListStart::Key(key) => key.as_bytes().to_vec(),
                    ListStart::Bound(handle) => self.kept.key(handle)?,
                };
                for (key, _) in values.range(from..) {
                    if !list.push(key) {
                        break;
                    }
                }
                let (len, count) = (list.len(), list.count());
                page.truncate(len);
                return Ok((count.into(), Some(page)));
            }
            KvCommand::ExtendedKey { verb } => {
                let (key, _) = led(data);
                match verb {
                    Verb::Exist => drop(values.get(&key).ok_or(absent)?),
                    Verb::Delete => drop(values.remove(&key).ok_or(absent)?),
                    Verb::Bind | Verb::Position => {
                        let len = match values.get(&key) {
                            Some(value) => value.len() as u64,
                            None if verb == Verb::Bind => return Err(absent),
                            None => 0,
                        };
                        let mut bound = self.kept.bound.lock();
                        bound.push(Some(key));
                        return Ok(((bound.len() as u64) << 32 | len, None));
                    }
                }
            }
            KvCommand::RetrieveRange {
                key,
                offset,
                buffer_bytes,
            } => {
                let value = match key {
                    RangeKey::Inline(key) => values.get(key.as_bytes()),
                    RangeKey::Bound(handle) => values.get(&self.kept.key(handle)?),
                };
                let value = value.ok_or(absent)?;
                return Ok((value.len() as u64, Some(clip(value, offset, buffer_bytes))));
            }
            KvCommand::RetrieveByHead { .. }
            | KvCommand::StorePart { .. }
            | KvCommand::Execute { .. }
            | KvCommand::ExecuteSubmit { .. }
            | KvCommand::ExecuteFetch { .. }
            | KvCommand::ExecuteInline { .. } => return Err(Status::INVALID_OPCODE),
        }
        Ok((0, None))
    }
}
