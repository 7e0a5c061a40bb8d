//! A door without links, and what an open one does not serve: N of section 8.

use forebay_s3::Config;
use forebay_store::Scope;

use crate::rig::*;
use crate::support::{ALPHA, Ask, Sign};

/// Values that a closed door declines, whatever they are.
fn tokens() -> Vec<(&'static str, String)> {
    vec![
        ("x-amz-rdma-token", DC81.to_owned()),
        (
            "x-amz-rdma-token",
            format!("{DC81}:00007f1234567890:0000000000000010"),
        ),
        ("x-amz-rdma-token", HIP88.to_owned()),
        ("x-amz-rdma-token", "ort2.anything".to_owned()),
        ("x-amz-rdma-token", format!("rc:{}:1:1:1", "ab".repeat(16))),
        ("x-amz-rdma-token", "anything".to_owned()),
        ("x-rdma-info", DC81.to_owned()),
        ("x-scal-rdma", DC81.to_owned()),
        ("X-CuObj-RDMA-Descr", DC81.to_owned()),
    ]
}

#[tokio::test]
async fn n1_n2_n3_nothing_is_created_and_nothing_overwritten() {
    for open in [false, true] {
        let rig = match open {
            true => Rig::open().await,
            false => Rig::closed(Config::default()).await,
        };
        let etag = victim(&rig).await;
        let before = rig.server.store.usage_of("bucket");
        let begun = rig
            .server
            .ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads="))
            .await;
        let upload = begun.element("UploadId").unwrap();
        let part = format!("/bucket/parts?partNumber=1&uploadId={upload}");
        let staged = rig.server.store.usage_of("bucket");
        for (name, value) in tokens() {
            for target in ["/bucket/victim", "/bucket/new", &part] {
                let ask = Ask::new("PUT", target)
                    .header(name, &value)
                    .sign(Sign::Unsigned);
                declined(&rig.server.ask(ALPHA, ask).await);
            }
            let ask = Ask::new("GET", "/bucket/victim").header(name, &value);
            declined(&rig.server.ask(ALPHA, ask).await);
        }
        assert_eq!(rig.server.store.usage_of("bucket"), staged);
        let abort = Ask::new("DELETE", &format!("/bucket/parts?uploadId={upload}"));
        assert_eq!(rig.server.ask(ALPHA, abort).await.status, 204);
        assert_eq!(rig.server.store.usage_of("bucket"), before);
        unhurt(&rig, &etag).await;
        rig.finish().await;
    }
}

#[tokio::test]
async fn n1_no_version_and_no_delete_marker_is_added() {
    for status in ["Enabled", "Suspended"] {
        let rig = Rig::open().await;
        let versions =
            format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
        let ask = Ask::new("PUT", "/bucket?versioning=").body(versions);
        assert_eq!(rig.server.ask(ALPHA, ask).await.status, 200);
        rig.server.put("/bucket/victim", b"as it was").await;
        let list = || rig.server.ask(ALPHA, Ask::new("GET", "/bucket?versions="));
        let before = list().await.text();
        assert_eq!(before.matches("<Version>").count(), 1);
        for (name, value) in tokens() {
            for target in ["/bucket/victim", "/bucket/new"] {
                let ask = Ask::new("PUT", target)
                    .header(name, &value)
                    .sign(Sign::Unsigned);
                declined(&rig.server.ask(ALPHA, ask).await);
            }
        }
        assert_eq!(list().await.text(), before);
        rig.finish().await;
    }
}

/// What a namespace holds, for comparing.
trait UsageOf {
    fn usage_of(&self, namespace: &str) -> String;
}

impl UsageOf for forebay_store::MemoryStore {
    fn usage_of(&self, namespace: &str) -> String {
        use forebay_store::Store;
        format!("{:?}", self.usage(Scope::Namespace(namespace)).unwrap())
    }
}

#[tokio::test]
async fn n1_a_closed_door_declines_bodies_too_and_malformed_tokens() {
    let rig = Rig::closed(Config::default()).await;
    let etag = victim(&rig).await;
    for value in [DC81, "", "g", &"x".repeat(600)] {
        let ask = Ask::new("PUT", "/bucket/victim").header("x-amz-rdma-token", value);
        declined(&rig.server.ask(ALPHA, ask.body(b"a body")).await);
    }
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

/// At the bound of requests, and where the target says nothing that there is.
#[tokio::test]
async fn n3_a_token_hears_the_number_of_an_early_refusal_too() {
    for open in [false, true] {
        let config = Config {
            requests_in_flight: 1,
            ..Config::default()
        };
        let rig = match open {
            true => Rig::with(config, |_| {}).await,
            false => Rig::closed(config).await,
        };
        rig.server.door.drain().await;
        for (method, target, status, code) in [
            ("PUT", "/bucket/%zz", 400, "InvalidURI"),
            ("GET", "/bucket/key?a=%zz", 400, "InvalidURI"),
            ("PUT", "/bucket/key?annotation", 501, "NotImplemented"),
        ] {
            let ask = Ask::new(method, target);
            let plain = rig.server.anonymous(ask.clone()).await;
            plain.is(status, code);
            assert_eq!(plain.header("x-amz-rdma-reply"), None, "{target}");
            let token = ask.header("x-amz-rdma-token", DC81);
            refused(&rig.server.anonymous(token).await, status, code);
        }
        let (head, body) = Ask::new("PUT", "/bucket/key")
            .header("expect", "100-continue")
            .body(b"abc")
            .parts(ALPHA, rig.server.now_ms());
        let mut first = rig.server.connect().await;
        first.send(head.as_bytes()).await;
        // The 100 says that it is being served.
        assert_eq!(first.answer(false).await.status, 100);
        let ask = Ask::new("GET", "/bucket/key").header("x-amz-rdma-token", DC81);
        refused(&rig.server.ask(ALPHA, ask).await, 503, "SlowDown");
        first.send(&body).await;
        assert_eq!(first.answer(false).await.status, 200);
        drop(first);
        rig.finish().await;
    }
}

#[tokio::test]
async fn n3_a_get_may_be_answered_with_a_body() {
    let config = Config {
        decline_with_body: true,
        ..Config::default()
    };
    let rig = Rig::closed(config).await;
    victim(&rig).await;
    let ask = Ask::new("GET", "/bucket/victim").header("x-amz-rdma-token", DC81);
    let answer = rig.server.ask(ALPHA, ask).await;
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (200, &b"as it was"[..])
    );
    assert_eq!(answer.header("x-amz-rdma-reply"), Some("501"));
    let ask = Ask::new("GET", "/bucket/none").header("x-amz-rdma-token", DC81);
    refused(&rig.server.ask(ALPHA, ask).await, 404, "NoSuchKey");
    rig.finish().await;
}

#[tokio::test]
async fn n4_an_empty_object_without_a_token_is_stored() {
    for rig in [Rig::closed(Config::default()).await, Rig::open().await] {
        rig.server.put("/bucket/empty", b"").await;
        assert_eq!(rig.server.get("/bucket/empty").await.status, 200);
        let meta = Ask::new("PUT", "/bucket/meta").header("x-amz-meta-rdma-token", DC81);
        assert_eq!(
            rig.server.ask(ALPHA, meta).await.status,
            200,
            "metadata of the user"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn n5_control_requests_of_others() {
    for (rig, accept) in [
        (Rig::closed(Config::default()).await, None),
        (Rig::open().await, Some("ort1")),
    ] {
        for path in [
            "/.hipobj-rc/prepare",
            "/.hipobj-rc/ready",
            "/.hipobj-rc/cancel",
            "/.s3rdma-rc/connect",
            "/.ort1/prove",
        ] {
            for answer in [
                rig.server.anonymous(Ask::new("POST", path)).await,
                rig.server.ask(ALPHA, Ask::new("POST", path)).await,
            ] {
                declined(&answer);
                assert_eq!(
                    answer.header("x-amz-rdma-protocol-status"),
                    Some("unsupported")
                );
                assert_eq!(answer.header("x-amz-rdma-accept"), accept);
            }
        }
        rig.finish().await;
    }
}

#[tokio::test]
async fn connect_is_declined_without_a_transport_and_refused_without_a_signature() {
    let rig = Rig::closed(Config::default()).await;
    declined(&rig.server.ask(ALPHA, Rig::connect_request()).await);
    rig.finish().await;

    let rig = Rig::open().await;
    let with = |name: &str, value: &str| {
        let mut ask = Rig::connect_request();
        ask.headers.retain(|(known, _)| known != name);
        ask.header(name, value)
    };
    for (name, value) in [
        ("x-amz-rdma-transport", "rc, dc"),
        ("x-amz-rdma-transport", "iwarp"),
        ("x-amz-rdma-transport", ""),
        ("x-amz-rdma-protocol", "ort2"),
    ] {
        let answer = rig.server.ask(ALPHA, with(name, value)).await;
        declined(&answer);
        assert_eq!(answer.header("x-amz-rdma-accept"), Some("ort1"));
        assert_eq!(answer.header("x-amz-rdma-transport"), Some("shm"));
    }
    for (name, value) in [
        ("x-amz-rdma-nonce", "00"),
        ("x-amz-rdma-nonce", &"zz".repeat(16)),
        ("x-amz-rdma-endpoint", "AAAA"),
    ] {
        let answer = rig.server.ask(ALPHA, with(name, value)).await;
        answer.is(400, "InvalidRequest");
    }
    let answer = rig
        .server
        .ask(ALPHA, Rig::connect_request().body(b"x"))
        .await;
    answer.is(400, "InvalidRequest");
    let far = Rig::with(Config::default(), |direct| {
        direct.cm = Some(([127, 0, 0, 1], 9002).into());
    })
    .await;
    let answer = far.server.ask(ALPHA, Rig::connect_request()).await;
    assert_eq!(
        answer.header("x-amz-rdma-transport"),
        Some("iwarp"),
        "as the client prefers"
    );
    assert_eq!(answer.header("x-amz-rdma-cm"), Some("127.0.0.1:9002"));
    assert_eq!(answer.header("x-amz-rdma-uds"), None);
    far.finish().await;
    let everywhere = Rig::with(Config::default(), |direct| {
        direct.cm = Some(([0, 0, 0, 0], 9002).into());
    })
    .await;
    let answer = everywhere.server.ask(ALPHA, Rig::connect_request()).await;
    assert_eq!(answer.header("x-amz-rdma-cm"), Some("door.test:9002"));
    everywhere.finish().await;
    let answer = rig.server.anonymous(Rig::connect_request()).await;
    answer.is(403, "AccessDenied");
    assert!(rig.sessions.is_empty());
    rig.finish().await;
}

#[tokio::test]
async fn the_one_client_that_needs_it_hears_ok() {
    let rig = Rig::closed(Config::default()).await;
    let etag = victim(&rig).await;
    let agent = "aws-sdk-java/2.0 CRTS3NativeClient/0.1.0";
    let ask = Ask::new("PUT", "/bucket/victim")
        .header("x-amz-rdma-token", DC81)
        .header("user-agent", agent);
    let answer = rig.server.ask(ALPHA, ask).await;
    answer.is(200, "RDMANotSupported");
    assert_eq!(answer.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(answer.header("etag"), None);
    let ask = Ask::new("GET", "/bucket/victim")
        .header("x-amz-rdma-token", DC81)
        .header("user-agent", agent);
    let answer = rig.server.ask(ALPHA, ask).await;
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (200, &b"as it was"[..])
    );
    assert_eq!(answer.header("x-amz-rdma-reply"), Some("501"));
    unhurt(&rig, &etag).await;
    rig.finish().await;
}

#[tokio::test]
async fn an_open_door_declines_what_it_may_not_trust() {
    let rig = Rig::open().await;
    let etag = victim(&rig).await;
    let anonymous = Ask::new("GET", "/bucket/victim").header("x-amz-rdma-token", DC81);
    declined(&rig.server.anonymous(anonymous).await);
    let agent = Ask::new("PUT", "/bucket/new")
        .header("x-amz-rdma-token", DC81)
        .header("x-amz-rdma-agent", "another");
    declined(&rig.server.ask(ALPHA, agent).await);
    let hip = Ask::new("PUT", "/bucket/new").header("x-amz-rdma-token", HIP88);
    let answer = rig.server.ask(ALPHA, hip).await;
    declined(&answer);
    assert_eq!(
        answer.header("x-amz-rdma-protocol-status"),
        Some("unsupported")
    );
    assert_eq!(answer.header("x-amz-rdma-accept"), Some("ort1"));
    unhurt(&rig, &etag).await;
    rig.finish().await;
}
