//! Records of TLS over a connection whose handshake is done.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use forebay_io::socket::{self, Gather, Plain, Scatter};
use forebay_mem::{CopySite, count_copy};
use s2n_tls_tokio::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Calls to the system for one look at what there is: records may be empty.
const CALLS_MAX: u32 = 4;

/// One connection's TLS.
pub(crate) struct Tls {
    stream: TlsStream<Below>,
    /// What is being encrypted and sent.
    plain: Vec<u8>,
    /// Bytes of `plain` that are sent.
    gone: usize,
}

impl Tls {
    /// Of a connection whose two ends agree.
    pub(super) fn new(mut stream: TlsStream<Below>) -> Tls {
        stream.get_mut().waits = false;
        Tls {
            stream,
            plain: Vec::new(),
            gone: 0,
        }
    }

    /// Where what is to be sent goes; `None` while something waits to be sent.
    pub(crate) fn room(&mut self) -> Option<Plain<'_>> {
        self.plain.is_empty().then_some(Plain(&mut self.plain))
    }

    /// Sends what waits. Says how much of it is sent now, and whether that is all of it.
    ///
    /// # Errors
    /// The system's and of TLS; [`io::ErrorKind::WouldBlock`] when it takes nothing now.
    pub(crate) fn send(&mut self) -> io::Result<(usize, bool)> {
        let waits = &self.plain[self.gone..];
        if waits.is_empty() {
            return Ok((0, true));
        }
        let sent = polled(|cx| Pin::new(&mut self.stream).poll_write(cx, waits))?;
        self.gone += sent;
        let whole = self.gone == self.plain.len();
        if whole {
            self.plain.clear();
            self.gone = 0;
        }
        Ok((sent, whole))
    }

    /// As [`Tls::receive`], into `first` and what is behind it into `second`.
    ///
    /// # Errors
    /// As [`Tls::receive`].
    pub(super) fn receive_both(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<(usize, bool)> {
        if first.is_empty() {
            return self.receive(second);
        }
        let (placed, more) = self.receive(first)?;
        if placed < first.len() || second.is_empty() {
            return Ok((placed, more));
        }
        match self.receive(second) {
            Ok((behind, more)) => Ok((placed + behind, more)),
            Err(error) => Ok((placed, error.kind() != io::ErrorKind::WouldBlock)),
        }
    }

    /// Receives into `into`. Says how much, which is 0 when there was much and nothing of it was for us, and whether there may be more now.
    ///
    /// # Errors
    /// The system's: [`io::ErrorKind::WouldBlock`] when there is nothing now, [`io::ErrorKind::UnexpectedEof`] at the end; of TLS.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut filled = 0;
        self.stream.get_mut().calls = CALLS_MAX;
        while filled < into.len() {
            let mut room = ReadBuf::new(&mut into[filled..]);
            let read = polled(|cx| Pin::new(&mut self.stream).poll_read(cx, &mut room));
            let received = room.filled().len();
            match read {
                Ok(()) if received == 0 && filled == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(()) if received == 0 => break,
                Ok(()) => {
                    count_copy(CopySite::LinkTls, received);
                    filled += received;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let more = self.stream.get_ref().calls == 0;
                    return match filled == 0 && !more {
                        true => Err(error),
                        false => Ok((filled, more)),
                    };
                }
                Err(error) if filled == 0 => return Err(error),
                // Whatever else it is comes again when there is nothing before it.
                Err(_) => break,
            }
        }
        Ok((filled, true))
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// The system's, and that it does not take this now.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        polled(|cx| Pin::new(&mut self.stream).poll_shutdown(cx))
    }
}

/// Makes a call that does not wait.
fn polled<T>(call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match call(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Nobody will wake whoever asked: it asks again when it likes to, which a waker that is called at once says.
fn not_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// What TLS moves its records over. While the two ends agree it waits as others do; from then on nobody waits here: who calls is told by
/// the connection itself when to call again.
pub(super) struct Below {
    tcp: Arc<TcpStream>,
    waits: bool,
    /// How often more may be received, where nobody waits.
    calls: u32,
}

impl Below {
    pub(super) fn new(tcp: Arc<TcpStream>) -> Below {
        Below {
            tcp,
            waits: true,
            calls: 0,
        }
    }
}

impl AsyncRead for Below {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.waits {
            if self.calls == 0 {
                return not_now(cx);
            }
            self.calls -= 1;
        }
        let tcp = &*self.tcp;
        let room = into.initialize_unfilled();
        loop {
            let mut receive = || {
                let mut scatter = Scatter::new();
                scatter.bytes(&mut *room);
                scatter.receive(tcp)
            };
            let received = match self.waits {
                false => receive(),
                true => {
                    ready!(tcp.poll_read_ready(cx))?;
                    tcp.try_io(Interest::READABLE, receive)
                }
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.waits {
                        return not_now(cx);
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
                Ok(received) => {
                    into.advance(received);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Below {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let tcp = &*self.tcp;
        loop {
            let send = || {
                let mut gather = Gather::new();
                gather.bytes(bytes);
                gather.send(tcp)
            };
            let sent = match self.waits {
                false => send(),
                true => {
                    ready!(tcp.poll_write_ready(cx))?;
                    tcp.try_io(Interest::WRITABLE, send)
                }
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.waits {
                        return not_now(cx);
                    }
                }
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket::finish(&*self.tcp))
    }
}
