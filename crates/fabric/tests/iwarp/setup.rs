//! How two ends agree, and how they do not.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::iwarp::{Options, accept, accept_of, connect};
use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::{ErrorKind, Link, RemoteRange, Sessions, Stag, SystemClock};
use forebay_mem::Buf;
use forebay_proto::iwarp::Outbound;
use forebay_proto::iwarp::ddp::{TAGGED_BYTES, Tagged};
use forebay_proto::iwarp::fpdu::Trailer;
use forebay_proto::iwarp::mpa::{self, ENHANCED_BYTES, Frame, HEADER_BYTES, Kind, Terms};
use forebay_proto::iwarp::rdmap::Opcode;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::streams;

pub const TERMS: Terms = Terms {
    crc: false,
    ird: 4,
    ord: 4,
    peer_to_peer: true,
};

#[tokio::test]
async fn the_initiator_says_who_it_is() {
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        accept(theirs, Options::default(), |data| (data == b"me")
            .then_some(7)),
        connect(ours, b"me", Options::default()),
    );
    let ((server, seven), client) = (server.unwrap(), client.unwrap());
    assert_eq!(seven, 7);
    // Either side may begin.
    server.send(b"welcome").await.unwrap();
    let mut message = Vec::new();
    client.recv(&mut message).await.unwrap().unwrap();
    assert_eq!(message, b"welcome");
}

#[tokio::test]
async fn a_stranger_is_refused() {
    let (theirs, ours) = streams().await;
    let (server, client) = tokio::join!(
        accept(theirs, Options::default(), |_| None::<()>),
        connect(ours, b"stranger", Options::default()),
    );
    assert_eq!(server.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(client.unwrap_err().kind, ErrorKind::Closed);
    let (_theirs, ours) = streams().await;
    let long = connect(ours, &[0; 509], Options::default()).await;
    assert_eq!(long.unwrap_err().kind, ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn silence_and_a_byte_at_a_time_end() {
    let (theirs, ours) = streams().await;
    let silent = accept(theirs, Options::default(), |_| Some(())).await;
    assert_eq!(silent.unwrap_err().kind, ErrorKind::Closed);
    drop(ours);
    let (theirs, ours) = streams().await;
    let silent = connect(ours, b"", Options::default()).await;
    assert_eq!(silent.unwrap_err().kind, ErrorKind::Closed);
    drop(theirs);
    let (theirs, mut ours) = streams().await;
    let slow = tokio::spawn(async move {
        for byte in mpa::request(&TERMS, b"").encode().unwrap() {
            if ours.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    });
    let late = accept(theirs, Options::default(), |_| Some(())).await;
    assert_eq!(late.unwrap_err().kind, ErrorKind::Closed);
    slow.abort();
}

#[tokio::test]
async fn frames_that_cannot_be_make_no_link() {
    let good = mpa::request(&TERMS, b"me").encode().unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let mut marked = mpa::request(&TERMS, b"");
    marked.markers = true;
    let bad = [
        with(0, b'X'),
        with(17, 0),
        with(17, 3),
        with(18, 0xff),
        marked.encode().unwrap(),
        good[..HEADER_BYTES + 1].to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Vec::new(),
    ];
    for bytes in bad {
        let (theirs, mut ours) = streams().await;
        ours.write_all(&bytes).await.unwrap();
        ours.shutdown().await.unwrap();
        let link = accept(theirs, Options::default(), |_| Some(())).await;
        assert_eq!(link.unwrap_err().kind, ErrorKind::Closed, "{bytes:?}");
        let mut reply = Vec::new();
        // What it was sent and did not read resets the connection.
        let _ = ours.read_to_end(&mut reply).await;
        let reply = Frame::parse(Kind::Reply, &reply);
        let is_marked = bytes[..] == marked.encode().unwrap();
        assert_eq!(reply.is_ok_and(|reply| reply.reject), is_marked);
    }
}

#[tokio::test]
async fn an_older_peer_gets_an_older_reply() {
    let (theirs, mut ours) = streams().await;
    let request = Frame {
        revision: 1,
        enhanced: None,
        crc: true,
        ..mpa::request(&TERMS, b"old")
    };
    ours.write_all(&request.encode().unwrap()).await.unwrap();
    let link = accept(theirs, Options::default(), |data| {
        (data == b"old").then_some(())
    })
    .await;
    let mut reply = [0; HEADER_BYTES];
    ours.read_exact(&mut reply).await.unwrap();
    let reply = Frame::parse(Kind::Reply, &reply).unwrap();
    assert!(link.is_ok() && reply.crc && reply.revision == 1 && reply.enhanced.is_none());
}

#[tokio::test]
async fn replies_that_cannot_be_make_no_link() {
    let request = mpa::request(&TERMS, b"");
    let (_, good) = mpa::accept(&TERMS, &request, b"").unwrap();
    let mut older = good;
    older.revision = 1;
    let mut deeper = good;
    deeper.enhanced.as_mut().unwrap().ord = 65;
    let mut strange = good;
    strange.enhanced.as_mut().unwrap().rtr = mpa::RtrKinds::default();
    let bad = [
        (older, Some(4)),
        (deeper, Some(6)),
        (strange, Some(7)),
        (mpa::reject(&request, b"no"), None),
    ];
    for (reply, code) in bad {
        let (mut theirs, ours) = streams().await;
        let peer = tokio::spawn(async move {
            theirs.write_all(&reply.encode().unwrap()).await.unwrap();
            let mut asked = [0; HEADER_BYTES + ENHANCED_BYTES];
            theirs.read_exact(&mut asked).await.unwrap();
            let mut rest = Vec::new();
            theirs.read_to_end(&mut rest).await.unwrap();
            rest
        });
        let link = connect(ours, b"", Options::default()).await;
        assert_eq!(link.unwrap_err().kind, ErrorKind::Closed);
        // A refusal is the last word; whoever thinks to have accepted is told by Terminate what is wrong with that, below MPA.
        let said: Vec<u8> = code.map_or(Vec::new(), |code| {
            let head = [0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2];
            let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x20, code, 0, 0, 0, 0, 0, 0];
            [&head[..], &rest].concat()
        });
        assert_eq!(peer.await.unwrap(), said);
    }
}

/// The longest segments are for who says that it takes them.
#[tokio::test]
async fn segments_are_as_long_as_the_peer_says_that_it_takes_them() {
    let far = RemoteRange {
        stag: Stag(1),
        offset: 0,
        len: 1 << 17,
    };
    let (ours, theirs) = (b"ort1 and more", b"something else");
    for (said, answered, bytes) in [
        (&ours[..], &b"ort1"[..], 65520),
        (&theirs[..], &b""[..], 61440),
    ] {
        let frame_bytes = HEADER_BYTES + ENHANCED_BYTES;
        let value = || vec![Buf::from(vec![7; 1 << 17])];
        // Of a server.
        let (theirs, mut peer) = streams().await;
        let request = mpa::request(&TERMS, said).encode().unwrap();
        peer.write_all(&request).await.unwrap();
        let (link, ()) = accept(theirs, Options::default(), |_| Some(()))
            .await
            .unwrap();
        let mut reply = vec![0; frame_bytes + answered.len()];
        peer.read_exact(&mut reply).await.unwrap();
        let reply = Frame::parse(Kind::Reply, &reply).unwrap();
        assert_eq!(reply.private_data, answered);
        let ready = Tagged {
            opcode: Opcode::Write,
            last: true,
            stag: 0,
            offset: 0,
        };
        let mut ready = Outbound::tagged(ready, 0).to_vec();
        ready.extend(Trailer::new(TAGGED_BYTES, None).as_bytes());
        peer.write_all(&ready).await.unwrap();
        link.write(far, value()).await.unwrap();
        assert_eq!(peer.read_u16().await.unwrap(), bytes + 14);

        // And of a client.
        let (mut peer, ours) = streams().await;
        let answering = async {
            let mut request = [0; HEADER_BYTES + ENHANCED_BYTES];
            peer.read_exact(&mut request).await.unwrap();
            let request = Frame::parse(Kind::Request, &request).unwrap();
            let (_, reply) = mpa::accept(&TERMS, &request, said).unwrap();
            peer.write_all(&reply.encode().unwrap()).await.unwrap();
            let mut ready = vec![0; ready.len()];
            peer.read_exact(&mut ready).await.unwrap();
        };
        let (link, ()) = tokio::join!(connect(ours, b"", Options::default()), answering);
        link.as_ref().unwrap().write(far, value()).await.unwrap();
        assert_eq!(peer.read_u16().await.unwrap(), bytes + 14);
    }
}

/// A peer whose host has lost its power says nothing any more: the system asks.
#[tokio::test]
async fn the_system_asks_whether_a_silent_peer_is_there() {
    let (theirs, ours) = streams().await;
    let asked = |stream: &TcpStream| stream.as_fd().try_clone_to_owned().unwrap();
    let ends = [asked(&theirs), asked(&ours)];
    let (server, client) = tokio::join!(
        accept(theirs, Options::default(), |_| Some(())),
        connect(ours, b"", Options::default())
    );
    let _links = (server.unwrap(), client.unwrap());
    for end in &ends {
        assert!(sockopt::socket_keepalive(end).unwrap());
        assert!(sockopt::tcp_keepidle(end).unwrap() <= Duration::from_secs(60));
    }
}

/// Reads of it would wait for ever, and so would fences.
#[tokio::test]
async fn a_peer_that_answers_no_reads_gets_no_link() {
    let none = Terms { ird: 0, ..TERMS };
    let request = mpa::request(&none, b"").encode().unwrap();
    let (theirs, mut ours) = streams().await;
    ours.write_all(&request).await.unwrap();
    let link = accept(theirs, Options::default(), |_| Some(())).await;
    assert_eq!(link.unwrap_err().kind, ErrorKind::Closed);
    let mut reply = vec![0; request.len()];
    ours.read_exact(&mut reply).await.unwrap();
    assert!(Frame::parse(Kind::Reply, &reply).unwrap().reject);

    let (mut theirs, ours) = streams().await;
    let replying = async {
        let mut request = vec![0; request.len()];
        theirs.read_exact(&mut request).await.unwrap();
        let request = Frame::parse(Kind::Request, &request).unwrap();
        let (_, reply) = mpa::accept(&none, &request, b"").unwrap();
        theirs.write_all(&reply.encode().unwrap()).await.unwrap();
    };
    let (link, ()) = tokio::join!(connect(ours, b"", Options::default()), replying);
    assert_eq!(link.unwrap_err().kind, ErrorKind::Closed);
}

/// A peer that is answered has its link in its session already: one that cannot have it is refused, and not sent away afterwards.
#[tokio::test]
async fn a_link_is_its_sessions_before_its_peer_is_told() {
    let limits = Limits {
        links: 1,
        ..Limits::default()
    };
    let sessions = Sessions::new(Arc::new(SystemClock::default()), limits);
    let hour = Duration::from_secs(3600);
    let principal = Principal {
        tenant: "tenant",
        id: "key",
        secret: "secret",
    };
    let session = sessions.open_with_random_key(principal, hour);
    let session = session.unwrap();
    let proof = session.proof();
    let (theirs, ours) = streams().await;
    let (accepted, first) = tokio::join!(
        accept_of(theirs, Options::default(), &sessions),
        connect(ours, &proof, Options::default())
    );
    let (accepted, first) = (accepted.unwrap(), first.unwrap());
    assert_eq!(session.links().len(), 1);
    first.send(b"heard").await.unwrap();
    let mut message = Vec::new();
    accepted.link.recv(&mut message).await.unwrap().unwrap();
    assert_eq!(message, b"heard");

    let (theirs, ours) = streams().await;
    let (accepted, second) = tokio::join!(
        accept_of(theirs, Options::default(), &sessions),
        connect(ours, &proof, Options::default())
    );
    assert_eq!(accepted.unwrap_err().kind, ErrorKind::Closed);
    let refused = second.unwrap_err();
    assert_eq!(
        (refused.kind, refused.message.as_str()),
        (ErrorKind::Closed, "the peer refused")
    );
    assert_eq!(session.links().len(), 1);
}
