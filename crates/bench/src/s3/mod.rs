//! A closed-loop S3 client for any endpoint.

mod connection;
mod load;
mod prepare;
mod request;
mod response;

use std::net::{SocketAddr, ToSocketAddrs};

use crate::bounds::{SIZE_MAX, sizes};
use crate::load::About;
use crate::payload::Payload;
use crate::server::{self, PrivateServer};
use crate::{Error, Op, Point, Results, S3Args};
use load::{Load, Until};

/// Bytes that the objects of one size fill together, unless their number is given.
const OBJECTS_BYTES: u64 = 256 << 20;
/// Most objects by default.
const OBJECTS_MAX: u64 = 4096;
/// Objects in a list by default: ten pages.
const LIST_OBJECTS: u64 = 10 * request::LIST_KEYS;

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// The value of the `host` header.
    pub host: String,
    /// Path style.
    pub bucket: String,
    /// Signs the requests.
    pub access_key: String,
    /// Signs the requests.
    pub secret_key: String,
    /// Signs the requests.
    pub region: String,
    /// The process whose CPU time is the server's.
    pub server_pid: Option<u32>,
}

impl Target {
    fn running(args: &S3Args, endpoint: &str) -> Result<Target, Error> {
        let host = endpoint
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'))
            .ok_or_else(|| {
                Error::Usage(format!("{endpoint:?} is not an endpoint http://HOST:PORT"))
            })?;
        let address = host
            .to_socket_addrs()
            .map_err(Error::io(format!("find {host}")))?
            .next()
            .ok_or_else(|| Error::Usage(format!("{host} has no address")))?;
        let credentials = args.keys.given(endpoint)?;
        Ok(Target {
            address,
            host: host.to_owned(),
            bucket: args.bucket.clone(),
            access_key: credentials.access_key,
            secret_key: credentials.secret_key,
            region: args.region.clone(),
            server_pid: args.server_pid,
        })
    }

    fn private(args: &S3Args, server: &PrivateServer) -> Result<Target, Error> {
        let address = server.door("s3")?;
        Ok(Target {
            address,
            host: address.to_string(),
            bucket: args.bucket.clone(),
            access_key: server::ACCESS_KEY.to_owned(),
            secret_key: server::SECRET_KEY.to_owned(),
            region: args.region.clone(),
            server_pid: Some(server.pid()),
        })
    }
}

/// Measures an S3 endpoint: the one given, or a private server that lives as long as this call.
///
/// # Errors
/// As [`crate::run`].
pub fn run(args: &S3Args, results: &Results) -> Result<(), Error> {
    sizes(&args.size, 0..=SIZE_MAX)?;
    let server;
    let target = match &args.endpoint {
        Some(endpoint) => Target::running(args, endpoint)?,
        None => {
            server = PrivateServer::start(args.dir.as_deref(), args.cold)?;
            Target::private(args, &server)?
        }
    };
    prepare::bucket(&target)?;
    for &op in &args.op {
        for &size in &args.size {
            let payload = Payload::new(size.0 as usize);
            for &concurrency in &args.concurrency {
                results.add(measure(args, &target, op, &payload, concurrency)?);
            }
        }
    }
    Ok(())
}

fn measure(
    args: &S3Args,
    target: &Target,
    op: Op,
    payload: &Payload,
    concurrency: usize,
) -> Result<Point, Error> {
    let objects = args.objects.unwrap_or_else(|| {
        let fitting = (OBJECTS_BYTES / payload.len().max(1) as u64).clamp(1, OBJECTS_MAX);
        match op {
            Op::Get | Op::Head => fitting,
            Op::List => LIST_OBJECTS,
            // Each connection writes objects of its own.
            Op::Put | Op::Mixed => fitting.max(concurrency as u64),
        }
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = Load {
        target,
        payload,
        op,
        signed_payload: args.signed_payload,
        quick_ack: args.quick_ack,
        objects,
        concurrency,
        threads: args.threads.unwrap_or(cores / 2),
        until: Until::Elapsed {
            warm_up: args.warm_up.0,
            window: args.seconds.0,
        },
    };
    if op != Op::Put {
        prepare::objects(&load)?;
    }
    let tally = load::run(&load)?;
    Ok(tally.point(About {
        bench: "s3",
        op: op.name(),
        size: payload.len() as u64,
        concurrency,
        path: "http",
    }))
}
