//! Certificates of doors.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::exit::{Exit, Failure, Outcome};

/// Speaks TLS 1.2 and 1.3 with this certificate, about `protocol` (RFC 7301).
pub fn acceptor(certificate: &Path, key: &Path, protocol: &[u8]) -> Outcome<TlsAcceptor> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format_args!("{}: {error}", path.display()))
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(certificate, &error))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(certificate, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(|error| wrong(certificate, &error))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
