//! The same over TLS, and ends that do not agree on it.

use std::sync::Arc;

use forebay_fabric::iwarp::{IwarpLink, Options, accept, connect};
use forebay_fabric::suite::Suite;
use forebay_fabric::{CloseReason, Error, ErrorKind, Link, MESSAGE_BYTES_MAX};
use forebay_proto::iwarp::ddp::UNTAGGED_BYTES;
use forebay_proto::iwarp::fpdu::Trailer;
use forebay_proto::iwarp::rdmap::Opcode;
use forebay_proto::iwarp::{Outbound, mpa};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::setup::TERMS;
use crate::{streams, with_crc};

/// A server's side, and that of clients that trust it.
fn configured() -> (TlsAcceptor, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = made.cert.into();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server).into(), Arc::new(client).into())
}

async fn shaken(
    acceptor: &TlsAcceptor,
    connector: &TlsConnector,
) -> (server::TlsStream<TcpStream>, client::TlsStream<TcpStream>) {
    let (theirs, ours) = streams().await;
    let name = ServerName::try_from("localhost").unwrap();
    let (server, client) = tokio::join!(acceptor.accept(theirs), connector.connect(name, ours));
    (server.unwrap(), client.unwrap())
}

/// Both ends of a fresh link, the server's first.
async fn links(options: Options) -> (IwarpLink, IwarpLink) {
    let (acceptor, connector) = configured();
    let (theirs, ours) = shaken(&acceptor, &connector).await;
    let (server, client) = tokio::join!(
        accept(theirs, options, |_| Some(())),
        connect(ours, b"conformance", options)
    );
    (server.unwrap().0, client.unwrap())
}

mod secure {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let (server, client) = links(Options::default()).await;
        (server, client, ())
    }));
}

mod secure_with_crc {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let (server, client) = links(with_crc()).await;
        (server, client, ())
    }));
}

#[tokio::test]
async fn an_end_in_the_clear_is_told() {
    let (acceptor, _) = configured();
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        async { acceptor.accept(theirs).await.map(drop) },
        connect(ours, b"", Options::default())
    );
    assert!(server.is_err());
    let Error { kind, message } = client.unwrap_err();
    assert_eq!(
        (kind, &*message),
        (ErrorKind::Closed, "the peer speaks TLS")
    );
}

#[tokio::test]
async fn an_end_with_tls_gets_no_link_in_the_clear() {
    let (_, connector) = configured();
    let (theirs, ours) = streams().await;
    let name = ServerName::try_from("localhost").unwrap();
    let (server, client) = tokio::join!(
        accept(theirs, Options::default(), |_| Some(())),
        connector.connect(name, ours)
    );
    assert_eq!(server.unwrap_err().kind, ErrorKind::Closed);
    client.unwrap_err();
}

/// A cut is no end: only whoever holds the keys can say that all was said.
#[tokio::test]
async fn a_connection_that_is_cut_was_not_finished() {
    let (acceptor, connector) = configured();
    let (theirs, ours) = shaken(&acceptor, &connector).await;
    let (accepted, client) =
        tokio::join!(accept(theirs, Options::default(), |_| Some(())), async {
            let link = connect(ours, b"", Options::default()).await.unwrap();
            link.close(CloseReason::Done);
            link
        });
    assert_eq!(accepted.unwrap().0.closed().await, CloseReason::Done);
    drop(client);

    let (theirs, mut ours) = shaken(&acceptor, &connector).await;
    let request = mpa::request(&TERMS, b"");
    ours.write_all(&request.encode().unwrap()).await.unwrap();
    let (link, ()) = accept(theirs, Options::default(), |_| Some(()))
        .await
        .unwrap();
    let (mut tcp, _keys) = ours.into_inner();
    tcp.shutdown().await.unwrap();
    assert_eq!(link.closed().await, CloseReason::Lost);
}

/// A stream that somebody in between has changed ends its link.
#[tokio::test]
async fn what_is_no_record_ends_the_link() {
    let (acceptor, connector) = configured();
    let (theirs, mut ours) = shaken(&acceptor, &connector).await;
    let request = mpa::request(&TERMS, b"");
    ours.write_all(&request.encode().unwrap()).await.unwrap();
    let (link, ()) = accept(theirs, Options::default(), |_| Some(()))
        .await
        .unwrap();
    let (mut tcp, _keys) = ours.into_inner();
    tcp.write_all(&[23, 3, 3, 0, 32]).await.unwrap();
    tcp.write_all(&[0; 32]).await.unwrap();
    assert_eq!(link.closed().await, CloseReason::Lost);
}

/// Records as short as can be are received all the same, and keep nobody from others for long.
#[tokio::test]
async fn a_record_for_every_byte() {
    const MESSAGES: usize = 4;
    let message = vec![7; MESSAGE_BYTES_MAX];
    let (acceptor, connector) = configured();
    let (theirs, mut ours) = shaken(&acceptor, &connector).await;
    let request = mpa::request(&TERMS, b"");
    ours.write_all(&request.encode().unwrap()).await.unwrap();
    let accepted = accept(theirs, Options::default(), |_| Some(())).await;
    let (link, ()) = accepted.unwrap();
    let mut outbound = Outbound::new();
    let mut frames = Vec::new();
    for _ in 0..MESSAGES {
        let mut send = outbound.begin_send(Opcode::Send, 0);
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
