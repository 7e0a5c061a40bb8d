//! The gRPC door of this node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_api::v1;
use forebay_control::rpc::{Config, Service, serve, tls_config};
use forebay_store::Store;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::args::ServeArgs;
use super::listeners::{Bound, Listeners};
use super::{absolute, socket, stopped};
use crate::exit::{Exit, Failure, Outcome};

/// What the flags say of TLS.
pub fn tls(args: &ServeArgs) -> Outcome<Option<Arc<ServerConfig>>> {
    let (Some(certificate), Some(key)) = (&args.rpc_tls_cert, &args.rpc_tls_key) else {
        return Ok(None);
    };
    let client_ca = args.rpc_client_ca.as_ref().map(read).transpose()?;
    tls_config(&read(certificate)?, &read(key)?, client_ca.as_deref())
        .map(Some)
        .map_err(|error| {
            Failure::new(
                Exit::Failed,
                format_args!("--rpc-tls-cert {}: {error}", certificate.display()),
            )
        })
}

fn read(path: &PathBuf) -> Outcome<Vec<u8>> {
    std::fs::read(path).map_err(Failure::io(path.display()))
}

/// What is chosen for the door: where sessions make their links, the best first.
pub fn config(args: &ServeArgs, listeners: &Listeners, dir: &Path) -> Config {
    let shm = (!args.no_direct).then(|| absolute(&socket::path(dir)).display().to_string());
    let iwarp = listeners
        .direct_listens()
        .map(|address| address.to_string());
    let paths = [
        ("shm", shm),
        ("iwarp", iwarp),
        ("http", listeners.s3.as_ref().map(Bound::listens)),
    ];
    Config {
        paths: paths
            .into_iter()
            .filter_map(|(fabric, address)| {
                let tls = fabric == "iwarp" && listeners.direct_is_secure();
                let fabric = fabric.to_owned();
                address.map(|address| v1::Path {
                    fabric,
                    address,
                    tls,
                })
            })
            .collect(),
        connections: args.connections as usize,
        ..Config::default()
    }
}

/// Serves until `stopping`; the task ends when the calls in progress have. `None` when the door is to stay closed.
pub fn open<S: Store>(
    listeners: &Listeners,
    service: Arc<Service<S>>,
    stopping: &watch::Receiver<bool>,
) -> Outcome<Option<JoinHandle<()>>> {
    let Some(bound) = &listeners.rpc else {
        return Ok(None);
    };
    let (listener, tls) = (bound.watched()?, bound.tls.clone());
    let shutdown = stopped(stopping.clone());
    Ok(Some(tokio::spawn(async move {
        if let Err(error) = serve(listener, tls, service, shutdown).await {
            tracing::error!(%error, "the gRPC door is closed");
        }
    })))
}
