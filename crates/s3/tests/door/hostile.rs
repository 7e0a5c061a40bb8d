//! What no honest client sends, and what honest clients do badly: each gets a clear answer, and nothing is left behind.

use std::time::Duration;

use forebay_s3::Config;
use forebay_store::{Quota, Store};
use tokio::io::AsyncWriteExt;

use crate::support::{ALPHA, Ask, BETA, HOST, Server, Sign};

#[tokio::test]
async fn nonsense_instead_of_http_is_answered_or_cut() {
    let server = Server::start().await;
    let long_head = format!(
        "GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n",
        "y".repeat(100_000)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nhost: h\r\n{}\r\n",
        "x: y\r\n".repeat(500)
    );
    let long_target = format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "y".repeat(70_000));
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbroken header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: h\r\n folded: x\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"PUT /b/k HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: h\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: h\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n",
        b"BREW /b/k HTTP/1.1\r\nhost: h\r\n\r\n",
        long_head.as_bytes(),
        many.as_bytes(),
        long_target.as_bytes(),
    ] {
        let text = server.raw(bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 4"),
            "{shown}: {text}"
        );
    }
    // The door still serves.
    server.make_bucket("bucket").await;
    server.finish().await;
}

#[tokio::test]
async fn bodies_shorter_and_longer_than_declared() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let (head, body) = Ask::new("PUT", "/bucket/short")
        .body(vec![1; 5000])
        .parts(ALPHA, server.now_ms());
    let text = server.raw(&[head.as_bytes(), &body[..3000]].concat()).await;
    assert!(text.is_empty() || text.contains("IncompleteBody"), "{text}");
    server.get("/bucket/short").await.is(404, "NoSuchKey");

    // What follows a body is another request, and this one is nonsense.
    let (head, body) = Ask::new("PUT", "/bucket/long")
        .body(b"abc")
        .parts(ALPHA, server.now_ms());
    let text = server
        .raw(&[head.as_bytes(), &body, b"surplus\r\n\r\n"].concat())
        .await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("HTTP/1.1 400"), "{text}");
    assert_eq!(server.get("/bucket/long").await.body, b"abc");

    // Chunks that hold less, or more, than their sum says.
    for declared in ["2", "4"] {
        let ask = Ask::new("PUT", "/bucket/chunks")
            .body(b"abc")
            .sign(Sign::UnsignedTrailer)
            .header("x-amz-decoded-content-length", declared);
        server.ask(ALPHA, ask).await.is(400, "IncompleteBody");
    }
    server.get("/bucket/chunks").await.is(404, "NoSuchKey");

    // No length at all.
    let (head, _) = Ask::new("PUT", "/bucket/none").parts(ALPHA, server.now_ms());
    let head = head.replacen("content-length: 0\r\n", "transfer-encoding: chunked\r\n", 1);
    let answer = server
        .exchange(&[head.as_bytes(), b"0\r\n\r\n"].concat(), false)
        .await;
    answer.is(411, "MissingContentLength");
    let huge = Ask::new("PUT", "/bucket/huge").header("content-length", "6000000000");
    let answer = server
        .exchange(
            &huge
                .header("expect", "100-continue")
                .signed(ALPHA, server.now_ms()),
            false,
        )
        .await;
    answer.is(400, "EntityTooLarge");
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/large", &vec![1; 20 << 20]).await;
    let begun = server.ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads"));
    let id = begun.await.element("UploadId").expect("an upload");
    server
        .put(
            &format!("/bucket/parts?uploadId={id}&partNumber=1"),
            b"part",
        )
        .await;
    let used = server.used();
    let part = format!("/bucket/parts?uploadId={id}&partNumber=2");
    for target in ["/bucket/key", "/bucket/large", &part] {
        for sign in [Sign::Hash, Sign::Chunks] {
            let (head, body) = Ask::new("PUT", target)
                .body(vec![9; 5 << 20])
                .sign(sign)
                .parts(ALPHA, server.now_ms());
            let mut client = server.connect().await;
            client.send(head.as_bytes()).await;
            client.send(&body[..3 << 20]).await;
            drop(client);
        }
    }
    // A vanished reader, too.
    let mut client = server.connect().await;
    client
        .send(&Ask::new("GET", "/bucket/large").signed(ALPHA, server.now_ms()))
        .await;
    assert!(client.more().await);
    drop(client);
    server.door.drain().await;
    server.get("/bucket/key").await.is(404, "NoSuchKey");
    assert_eq!(server.used(), used);
    server.finish().await;
}

#[tokio::test]
async fn documents_that_are_bombs_or_wrecks() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let bomb = "<!DOCTYPE d [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]><Delete><Object>\
        <Key>&b;</Key></Object></Delete>";
    let deep = "<Delete>".repeat(10_000);
    let many = format!(
        "<Delete>{}</Delete>",
        "<Object><Key>k</Key></Object>".repeat(1001)
    );
    for body in [
        bomb,
        &deep,
        &many,
        "",
        "<Delete>",
        "<Delete/>",
        "\u{0}",
        "{}",
    ] {
        let answer = server
            .ask(ALPHA, Ask::new("POST", "/bucket?delete").body(body))
            .await;
        answer.is(400, "MalformedXML");
    }
    let large = vec![b' '; (2 << 20) + 1];
    let answer = server
        .ask(ALPHA, Ask::new("POST", "/bucket?delete").body(large))
        .await;
    answer.is(400, "MaxMessageLengthExceeded");
    for target in [
        "/bucket?versioning",
        "/bucket?lifecycle",
        "/bucket?cors",
        "/bucket?tagging",
    ] {
        let answer = server.ask(ALPHA, Ask::new("PUT", target).body(bomb)).await;
        answer.is(400, "MalformedXML");
    }
    let answer = server
        .ask(
            ALPHA,
            Ask::new("PUT", "/bucket?policy").body("{\"Statement\":"),
        )
        .await;
    answer.is(400, "MalformedPolicy");
    server.finish().await;
}

#[tokio::test]
async fn keys_of_every_kind() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let longest = "k".repeat(1024);
    for key in [
        "..",
        "../..",
        "a/../b",
        "a//b",
        "/",
        "//",
        "a/",
        ".",
        "%20",
        "%E2%82%AC",
        "%7F%01",
        "a%2Fb%3Fc",
        "%25",
        &longest,
    ] {
        let target = format!("/bucket/{key}");
        server.put(&target, key.as_bytes()).await;
        assert_eq!(server.get(&target).await.body, key.as_bytes(), "{key}");
    }
    for (key, code) in [
        (format!("{longest}k"), "KeyTooLongError"),
        ("%00".to_owned(), "InvalidURI"),
        ("a%00b".to_owned(), "InvalidURI"),
        ("%FF%FE".to_owned(), "InvalidURI"),
        ("%zz".to_owned(), "InvalidURI"),
        ("%2".to_owned(), "InvalidURI"),
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let ask = Ask::new(method, &format!("/bucket/{key}"));
            server.ask(ALPHA, ask).await.is(400, code);
        }
    }
    let listed = server
        .get("/bucket?list-type=2&encoding-type=url&prefix=%7F")
        .await;
    assert!(listed.text().contains("<Key>%7F%01</Key>"));
    for name in [
        "ab",
        "A-Bucket",
        "a_b",
        "-ab",
        "192.168.0.1",
        &"a".repeat(64),
    ] {
        let answer = server
            .ask(ALPHA, Ask::new("PUT", &format!("/{name}")))
            .await;
        answer.is(400, "InvalidBucketName");
    }
    server.finish().await;
}

#[tokio::test]
async fn early_refusals_do_not_ask_for_the_body() {
    let config = Config {
        requests_in_flight: 64,
        ..Config::default()
    };
    let server = Server::with(config, 10_000).await;
    server.make_bucket("bucket").await;
    server.put("/bucket/there", b"x").await;
    let expecting = |target: &str| {
        Ask::new("PUT", target)
            .header("expect", "100-continue")
            .body(vec![0; 5000])
    };
    // A body that is wanted: 100, then the answer; the connection goes on.
    let (head, body) = expecting("/bucket/key").parts(ALPHA, server.now_ms());
    let mut client = server.connect().await;
    client.send(head.as_bytes()).await;
    assert_eq!(client.answer(false).await.status, 100);
    client.send(&body).await;
    assert_eq!(client.answer(false).await.status, 200);
    client
        .send(&Ask::new("GET", "/bucket/there").signed(ALPHA, server.now_ms()))
        .await;
    assert_eq!(client.answer(false).await.body, b"x");
    // Bodies that are not: the answer comes at once.
    let refused = [
        (expecting("/absent/key"), 404, "NoSuchBucket"),
        (
            expecting("/bucket/there").header("if-none-match", "*"),
            412,
            "PreconditionFailed",
        ),
        (
            expecting("/bucket/full").header("content-length", "20000"),
            507,
            "InsufficientStorage",
        ),
        (
            expecting("/bucket/sse").header("x-amz-server-side-encryption", "AES256"),
            501,
            "NotImplemented",
        ),
        (
            expecting("/bucket/there").header("x-amz-write-offset-bytes", "1"),
            501,
            "NotImplemented",
        ),
    ];
    for (ask, status, code) in refused {
        let (head, _) = ask.parts(ALPHA, server.now_ms());
        let mut client = server.connect().await;
        client.send(head.as_bytes()).await;
        client.answer(false).await.is(status, code);
        assert!(!client.more().await, "the connection is closed");
    }
    // Without `Expect` the body is on its way; the client hears why it was in vain, and the connection goes on.
    let mut client = server.connect().await;
    let vain = Ask::new("PUT", "/absent/key").body(vec![0; 3 << 20]);
    client.send(&vain.signed(ALPHA, server.now_ms())).await;
    client.answer(false).await.is(404, "NoSuchBucket");
    client
        .send(&Ask::new("GET", "/bucket/there").signed(ALPHA, server.now_ms()))
        .await;
    assert_eq!(client.answer(false).await.body, b"x");
    // Reads and deletes go on in a full store, and make room.
    assert_eq!(
        server
            .ask(ALPHA, Ask::new("DELETE", "/bucket/key"))
            .await
            .status,
        204
    );
    server.put("/bucket/again", &vec![0; 5000]).await;
    server.finish().await;
}

#[tokio::test]
async fn quotas_are_kept_before_the_body_is_taken() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let quota = Quota {
        bytes: Some(1000),
        objects: None,
    };
    server
        .store
        .set_tenant_quota(ALPHA.tenant, quota)
        .await
        .expect("sets");
    server.put("/bucket/small", &[1; 600]).await;
    let (head, _) = Ask::new("PUT", "/bucket/large")
        .header("expect", "100-continue")
        .body([1; 600])
        .parts(ALPHA, server.now_ms());
    let mut client = server.connect().await;
    client.send(head.as_bytes()).await;
    client.answer(false).await.is(403, "QuotaExceeded");
    // Replacing what is there with no more than it was is no growth.
    server.put("/bucket/small", &[2; 600]).await;
    server.finish().await;
}

#[tokio::test]
async fn requests_in_a_row_are_answered_in_order() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let mut wire = Vec::new();
    for at in 0..20 {
        let body = format!("body {at}");
        let ask = Ask::new("PUT", "/bucket/key").body(&body);
        wire.extend(ask.signed(ALPHA, server.now_ms()));
        wire.extend(Ask::new("GET", "/bucket/key").signed(ALPHA, server.now_ms()));
    }
    let mut client = server.connect().await;
    client.send(&wire).await;
    for at in 0..20 {
        assert_eq!(client.answer(false).await.status, 200);
        assert_eq!(client.answer(false).await.text(), format!("body {at}"));
    }
    drop(client);
    server.finish().await;
}

#[tokio::test]
async fn slow_clients_are_given_up() {
    let short = Duration::from_millis(500);
    let config = Config {
        header_timeout: short,
        idle_timeout: short,
        body_timeout: short,
        ..Config::default()
    };
    let server = Server::with(config, u64::MAX).await;
    server.make_bucket("bucket").await;
    // Silent, half a head, and silent again after an answer.
    let mut silent = server.connect().await;
    assert!(!silent.more().await);
    let mut half = server.connect().await;
    half.send(b"GET /bucket HTTP/1.1\r\nhos").await;
    assert!(!half.more().await);
    let mut idle = server.connect().await;
    idle.send(&Ask::new("GET", "/bucket").signed(ALPHA, server.now_ms()))
        .await;
    assert_eq!(idle.answer(false).await.status, 200);
    assert!(!idle.more().await);
    // A body that stops.
    let (head, body) = Ask::new("PUT", "/bucket/key")
        .body(vec![1; 10_000])
        .parts(ALPHA, server.now_ms());
    let mut stuck = server.connect().await;
    stuck.send(head.as_bytes()).await;
    stuck.send(&body[..100]).await;
    stuck.answer(false).await.is(400, "RequestTimeout");
    assert!(!stuck.more().await);
    // A reader that does not read.
    server.put("/bucket/large", &vec![1; 40 << 20]).await;
    let mut deaf = server.connect().await;
    deaf.send(&Ask::new("GET", "/bucket/large").signed(ALPHA, server.now_ms()))
        .await;
    assert!(deaf.more().await);
    server.door.drain().await;
    server.finish().await;
}

#[tokio::test]
async fn at_the_bound_the_door_says_so() {
    let config = Config {
        requests_in_flight: 1,
        ..Config::default()
    };
    let server = Server::with(config, u64::MAX).await;
    server.make_bucket("bucket").await;
    let (head, body) = Ask::new("PUT", "/bucket/key")
        .header("expect", "100-continue")
        .body(b"abc")
        .parts(ALPHA, server.now_ms());
    let mut first = server.connect().await;
    first.send(head.as_bytes()).await;
    // The 100 says that it is being served.
    assert_eq!(first.answer(false).await.status, 100);
    server.get("/bucket").await.is(503, "SlowDown");
    first.send(&body).await;
    assert_eq!(first.answer(false).await.status, 200);
    drop(first);
    server.door.drain().await;
    assert_eq!(server.get("/bucket/key").await.body, b"abc");
    server.finish().await;
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let etag = server.put("/bucket/key", b"as it was").await.etag();
    for (method, target, status, code) in [
        ("POST", "/bucket", 501, "NotImplemented"),
        ("PUT", "/bucket?website", 501, "NotImplemented"),
        ("PUT", "/bucket?replication", 501, "NotImplemented"),
        ("PUT", "/bucket?encryption", 501, "NotImplemented"),
        ("PUT", "/bucket?object-lock", 501, "NotImplemented"),
        ("GET", "/bucket?inventory", 501, "NotImplemented"),
        ("GET", "/bucket?abac", 501, "NotImplemented"),
        ("PUT", "/bucket?abac", 501, "NotImplemented"),
        (
            "PUT",
            "/bucket?metadataAnnotationTable",
            501,
            "NotImplemented",
        ),
        (
            "PUT",
            "/bucket?metadataInventoryTable",
            501,
            "NotImplemented",
        ),
        ("PUT", "/bucket?metadataJournalTable", 501, "NotImplemented"),
        ("GET", "/bucket/key?torrent", 501, "NotImplemented"),
        ("POST", "/bucket/key?restore", 501, "NotImplemented"),
        ("GET", "/bucket/key?annotation", 501, "NotImplemented"),
        (
            "PUT",
            "/bucket/key?annotation&annotationName=n",
            501,
            "NotImplemented",
        ),
        (
            "GET",
            "/bucket/key?annotation=&annotationName=n",
            501,
            "NotImplemented",
        ),
        (
            "DELETE",
            "/bucket/key?annotation&annotationName=n",
            501,
            "NotImplemented",
        ),
        (
            "PUT",
            "/bucket/key?append&position=9",
            501,
            "NotImplemented",
        ),
        ("POST", "/bucket/key", 405, "MethodNotAllowed"),
        ("PATCH", "/bucket/key", 405, "MethodNotAllowed"),
        ("DELETE", "/", 405, "MethodNotAllowed"),
    ] {
        server
            .ask(ALPHA, Ask::new(method, target))
            .await
            .is(status, code);
    }
    for (name, value, code) in [
        ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
        (
            "x-amz-server-side-encryption-customer-algorithm",
            "AES256",
            "NotImplemented",
        ),
        ("x-amz-write-offset-bytes", "9", "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "InvalidRequest"),
        ("x-amz-object-lock-event-hold", "ON", "InvalidRequest"),
        (
            "x-amz-object-lock-event-hold-duration-days",
            "1",
            "InvalidRequest",
        ),
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=x", "AccessControlListNotSupported"),
        ("x-amz-storage-class", "NONSENSE", "InvalidStorageClass"),
        ("x-amz-tagging", "a=1&a=2", "InvalidTag"),
    ] {
        let ask = Ask::new("PUT", "/bucket/key").header(name, value);
        assert_eq!(server.ask(ALPHA, ask).await.refusal().1, code, "{name}");
    }
    let fat = Ask::new("PUT", "/bucket/key").header("x-amz-meta-a", &"x".repeat(2100));
    server.ask(ALPHA, fat).await.is(400, "MetadataTooLarge");
    let v2 =
        format!("GET /bucket/key?AWSAccessKeyId=x&Signature=y HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    let answer = server.exchange(v2.as_bytes(), false).await;
    answer.is(400, "InvalidRequest");
    let there = server.get("/bucket/key").await;
    assert_eq!(
        (there.etag(), there.body),
        (etag, b"as it was".to_vec()),
        "nothing was replaced or removed"
    );
    server.finish().await;
}

#[tokio::test]
async fn bytes_may_come_one_at_a_time() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let bytes = Ask::new("PUT", "/bucket/key")
        .body(b"hello world")
        .sign(Sign::Chunks)
        .signed(ALPHA, server.now_ms());
    let mut client = server.connect().await;
    client.stream.set_nodelay(true).expect("a socket");
    for byte in bytes {
        client.stream.write_all(&[byte]).await.expect("open");
    }
    assert_eq!(client.answer(false).await.status, 200);
    assert_eq!(server.get("/bucket/key").await.body, b"hello world");
    drop(client);
    server.finish().await;
}

#[tokio::test]
async fn documents_that_can_come_to_nothing_are_not_asked_for() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"x").await;
    // Beta may read, and write where it sets this tag.
    let policy = r#"{"Statement":[
        {"Effect":"Allow","Principal":{"AWS":"beta"},"Action":"s3:GetObject",
         "Resource":"arn:aws:s3:::bucket/*"},
        {"Effect":"Allow","Principal":{"AWS":"beta"},"Action":"s3:PutObject",
         "Resource":"arn:aws:s3:::bucket/*",
         "Condition":{"StringEquals":{"s3:RequestObjectTag/class":"public"}}}]}"#;
    let put = Ask::new("PUT", "/bucket?policy").body(policy);
    assert_eq!(server.ask(ALPHA, put).await.status, 204);
    let expecting = |method, target: &str| {
        let ask = Ask::new(method, target).header("expect", "100-continue");
        ask.body(vec![b' '; 1000])
    };
    let upload = format!("/bucket/key?uploadId={}", "0".repeat(32));
    for (who, ask, status, code) in [
        (
            Some(BETA),
            expecting("POST", "/bucket?delete"),
            404,
            "NoSuchBucket",
        ),
        (
            None,
            expecting("POST", "/bucket?delete"),
            403,
            "AccessDenied",
        ),
        (
            Some(BETA),
            expecting("PUT", "/bucket/key?tagging"),
            404,
            "NoSuchBucket",
        ),
        (
            None,
            expecting("PUT", "/bucket/key?tagging"),
            403,
            "AccessDenied",
        ),
        (Some(ALPHA), expecting("POST", &upload), 404, "NoSuchUpload"),
    ] {
        let bytes = match who {
            Some(who) => ask.signed(who, server.now_ms()),
            None => ask.unsigned(),
        };
        let head = bytes.len() - ask.body.len();
        let mut client = server.connect().await;
        client.send(&bytes[..head]).await;
        client.answer(false).await.is(status, code);
    }
    server.finish().await;
}
