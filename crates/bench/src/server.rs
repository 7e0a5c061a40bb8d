//! A private server for one measurement: this program's own `serve`, on free ports, over a new directory.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::s3::Target;
use crate::{Error, S3Args};

const ACCESS_KEY: &str = "BENCHBENCHBENCHBENCH";
const SECRET_KEY: &str = "bench-bench-bench-bench-bench-bench-bench";
/// How long the server may take to open its doors, and to close them.
const START_STOP: Duration = Duration::from_secs(20);

/// A server process and its directory; both go when it is dropped.
pub(crate) struct PrivateServer {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl PrivateServer {
    pub(crate) fn start(args: &S3Args) -> Result<PrivateServer, Error> {
        let directory = private_directory(args.dir.as_deref())?;
        let ready = directory.path().join("ready");
        let program = std::env::current_exe().map_err(Error::io("find this program"))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(directory.path().join("data"))
            .args(["--s3", "127.0.0.1:0", "--console", "127.0.0.1:0"])
            .args(["--log-level", "warn"])
            .arg("--ready-file")
            .arg(&ready)
            .env("FOREBAY_ACCESS_KEY", ACCESS_KEY)
            .env("FOREBAY_SECRET_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if args.cold {
            command.args(["--cache", "0"]);
        }
        let child = command.spawn().map_err(Error::io("start a server"))?;
        let mut server = PrivateServer {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            _directory: directory,
        };
        server.address = server.wait_for(&ready)?;
        Ok(server)
    }

    pub(crate) fn target(&self, args: &S3Args) -> Target {
        Target {
            address: self.address,
            host: self.address.to_string(),
            bucket: args.bucket.clone(),
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            region: args.region.clone(),
            server_pid: Some(self.child.id()),
        }
    }

    /// The address of the S3 door, from the ready file.
    fn wait_for(&mut self, ready: &Path) -> Result<SocketAddr, Error> {
        let start = Instant::now();
        loop {
            if let Ok(text) = fs::read(ready) {
                return serde_json::from_slice::<serde_json::Value>(&text)
                    .ok()
                    .and_then(|doors| doors.get("s3")?.as_str()?.parse().ok())
                    .ok_or_else(|| {
                        Error::Server("has written a ready file without an S3 door".to_owned())
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
