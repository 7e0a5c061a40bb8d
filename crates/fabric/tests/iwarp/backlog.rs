//! What waits for nobody to take it, while its sender owes an answer: one tenant's over all links, and what is left to others.

use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::iwarp::{Options, accept_of};
use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::{
    CloseReason, Connection, Link, MESSAGE_BYTES_MAX, RemoteRange, Session, Sessions, Stag,
    SystemClock,
};
use forebay_mem::Pool;
use forebay_proto::iwarp::Fault;
use forebay_proto::iwarp::mpa::{self, FRAME_BYTES_MAX, Frame, HEADER_BYTES, Kind};
use forebay_proto::iwarp::rdmap::Opcode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::spawn;

use crate::hostile::untagged;
use crate::setup::TERMS;
use crate::streams;

const LINKS: usize = 32;
/// What all tenants have together.
const BACKLOG: usize = 8 << 20;
/// What each link has besides: 128 KiB, and what comes with one call more.
const OF_LINK: usize = 256 << 10;
/// What each peer says, in messages of 16 KiB.
const MESSAGES: u32 = 256;

fn open(sessions: &Sessions, tenant: &str) -> Arc<Session> {
    let principal = Principal {
        tenant,
        id: "key",
        secret: "secret",
    };
    let lease = Duration::from_secs(3600);
    sessions.open_with_random_key(principal, lease).unwrap()
}

/// A link of this session, which waits for an answer, and a peer who can say anything.
async fn asked(sessions: &Sessions, session: &Session, pool: &Pool) -> (Connection, TcpStream) {
    let (theirs, mut peer) = streams().await;
    let proof = session.proof();
    let request = mpa::request(&TERMS, &proof).encode().unwrap();
    peer.write_all(&request).await.unwrap();
    let accepted = accept_of(theirs, Options::default(), sessions).await;
    let link = accepted.unwrap().link;
    let mut reply = [0; FRAME_BYTES_MAX];
    peer.read_exact(&mut reply[..HEADER_BYTES]).await.unwrap();
    let whole = mpa::frame_bytes(Kind::Reply, reply[..].first_chunk().unwrap()).unwrap();
    let rest = &mut reply[HEADER_BYTES..whole];
    peer.read_exact(rest).await.unwrap();
    assert!(!Frame::parse(Kind::Reply, &reply[..whole]).unwrap().reject);
    let from = RemoteRange {
        stag: Stag(1),
        offset: 0,
        len: 100,
    };
    let into = pool.take(100).await;
    let reading = link.clone();
    spawn(async move { drop(reading.read(from, into).await) });
    (link, peer)
}

/// Says all that it has to say, as far as it is taken, and answers nothing.
async fn talk(mut peer: TcpStream, messages: u32) -> TcpStream {
    for msn in 1..=messages {
        let message = untagged(Opcode::Send, 0, msn, &[7; MESSAGE_BYTES_MAX]);
        if peer.write_all(&message).await.is_err() {
            break;
        }
    }
    peer
}

/// How much waits there.
async fn waiting(link: &Connection) -> usize {
    link.close(CloseReason::Done);
    let (mut message, mut bytes) = (Vec::new(), 0);
    while let Ok(Some(())) = link.recv(&mut message).await {
        bytes += message.len();
    }
    bytes
}

#[tokio::test]
async fn a_tenant_has_no_more_of_it_than_it_leaves() {
    let limits = Limits {
        links: LINKS,
        backlog: BACKLOG,
        ..Limits::default()
    };
    let sessions = Sessions::new(Arc::new(SystemClock::default()), limits);
    let pool = Pool::new(8 << 20);
    let session = open(&sessions, "one");
    let (mut links, mut talking) = (Vec::new(), Vec::new());
    for _ in 0..LINKS {
        let (link, peer) = asked(&sessions, &session, &pool).await;
        links.push(link);
        talking.push(spawn(talk(peer, MESSAGES)));
    }
    for talking in talking {
        talking.await.unwrap();
    }
    let ended = links.iter().filter(|link| link.has_ended()).count();
    assert!(ended > 0);
    for link in links.iter().filter(|link| link.has_ended()) {
        let reason = CloseReason::Violation(Fault::Stream.to_string());
        assert_eq!(link.closed().await, reason);
    }

    // Others have room meanwhile.
    let other = open(&sessions, "other");
    let (link, peer) = asked(&sessions, &other, &pool).await;
    let _peer = talk(peer, 64).await;
    let mut message = Vec::new();
    for _ in 0..64 {
        link.recv(&mut message).await.unwrap().unwrap();
    }

    let mut bytes = 0;
    for link in &links {
        bytes += waiting(link).await;
    }
    assert!(bytes < BACKLOG / 2 + LINKS * OF_LINK, "{bytes} bytes wait");
    // So has the tenant, when all that is taken.
    drop(links);
    let (link, peer) = asked(&sessions, &open(&sessions, "one"), &pool).await;
    let _peer = talk(peer, 64).await;
    for _ in 0..64 {
        link.recv(&mut message).await.unwrap().unwrap();
    }
}
