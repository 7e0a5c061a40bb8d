//! Tokens used again, or for something else: R of section 8.

use crate::rig::*;
use crate::support::{ALPHA, Ask, Sign};

#[tokio::test]
async fn r1_r4_a_token_is_good_once() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    peer.fill(0, b"first");
    let ask = Ask::new("PUT", "/bucket/key");
    let token = peer.token(&ask, rig.server.now_ms(), 0, 5);
    let carried = peer.carry(ask.clone(), &token);
    served(&rig.server.ask(ALPHA, carried.clone()).await, 200, 5);
    peer.fill(0, b"other");
    refused(
        &rig.server.ask(ALPHA, carried).await,
        409,
        "RDMATokenReplayed",
    );
    assert_eq!(rig.server.get("/bucket/key").await.body, b"first");
    for (sequence, status) in [
        (5000, 200),
        (3977, 200),
        (3976, 409),
        (3977, 409),
        (4999, 200),
    ] {
        let mut token = token;
        token.sequence = sequence;
        let answer = rig.server.ask(ALPHA, peer.carry(ask.clone(), &token)).await;
        assert_eq!(answer.status, status, "{sequence}: {}", answer.text());
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn r2_of_two_at_once_one_wins() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    for _ in 0..10 {
        let ask = Ask::new("PUT", "/bucket/key");
        let token = peer.token(&ask, rig.server.now_ms(), 0, 5);
        let carried = peer.carry(ask, &token);
        let (one, two) = tokio::join!(
            rig.server.ask(ALPHA, carried.clone()),
            rig.server.ask(ALPHA, carried)
        );
        let mut statuses = [one.status, two.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn r3_a_token_is_for_one_request() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    for key in ["key", "other"] {
        rig.server.put(&format!("/bucket/{key}"), b"value").await;
    }
    let minted = Ask::new("GET", "/bucket/key").header("range", "bytes=0-1");
    let move_to = |ask: Ask| {
        let text = peer.seal(&minted, &peer.token(&minted, rig.server.now_ms(), 0, 5));
        ask.header("x-amz-rdma-token", &text).sign(Sign::Unsigned)
    };
    for moved in [
        Ask::new("GET", "/bucket/other").header("range", "bytes=0-1"),
        Ask::new("GET", "/bucket/key").header("range", "bytes=0-2"),
        Ask::new("GET", "/bucket/key"),
        Ask::new("GET", "/bucket/key?partNumber=1"),
        Ask::new("PUT", "/bucket/key").header("range", "bytes=0-1"),
    ] {
        let answer = rig.server.ask(ALPHA, move_to(moved)).await;
        refused(&answer, 403, "AccessDenied");
    }
    peer.untouched_but(0, 0);
    let right = move_to(minted.clone());
    served(&rig.server.ask(ALPHA, right).await, 206, 2);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn r3_the_token_of_a_part_is_for_that_part() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    peer.fill(0, b"bytes");
    let upload = Ask::new("POST", "/bucket/victim?uploads=");
    let upload = rig.server.ask(ALPHA, upload).await;
    let upload = upload.element("UploadId").unwrap();
    let part = |number| {
        let target = format!("/bucket/victim?partNumber={number}&uploadId={upload}");
        Ask::new("PUT", &target)
    };
    let object = || Ask::new("PUT", "/bucket/victim");
    for (minted, moved) in [(object(), part(1)), (part(1), object()), (part(1), part(2))] {
        let token = peer.token(&minted, rig.server.now_ms(), 0, 5);
        let text = peer.seal(&minted, &token);
        let moved = moved.header("x-amz-rdma-token", &text).sign(Sign::Unsigned);
        refused(&rig.server.ask(ALPHA, moved).await, 403, "AccessDenied");
    }
    unhurt(&rig, &etag).await;
    let parts = format!("/bucket/victim?uploadId={upload}");
    let parts = rig.server.get(&parts).await;
    assert_eq!(parts.element("PartNumber"), None, "{}", parts.text());
    served(&rig.send(&peer, part(1), 0, 5).await, 200, 5);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn r5_r6_the_signature_covers_the_token() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let ask = Ask::new("PUT", "/bucket/victim");
    let one = peer.seal(&ask, &peer.token(&ask, rig.server.now_ms(), 0, 5));
    let two = peer.seal(&ask, &peer.token(&ask, rig.server.now_ms(), 0, 6));
    let signed = ask
        .clone()
        .header("x-amz-rdma-token", &one)
        .sign(Sign::Unsigned)
        .signed(ALPHA, rig.server.now_ms());
    let altered = String::from_utf8(signed).unwrap().replace(&one, &two);
    let answer = rig.server.exchange(altered.as_bytes(), false).await;
    refused(&answer, 403, "SignatureDoesNotMatch");
    // A token that the signature does not cover.
    let signed = ask.sign(Sign::Unsigned).signed(ALPHA, rig.server.now_ms());
    let added = String::from_utf8(signed).unwrap().replacen(
        "\r\n",
        &format!("\r\nx-amz-rdma-token: {two}\r\n"),
        1,
    );
    let answer = rig.server.exchange(added.as_bytes(), false).await;
    refused(&answer, 403, "AccessDenied");
    unhurt(&rig, &etag).await;
    drop(peer);
    rig.finish().await;
}
