//! The byte stream below a link, as the link moves bytes: by calls that never wait.
//!
//! In the clear, and where the kernel has the keys, the system gathers from, and scatters to, where bytes lie.

use std::io;

use forebay_io::kernel_tls;
use forebay_io::socket::{self, Gather, Parts, Scatter};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;

use super::kernel::Kernel;
use super::stream::{Cover, Stream};
use super::tls::Tls;

/// A connection that is a link's.
pub(super) struct Wire {
    tcp: TcpStream,
    cover: Cover<Mutex<Tls>>,
}

impl Wire {
    /// The connection itself, to wait for it.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Its TLS, if that is this process' affair. Locked only while the link's `Io` is.
    pub(super) fn tls(&self) -> Option<MutexGuard<'_, Tls>> {
        match &self.cover {
            Cover::Process(tls) => Some(tls.lock()),
            Cover::Clear | Cover::Kernel(_) => None,
        }
    }

    /// Whether something is encrypted that the system has not taken.
    pub(super) fn is_behind(&self) -> bool {
        self.tls().is_some_and(|tls| tls.is_behind())
    }

    /// Sends from where bytes lie, as much as the socket takes. Not with a process' TLS.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when it takes nothing now.
    pub(super) fn send(&self, gather: Gather<'_>) -> io::Result<usize> {
        match self.kernel() {
            Some(kernel) => kernel.send(&self.tcp, gather),
            None => gather.send(&self.tcp),
        }
    }

    /// Receives into place: how much, which is 0 when the peer has finished, and whether there may be more now. Not with a process' TLS.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when there is nothing now, [`io::ErrorKind::Interrupted`] when what came was not for
    /// us, [`io::ErrorKind::UnexpectedEof`] when a connection with TLS ended and the peer had not said so.
    pub(super) fn receive(&self, scatter: Scatter<'_>) -> io::Result<(usize, bool)> {
        match self.kernel() {
            Some(kernel) => Ok((kernel.receive(&self.tcp, scatter)?, true)),
            None => {
                let asked = scatter.len();
                let received = scatter.receive(&self.tcp)?;
                Ok((received, received == asked))
            }
        }
    }

    /// Sends these bytes, whole; false when the system does not take them now.
    pub(super) fn say(&self, bytes: &[u8]) -> bool {
        match self.tls() {
            None => {
                let mut gather = Gather::new();
                gather.bytes(bytes);
                self.send(gather).is_ok_and(|sent| sent == bytes.len())
            }
            Some(mut tls) => {
                tls.plain().bytes(bytes);
                matches!(tls.send(&self.tcp), Ok(true))
            }
        }
    }

    /// Says that nothing more will be sent; what was is still delivered.
    ///
    /// # Errors
    /// The system's, when the connection is gone; [`io::ErrorKind::WouldBlock`] when TLS' good-bye does not leave now, and is to be said
    /// once more.
    pub(super) fn finish(&self) -> io::Result<()> {
        let said = match &self.cover {
            Cover::Clear => return socket::finish(&self.tcp),
            Cover::Kernel(kernel) => kernel.finish(&self.tcp),
            Cover::Process(tls) => {
                let mut tls = tls.lock();
                tls.close();
                tls.push(&self.tcp).and_then(|()| socket::finish(&self.tcp))
            }
        };
        match &said {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.abort()?,
            _ => {}
        }
        said
    }

    /// Receives what is of no use any more; 0 when nothing follows.
    ///
    /// # Errors
    /// As [`Wire::receive`].
    pub(super) fn discard(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut scatter = Scatter::new();
        scatter.bytes(into);
        match self.kernel() {
            Some(kernel) => kernel.receive(&self.tcp, scatter),
            None => scatter.receive(&self.tcp),
        }
    }

    /// Ends the connection at once: what is not delivered yet is not delivered any more.
    ///
    /// # Errors
    /// The system's, when the connection is gone.
    pub(super) fn abort(&self) -> io::Result<()> {
        match self.kernel() {
            Some(_) => kernel_tls::abort(&self.tcp),
            None => socket::abort(&self.tcp),
        }
    }

    /// Ends what TCP carries, when the peer has heard all that it is to hear: with the kernel's TLS [`Wire::finish`] does not.
    pub(super) fn close(&self) {
        if self.kernel().is_some() {
            // A connection that is gone needs no end.
            let _ = socket::finish(&self.tcp);
        }
    }

    fn kernel(&self) -> Option<&Kernel> {
        match &self.cover {
            Cover::Kernel(kernel) => Some(kernel),
            Cover::Clear | Cover::Process(_) => None,
        }
    }
}

impl From<Stream> for Wire {
    fn from(stream: Stream) -> Wire {
        let Stream { tcp, cover } = stream;
        let cover = match cover {
            Cover::Clear => Cover::Clear,
            Cover::Process(tls) => Cover::Process(Mutex::new(*tls)),
            Cover::Kernel(kernel) => Cover::Kernel(kernel),
        };
        Wire { tcp, cover }
    }
}
