//! A connection that a link is to be made of: TCP, or TLS over it.
//!
//! The handshake is this process' affair, and receives no byte behind itself: where the kernel has TLS, it goes on from there with the
//! keys.

use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_io::socket::{self, Gather, Parts, Scatter};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, KeyLog, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::kernel::Kernel;
use super::keys::Secrets;
use super::tls::{Taker, Tls};

/// Of a record: its type, a version, its length.
const HEADER_BYTES: usize = 5;
/// What a peer may have sent that is no TLS, and is read so that it hears why it is sent away.
const IGNORED_BYTES: usize = 4096;

/// A connection that a link is to be made of.
#[derive(Debug)]
pub struct Stream {
    pub(super) tcp: TcpStream,
    pub(super) cover: Cover<Box<Tls>>,
}

/// What keeps others on the way from reading and changing bytes.
#[derive(Debug)]
pub(super) enum Cover<T> {
    /// Nothing.
    Clear,
    /// TLS of this process.
    Process(T),
    /// TLS of the kernel.
    Kernel(Kernel),
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Stream {
        let cover = Cover::Clear;
        Stream { tcp, cover }
    }
}

impl Stream {
    /// TLS with whoever connected. Where `enable_secret_extraction` allows it and the kernel has TLS, the kernel does it from then on.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::InvalidData`] when the two do not agree.
    pub async fn accept(config: &Arc<ServerConfig>, tcp: TcpStream) -> io::Result<Stream> {
        let may = config.enable_secret_extraction;
        let (config, secrets) = overheard(config, may, |config| &mut config.key_log);
        let connection = ServerConnection::new(config).map_err(invalid)?;
        Stream::agreed(tcp, connection.into(), secrets).await
    }

    /// TLS with whoever was connected to, and is called so. As [`Stream::accept`].
    ///
    /// # Errors
    /// As [`Stream::accept`].
    pub async fn connect(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        tcp: TcpStream,
    ) -> io::Result<Stream> {
        let may = config.enable_secret_extraction;
        let (config, secrets) = overheard(config, may, |config| &mut config.key_log);
        let connection = ClientConnection::new(config, name).map_err(invalid)?;
        Stream::agreed(tcp, connection.into(), secrets).await
    }

    /// Whether the kernel encrypts it.
    pub fn is_kernels(&self) -> bool {
        matches!(self.cover, Cover::Kernel(_))
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    async fn agreed(
        tcp: TcpStream,
        mut connection: Connection,
        secrets: Option<Arc<Secrets>>,
    ) -> io::Result<Stream> {
        shake_hands(&tcp, &mut connection).await?;
        let cover = match secrets.filter(|_| Kernel::could(&connection)) {
            Some(secrets) => Cover::Kernel(Kernel::take_over(&tcp, connection, &secrets)?),
            None => Cover::Process(Box::new(Tls::new(connection))),
        };
        Ok(Stream { tcp, cover })
    }

    /// Sends what is encrypted.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Cover::Process(tls) = &mut self.cover else {
            return Poll::Ready(Ok(()));
        };
        while tls.is_behind() {
            ready!(self.tcp.poll_write_ready(cx))?;
            match self.tcp.try_io(Interest::WRITABLE, || tls.push(&self.tcp)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                pushed => pushed?,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The configuration of one connection, and where its secrets will be, if they may be known.
fn overheard<C: Clone>(
    config: &Arc<C>,
    may: bool,
    log: impl FnOnce(&mut C) -> &mut Arc<dyn KeyLog>,
) -> (Arc<C>, Option<Arc<Secrets>>) {
    if !may {
        return (config.clone(), None);
    }
    let mut own = (**config).clone();
    let secrets = Arc::new(Secrets::default());
    *log(&mut own) = secrets.clone();
    (Arc::new(own), Some(secrets))
}

/// Sends and receives the handshake, and not a byte behind it.
async fn shake_hands(tcp: &TcpStream, connection: &mut Connection) -> io::Result<()> {
    let mut records = Records {
        tcp,
        header: [0; HEADER_BYTES],
        filled: 0,
        left: 0,
    };
    loop {
        while connection.wants_write() {
            tcp.writable().await?;
            passing(tcp.try_io(Interest::WRITABLE, || connection.write_tls(&mut Taker(tcp))))?;
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        tcp.readable().await?;
        let read = tcp.try_io(Interest::READABLE, || connection.read_tls(&mut records));
        if passing(read)? == Some(0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = connection.process_new_packets() {
            // The peer is told why, if that is still possible.
            let _ = connection.write_tls(&mut Taker(tcp));
            let _ = socket::finish(tcp);
            // What is not read would cut that short.
            let _ = tcp.try_read(&mut [0; IGNORED_BYTES]);
            return Err(invalid(error));
        }
    }
}

/// `None`: not now.
fn passing(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        moved => moved.map(Some),
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Receives at most the rest of one record's header, or of its body.
struct Records<'a> {
    tcp: &'a TcpStream,
    header: [u8; HEADER_BYTES],
    /// How much of the header is there.
    filled: usize,
    /// How much of the body is not there yet.
    left: usize,
}

impl Read for Records<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let more = match self.left {
            0 => HEADER_BYTES - self.filled,
            left => left,
        };
        let most = more.min(into.len());
        let into = &mut into[..most];
        let mut scatter = Scatter::new();
        scatter.bytes(into);
        let received = scatter.receive(self.tcp)?;
        if self.left > 0 {
            self.left -= received;
            return Ok(received);
        }
        self.header[self.filled..][..received].copy_from_slice(&into[..received]);
        self.filled += received;
        if let [_, _, _, high, low] = self.header
            && self.filled == HEADER_BYTES
        {
            (self.filled, self.left) = (0, usize::from(u16::from_be_bytes([high, low])));
        }
        Ok(received)
    }
}

/// While the two sides agree on the link.
impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Stream { tcp, cover } = self.get_mut();
        let room = into.initialize_unfilled();
        let mut receive = |room: &mut [u8]| match cover {
            Cover::Process(tls) => tls.receive(tcp, room).map(|(received, _)| received),
            Cover::Clear => scattered(room).receive(&*tcp),
            Cover::Kernel(kernel) => kernel.receive(tcp, scattered(room)),
        };
        loop {
            // What is decrypted is there even when the socket has no more.
            let mut received = receive(room);
            if is_blocked(&received) {
                ready!(tcp.poll_read_ready(cx))?;
                received = tcp.try_io(Interest::READABLE, || receive(room));
            }
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    // There may be much of that: others get a turn.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                received if is_blocked(&received) => {}
                received => {
                    into.advance(received?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

fn scattered(room: &mut [u8]) -> Scatter<'_> {
    let mut scatter = Scatter::new();
    scatter.bytes(room);
    scatter
}

fn is_blocked(moved: &io::Result<usize>) -> bool {
    matches!(moved, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        ready!(stream.poll_push(cx))?;
        let Stream { tcp, cover } = stream;
        let kernel = match cover {
            Cover::Clear => None,
            Cover::Kernel(kernel) => Some(kernel),
            Cover::Process(tls) => {
                let taken = tls.plain().bytes(bytes);
                tls.send(tcp)?;
                return Poll::Ready(Ok(taken));
            }
        };
        loop {
            ready!(tcp.poll_write_ready(cx))?;
            let mut gather = Gather::new();
            gather.bytes(bytes);
            let sent = tcp.try_io(Interest::WRITABLE, || match &kernel {
                None => gather.send(&*tcp),
                Some(kernel) => kernel.send(tcp, gather),
            });
            if !is_blocked(&sent) {
                return Poll::Ready(sent);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_push(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        match &mut stream.cover {
            Cover::Kernel(kernel) => return Poll::Ready(kernel.finish(&stream.tcp)),
            Cover::Process(tls) => tls.close(),
            Cover::Clear => {}
        }
        ready!(stream.poll_push(cx))?;
        Poll::Ready(socket::finish(&stream.tcp))
    }
}
