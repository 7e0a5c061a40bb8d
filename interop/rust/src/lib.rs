//! The server under test, for Rust clients: the real binary in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the server may take to say that it is ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. Dropping it ends the process and removes its directory.
pub struct Server {
    child: Option<Child>,
    _directory: tempfile::TempDir,
    /// `http://` and the address of the S3 door.
    pub endpoint: String,
    /// Root access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

impl Server {
    /// Starts the binary that `FOREBAY_BIN` names, or takes `FOREBAY_INTEROP_ENDPOINT` as it is. With
    /// `FOREBAY_INTEROP_BACKEND=rados` its data lie in the Ceph of `CEPH_CONF`, in a place of their own.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        if let Ok(endpoint) = std::env::var("FOREBAY_INTEROP_ENDPOINT") {
            let test = || "test".to_owned();
            return Self {
                child: None,
                _directory: directory,
                endpoint,
                access_key: test(),
                secret_key: test(),
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
            _directory: directory,
        }
    }
}

fn backend() -> Vec<String> {
    if std::env::var("FOREBAY_INTEROP_BACKEND").as_deref() != Ok("rados") {
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
