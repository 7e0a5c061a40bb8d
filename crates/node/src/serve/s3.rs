//! The S3 door of this node.

use std::sync::Arc;

use forebay_fabric::Sessions;
use forebay_s3::{Config, Direct, Door, EtagKind};
use forebay_store::Store;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::args::{Etag, ServeArgs};
use super::listeners::Listeners;
use super::shards::{Serve, Shards};
use super::tls::TLS_TIMEOUT;
use super::{absolute, socket, stopped};
use crate::exit::Outcome;

/// The S3 door's configuration, with buffers of a pool of `pool_bytes`.
pub fn config(args: &ServeArgs, pool_bytes: u64) -> Config {
    Config {
        region: args.s3_region.clone(),
        domains: args.s3_domain.clone(),
        requests_in_flight: args.s3_requests as usize,
        pool_bytes,
        etag: match args.s3_etag {
            Etag::Md5 => EtagKind::Md5,
            Etag::Crc64nvme => EtagKind::Crc64Nvme,
        },
        decline_with_body: args.s3_decline_body,
        ..Config::default()
    }
}

/// Where the S3 door's clients may lend their memory; nowhere when the direct door is to stay closed.
pub fn lenders(
    args: &ServeArgs,
    listeners: &Listeners,
    sessions: &Arc<Sessions>,
) -> Option<Direct> {
    (!args.no_direct).then(|| Direct {
        uds: Some(absolute(&socket::path(&args.dir))),
        cm: listeners.direct_listens(),
        cm_tls: listeners.direct_is_secure(),
        vendor_carriers: args.s3_vendor_tokens,
        ..Direct::new(sessions.clone())
    })
}

/// Gives its connections to the shards.
pub fn open<S: Store<Body: Unpin>>(
    listeners: &Listeners,
    shards: &Arc<Shards>,
    door: &Arc<Door<S>>,
    stopping: &watch::Receiver<bool>,
) -> Outcome {
    let Some(bound) = &listeners.s3 else {
        return Ok(());
    };
    let tls = bound.tls.clone().map(TlsAcceptor::from);
    let (door, down) = (door.clone(), stopping.clone());
    let serve: Serve = Arc::new(move |stream, peer| {
        let (door, tls, down) = (door.clone(), tls.clone(), down.clone());
        Box::pin(async move {
            let shutdown = stopped(down);
            let Some(tls) = tls else {
                return door
                    .serve_connection(stream, Some(peer), false, shutdown)
                    .await;
            };
            match timeout(TLS_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    door.serve_connection(stream, Some(peer), true, shutdown)
                        .await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
                Err(_) => tracing::debug!(%peer, "no TLS in time"),
            }
        })
    });
    bound.open("S3", shards, serve, stopping)
}
