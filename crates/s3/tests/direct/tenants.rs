//! What one tenant can do to another: X of section 8.

use forebay_fabric::{Access, Link, SessionId};

use crate::gated::At;
use crate::rig::*;
use crate::support::{ALPHA, ALPHA_ELSEWHERE, Ask, BETA, Sign};

#[tokio::test]
async fn x3_x5_a_session_is_its_principals_alone() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let alpha = rig.peer(ALPHA, Way::Mapped).await;
    let beta = rig.peer(BETA, Way::Mapped).await;
    let bucket = Ask::new("PUT", "/betas");
    assert_eq!(rig.server.ask(BETA, bucket).await.status, 200);
    let target = "/betas/key";

    // Alpha's token, sent by beta.
    let ask = Ask::new("PUT", target);
    let stolen = alpha.carry(ask.clone(), &alpha.token(&ask, rig.server.now_ms(), 0, 8));
    let answer = rig.server.ask(BETA, stolen).await;
    refused(&answer, 403, "AccessDenied");
    let foreign = answer.element("Message");

    // Alpha's session under beta's own key; a session that never was; beta's with a wrong tag: the same words.
    let mut forged = beta.token(&ask, rig.server.now_ms(), 0, 8);
    forged.session = alpha.session;
    let under_own_key = beta.carry(ask.clone(), &forged);
    forged.session = [9; 16];
    let unknown = beta.carry(ask.clone(), &forged);
    let good = beta.seal(&ask, &beta.token(&ask, rig.server.now_ms(), 0, 8));
    let (payload, tag) = good.rsplit_once('.').unwrap();
    let mut tag = tag.to_owned();
    let first = if tag.starts_with('A') { "B" } else { "A" };
    tag.replace_range(..1, first);
    let wrong = Ask::new("PUT", target)
        .header("x-amz-rdma-token", &format!("{payload}.{tag}"))
        .sign(Sign::Unsigned);
    for ask in [under_own_key, unknown, wrong] {
        let answer = rig.server.ask(BETA, ask).await;
        refused(&answer, 403, "AccessDenied");
        assert_eq!(answer.element("Message"), foreign);
    }

    // Ending a foreign session does nothing, and says so as little.
    let end = Ask::new("POST", "/.ort1/disconnect")
        .header("x-amz-rdma-session", &session_text(&alpha.session));
    assert_eq!(rig.server.ask(BETA, end).await.status, 204);
    assert!(rig.sessions.find(SessionId(alpha.session)).is_some());

    alpha.untouched_but(0, 0);
    unhurt(&rig, &etag).await;
    drop((alpha, beta));
    rig.finish().await;
}

/// The principal is the access key: other keys of its tenant, as sessions of one role would be, are strangers to its sessions.
#[tokio::test]
async fn x9_another_key_of_the_same_tenant_has_sessions_of_its_own() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let alpha = rig.peer(ALPHA, Way::Mapped).await;
    let elsewhere = rig.peer(ALPHA_ELSEWHERE, Way::Mapped).await;
    let ask = Ask::new("GET", "/bucket/victim");
    let token = alpha.token(&ask, rig.server.now_ms(), 0, 9);
    let lent = alpha.carry(ask.clone(), &token);
    refused(
        &rig.server.ask(ALPHA_ELSEWHERE, lent.clone()).await,
        403,
        "AccessDenied",
    );
    alpha.untouched_but(0, 0);
    // What was refused was not used up, and its own session serves it well.
    let own = elsewhere.token(&ask, rig.server.now_ms(), 0, 9);
    let own = elsewhere.carry(ask, &own);
    assert_eq!(rig.server.ask(ALPHA_ELSEWHERE, own).await.status, 200);
    elsewhere.untouched_but(0, 9);
    assert_eq!(rig.server.ask(ALPHA, lent).await.status, 200);
    alpha.untouched_but(0, 9);
    unhurt(&rig, &etag).await;
    drop((alpha, elsewhere));
    rig.finish().await;
}

/// Permission is for the bucket that was looked up, whatever its name stands for by the time that the store looks.
#[tokio::test]
async fn a_bucket_that_changes_hands_in_the_midst() {
    for (way, at) in [
        (Way::Mapped, At::Retrieve),
        (Way::File, At::Retrieve),
        (Way::Iwarp, At::Retrieve),
        (Way::Mapped, At::Into),
    ] {
        let rig = Rig::open().await;
        let alpha = rig.peer(ALPHA, way).await;
        rig.server.put("/bucket/key", b"alpha's").await;
        rig.gate.close(at);
        let get = rig.get(&alpha, "/bucket/key", 0, 4096);
        let hand_over = async {
            rig.gate.arrival().await;
            for (who, ask) in [
                (ALPHA, Ask::new("DELETE", "/bucket/key")),
                (ALPHA, Ask::new("DELETE", "/bucket")),
                (BETA, Ask::new("PUT", "/bucket")),
                (BETA, Ask::new("PUT", "/bucket/key").body(b"beta's!")),
            ] {
                let answer = rig.server.ask(who, ask).await;
                assert!(answer.status < 300, "{}", answer.text());
            }
            rig.gate.open();
        };
        let (answer, ()) = tokio::join!(get, hand_over);
        refused(&answer, 404, "NoSuchBucket");
        if at == At::Retrieve {
            alpha.untouched_but(0, 0);
        }
        drop(alpha);
        rig.finish().await;
    }
}

/// Dialects without an adapter here name memory by addresses and keys alone. However such a token came to whoever sends it, it is
/// declined, again when it comes again, and nobody's memory is looked at.
#[tokio::test]
async fn x1_x2_x4_x7_r7_foreign_tokens_of_anybody_touch_nothing() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let alpha = rig.peer(ALPHA, Way::Iwarp).await;
    let bucket = Ask::new("PUT", "/betas");
    assert_eq!(rig.server.ask(BETA, bucket).await.status, 200);
    let object = Ask::new("PUT", "/betas/key").body(b"beta's");
    assert_eq!(rig.server.ask(BETA, object).await.status, 200);
    let open = rig.sessions.all().len();
    // Alpha's memory by its name, its connection, the HTTP peer's own address, and another one.
    let (key, session) = (alpha.stag.0, session_text(&alpha.session));
    let dc = |address: &str| {
        format!(
            "0000000000000000:00001000:{key:08x}:0000:000042:1:{:0>20}ffff{address}",
            ""
        )
    };
    let tokens = [
        dc("7f000001"),
        dc("0a0a30d0"),
        format!("{}:0000000000000000:0000000000001000", dc("7f000001")),
        format!("rc:{session}:0:1000:{key:x}"),
        HIP88.to_owned(),
    ];
    for token in tokens.iter().chain(&tokens) {
        for (who, bucket) in [(ALPHA, "bucket"), (BETA, "betas")] {
            for (method, key) in [("GET", "victim"), ("GET", "key"), ("PUT", "victim")] {
                let ask = Ask::new(method, &format!("/{bucket}/{key}"))
                    .header("x-amz-rdma-token", token)
                    .sign(Sign::Unsigned);
                declined(&rig.server.ask(who, ask).await);
            }
        }
    }
    assert_eq!(rig.sessions.all().len(), open);
    alpha.untouched_but(0, 0);
    unhurt(&rig, &etag).await;
    drop(alpha);
    rig.finish().await;
}

/// No session of `hipobj-rc-v2` is made, so none is ready twice, late, or somebody else's.
#[tokio::test]
async fn r8_e4_control_requests_of_hipobj_make_no_session() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let prepare = Ask::new("POST", "/.hipobj-rc/prepare")
        .header("x-amz-rdma-protocol", "hipobj-rc-v2")
        .header("x-amz-rdma-token", HIP88)
        .header("x-amz-rdma-psn", "00ab01")
        .header("x-amz-rdma-cookie", "0000000f")
        .header("x-amz-rdma-op", "PUT")
        .header("x-amz-rdma-target", "/bucket/victim")
        .header("x-amz-rdma-size", "9");
    let ready = Ask::new("POST", "/.hipobj-rc/ready")
        .header("x-amz-rdma-protocol", "hipobj-rc-v2")
        .header("x-amz-rdma-session", &"ab".repeat(16))
        .header("x-amz-rdma-cookie", "0000000f")
        .header("x-amz-rdma-qpn", "2a");
    let cancel =
        Ask::new("POST", "/.hipobj-rc/cancel").header("x-amz-rdma-session", &"ab".repeat(16));
    for ask in [&prepare, &ready, &ready, &cancel] {
        for who in [ALPHA, BETA] {
            let answer = rig.server.ask(who, ask.clone()).await;
            declined(&answer);
            assert_eq!(answer.header("x-amz-rdma-session"), None);
        }
    }
    assert!(rig.sessions.is_empty());
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

#[tokio::test]
async fn x6_a_key_of_anothers_memory_means_ones_own() {
    let rig = Rig::open().await;
    let alpha = rig.peer(ALPHA, Way::Mapped).await;
    let beta = rig.peer(BETA, Way::Mapped).await;
    // Alpha has a region whose name beta has none under.
    let region = alpha.memory.slice(0..4096).unwrap();
    let exposure = alpha.link.expose(region, Access::ReadWrite).await.unwrap();
    assert_ne!(exposure.stag, beta.stag);
    rig.server.ask(BETA, Ask::new("PUT", "/betas")).await;
    rig.server
        .ask(BETA, Ask::new("PUT", "/betas/key").body(b"beta"))
        .await;
    for method in ["GET", "PUT"] {
        let ask = Ask::new(method, "/betas/key");
        let mut token = beta.token(&ask, rig.server.now_ms(), 0, 4);
        token.remote_key = exposure.stag.0;
        let answer = rig.server.ask(BETA, beta.carry(ask, &token)).await;
        refused(&answer, 500, "RDMATransferFailed");
    }
    // The same name on both links is two memories.
    let answer = rig.get(&beta, "/betas/key", 0, 4).await;
    served(&answer, 200, 4);
    assert_eq!(beta.bytes(0, 4), b"beta");
    alpha.untouched_but(0, 0);
    drop((alpha, beta));
    rig.finish().await;
}

#[tokio::test]
async fn x8_a_policy_that_denies() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let beta = rig.peer(BETA, Way::Mapped).await;
    for method in ["GET", "PUT"] {
        let answer = rig
            .send(&beta, Ask::new(method, "/bucket/victim"), 0, 8)
            .await;
        refused(&answer, 404, "NoSuchBucket");
    }
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*",
        "Action":["s3:PutObject","s3:GetObject"],"Resource":"arn:aws:s3:::bucket/secret"}]}"#;
    let ask = Ask::new("PUT", "/bucket?policy=").body(policy);
    assert_eq!(rig.server.ask(ALPHA, ask).await.status, 204);
    let alpha = rig.peer(ALPHA, Way::Mapped).await;
    for method in ["GET", "PUT"] {
        let answer = rig
            .send(&alpha, Ask::new(method, "/bucket/secret"), 0, 8)
            .await;
        refused(&answer, 403, "AccessDenied");
    }
    alpha.untouched_but(0, 0);
    beta.untouched_but(0, 0);
    unhurt(&rig, &etag).await;
    drop((alpha, beta));
    rig.finish().await;
}

/// A policy on tags is about the object whose bytes are placed, whatever had its name before or has it after.
#[tokio::test]
async fn an_object_that_is_replaced_by_one_with_other_tags() {
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"StringEquals":{"s3:ExistingObjectTag/state":"open"}}}}"#;
    for way in WAYS {
        let rig = Rig::open().await;
        let ask = Ask::new("PUT", "/bucket?policy=").body(policy);
        assert_eq!(rig.server.ask(ALPHA, ask).await.status, 204);
        let beta = rig.peer(BETA, way).await;
        for at in [At::Retrieve, At::Body(0)] {
            let open = Ask::new("PUT", "/bucket/key").header("x-amz-tagging", "state=open");
            let open = rig.server.ask(ALPHA, open.body(b"open"));
            assert_eq!(open.await.status, 200);
            rig.gate.close(at);
            let mut get = std::pin::pin!(rig.get(&beta, "/bucket/key", 0, 4));
            tokio::select! {
                early = &mut get => panic!("{way:?} {at:?}: {early:?}"),
                () = rig.gate.arrival() => {}
            }
            rig.server.put("/bucket/key", b"kept").await;
            rig.gate.open();
            let answer = get.await;
            match at {
                At::Retrieve => {
                    refused(&answer, 404, "NoSuchBucket");
                    beta.untouched_but(0, 0);
                }
                _ => {
                    served(&answer, 200, 4);
                    assert_eq!(beta.bytes(0, 4), b"open", "{way:?}");
                }
            }
        }
        drop(beta);
        rig.finish().await;
    }
}

#[tokio::test]
async fn memory_is_reached_only_as_far_as_it_was_exposed() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    let region = peer.memory.slice(0..4096).unwrap();
    let readable = peer.link.expose(region, Access::Read).await.unwrap();
    let get = |stag: u32| {
        let ask = Ask::new("GET", "/bucket/key");
        let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5);
        token.remote_key = stag;
        peer.carry(ask, &token)
    };
    let answer = rig.server.ask(ALPHA, get(readable.stag.0)).await;
    refused(&answer, 500, "RDMATransferFailed");
    let stag = readable.stag.0;
    peer.link.withdraw(readable).await;
    let ask = Ask::new("PUT", "/bucket/other");
    let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5);
    token.remote_key = stag;
    let answer = rig.server.ask(ALPHA, peer.carry(ask, &token)).await;
    refused(&answer, 500, "RDMATransferFailed");
    rig.server.get("/bucket/other").await.is(404, "NoSuchKey");
    peer.untouched_but(0, 0);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn a_key_that_is_removed_while_it_connects_leaves_no_session() {
    let rig = Rig::open().await;
    // It signs the request, and is gone before the answer.
    rig.server.delete_key_after(BETA, 1);
    let answer = rig.server.ask(BETA, Rig::connect_request()).await;
    answer.is(403, "InvalidAccessKeyId");
    assert!(rig.sessions.all().is_empty());
    rig.finish().await;
}
