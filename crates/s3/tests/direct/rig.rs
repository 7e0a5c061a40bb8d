//! A server with links, and a client that lends its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_fabric::sessions::{Limits, proof};
use forebay_fabric::{
    Accepted, Access, Clock, Connection, Fabric, Link, SessionId, Sessions, Stag, iwarp, shm,
};
use forebay_mem::{Region, RegionSlice};
use forebay_proto::s3::sigv4::{AmzDate, CredentialScope, SigningKey};
use forebay_proto::token::ort1::{
    Covered, Direction, Flags, OpenToken, Segments, Transport, session_key,
};
use forebay_proto::token::{hex16, parse_hex16};
use forebay_s3::{Config, Direct};
use forebay_store::{MemoryStore, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

use crate::gated::{Gate, Gated};
use crate::support::{ALPHA, Answer, Ask, REGION, START_MS, Server, Sign, Who};

pub const UDS: &str = "/run/forebay.sock";
/// The length of a client's memory.
pub const MEMORY: usize = 8 << 20;
/// What tokens ask for: longer than a busy machine takes for anything here, and less than a link waits for its peer.
pub const LEASE: Duration = Duration::from_secs(20);
/// What the memory holds where nobody wrote.
pub const UNTOUCHED: u8 = 0xa5;

/// How a client's memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A sealed memfd, which the server maps.
    Mapped,
    /// A file, which the kernel copies to and from.
    File,
    /// Any memory, over TCP.
    Iwarp,
}

pub const WAYS: [Way; 3] = [Way::Mapped, Way::File, Way::Iwarp];

#[derive(Debug)]
struct TestClock(Arc<AtomicU64>);

impl Clock for TestClock {
    fn unix_millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.unix_millis() - START_MS)
    }
}

pub struct Rig<S: Store = Gated> {
    pub server: Server<S>,
    pub sessions: Arc<Sessions>,
    pub gate: Gate,
}

impl Rig {
    /// An open door.
    pub async fn open() -> Rig {
        Rig::with(Config::default(), |_| {}).await
    }

    pub async fn with(config: Config, adjust: impl FnOnce(&mut Direct)) -> Rig {
        Rig::limited(config, Limits::default(), adjust).await
    }

    pub async fn limited(config: Config, limits: Limits, adjust: impl FnOnce(&mut Direct)) -> Rig {
        let (clock, sessions, mut direct) = opened(limits);
        adjust(&mut direct);
        Rig::gated(config, clock, sessions, Some(direct)).await
    }

    /// A door without links.
    pub async fn closed(config: Config) -> Rig {
        let clock = Arc::new(AtomicU64::new(START_MS));
        let sessions = Sessions::new(Arc::new(TestClock(clock.clone())), Limits::default());
        Rig::gated(config, clock, Arc::new(sessions), None).await
    }

    async fn gated(
        config: Config,
        clock: Arc<AtomicU64>,
        sessions: Arc<Sessions>,
        direct: Option<Direct>,
    ) -> Rig {
        let gate = Gate::default();
        let detour = gate.clone();
        let wrap = move |store| Gated { store, detour };
        let server = Server::over(config, u64::MAX, clock, wrap, direct).await;
        Rig::of(server, sessions, gate).await
    }

    /// The connect request as clients of shared memory make it.
    pub fn connect_request() -> Ask {
        Ask::new("POST", "/.ort1/connect")
            .header("x-amz-rdma-protocol", "ort1")
            .header("x-amz-rdma-transport", "rc, iwarp, shm")
            .header("x-amz-rdma-nonce", &"c0".repeat(16))
    }

    async fn peer_on(
        who: Who,
        session: [u8; 16],
        key: [u8; 32],
        (link, accepted): (Connection, Accepted),
        region: Arc<Region>,
    ) -> Peer {
        let len = region.len();
        let memory = region.slice(0..len).unwrap();
        assert!(memory.write(0, &vec![UNTOUCHED; len]));
        let exposure = link
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        assert_eq!(exposure.base, 0);
        Peer {
            who,
            session,
            key,
            link,
            accepted,
            memory,
            stag: exposure.stag,
            sequence: AtomicU64::new(0),
        }
    }
}

impl<S: Store<Body: Unpin>> Rig<S> {
    /// An open door to what `wrap` makes of the store.
    pub async fn over(config: Config, wrap: impl FnOnce(MemoryStore) -> S) -> Rig<S> {
        let (clock, sessions, direct) = opened(Limits::default());
        let server = Server::over(config, u64::MAX, clock, wrap, Some(direct)).await;
        Rig::of(server, sessions, Gate::default()).await
    }

    async fn of(server: Server<S>, sessions: Arc<Sessions>, gate: Gate) -> Rig<S> {
        server.make_bucket("bucket").await;
        Rig {
            server,
            sessions,
            gate,
        }
    }

    /// A session of `who`, without a link.
    pub async fn session(&self, who: Who) -> ([u8; 16], [u8; 32]) {
        let answer = self.server.ask(who, Rig::connect_request()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = parse_hex16(answer.header("x-amz-rdma-session").unwrap()).unwrap();
        let nonce = parse_hex16(answer.header("x-amz-rdma-nonce").unwrap()).unwrap();
        let date = AmzDate::from_unix_s((self.server.now_ms() / 1000) as i64);
        let scope = CredentialScope::new(who.id, &date, REGION);
        let signing = SigningKey::for_scope(who.secret, &scope);
        (id, session_key(&signing, &id, &[0xc0; 16], &nonce))
    }

    /// A session of `who` with a link and memory behind it.
    pub async fn peer(&self, who: Who, way: Way) -> Peer {
        self.peer_with(who, way, MEMORY).await
    }

    /// The same with so much memory.
    pub async fn peer_with(&self, who: Who, way: Way, len: usize) -> Peer {
        let (session, key) = self.session(who).await;
        let links = match way {
            Way::Mapped | Way::File => self.link(session, &key).await,
            Way::Iwarp => self.far_link(session, &key).await,
        };
        let region = match way {
            Way::Mapped => Region::memfd(len).unwrap(),
            Way::File => file(len),
            Way::Iwarp => Region::anonymous(len).unwrap(),
        };
        Rig::peer_on(who, session, key, links, region).await
    }

    /// A session of `who` with a link of iWARP made like this.
    pub async fn peer_far(&self, who: Who, options: iwarp::Options) -> Peer {
        let (session, key) = self.session(who).await;
        let links = self.far_link_over(session, &key, streams().await, options);
        let region = Region::anonymous(MEMORY).unwrap();
        Rig::peer_on(who, session, key, links.await, region).await
    }

    /// A session of `who` with a link of iWARP through a network that keeps what the server sends, when it is told so.
    pub async fn peer_behind(&self, who: Who, network: &Network) -> Peer {
        self.peer_behind_with(who, network, MEMORY).await
    }

    /// The same with so much memory.
    pub async fn peer_behind_with(&self, who: Who, network: &Network, len: usize) -> Peer {
        let (session, key) = self.session(who).await;
        let streams = network.streams().await;
        let links = self.far_link_over(session, &key, streams, iwarp::Options::default());
        let region = Region::anonymous(len).unwrap();
        Rig::peer_on(who, session, key, links.await, region).await
    }

    pub async fn link(&self, session: [u8; 16], key: &[u8; 32]) -> (Connection, Accepted) {
        let (here, there) = UnixStream::pair().unwrap();
        let proof = proof(SessionId(session), key);
        let (accepted, link) = tokio::join!(
            shm::accept(here, &self.sessions),
            shm::connect(there, &proof)
        );
        (Connection::Shm(Arc::new(link.unwrap())), accepted.unwrap())
    }

    pub async fn far_link(&self, session: [u8; 16], key: &[u8; 32]) -> (Connection, Accepted) {
        let options = iwarp::Options::default();
        self.far_link_over(session, key, streams().await, options)
            .await
    }

    /// Over these two streams, the server's first; `options` are the client's.
    async fn far_link_over(
        &self,
        session: [u8; 16],
        key: &[u8; 32],
        (here, there): (TcpStream, TcpStream),
        options: iwarp::Options,
    ) -> (Connection, Accepted) {
        let proof = proof(SessionId(session), key);
        let (accepted, link) = tokio::join!(
            iwarp::accept_of(here, iwarp::Options::default(), &self.sessions),
            iwarp::connect(there, &proof, options)
        );
        (
            Connection::Iwarp(Arc::new(link.unwrap())),
            accepted.unwrap(),
        )
    }

    /// Ends everything and looks for what was left, but for descriptors: peers, which have their own, live on.
    pub async fn finish(self) {
        self.gate.open();
        for session in self.sessions.all() {
            self.sessions.close(session.id());
        }
        self.server.end().await;
    }

    pub async fn get(&self, peer: &Peer, target: &str, offset: u64, len: u64) -> Answer {
        let ask = Ask::new("GET", target);
        self.send(peer, ask, offset, len).await
    }

    pub async fn put(&self, peer: &Peer, target: &str, offset: u64, len: u64) -> Answer {
        let ask = Ask::new("PUT", target);
        self.send(peer, ask, offset, len).await
    }

    /// The request with a token for this part of the peer's memory.
    pub async fn send(&self, peer: &Peer, ask: Ask, offset: u64, len: u64) -> Answer {
        let token = peer.token(&ask, self.server.now_ms(), offset, len);
        self.server.ask(peer.who, peer.carry(ask, &token)).await
    }
}

/// What an open door is made of.
fn opened(limits: Limits) -> (Arc<AtomicU64>, Arc<Sessions>, Direct) {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let sessions = Arc::new(Sessions::new(Arc::new(TestClock(clock.clone())), limits));
    let mut direct = Direct::new(Arc::clone(&sessions));
    direct.uds = Some(UDS.into());
    (clock, sessions, direct)
}

/// Two ends of a connection.
async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (here, there) = tokio::join!(listener.accept(), TcpStream::connect(address));
    (here.unwrap().0, there.unwrap())
}

/// What is between the ends of a link.
pub struct Network {
    keeps: watch::Sender<bool>,
    /// Whether there was something to keep since it was told so.
    kept: Arc<watch::Sender<bool>>,
}

impl Network {
    pub fn new() -> Network {
        Network {
            keeps: watch::Sender::new(false),
            kept: Arc::default(),
        }
    }

    /// What the server sends is kept, or goes on to the client.
    pub fn keep(&self, keeps: bool) {
        self.kept.send_replace(false);
        self.keeps.send_replace(keeps);
    }

    /// Returns when the server has sent something that is kept.
    pub async fn kept(&self) {
        let _ = self.kept.subscribe().wait_for(|kept| *kept).await;
    }

    /// The server's end and the client's.
    async fn streams(&self) -> (TcpStream, TcpStream) {
        let ((server, near), (far, client)) = tokio::join!(streams(), streams());
        let (mut from_server, mut to_server) = near.into_split();
        let (mut from_client, mut to_client) = far.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let mut keeps = self.keeps.subscribe();
        let kept = Arc::clone(&self.kept);
        tokio::spawn(async move {
            let mut bytes = vec![0; 64 << 10];
            loop {
                from_server.readable().await.unwrap();
                kept.send_replace(*keeps.borrow());
                keeps.wait_for(|keeps| !*keeps).await.unwrap();
                match from_server.read(&mut bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => to_client.write_all(&bytes[..read]).await.unwrap(),
                }
            }
        });
        (server, client)
    }
}

/// Unsealed memory.
fn file(len: usize) -> Arc<Region> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!(
        "{}/{}-{count}",
        env!("CARGO_TARGET_TMPDIR"),
        std::process::id()
    );
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)
        .unwrap();
    file.set_len(len as u64).unwrap();
    std::fs::remove_file(&name).unwrap();
    Region::from_fd(file.into()).unwrap()
}

/// A client with memory.
pub struct Peer {
    pub who: Who,
    pub session: [u8; 16],
    pub key: [u8; 32],
    pub link: Connection,
    pub accepted: Accepted,
    pub memory: RegionSlice,
    pub stag: Stag,
    sequence: AtomicU64,
}

impl Peer {
    /// A token for `ask`, as a careful client mints it.
    pub fn token(&self, ask: &Ask, now_ms: u64, offset: u64, len: u64) -> OpenToken {
        OpenToken {
            transport: match self.link.fabric() {
                Fabric::Shm => Transport::Shm,
                Fabric::Iwarp => Transport::Iwarp,
            },
            direction: match ask.method {
                "GET" => Direction::Write,
                _ => Direction::Read,
            },
            flags: Flags::OFFSET,
            session: self.session,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            expiry_s: (now_ms / 1000 + 60) as u32,
            lease_ms: LEASE.as_millis() as u32,
            address: offset,
            length: len,
            remote_key: self.stag.0,
            dc: None,
            segments: Segments::default(),
            promise: None,
            memory: None,
            rail: None,
            slot: None,
        }
    }

    /// The request with this token in it.
    pub fn carry(&self, ask: Ask, token: &OpenToken) -> Ask {
        let text = self.seal(&ask, token);
        ask.header("x-amz-rdma-token", &text).sign(Sign::Unsigned)
    }

    pub fn seal(&self, ask: &Ask, token: &OpenToken) -> String {
        let range = ask.headers.iter().find(|(name, _)| name == "range");
        let covered = Covered {
            method: ask.method,
            path: &ask.path,
            query: &ask.query,
            range: range.map_or("", |(_, value)| value),
        };
        token.seal(&self.key, &covered).unwrap()
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(offset, &mut bytes));
        bytes
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(self.memory.write(offset, bytes));
    }

    /// Whether nobody wrote outside of `len` bytes at `offset`.
    #[track_caller]
    pub fn untouched_but(&self, offset: usize, len: usize) {
        let all = self.bytes(0, MEMORY);
        let inside = offset..offset + len;
        let wrong = (0..MEMORY).find(|at| !inside.contains(at) && all[*at] != UNTOUCHED);
        assert_eq!(wrong, None);
    }
}

/// Bytes that tell where they are.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// What section 6.3 says of a success.
#[track_caller]
pub fn served(answer: &Answer, status: u16, bytes: u64) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let number = status.to_string();
    assert_eq!(answer.header("x-amz-rdma-reply"), Some(number.as_str()));
    let bytes = bytes.to_string();
    assert_eq!(
        answer.header("x-amz-rdma-bytes-transferred"),
        Some(bytes.as_str())
    );
    assert_eq!(answer.header("content-length"), Some("0"));
    assert!(answer.header("x-amz-rdma-ack").is_some());
    assert!(answer.header("etag").is_some());
}

/// What section 6.3 says of a decline.
#[track_caller]
pub fn declined(answer: &Answer) {
    answer.is(501, "NotImplemented");
    assert_eq!(answer.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(answer.header("etag"), None);
}

/// What section 6.3 says of an error.
#[track_caller]
pub fn refused(answer: &Answer, status: u16, code: &str) {
    answer.is(status, code);
    let number = status.to_string();
    assert_eq!(answer.header("x-amz-rdma-reply"), Some(number.as_str()));
    let bytes = answer.header("x-amz-rdma-bytes-transferred");
    assert_eq!(bytes.is_some(), code != "InvalidRDMAToken");
    assert_eq!(answer.header("etag"), None);
}

pub fn session_text(id: &[u8; 16]) -> String {
    hex16(id)
}

/// A descriptor as cuObject's clients send it.
pub const DC81: &str =
    "00007f1234567890:00100000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0";
/// hipObject's, for a reliable connection.
pub const HIP88: &str =
    "012a00000000000000000000000000ffff0a0a30d0efbeadde00100000007f00000010000000000000010000";

/// A key that exists, which a test then tries to hurt.
pub async fn victim(rig: &Rig) -> String {
    rig.server.put("/bucket/victim", b"as it was").await.etag()
}

/// Whether it is as it was, and nothing else is there.
pub async fn unhurt(rig: &Rig, etag: &str) {
    let answer = rig.server.get("/bucket/victim").await;
    assert!(answer.etag() == etag && answer.body == b"as it was");
    let list = rig
        .server
        .ask(ALPHA, Ask::new("GET", "/bucket?list-type=2"))
        .await;
    assert_eq!(
        list.element("KeyCount").as_deref(),
        Some("1"),
        "{}",
        list.text()
    );
}
