//! Malformed, truncated and oversized tokens at an open door: M, T and O of section 8. Each is refused, nothing is
//! created, and no byte of the client's memory is touched.

use forebay_fabric::sessions::Limits;
use forebay_proto::token::ort1::{Direction, Segment, Segments, Transport};
use forebay_s3::Config;
use forebay_store::{Quota, Store};

use crate::rig::*;
use crate::support::{ALPHA, Answer, Ask, BETA, Sign};

#[track_caller]
fn bad(answer: &Answer) {
    refused(answer, 400, "InvalidRDMAToken");
}

fn put_with(value: &str) -> Ask {
    Ask::new("PUT", "/bucket/victim")
        .header("x-amz-rdma-token", value)
        .sign(Sign::Unsigned)
}

#[tokio::test]
async fn m1_to_m12_descriptors_that_are_none() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let replaced = |from: &str, to: &str| DC81.replacen(from, to, 1);
    for (value, invalid) in [
        (replaced("00007f", "0000xf"), true),
        (replaced(":00100000:", ":0010000g:"), true),
        (replaced(":0000:", ":00-0:"), true),
        (DC81[1..].to_owned(), true),
        (format!("0{DC81}"), true),
        (DC81.rsplit_once(':').unwrap().0.to_owned(), false),
        (format!("{DC81}:0"), false),
        (replaced(":00100000:", ":00000000:"), true),
        (replaced("00007f1234567890", "fffffffffffffff0"), true),
        (replaced(":1:", ":2:"), true),
        (
            replaced("00000000000000000000ffff0a0a30d0", &"0".repeat(32)),
            true,
        ),
        (replaced(":000042:", ":000000:"), true),
        (HIP88.replacen("01", "02", 1), true),
        (format!("{HIP88}:7f0000001000"), false),
        (format!("{DC81}:00007f1234567890:0000000000100001"), true),
        (replaced("00007f", "0x007f"), true),
        (replaced("00007f", "+1007f"), true),
        (replaced("00007f", "0 007f"), true),
        (replaced("00007f", "\u{e9}007f"), true),
        (String::new(), true),
    ] {
        let answer = rig.server.ask(ALPHA, put_with(&value)).await;
        match invalid {
            true => bad(&answer),
            false => declined(&answer),
        }
    }
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

#[tokio::test]
async fn t1_every_beginning_of_a_token() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    for token in [DC81, HIP88] {
        for length in (0..token.len()).step_by(3) {
            let beginning = &token[..length];
            let answer = rig.server.ask(ALPHA, put_with(beginning)).await;
            // Nothing, and seven fields that are shorter, are broken; anything else may be a scheme that is not known.
            let seven = beginning.matches(':').count() == 6 && !beginning.ends_with(':');
            match beginning.is_empty() || seven {
                true => bad(&answer),
                false => declined(&answer),
            }
        }
    }
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

#[tokio::test]
async fn m13_m14_more_than_one_token() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let ask = Ask::new("PUT", "/bucket/victim");
    let good = |ask: &Ask| peer.seal(ask, &peer.token(ask, rig.server.now_ms(), 0, 8));
    for (name, value) in [
        ("x-amz-rdma-token", good(&ask)),
        ("x-rdma-info", DC81.to_owned()),
        ("x-scal-rdma", DC81.to_owned()),
        ("x-cuobj-rdma-descr", DC81.to_owned()),
    ] {
        let twice = put_with(&good(&ask)).header(name, &value);
        bad(&rig.server.ask(ALPHA, twice).await);
    }
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn vendors_headers_are_read_where_a_listener_says_so() {
    let rig = Rig::with(Config::default(), |direct| direct.vendor_carriers = true).await;
    let etag = victim(&rig).await;
    let with = |name: &str, value: &str| Ask::new("PUT", "/bucket/victim").header(name, value);
    let wrong = DC81.replacen(":000042:", ":000000:", 1);
    for name in ["x-rdma-info", "x-scal-rdma", "x-amz-meta-rdma-token"] {
        declined(&rig.server.ask(ALPHA, with(name, DC81)).await);
        bad(&rig.server.ask(ALPHA, with(name, &wrong)).await);
    }
    let outside = with("x-cuobj-rdma-descr", DC81).header("x-cuobj-remote-buf-start", "1");
    bad(&rig.server.ask(ALPHA, outside).await);
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

#[tokio::test]
async fn m15_to_m19_open_tokens_that_are_none() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let ask = Ask::new("PUT", "/bucket/victim");
    let text = peer.seal(&ask, &peer.token(&ask, rig.server.now_ms(), 0, 8));
    for value in [
        format!("{text}="),
        text[..text.len() - 1].to_owned(),
        text.replacen("ort1.A", "ort1.*", 1),
        text.replacen("ort1.A", "ort1.B", 1),
        text.replacen('.', "..", 1),
    ] {
        bad(&rig.server.ask(ALPHA, put_with(&value)).await);
    }
    // A token of the other direction, though its tag is right.
    let mut other = peer.token(&ask, rig.server.now_ms(), 0, 8);
    other.direction = Direction::Write;
    bad(&rig.server.ask(ALPHA, peer.carry(ask.clone(), &other)).await);
    let get = Ask::new("GET", "/bucket/victim");
    let mut other = peer.token(&get, rig.server.now_ms(), 0, 8);
    other.direction = Direction::Read;
    bad(&rig.server.ask(ALPHA, peer.carry(get.clone(), &other)).await);
    // Transports that need an adapter.
    for transport in [Transport::Rc, Transport::Dc] {
        let mut token = peer.token(&get, rig.server.now_ms(), 0, 8);
        token.transport = transport;
        declined(&rig.server.ask(ALPHA, peer.carry(get.clone(), &token)).await);
    }
    peer.untouched_but(0, 0);
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn m20_m21_bodies_and_what_is_said_about_them() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let ask = || Ask::new("PUT", "/bucket/victim");
    let carried = |ask: Ask| {
        let token = peer.token(&ask, rig.server.now_ms(), 0, 8);
        peer.carry(ask, &token)
    };
    for wrong in [
        carried(ask()).body(b"a body"),
        carried(ask()).sign(Sign::UnsignedTrailer),
        carried(ask()).sign(Sign::Chunks),
        carried(ask().header("content-encoding", "aws-chunked")),
        carried(ask().header("x-amz-decoded-content-length", "8")),
        carried(ask().header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")),
        carried(ask().header("x-amz-trailer", "x-amz-checksum-crc32c")),
        carried(Ask::new("GET", "/bucket/victim").header("content-length", "1")).body(b"x"),
    ] {
        refused(&rig.server.ask(ALPHA, wrong).await, 400, "InvalidRequest");
    }
    let mut hash = carried(ask());
    hash.claimed_hash = Some("ab".repeat(32));
    refused(&rig.server.ask(ALPHA, hash).await, 400, "InvalidRequest");
    peer.untouched_but(0, 0);
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn m22_control_requests_of_hipobj() {
    let rig = Rig::open().await;
    let prepare = |name: &str, value: &str| {
        let mut ask = Ask::new("POST", "/.hipobj-rc/prepare");
        for (known, right) in [
            ("x-amz-rdma-protocol", "hipobj-rc-v2"),
            ("x-amz-rdma-token", HIP88),
            ("x-amz-rdma-psn", "00aB01"),
            ("x-amz-rdma-cookie", "0000000f"),
            ("x-amz-rdma-op", "PUT"),
            ("x-amz-rdma-target", "/bucket/key"),
            ("x-amz-rdma-size", "2147483647"),
        ] {
            ask = ask.header(known, if known == name { value } else { right });
        }
        ask
    };
    declined(&rig.server.ask(ALPHA, prepare("", "")).await);
    for (name, value) in [
        ("x-amz-rdma-psn", "000000"),
        ("x-amz-rdma-psn", "0000001"),
        ("x-amz-rdma-cookie", "000000f"),
        ("x-amz-rdma-size", "2147483648"),
    ] {
        let answer = rig.server.ask(ALPHA, prepare(name, value)).await;
        answer.is(400, "InvalidRequest");
    }
    rig.finish().await;
}

#[tokio::test]
async fn o1_o2_o5_o6_o7_too_much() {
    let rig = Rig::with(Config::default(), |direct| direct.bytes_max = 1 << 20).await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    bad(&rig.server.ask(ALPHA, put_with(&"a".repeat(513))).await);
    declined(&rig.server.ask(ALPHA, put_with(&"a".repeat(512))).await);
    bad(&rig.server.ask(ALPHA, put_with(&"a".repeat(16 << 10))).await);
    bad(&rig.put(&peer, "/bucket/victim", 0, (1 << 20) + 1).await);
    bad(&rig.put(&peer, "/bucket/victim", 0, 1 << 63).await);
    let ask = Ask::new("PUT", "/bucket/victim");
    let mut token = peer.token(&ask, rig.server.now_ms(), 0, 1 << 19);
    let segment = Segment {
        address: 0,
        length: 1 << 18,
        remote_key: peer.stag.0,
    };
    token.segments = Segments::new(&[segment; 3]).unwrap();
    bad(&rig.server.ask(ALPHA, peer.carry(ask, &token)).await);
    served(
        &rig.put(&peer, "/bucket/victim", 0, 1 << 20).await,
        200,
        1 << 20,
    );
    rig.server.put("/bucket/victim", b"as it was").await;
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn o4_quota_is_said_before_anything_is_read() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let quota = Quota {
        bytes: Some(1 << 20),
        ..Quota::default()
    };
    rig.server
        .store
        .set_tenant_quota("alpha", quota)
        .await
        .unwrap();
    let answer = rig.put(&peer, "/bucket/key", 0, 0xffff_ffff).await;
    refused(&answer, 403, "QuotaExceeded");
    rig.server.get("/bucket/key").await.is(404, "NoSuchKey");
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn o8_sessions_and_tokens_in_flight_are_bounded() {
    let limits = Limits {
        sessions_per_tenant: 2,
        sessions: 3,
        ..Limits::default()
    };
    let rig = Rig::limited(Config::default(), limits, |direct| direct.in_flight = 1).await;
    let peer = rig.peer(ALPHA, Way::File).await;
    rig.session(ALPHA).await;
    let third = rig.server.ask(ALPHA, Rig::connect_request()).await;
    third.is(503, "SlowDown");
    rig.session(BETA).await;
    rig.server
        .ask(BETA, Rig::connect_request())
        .await
        .is(503, "SlowDown");

    rig.server.put("/bucket/key", b"value").await;
    rig.gate.close(crate::gated::At::Retrieve);
    // One of the two waits in the store, so the other is too many.
    let either = async {
        tokio::select! {
            answer = rig.get(&peer, "/bucket/key", 0, 5) => answer,
            answer = rig.get(&peer, "/bucket/key", 0, 5) => answer,
        }
    };
    let answer = either.await;
    refused(&answer, 503, "SlowDown");
    let said = answer.element("Message");
    assert_eq!(said.as_deref(), Some("Please reduce your request rate."));
    rig.gate.open();
    drop(peer);
    rig.finish().await;
}

/// However many sessions a tenant has, its tokens leave buffers for others.
#[tokio::test]
async fn o8_tokens_of_a_tenant_are_bounded_across_its_sessions() {
    let config = Config {
        pool_bytes: 1 << 20,
        ..Config::default()
    };
    let rig = Rig::with(config, |direct| direct.in_flight = 1).await;
    rig.server.put("/bucket/key", b"value").await;
    rig.server.ask(BETA, Ask::new("PUT", "/betas")).await;
    let betas = Ask::new("PUT", "/betas/key").body(b"value");
    rig.server.ask(BETA, betas).await;
    let one = rig.peer(ALPHA, Way::File).await;
    let other = rig.peer(ALPHA, Way::File).await;
    let beta = rig.peer(BETA, Way::File).await;
    rig.gate.close(crate::gated::At::Retrieve);
    let waiting = rig.get(&one, "/bucket/key", 0, 5);
    let meanwhile = async {
        rig.gate.arrival().await;
        let answer = rig.get(&other, "/bucket/key", 0, 5).await;
        refused(&answer, 503, "SlowDown");
        let of_beta = rig.get(&beta, "/betas/key", 0, 5);
        let (answer, ()) = tokio::join!(of_beta, async { rig.gate.open() });
        served(&answer, 200, 5);
    };
    let (answer, ()) = tokio::join!(waiting, meanwhile);
    served(&answer, 200, 5);
    served(&rig.get(&other, "/bucket/key", 0, 5).await, 200, 5);
    drop((one, other, beta));
    rig.finish().await;
}

#[tokio::test]
async fn memory_that_is_not_there() {
    for way in [Way::Mapped, Way::File] {
        let rig = Rig::open().await;
        let etag = victim(&rig).await;
        let peer = rig.peer(ALPHA, way).await;
        for (offset, len) in [
            (MEMORY as u64, 8),
            (MEMORY as u64 - 4, 8),
            (u64::MAX - 9, 8),
        ] {
            for method in ["GET", "PUT"] {
                let ask = Ask::new(method, "/bucket/victim");
                let answer = rig.send(&peer, ask, offset, len).await;
                refused(&answer, 500, "RDMATransferFailed");
                assert_eq!(answer.header("x-amz-rdma-bytes-transferred"), Some("0"));
            }
        }
        peer.untouched_but(0, 0);
        unhurt(&rig, &etag).await;
        // The link goes on.
        served(&rig.get(&peer, "/bucket/victim", 0, 9).await, 200, 9);
        drop(peer);
        rig.finish().await;
    }
}

/// Over TCP it is the client's side that finds out, and ends the link.
#[tokio::test]
async fn memory_that_is_not_there_over_tcp() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    for method in ["GET", "PUT"] {
        let peer = rig.peer(ALPHA, Way::Iwarp).await;
        let ask = Ask::new(method, "/bucket/victim");
        let answer = rig.send(&peer, ask, MEMORY as u64 - 4, 8).await;
        refused(&answer, 500, "RDMATransferFailed");
        peer.untouched_but(0, 0);
    }
    unhurt(&rig, &etag).await;
    rig.finish().await;
}
