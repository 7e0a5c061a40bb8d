//! A link of whichever fabric.

use std::sync::Arc;

use forebay_mem::{Buf, BufMut, RegionSlice};

use crate::iwarp::IwarpLink;
use crate::sessions::{LinkId, Session};
use crate::shm::ShmLink;
use crate::{Access, CloseReason, Exposure, Fabric, Link, Placed, RemoteRange, Result};

/// A link of whichever fabric. Clones are the same link; it ends when the last of them goes.
#[derive(Debug, Clone)]
pub enum Connection {
    /// To a process of this host.
    Shm(Arc<ShmLink>),
    /// To a process anywhere.
    Iwarp(Arc<IwarpLink>),
}

/// A connection that proved which session it belongs to, and is attached to it.
#[derive(Debug)]
pub struct Accepted {
    /// The session.
    pub session: Arc<Session>,
    /// The link. Whoever serves it detaches it from the session in the end.
    pub link: Connection,
    /// Its name in the session.
    pub id: LinkId,
}

macro_rules! each {
    ($connection:expr, $link:ident => $call:expr) => {
        match $connection {
            Connection::Shm($link) => $call,
            Connection::Iwarp($link) => $call,
        }
    };
}

impl Link for Connection {
    fn fabric(&self) -> Fabric {
        each!(self, link => link.fabric())
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        each!(self, link => link.expose(memory, access).await)
    }

    async fn withdraw(&self, exposure: Exposure) {
        each!(self, link => link.withdraw(exposure).await);
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        each!(self, link => link.write(to, from).await)
    }

    async fn read(&self, from: RemoteRange, into: BufMut) -> Result<BufMut> {
        each!(self, link => link.read(from, into).await)
    }

    async fn fence(&self) -> Result<Placed> {
        each!(self, link => link.fence().await)
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        each!(self, link => link.send(message).await)
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        each!(self, link => link.recv(into).await)
    }

    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        each!(self, link => link.mapped(range, access))
    }

    fn close(&self, reason: CloseReason) {
        each!(self, link => link.close(reason));
    }

    async fn closed(&self) -> CloseReason {
        each!(self, link => link.closed().await)
    }
}
