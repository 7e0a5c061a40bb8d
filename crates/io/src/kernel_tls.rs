//! TLS of the kernel (kTLS): a TCP connection that has agreed on keys gives them away, and is then sent on and received from as one in
//! the clear. Linux makes and opens the records.
//!
//! What is no data (alerts, handshake messages) is kept from an ordinary receive, which fails with EIO as long as such a record is next;
//! [`receive_control`] takes it.
#![expect(
    unsafe_code,
    reason = "socket options and control messages that no typed interface knows"
)]

use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::socket::set_option;

/// Content types of records (RFC 8446 section 5.1).
pub const ALERT: u8 = 21;
/// As [`ALERT`].
pub const HANDSHAKE: u8 = 22;

/// The longest `tls12_crypto_info_*`.
const INFO_BYTES_MAX: usize = 56;

/// How records are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// TLS_AES_128_GCM_SHA256.
    Aes128Gcm,
    /// TLS_AES_256_GCM_SHA384.
    Aes256Gcm,
    /// TLS_CHACHA20_POLY1305_SHA256.
    ChaCha20Poly1305,
}

/// Which records a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Those that are sent.
    Send,
    /// Those that are received.
    Receive,
}

/// What protects the records of one direction, by TLS 1.3.
pub struct Key<'a> {
    /// By which means.
    pub cipher: Cipher,
    /// 16 or 32 bytes, as the cipher has it.
    pub key: &'a [u8],
    /// The initialization vector.
    pub iv: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

/// What this system's TLS can do, as found by the first who asked in this process.
#[derive(Debug)]
pub struct Offer {
    ciphers: Vec<Cipher>,
    missing: Option<io::Error>,
}

impl Cipher {
    const ALL: [Cipher; 3] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
    ];

    /// How long a key is.
    pub fn key_bytes(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => 32,
        }
    }

    /// Its number, and how much of the vector the kernel calls salt.
    fn shape(self) -> (u16, usize) {
        match self {
            Cipher::Aes128Gcm => (libc::TLS_CIPHER_AES_GCM_128, 4),
            Cipher::Aes256Gcm => (libc::TLS_CIPHER_AES_GCM_256, 4),
            Cipher::ChaCha20Poly1305 => (libc::TLS_CIPHER_CHACHA20_POLY1305, 0),
        }
    }
}

impl Offer {
    /// Whether records can be protected by this.
    pub fn has(&self, cipher: Cipher) -> bool {
        self.ciphers.contains(&cipher)
    }

    /// By which means records can be protected; none, where the kernel has no TLS.
    pub fn ciphers(&self) -> &[Cipher] {
        &self.ciphers
    }

    /// Why there is none, or not every cipher.
    pub fn missing(&self) -> Option<&io::Error> {
        self.missing.as_ref()
    }

    /// Asks the system, by a connection of this process with itself.
    fn found() -> Offer {
        let (mut ciphers, mut missing) = (Vec::new(), None);
        for cipher in Cipher::ALL {
            match tried(cipher) {
                Ok(()) => ciphers.push(cipher),
                Err(error) => missing = Some(error),
            }
        }
        Offer { ciphers, missing }
    }
}

/// What the kernel's TLS can do. It is asked once in a process: whoever loads its module later starts the process again.
pub fn offer() -> &'static Offer {
    static OFFER: OnceLock<Offer> = OnceLock::new();
    OFFER.get_or_init(|| {
        let offer = Offer::found();
        match &offer.missing {
            Some(error) if offer.ciphers.is_empty() => {
                tracing::info!(%error, "TLS of links is made in this process");
            }
            _ => tracing::info!(ciphers = ?offer.ciphers, "TLS of links is made in the kernel"),
        }
        offer
    })
}

fn tried(cipher: Cipher) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    attach(&stream)?;
    for direction in [Direction::Send, Direction::Receive] {
        let key = Key {
            cipher,
            key: &[0; 32][..cipher.key_bytes()],
            iv: [0; 12],
            sequence: 0,
        };
        set_key(&stream, direction, &key)?;
    }
    Ok(())
}

/// Makes a TCP connection one that can be given keys. Without any it moves bytes as before.
///
/// # Errors
/// The system's: [`io::ErrorKind::NotFound`] when it has no TLS, [`io::ErrorKind::NotConnected`] when the peer has gone.
pub fn attach(socket: impl AsFd) -> io::Result<()> {
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Gives the kernel the key of one direction: what follows in that direction are records. The next one, when it has one already:
/// since Linux 6.14.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for a key that is not as long as the cipher's are.
#[expect(clippy::host_endian_bytes, reason = "the kernel's own structure")]
pub fn set_key(socket: impl AsFd, direction: Direction, key: &Key<'_>) -> io::Result<()> {
    let (number, salt_bytes) = key.cipher.shape();
    if key.key.len() != key.cipher.key_bytes() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (salt, iv) = key.iv.split_at(salt_bytes);
    let parts: [&[u8]; 6] = [
        &libc::TLS_1_3_VERSION.to_ne_bytes(),
        &number.to_ne_bytes(),
        iv,
        key.key,
        salt,
        &key.sequence.to_be_bytes(),
    ];
    let mut info = [0; INFO_BYTES_MAX];
    let mut used = 0;
    for part in parts {
        info[used..used + part.len()].copy_from_slice(part);
        used += part.len();
    }
    let option = match direction {
        Direction::Send => libc::TLS_TX,
        Direction::Receive => libc::TLS_RX,
    };
    set_option(&socket, libc::SOL_TLS, option, &info[..used])
}

/// Sends a record that is no data, whole.
///
/// # Errors
/// The system's: [`io::ErrorKind::WouldBlock`] when it takes nothing now.
pub fn send_control(socket: impl AsFd, content_type: u8, bytes: &[u8]) -> io::Result<()> {
    let mut control = Control::default();
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = control.message(&mut part);
    // SAFETY: the message has room for this header and one byte behind it, and is aligned for it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        libc::CMSG_DATA(header).write(content_type);
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message names `part`, which names `bytes`, and `control`; all outlive the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, flags) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives the next record, when that is no data: its content type, and its length; several of one type may come as one.
///
/// # Errors
/// The system's: [`io::ErrorKind::WouldBlock`] when there is none now; [`io::ErrorKind::InvalidData`] when it is longer than `into`,
/// or of no type.
pub fn receive_control(socket: impl AsFd, into: &mut [u8]) -> io::Result<(u8, usize)> {
    let mut control = Control::default();
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let mut message = control.message(&mut part);
    // SAFETY: the message names `part`, which names `into`, and `control`; all outlive the call, and nothing else writes them.
    let received =
        unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let Ok(received) = usize::try_from(received) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel has set how much of `control` it filled; a header that is there lies inside of it, with its one byte.
    let content_type = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (!header.is_null()
            && (*header).cmsg_level == libc::SOL_TLS
            && (*header).cmsg_type == libc::TLS_GET_RECORD_TYPE)
            .then(|| libc::CMSG_DATA(header).read())
    };
    match content_type {
        Some(content_type) if received < into.len() => Ok((content_type, received)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Ends a connection: nothing more is received; the peer is not told that all was said, and a reset follows when the socket is
/// closed. The kernel does not disconnect a connection whose keys it has.
///
/// # Errors
/// The system's, when the connection is gone.
pub fn abort(socket: impl AsFd) -> io::Result<()> {
    rustix::net::sockopt::set_socket_linger(socket.as_fd(), Some(Duration::ZERO))?;
    Ok(rustix::net::shutdown(socket.as_fd(), Shutdown::Both)?)
}

/// Room for one control message of one byte, aligned as its header is.
#[derive(Default)]
struct Control([usize; 4]);

impl Control {
    fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: all zeroes is a msghdr without address, control data or places.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = part;
        message.msg_iovlen = 1;
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&self.0) as _;
        message
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_connection_that_gets_no_key_moves_bytes_as_before() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        match attach(&ours) {
            Ok(()) => assert!(offer().missing().is_none() || !offer().ciphers().is_empty()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
                assert!(offer().ciphers().is_empty() && offer().missing().is_some());
            }
        }
        let short = Key {
            cipher: Cipher::Aes256Gcm,
            key: &[0; 16],
            iv: [0; 12],
            sequence: 0,
        };
        let refused = set_key(&ours, Direction::Send, &short).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        ours.write_all(b"in the clear").unwrap();
        drop(ours);
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "in the clear");
    }
}
