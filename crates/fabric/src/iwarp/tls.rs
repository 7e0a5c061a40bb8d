//! TLS of a process: what is sent is copied once before it is encrypted, and what is received comes out of records into the receiver's
//! staging area.

use std::io::{self, BufRead, IoSlice, Write};

use forebay_io::socket::{Gather, Plain, Scatter};
use forebay_mem::{CopySite, count_copy};
use rustls::Connection;
use tokio::net::TcpStream;

/// Room for records: several, so that one call receives them.
const RECORDS_BYTES: usize = 64 << 10;

/// Calls to the socket for one look at what there is: records may be empty.
const CALLS_MAX: usize = 8;

/// One connection's TLS.
#[derive(Debug)]
pub(super) struct Tls {
    connection: Connection,
    /// What is to be encrypted next.
    plain: Vec<u8>,
    records: Box<[u8]>,
    /// The bytes of `records` that are not looked at yet.
    start: usize,
    end: usize,
}

impl Tls {
    /// Goes on where the handshake has ended.
    pub(super) fn new(mut connection: Connection) -> Tls {
        // Its bound is that of `Plain`: no more is encrypted before all of that is taken.
        connection.set_buffer_limit(None);
        Tls {
            connection,
            plain: Vec::new(),
            records: vec![0; RECORDS_BYTES].into(),
            start: 0,
            end: 0,
        }
    }

    /// Whether something is encrypted that the system has not taken.
    pub(super) fn is_behind(&self) -> bool {
        self.connection.wants_write()
    }

    /// What is sent next is that nothing more will be.
    pub(super) fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// Where what is to be sent goes.
    pub(super) fn plain(&mut self) -> Plain<'_> {
        self.plain.clear();
        Plain(&mut self.plain)
    }

    /// How much that is.
    pub(super) fn plain_bytes(&self) -> usize {
        self.plain.len()
    }

    /// Encrypts that and sends it; false when the system does not take all of it now, which [`Tls::push`] then sends.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn send(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        self.connection.writer().write_all(&self.plain)?;
        match self.push(tcp) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends what is encrypted.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when it does not take all of it now.
    pub(super) fn push(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Taker(tcp))?;
        }
        Ok(())
    }

    /// Receives into `into`; says how much, which is 0 when the peer has finished, and whether there may be more now.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when there is nothing now, [`io::ErrorKind::Interrupted`] when there was much and nothing
    /// of it was for us, [`io::ErrorKind::UnexpectedEof`] when the connection ended and the peer had not said so,
    /// [`io::ErrorKind::InvalidData`] for what is no TLS.
    pub(super) fn receive(
        &mut self,
        tcp: &TcpStream,
        into: &mut [u8],
    ) -> io::Result<(usize, bool)> {
        let mut filled = 0;
        let mut calls = 0;
        while filled < into.len() {
            let more = match self.decrypted(&mut into[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.start == self.end {
                        calls += 1;
                    }
                    match calls > CALLS_MAX {
                        true => Err(io::ErrorKind::Interrupted.into()),
                        false => self.records(tcp).map(|()| None),
                    }
                }
                decrypted => decrypted.map(Some),
            };
            match more {
                Ok(None) => {}
                Ok(Some(0)) => break,
                Ok(Some(bytes)) => filled += bytes,
                Err(error) if filled == 0 => return Err(error),
                // Whatever else it is comes again when there is nothing before it.
                Err(error) => return Ok((filled, error.kind() != io::ErrorKind::WouldBlock)),
            }
        }
        Ok((filled, true))
    }

    fn decrypted(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut reader = self.connection.reader();
        let there = reader.fill_buf()?;
        let bytes = there.len().min(into.len());
        into[..bytes].copy_from_slice(&there[..bytes]);
        count_copy(CopySite::LinkTls, bytes);
        reader.consume(bytes);
        Ok(bytes)
    }

    /// Decrypts some of what the system has.
    fn records(&mut self, tcp: &TcpStream) -> io::Result<()> {
        if self.start == self.end {
            let mut scatter = Scatter::new();
            scatter.bytes(&mut self.records);
            (self.start, self.end) = (0, scatter.receive(tcp)?);
        }
        // Nothing: the end, which TLS must know of.
        let mut rest = &self.records[self.start..self.end];
        let taken = self.connection.read_tls(&mut rest)?;
        self.start += taken;
        if let Err(error) = self.connection.process_new_packets() {
            // The peer is told why, if that is still possible.
            let _ = self.push(tcp);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }
}

/// Takes records for a socket that never waits.
pub(super) struct Taker<'a>(pub(super) &'a TcpStream);

impl Write for Taker<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut gather = Gather::new();
        gather.bytes(bytes);
        gather.send(self.0)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut gather = Gather::new();
        for part in parts {
            if !gather.bytes(part) {
                break;
            }
        }
        gather.send(self.0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
