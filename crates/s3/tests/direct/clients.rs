//! The published clients as functions of an answer (C of section 8): none may take a decline or an error for success, and
//! each takes a success for one.

use forebay_proto::s3::checksum::{Algorithm, checksum};
use forebay_s3::Config;

use crate::rig::*;
use crate::support::{ALPHA, Answer, Ask, Sign};

/// What a client makes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Success,
    /// It sends the payload over HTTP, or asks for it.
    Fallback,
    Failure,
}
use Verdict::{Failure, Fallback, Success};

/// What it had asked for.
#[derive(Clone, Copy)]
struct Asked {
    put: bool,
    size: u64,
}

type Client = fn(&Answer, Asked) -> Verdict;

const CLIENTS: [(&str, Client); 6] = [
    ("C1 mcpp", mcpp),
    ("C2 nixl", nixl),
    ("C3 everpure", everpure),
    ("C4 vgw", vgw),
    ("C5 awsc", awsc),
    ("C6 hip bridge", hip_bridge),
];

fn reply(answer: &Answer) -> Option<u16> {
    answer.header("x-amz-rdma-reply")?.parse().ok()
}

fn bytes(answer: &Answer) -> Option<u64> {
    answer.header("x-amz-rdma-bytes-transferred")?.parse().ok()
}

fn has_etag(answer: &Answer) -> bool {
    answer.header("etag").is_some_and(|etag| !etag.is_empty())
}

/// PUT: HTTP 200 and an entity tag, whatever the reply says. GET: reply 200 or 206. Anything else goes over HTTP.
fn mcpp(answer: &Answer, asked: Asked) -> Verdict {
    match (asked.put, reply(answer)) {
        (true, _) if answer.status == 200 && has_etag(answer) => Success,
        (false, Some(200 | 206)) => Success,
        _ => Fallback,
    }
}

/// HTTP and reply are equal, and no more bytes than asked for; PUT also by entity tag.
fn nixl(answer: &Answer, asked: Asked) -> Verdict {
    if asked.put {
        return match answer.status == 200 && has_etag(answer) {
            true => Success,
            false => Failure,
        };
    }
    let fits = bytes(answer).is_some_and(|bytes| bytes <= asked.size);
    match reply(answer) {
        Some(200 | 206) if reply(answer) == Some(answer.status) && fits => Success,
        _ => Failure,
    }
}

/// The reply is there, and HTTP is 2xx.
fn everpure(answer: &Answer, asked: Asked) -> Verdict {
    let good = matches!(reply(answer), Some(200 | 204 | 206));
    let told = asked.put || bytes(answer).is_some();
    match (200..300).contains(&answer.status) && good && told {
        true => Success,
        false => Failure,
    }
}

/// The reply is there and the bytes are all that was asked for.
fn vgw(answer: &Answer, asked: Asked) -> Verdict {
    let good = matches!(reply(answer), Some(200 | 206));
    match (200..300).contains(&answer.status) && good && bytes(answer) == Some(asked.size) {
        true => Success,
        false => Failure,
    }
}

/// A reply from 400 on means no RDMA any more: a GET with 2xx was served by its body, a PUT with 2xx is sent again with one.
fn awsc(answer: &Answer, asked: Asked) -> Verdict {
    let ok = (200..300).contains(&answer.status);
    match (ok, reply(answer)) {
        (true, Some(400..)) => Fallback,
        (true, _) if asked.put || bytes(answer).is_some() => Success,
        _ => Failure,
    }
}

/// PUT: HTTP 200 and an entity tag; an empty or 501 reply falls back.
fn hip_bridge(answer: &Answer, asked: Asked) -> Verdict {
    match (answer.status, reply(answer)) {
        (_, None | Some(501)) => Fallback,
        (200, Some(200..300)) if !asked.put || has_etag(answer) => Success,
        (206, Some(206)) if !asked.put => Success,
        _ => Failure,
    }
}

#[tokio::test]
async fn c1_to_c6_success_is_success() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let put = rig.put(&peer, "/bucket/key", 0, 1000).await;
    let get = rig.get(&peer, "/bucket/key", 0, 1000).await;
    let part = Ask::new("GET", "/bucket/key").header("range", "bytes=100-199");
    let part = rig.send(&peer, part, 0, 100).await;
    for (name, client) in CLIENTS {
        let asked = |put, size| Asked { put, size };
        assert_eq!(client(&put, asked(true, 1000)), Success, "{name}");
        assert_eq!(client(&get, asked(false, 1000)), Success, "{name}");
        assert_eq!(client(&part, asked(false, 100)), Success, "{name}");
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn c1_to_c6_no_decline_and_no_error_is_success() {
    let rig = Rig::open().await;
    let closed = Rig::closed(Config::default()).await;
    victim(&rig).await;
    victim(&closed).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    for put in [true, false] {
        let method = if put { "PUT" } else { "GET" };
        let with = |target: &str, value: &str| {
            Ask::new(method, target)
                .header("x-amz-rdma-token", value)
                .sign(Sign::Unsigned)
        };
        let replayed = {
            let ask = Ask::new(method, "/bucket/victim");
            let token = peer.token(&ask, rig.server.now_ms(), 0, 9);
            let ask = peer.carry(ask, &token);
            rig.server.ask(ALPHA, ask.clone()).await;
            rig.server.ask(ALPHA, ask).await
        };
        let ask = Ask::new(method, "/bucket/victim");
        let answers = [
            (
                "declined",
                closed.server.ask(ALPHA, with("/bucket/victim", DC81)).await,
            ),
            (
                "unknown",
                rig.server
                    .ask(ALPHA, with("/bucket/victim", "new-scheme"))
                    .await,
            ),
            (
                "malformed",
                rig.server
                    .ask(ALPHA, with("/bucket/victim", &DC81[1..]))
                    .await,
            ),
            ("replayed", replayed),
            (
                "no bucket",
                rig.send(&peer, Ask::new(method, "/none/key"), 0, 9).await,
            ),
            ("no memory", rig.send(&peer, ask, 1 << 40, 9).await),
        ];
        for (case, answer) in &answers {
            for (name, client) in CLIENTS {
                let verdict = client(answer, Asked { put, size: 9 });
                assert_ne!(verdict, Success, "{name} {method} {case}: {answer:?}");
            }
        }
        // A decline is something to fall back from where the client can.
        let (_, declined) = &answers[0];
        for (name, client) in [CLIENTS[0], CLIENTS[5]] {
            assert_eq!(client(declined, Asked { put, size: 9 }), Fallback, "{name}");
        }
    }
    drop(peer);
    rig.finish().await;
    closed.finish().await;
}

#[tokio::test]
async fn c5_the_client_that_needs_ok_falls_back_at_once() {
    let closed = Rig::closed(Config::default()).await;
    victim(&closed).await;
    for put in [true, false] {
        let method = if put { "PUT" } else { "GET" };
        let ask = Ask::new(method, "/bucket/victim")
            .header("x-amz-rdma-token", DC81)
            .header("user-agent", "CRTS3NativeClient");
        let answer = closed.server.ask(ALPHA, ask).await;
        assert_eq!(awsc(&answer, Asked { put, size: 9 }), Fallback);
        assert!(
            put || answer.body == b"as it was",
            "and the object is in the body"
        );
    }
    closed.finish().await;
}

/// SDKs ask for a checksum unasked, and compare it with the body, which is empty.
#[tokio::test]
async fn the_checksum_of_what_was_placed_is_not_that_of_the_body() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let data = pattern(100_000);
    let crc32 = checksum(Algorithm::Crc32, &data).to_base64();
    let put = Ask::new("PUT", "/bucket/key").header("x-amz-checksum-crc32", &crc32);
    rig.server.ask(ALPHA, put.body(&data)).await;
    rig.server.put("/bucket/empty", b"").await;
    let asked =
        |method, target: &str| Ask::new(method, target).header("x-amz-checksum-mode", "ENABLED");
    for (target, bytes) in [("/bucket/key", &data[..]), ("/bucket/empty", &[])] {
        let answer = rig.send(&peer, asked("GET", target), 0, 200_000).await;
        served(&answer, 200, bytes.len() as u64);
        let mut told = answer.headers.iter().map(|(name, _)| name);
        assert!(!told.any(|name| name.starts_with("x-amz-checksum-")));
        let right = checksum(Algorithm::Crc64Nvme, bytes).to_base64();
        let placed = answer.header("x-amz-rdma-checksum-crc64nvme");
        assert_eq!(placed, Some(right.as_str()), "{target}");
    }
    // Without a token it is the body's.
    for method in ["GET", "HEAD"] {
        let answer = rig.server.ask(ALPHA, asked(method, "/bucket/key")).await;
        assert_eq!(answer.header("x-amz-checksum-crc32"), Some(crc32.as_str()));
        assert_eq!(answer.header("x-amz-rdma-checksum-crc64nvme"), None);
    }
    drop(peer);
    rig.finish().await;
}
