//! Bytes with open files beside them, over a Unix socket (unix(7), SCM_RIGHTS).
//!
//! What a peer passes is whatever it likes, and even to close that may take as long as it likes: see [`Passed`]. So who is not known yet
//! passes none ([`take_files`]), and what lies in a socket that is given up is taken out of it before ([`give_up`]).

mod passed;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

pub use passed::{Owner, Passed};

use self::passed::NOBODY;
use crate::socket::set_option;

/// Whether a socket takes files (socket(7), since Linux 6.16): 83 wherever we run.
const SO_PASSRIGHTS: i32 = 83;

/// The most files taken with one call; a peer that passes more is refused.
const FILES_MAX: usize = 4;

/// The most files that the system passes at once (unix(7), `SCM_MAX_FD`): there is room for all of them, so that none is lost.
const SYSTEM_MAX: usize = 253;

/// More pieces than a socket holds: each takes some hundred bytes of what it may have, and those of one kind are read together.
const LYING_MAX: usize = 4096;

/// Sends `bytes` now, and `file` with the first of them; from any thread, whatever the stream's runtime does meanwhile. Up to some
/// hundred bytes go whole or not at all: the system keeps them in one piece.
///
/// # Errors
/// `WouldBlock` while the peer reads nothing; what the system says.
pub fn try_send(
    stream: &UnixStream,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    try_send_files(stream, bytes, file.as_slice())
}

/// As [`try_send`], with several files.
///
/// # Errors
/// As there; `InvalidInput` when the system does not pass so many.
pub fn try_send_files(
    stream: &UnixStream,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SYSTEM_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(
        stream.as_fd(),
        &[IoSlice::new(bytes)],
        &mut beside,
        flags,
    )?)
}

/// As [`try_send`], waiting while the peer reads nothing.
///
/// # Errors
/// `WriteZero` when the system took a part only; what the system says.
pub async fn send(
    stream: &UnixStream,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let sent = stream
        .async_io(Interest::WRITABLE, || try_send(stream, bytes, file))
        .await?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Says whether the system takes files for a socket; whoever sends some to one that takes none is told so. What is connected to a
/// listener does as the listener did then. Kernels before Linux 6.16 know nothing of it, and take all.
pub fn take_files(socket: impl AsFd, take: bool) {
    // A number that is none or not, in any order of its bytes. It fails only there.
    let value = [u8::from(take); 4];
    let _ = set_option(&socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &value);
}

/// Takes what is there now into `bytes`, and the files that came with it, of this owner if he is known, to the end of `files`; zero at the
/// end of the stream.
///
/// # Errors
/// `WouldBlock` when nothing is there; `InvalidData` when more files came at once than are taken; `ResourceBusy` when too many of the
/// owner's that were refused are still being closed; what the system says.
pub fn try_recv(
    stream: &UnixStream,
    bytes: &mut [u8],
    files: &mut VecDeque<Passed>,
    owner: Option<&Owner>,
) -> io::Result<usize> {
    take(stream, bytes, files, FILES_MAX, owner.unwrap_or(&NOBODY))
}

/// As [`try_recv`] of nobody who is known, with up to `most` files.
///
/// # Errors
/// As there.
pub fn try_recv_files(
    stream: &UnixStream,
    bytes: &mut [u8],
    files: &mut VecDeque<Passed>,
    most: usize,
) -> io::Result<usize> {
    take(stream, bytes, files, most, &NOBODY)
}

fn take(
    stream: &UnixStream,
    bytes: &mut [u8],
    files: &mut VecDeque<Passed>,
    most: usize,
    owner: &Owner,
) -> io::Result<usize> {
    if owner.has_too_many() {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let had = files.len();
    let got = stream.try_io(Interest::READABLE, || receive(stream, bytes, files, owner))?;
    match got.filter(|_| files.len() - had <= most) {
        Some(got) => Ok(got),
        None => {
            files.truncate(had);
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

/// Takes what is there; `None` for the bytes when some of the files are lost.
fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    files: &mut VecDeque<Passed>,
    owner: &Owner,
) -> io::Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SYSTEM_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(
        stream.as_fd(),
        &mut [IoSliceMut::new(bytes)],
        &mut beside,
        flags,
    )?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            files.extend(passed.map(|file| Passed::by(owner, file)));
        }
    }
    Ok((!got.flags.contains(ReturnFlags::CTRUNC)).then_some(got.bytes))
}

/// Takes no more files for a stream that nobody is to read any more, and passes over what is in it: the system would close the files
/// among that with the socket, and wait.
pub fn give_up(stream: &UnixStream) {
    take_files(stream, false);
    let (mut bytes, mut files) = ([0; 4096], VecDeque::new());
    for _ in 0..LYING_MAX {
        match receive(stream, &mut bytes, &mut files, &NOBODY) {
            Ok(Some(0)) | Err(_) => return,
            Ok(_) => files.clear(),
        }
    }
}

/// Ends what this end sends; the peer reads the end of the stream after what was sent before.
pub fn finish(stream: &UnixStream) {
    // It fails only when the connection has ended already.
    let _ = shutdown(stream.as_fd(), Shutdown::Write);
}

/// Blocks until the peer has finished, whatever else it still sends; needs no runtime.
pub fn wait_for_end(stream: &UnixStream) {
    let mut bytes = [0; 1024];
    loop {
        let mut wait = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut wait, None).and_then(|_| recv(stream, &mut bytes, RecvFlags::DONTWAIT)) {
            Ok((_, 0)) => return,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
