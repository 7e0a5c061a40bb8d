//! A closed loop over NVMe/TCP or vfio-user: blocks and values of a namespace, each command begun when the one before it has ended;
//! and the same over an engine whose data lies on a namespace.

mod device;
mod engine;
mod tcp;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_nvme::initiator::{
    Address, NamespaceUrl, Options, Place, Scheme, SubsystemType, discover,
};

use crate::belongings::Folder;
use crate::bounds::sizes;
use crate::load::{About, Window, alone};
use crate::payload::Payload;
use crate::server::PrivateServer;
use crate::{Error, NvmeArgs, NvmeOp, NvmePath, Point, Results};

/// Bytes that the values of one size fill together, or the blocks that are used, unless their number is given.
const OBJECTS_BYTES: u64 = 256 << 20;
/// Most values by default.
const OBJECTS_MAX: u64 = 4096;
/// The largest size of value, in bytes: it moves with one command.
const SIZE_MAX: u64 = 128 << 20;
/// What a private server exports and publishes, and as which namespaces.
const NAME: &str = "bench-nvme";
const KEY_VALUE_NSID: u32 = 1;
const BLOCK_NSID: u32 = 2;
const ENGINE_NSID: u32 = 3;
/// Bytes of a block there.
const BLOCK_BYTES: u64 = 512;
/// The namespace for an engine, in bytes.
const ENGINE_BYTES: u64 = 1 << 30;

/// What to do.
#[derive(Clone)]
struct Load {
    payload: Arc<Payload>,
    op: NvmeOp,
    objects: u64,
    concurrency: usize,
    threads: usize,
    /// Over vfio-user it sleeps between completions.
    sleeps: bool,
}

/// The kind of namespace that it works on.
fn scheme(op: NvmeOp) -> Scheme {
    match op {
        NvmeOp::Read | NvmeOp::Write | NvmeOp::Get => Scheme::Block,
        NvmeOp::Store | NvmeOp::Retrieve => Scheme::KeyValue,
    }
}

/// Which namespaces to use, and how.
struct Target {
    block: Option<NamespaceUrl>,
    key_value: Option<NamespaceUrl>,
    /// One that nobody else uses, for an engine.
    engine: Option<NamespaceUrl>,
    options: Options,
    server_pid: Option<u32>,
}

impl Target {
    fn url(&self, scheme: Scheme) -> Result<NamespaceUrl, Error> {
        let (url, what) = match scheme {
            Scheme::Block => (&self.block, "nvme+tcp"),
            Scheme::KeyValue => (&self.key_value, "kv"),
        };
        let missing = || Error::Usage(format!("this operation needs an endpoint {what}://..."));
        url.clone().ok_or_else(missing)
    }
}

/// A server of our own, and what it serves.
struct Private {
    server: PrivateServer,
    /// Where it listens for clients of vfio-user.
    socket: PathBuf,
    _directory: Folder,
}

/// Measures a namespace: the one given, or those of a private server that lives as long as this call.
pub(crate) fn run(args: &NvmeArgs, results: &Results) -> Result<(), Error> {
    check(args)?;
    let options = Options {
        header_digest: args.header_digest,
        data_digest: args.data_digest,
        ..Options::default()
    };
    let (private, target) = match &args.endpoint {
        Some(url) => {
            let given = Some(url.clone());
            let (block, key_value) = match url.scheme {
                Scheme::Block => (given, None),
                Scheme::KeyValue => (None, given),
            };
            let target = Target {
                block,
                key_value,
                engine: None,
                options,
                server_pid: args.server_pid,
            };
            (None, target)
        }
        None => {
            let (private, target) = start(args, options)?;
            (Some(private), target)
        }
    };
    // Whatever cannot be done is told before anything is measured.
    for &op in &args.op {
        target.url(scheme(op))?;
    }
    for &op in &args.op {
        for &size in &args.size {
            let payload = Arc::new(Payload::new(size.0 as usize));
            for &concurrency in &args.concurrency {
                let load = plan(args, op, &payload, concurrency);
                measure(args, private.as_ref(), &target, load, results)?;
            }
        }
    }
    Ok(())
}

/// A server that exports a file and publishes a namespace.
fn start(args: &NvmeArgs, options: Options) -> Result<(Private, Target), Error> {
    let directory = Folder::new(args.dir.as_deref())?;
    let export = |name: &str, place: &OsStr, nsid: u32| {
        let mut export = OsString::from(format!("{name}="));
        export.push(place);
        export.push(format!(":{nsid}"));
        ["--export".into(), export]
    };
    let file = |name: &str| directory.path().join(name);
    let blocks = match args.blocks_in_memory {
        true => format!("memory:{OBJECTS_BYTES}").into(),
        false => {
            fill(&file("blocks")).map_err(Error::io("make a file to export"))?;
            file("blocks").into_os_string()
        }
    };
    File::create(file("empty"))
        .and_then(|file| file.set_len(ENGINE_BYTES))
        .map_err(Error::io("make a file to export"))?;
    let more: Vec<OsString> = [
        OsString::from("--nvme-namespace"),
        format!("{NAME}={KEY_VALUE_NSID}").into(),
        "--nvme-value".into(),
        "128MiB".into(),
        "--backend".into(),
        (&args.backend).into(),
        "--vfio-user".into(),
        directory.path().into(),
    ]
    .into_iter()
    .chain(export("blocks", &blocks, BLOCK_NSID))
    .chain(export("empty", file("empty").as_os_str(), ENGINE_NSID))
    .collect();
    let server = PrivateServer::start_with(args.dir.as_deref(), args.cold, &more)?;
    let address = server.door("nvme")?.to_string();
    let address: Address = address
        .parse()
        .map_err(|error| Error::Usage(format!("{error}")))?;
    let subsystem = subsystem(&address, &options)?;
    let url = |scheme, nsid| {
        let place = Place::Tcp {
            address: address.clone(),
            subsystem: subsystem.clone(),
        };
        Some(NamespaceUrl {
            scheme,
            place,
            nsid,
        })
    };
    let target = Target {
        block: url(Scheme::Block, BLOCK_NSID),
        key_value: url(Scheme::KeyValue, KEY_VALUE_NSID),
        engine: url(Scheme::Block, ENGINE_NSID),
        options,
        server_pid: Some(server.pid()),
    };
    if args.blocks_in_memory {
        tcp::fill_blocks(&target)?;
    }
    let private = Private {
        socket: server.path("vfio-user")?,
        server,
        _directory: directory,
    };
    Ok((private, target))
}

/// A file of bytes: holes would be read faster than what is there.
fn fill(file: &Path) -> io::Result<()> {
    let piece = Payload::new(1 << 20);
    let mut file = File::create(file)?;
    for _ in 0..OBJECTS_BYTES / piece.len() as u64 {
        file.write_all(piece.beginning())?;
        file.write_all(&Payload::stamp(0))?;
    }
    // A device that still writes this would be measured doing so.
    file.sync_all()
}

/// The only subsystem there.
fn subsystem(address: &Address, options: &Options) -> Result<String, Error> {
    let found = alone(async {
        discover(address.clone(), options.clone())
            .await
            .map_err(refused("discovery"))
    })?;
    found
        .into_iter()
        .find(|found| found.kind == SubsystemType::Nvm)
        .map(|found| found.subnqn)
        .ok_or_else(|| Error::Server("shows no subsystem".to_owned()))
}

/// The way that commands take.
fn way(args: &NvmeArgs) -> NvmePath {
    match &args.endpoint {
        Some(url) if matches!(url.place, Place::Socket(_)) => NvmePath::VfioUser,
        _ => args.path,
    }
}

fn check(args: &NvmeArgs) -> Result<(), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    sizes(&args.size, 1..=SIZE_MAX)?;
    let vfio_user = args.path == NvmePath::VfioUser;
    if way(args) == NvmePath::VfioUser && (args.header_digest || args.data_digest) {
        return usage("digests are of TCP");
    }
    if args.endpoint.is_some() && (vfio_user || args.op.contains(&NvmeOp::Get)) {
        return usage("get, and --path vfio-user, are measured with a private server alone");
    }
    if args.endpoint.is_some() && args.op.contains(&NvmeOp::Write) && !args.overwrite {
        return usage("blocks of an endpoint are written only with --overwrite");
    }
    if vfio_user {
        let most = device::DEPTH_MAX;
        if args.concurrency.iter().any(|depth| *depth > most) {
            return usage(&format!(
                "over vfio-user at most {most} commands are in flight"
            ));
        }
        if args.op.contains(&NvmeOp::Get) {
            return usage("an engine reaches its namespace by TCP");
        }
        let whole = |size: u64| size.is_multiple_of(BLOCK_BYTES) && size <= OBJECTS_BYTES;
        let blocks = [NvmeOp::Read, NvmeOp::Write];
        if args.op.iter().any(|op| blocks.contains(op))
            && !args.size.iter().all(|size| whole(size.0))
        {
            return usage("the namespace moves multiples of 512 bytes, 256 MiB at most");
        }
    }
    Ok(())
}

/// What there is to do of one combination.
fn plan(args: &NvmeArgs, op: NvmeOp, payload: &Arc<Payload>, concurrency: usize) -> Load {
    let size = payload.len() as u64;
    let objects = args.objects.unwrap_or_else(|| match op {
        NvmeOp::Read | NvmeOp::Write | NvmeOp::Get => (OBJECTS_BYTES / size).max(1),
        NvmeOp::Store | NvmeOp::Retrieve => {
            let fitting = (OBJECTS_BYTES / size).clamp(1, OBJECTS_MAX);
            // Each command in flight stores values of its own.
            fitting.max(concurrency as u64)
        }
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores / 2).clamp(1, concurrency);
    Load {
        payload: payload.clone(),
        op,
        objects,
        concurrency,
        threads,
        sleeps: args.sleep,
    }
}

fn measure(
    args: &NvmeArgs,
    private: Option<&Private>,
    target: &Target,
    load: Load,
    results: &Results,
) -> Result<(), Error> {
    if let (NvmeOp::Get, Some(url)) = (load.op, &target.engine) {
        let gets = engine::Gets {
            url: url.clone(),
            options: target.options.clone(),
            dir: args.dir.clone(),
            load,
            warm_up: args.warm_up.0,
            window: args.seconds.0,
            server_pid: target.server_pid,
        };
        return engine::run(gets, results);
    }
    let window = || Window::after(args.warm_up.0, args.seconds.0);
    let copied = || {
        private
            .map(|private| private.server.copied_bytes())
            .transpose()
    };
    let copied_before;
    let tally = match (args.path, private) {
        (NvmePath::VfioUser, Some(private)) => {
            device::prepare(&load, &private.socket)?;
            copied_before = copied()?;
            device::run(&load, &private.socket, target.server_pid, window())?
        }
        _ => {
            tcp::prepare(&load, target)?;
            copied_before = copied()?;
            tcp::run(&load, target, window())?
        }
    };
    let copied_bytes = copied_before
        .zip(copied()?)
        .map(|(before, now)| now.saturating_sub(before));
    let point = tally.point(About {
        bench: "nvme",
        op: load.op.name(),
        size: load.payload.len() as u64,
        concurrency: load.concurrency,
        path: way(args).name(),
    });
    results.add(Point {
        copied_bytes,
        ..point
    });
    Ok(())
}

/// The key of a value, of 16 bytes at most: its size and its number.
fn key(size: usize, object: u64) -> Vec<u8> {
    format!("{size:x}/{object:x}").into_bytes()
}

fn refused(what: &str) -> impl FnOnce(forebay_nvme::initiator::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::Protocol {
        what,
        reason: error.to_string(),
    }
}
