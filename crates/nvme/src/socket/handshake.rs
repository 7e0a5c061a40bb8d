//! How two ends come to agree on keys: TLS 1.3 with a pre-shared key and an ephemeral exchange (NVMe TCP Transport 1.1, section 3.6.1).
//!
//! Nobody here has a certificate, and nobody trusts one: a handshake without a key that both ends have comes to no end. TLS is s2n-tls,
//! for rustls takes no key from outside.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_proto::nvme::auth::Hash;
use forebay_proto::nvme::psk::{Identity, Psk, TlsKey, offered};
use parking_lot::Mutex;
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::Config;
use s2n_tls::connection::{Connection, ModifiedBuilder};
use s2n_tls::enums::PskHmac;
use s2n_tls::error::Error;
use s2n_tls::psk;
use s2n_tls::security::Policy;
use s2n_tls_tokio::{TlsAcceptor, TlsConnector, TlsStream};
use tokio::net::TcpStream;

use super::Socket;
use super::tls::{Below, Tls};
use crate::target::Proven;

/// TLS 1.3 alone, with TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384 alone, which are what NVMe/TCP names.
const POLICY: &str = "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04";
/// The type of a TLS record that carries a handshake (RFC 8446, section 5.1). No PDU that a host may begin with has this type.
const HANDSHAKE: u8 = 22;
/// Records that are encrypted before the system takes them, in bytes: some, so that one call sends them.
const SEND_BUFFER_BYTES: u32 = 72 << 10;
/// Of what a client offers, the first so many are looked at.
const OFFERS_MAX: usize = 8;
/// How long a broken connection is kept open, so that nobody learns from when it ends; records that are made whole by a tag leave nothing
/// to be learnt.
const BLINDING: Duration = Duration::ZERO;

/// Who knows the keys of hosts.
pub(crate) trait Keys: Send + Sync + 'static {
    /// The key by this identity, if there is one.
    fn key(&self, identity: &Identity<'_>) -> Option<TlsKey>;
}

/// The side of the controller.
pub(crate) struct Acceptor(TlsAcceptor);

/// Waits for the first byte of a connection, and says whether the peer begins with TLS.
pub(crate) async fn begins_with_tls(tcp: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let there = tcp.peek(&mut first).await?;
    Ok(there == 1 && first[0] == HANDSHAKE)
}

/// The side of the host: makes a connection secret by one of these keys.
///
/// # Errors
/// The system's, and of TLS.
pub(crate) async fn connect(tcp: TcpStream, offers: &[Psk]) -> io::Result<Socket> {
    let psks = offers.iter().map(made).collect::<Result<Vec<_>, _>>()?;
    let psks = Arc::new(psks);
    let config = builder()?.build()?;
    let offering = ModifiedBuilder::new(config, move |connection: &mut Connection| {
        for psk in psks.iter() {
            connection.append_psk(psk)?;
        }
        Ok(connection)
    });
    let tcp = Arc::new(tcp);
    // A host has no name that TLS could tell.
    let connector = TlsConnector::new(offering);
    let stream = connector.connect("", Below::new(tcp.clone())).await?;
    agreed(tcp, stream)
}

impl Acceptor {
    /// One that has these keys.
    ///
    /// # Errors
    /// Of TLS.
    pub(crate) fn new(keys: Arc<dyn Keys>) -> io::Result<Acceptor> {
        let mut config = builder()?;
        config.set_client_hello_callback(Chooser(keys))?;
        Ok(Acceptor(TlsAcceptor::new(config.build()?)))
    }

    /// Answers a client; there is no bound on how long that takes but the caller's.
    ///
    /// # Errors
    /// The system's, and of TLS: also that the client has no key of ours.
    pub(crate) async fn accept(&self, tcp: TcpStream) -> io::Result<(Socket, Proven)> {
        let tcp = Arc::new(tcp);
        let stream = self.0.accept(Below::new(tcp.clone())).await?;
        let proven = stream.as_ref().application_context::<Proven>().cloned();
        let proven = proven.ok_or_else(|| io::Error::other("a handshake without a key"))?;
        Ok((agreed(tcp, stream)?, proven))
    }
}

/// A connection whose handshake is done. That it was done by a key is made sure of here.
fn agreed(tcp: Arc<TcpStream>, mut stream: TlsStream<Below>) -> io::Result<Socket> {
    if stream.as_ref().negotiated_psk_identity_length()? == 0 {
        return Err(io::Error::other("a handshake without a key"));
    }
    // Long records, and several of them received by one call.
    let connection = stream.as_mut();
    connection
        .prefer_throughput()?
        .set_receive_buffering(true)?;
    Ok(Socket {
        tcp,
        tls: Some(Mutex::new(Tls::new(stream))),
    })
}

/// What both sides have in common.
fn builder() -> Result<s2n_tls::config::Builder, Error> {
    let mut builder = Config::builder();
    builder
        .set_security_policy(&Policy::from_version(POLICY)?)?
        .with_system_certs(false)?
        .set_send_buffer_size(SEND_BUFFER_BYTES)?
        .set_max_blinding_delay(BLINDING.as_secs() as u32)?;
    Ok(builder)
}

fn made(psk: &Psk) -> Result<psk::Psk, Error> {
    let mut builder = psk::Builder::new()?;
    builder
        .set_identity(psk.identity.as_bytes())?
        .set_secret(&psk.key)?
        .set_hmac(match psk.hash {
            Hash::Sha256 => PskHmac::SHA256,
            Hash::Sha384 | Hash::Sha512 => PskHmac::SHA384,
        })?;
    builder.build()
}

/// Looks up keys only of what a client offers: how many there are costs nobody anything.
struct Chooser(Arc<dyn Keys>);

impl ClientHelloCallback for Chooser {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, Error> {
        let hello = connection.client_hello()?.raw_message()?;
        let known = offered(&hello).take(OFFERS_MAX).find_map(|bytes| {
            let identity = Identity::parse(bytes)?;
            let key = self.0.key(&identity)?;
            let psk = key.answer(&identity)?;
            let proven = Proven {
                host: identity.host.to_owned(),
                subsystem: identity.subsystem.to_owned(),
                key,
            };
            Some((psk, proven))
        });
        // Without any there is nothing that this end could prove itself by, and TLS says so.
        if let Some((psk, proven)) = known {
            connection.append_psk(&made(&psk)?)?;
            connection.set_application_context(proven);
        }
        Ok(None)
    }
}
