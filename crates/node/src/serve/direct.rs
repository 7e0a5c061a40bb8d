//! The direct door of this node: links from the Unix socket and from TCP, each served where it was accepted.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{Accepted, Sessions, iwarp, shm};
use forebay_store::Store;
use rustls::ServerConfig;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::listeners::Listeners;
use super::shards::{Serve, Shards};
use super::socket::Shm;
use super::stopped;
use super::tls::TLS_TIMEOUT;
use crate::exit::Outcome;

/// How often leases are looked at, while there is a session.
const LEASES: Duration = Duration::from_secs(1);

/// The door and the sessions whose links it serves.
pub struct Direct<S> {
    pub door: forebay_direct::Door<S>,
    pub sessions: Arc<Sessions>,
}

impl<S: Store> Direct<S> {
    /// What takes the connections of the Unix socket that want shared memory.
    pub fn shm(self: &Arc<Self>, shards: &Arc<Shards>, stopping: &watch::Receiver<bool>) -> Shm {
        if !shm::is_possible() {
            tracing::warn!("no links over shared memory: vm.overcommit_memory is 2");
        }
        let (direct, shards, stopping) = (self.clone(), shards.clone(), stopping.clone());
        Arc::new(move |stream: UnixStream| {
            let (direct, stopping) = (direct.clone(), stopping.clone());
            shards.give_unix("a link", stream, move |stream| async move {
                match shm::accept(stream, &direct.sessions).await {
                    Ok(accepted) => direct.serve(accepted, stopping).await,
                    Err(error) => tracing::debug!(%error, "no link over shared memory"),
                }
            });
        })
    }

    /// Gives the connections of the door on TCP to the shards.
    pub fn open(
        self: &Arc<Self>,
        listeners: &Listeners,
        shards: &Arc<Shards>,
        stopping: &watch::Receiver<bool>,
    ) -> Outcome {
        let Some(bound) = &listeners.direct else {
            return Ok(());
        };
        let serve = self.iwarp(bound.tls.clone(), stopping);
        bound.open("direct", shards, serve, stopping)
    }

    /// What serves them.
    fn iwarp(
        self: &Arc<Self>,
        tls: Option<Arc<ServerConfig>>,
        stopping: &watch::Receiver<bool>,
    ) -> Serve {
        let (direct, stopping) = (self.clone(), stopping.clone());
        Arc::new(move |stream, peer| {
            let (direct, tls, stopping) = (direct.clone(), tls.clone(), stopping.clone());
            Box::pin(async move {
                let stream = match secured(stream, tls).await {
                    Ok(stream) => stream,
                    Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
                };
                let options = iwarp::Options::default();
                match iwarp::accept_of(stream, options, &direct.sessions).await {
                    Ok(accepted) => direct.serve(accepted, stopping).await,
                    Err(error) => tracing::debug!(%peer, %error, "no link over iWARP"),
                }
            })
        })
    }

    async fn serve(&self, accepted: Accepted, stopping: watch::Receiver<bool>) {
        let Accepted { session, link, id } = accepted;
        let reason = self.door.serve(&session, &link, stopped(stopping)).await;
        session.detach(id);
        tracing::debug!(session = %session.id(), %reason, "a link has ended");
    }

    /// Ends sessions whose leases have run out, for ever; sleeps while there are none.
    pub async fn expire(&self) -> Infallible {
        loop {
            self.sessions.occupied().await;
            tokio::time::sleep(LEASES).await;
            let ended = self.sessions.expire();
            if ended > 0 {
                tracing::debug!(ended, "sessions whose leases have run out");
            }
        }
    }
}

/// The connection with the protection that is asked for.
async fn secured(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<iwarp::Stream> {
    match tls {
        None => Ok(stream.into()),
        Some(tls) => timeout(TLS_TIMEOUT, iwarp::Stream::accept(&tls, stream)).await?,
    }
}
