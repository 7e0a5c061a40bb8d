//! The links that the door is tested over: a pipe inside the process, and the real ones.

use forebay_fabric::{
    Access, CloseReason, Connection, Exposure, Fabric, Link, Placed, RemoteRange, Result,
};
use forebay_mem::{Buf, BufMut, RegionSlice};

use crate::pipe::Pipe;

/// What a link is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A pipe that says to be of this fabric: over `shm` it maps memory, over `iwarp` it does not.
    Pipe(Fabric),
    /// Shared memory over a pair of Unix sockets.
    Shm,
    /// iWARP over a TCP connection.
    Iwarp,
}

pub const WAYS: [Way; 4] = [
    Way::Pipe(Fabric::Shm),
    Way::Pipe(Fabric::Iwarp),
    Way::Shm,
    Way::Iwarp,
];

/// One end.
pub enum Any {
    Pipe(Pipe),
    Real(Connection),
}

macro_rules! each {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            Any::Pipe($link) => $call,
            Any::Real($link) => $call,
        }
    };
}

impl Link for Any {
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
