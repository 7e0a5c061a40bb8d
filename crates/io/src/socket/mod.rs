//! One call to a stream socket that sends from, or receives into, several places, registered memory among them.
//!
//! Sockets here never block and never raise SIGPIPE. The kernel reads and writes the places only during the call.
#![expect(
    unsafe_code,
    reason = "memory that a peer may touch is named to the kernel by address, never by reference"
)]

mod options;
mod paths;
mod plain;

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use forebay_mem::RegionSlice;

pub use options::{connect, connect_blocking, is_within, set_keep_alive, set_send_buffer, unpaced};
pub use paths::{SocketDir, connect_unix};
pub use plain::{PLAIN_BYTES_MAX, Parts, Plain};

/// The most places of one call.
pub const PLACES_MAX: usize = 128;

/// Places to send from, in order.
pub struct Gather<'a>(Places<'a>);

/// Places to receive into, in order.
pub struct Scatter<'a>(Places<'a>);

/// What one call names to the kernel; whatever it names is borrowed for `'a`.
struct Places<'a> {
    /// The first `used` are set: to clear all of them would cost as much as a small call.
    vectors: [MaybeUninit<libc::iovec>; PLACES_MAX],
    used: usize,
    bytes: usize,
    borrows: PhantomData<&'a mut [u8]>,
}

impl Places<'_> {
    fn new() -> Self {
        Places {
            vectors: [const { MaybeUninit::uninit() }; PLACES_MAX],
            used: 0,
            bytes: 0,
            borrows: PhantomData,
        }
    }

    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let Some(vector) = self.vectors.get_mut(self.used) else {
            return false;
        };
        vector.write(libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        });
        self.used += 1;
        self.bytes += len;
        true
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeroes is a msghdr without address, control data or places.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr().cast();
        message.msg_iovlen = self.used as _;
        message
    }
}

impl<'a> Gather<'a> {
    /// No place yet.
    #[expect(clippy::new_without_default, reason = "a list for one call")]
    pub fn new() -> Gather<'a> {
        Gather(Places::new())
    }

    /// Adds these bytes; false when there are [`PLACES_MAX`] places already.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> bool {
        self.0.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Adds the first `len` bytes from `offset` of memory that a peer may be writing; false when there are [`PLACES_MAX`] places
    /// already, or they leave the slice.
    pub fn region(&mut self, memory: &'a RegionSlice, offset: usize, len: usize) -> bool {
        inside(memory, offset, len) && self.0.push(memory.as_ptr().wrapping_add(offset), len)
    }

    /// How many bytes were added.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when it takes nothing now.
    pub fn send(mut self, socket: impl AsFd) -> io::Result<usize> {
        let socket = socket.as_fd();
        let message = self.0.message();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: every place is readable memory that `self` borrows or whose region it borrows; the kernel only reads it.
        retry(socket, |fd| unsafe { libc::sendmsg(fd, &message, flags) })
    }
}

impl<'a> Scatter<'a> {
    /// No place yet.
    #[expect(clippy::new_without_default, reason = "a list for one call")]
    pub fn new() -> Scatter<'a> {
        Scatter(Places::new())
    }

    /// Adds these bytes; false when there are [`PLACES_MAX`] places already.
    pub fn bytes(&mut self, bytes: &'a mut [u8]) -> bool {
        self.0.push(bytes.as_mut_ptr(), bytes.len())
    }

    /// Adds the first `len` bytes from `offset` of memory that a peer may be using; false when there are [`PLACES_MAX`] places
    /// already, they leave the slice, or it may not be written.
    pub fn region(&mut self, memory: &'a RegionSlice, offset: usize, len: usize) -> bool {
        inside(memory, offset, len)
            && memory.region().is_writable()
            && self.0.push(memory.as_ptr().wrapping_add(offset), len)
    }

    /// How many bytes were added.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Receives what the socket has, at most what fits; 0 when the peer has finished.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when there is nothing now.
    pub fn receive(mut self, socket: impl AsFd) -> io::Result<usize> {
        let socket = socket.as_fd();
        let mut message = self.0.message();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: every place is writable memory: borrowed exclusively by `self`, or of a writable region that it borrows, whose
        // bytes no Rust reference names. The kernel writes nothing else.
        retry(socket, |fd| unsafe {
            libc::recvmsg(fd, &mut message, flags)
        })
    }
}

/// Says that nothing more will be sent; what was is still delivered.
///
/// # Errors
/// The system's, when the connection is gone.
pub fn finish(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(
        socket.as_fd(),
        rustix::net::Shutdown::Write,
    )?)
}

/// Ends a connection at once: what is not delivered yet is not delivered any more, and the peer's next call fails.
///
/// # Errors
/// The system's, when the connection is gone.
pub fn abort(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(socket.as_fd())?)
}

fn inside(memory: &RegionSlice, offset: usize, len: usize) -> bool {
    offset
        .checked_add(len)
        .is_some_and(|end| end <= memory.len())
}

fn retry(socket: BorrowedFd<'_>, mut call: impl FnMut(libc::c_int) -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call(socket.as_raw_fd())) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Sets an option of a socket that has no safer name.
pub(crate) fn set_option(
    socket: &impl AsFd,
    level: i32,
    option: i32,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the kernel reads `value`, and only so much of it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use forebay_mem::Region;

    use super::*;

    fn region(bytes: &[u8]) -> RegionSlice {
        let region = Region::anonymous(4096).unwrap();
        let slice = region.slice(0..bytes.len()).unwrap();
        assert!(slice.write(0, bytes));
        slice
    }

    #[test]
    fn bytes_leave_in_the_order_of_their_places() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let memory = region(b"0123456789");
        let mut parts = Gather::new();
        assert!(parts.bytes(b"ab") && parts.region(&memory, 3, 4) && parts.bytes(b""));
        assert!(parts.bytes(b"cd"));
        assert_eq!(parts.len(), 8);
        assert_eq!(parts.send(&ours).unwrap(), 8);
        drop(ours);
        let mut got = String::new();
        theirs.read_to_string(&mut got).unwrap();
        assert_eq!(got, "ab3456cd");
    }

    #[test]
    fn bytes_arrive_in_the_order_of_their_places() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let receive = |head: &mut [u8], memory: &RegionSlice| {
            let mut places = Scatter::new();
            assert!(places.bytes(head) && places.region(memory, 2, 3));
            places.receive(&ours)
        };
        let memory = region(b"..........");
        let mut head = [0; 2];
        let nothing = receive(&mut head, &memory).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        theirs.write_all(b"abcdefgh").unwrap();
        assert_eq!(receive(&mut head, &memory).unwrap(), 5);
        let mut whole = [0; 10];
        assert!(memory.read(0, &mut whole));
        assert_eq!((&head, &whole), (b"ab", b"..cde....."));
        assert_eq!(receive(&mut head, &memory).unwrap(), 3);
        drop(theirs);
        assert_eq!(receive(&mut head, &memory).unwrap(), 0);
    }

    #[test]
    fn no_place_is_outside_its_slice_and_there_is_an_end_of_places() {
        let memory = region(b"0123");
        let mut parts = Gather::new();
        assert!(!parts.region(&memory, 1, 4) && !parts.region(&memory, usize::MAX, 2));
        assert!(parts.is_empty() && parts.region(&memory, 4, 0));
        assert!((0..PLACES_MAX).all(|_| parts.bytes(b"x")));
        assert!(!parts.bytes(b"x") && !parts.region(&memory, 0, 1));
        let mut places = Scatter::new();
        assert!(!places.region(&memory, 1, 4) && !places.region(&memory, 5, 0));
    }
}
