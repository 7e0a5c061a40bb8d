//! A connection whose TLS is the kernel's: it is sent on and received from as one in the clear.
//!
//! What is no data is told apart by the kernel and never lands where data belongs: a good-bye ends the stream, tickets are passed over,
//! and keys are changed when the peer says so, or ours have protected as many records as they may. (Linux follows that since 6.14;
//! before, the link ends.) Anything else ends the link.

use std::io;

use forebay_io::kernel_tls::{self, ALERT, Direction, HANDSHAKE};
use forebay_io::socket::{Gather, Scatter};
use parking_lot::Mutex;
use rustls::{Connection, SupportedCipherSuite, Tls13CipherSuite};
use tokio::net::TcpStream;

use super::keys::{Secrets, Traffic, cipher};

/// The most that the kernel puts into one record.
const RECORD_BYTES: usize = 16 << 10;
/// Room for what is no data: a record, and one byte more.
const CONTROL_BYTES: usize = RECORD_BYTES + 1;
/// A closing alert: `close_notify`, as a warning (RFC 8446 section 6.1).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// Handshake messages that may come after the handshake (RFC 8446 sections 4.6.1, 4.6.3).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// The whole message that what follows it is protected by the next key; the peer's may stay.
const KEY_UPDATED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
/// The kernel's answer (EIO) to an ordinary receive when what is next is no data.
const NO_DATA: i32 = 5;

/// The TLS of one connection, in the kernel.
pub(super) struct Kernel {
    /// Locked only while the link's `Io` is.
    keys: Mutex<Keys>,
}

struct Keys {
    send: Traffic,
    receive: Traffic,
    /// Records that the key we send by may still protect.
    left: u64,
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
    pub(super) fn take_over(
        tcp: &TcpStream,
        connection: Connection,
        secrets: &Secrets,
    ) -> io::Result<Kernel> {
        let suite = suite(&connection).ok_or(io::ErrorKind::Unsupported)?;
        let (client, server) = secrets.take().ok_or(io::ErrorKind::Unsupported)?;
        let (ours, theirs) = match &connection {
            Connection::Client(_) => (client, server),
            Connection::Server(_) => (server, client),
        };
        let traffic = |direction, secret| Traffic {
            suite,
            direction,
            secret,
        };
        let (send, receive) = (
            traffic(Direction::Send, ours),
            traffic(Direction::Receive, theirs),
        );
        let extracted = connection.dangerous_extract_secrets();
        let extracted = extracted.map_err(io::Error::other)?;
        kernel_tls::attach(tcp)?;
        send.give(tcp, extracted.tx.0)?;
        receive.give(tcp, extracted.rx.0)?;
        let keys = Mutex::new(Keys {
            send,
            receive,
            left: suite.common.confidentiality_limit,
        });
        Ok(Kernel { keys })
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when it takes nothing now.
    pub(super) fn send(&self, tcp: &TcpStream, gather: Gather<'_>) -> io::Result<usize> {
        let mut keys = self.keys.lock();
        if keys.left == 0 {
            keys.renew(tcp)?;
        }
        let sent = gather.send(tcp)?;
        let records = sent / RECORD_BYTES + 1;
        keys.left = keys.left.saturating_sub(records as u64);
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
            Err(error) if error.raw_os_error() == Some(NO_DATA) => self.keys.lock().no_data(tcp),
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

impl Keys {
    /// The next key for what we send, which the peer is told.
    fn renew(&mut self, tcp: &TcpStream) -> io::Result<()> {
        kernel_tls::send_control(tcp, HANDSHAKE, &KEY_UPDATED)?;
        self.send.advance()?;
        self.send.give(tcp, 0).map_err(old)?;
        self.left = self.send.suite.common.confidentiality_limit;
        Ok(())
    }

    /// Takes what the kernel keeps from an ordinary receive.
    fn no_data(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        let mut record = vec![0; CONTROL_BYTES];
        let (content_type, bytes) = kernel_tls::receive_control(tcp, &mut record)?;
        let record = &record[..bytes];
        match content_type {
            // Whatever its level says (RFC 8446 section 6).
            ALERT if matches!(record, [_, 0]) => return Ok(0),
            ALERT => {
                let alert = record.last().copied().unwrap_or_default();
                let said = format!("the peer's TLS gave up: alert {alert}");
                return Err(io::Error::other(said));
            }
            HANDSHAKE => {}
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        match told(record) {
            Some(Told::Nothing) => {}
            Some(Told::KeyUpdate { ours_too }) => {
                self.receive.advance()?;
                self.receive.give(tcp, 0).map_err(old)?;
                if ours_too {
                    self.left = 0;
                }
            }
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
        Err(io::ErrorKind::Interrupted.into())
    }
}

/// A kernel that has its keys and takes no others.
fn old(error: io::Error) -> io::Error {
    io::Error::other(format!("the kernel does not change keys: {error}"))
}

/// What handshake messages mean for us.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// What follows is protected by the next key, and what we send is to be.
    KeyUpdate {
        ours_too: bool,
    },
}

/// `None`: what may not come, or not so.
fn told(mut messages: &[u8]) -> Option<Told> {
    loop {
        match messages {
            [] => return Some(Told::Nothing),
            // It ends its record (RFC 8446 section 5.1).
            [KEY_UPDATE, 0, 0, 1, asked @ (0 | 1)] => {
                let ours_too = *asked == 1;
                return Some(Told::KeyUpdate { ours_too });
            }
            [NEW_SESSION_TICKET, a, b, c, rest @ ..] => {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                messages = rest.get(length..)?;
            }
            _ => return None,
        }
    }
}

fn suite(connection: &Connection) -> Option<&'static Tls13CipherSuite> {
    match connection.negotiated_cipher_suite()? {
        SupportedCipherSuite::Tls13(suite) => Some(suite),
        // Its records are others.
        SupportedCipherSuite::Tls12(_) => None,
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_messages_that_may_come_are_heeded() {
        let ticket = [NEW_SESSION_TICKET, 0, 0, 2, 7, 7];
        assert_eq!(told(&ticket), Some(Told::Nothing));
        assert_eq!(told(&[ticket, ticket].concat()), Some(Told::Nothing));
        assert_eq!(told(&ticket[..5]), None, "the rest of it follows");
        assert_eq!(told(&[NEW_SESSION_TICKET]), None);
        let update = |ours_too| Some(Told::KeyUpdate { ours_too });
        assert_eq!(told(&KEY_UPDATED), update(false));
        assert_eq!(told(&[KEY_UPDATE, 0, 0, 1, 1]), update(true));
        assert_eq!(told(&[&ticket[..], &KEY_UPDATED].concat()), update(false));
        assert_eq!(told(&[KEY_UPDATE, 0, 0, 1, 2]), None);
        assert_eq!(told(&[&KEY_UPDATED[..], &ticket].concat()), None);
        assert_eq!(told(&[1, 0, 0, 0]), None, "a ClientHello");
    }
}
