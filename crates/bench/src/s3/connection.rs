//! One connection with one request in flight.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::payload::{Payload, STAMP_BYTES};
use crate::s3::request::Ask;
use crate::s3::response::Response;

/// Reads in a row before the thread's other connections get a turn.
const READS_IN_A_ROW: usize = 16;

/// How long an endpoint may do nothing at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How far a request has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The socket has to become ready first.
    Blocked,
    /// There may be more to do at once; it is the others' turn.
    Yielded,
    /// The answer has ended; see [`Connection::answer`].
    Answered,
}

/// One connection with one request in flight.
pub(crate) struct Connection {
    stream: TcpStream,
    quick_ack: bool,
    /// The head of the request in flight; its memory is used again.
    pub(crate) head: Vec<u8>,
    sent: usize,
    body: Option<[u8; STAMP_BYTES]>,
    answer: Response,
    ask: Ask,
    started: Instant,
}

impl Connection {
    /// Connects. A socket that blocks gives up waiting after [`PATIENCE`].
    pub(crate) fn open(
        address: SocketAddr,
        blocking: bool,
        quick_ack: bool,
    ) -> io::Result<Connection> {
        let stream = forebay_io::socket::connect_blocking(address)?;
        if blocking {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
        } else {
            stream.set_nonblocking(true)?;
        }
        Ok(Connection {
            stream,
            quick_ack,
            head: Vec::with_capacity(1024),
            sent: 0,
            body: None,
            answer: Response::new(),
            ask: Ask::CreateBucket,
            started: Instant::now(),
        })
    }

    /// Begins the request whose head stands in `head`.
    pub(crate) fn begin(&mut self, ask: Ask, now: Instant) {
        self.sent = 0;
        self.body = match ask {
            Ask::Put { body, .. } => Some(Payload::stamp(body)),
            _ => None,
        };
        self.answer.restart(matches!(ask, Ask::Head(_)));
        self.ask = ask;
        self.started = now;
    }

    /// What the request in flight asks.
    pub(crate) fn ask(&self) -> Ask {
        self.ask
    }

    /// When the request in flight was begun.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The answer to the request in flight.
    pub(crate) fn answer(&self) -> &Response {
        &self.answer
    }

    /// Goes on until the socket would block or the answer has ended. `scratch` receives the body's bytes, and `see` looks at
    /// them.
    pub(crate) fn drive(
        &mut self,
        payload: &Payload,
        scratch: &mut [u8],
        see: &mut impl FnMut(&[u8]),
    ) -> io::Result<Progress> {
        if !self.is_sent(payload) {
            let resumed = self.sent > 0;
            // Right after the last byte of a request there is nothing to read, unless sending had to wait and an answer came
            // early, whose event is then over.
            if !self.send(payload)? || !resumed {
                return Ok(Progress::Blocked);
            }
        }
        for _ in 0..READS_IN_A_ROW {
            let count = match self.stream.read(scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if self.quick_ack {
                // The kernel falls back to delayed acknowledgements by itself: the option is not sticky (tcp(7)).
                sockopt::set_tcp_quickack(&self.stream, true)?;
            }
            let ended = self
                .answer
                .feed(&scratch[..count], see)
                .map_err(|bad| io::Error::new(ErrorKind::InvalidData, bad))?;
            if ended {
                return Ok(Progress::Answered);
            }
            // A read that does not fill the buffer has emptied the socket: the next byte makes a new event (epoll(7), Q9).
            if count < scratch.len() {
                return Ok(Progress::Blocked);
            }
        }
        Ok(Progress::Yielded)
    }

    fn is_sent(&self, payload: &Payload) -> bool {
        let body = self.body.map_or(0, |_| payload.len());
        self.sent == self.head.len() + body
    }

    /// Sends what is left of head and body; false when the socket is full.
    fn send(&mut self, payload: &Payload) -> io::Result<bool> {
        while !self.is_sent(payload) {
            let (beginning, stamp): (&[u8], &[u8]) = match &self.body {
                Some(stamp) => (payload.beginning(), &stamp[..payload.stamp_len()]),
                None => (&[], &[]),
            };
            let mut parts = [self.head.as_slice(), beginning, stamp].map(IoSlice::new);
            let mut rest = parts.as_mut_slice();
            IoSlice::advance_slices(&mut rest, self.sent);
            match self.stream.write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
