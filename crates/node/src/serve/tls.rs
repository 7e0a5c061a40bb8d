//! Certificates of doors.

use std::path::Path;
use std::sync::Arc;

use forebay_fabric::iwarp;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::exit::{Exit, Failure, Outcome};

/// Speaks HTTP over TLS with this certificate.
pub fn http(certificate: &Path, key: &Path) -> Outcome<TlsAcceptor> {
    let config = config(certificate, key, b"http/1.1")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// For links over TLS with this certificate; their keys may go to the kernel.
pub fn links(certificate: &Path, key: &Path) -> Outcome<Arc<ServerConfig>> {
    let mut config = config(certificate, key, iwarp::TLS_PROTOCOL)?;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// TLS 1.2 and 1.3 with this certificate, about `protocol` (RFC 7301).
fn config(certificate: &Path, key: &Path, protocol: &[u8]) -> Outcome<ServerConfig> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format_args!("{}: {error}", path.display()))
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(certificate, &error))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(certificate, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(|error| wrong(certificate, &error))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}
