//! A private server for one measurement: this program's own `serve`, on free ports, over a new directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Error;

/// Whom a private server takes for its owner.
pub(crate) const ACCESS_KEY: &str = "BENCHBENCHBENCHBENCH";
pub(crate) const SECRET_KEY: &str = "bench-bench-bench-bench-bench-bench-bench";
/// How long the server may take to open its doors, and to close them.
const START_STOP: Duration = Duration::from_secs(20);

/// A server process and its directory; both go when it is dropped.
pub(crate) struct PrivateServer {
    child: Child,
    doors: BTreeMap<String, String>,
    _directory: TempDir,
}

impl PrivateServer {
    /// Starts one; its directory is made in `parent`. `cold`: it keeps no values in memory.
    pub(crate) fn start(parent: Option<&Path>, cold: bool) -> Result<PrivateServer, Error> {
        PrivateServer::start_with(parent, cold, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(
        parent: Option<&Path>,
        cold: bool,
        more: &[OsString],
    ) -> Result<PrivateServer, Error> {
        let directory = private_directory(parent)?;
        let ready = directory.path().join("ready");
        let program = std::env::current_exe().map_err(Error::io("find this program"))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(directory.path().join("data"))
            .args(["--s3", "127.0.0.1:0", "--console", "127.0.0.1:0"])
            .args(["--rpc", "127.0.0.1:0", "--direct", "127.0.0.1:0"])
            .args(["--nvme", "127.0.0.1:0"])
            .args(["--log-level", "warn"])
            .args(more)
            .arg("--ready-file")
            .arg(&ready)
            .env("FOREBAY_ACCESS_KEY", ACCESS_KEY)
            .env("FOREBAY_SECRET_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if cold {
            command.args(["--cache", "0"]);
        }
        let child = command.spawn().map_err(Error::io("start a server"))?;
        let mut server = PrivateServer {
            child,
            doors: BTreeMap::new(),
            _directory: directory,
        };
        server.doors = server.wait_for(&ready)?;
        Ok(server)
    }

    /// The address of an open door.
    pub(crate) fn door(&self, name: &str) -> Result<SocketAddr, Error> {
        let address = self.doors.get(name).and_then(|door| door.parse().ok());
        address.ok_or_else(|| Error::Server(format!("has opened no {name} door")))
    }

    /// Where a door is that has a path.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, Error> {
        let door = self.doors.get(name).map(PathBuf::from);
        door.ok_or_else(|| Error::Server(format!("has opened no {name} door")))
    }

    /// Payload that it has copied in memory so far, as it says itself.
    pub(crate) fn copied_bytes(&self) -> Result<u64, Error> {
        let console = self.door("console")?;
        let asked = || {
            let mut stream = TcpStream::connect(console)?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text: String = asked().map_err(Error::io("ask the server for its metrics"))?;
        let copied = text
            .lines()
            .filter(|line| line.starts_with("forebay_copied_bytes_total"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        Ok(copied.sum())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The open doors, from the ready file.
    fn wait_for(&mut self, ready: &Path) -> Result<BTreeMap<String, String>, Error> {
        let start = Instant::now();
        loop {
            if let Ok(text) = fs::read(ready) {
                return serde_json::from_slice(&text).map_err(|error| {
                    Error::Server(format!("has written a bad ready file: {error}"))
                });
            }
            if let Some(status) = self
                .child
                .try_wait()
                .map_err(Error::io("watch the server"))?
            {
                return Err(Error::Server(format!("ended at once: {status}")));
            }
            if start.elapsed() > START_STOP {
                return Err(Error::Server("did not open its doors".to_owned()));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Should it be gone already, there is nothing to end.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > START_STOP {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A new directory in `parent`, or in the system's directory for temporary files.
pub(crate) fn private_directory(parent: Option<&Path>) -> Result<TempDir, Error> {
    let mut name = tempfile::Builder::new();
    name.prefix("forebay-bench-");
    match parent {
        Some(parent) => name.tempdir_in(parent),
        None => name.tempdir(),
    }
    .map_err(Error::io("make a temporary directory"))
}
