//! The fabric between processes of one host.
use forebay_mem::{Buf, BufMut, RegionSlice};
use tokio::net::UnixStream;

use crate::sessions::{PROOF_BYTES, Sessions};
use crate::{
    Accepted, Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, Placed, RemoteRange,
    Result,
};

/// The first bytes of a connection that wants shared memory.
pub const MAGIC: [u8; 8] = *b"FBSHM\0\0\x01";

/// One end of a link over shared memory.
#[derive(Debug)]
pub struct ShmLink(());

/// Takes a connection whose next bytes are [`MAGIC`]: reads the hello, finds the session, attaches the link to it.
///
/// # Errors
/// [`ErrorKind::Closed`] when the peer shows no proof of an open session, or goes away.
pub async fn accept(_stream: UnixStream, _sessions: &Sessions) -> Result<Accepted> {
    Err(soon())
}

/// Makes the client's end over a connection to a server's socket, showing `proof`.
///
/// # Errors
/// [`ErrorKind::Closed`] when the server refuses; [`ErrorKind::Io`].
pub async fn connect(_stream: UnixStream, _proof: &[u8; PROOF_BYTES]) -> Result<ShmLink> {
    Err(soon())
}

fn soon() -> Error {
    Error::new(ErrorKind::Io, "not in this build")
}

impl Link for ShmLink {
    fn fabric(&self) -> Fabric {
        Fabric::Shm
    }
    async fn expose(&self, _: RegionSlice, _: Access) -> Result<Exposure> {
        Err(soon())
    }
    async fn withdraw(&self, _: Exposure) {}
    async fn write(&self, _: RemoteRange, _: Vec<Buf>) -> Result<()> {
        Err(soon())
    }
    async fn read(&self, _: RemoteRange, _: BufMut) -> Result<BufMut> {
        Err(soon())
    }
    async fn fence(&self) -> Result<Placed> {
        Ok(Placed::proven())
    }
    async fn send(&self, _: &[u8]) -> Result<()> {
        Err(soon())
    }
    async fn recv(&self, _: &mut Vec<u8>) -> Result<Option<()>> {
        Err(soon())
    }
    fn mapped(&self, _: RemoteRange, _: Access) -> Option<RegionSlice> {
        None
    }
    fn close(&self, _: CloseReason) {}
    async fn closed(&self) -> CloseReason {
        CloseReason::Lost
    }
}
