//! A door over a store in memory, and a caller at the other end of a pipe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_direct::{Config, Door};
use forebay_fabric::sessions::{Limits, LinkId, Principal};
use forebay_fabric::{
    Access, CloseReason, Connection, Exposure, Link, Session, Sessions, SystemClock, iwarp, shm,
};
use forebay_mem::{Pool, Region, RegionSlice};
use forebay_proto::direct::{
    Body, Condition, Deleted, Hop, Listed, Operation, Range, RequestWriter, Retrieve, Status,
    Target, Window, parse_reply,
};
use forebay_store::{
    Address, Body as _, ByteRange, MemoryStore, NamespaceConfig, Seal, Store, StoreOptions, Upload,
};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::any::{Any, Way};
use crate::pipe::Pipe;

pub const TENANT: &str = "vision";
pub const OTHER: &str = "audio";
/// The tenant's namespace, and the other tenant's.
pub const NAMESPACE: &str = "frames";
pub const FOREIGN: &str = "tapes";

pub fn principal<'a>(tenant: &'a str, id: &'a str) -> Principal<'a> {
    Principal {
        tenant,
        id,
        secret: "secret",
    }
}

/// A store with a namespace of each tenant, a door to it, and the sessions.
pub struct Server {
    pub store: Arc<MemoryStore>,
    pub door: Arc<Door<MemoryStore>>,
    pub sessions: Arc<Sessions>,
}

impl Server {
    pub async fn new() -> Server {
        Server::with(Config::default()).await
    }

    pub async fn with(config: Config) -> Server {
        let now = Arc::new(AtomicU64::new(1_800_000_000_000));
        let clock = move || now.fetch_add(1, Relaxed);
        let store = Arc::new(MemoryStore::new(Pool::new(256 << 20), clock));
        for (name, tenant) in [(NAMESPACE, TENANT), (FOREIGN, OTHER)] {
            let config = NamespaceConfig {
                tenant: tenant.to_owned(),
                ..NamespaceConfig::default()
            };
            store.create_namespace(name, config).await.unwrap();
        }
        Server {
            door: Arc::new(Door::new(store.clone(), config)),
            store,
            sessions: Arc::new(Sessions::new(
                Arc::new(SystemClock::default()),
                Limits::default(),
            )),
        }
    }

    pub fn session(&self, tenant: &str) -> Arc<Session> {
        self.sessions
            .open_with_random_key(principal(tenant, "AKID"), Duration::from_secs(60))
            .unwrap()
    }

    /// A caller of `tenant`, served until its link ends.
    pub async fn connect(&self, tenant: &str, way: Way) -> Caller {
        let session = self.session(tenant);
        let ends = self.join(&session, way).await;
        self.serve(session, ends)
    }

    /// The same over iWARP, made as the caller wants it.
    pub async fn connect_far(&self, tenant: &str, options: iwarp::Options) -> Caller {
        let session = self.session(tenant);
        let ends = self.join_far(&session, options).await;
        self.serve(session, ends)
    }

    fn serve(&self, session: Arc<Session>, (near, far, id): (Any, Any, Option<LinkId>)) -> Caller {
        let door = self.door.clone();
        let far = Arc::new(far);
        let (link, of) = (far.clone(), session.clone());
        let serving = tokio::task::spawn_local(async move {
            let reason = door.serve(&of, &*link, std::future::pending()).await;
            if let Some(id) = id {
                of.detach(id);
            }
            reason
        });
        Caller {
            link: near,
            far,
            session,
            serving,
            next: AtomicU64::new(1),
        }
    }

    /// Both ends of a new link, the client's first, and its name in the session.
    pub async fn join(&self, session: &Session, way: Way) -> (Any, Any, Option<LinkId>) {
        let proof = session.proof();
        match way {
            Way::Pipe(fabric) => {
                let (near, far) = Pipe::pair(fabric);
                (Any::Pipe(near), Any::Pipe(far), None)
            }
            Way::Shm => {
                let (here, there) = UnixStream::pair().unwrap();
                let (accepted, near) = tokio::join!(
                    shm::accept(here, &self.sessions),
                    shm::connect(there, &proof)
                );
                let accepted = accepted.unwrap();
                let near = Connection::Shm(Arc::new(near.unwrap()));
                (Any::Real(near), Any::Real(accepted.link), Some(accepted.id))
            }
            Way::Iwarp => self.join_far(session, iwarp::Options::default()).await,
        }
    }

    async fn join_far(
        &self,
        session: &Session,
        options: iwarp::Options,
    ) -> (Any, Any, Option<LinkId>) {
        // Connections that take little at once: what is sent waits for the peer, as it does between hosts.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let (there, here) = tokio::join!(TcpStream::connect(address), listener.accept());
        let admit = |data: &[u8]| self.sessions.admit(data.try_into().ok()?);
        let proof = session.proof();
        let (accepted, near) = tokio::join!(
            iwarp::accept(here.unwrap().0, iwarp::Options::default(), admit),
            iwarp::connect(there.unwrap(), &proof, options)
        );
        let (far, admitted) = accepted.unwrap();
        assert_eq!(admitted.id(), session.id());
        let far = Connection::Iwarp(Arc::new(far));
        let id = session.attach(far.clone()).unwrap();
        let near = Connection::Iwarp(Arc::new(near.unwrap()));
        (Any::Real(near), Any::Real(far), Some(id))
    }

    /// A value straight from the store.
    pub async fn value(&self, namespace: &str, key: &[u8]) -> Option<Vec<u8>> {
        read(&self.store, namespace, key).await
    }

    /// A value straight into the store.
    pub async fn set(&self, namespace: &str, key: &[u8], bytes: &[u8]) {
        write(&self.store, namespace, key, bytes).await;
    }
}

pub async fn read(store: &MemoryStore, namespace: &str, key: &[u8]) -> Option<Vec<u8>> {
    let address = Address::object(namespace, key);
    let mut object = store.retrieve(address, None, ByteRange::Full).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(buf) = object.body.next().await.unwrap() {
        bytes.extend_from_slice(&buf);
    }
    Some(bytes)
}

pub async fn write(store: &MemoryStore, namespace: &str, key: &[u8], bytes: &[u8]) {
    let address = Address::object(namespace, key);
    let mut upload = store.store(address, StoreOptions::default()).await.unwrap();
    for piece in bytes.chunks(store.caps().chunk_bytes) {
        let mut buffer = upload.buffer(piece.len()).await.unwrap();
        buffer.set_len(piece.len());
        buffer.copy_from_slice(piece);
        upload.write(buffer.freeze()).await.unwrap();
    }
    upload.commit(Seal::default()).await.unwrap();
}

/// A result as a test looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Failed(Status, Hop, String),
    Value {
        size: u64,
        moved: u64,
        first: u64,
        version: u64,
        crc64nvme: Option<u64>,
        part_crc64nvme: Option<u64>,
        replaced: bool,
        etag: String,
        bytes: Option<Vec<u8>>,
    },
    Sizes(Vec<Option<u64>>),
    Prefix(u64),
    Deleted(Deleted),
    Line(Vec<u8>, u64),
    Common(Vec<u8>),
}

impl Said {
    #[track_caller]
    pub fn status(&self) -> Status {
        match self {
            Said::Failed(status, ..) => *status,
            _ => Status::Ok,
        }
    }
}

/// What was answered to one request.
#[derive(Debug, Default)]
pub struct Answer {
    pub results: Vec<Said>,
    pub more: bool,
    pub replies: usize,
}

/// The client's end of a link that a door serves.
pub struct Caller {
    pub link: Any,
    /// The server's end.
    pub far: Arc<Any>,
    pub session: Arc<Session>,
    pub serving: JoinHandle<CloseReason>,
    next: AtomicU64,
}

/// Memory that a caller has exposed.
pub struct Memory {
    pub slice: RegionSlice,
    pub exposure: Exposure,
}

impl Memory {
    pub fn window(&self, offset: u64, len: u64) -> Window {
        Window {
            stag: self.exposure.stag.0,
            offset,
            len,
        }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.slice.read(offset, &mut bytes));
        bytes
    }

    pub fn set(&self, offset: usize, bytes: &[u8]) {
        assert!(self.slice.write(offset, bytes));
    }
}

impl Caller {
    pub async fn memory(&self, len: usize, access: Access) -> Memory {
        let region = Region::memfd(len).unwrap();
        let slice = region.slice(0..len).unwrap();
        let exposure = self.link.expose(slice.clone(), access).await.unwrap();
        Memory { slice, exposure }
    }

    /// Sends one request; nothing is awaited but the link's room.
    pub async fn send(
        &self,
        operation: Operation,
        namespace: &str,
        elements: impl FnOnce(&mut RequestWriter<'_>),
    ) -> u64 {
        let id = self.next.fetch_add(1, Relaxed);
        let mut message = Vec::new();
        let mut writer = RequestWriter::begin(&mut message, operation, id, namespace).unwrap();
        elements(&mut writer);
        writer.finish();
        self.link.send(&message).await.unwrap();
        id
    }

    /// Awaits all replies to `id`, which must be the next that come.
    pub async fn answer(&self, id: u64) -> Answer {
        let mut answer = Answer::default();
        let mut message = Vec::new();
        loop {
            self.link.recv(&mut message).await.unwrap().unwrap();
            let reply = parse_reply(&message).unwrap();
            assert_eq!(reply.id, id);
            assert_eq!(usize::from(reply.first), answer.results.len());
            answer.replies += 1;
            for result in reply.results {
                answer.results.push(match (result.status, reply.operation) {
                    (Status::Ok, Operation::Exist) => {
                        Said::Sizes(result.sizes().unwrap().collect())
                    }
                    (Status::Ok, Operation::LongestPrefix) => {
                        Said::Prefix(result.prefix().unwrap())
                    }
                    (Status::Ok, Operation::Delete) => Said::Deleted(result.deleted().unwrap()),
                    (Status::Ok, Operation::List) => match result.listed().unwrap() {
                        Listed::Value { key, size, .. } => Said::Line(key.to_vec(), size),
                        Listed::Prefix(prefix) => Said::Common(prefix.to_vec()),
                    },
                    (Status::Ok, _) => {
                        let value = result.value().unwrap();
                        Said::Value {
                            size: value.size,
                            moved: value.moved,
                            first: value.first,
                            version: value.version,
                            crc64nvme: value.crc64nvme,
                            part_crc64nvme: value.part_crc64nvme,
                            replaced: value.replaced,
                            etag: value.etag.to_owned(),
                            bytes: value.bytes.map(<[u8]>::to_vec),
                        }
                    }
                    (status, _) => {
                        let text = result.text().unwrap().to_owned();
                        Said::Failed(status, result.hop, text)
                    }
                });
            }
            if reply.last {
                answer.more = reply.more;
                return answer;
            }
        }
    }

    pub async fn call(
        &self,
        operation: Operation,
        namespace: &str,
        elements: impl FnOnce(&mut RequestWriter<'_>),
    ) -> Answer {
        let id = self.send(operation, namespace, elements).await;
        self.answer(id).await
    }

    /// The one result of a request with one element.
    pub async fn one(
        &self,
        operation: Operation,
        namespace: &str,
        elements: impl FnOnce(&mut RequestWriter<'_>),
    ) -> Said {
        let mut answer = self.call(operation, namespace, elements).await;
        assert_eq!(answer.results.len(), 1, "{answer:?}");
        answer.results.remove(0)
    }

    pub async fn retrieve(&self, namespace: &str, key: &[u8], target: Target) -> Said {
        self.one(Operation::Retrieve, namespace, |writer| {
            writer.retrieve(&whole(key, target)).unwrap();
        })
        .await
    }

    pub async fn store(&self, namespace: &str, key: &[u8], body: Body<'_>) -> Said {
        self.one(Operation::Store, namespace, |writer| {
            writer.store(&plain(key, body)).unwrap();
        })
        .await
    }

    pub async fn exist(&self, namespace: &str, keys: &[&[u8]]) -> Said {
        self.one(Operation::Exist, namespace, |writer| {
            keys.iter().for_each(|key| writer.key(key).unwrap());
        })
        .await
    }

    /// Ends the link and waits for the server; why it ended there.
    pub async fn finish(self) -> CloseReason {
        self.link.close(CloseReason::Done);
        self.serving.await.unwrap()
    }
}

pub fn whole(key: &[u8], target: Target) -> Retrieve<'_> {
    Retrieve {
        key,
        version: None,
        range: Range::Full,
        target,
        checksum: true,
    }
}

pub fn plain<'a>(key: &'a [u8], body: Body<'a>) -> forebay_proto::direct::Store<'a> {
    forebay_proto::direct::Store {
        key,
        body,
        condition: Condition::None,
        crc64nvme: None,
        expires: None,
        attributes: forebay_proto::direct::Attributes::NONE,
    }
}

pub fn crc(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// A runtime of this thread, on which doors serve.
pub fn local() -> tokio::runtime::LocalRuntime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .build_local(Default::default())
        .unwrap()
}

/// Bytes that look random and are the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    })
    .take(len)
    .collect()
}
