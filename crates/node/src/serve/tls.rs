//! Certificates of doors.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::iwarp;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::exit::{Exit, Failure, Outcome};

/// How long a client may take to agree on keys.
pub const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Speaks HTTP over TLS with this certificate, where there is one.
pub fn http(certificate: Option<&Path>, key: Option<&Path>) -> Outcome<Option<Arc<ServerConfig>>> {
    Ok(config(certificate, key, b"http/1.1")?.map(Arc::new))
}

/// The same for links; their keys may go to the kernel.
pub fn links(certificate: Option<&Path>, key: Option<&Path>) -> Outcome<Option<Arc<ServerConfig>>> {
    let config = config(certificate, key, iwarp::TLS_PROTOCOL)?;
    Ok(config.map(|mut config| {
        config.enable_secret_extraction = true;
        Arc::new(config)
    }))
}

/// TLS 1.2 and 1.3 with this certificate, where there is one, about `protocol` (RFC 7301).
fn config(
    certificate: Option<&Path>,
    key: Option<&Path>,
    protocol: &[u8],
) -> Outcome<Option<ServerConfig>> {
    let (Some(certificate), Some(key)) = (certificate, key) else {
        return Ok(None);
    };
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
    Ok(Some(config))
}
