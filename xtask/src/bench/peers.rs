//! The servers that are measured: ours and those of others, each on loopback with a directory of its own.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::measure::Bench;
use crate::bench::{ceph, nvme, redis};
use crate::tool::{command, output, run};

/// Everybody's access key.
pub const ACCESS_KEY: &str = "GK0123456789abcdef01234567";
/// Its secret.
pub const SECRET_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const READY: Duration = Duration::from_secs(60);

/// A running server with an S3 door; it ends when this is dropped.
pub struct Server {
    /// What tables call it.
    pub name: &'static str,
    /// Its version, as it says itself.
    pub version: String,
    /// `http://HOST:PORT`.
    pub endpoint: String,
    /// Ours: the gRPC door, `http://HOST:PORT`.
    pub rpc: Option<String>,
    /// Ours: the console, `HOST:PORT`.
    pub console: Option<String>,
    /// Access key and secret.
    pub keys: [String; 2],
    /// Whose CPU time is told.
    pub pid: u32,
    /// None of a server that goes with something else.
    pub child: Option<Child>,
}

/// Starts a peer; none when it is not installed.
type Start = fn(&Bench) -> Result<Option<Server>>;

/// The peers that are servers, by the names that tables have.
pub const ALL: [(&str, Start); 9] = [
    ("SeaweedFS", seaweedfs),
    ("s3s-fs", s3s),
    ("Garage", garage),
    (redis::DEFAULTS, redis::defaults),
    (redis::ALWAYS, redis::always),
    (nvme::NBDKIT, nvme::nbdkit),
    (ceph::GATEWAY, ceph::gateway),
    (ceph::CACHED, ceph::cached_gateway),
    (ceph::RGW, ceph::rgw),
];

impl Server {
    /// Arguments that point `forebay bench s3` at it.
    pub fn arguments(&self) -> [String; 8] {
        self.arguments_for(&self.endpoint)
    }

    /// Arguments that point `forebay bench direct` at it.
    pub fn direct_arguments(&self) -> [String; 8] {
        self.arguments_for(self.rpc.as_deref().unwrap_or_default())
    }

    fn ended(&mut self) -> Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_some()),
            None => Ok(false),
        }
    }

    fn arguments_for(&self, endpoint: &str) -> [String; 8] {
        let pid = self.pid.to_string();
        let [access_key, secret_key] = &self.keys;
        [
            "--endpoint",
            endpoint,
            "--server-pid",
            &pid,
            "--access-key",
            access_key,
            "--secret-key",
            secret_key,
        ]
        .map(str::to_owned)
    }
}

impl Server {
    /// Has it end by itself.
    pub fn end(mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            run(command("kill").arg(child.id().to_string()))?;
            let ended = child.wait()?;
            anyhow::ensure!(ended.success(), "{} ended with {ended}", self.name);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ours, with its defaults but for these flags, over a folder of its own.
pub fn forebay(bench: &Bench, folder: &str, name: &'static str, flags: &[&str]) -> Result<Server> {
    let ready = bench.folder.join(format!("{folder}.ready"));
    let folder = bench.folder.join(folder);
    let child = quiet(
        bench
            .command(&bench.binary)
            .arg("serve")
            .arg(&folder)
            .args(["--s3", "127.0.0.1:0", "--rpc", "127.0.0.1:0"])
            .args(["--direct", "127.0.0.1:0", "--console", "127.0.0.1:0"])
            .args(["--nvme", "127.0.0.1:0"])
            .args(flags)
            .arg("--ready-file")
            .arg(&ready)
            .env("FOREBAY_ACCESS_KEY", ACCESS_KEY)
            .env("FOREBAY_SECRET_KEY", SECRET_KEY),
    )?;
    let mut server = Server {
        name,
        version: first_line(&bench.binary, &["--version"]),
        endpoint: String::new(),
        rpc: None,
        console: None,
        keys: [ACCESS_KEY, SECRET_KEY].map(str::to_owned),
        pid: child.id(),
        child: Some(child),
    };
    let begun = Instant::now();
    while !ready.exists() {
        if begun.elapsed() > READY || server.ended()? {
            bail!("forebay serve does not come up");
        }
        sleep(Duration::from_millis(10));
    }
    let doors: serde_json::Value = serde_json::from_slice(&std::fs::read(&ready)?)?;
    let door = |name: &str| doors[name].as_str().map(str::to_owned);
    server.endpoint = format!("http://{}", door("s3").context("no S3 door")?);
    server.rpc = door("rpc").map(|address| format!("http://{address}"));
    server.console = door("console");
    Ok(server)
}

/// SeaweedFS with master, volume, filer and S3 in one process, and its defaults (it does not sync).
pub fn seaweedfs(bench: &Bench) -> Result<Option<Server>> {
    let Some(program) = bench.find("weed") else {
        return Ok(None);
    };
    let folder = bench.folder.join("seaweedfs");
    std::fs::create_dir_all(&folder)?;
    let identities = bench.folder.join("seaweedfs.json");
    let text = serde_json::json!({"identities": [{
        "name": "bench",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }]});
    std::fs::write(&identities, text.to_string())?;
    let [master, volume, filer, s3] = ports_with_gaps()?;
    let child = quiet(
        bench
            .command(&program)
            .arg("server")
            .arg(format!("-dir={}", folder.display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-s3.port={s3}"))
            // Doors that are not measured and whose ports are fixed.
            .args(["-s3.port.lance=0", "-s3.port.iceberg=0"])
            .arg(format!("-s3.config={}", identities.display()))
            .args(["-volume.max=20", "-master.volumeSizeLimitMB=1024"]),
    )?;
    listening("SeaweedFS", s3, child, first_line(&program, &["version"])).map(Some)
}

/// s3s-fs: files in a folder behind the s3s crate (it does not sync).
pub fn s3s(bench: &Bench) -> Result<Option<Server>> {
    let Some(program) = bench.find("s3s-fs") else {
        return Ok(None);
    };
    let folder = bench.folder.join("s3s");
    std::fs::create_dir_all(&folder)?;
    let [port] = ports()?;
    let child = quiet(
        bench
            .command(&program)
            .args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY])
            .args(["--host", "127.0.0.1", "--port"])
            .arg(port.to_string())
            .arg(&folder),
    )?;
    listening("s3s-fs", port, child, first_line(&program, &["--version"])).map(Some)
}

/// Garage as one node with its defaults (it does not sync), but without compression, which random bytes do not repay.
pub fn garage(bench: &Bench) -> Result<Option<Server>> {
    let Some(program) = bench.find("garage") else {
        return Ok(None);
    };
    let folder = bench.folder.join("garage");
    std::fs::create_dir_all(&folder)?;
    let config = bench.folder.join("garage.toml");
    let [rpc, s3] = ports()?;
    let text = format!(
        "metadata_dir = \"{0}/meta\"\ndata_dir = \"{0}/data\"\ndb_engine = \"lmdb\"\n\
         replication_factor = 1\ncompression_level = \"none\"\n\
         rpc_bind_addr = \"127.0.0.1:{rpc}\"\nrpc_public_addr = \"127.0.0.1:{rpc}\"\n\
         rpc_secret = \"1799bccfd7411eddcf9ebd316bc1f5287ad12a68094e1c6ac6abde7e6feae1ec\"\n\
         [s3_api]\ns3_region = \"us-east-1\"\napi_bind_addr = \"127.0.0.1:{s3}\"\n\
         root_domain = \".s3.localhost\"\n",
        folder.display()
    );
    std::fs::write(&config, text)?;
    let garage = |arguments: &[&str]| {
        let mut command = bench.command(&program);
        command.arg("-c").arg(&config).args(arguments);
        command.stderr(Stdio::null());
        command
    };
    let child = quiet(&mut garage(&["server"]))?;
    let version = first_line(&program, &["--version"]);
    let server = listening("Garage", s3, child, version)?;
    let node = output(&mut garage(&["node", "id", "-q"]))?;
    let node = node.trim().split('@').next().unwrap_or_default().to_owned();
    let silent = |arguments: &[&str]| run(garage(arguments).stdout(Stdio::null()));
    silent(&["layout", "assign", "-z", "dc1", "-c", "100G", &node])?;
    silent(&["layout", "apply", "--version", "1"])?;
    silent(&[
        "key", "import", "--yes", "-n", "bench", ACCESS_KEY, SECRET_KEY,
    ])?;
    silent(&["key", "allow", "--create-bucket", ACCESS_KEY])?;
    Ok(Some(server))
}

/// Starts with its output nowhere: a full disk of logs would be measured too.
pub fn quiet(command: &mut std::process::Command) -> Result<Child> {
    let shown = format!("{command:?}");
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))
}

/// Waits until it takes connections on this port of loopback.
pub fn listening(name: &'static str, port: u16, child: Child, version: String) -> Result<Server> {
    let mut server = Server {
        name,
        version,
        endpoint: format!("http://127.0.0.1:{port}"),
        rpc: None,
        console: None,
        keys: [ACCESS_KEY, SECRET_KEY].map(str::to_owned),
        pid: child.id(),
        child: Some(child),
    };
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > READY || server.ended()? {
            bail!("{name} does not come up");
        }
        sleep(Duration::from_millis(50));
    }
    // Some open their door before what is behind it is up.
    sleep(Duration::from_secs(5));
    Ok(server)
}

/// Ports that were free a moment ago.
pub fn ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// Free ports whose partners 10000 above, which SeaweedFS takes for gRPC, are free as well.
fn ports_with_gaps() -> Result<[u16; 4]> {
    let free = |port: &u16| {
        [*port, port + 10_000]
            .iter()
            .all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
    };
    let found: Vec<u16> = (19_000..22_000).filter(free).take(4).collect();
    found.try_into().ok().context("no free ports")
}

/// The first line that a program prints.
pub fn first_line(program: &Path, arguments: &[&str]) -> String {
    let text = output(command(program).args(arguments)).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

impl Bench {
    /// A program from the folders for peers or the PATH.
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.search
            .iter()
            .cloned()
            .chain(std::env::split_paths(&path))
            .map(|folder| folder.join(program))
            .find(|path| path.is_file())
            // Links are kept: some programs do what they are called.
            .and_then(|path| std::path::absolute(path).ok())
    }
}
