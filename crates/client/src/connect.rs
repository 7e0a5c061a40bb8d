//! Connections: made, kept alive, handed out one request at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_fabric::iwarp;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::CertificateError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;

use crate::{Endpoint, Error, Result};

/// Where Debian, Fedora and SUSE keep the certificates that the machine trusts.
const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];
/// A connection unused for longer has probably been closed by the other end.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Whose certificates are trusted.
#[derive(Clone)]
pub struct Tls {
    config: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Trusts the certificates of a PEM file, or without one those of the machine.
    ///
    /// # Errors
    /// [`Error::Local`] when there are none.
    pub fn new(ca: Option<&Path>) -> Result<Tls> {
        let path = match ca {
            Some(path) => path,
            None => SYSTEM_ROOTS
                .iter()
                .map(Path::new)
                .find(|path| path.exists())
                .unwrap_or(Path::new(SYSTEM_ROOTS[0])),
        };
        let wrong = |what: String| Error::Local {
            what: path.display().to_string(),
            source: std::io::Error::other(what),
        };
        let mut roots = rustls::RootCertStore::empty();
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            match (roots.add(certificate), ca) {
                (Err(error), Some(_)) => return Err(wrong(error.to_string())),
                // The machine's store may hold old certificates that nobody needs.
                (Err(_), None) | (Ok(()), _) => {}
            }
        }
        if roots.is_empty() {
            return Err(wrong("no certificates".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Tls {
            config: Arc::new(config),
        })
    }

    /// The trust alone.
    pub fn config(&self) -> Arc<rustls::ClientConfig> {
        self.config.clone()
    }

    /// The same trust for connections that carry this protocol (RFC 7301).
    pub(crate) fn speaking(&self, protocol: &[u8]) -> TlsConnector {
        TlsConnector::from(Arc::new(self.about(protocol)))
    }

    /// The same trust for links, whose keys may go to the kernel.
    pub(crate) fn of_links(&self) -> Arc<rustls::ClientConfig> {
        let mut config = self.about(iwarp::TLS_PROTOCOL);
        config.enable_secret_extraction = true;
        Arc::new(config)
    }

    fn about(&self, protocol: &[u8]) -> rustls::ClientConfig {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

/// A failed handshake, in words for whoever chooses the certificates.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let words = match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "nobody who is trusted here has signed its certificate (--ca names others)"
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other)))
            if other.to_string() == "CaUsedAsEndEntity" =>
        {
            "its certificate is an authority's (CA:TRUE), which may sign a server's and not be one"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

/// The connections to one endpoint.
pub(crate) struct Pool {
    endpoint: Endpoint,
    tls: Option<Tls>,
    timeout: Duration,
    idle: Mutex<Vec<(SendRequest<Full<Bytes>>, Instant)>>,
    permits: Arc<Semaphore>,
}

/// A connection for one request; kept for the next one by [`Lease::done`], closed when dropped.
pub(crate) struct Lease {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// Whether it has carried a request before: it may then be dead without anybody knowing.
    pub(crate) reused: bool,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(
        endpoint: Endpoint,
        tls: Option<Tls>,
        timeout: Duration,
        connections_max: usize,
    ) -> Pool {
        Pool {
            endpoint,
            tls,
            timeout,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(connections_max)),
        }
    }

    /// A connection, an idle one if there is one and `fresh` does not forbid it; waits at the bound.
    pub(crate) async fn take(self: &Arc<Pool>, fresh: bool) -> Result<Lease> {
        let closed = |_| self.lost("closed");
        let permit = self.permits.clone().acquire_owned().await.map_err(closed)?;
        while let Some((sender, since)) = self.idle.lock().pop() {
            if !fresh && since.elapsed() < IDLE_MAX && !sender.is_closed() {
                return Ok(self.lease(sender, true, permit));
            }
        }
        let sender = tokio::time::timeout(self.timeout, self.connect())
            .await
            .map_err(|_| Error::TimedOut(self.timeout))??;
        Ok(self.lease(sender, false, permit))
    }

    pub(crate) fn lost(&self, what: impl std::fmt::Display) -> Error {
        Error::Transport {
            endpoint: self.endpoint.to_string(),
            what: what.to_string(),
        }
    }

    fn lease(
        self: &Arc<Pool>,
        sender: SendRequest<Full<Bytes>>,
        reused: bool,
        permit: OwnedSemaphorePermit,
    ) -> Lease {
        Lease {
            sender,
            reused,
            pool: self.clone(),
            _permit: permit,
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let host = self.endpoint.host();
        let stream = forebay_io::socket::connect(host, self.endpoint.port())
            .await
            .map_err(|error| self.lost(error))?;
        if !self.endpoint.secure() {
            return self.handshake(stream).await;
        }
        let tls = self
            .tls
            .as_ref()
            .ok_or_else(|| self.lost("no TLS configuration"))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| self.lost(error))?;
        let stream = TlsConnector::from(tls.config.clone())
            .connect(name, stream)
            .await
            .map_err(|error| self.lost(explained(error)))?;
        self.handshake(stream).await
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<SendRequest<Full<Bytes>>> {
        let (sender, connection) = http1::Builder::new()
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.lost(error))?;
        // Its errors are also those of the request that it carries.
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Lease {
    /// The answer has been read to its end: the connection may carry another request.
    pub(crate) fn done(self) {
        if !self.sender.is_closed() {
            let idle = &self.pool.idle;
            idle.lock().push((self.sender, Instant::now()));
        }
    }
}
