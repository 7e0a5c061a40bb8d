//! A closed loop over the direct path: each call begins when the one before it has ended.

mod load;

use std::sync::Arc;

use forebay_client::direct::{Client, Options};
use forebay_client::{Credentials, Endpoint, Tls};

use crate::bounds::{SIZE_MAX, sizes};
use crate::load::{About, Window};
use crate::payload::Payload;
use crate::server::{self, PrivateServer};
use crate::{DirectArgs, DirectOp, Error, Point, Results};
use load::Load;

/// Bytes that the values of one size fill together, unless their number is given.
const OBJECTS_BYTES: u64 = 256 << 20;
/// Most values by default.
const OBJECTS_MAX: u64 = 4096;

/// What tells the two generators apart.
#[derive(Clone, Copy)]
pub(crate) struct Flavor {
    bench: &'static str,
    namespace: &'static str,
    /// How late, in milliseconds, a store may reach the disk after it was answered.
    relaxed_ms: u32,
}

/// Objects: a store is answered when it is on disk.
pub(crate) const DIRECT: Flavor = Flavor {
    bench: "direct",
    namespace: "bench-direct",
    relaxed_ms: 0,
};

/// A cache: what a crash takes can be made again.
pub(crate) const KV: Flavor = Flavor {
    bench: "kv",
    namespace: "bench-kv",
    relaxed_ms: 1000,
};

/// Whom to ask, and as whom.
pub(crate) struct Target {
    endpoint: Endpoint,
    credentials: Credentials,
    namespace: String,
    server_pid: Option<u32>,
    options: Options,
}

impl Target {
    /// A client of its own for each thread: links are not shared between cores.
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.endpoint, &self.credentials, self.options.clone())
            .await
            .map_err(refused("connecting"))
    }
}

/// Measures an endpoint: the one given, or a private server that lives as long as this call.
pub(crate) fn run(args: &DirectArgs, flavor: Flavor, results: &Results) -> Result<(), Error> {
    sizes(&args.size, 1..=SIZE_MAX)?;
    let server;
    let (endpoint, credentials, server_pid) = match &args.endpoint {
        Some(endpoint) => {
            let credentials = args.keys.given(endpoint)?;
            (endpoint.clone(), credentials, args.server_pid)
        }
        None => {
            server = PrivateServer::start(args.dir.as_deref(), args.cold)?;
            let url = format!("http://{}", server.door("rpc")?);
            (
                url.parse().map_err(Error::Usage)?,
                Credentials {
                    access_key: server::ACCESS_KEY.to_owned(),
                    secret_key: server::SECRET_KEY.to_owned(),
                },
                Some(server.pid()),
            )
        }
    };
    let tls = args.ca.as_deref().map(|ca| Tls::new(Some(ca))).transpose();
    let target = Arc::new(Target {
        endpoint,
        credentials,
        namespace: args
            .namespace
            .clone()
            .unwrap_or_else(|| flavor.namespace.to_owned()),
        server_pid,
        options: Options {
            path: args.path,
            checksum: !args.no_checksum,
            links: args.links,
            tls: tls.map_err(refused("whom to trust"))?,
            ..Options::default()
        },
    });
    load::make_namespace(&target, flavor.relaxed_ms)?;
    for &op in &args.op {
        for &size in &args.size {
            let payload = Arc::new(Payload::new(size.0 as usize));
            for &concurrency in &args.concurrency {
                results.add(measure(args, flavor, &target, op, &payload, concurrency)?);
            }
        }
    }
    Ok(())
}

fn measure(
    args: &DirectArgs,
    flavor: Flavor,
    target: &Arc<Target>,
    op: DirectOp,
    payload: &Arc<Payload>,
    concurrency: usize,
) -> Result<Point, Error> {
    let size = payload.len() as u64;
    let batch = match op {
        DirectOp::Get | DirectOp::Put => 1,
        DirectOp::Gather | DirectOp::Scatter => args.batch.unwrap_or(64),
        DirectOp::Exist => args.batch.unwrap_or(1000),
    };
    let objects = args.objects.unwrap_or_else(|| {
        let fitting = (OBJECTS_BYTES / size).clamp(1, OBJECTS_MAX);
        // Each call in flight writes values of its own.
        fitting.max((concurrency * batch) as u64)
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores / 2);
    let load = Load {
        target: target.clone(),
        payload: payload.clone(),
        op,
        batch,
        objects,
        concurrency,
        threads: threads.clamp(1, concurrency),
    };
    if op.reads() {
        load::fill(&load)?;
    }
    let window = Window::after(args.warm_up.0, args.seconds.0);
    let (tally, path) = load::run(&load, window)?;
    Ok(tally.point(About {
        bench: flavor.bench,
        op: op.name(),
        size,
        concurrency,
        path,
    }))
}

fn refused(what: &str) -> impl FnOnce(forebay_client::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Client {
        what,
        source: Box::new(source),
    }
}
