//! The binary as a user runs it: a server over a directory of its own, and commands that speak to it.
#![expect(dead_code, reason = "each test file uses its part")]

pub mod s3;
#[path = "../../../mem/tests/skipping/mod.rs"]
pub mod skipping;

use std::array;
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_client::{Client, Config, Credentials, PutOptions, transfer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// The program under test.
pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    // What the caller's shell says must not reach a test.
    for name in [
        "FOREBAY_ENDPOINT",
        "FOREBAY_ACCESS_KEY",
        "FOREBAY_SECRET_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_PROFILE",
        "AWS_REGION",
    ] {
        command.env_remove(name);
    }
    command
}

/// Status and body of a GET over a connection of its own.
fn asked(mut door: impl Read + Write, path: &str) -> (u16, String) {
    write!(
        door,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    door.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// What a benchmark tells of each point, measured until something ended within the window of every one: on a busy machine a write may
/// take longer than a short window.
pub fn measured(run: impl Fn(&str) -> Ran) -> Vec<Value> {
    let points = |seconds| -> Vec<Value> {
        let ran = run(seconds);
        let too_short = ran.code == Some(1) && ran.err.contains("give more --seconds");
        assert!(too_short || ran.code == Some(0), "{ran:?}");
        let points = ran.out.lines().map(serde_json::from_str);
        points.collect::<Result<_, _>>().unwrap()
    };
    let is_whole = |points: &Vec<Value>| {
        let mut rates = points.iter().map(|point| point["ops_per_s"].as_f64());
        rates.all(|rate| rate.unwrap() > 0.0)
    };
    let mut runs = ["0.2", "2", "20"].into_iter().map(points);
    runs.find(is_whole).expect("something ends within 20 s")
}

/// A port where nobody listens, as long as this is kept: one that is let go of is another test's next.
pub fn closed() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

/// Addresses for a server that ends and comes back to them: of ports that the system gives nobody who asks for any one, so that nobody
/// has them meanwhile.
pub fn returning<const N: usize>() -> [String; N] {
    let mut port = RandomState::new().build_hasher().finish();
    array::from_fn(|_| {
        loop {
            port = port.wrapping_add(1);
            let address = ("127.0.0.1", 10_000 + (port % 10_000) as u16);
            if let Ok(listener) = TcpListener::bind(address) {
                break listener.local_addr().unwrap().to_string();
            }
        }
    })
}

/// A directory for data, files and logs.
pub struct Place {
    root: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let root = tempfile::Builder::new()
            .prefix("forebay-test-")
            .tempdir()
            .unwrap();
        Place { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Starts a server over this place's data and waits until its doors are open.
    pub fn serve(&self, flags: &[&str]) -> Server {
        self.serve_with(flags, |_| {})
    }

    pub fn serve_with(&self, flags: &[&str], set: impl FnOnce(&mut Command)) -> Server {
        self.try_serve_with(flags, set).unwrap_or_else(|ran| {
            panic!("the server ended: {:?}\n{}\n{}", ran.code, ran.out, ran.err)
        })
    }

    /// The same, or what a server said that ended before its doors were open.
    pub fn try_serve(&self, flags: &[&str]) -> Result<Server, Ran> {
        self.try_serve_with(flags, |_| {})
    }

    pub fn try_serve_with(
        &self,
        flags: &[&str],
        set: impl FnOnce(&mut Command),
    ) -> Result<Server, Ran> {
        let ready = self.path("ready.json");
        let mut command = self.serve_command(flags);
        set(&mut command);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let said_before = self.log().len();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut welcome = String::new();
        // The welcome comes after the doors; its end is the end of the commands to try, which speak S3.
        let last = match flags.contains(&"--no-s3") {
            true => ("disk I/O", "\n"),
            false => ("Try,", "\n\n"),
        };
        while !welcome.contains(last.0) || !welcome.ends_with(last.1) {
            if output.read_line(&mut welcome).unwrap() == 0 {
                return Err(Ran {
                    code: child.wait().unwrap().code(),
                    bytes: welcome.clone().into_bytes(),
                    out: welcome,
                    err: self.log().split_off(said_before),
                });
            }
        }
        let doors = serde_json::from_slice(&std::fs::read(&ready).unwrap()).unwrap();
        Ok(Server {
            child,
            doors,
            welcome,
            dir: self.data(),
            _output: output,
        })
    }

    pub fn serve_command(&self, flags: &[&str]) -> Command {
        let mut command = forebay();
        command
            .arg("serve")
            .arg(self.data())
            .arg("--ready-file")
            .arg(self.path("ready.json"))
            .args(["--memory", "64MiB"])
            .args(flags)
            .stdin(Stdio::null());
        if !flags.contains(&"--no-s3") {
            command.args(["--s3-etag", "crc64nvme"]);
        }
        for door in ["--s3", "--rpc", "--direct", "--console", "--nvme"] {
            if !flags.contains(&door) {
                command.args([door, "127.0.0.1:0"]);
            }
        }
        command
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    pub doors: BTreeMap<String, String>,
    pub welcome: String,
    dir: PathBuf,
    _output: BufReader<ChildStdout>,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn s3(&self) -> String {
        format!("http://{}", self.doors["s3"])
    }

    pub fn rpc(&self) -> String {
        format!("http://{}", self.doors["rpc"])
    }

    pub fn credentials(&self) -> Credentials {
        Credentials::from_file(&self.dir.join("credentials"), "default")
            .unwrap()
            .0
    }

    /// A client of the root tenant, or of the pair given.
    pub fn client(&self) -> Client {
        self.client_as(self.credentials())
    }

    pub fn client_as(&self, credentials: Credentials) -> Client {
        Client::new(Config::new(self.s3().parse().unwrap(), credentials)).unwrap()
    }

    /// Runs a command against this server.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, |_| {})
    }

    pub fn run_with(&self, arguments: &[&str], set: impl FnOnce(&mut Command)) -> Ran {
        let mut command = forebay();
        command.args(arguments).arg("--dir").arg(&self.dir);
        set(&mut command);
        Ran::new(command.stdin(Stdio::null()).output().unwrap())
    }

    /// The same with bytes on standard input.
    pub fn run_on(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = forebay()
            .args(arguments)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // The command may end without reading all of it.
            scope.spawn(move || stdin.write_all(input));
            Ran::new(child.wait_with_output().unwrap())
        })
    }

    /// What a command printed, when it succeeded.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).expect(0).out
    }

    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let out = self.ok(&[arguments, &["--json"]].concat());
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The row of `forebay top` for a path, once it shows something of each of these: on a busy machine a look may fall between two.
    #[track_caller]
    pub fn top(&self, path: &str, shows: &[&str]) -> serde_json::Value {
        let mut rows = Vec::new();
        for _ in 0..60 {
            rows = self.json(&["top", "--once", "--interval", "0.5"]);
            let row = rows.iter().find(|row| row["path"] == path);
            let shown = |row: &serde_json::Value| {
                let more = |name: &&str| row[*name].as_f64().is_some_and(|rate| rate > 0.0);
                shows.iter().all(more)
            };
            if let Some(row) = row.filter(|row| shown(row)) {
                return row.clone();
            }
        }
        panic!("{path}: {rows:?}");
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }

    /// Waits for a server that was told to end.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Status and body of a GET at the console.
    pub fn console(&self, path: &str) -> (u16, String) {
        asked(TcpStream::connect(&self.doors["console"]).unwrap(), path)
    }

    /// The links that it serves, as `forebay top` sees them.
    pub fn links(&self) -> Vec<Value> {
        let (_, body) = asked(
            UnixStream::connect(&self.doors["admin"]).unwrap(),
            "/v1/live",
        );
        let live: Value = serde_json::from_str(&body).unwrap();
        live["links"].as_array().unwrap().clone()
    }

    /// One number of the metrics page: of the first sample whose line begins so.
    #[track_caller]
    pub fn metric(&self, begins: &str) -> u64 {
        let (_, page) = self.console("/metrics");
        let line = page.lines().find(|line| line.starts_with(begins));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {begins} in\n{page}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub bytes: Vec<u8>,
    pub err: String,
}

impl Ran {
    /// Of another user, whom only root can become; `None`, with that told, where the program itself lies where that user may not look.
    pub fn of_user(mut command: Command, uid: u32) -> Option<Ran> {
        match command.uid(uid).gid(uid).output() {
            Ok(output) => Some(Ran::new(output)),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
                skipping::skip("another user may not look where the program lies");
                None
            }
        }
    }

    pub fn new(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            bytes: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// Sends the first part of a file as `forebay cp` does, and is cut off; the id of the upload that stays.
pub async fn cut_off(client: &Client, file: &Path, to: (&str, &str), part_bytes: usize) -> String {
    let options = transfer::Options {
        part_bytes: Some(part_bytes as u64),
        parallel: 1,
        // With one part in flight nothing else is on its way now.
        progress: Arc::new(|_| std::panic::resume_unwind(Box::new("cut off"))),
        ..transfer::Options::default()
    };
    let before = client.uploads(to.0, to.1).await.unwrap();
    let (sending, file) = (client.clone(), file.to_owned());
    let (namespace, key) = (to.0.to_owned(), to.1.to_owned());
    let sent = tokio::spawn(async move {
        let put = PutOptions::default();
        transfer::upload_file(&sending, &namespace, &key, &file, &put, &options).await
    });
    sent.await.expect_err("it is cut off");
    let mut uploads = client.uploads(to.0, to.1).await.unwrap();
    uploads.retain(|upload| !before.contains(upload));
    uploads.pop().unwrap().id
}

/// Bytes that look random and are the same for the same seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Relative paths and contents of all files below a folder.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(root).unwrap().to_owned();
                files.insert(relative, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Waits for what must come soon: the server counts and cleans up after its answers.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// Says that it is done when it is dropped, by a panic, too.
pub struct Done<'a>(pub &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
