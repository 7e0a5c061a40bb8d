//! The fabric between processes of one host: messages through rings in shared memory, payload by plain copies or by the device.
//!
//! The client connects to the server's Unix socket, shows the proof of its session, and is given a memfd that holds two rings,
//! one for each direction. Messages go through them with no system call while both sides are busy. A side that finds nothing for some
//! microseconds says in the ring that it sleeps; the other side's next message wakes it by one byte over the socket. (An eventfd would
//! do the same, but its open file is shared: a peer could make it blocking under us; `docs/decisions/0006-shm-wake-ups.md`.)
//!
//! Memory is exposed by passing its file over the socket. What can be mapped without the danger that its owner takes pages away (a memfd
//! sealed against shrinking) is mapped and given out by [`Link::mapped`](crate::Link::mapped); any other file's memory is copied by the
//! kernel, which answers an error where a plain copy would be killed by SIGBUS.
//!
//! # How memory comes back
//! A region is unmapped, and its withdrawal answered, when its last [`RegionSlice`] goes: a device may still
//! be filling one. The same holds for the end of a link: each end finishes its stream when it uses no memory of the peer's any more, and
//! [`Link::closed`](crate::Link::closed) waits for that if anything was exposed. A process that dies finishes its stream, too.
//!
//! # Who may connect
//! Whom the socket's directory and mode let in, and of those, who shows the proof of an open session.
//!
//! # What a hostile peer can do
//! Scribble in the rings, send any frame with any file, truncate, punch holes, vanish: each ends at most its own link. It can have this
//! process touch as much of its memory as it exposed, which the system may count as ours. A peer that leaves no room for messages has
//! 30 s to take 64 KiB of them, and may then connect anew.
//!
//! Files that are slow to be looked at, mapped or closed keep no task waiting, nor does much memory that is unmapped, perhaps by the last
//! who had it: threads of their own do that. Who has a session, and serves
//! a file system of his own, can have his tenant's files of file systems refused, and with another tenant's help everybody's; with 256 of his
//! that do not close, every link of his tenant ends that next reads from its socket, and with fifteen other tenants' help everybody's. Before Linux 6.16 a socket has files of who has
//! shown no proof, too, and those that come just as it is closed are closed with it.

mod control;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod mapping;
mod regions;
mod ring;
mod shared;
mod spin;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::passing;
use forebay_mem::{PAGE_BYTES, Region, RegionSlice};
use tokio::net::UnixStream;

use self::control::Reader;
use self::frame::{FRAME_BYTES, Frame, hello, proof_of};
use self::link::Parts;
use self::ring::DIRECTION_BYTES;
use crate::sessions::{PROOF_BYTES, Session, Sessions};
use crate::{Accepted, Connection, Error, ErrorKind, Result};

pub use frame::MAGIC;
pub use link::ShmLink;
pub(crate) use mapping::Share;
pub use regions::REGIONS;

/// The whole hello must come within this, and the answer to it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this system has memory for links: with `vm.overcommit_memory` of 2 it may refuse every page when it is touched, and there are
/// none.
pub fn is_possible() -> bool {
    Region::memfd(PAGE_BYTES).is_ok_and(|memory| memory.is_steady())
}

/// Takes a connection whose next bytes are [`MAGIC`]: reads the hello, finds the session, and attaches the link to it. The link's task
/// runs on the caller's runtime.
///
/// # Errors
/// [`ErrorKind::Closed`] when the peer shows no proof of an open session, the session has room for no more links, or the peer goes
/// away; [`ErrorKind::Io`] when the system gives no memory.
pub async fn accept(stream: UnixStream, sessions: &Sessions) -> Result<Accepted> {
    // Whoever has proven nothing passes no files.
    passing::take_files(&stream, false);
    let mut reader = Reader::default();
    let session = match proven(&stream, &mut reader, sessions).await {
        Ok(session) => session,
        Err(error) => {
            passing::give_up(&stream);
            return Err(error);
        }
    };
    reader.owner = Some(session.mapped().owner());
    passing::take_files(&stream, true);

    let memory = Region::memfd(2 * DIRECTION_BYTES).map_err(system)?;
    let (receives, sends) = directions(&memory)?;
    let stream = Arc::new(stream);
    let link = Arc::new(ShmLink::start(Parts {
        stream: stream.clone(),
        reader,
        sends,
        receives,
        tenant: Some(session.mapped()),
    }));
    let attached = session.attach(Connection::Shm(link.clone()));
    let id = attached.map_err(|refused| closed(&refused.to_string()))?;
    link.set_id(id);
    let welcome = Frame::Welcome { link: id }.encoded();
    let file = memory.backing().map(|backing| backing.file);
    if let Err(error) = in_time(passing::send(&stream, &welcome, file)).await {
        session.detach(id);
        return Err(error);
    }
    Ok(Accepted {
        session,
        link: Connection::Shm(link),
        id,
    })
}

/// The session that the peer proves.
async fn proven(
    stream: &UnixStream,
    reader: &mut Reader,
    sessions: &Sessions,
) -> Result<Arc<Session>> {
    let hello = in_time(read_frame(stream, reader)).await?;
    let session = proof_of(&hello).and_then(|proof| sessions.admit(&proof));
    session.ok_or_else(|| closed("no proof of an open session"))
}

/// Makes the client's end over a connection to a server's socket, showing the [`proof`](crate::sessions::proof) of a session. The
/// link's task runs on the caller's runtime.
///
/// # Errors
/// [`ErrorKind::Closed`] when the server refuses; [`ErrorKind::Io`].
pub async fn connect(stream: UnixStream, proof: &[u8; PROOF_BYTES]) -> Result<ShmLink> {
    let mut reader = Reader::default();
    in_time(passing::send(&stream, &hello(proof), None)).await?;
    let welcome = in_time(read_frame(&stream, &mut reader)).await?;
    let id = match Frame::decode(&welcome) {
        Some(Frame::Welcome { link }) => link,
        Some(Frame::Close { reason }) => return Err(closed(&reason.to_string())),
        _ => return Err(closed("the server's answer is none")),
    };
    let file = reader
        .take_file()
        .ok_or_else(|| closed("the server shares no memory"))?;
    let memory =
        Region::received(file, 0, 2 * DIRECTION_BYTES, true, Box::new(())).map_err(system)?;
    let (sends, receives) = directions(memory.region())?;
    let link = ShmLink::start(Parts {
        stream: Arc::new(stream),
        reader,
        sends,
        receives,
        tenant: None,
    });
    link.set_id(id);
    Ok(link)
}

/// What goes to the server, and what goes to the client.
fn directions(memory: &Arc<Region>) -> Result<(RegionSlice, RegionSlice)> {
    let to_server = memory.slice(0..DIRECTION_BYTES);
    let to_client = memory.slice(DIRECTION_BYTES..2 * DIRECTION_BYTES);
    let both = to_server.zip(to_client);
    let both = both.ok_or_else(|| closed("the memory is too small"))?;
    match memory.is_steady() {
        true => Ok(both),
        false => Err(closed(
            "pages of the memory may vanish, or be refused (vm.overcommit_memory of 2)",
        )),
    }
}

async fn read_frame(stream: &UnixStream, reader: &mut Reader) -> io::Result<[u8; FRAME_BYTES]> {
    loop {
        if let Some(frame) = reader.take_frame() {
            return Ok(frame);
        }
        stream.readable().await?;
        match reader.fill(stream) {
            Ok(true) => {}
            Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn in_time<T>(what: impl Future<Output = io::Result<T>>) -> Result<T> {
    match tokio::time::timeout(HELLO_TIMEOUT, what).await {
        Ok(done) => done.map_err(|error| closed(&error.to_string())),
        Err(_) => Err(closed("the peer says nothing")),
    }
}

fn closed(why: &str) -> Error {
    Error::new(ErrorKind::Closed, why)
}

fn system(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}
