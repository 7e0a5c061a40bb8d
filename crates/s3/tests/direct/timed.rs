//! Expiry, leases, and stores that do not answer: E of section 8, and T6.

use std::pin::pin;
use std::time::Duration;

use forebay_fabric::{CloseReason, Link, SessionId};
use tokio::time::{self, Instant};

use crate::gated::At;
use crate::rig::*;
use crate::support::{ALPHA, Answer, Ask};

/// What was begun within the lease may take so much longer.
const WHOLE: Duration = LEASE.saturating_add(Duration::from_millis(1500));
/// How long what must not happen is waited for.
const SHORT: Duration = Duration::from_millis(50);

/// Moves the clock to so long after the request was sent. What is waited for by then began a little later, and ends by itself.
async fn outlast(sent: Instant, long: Duration) {
    let left = (sent + long).saturating_duration_since(Instant::now());
    time::pause();
    time::advance(left).await;
    time::resume();
}

/// What a request comes to that waits `there` when so long is over.
async fn outlasting<T>(
    long: Duration,
    there: impl Future<Output = ()>,
    asked: impl Future<Output = T>,
) -> T {
    let sent = Instant::now();
    let mut asked = pin!(asked);
    tokio::select! {
        early = asked.as_mut() => return early,
        () = there => {}
    }
    outlast(sent, long).await;
    asked.await
}

/// Whether a request with a token for so many bytes that waits `there` is cut off without an answer when all of its time is over.
async fn is_cut(
    rig: &Rig,
    peer: &Peer,
    ask: Ask,
    len: u64,
    there: impl Future<Output = ()>,
) -> bool {
    let token = peer.token(&ask, rig.server.now_ms(), 0, len);
    let bytes = peer.carry(ask, &token).signed(ALPHA, rig.server.now_ms());
    let mut client = rig.server.connect().await;
    let answered = async {
        client.send(&bytes).await;
        client.more().await
    };
    !outlasting(WHOLE, there, answered).await
}

#[tokio::test]
async fn e1_e6_tokens_have_their_time() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    let now_s = (rig.server.now_ms() / 1000) as u32;
    for (expiry_s, good) in [
        (now_s - 6, false),
        (now_s - 5, true),
        (now_s, true),
        (now_s + 905, true),
        (now_s + 906, false),
        (0, false),
        (u32::MAX, false),
    ] {
        let ask = Ask::new("GET", "/bucket/key");
        let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5);
        token.expiry_s = expiry_s;
        let answer = rig.server.ask(ALPHA, peer.carry(ask, &token)).await;
        match good {
            true => served(&answer, 200, 5),
            false => refused(&answer, 403, "RDMATokenExpired"),
        }
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn e2_a_store_slower_than_the_lease() {
    for (way, at) in [
        (Way::Mapped, At::Retrieve),
        (Way::File, At::Retrieve),
        (Way::File, At::Body(0)),
        (Way::Iwarp, At::Body(0)),
    ] {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        rig.server.put("/bucket/key", b"value").await;
        rig.gate.close(at);
        let ask = Ask::new("GET", "/bucket/key");
        let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5);
        token.lease_ms = 1;
        let answer = rig.server.ask(ALPHA, peer.carry(ask, &token)).await;
        refused(&answer, 503, "SlowDown");
        rig.gate.open();
        peer.untouched_but(0, 0);
        // The link was never in danger.
        served(&rig.get(&peer, "/bucket/key", 0, 5).await, 200, 5);
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn e3_a_store_that_stalls_in_the_midst() {
    for way in [Way::File, Way::Iwarp] {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let data = pattern(5 << 20);
        rig.server.put("/bucket/key", &data).await;
        rig.gate.close(At::Body(2));
        let get = rig.get(&peer, "/bucket/key", 0, MEMORY as u64);
        let answer = outlasting(LEASE, rig.gate.arrival(), get).await;
        refused(&answer, 500, "RDMATransferFailed");
        let moved: usize = answer
            .header("x-amz-rdma-bytes-transferred")
            .and_then(|bytes| bytes.parse().ok())
            .unwrap();
        assert!(moved > 0 && moved < data.len(), "{moved}");
        rig.gate.open();
        // What had been moved is there, and nothing lands after the answer: neither has by the time at which all that was sent has.
        for _ in 0..2 {
            assert!(peer.bytes(0, moved) == data[..moved]);
            peer.untouched_but(0, moved);
            let _placed = peer.accepted.link.fence().await.unwrap();
        }
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn e3_a_store_that_fails_in_the_midst() {
    let transferred = |answer: &Answer| -> usize {
        let bytes = answer.header("x-amz-rdma-bytes-transferred");
        bytes.and_then(|bytes| bytes.parse().ok()).unwrap()
    };
    for way in [Way::File, Way::Iwarp] {
        let rig = Rig::open().await;
        let etag = victim(&rig).await;
        let peer = rig.peer(ALPHA, way).await;
        let data = pattern(5 << 20);
        rig.server.put("/bucket/key", &data).await;
        rig.gate.close(At::BodyFails(2));
        let answer = rig.get(&peer, "/bucket/key", 0, MEMORY as u64).await;
        refused(&answer, 500, "RDMATransferFailed");
        let moved = transferred(&answer);
        assert!(moved > 0 && moved < data.len(), "{moved}");
        assert!(peer.bytes(0, moved) == data[..moved]);
        // Where nothing was moved yet it is as without a token.
        rig.gate.close(At::BodyFails(0));
        let answer = rig.get(&peer, "/bucket/key", 0, MEMORY as u64).await;
        refused(&answer, 500, "InternalError");
        assert_eq!(transferred(&answer), 0);

        rig.gate.close(At::WriteFails);
        let answer = rig.put(&peer, "/bucket/victim", 0, 5 << 20).await;
        refused(&answer, 500, "RDMATransferFailed");
        assert!(transferred(&answer) > 0);
        rig.gate.open();
        assert_eq!(rig.server.get("/bucket/victim").await.etag(), etag);
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn e3_a_device_that_stalls_while_it_writes_to_the_client() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    rig.gate.close(At::Into);
    // The device cannot be called back: nothing is said that the client could take for leave to use its memory.
    let get = Ask::new("GET", "/bucket/key");
    assert!(is_cut(&rig, &peer, get, 5, rig.gate.arrival()).await);
    // The link has begun to end, and ends for the client only when the device has let go.
    let link = peer.link.clone();
    let mut ended = std::pin::pin!(link.closed());
    assert!(
        tokio::time::timeout(SHORT, ended.as_mut()).await.is_err(),
        "the device is not done"
    );
    rig.gate.open();
    ended.await;
    assert_eq!(
        peer.bytes(0, 5),
        b"value",
        "it landed before the end, not after it"
    );
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn e3_a_store_that_does_not_take_what_was_read() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.gate.close(At::Write);
    let put = rig.put(&peer, "/bucket/victim", 0, 5 << 20);
    let answer = outlasting(WHOLE, rig.gate.arrival(), put).await;
    refused(&answer, 500, "RDMATransferFailed");
    rig.gate.open();
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn e2_a_store_slower_than_the_lease_of_a_put() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.gate.close(At::Store);
    let put = rig.put(&peer, "/bucket/victim", 0, 5 << 20);
    let answer = outlasting(WHOLE, rig.gate.arrival(), put).await;
    refused(&answer, 503, "SlowDown");
    rig.gate.open();
    unhurt(&rig, &etag).await;
    // The link was never in danger.
    served(&rig.put(&peer, "/bucket/victim", 0, 5).await, 200, 5);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn e3_a_store_that_does_not_say_whether_it_has_stored() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let upload = Ask::new("POST", "/bucket/victim?uploads=");
    let upload = rig.server.ask(ALPHA, upload).await;
    let upload = upload.element("UploadId").unwrap();
    let part = format!("/bucket/victim?partNumber=1&uploadId={upload}");
    for target in ["/bucket/victim", &part] {
        rig.gate.close(At::Commit);
        // It may have, and it may not: either answer could be a lie.
        let put = Ask::new("PUT", target);
        assert!(is_cut(&rig, &peer, put, 5, rig.gate.arrival()).await);
        rig.gate.open();
        unhurt(&rig, &etag).await;
        // All had been read, so that the link goes on.
        served(&rig.put(&peer, &part, 0, 5).await, 200, 5);
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn e5_an_idle_session_ends_and_a_busy_one_does_not() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    for _ in 0..3 {
        rig.server.advance_ms(200_000);
        served(&rig.get(&peer, "/bucket/key", 0, 5).await, 200, 5);
    }
    rig.server.advance_ms(300_001);
    refused(
        &rig.get(&peer, "/bucket/key", 0, 5).await,
        403,
        "AccessDenied",
    );
    peer.link.closed().await;
    drop(peer);
    let again = rig.peer(ALPHA, Way::Mapped).await;
    served(&rig.get(&again, "/bucket/key", 0, 5).await, 200, 5);
    drop(again);
    rig.finish().await;
}

#[tokio::test]
async fn e7_a_server_that_forgot_its_sessions() {
    let rig = Rig::open().await;
    let other = Rig::open().await;
    let peer = other.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    refused(
        &rig.get(&peer, "/bucket/key", 0, 5).await,
        403,
        "AccessDenied",
    );
    // A session without a link any more is as none.
    let here = rig.peer(ALPHA, Way::Mapped).await;
    here.accepted.session.detach(here.accepted.id);
    assert!(rig.sessions.find(SessionId(here.session)).is_some());
    refused(
        &rig.get(&here, "/bucket/key", 0, 5).await,
        403,
        "AccessDenied",
    );
    drop((peer, here));
    rig.finish().await;
    other.finish().await;
}

#[tokio::test]
async fn e8_a_key_that_was_deleted() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    served(&rig.get(&peer, "/bucket/key", 0, 5).await, 200, 5);
    rig.server.delete_key(ALPHA);
    refused(
        &rig.get(&peer, "/bucket/key", 10, 5).await,
        403,
        "InvalidAccessKeyId",
    );
    peer.untouched_but(0, 5);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn t5_a_link_that_ends_in_the_midst() {
    for way in WAYS {
        let rig = Rig::open().await;
        let etag = victim(&rig).await;
        let data = pattern(5 << 20);
        rig.server.put("/bucket/large", &data).await;
        let peer = rig.peer(ALPHA, way).await;
        rig.gate.close(match way {
            Way::Mapped => At::Into,
            Way::File | Way::Iwarp => At::Body(2),
        });
        let get = rig.get(&peer, "/bucket/large", 0, MEMORY as u64);
        let end = async {
            rig.gate.arrival().await;
            match way {
                Way::Mapped | Way::File => peer.accepted.link.close(CloseReason::Lost),
                // The client does: what this end cut might still deliver what was on its way.
                Way::Iwarp => {
                    peer.link.close(CloseReason::Done);
                    peer.accepted.link.closed().await;
                }
            }
            rig.gate.open();
        };
        let (answer, ()) = tokio::join!(get, end);
        refused(&answer, 500, "RDMATransferFailed");
        drop(peer);
        let peer = rig.peer(ALPHA, way).await;
        rig.gate.close(At::Write);
        let put = rig.put(&peer, "/bucket/victim", 0, 5 << 20);
        let end = async {
            rig.gate.arrival().await;
            peer.accepted.link.close(CloseReason::Lost);
            rig.gate.open();
        };
        let (answer, ()) = tokio::join!(put, end);
        refused(&answer, 500, "RDMATransferFailed");
        let delete = Ask::new("DELETE", "/bucket/large");
        rig.server.ask(ALPHA, delete).await;
        unhurt(&rig, &etag).await;
        drop(peer);
        rig.finish().await;
    }
}

/// What the server has sent may be taken from the network after the link was cut: so long nothing is said.
#[tokio::test]
async fn t5_bytes_that_land_after_the_link_was_cut() {
    let rig = Rig::open().await;
    let network = Network::new();
    let peer = rig.peer_behind(ALPHA, &network).await;
    let data = pattern(5 << 20);
    rig.server.put("/bucket/key", &data).await;
    network.keep(true);
    let get = Ask::new("GET", "/bucket/key");
    assert!(is_cut(&rig, &peer, get, MEMORY as u64, network.kept()).await);
    peer.untouched_but(0, 0);
    network.keep(false);
    peer.link.closed().await;
    assert!(peer.bytes(0, 4096) == data[..4096], "it landed late");
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn t6_a_client_that_leaves_in_the_midst() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    for way in WAYS {
        let peer = rig.peer(ALPHA, way).await;
        rig.gate.close(At::Write);
        let ask = Ask::new("PUT", "/bucket/victim");
        let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5 << 20);
        token.lease_ms = 50_000;
        let bytes = peer.carry(ask, &token).signed(ALPHA, rig.server.now_ms());
        let mut client = rig.server.connect().await;
        client.send(&bytes).await;
        rig.gate.arrival().await;
        drop(client);
        // The request is over when nothing of it is in flight any more, long before its lease is.
        let gone = tokio::time::timeout(Duration::from_secs(20), rig.server.door.drain());
        gone.await.expect("the request goes with its client");
        rig.gate.open();
        unhurt(&rig, &etag).await;
        drop(peer);
    }
    rig.finish().await;
}

/// A client that sends the next request meanwhile has not left.
#[tokio::test]
async fn requests_in_a_row_on_one_connection() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let etag = rig.server.put("/bucket/key", b"value").await.etag();
    let signed = |offset| {
        let ask = Ask::new("GET", "/bucket/key");
        let token = peer.token(&ask, rig.server.now_ms(), offset, 5);
        peer.carry(ask, &token).signed(ALPHA, rig.server.now_ms())
    };
    let mut client = rig.server.connect().await;
    rig.gate.close(At::Into);
    client.send(&signed(0)).await;
    rig.gate.arrival().await;
    client.send(&signed(5)).await;
    rig.gate.open();
    for _ in 0..2 {
        let answer = client.answer(false).await;
        served(&answer, 200, 5);
        assert_eq!(answer.etag(), etag);
    }
    assert_eq!(peer.bytes(0, 10), b"valuevalue");
    drop((client, peer));
    rig.finish().await;
}

#[tokio::test]
async fn t6_a_client_that_ends_its_link_while_a_device_writes_to_it() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    rig.gate.close(At::Into);
    let ask = Ask::new("GET", "/bucket/key");
    let token = peer.token(&ask, rig.server.now_ms(), 0, 5);
    let bytes = peer.carry(ask, &token).signed(ALPHA, rig.server.now_ms());
    let mut client = rig.server.connect().await;
    client.send(&bytes).await;
    rig.gate.arrival().await;
    drop(client);
    let link = peer.link.clone();
    link.close(CloseReason::Done);
    let mut ended = std::pin::pin!(link.closed());
    assert!(
        tokio::time::timeout(SHORT, ended.as_mut()).await.is_err(),
        "the device is not done"
    );
    rig.gate.open();
    ended.await;
    assert_eq!(
        peer.bytes(0, 5),
        b"value",
        "it landed before the end, not after it"
    );
    drop(peer);
    rig.finish().await;
}
