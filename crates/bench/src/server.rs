//! A private server for one measurement: this program's own `serve`, on free ports, over a new directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::Error;
use crate::belongings::{Folder, Server};

/// Whom a private server takes for its owner.
pub(crate) const ACCESS_KEY: &str = "BENCHBENCHBENCHBENCH";
pub(crate) const SECRET_KEY: &str = "bench-bench-bench-bench-bench-bench-bench";
/// How long the server may take to open its doors.
const START: Duration = Duration::from_secs(20);

/// A server process and then its directory go when it is dropped.
pub(crate) struct PrivateServer {
    process: Server,
    doors: BTreeMap<String, String>,
    _directory: Folder,
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
        let directory = Folder::new(parent)?;
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
        let mut server = PrivateServer {
            process: Server::start(&mut command)?,
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
        self.process.pid()
    }

    /// The open doors, from the ready file.
    fn wait_for(&self, ready: &Path) -> Result<BTreeMap<String, String>, Error> {
        let start = Instant::now();
        loop {
            if let Ok(text) = fs::read(ready) {
                return serde_json::from_slice(&text).map_err(|error| {
                    Error::Server(format!("has written a bad ready file: {error}"))
                });
            }
            let ended = self.process.ended();
            if let Some(status) = ended.map_err(Error::io("watch the server"))? {
                return Err(Error::Server(format!("ended at once: {status}")));
            }
            if start.elapsed() > START {
                return Err(Error::Server("did not open its doors".to_owned()));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
