//! A closed loop over NVMe/TCP: blocks and values of a namespace, each command begun when the one before it has ended.

mod load;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use forebay_nvme::initiator::{Address, DiscoveredKind, NamespaceUrl, Options, Scheme, discover};

use crate::payload::Payload;
use crate::server::{PrivateServer, private_directory};
use crate::{Error, NvmeArgs, NvmeOp, Point};
use load::Load;

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

/// Which namespaces to use, and how.
struct Target {
    block: Option<NamespaceUrl>,
    key_value: Option<NamespaceUrl>,
    options: Options,
    server_pid: Option<u32>,
    overwrite: bool,
}

impl Target {
    fn url(&self, scheme: Scheme) -> Result<&NamespaceUrl, Error> {
        let (url, what) = match scheme {
            Scheme::Block => (&self.block, "nvme+tcp"),
            Scheme::KeyValue => (&self.key_value, "kv"),
        };
        url.as_ref()
            .ok_or_else(|| Error::Usage(format!("this operation needs an endpoint {what}://...")))
    }
}

/// Measures a namespace: the one given, or those of a private server that lives as long as this call.
pub(crate) fn run(args: &NvmeArgs) -> Result<Vec<Point>, Error> {
    check(args)?;
    let options = Options {
        header_digest: args.header_digest,
        data_digest: args.data_digest,
        ..Options::default()
    };
    let (server, directory);
    let target = match &args.endpoint {
        Some(url) => {
            let given = Some(url.clone());
            let (block, key_value) = match url.scheme {
                Scheme::Block => (given, None),
                Scheme::KeyValue => (None, given),
            };
            Target {
                block,
                key_value,
                options,
                server_pid: args.server_pid,
                overwrite: args.overwrite,
            }
        }
        None => {
            directory = private_directory(args.dir.as_deref())?;
            let file = directory.path().join("blocks");
            fill(&file).map_err(Error::io("make a file to export"))?;
            let mut export = OsString::from(format!("{NAME}="));
            export.push(&file);
            export.push(format!(":{BLOCK_NSID}"));
            let more = [
                OsString::from("--nvme-namespace"),
                format!("{NAME}={KEY_VALUE_NSID}").into(),
                "--nvme-value".into(),
                "128MiB".into(),
                "--export".into(),
                export,
            ];
            server = PrivateServer::start_with(args.dir.as_deref(), args.cold, &more)?;
            let address = server.door("nvme")?.to_string();
            let address: Address = address
                .parse()
                .map_err(|error| Error::Usage(format!("{error}")))?;
            let subsystem = subsystem(&address, &options)?;
            let url = |scheme, nsid| {
                Some(NamespaceUrl {
                    scheme,
                    address: address.clone(),
                    subsystem: subsystem.clone(),
                    nsid,
                })
            };
            Target {
                block: url(Scheme::Block, BLOCK_NSID),
                key_value: url(Scheme::KeyValue, KEY_VALUE_NSID),
                options,
                server_pid: Some(server.pid()),
                overwrite: true,
            }
        }
    };
    let mut points = Vec::new();
    for &op in &args.op {
        for &size in &args.size {
            let payload = Payload::new(size.0 as usize);
            for &concurrency in &args.concurrency {
                points.push(measure(args, &target, op, &payload, concurrency)?);
            }
        }
    }
    Ok(points)
}

/// A file of bytes: holes would be read faster than what is there.
fn fill(file: &Path) -> io::Result<()> {
    let piece = Payload::new(1 << 20);
    let mut file = File::create(file)?;
    for _ in 0..OBJECTS_BYTES / piece.len() as u64 {
        file.write_all(piece.beginning())?;
        file.write_all(&Payload::stamp(0))?;
    }
    Ok(())
}

/// The only subsystem there.
fn subsystem(address: &Address, options: &Options) -> Result<String, Error> {
    let found = load::alone(async {
        discover(address.clone(), options.clone())
            .await
            .map_err(refused("discovery"))
    })?;
    found
        .into_iter()
        .find(|found| found.kind == DiscoveredKind::Nvm)
        .map(|found| found.subsystem)
        .ok_or_else(|| Error::Server("shows no subsystem".to_owned()))
}

fn check(args: &NvmeArgs) -> Result<(), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    if args
        .size
        .iter()
        .any(|size| size.0 > SIZE_MAX || size.0 == 0)
    {
        return usage("values have 1 byte to 128 MiB");
    }
    if args.concurrency.contains(&0) || args.threads == Some(0) || args.objects == Some(0) {
        return usage("concurrency, threads and objects must be at least 1");
    }
    let seconds = |value: f64| Duration::try_from_secs_f64(value).is_ok() && value < 1e6;
    if !seconds(args.seconds) || !seconds(args.warm_up) || args.seconds == 0.0 {
        return usage("the seconds are not a length of time");
    }
    Ok(())
}

fn measure(
    args: &NvmeArgs,
    target: &Target,
    op: NvmeOp,
    payload: &Payload,
    concurrency: usize,
) -> Result<Point, Error> {
    let size = payload.len() as u64;
    let objects = args.objects.unwrap_or_else(|| match op {
        NvmeOp::Read | NvmeOp::Write => (OBJECTS_BYTES / size).max(1),
        NvmeOp::Store | NvmeOp::Retrieve => {
            let fitting = (OBJECTS_BYTES / size).clamp(1, OBJECTS_MAX);
            // Each command in flight stores values of its own.
            fitting.max(concurrency as u64)
        }
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores / 2);
    let load = Load {
        target,
        payload,
        op,
        objects,
        concurrency,
        threads: threads.clamp(1, concurrency),
        warm_up: Duration::from_secs_f64(args.warm_up),
        window: Duration::from_secs_f64(args.seconds),
    };
    load::prepare(&load)?;
    let tally = load::run(&load)?;
    let bytes = tally.done * size;
    let per_gb = |cpu: Duration| (bytes > 0).then(|| cpu.as_secs_f64() / (bytes as f64 / 1e9));
    Ok(Point {
        bench: "nvme",
        op: op.name(),
        size,
        concurrency,
        path: "nvme-tcp",
        seconds: tally.seconds,
        ops_per_s: tally.done as f64 / tally.seconds,
        mb_per_s: bytes as f64 / 1e6 / tally.seconds,
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        p999_us: tally.latency.quantile_us(0.999),
        client_cpu_s_per_gb: per_gb(tally.client_cpu),
        server_cpu_s_per_gb: tally.server_cpu.and_then(per_gb),
        errors: tally.errors,
        first_error: tally.first_error,
    })
}

fn refused(what: &str) -> impl FnOnce(forebay_nvme::initiator::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::Protocol {
        what,
        reason: error.to_string(),
    }
}
