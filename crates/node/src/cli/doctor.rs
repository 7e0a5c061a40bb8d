//! `forebay doctor`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_control::api;
use forebay_io::files::Directory;
use forebay_io::{Disk, OpenOptions as DiskOptions, kernel_tls, ring};
use forebay_mem::{HUGE_PAGE_BYTES, Region};
use http::Method;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::interrupt::Interrupt;
use super::server::ServerArgs;
use super::show;
use crate::exit::{Exit, Failure, Outcome};

/// fsyncs that are timed; few, because a slow disk takes 10 ms for each.
const SYNCS: u32 = 50;
/// Descriptors below which a busy server may run out.
const DESCRIPTORS_WANTED: u64 = 8192;

/// How long somebody else may take to answer one question.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check this machine and the server on it
#[derive(Debug, Args)]
#[command(after_help = "\
Writes and removes a small file where data is kept, and a value in a namespace of its own at the endpoint, by each path that works:
the table at the end says how fast that was. Fails when something would keep a server from working, and when no path leads to the server
that is asked for (by --endpoint, or --dir where a server has been) or runs here.
Examples:
  forebay doctor --dir /srv/forebay
  forebay doctor --endpoint http://10.0.0.7:9001 --json")]
pub struct DoctorArgs {
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Not there; nothing needs it.
    None,
    /// Works, but slower or shorter than it could.
    Warn,
    /// Keeps a server from working.
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    state: State,
    detail: String,
}

fn check(check: &'static str, state: State, detail: impl Into<String>) -> Check {
    Check {
        check,
        state,
        detail: detail.into(),
    }
}

/// Checks.
pub async fn run(args: DoctorArgs) -> Outcome {
    let mut interrupt = Interrupt::watch()?;
    let Found {
        failed,
        wanted,
        answers,
    } = interrupt.or(look(&args)).await?;
    let works = super::paths::show(&args.server, answers, PATIENCE, &mut interrupt).await?;
    match failed {
        0 if works || !wanted => Ok(()),
        0 => Err(Failure::new(Exit::Failed, "no path to the server works")),
        _ => Err(Failure::new(
            Exit::Failed,
            format_args!("{} failed", show::count(failed, "check")),
        )),
    }
}

/// What the checks came to, but for the paths.
struct Found {
    failed: usize,
    /// Whether there is to be a server.
    wanted: bool,
    /// Whether its S3 door answers.
    answers: bool,
}

async fn look(args: &DoctorArgs) -> Outcome<Found> {
    let mut failed = 0;
    let mut tell = |check: Check| {
        failed += usize::from(check.state == State::Fail);
        print(&check, args.server.json)
    };
    for check in [kernel, uring, tls, descriptors, memory_lock, huge_pages] {
        tell(check())?;
    }
    if !args.server.is_elsewhere() {
        let dir = existing(&args.server.dir());
        storage(&dir).into_iter().try_for_each(&mut tell)?;
    }
    tell(rdma())?;
    tell(gpu())?;
    let (running, door) = tokio::join!(
        in_time("server", running(&args.server)),
        in_time("S3 door", door(&args.server))
    );
    // Without one, and none asked for, this is a look at the machine. One that does not answer is there.
    let wanted = running.state != State::None || args.server.is_named();
    let answers = door.state == State::Ok;
    tell(running)?;
    tell(door)?;
    Ok(Found {
        failed,
        wanted,
        answers,
    })
}

fn print(check: &Check, json: bool) -> Outcome {
    if json {
        return show::json(check);
    }
    let state = match check.state {
        State::Ok => "ok",
        State::None => "-",
        State::Warn => "warn",
        State::Fail => "FAIL",
    };
    let detail = show::plain(&check.detail);
    show::line(&format!("{state:<5} {:<14} {detail}", check.check))
}

/// A check that asks somebody else, who may not answer.
async fn in_time(name: &'static str, asking: impl Future<Output = Check>) -> Check {
    let answered = tokio::time::timeout(PATIENCE, asking).await;
    answered.unwrap_or_else(|_| {
        let silence = format!("no answer within {} s", PATIENCE.as_secs());
        check(name, State::Warn, silence)
    })
}

/// The directory, or the nearest one above it that exists: data would go to its file system.
fn existing(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let found = absolute.ancestors().find(|path| path.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    check("kernel", State::Ok, release.trim())
}

fn uring() -> Check {
    // A ring belongs to a thread: this one ends with the check.
    let tried = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let _entered = runtime.enter();
        ring::install(ring::Config::default())
            .map(drop)
            .map_err(|error| error.to_string())
    });
    match tried.join() {
        Ok(Ok(())) => check("io_uring", State::Ok, "available"),
        Ok(Err(why)) => check(
            "io_uring",
            State::Warn,
            format!("{why}; the disk is reached by threads, at more CPU for each access"),
        ),
        Err(_) => check("io_uring", State::Warn, "the attempt panicked"),
    }
}

fn tls() -> Check {
    let offer = kernel_tls::offer();
    match offer.missing() {
        Some(why) if offer.ciphers().is_empty() => check(
            "kernel TLS",
            State::None,
            format!("{why}; TLS of links is made in the process (modprobe tls may bring it)"),
        ),
        _ => check(
            "kernel TLS",
            State::Ok,
            format!("{:?}, for links over TLS", offer.ciphers()),
        ),
    }
}

fn descriptors() -> Check {
    let limit = getrlimit(Resource::Nofile).maximum;
    let text = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    match limit {
        Some(limit) if limit < DESCRIPTORS_WANTED => check(
            "descriptors",
            State::Warn,
            format!("at most {text}; a busy server wants {DESCRIPTORS_WANTED} (ulimit -n)"),
        ),
        _ => check("descriptors", State::Ok, format!("at most {text}")),
    }
}

fn memory_lock() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let text = limit.map_or("unlimited".to_owned(), show::size);
    check(
        "locked memory",
        State::Ok,
        format!(
            "at most {text} (buffers registered with io_uring count where the kernel counts them)"
        ),
    )
}

/// Whether buffers, and memory that clients on this host share, lie on huge pages.
fn huge_pages() -> Check {
    let setting = "/sys/kernel/mm/transparent_hugepage/enabled";
    let chosen = fs::read_to_string(setting).unwrap_or_default();
    let mut small = Vec::new();
    if chosen.is_empty() || chosen.contains("[never]") {
        small.push(format!(
            "buffers (where root writes madvise into {setting}, they do)"
        ));
    }
    let shared = Region::memfd(HUGE_PAGE_BYTES);
    if !shared.is_ok_and(|memory| memory.take_huge_pages()) {
        small.push("shared memory (from Linux 6.1 on the system makes them on request)".to_owned());
    }
    match small.is_empty() {
        true => check("huge pages", State::Ok, "for buffers and shared memory"),
        false => check(
            "huge pages",
            State::Warn,
            format!(
                "not for {}: large values move slower",
                small.join(", nor for ")
            ),
        ),
    }
}

fn storage(dir: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    let name = format!(".forebay-doctor-{}", std::process::id());
    let disk = match Directory::open(dir) {
        Ok(disk) => disk,
        Err(error) => {
            return vec![check(
                "data directory",
                State::Fail,
                format!("{}: {error}", dir.display()),
            )];
        }
    };
    let options = DiskOptions {
        create: true,
        read_only: false,
        direct: true,
    };
    match disk.open(&name, options) {
        Err(error) => checks.push(check(
            "data directory",
            State::Fail,
            format!("{} cannot be written: {error}", dir.display()),
        )),
        Ok(file) => {
            checks.push(match disk.free_bytes() {
                Ok(free) if free < 1 << 30 => check(
                    "data directory",
                    State::Warn,
                    format!("{}: only {} free", dir.display(), show::size(free)),
                ),
                Ok(free) => check(
                    "data directory",
                    State::Ok,
                    format!("{}: {} free", dir.display(), show::size(free)),
                ),
                Err(error) => check("data directory", State::Warn, error.to_string()),
            });
            checks.push(match file.is_direct() {
                true => check("O_DIRECT", State::Ok, "the file system takes it"),
                false => check(
                    "O_DIRECT",
                    State::Warn,
                    "the file system refuses it; data goes through the page cache",
                ),
            });
            let path = dir.join(&name);
            checks.push(match time_syncs(&path) {
                Ok((median_us, worst_us)) => check(
                    "fsync",
                    State::Ok,
                    format!("4 KiB write and fdatasync: median {median_us} us, worst of {SYNCS} {worst_us} us"),
                ),
                Err(error) => check("fsync", State::Fail, error.to_string()),
            });
            if let Err(error) = fs::remove_file(&path) {
                checks.push(check(
                    "clean-up",
                    State::Warn,
                    format!("{}: {error}", path.display()),
                ));
            }
        }
    }
    checks
}

fn time_syncs(path: &Path) -> io::Result<(u128, u128)> {
    let mut file = OpenOptions::new().write(true).mode(0o600).open(path)?;
    file.write_all(&[0; 1 << 20])?;
    file.sync_all()?;
    let mut times: Vec<u128> = (0..SYNCS)
        .map(|index| {
            let begun = Instant::now();
            file.write_all_at(&[1; 4096], u64::from(index) * 4096)?;
            file.sync_data()?;
            Ok(begun.elapsed().as_micros())
        })
        .collect::<io::Result<_>>()?;
    times.sort_unstable();
    let worst = times.last().copied().unwrap_or(0);
    Ok((times[times.len() / 2], worst))
}

fn names_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn rdma() -> Check {
    let devices = names_in("/sys/class/infiniband");
    match devices.is_empty() {
        true => check("RDMA", State::None, "no device; RDMA goes over TCP (iWARP)"),
        false => check(
            "RDMA",
            State::None,
            format!(
                "{} present; this version does not use it",
                devices.join(", ")
            ),
        ),
    }
}

fn gpu() -> Check {
    let devices: Vec<String> = names_in("/dev")
        .into_iter()
        .filter(|name| {
            name.strip_prefix("nvidia").is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
            }) || name == "kfd"
        })
        .collect();
    match devices.is_empty() {
        true => check("GPU", State::None, "no device"),
        false => check(
            "GPU",
            State::None,
            format!(
                "/dev/{} present; this version does not place data in its memory",
                devices.join(", /dev/")
            ),
        ),
    }
}

async fn running(server: &ServerArgs) -> Check {
    let asked = server
        .ask::<api::Server>(Method::GET, &["server"], &())
        .await;
    match asked {
        Ok(running) => {
            let doors: Vec<String> = running
                .doors
                .iter()
                .map(|(door, address)| format!("{door} {address}"))
                .collect();
            check(
                "server",
                State::Ok,
                format!(
                    "forebay {} (pid {}), up {} s, {}, {} on {} shards; {}",
                    running.version,
                    running.pid,
                    running.uptime_s,
                    running.backend,
                    running.disk_io,
                    running.shards,
                    doors.join(", ")
                ),
            )
        }
        // Whoever sends us away is there.
        Err(failure) if failure.exit == Exit::Denied => {
            check("server", State::Warn, failure.message)
        }
        Err(failure) => check("server", State::None, failure.message),
    }
}

async fn door(server: &ServerArgs) -> Check {
    let listed = async {
        let client = server.client(1).await?;
        let endpoint = client.endpoint().to_string();
        if let Err(error) = super::probe::dial(client.endpoint()).await {
            return Ok(check(
                "S3 door",
                State::None,
                format!("{endpoint}: {error}"),
            ));
        }
        let namespaces = client.namespaces().await?;
        Ok::<_, Failure>(check(
            "S3 door",
            State::Ok,
            format!(
                "{endpoint} answers; {} namespaces are ours",
                namespaces.len()
            ),
        ))
    };
    match listed.await {
        Ok(check) => check,
        Err(failure) => check("S3 door", State::Warn, failure.message),
    }
}
