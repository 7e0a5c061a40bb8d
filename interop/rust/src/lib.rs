//! The server under test, for Rust clients: the real binary in a directory of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the server may take to say that it is ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the caches keep, of the engine's values and of those of a backend elsewhere.
const CACHES: [&str; 2] = ["forebay_engine_cache_bytes", "forebay_tier_memory_bytes"];
/// What a server over Ceph may open once and keep: that library opens files when it likes.
const SPARE_FILES: usize = 8;
/// Each thread that reaches the disk opens a ring and keeps it: the shards at the start, the journal's when it first writes to
/// several places.
const LATE_RINGS: usize = 1;

/// A running server. Dropping it ends the process and removes its directory.
pub struct Server {
    child: Option<Child>,
    _directory: tempfile::TempDir,
    console: String,
    /// `http://` and the address of the S3 door.
    pub endpoint: String,
    /// Root access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

/// What a server holds at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    files: usize,
    /// Of io_uring.
    rings: usize,
    connections: i64,
    /// Bytes, without what the caches keep.
    buffers: i64,
}

impl Server {
    /// Starts the binary that `FOREBAY_BIN` names, or takes `FOREBAY_INTEROP_ENDPOINT` as it is. With
    /// `FOREBAY_INTEROP_BACKEND=rados` its data lie in the Ceph of `CEPH_CONF`, in a place of their own.
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        if let Ok(endpoint) = std::env::var("FOREBAY_INTEROP_ENDPOINT") {
            return Self {
                child: None,
                _directory: directory,
                console: String::new(),
                endpoint,
                access_key: "test".to_owned(),
                secret_key: "test-secret".to_owned(),
            };
        }
        let binary = std::env::var_os("FOREBAY_BIN").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/forebay"),
            PathBuf::from,
        );
        let (data, ready) = (
            directory.path().join("data"),
            directory.path().join("ready"),
        );
        let mut child = Command::new(binary)
            .arg("serve")
            .arg(&data)
            .args([
                "--s3",
                "127.0.0.1:0",
                "--console",
                "127.0.0.1:0",
                "--rpc",
                "127.0.0.1:0",
                "--direct",
                "127.0.0.1:0",
                "--nvme",
                "127.0.0.1:0",
                "--ready-file",
            ])
            .arg(&ready)
            .args(backend())
            .stdin(Stdio::null())
            .spawn()
            .expect("the server starts");
        let begun = Instant::now();
        while !ready.exists() {
            if let Some(status) = child.try_wait().expect("the server's status") {
                panic!("the server ended: {status}");
            }
            assert!(begun.elapsed() < PATIENCE, "the server is not ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        let doors = std::fs::read_to_string(&ready).expect("the ready file");
        let doors: serde_json::Value = serde_json::from_str(&doors).expect("JSON");
        let credentials =
            std::fs::read_to_string(data.join("credentials")).expect("the credentials");
        let value = |name: &str| {
            credentials
                .lines()
                .filter_map(|line| line.split_once('='))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_else(|| panic!("no {name} in the credentials"))
        };
        Self {
            child: Some(child),
            endpoint: format!("http://{}", doors["s3"].as_str().expect("the S3 door")),
            access_key: value("aws_access_key_id"),
            secret_key: value("aws_secret_access_key"),
            console: doors["console"].as_str().expect("the console").to_owned(),
            _directory: directory,
        }
    }

    /// What it holds now; nothing is known of one that ran already.
    fn held(&self) -> Held {
        let Some(child) = &self.child else {
            return Held::default();
        };
        let said = self.metrics();
        let value = |name: &str| {
            said.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(found, _)| *found == name)
                .map_or(0, |(_, value)| value.trim().parse().expect("a number"))
        };
        let kept: i64 = CACHES.into_iter().map(value).sum();
        let folder = format!("/proc/{}/fd", child.id());
        let (rings, files): (Vec<_>, Vec<_>) = std::fs::read_dir(folder)
            .expect("the server's files")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .filter(|target| !target.starts_with("socket:"))
            .partition(|target| target == "anon_inode:[io_uring]");
        Held {
            files: files.len(),
            rings: rings.len(),
            connections: value("forebay_connections"),
            buffers: value("forebay_buffer_in_use_bytes") - kept,
        }
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.console).expect("the console");
        let asked = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.console
        );
        stream.write_all(asked.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("\nforebay_connections "), "{answer}");
        assert!(
            answer.contains("\nforebay_buffer_in_use_bytes "),
            "{answer}"
        );
        answer
    }

    /// Waits until it holds no more than before its clients came.
    fn settled(&self, before: Held) {
        let spare = if backend_is_ceph() { SPARE_FILES } else { 0 };
        let begun = Instant::now();
        loop {
            let now = self.held();
            if now.files <= before.files + spare
                && now.rings <= before.rings + LATE_RINGS
                && now.connections <= before.connections
                && now.buffers <= before.buffers
            {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "the server holds {now:?}, and held {before:?} before its clients came"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs a test's clients against a server of its own, which in the end holds nothing for them: their connections end with the
/// runtime.
pub fn serve(clients: impl AsyncFnOnce(&Server)) {
    let server = Server::start();
    let before = server.held();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(clients(&server));
    drop(runtime);
    server.settled(before);
}

fn backend_is_ceph() -> bool {
    std::env::var("FOREBAY_INTEROP_BACKEND").as_deref() == Ok("rados")
}

fn backend() -> Vec<String> {
    if !backend_is_ceph() {
        return Vec::new();
    }
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    let (process, server) = (std::process::id(), SERVERS.fetch_add(1, Ordering::Relaxed));
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF names the configuration");
    vec![
        "--backend".to_owned(),
        format!("rados:forebay/rust-{process}-{server}"),
        "--ceph-conf".to_owned(),
        conf,
    ]
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `size` bytes that repeat nowhere, the same in every run.
pub fn data(size: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(size)
    .collect()
}
