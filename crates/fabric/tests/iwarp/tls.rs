//! The same over TLS, and ends that do not agree on it.

use std::io;
use std::sync::Arc;

use forebay_fabric::iwarp::{IwarpLink, Options, Stream, accept, connect};
use forebay_fabric::suite::Suite;
use forebay_fabric::{CloseReason, Error, ErrorKind, Link, MESSAGE_BYTES_MAX};
use forebay_io::kernel_tls::{Cipher, offer};
use forebay_proto::iwarp::ddp::UNTAGGED_BYTES;
use forebay_proto::iwarp::fpdu::Trailer;
use forebay_proto::iwarp::{Outbound, SendKind, mpa};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    CipherSuite, CipherSuiteCommon, ClientConfig, RootCertStore, ServerConfig,
    SupportedCipherSuite, Tls13CipherSuite,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client};

use crate::setup::TERMS;
use crate::{streams, with_crc};

/// A server's side, and that of clients that trust it.
#[derive(Clone)]
struct Ends {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Ends of which each keeps its keys to itself, or lets the kernel have them.
fn ends(server: Keys, client: Keys) -> Ends {
    ends_by(default_provider(), server, client)
}

fn ends_by(provider: CryptoProvider, server: Keys, client: Keys) -> Ends {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = made.cert.into();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(provider);
    let mut server_config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    server_config.enable_secret_extraction = server == Keys::Kernels;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut client_config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client_config.enable_secret_extraction = client == Keys::Kernels;
    Ends {
        server: Arc::new(server_config),
        client: Arc::new(client_config),
    }
}

/// Who may have them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Ours,
    /// Where it has TLS; else as before.
    Kernels,
}

impl Ends {
    async fn shaken(&self) -> (Stream, Stream) {
        let (theirs, ours) = streams().await;
        let (server, client) = tokio::join!(
            Stream::accept(&self.server, theirs),
            Stream::connect(&self.client, localhost(), ours)
        );
        (server.unwrap(), client.unwrap())
    }

    /// The client's end as that of a program that is not ours.
    async fn shaken_by_hand(&self) -> (Stream, client::TlsStream<TcpStream>) {
        let (theirs, ours) = streams().await;
        let connector = TlsConnector::from(self.client.clone());
        let (server, client) = tokio::join!(
            Stream::accept(&self.server, theirs),
            connector.connect(localhost(), ours)
        );
        (server.unwrap(), client.unwrap())
    }

    /// Both ends of a fresh link, the server's first.
    async fn links(&self, options: Options) -> (IwarpLink, IwarpLink) {
        let (theirs, ours) = self.shaken().await;
        let (server, client) = tokio::join!(
            accept(theirs, options, |_| Some(())),
            connect(ours, b"conformance", options)
        );
        (server.unwrap().0, client.unwrap())
    }

    /// A server's link, and a client that has said who it is and nothing else.
    async fn link_by_hand(&self) -> (IwarpLink, client::TlsStream<TcpStream>) {
        let (theirs, mut ours) = self.shaken_by_hand().await;
        let request = mpa::request(&TERMS, b"");
        ours.write_all(&request.encode().unwrap()).await.unwrap();
        let accepted = accept(theirs, Options::default(), |_| Some(())).await;
        (accepted.unwrap().0, ours)
    }
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// Whether this kernel has TLS, by its own account.
fn kernel_has_tls() -> bool {
    // Asked by the first connection, which may be what loads it.
    std::path::Path::new("/proc/net/tls_stat").exists()
}

mod secure {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends(Keys::Ours, Keys::Ours);
        let (server, client) = ends.links(Options::default()).await;
        (server, client, ())
    }));
}

mod secure_with_crc {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends(Keys::Ours, Keys::Ours);
        let (server, client) = ends.links(with_crc()).await;
        (server, client, ())
    }));
}

mod secure_by_kernels {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends(Keys::Kernels, Keys::Kernels);
        let (server, client) = ends.links(Options::default()).await;
        (server, client, ())
    }));
}

mod secure_by_the_servers_kernel {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends(Keys::Kernels, Keys::Ours);
        let (server, client) = ends.links(Options::default()).await;
        (server, client, ())
    }));
}

mod secure_by_the_clients_kernel {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends(Keys::Ours, Keys::Kernels);
        let (server, client) = ends.links(with_crc()).await;
        (server, client, ())
    }));
}

#[tokio::test]
async fn the_kernel_has_keys_where_it_can_and_may() {
    let (server, client) = ends(Keys::Kernels, Keys::Ours).shaken().await;
    assert_eq!(server.is_kernels(), kernel_has_tls());
    assert!(!client.is_kernels());
    let (server, client) = ends(Keys::Ours, Keys::Kernels).shaken().await;
    assert!(!server.is_kernels());
    assert_eq!(client.is_kernels(), kernel_has_tls());
}

#[tokio::test]
async fn every_cipher_carries_a_link() {
    let provider = default_provider();
    let fits = |suite: &&SupportedCipherSuite| {
        // The certificate's key is one of elliptic curves.
        suite.tls13().is_some() || format!("{:?}", suite.suite()).contains("ECDSA")
    };
    for suite in provider.cipher_suites.iter().filter(fits) {
        let only = CryptoProvider {
            cipher_suites: vec![*suite],
            ..provider.clone()
        };
        let ends = ends_by(only, Keys::Kernels, Keys::Kernels);
        let (theirs, ours) = ends.shaken().await;
        let of_kernel = match suite.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => offer().has(Cipher::Aes128Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => offer().has(Cipher::Aes256Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => offer().has(Cipher::ChaCha20Poly1305),
            _ => false,
        };
        assert_eq!(theirs.is_kernels(), of_kernel, "{suite:?}");
        let (server, client) = tokio::join!(
            accept(theirs, Options::default(), |_| Some(())),
            connect(ours, b"", Options::default())
        );
        let ((server, ()), client) = (server.unwrap(), client.unwrap());
        for (from, to) in [(&client, &server), (&server, &client)] {
            let mut received = Vec::new();
            from.send(b"as it was said").await.unwrap();
            to.recv(&mut received).await.unwrap().unwrap();
            assert_eq!(received, b"as it was said", "{suite:?}");
        }
        client.close(CloseReason::Done);
        assert_eq!(server.closed().await, CloseReason::Done, "{suite:?}");
    }
}

/// A process changes its keys when it likes, and may ask that the other does so, too.
#[tokio::test]
async fn a_peer_changes_its_keys() {
    for keys in [Keys::Ours, Keys::Kernels] {
        let (link, mut ours) = ends(keys, Keys::Ours).link_by_hand().await;
        for round in 0..3 {
            ours.get_mut().1.refresh_traffic_keys().unwrap();
            let mut frame = frame_of(b"soon", round);
            ours.write_all(&frame).await.unwrap();
            let mut received = Vec::new();
            link.recv(&mut received).await.unwrap().unwrap();
            assert_eq!(received, b"soon");
            link.send(b"well").await.unwrap();
            if round == 0 {
                let mut header = [0; mpa::HEADER_BYTES];
                ours.read_exact(&mut header).await.unwrap();
                let whole = mpa::frame_bytes(mpa::Kind::Reply, &header).unwrap();
                let mut rest = vec![0; whole - header.len()];
                ours.read_exact(&mut rest).await.unwrap();
            }
            frame = frame_of(b"well", round);
            let mut answer = vec![0; frame.len()];
            ours.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, frame);
        }
    }
}

/// What a message is on the wire, as the first or a later one of its link.
fn frame_of(message: &[u8], before: usize) -> Vec<u8> {
    let mut outbound = Outbound::new();
    let mut send = outbound.begin_send(SendKind::default());
    for _ in 0..before {
        send = outbound.begin_send(SendKind::default());
    }
    let mut frame = Outbound::send(&mut send, message.len(), true).to_vec();
    frame.extend_from_slice(message);
    let trailer = Trailer::new(UNTAGGED_BYTES + message.len(), None);
    frame.extend_from_slice(trailer.as_bytes());
    frame
}

/// Ciphers whose keys are used up after a few records.
fn short_lived() -> CryptoProvider {
    let mut provider = default_provider();
    provider.cipher_suites = provider
        .cipher_suites
        .iter()
        .filter_map(|suite| suite.tls13())
        .map(|suite| {
            let common = CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: 16,
            };
            // It is for all of a process' time.
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common,
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        })
        .collect();
    provider
}

mod secure_by_keys_that_are_soon_used_up {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let ends = ends_by(short_lived(), Keys::Kernels, Keys::Kernels);
        let (server, client) = ends.links(Options::default()).await;
        (server, client, ())
    }));
}

#[tokio::test]
async fn keys_that_are_used_up_are_followed_by_others() {
    const MESSAGES: usize = 200;
    for (server, client) in [(Keys::Ours, Keys::Kernels), (Keys::Kernels, Keys::Ours)] {
        let ends = ends_by(short_lived(), server, client);
        let (server, client) = ends.links(Options::default()).await;
        for number in 0..MESSAGES {
            for (from, to) in [(&client, &server), (&server, &client)] {
                let message = number.to_be_bytes();
                let mut received = Vec::new();
                from.send(&message).await.unwrap();
                to.recv(&mut received).await.unwrap().unwrap();
                assert_eq!(received, message);
            }
        }
    }
}

#[tokio::test]
async fn an_end_in_the_clear_is_told() {
    let ends = ends(Keys::Ours, Keys::Ours);
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        Stream::accept(&ends.server, theirs),
        connect(ours, b"", Options::default())
    );
    server.unwrap_err();
    let Error { kind, message } = client.unwrap_err();
    assert_eq!(
        (kind, &*message),
        (ErrorKind::Closed, "the peer speaks TLS")
    );
}

#[tokio::test]
async fn an_end_with_tls_gets_no_link_in_the_clear() {
    let ends = ends(Keys::Ours, Keys::Ours);
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        accept(theirs, Options::default(), |_| Some(())),
        Stream::connect(&ends.client, localhost(), ours)
    );
    assert_eq!(server.unwrap_err().kind, ErrorKind::Closed);
    client.unwrap_err();
}

/// A client that trusts somebody else says so, and both know.
#[tokio::test]
async fn a_certificate_that_nobody_trusts_makes_no_connection() {
    let (theirs, ours) = streams().await;
    let server = ends(Keys::Ours, Keys::Ours).server;
    let client = ends(Keys::Ours, Keys::Ours).client;
    let (server, client) = tokio::join!(
        Stream::accept(&server, theirs),
        Stream::connect(&client, localhost(), ours)
    );
    assert_eq!(client.unwrap_err().kind(), io::ErrorKind::InvalidData);
    let told = server.unwrap_err();
    assert_eq!(told.kind(), io::ErrorKind::InvalidData, "{told}");
}

/// A cut is no end: only whoever holds the keys can say that all was said.
#[tokio::test]
async fn a_connection_that_is_cut_was_not_finished() {
    for keys in [Keys::Ours, Keys::Kernels] {
        let ends = ends(keys, keys);
        let (theirs, ours) = ends.shaken().await;
        let (accepted, client) =
            tokio::join!(accept(theirs, Options::default(), |_| Some(())), async {
                let link = connect(ours, b"", Options::default()).await.unwrap();
                link.close(CloseReason::Done);
                link
            });
        assert_eq!(accepted.unwrap().0.closed().await, CloseReason::Done);
        drop(client);

        let (link, ours) = ends.link_by_hand().await;
        let (mut tcp, _keys) = ours.into_inner();
        tcp.shutdown().await.unwrap();
        assert_eq!(link.closed().await, CloseReason::Lost);
    }
}

/// What was said is heard, however fast whoever said it goes, and however slow the others listen.
#[tokio::test]
async fn an_end_comes_behind_all_that_was_said() {
    const MESSAGES: usize = 64;
    for keys in [Keys::Ours, Keys::Kernels] {
        let (server, client) = ends(keys, keys).links(Options::default()).await;
        let saying = tokio::spawn(async move {
            for number in 0..MESSAGES {
                let message = vec![number as u8; MESSAGE_BYTES_MAX];
                client.send(&message).await.unwrap();
            }
            let _placed = client.fence().await.unwrap();
            client.close(CloseReason::Done);
        });
        let mut received = Vec::new();
        for number in 0..MESSAGES {
            server.recv(&mut received).await.unwrap().unwrap();
            assert!(received == vec![number as u8; MESSAGE_BYTES_MAX]);
        }
        assert!(server.recv(&mut received).await.unwrap().is_none());
        saying.await.unwrap();
    }
}

/// A stream that somebody in between has changed ends its link.
#[tokio::test]
async fn what_is_no_record_ends_the_link() {
    for keys in [Keys::Ours, Keys::Kernels] {
        let (link, ours) = ends(keys, Keys::Ours).link_by_hand().await;
        let (mut tcp, _keys) = ours.into_inner();
        tcp.write_all(&[23, 3, 3, 0, 32]).await.unwrap();
        tcp.write_all(&[0; 32]).await.unwrap();
        assert_eq!(link.closed().await, CloseReason::Lost);
    }
}

/// Records as short as can be are received all the same, and keep nobody from others for long.
#[tokio::test]
async fn a_record_for_every_byte() {
    const MESSAGES: usize = 4;
    for keys in [Keys::Ours, Keys::Kernels] {
        let message = vec![7; MESSAGE_BYTES_MAX];
        let (link, mut ours) = ends(keys, Keys::Ours).link_by_hand().await;
        let mut outbound = Outbound::new();
        let mut frames = Vec::new();
        for _ in 0..MESSAGES {
            let mut send = outbound.begin_send(SendKind::default());
            frames.extend_from_slice(&Outbound::send(&mut send, message.len(), true));
            frames.extend_from_slice(&message);
            let trailer = Trailer::new(UNTAGGED_BYTES + message.len(), None);
            frames.extend_from_slice(trailer.as_bytes());
        }
        let sending = tokio::spawn(async move {
            for byte in frames {
                ours.write_all(&[byte]).await.unwrap();
            }
            ours.flush().await.unwrap();
            ours
        });
        let mut received = Vec::new();
        for _ in 0..MESSAGES {
            link.recv(&mut received).await.unwrap().unwrap();
            assert!(received == message);
        }
        sending.await.unwrap();
    }
}
