//! A connection whose TLS is the kernel's: it is sent on and received from as one in the clear.
//!
//! What is no data is told apart by the kernel and never lands where data belongs. A good-bye ends the stream, tickets are passed over,
//! and anything else ends the link: a peer that changes its keys wants a new connection. So do we when ours have protected as many
//! records as they may.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_io::kernel_tls::{self, ALERT, Cipher, Direction, HANDSHAKE, Key};
use forebay_io::socket::{Gather, Scatter};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::{Connection, ConnectionTrafficSecrets, SupportedCipherSuite, Tls13CipherSuite};
use tokio::net::TcpStream;

/// The most that the kernel puts into one record.
const RECORD_BYTES: usize = 16 << 10;
/// Room for what is no data: a record, and one byte more.
const CONTROL_BYTES: usize = RECORD_BYTES + 1;
/// A closing alert: `close_notify`, as a warning (RFC 8446 section 6.1).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// The handshake message that may come after the handshake and needs no answer (RFC 8446 section 4.6.1).
const NEW_SESSION_TICKET: u8 = 4;
/// The kernel's answer to an ordinary receive when what is next is no data.
const NO_DATA: i32 = 5;

/// The TLS of one connection, in the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Records that the key may still protect.
    left: AtomicU64,
}

impl Kernel {
    /// Whether the kernel could go on from here.
    pub(super) fn could(connection: &Connection) -> bool {
        suite(connection)
            .and_then(cipher)
            .is_some_and(|cipher| kernel_tls::offer().has(cipher))
    }

    /// Gives it the keys of a connection that has sent and received all of its handshake, and nothing else.
    ///
    /// # Errors
    /// The system's; the connection is of no use then.
    pub(super) fn take_over(tcp: &TcpStream, connection: Connection) -> io::Result<Kernel> {
        let limit = suite(&connection).map_or(0, |suite| suite.common.confidentiality_limit);
        kernel_tls::attach(tcp)?;
        let secrets = connection
            .dangerous_extract_secrets()
            .map_err(io::Error::other)?;
        for (direction, (sequence, secrets)) in [
            (Direction::Send, &secrets.tx),
            (Direction::Receive, &secrets.rx),
        ] {
            let (cipher, key, iv) = parts(secrets).ok_or(io::ErrorKind::Unsupported)?;
            let iv = iv.as_ref().try_into();
            let key = Key {
                cipher,
                key: key.as_ref(),
                iv: iv.map_err(|_| io::ErrorKind::Unsupported)?,
                sequence: *sequence,
            };
            kernel_tls::set_key(tcp, direction, &key)?;
        }
        Ok(Kernel {
            left: AtomicU64::new(limit),
        })
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when it takes nothing now. Also when the key is used up.
    pub(super) fn send(&self, tcp: &TcpStream, gather: Gather<'_>) -> io::Result<usize> {
        let left = self.left.load(Relaxed);
        if left == 0 {
            return Err(io::Error::other("the connection's key is used up"));
        }
        let sent = gather.send(tcp)?;
        let records = sent / RECORD_BYTES + 1;
        self.left
            .store(left.saturating_sub(records as u64), Relaxed);
        Ok(sent)
    }

    /// Receives what the socket has, at most what fits; 0 when the peer has said that this was all. Less than fits does not mean that
    /// there is no more.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when there is nothing now, [`io::ErrorKind::Interrupted`] when what came was not for
    /// us, [`io::ErrorKind::UnexpectedEof`] when the connection ended and the peer had not said so.
    pub(super) fn receive(&self, tcp: &TcpStream, scatter: Scatter<'_>) -> io::Result<usize> {
        match scatter.receive(tcp) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.raw_os_error() == Some(NO_DATA) => no_data(tcp),
            received => received,
        }
    }

    /// Says that nothing more will be sent. The connection itself is finished by whoever closes it: the end of what TCP carries would
    /// overtake records that the kernel has not given to TCP.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn finish(&self, tcp: &TcpStream) -> io::Result<()> {
        kernel_tls::send_control(tcp, ALERT, &CLOSE_NOTIFY)
    }
}

fn no_data(tcp: &TcpStream) -> io::Result<usize> {
    let mut record = vec![0; CONTROL_BYTES];
    let (content_type, bytes) = kernel_tls::receive_control(tcp, &mut record)?;
    let record = &record[..bytes];
    match content_type {
        // Whatever its level says (RFC 8446 section 6).
        ALERT if matches!(record, [_, 0]) => Ok(0),
        HANDSHAKE if is_tickets(record) => Err(io::ErrorKind::Interrupted.into()),
        ALERT => Err(io::Error::other(format!(
            "the peer's TLS gave up: alert {}",
            record.last().copied().unwrap_or_default()
        ))),
        HANDSHAKE => Err(io::Error::other("the peer changes its keys")),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Whether these handshake messages are session tickets, whole.
fn is_tickets(mut messages: &[u8]) -> bool {
    while let [NEW_SESSION_TICKET, a, b, c, rest @ ..] = messages {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(rest) = rest.get(length..) else {
            return false;
        };
        messages = rest;
    }
    messages.is_empty()
}

fn suite(connection: &Connection) -> Option<&'static Tls13CipherSuite> {
    match connection.negotiated_cipher_suite()? {
        SupportedCipherSuite::Tls13(suite) => Some(suite),
        // Its records are others.
        SupportedCipherSuite::Tls12(_) => None,
    }
}

fn cipher(suite: &Tls13CipherSuite) -> Option<Cipher> {
    match suite.common.suite {
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Cipher::Aes128Gcm),
        rustls::CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Cipher::Aes256Gcm),
        rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Cipher::ChaCha20Poly1305),
        _ => None,
    }
}

fn parts(secrets: &ConnectionTrafficSecrets) -> Option<(Cipher, &AeadKey, &Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => Some((Cipher::Aes128Gcm, key, iv)),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => Some((Cipher::Aes256Gcm, key, iv)),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Some((Cipher::ChaCha20Poly1305, key, iv))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_tickets_are_passed_over() {
        let ticket = [NEW_SESSION_TICKET, 0, 0, 2, 7, 7];
        assert!(is_tickets(&ticket) && is_tickets(&[ticket, ticket].concat()));
        assert!(!is_tickets(&ticket[..5]), "the rest of it follows");
        let update = [24, 0, 0, 1, 0];
        assert!(!is_tickets(&update) && !is_tickets(&[&ticket[..], &update].concat()));
        assert!(!is_tickets(&[NEW_SESSION_TICKET]));
    }
}
