//! A door over the in-memory store on loopback, and a small client that signs what it is told to and sends what it is
//! given, right or wrong.

#[path = "../../../mem/tests/alone/mod.rs"]
mod alone;
#[path = "left.rs"]
mod left;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_mem::Pool;
use forebay_proto::hex;
use forebay_proto::s3::checksum::{Algorithm, checksum};
use forebay_proto::s3::chunked::{CHUNK_END, ChunkChain, Encoder, encoded_length};
use forebay_proto::s3::sigv4::{
    self, AmzDate, CredentialScope, SigningKey, UNSIGNED_PAYLOAD, authorization_header, presign,
};
use forebay_s3::{AccessKey, AccessKeys, Config, Direct, Door};
use forebay_store::{MemoryStore, Scope, Store, Usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// When the tests begin: 2026-11-21T00:00:00Z.
pub const START_MS: u64 = 1_795_219_200_000;
pub const REGION: &str = "us-east-1";
pub const HOST: &str = "door.test";

/// Somebody who signs.
#[derive(Clone, Copy)]
pub struct Who {
    pub id: &'static str,
    pub secret: &'static str,
    pub tenant: &'static str,
}

pub const ALPHA: Who = Who {
    id: "ALPHAKEY",
    secret: "alpha/secret",
    tenant: "alpha",
};
/// Another key of the same tenant.
pub const ALPHA_ELSEWHERE: Who = Who {
    id: "ALPHAKEY2",
    secret: "alpha/elsewhere",
    tenant: "alpha",
};
pub const BETA: Who = Who {
    id: "BETAKEY",
    secret: "beta/secret",
    tenant: "beta",
};

/// Who is deleted, and after how many more looks.
#[derive(Clone, Default)]
struct Keys(Arc<Mutex<Vec<(&'static str, usize)>>>);

impl Keys {
    fn is_deleted(&self, id: &str) -> bool {
        let mut deleted = self.0.lock().unwrap();
        match deleted.iter_mut().find(|(known, _)| *known == id) {
            None => false,
            Some((_, 0)) => true,
            Some((_, looks)) => {
                *looks -= 1;
                false
            }
        }
    }
}

impl AccessKeys for Keys {
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>> {
        [ALPHA, ALPHA_ELSEWHERE, BETA]
            .into_iter()
            .find(|who| who.id == access_key_id && !self.is_deleted(who.id))
            .map(|who| {
                Arc::new(AccessKey {
                    id: who.id.to_owned(),
                    secret: who.secret.to_owned(),
                    tenant: who.tenant.to_owned(),
                })
            })
    }
}

pub struct Server<S: Store = MemoryStore> {
    pub address: std::net::SocketAddr,
    pub door: Arc<Door<S>>,
    pub store: MemoryStore,
    pub pool: Pool,
    clock: Arc<AtomicU64>,
    keys: Keys,
    stop: watch::Sender<bool>,
    /// What was open before it began.
    before: Vec<String>,
    /// As many more as there are connections on the clients' side.
    clients: Arc<()>,
}

impl Server {
    pub async fn start() -> Server {
        Server::with(Config::default(), u64::MAX).await
    }

    /// A server whose store holds at most `capacity` bytes.
    pub async fn with(config: Config, capacity: u64) -> Server {
        let clock = Arc::new(AtomicU64::new(START_MS));
        Server::over(config, capacity, clock, |store| store, None).await
    }
}

impl<S: Store<Body: Unpin>> Server<S> {
    /// A server of what `wrap` makes of the store, with links or without.
    pub async fn over(
        config: Config,
        capacity: u64,
        clock: Arc<AtomicU64>,
        wrap: impl FnOnce(MemoryStore) -> S,
        direct: Option<Direct>,
    ) -> Server<S> {
        let before = left::descriptors();
        let keys = Keys::default();
        let pool = Pool::new(64 << 20);
        let read = Arc::clone(&clock);
        let now = move || read.load(Ordering::Relaxed);
        let store = MemoryStore::with_capacity(pool.clone(), now.clone(), capacity);
        let door = Door::with_direct(
            Arc::new(wrap(store.clone())),
            Arc::new(keys.clone()),
            Arc::new(now),
            config,
            direct,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (stop, stopping) = watch::channel(false);
        let serving = Arc::clone(&door);
        tokio::spawn(async move {
            let mut stopped = stopping.clone();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopped.changed() => return,
                };
                let (stream, peer) = accepted.expect("accepts");
                let mut stopping = stopping.clone();
                let shutdown = async move {
                    let _ = stopping.wait_for(|stop| *stop).await;
                };
                let door = Arc::clone(&serving);
                tokio::spawn(door.serve_connection(stream, Some(peer), false, shutdown));
            }
        });
        Server {
            address,
            door,
            store,
            pool,
            clock,
            keys,
            stop,
            before,
            clients: Arc::default(),
        }
    }

    /// Deletes an access key.
    pub fn delete_key(&self, who: Who) {
        self.delete_key_after(who, 0);
    }

    /// Deletes an access key once it was looked up so many times more.
    pub fn delete_key_after(&self, who: Who, looks: usize) {
        self.keys.0.lock().unwrap().push((who.id, looks));
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub fn advance_ms(&self, by: u64) {
        self.clock.fetch_add(by, Ordering::Relaxed);
    }

    /// Ends the door, and checks that it left nothing open, beside what [`end`](Server::end) checks.
    pub async fn finish(self) {
        self.end().await;
        if alone::is_alone() {
            let after = left::descriptors();
            // A test may hold its side of a connection until it returns.
            let held = Arc::strong_count(&self.clients) - 1;
            assert_eq!(
                after.len(),
                self.before.len() + held,
                "{held} clients, and open are {after:?}, before {:?}",
                self.before
            );
        }
    }

    /// Stops, waits for the requests in flight and the end of all connections, and checks that no buffer is left in use, and no room.
    pub async fn end(&self) {
        self.stop.send_replace(true);
        self.door.drain().await;
        self.stop.closed().await;
        assert_eq!(self.pool.usage().in_use, 0, "buffers leaked");
        left::check_space(&self.store).await;
    }

    pub async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("connects");
        Client {
            stream,
            received: Vec::new(),
            _counted: Arc::clone(&self.clients),
        }
    }

    /// Sends raw bytes and reads all that comes back until the server closes.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.stream.shutdown().await.expect("half closes");
        let mut answer = Vec::new();
        // A reset after the answer is the server's right.
        let _ = client.stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Signs as `who` and exchanges on a connection of its own.
    pub async fn ask(&self, who: Who, request: Ask) -> Answer {
        let bytes = request.signed(who, self.now_ms());
        self.exchange(&bytes, request.method == "HEAD").await
    }

    pub async fn anonymous(&self, request: Ask) -> Answer {
        let bytes = request.unsigned();
        self.exchange(&bytes, request.method == "HEAD").await
    }

    pub async fn exchange(&self, bytes: &[u8], head: bool) -> Answer {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.answer(head).await
    }

    pub async fn make_bucket(&self, name: &str) {
        let answer = self.ask(ALPHA, Ask::new("PUT", &format!("/{name}"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// A bucket keeps versions from here on.
    pub async fn keep_versions(&self, bucket: &str) {
        let versioning =
            b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        self.put(&format!("/{bucket}?versioning"), versioning).await;
    }

    pub async fn put(&self, target: &str, body: &[u8]) -> Answer {
        let answer = self.ask(ALPHA, Ask::new("PUT", target).body(body)).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        answer
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.ask(ALPHA, Ask::new("GET", target)).await
    }

    /// What `bucket` holds.
    pub fn used(&self) -> Usage {
        self.store
            .usage(Scope::Namespace("bucket"))
            .expect("a bucket")
    }
}

/// How the body is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    Hash,
    Unsigned,
    Chunks,
    ChunksTrailer,
    UnsignedTrailer,
}

/// A request to be made.
#[derive(Clone)]
pub struct Ask {
    pub method: &'static str,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub sign: Sign,
    pub trailers: Vec<(String, String)>,
    /// What `x-amz-content-sha256` says instead of the truth.
    pub claimed_hash: Option<String>,
}

impl Ask {
    /// `target` is a path, percent-encoded, with its query.
    pub fn new(method: &'static str, target: &str) -> Ask {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ask {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            sign: Sign::Hash,
            trailers: Vec::new(),
            claimed_hash: None,
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Ask {
        self.body = body.as_ref().to_vec();
        self
    }

    pub fn sign(mut self, sign: Sign) -> Ask {
        self.sign = sign;
        self
    }

    pub fn trailer(mut self, name: &str, value: &str) -> Ask {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self.header("x-amz-trailer", name)
    }

    pub fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    fn content_sha256(&self) -> String {
        if let Some(claimed) = &self.claimed_hash {
            return claimed.clone();
        }
        match self.sign {
            Sign::Hash => hex::encode(checksum(Algorithm::Sha256, &self.body).as_bytes()),
            Sign::Unsigned => UNSIGNED_PAYLOAD.to_owned(),
            Sign::Chunks => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned(),
            Sign::ChunksTrailer => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER".to_owned(),
            Sign::UnsignedTrailer => "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned(),
        }
    }

    /// The head and the framed body, signed.
    pub fn parts(&self, who: Who, now_ms: u64) -> (String, Vec<u8>) {
        let date = AmzDate::from_unix_s((now_ms / 1000) as i64);
        let scope = CredentialScope::new(who.id, &date, REGION);
        let key = SigningKey::for_scope(who.secret, &scope);
        let hash = self.content_sha256();
        let mut headers = self.headers.clone();
        let framed = !matches!(self.sign, Sign::Hash | Sign::Unsigned);
        let trailers: Vec<(&str, &str)> = self
            .trailers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        const CHUNK: usize = 64 << 10;
        let signed_chunks = matches!(self.sign, Sign::Chunks | Sign::ChunksTrailer);
        let length = match framed {
            false => self.body.len() as u64,
            true => encoded_length(
                self.body.len() as u64,
                CHUNK as u64,
                signed_chunks,
                self.sign != Sign::Chunks,
                &trailers,
            ),
        };
        let mut add = |name: &str, value: String| {
            if !headers.iter().any(|(known, _)| known == name) {
                headers.push((name.to_owned(), value));
            }
        };
        add("host", HOST.to_owned());
        add("x-amz-date", date.as_str().to_owned());
        add("x-amz-content-sha256", hash.clone());
        if self.method != "GET" && self.method != "HEAD" {
            add("content-length", length.to_string());
        }
        if framed {
            add("x-amz-decoded-content-length", self.body.len().to_string());
            add("content-encoding", "aws-chunked".to_owned());
        }
        headers.sort();
        let lookup: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let mut names: Vec<&str> = lookup
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name == "host" || name.starts_with("x-amz-"))
            .collect();
        names.dedup();
        let signed_headers = names.join(";");
        let request = sigv4::Request {
            method: self.method,
            path: &self.path,
            query: &self.query,
            headers: &lookup[..],
        };
        let signature = sigv4::sign(&request, &signed_headers, &hash, &date, &scope, &key);
        let authorization = authorization_header(&scope, &signed_headers, &signature);
        let mut head = self.head(&headers);
        head.push_str(&format!("authorization: {authorization}\r\n\r\n"));
        let mut encoder = match (framed, signed_chunks) {
            (false, _) => return (head, self.body.clone()),
            (true, false) => Encoder::unsigned(),
            (true, true) => Encoder::signed(
                ChunkChain::new(key, &date, &scope, signature),
                self.sign == Sign::ChunksTrailer,
            ),
        };
        let mut body = Vec::new();
        for piece in self.body.chunks(CHUNK) {
            body.extend_from_slice(encoder.header(&[piece]).as_bytes());
            body.extend_from_slice(piece);
            body.extend_from_slice(CHUNK_END);
        }
        body.extend_from_slice(encoder.finish(&trailers).as_bytes());
        (head, body)
    }

    pub fn signed(&self, who: Who, now_ms: u64) -> Vec<u8> {
        let (head, body) = self.parts(who, now_ms);
        [head.into_bytes(), body].concat()
    }

    pub fn unsigned(&self) -> Vec<u8> {
        let mut headers = self.headers.clone();
        headers.push(("host".to_owned(), HOST.to_owned()));
        headers.push(("content-length".to_owned(), self.body.len().to_string()));
        let mut head = self.head(&headers);
        head.push_str("\r\n");
        [head.into_bytes(), self.body.clone()].concat()
    }

    /// The target of a presigned URL.
    pub fn presigned(&self, who: Who, now_ms: u64, expires_s: u32) -> String {
        let date = AmzDate::from_unix_s((now_ms / 1000) as i64);
        let scope = CredentialScope::new(who.id, &date, REGION);
        let key = SigningKey::for_scope(who.secret, &scope);
        let lookup = [("host", HOST)];
        let request = sigv4::Request {
            method: self.method,
            path: &self.path,
            query: &self.query,
            headers: &lookup[..],
        };
        let query = presign(&request, "host", &date, expires_s, &scope, &key);
        format!("{}?{query}", self.path)
    }

    fn head(&self, headers: &[(String, String)]) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
    _counted: Arc<()>,
}

impl Client {
    pub async fn send(&mut self, bytes: &[u8]) {
        // The server may refuse and close before it has read everything.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next answer; `head` says that it has no body whatever its length.
    pub async fn answer(&mut self, head: bool) -> Answer {
        let end = loop {
            if let Some(at) = find(&self.received, b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.more().await, "closed before an answer");
        };
        let text = String::from_utf8_lossy(&self.received[..end]).into_owned();
        self.received.drain(..end);
        let mut lines = text.trim_end().split("\r\n");
        let status: u16 = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok())
            .expect("a status line");
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers
            .iter()
            .find(|(name, _)| name == "content-length")
            .map_or(0, |(_, value)| value.parse().expect("a length"));
        let bodiless = head || status == 304 || status == 204 || status < 200;
        let length: usize = if bodiless { 0 } else { length };
        while self.received.len() < length {
            assert!(self.more().await, "closed inside a body");
        }
        let body = self.received.drain(..length).collect();
        Answer {
            status,
            headers,
            body,
        }
    }

    /// Reads more; false at the end.
    pub async fn more(&mut self) -> bool {
        let mut buf = vec![0; 64 << 10];
        match self.stream.read(&mut buf).await {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.received.extend_from_slice(&buf[..count]);
                true
            }
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The text of the first element of this name.
    pub fn element(&self, name: &str) -> Option<String> {
        let text = self.text();
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(value.to_owned())
    }

    /// Status and error code.
    pub fn refusal(&self) -> (u16, String) {
        let code = self.element("Code").unwrap_or_default();
        if !code.is_empty() {
            assert_eq!(
                self.element("RequestId").as_deref(),
                self.header("x-amz-request-id"),
                "the document and the header name one request"
            );
        }
        (self.status, code)
    }

    #[track_caller]
    pub fn is(&self, status: u16, code: &str) {
        assert_eq!(self.refusal(), (status, code.to_owned()), "{}", self.text());
    }

    pub fn etag(&self) -> String {
        self.header("etag").expect("an entity tag").to_owned()
    }
}
