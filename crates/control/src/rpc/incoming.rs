//! Connections: TCP, or TLS over it, bounded in number, handshakes side by side.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::identity::{CERTIFICATE_URI, Peer};

/// How long a client may take for its part of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when the system gives no connection: usually it has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A certificate, key or authority that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// TLS 1.2 and 1.3 from PEM: the server's certificates, its key, and the authority of clients' certificates, if those may
/// identify themselves so. A client's certificate names an access key by the URI `forebay:key/ID` among its alternative names.
///
/// # Errors
/// What is wrong with which of the three.
pub fn tls_config(
    certificate: &[u8],
    key: &[u8],
    client_ca: Option<&[u8]>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let wrong = |what: &'static str| move |error: String| TlsError(format!("{what}: {error}"));
    let chain = certificates(certificate).map_err(wrong("certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| error.to_string())
        .map_err(wrong("key"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
        .map_err(wrong("certificate"))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(authority).map_err(wrong("client authority"))? {
                roots
                    .add(root)
                    .map_err(|error| error.to_string())
                    .map_err(wrong("client authority"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                // Those who show none may have a bearer token.
                .allow_unauthenticated()
                .build()
                .map_err(|error| error.to_string())
                .map_err(wrong("client authority"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())
        .map_err(wrong("certificate"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(read) if read.is_empty() => Err("there is no certificate in it".to_owned()),
        Ok(read) => Ok(read),
        Err(error) => Err(error.to_string()),
    }
}

/// Connections ready to speak HTTP/2, until the stream is dropped. At the bound the next one waits in the listener's queue.
pub(crate) fn connections(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    bound: usize,
) -> impl Stream<Item = Connection> {
    let (ready, mut next) = mpsc::channel(1);
    tokio::spawn(accept(listener, tls.map(TlsAcceptor::from), bound, ready));
    stream::poll_fn(move |context| next.poll_recv(context))
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    bound: usize,
    ready: mpsc::Sender<Connection>,
) {
    let room = Arc::new(Semaphore::new(bound));
    let accepting = async {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "the gRPC door accepts no connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let ready = ready.clone();
            match tls.clone() {
                None => {
                    let stream = Transport::Plain(stream);
                    let peer = Peer::new(address, None);
                    // It fails only when the door has closed.
                    let _ = ready.send(Connection::new(stream, peer, permit)).await;
                }
                Some(tls) => {
                    tokio::spawn(async move {
                        let shaking = tokio::time::timeout(HANDSHAKE, tls.accept(stream));
                        match shaking.await {
                            Ok(Ok(stream)) => {
                                let connection = Connection::secured(stream, address, permit);
                                let _ = ready.send(connection).await;
                            }
                            Ok(Err(error)) => tracing::debug!(%address, %error, "no TLS"),
                            Err(_) => tracing::debug!(%address, "no TLS in time"),
                        }
                    });
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = ready.closed() => {}
    }
}

/// A connection to a client.
pub(crate) struct Connection {
    transport: Transport,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Its other end.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    fn new(transport: Transport, peer: Peer, permit: OwnedSemaphorePermit) -> Connection {
        Connection {
            transport,
            peer,
            _permit: permit,
        }
    }

    fn secured(
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) -> Connection {
        let (_, session) = stream.get_ref();
        let key = session
            .peer_certificates()
            .and_then(|chain| named_key(chain.first()?));
        Connection::new(
            Transport::Tls(Box::new(stream)),
            Peer::new(address, key),
            permit,
        )
    }
}

/// The access key that a verified certificate names; none when it names several.
fn named_key(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut keys = certificate
        .valid_uri_names()
        .filter_map(|uri| uri.strip_prefix(CERTIFICATE_URI));
    let key = keys.next()?;
    keys.next().is_none().then(|| key.into())
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
