//! iWARP: the conformance suite over it, and what only it has: the agreement of two ends, and peers that break the protocol.
//!
//! Two of our own ends agree whatever they say; the frames are therefore also compared with known ones (room `proto`) and with
//! another implementation (`lab/siw`).

mod backlog;
mod hostile;
mod setup;
mod tls;

use forebay_fabric::iwarp::{IwarpLink, Options, accept, connect};
use forebay_fabric::suite::Suite;
use tokio::net::{TcpListener, TcpStream};

/// Both ends of a fresh TCP connection, the listening side's first.
async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (server.unwrap().0, client.unwrap())
}

/// Both ends of a fresh link, the server's first.
async fn links(server: Options, client: Options) -> (IwarpLink, IwarpLink) {
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        accept(theirs, server, |_| Some(())),
        connect(ours, b"conformance", client)
    );
    (server.unwrap().0, client.unwrap())
}

fn with_crc() -> Options {
    Options {
        crc: Some(true),
        ..Options::default()
    }
}

mod plain {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let (server, client) = links(Options::default(), Options::default()).await;
        (server, client, ())
    }));
}

mod crc {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let (server, client) = links(Options::default(), with_crc()).await;
        (server, client, ())
    }));
}

/// Segments so short that each message has many.
mod short_segments {
    use super::*;

    forebay_fabric::conformance!(Suite::new(async || {
        let short = Options {
            segment_bytes: 1000,
            ..Options::default()
        };
        let (server, client) = links(short, short).await;
        (server, client, ())
    }));
}
