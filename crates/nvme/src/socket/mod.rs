//! The byte stream below a queue: a TCP connection, or TLS over one.
//!
//! In the clear the system gathers from, and scatters to, where bytes lie. With TLS what is sent is copied once before it is encrypted,
//! and what is received is decrypted beside where it belongs and copied there: TLS is a process' own affair here, never the kernel's.
//!
//! - [`Socket`]: the stream, by calls that never wait, and how to wait for it;
//! - `tls`: records; `handshake`: how two ends come to agree on keys.
mod handshake;
mod tls;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_io::socket::{self, Gather, Parts, Scatter};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::Interest;
use tokio::net::TcpStream;

pub(crate) use handshake::{Acceptor, Keys, begins_with_tls, connect};
use tls::Tls;

/// One connection.
pub(crate) struct Socket {
    tcp: Arc<TcpStream>,
    tls: Option<Mutex<Tls>>,
}

/// Whether the system has told that a socket has something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Yes,
    No,
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Socket {
        Socket {
            tcp: Arc::new(tcp),
            tls: None,
        }
    }
}

impl Socket {
    /// The connection itself: its addresses and its options.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether it is encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Its TLS, if it has any. Locked only while the state of its queue is.
    pub(crate) fn tls(&self) -> Option<MutexGuard<'_, Tls>> {
        self.tls.as_ref().map(Mutex::lock)
    }

    /// Waits until there may be something to receive. With TLS that is so until a call has found nothing.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.tcp.readable().await
    }

    /// Waits until something may be sent.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.tcp.writable().await
    }

    /// As [`Socket::readable`].
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_read_ready(cx)
    }

    /// As [`Socket::writable`].
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_write_ready(cx)
    }

    /// Makes calls that the system has told would not block; one that ends with [`io::ErrorKind::WouldBlock`] says it was mistaken.
    pub(crate) fn try_io<T>(
        &self,
        interest: Interest,
        calls: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.tcp.try_io(interest, calls)
    }

    /// Receives into `first` and what is behind it into `second`. Says how many bytes came, which is 0 when there was much and nothing of
    /// it was for us, and whether there may be more.
    ///
    /// # Errors
    /// The system's, of TLS, and the end of the stream.
    pub(crate) fn receive(
        &self,
        first: &mut [u8],
        second: &mut [u8],
        told: Told,
    ) -> io::Result<(usize, bool)> {
        if first.is_empty() && second.is_empty() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut came = (0, false);
        let mut receive = || {
            came = match self.tls() {
                None => {
                    let mut scatter = Scatter::new();
                    scatter.bytes(first);
                    scatter.bytes(second);
                    let asked = scatter.len();
                    match scatter.receive(&*self.tcp)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        received => (received, received == asked),
                    }
                }
                Some(mut tls) => tls.receive_both(first, second)?,
            };
            match came.1 {
                true => Ok(()),
                // Less than there was room for: the socket is empty, and says when it is not.
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        };
        let outcome = match (told, self.is_secure()) {
            (Told::Yes, _) => self.tcp.try_io(Interest::READABLE, receive),
            (Told::No, false) => receive(),
            // What TLS keeps, the system does not tell of.
            (Told::No, true) => Err(io::ErrorKind::WouldBlock.into()),
        };
        match outcome {
            Err(error) if came.0 == 0 => Err(error),
            _ => Ok(came),
        }
    }

    /// Receives until `into` is full, and not one byte more.
    ///
    /// # Errors
    /// As [`Socket::receive`].
    pub(crate) async fn receive_exact(&self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            // A socket that is always ready costs no budget, and whoever calls may be looking at the clock.
            tokio::task::consume_budget().await;
            self.readable().await?;
            match self.receive(&mut into[filled..], &mut [], Told::Yes) {
                Ok((received, _)) => filled += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// The system's, and of TLS.
    pub(crate) async fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            self.writable().await?;
            match self.try_io(Interest::WRITABLE, || self.send(&bytes[sent..])) {
                Ok(now) => sent += now,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends some of it now. With TLS, to be called again with what is left, before anything else is sent.
    ///
    /// # Errors
    /// The system's, and of TLS.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls() {
            None => {
                let mut gather = Gather::new();
                gather.bytes(bytes);
                gather.send(&*self.tcp)
            }
            Some(mut tls) => {
                if let Some(mut plain) = tls.room() {
                    plain.bytes(bytes);
                }
                Ok(tls.send()?.0)
            }
        }
    }

    /// Says that nothing more will be sent; what was is still delivered.
    ///
    /// # Errors
    /// The system's, when the connection is gone.
    pub(crate) fn finish(&self) -> io::Result<()> {
        match self.tls() {
            None => socket::finish(&*self.tcp),
            Some(mut tls) => tls.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Whoever takes what there is, a little at a time, lets others look whether that has gone on for too long.
    #[tokio::test]
    async fn taking_what_is_there_comes_to_an_end() {
        const BYTES: usize = 10_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut peer = TcpStream::connect(address).await.unwrap();
        let socket = Socket::from(listener.accept().await.unwrap().0);
        peer.write_all(&[7; BYTES]).await.unwrap();
        while socket.tcp().peek(&mut [0; BYTES]).await.unwrap() < BYTES {}
        let mut taking = pin!(async {
            for _ in 0..BYTES {
                socket.receive_exact(&mut [0]).await.unwrap();
            }
        });
        let at_once = poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx).is_ready())).await;
        assert!(!at_once);
        taking.await;
    }
}
