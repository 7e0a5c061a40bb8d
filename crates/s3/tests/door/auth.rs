//! Signatures at every layer: header, query, chunk, trailer; clocks; and what a caller without rights gets to know.

use forebay_proto::s3::checksum::{Algorithm, checksum};
use forebay_s3::Config;

use crate::support::{ALPHA, Ask, BETA, HOST, Server, Sign, Who};

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn every_way_to_sign_a_body_is_understood() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for length in [0, 1, 100, 65_536, 200_000] {
        let body = payload(length);
        for sign in [
            Sign::Hash,
            Sign::Unsigned,
            Sign::Chunks,
            Sign::ChunksTrailer,
            Sign::UnsignedTrailer,
        ] {
            let mut ask = Ask::new("PUT", "/bucket/key").body(&body).sign(sign);
            if matches!(sign, Sign::ChunksTrailer | Sign::UnsignedTrailer) {
                let sum = checksum(Algorithm::Crc32C, &body).to_base64();
                ask = ask.trailer("x-amz-checksum-crc32c", &sum);
            }
            let answer = server.ask(ALPHA, ask).await;
            assert_eq!(answer.status, 200, "{sign:?} {length}: {}", answer.text());
            let answer = server.get("/bucket/key").await;
            assert!(answer.body == body, "{sign:?} {length}");
            assert_eq!(answer.header("content-encoding"), None);
        }
    }
    server.finish().await;
}

/// minio-go ends a trailer of an unsigned body with a lone LF, and the body with two empty lines.
#[tokio::test]
async fn an_unsigned_body_ends_as_minio_go_ends_it() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body = payload(100_000);
    let sum = checksum(Algorithm::Crc32C, &body).to_base64();
    let ask = Ask::new("PUT", "/bucket/key")
        .body(&body)
        .sign(Sign::UnsignedTrailer)
        .trailer("x-amz-checksum-crc32c", &sum);
    let (head, mut framed) = ask.parts(ALPHA, server.now_ms());
    let length = |of: usize| format!("content-length: {of}\r\n");
    let longer = head.replacen(&length(framed.len()), &length(framed.len() + 1), 1);
    assert_ne!(longer, head);
    framed.truncate(framed.len() - 4);
    framed.extend_from_slice(b"\n\r\n\r\n");
    let answer = server
        .exchange(&[longer.as_bytes(), &framed].concat(), false)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-amz-checksum-crc32c"), Some(sum.as_str()));
    assert!(server.get("/bucket/key").await.body == body);
    server.finish().await;
}

#[tokio::test]
async fn a_wrong_signature_is_refused_at_every_layer_and_nothing_is_stored() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body = payload(150_000);
    let sum = checksum(Algorithm::Crc32, &body).to_base64();
    let ask = |sign| Ask::new("PUT", "/bucket/key").body(&body).sign(sign);

    // The header.
    let (head, sent) = ask(Sign::Hash).parts(ALPHA, server.now_ms());
    let forged = head.replacen("Signature=", "Signature=0", 1);
    let forged = forged.replacen("\r\n\r\n", "", 1);
    let forged = format!("{}\r\n\r\n", &forged[..forged.len() - 1]);
    let answer = server
        .exchange(&[forged.as_bytes(), &sent].concat(), false)
        .await;
    answer.is(403, "SignatureDoesNotMatch");

    // The body's hash.
    let mut wrong = ask(Sign::Hash);
    wrong.claimed_hash = Some("0".repeat(64));
    let answer = server.ask(ALPHA, wrong).await;
    answer.is(400, "XAmzContentSHA256Mismatch");

    // Each chunk, and the trailers.
    for (sign, at) in [
        (Sign::Chunks, 10),
        (Sign::Chunks, 100),
        (Sign::Chunks, 70_000),
        (Sign::Chunks, 140_000),
        (Sign::ChunksTrailer, 70_000),
    ] {
        let mut ask = ask(sign);
        if sign == Sign::ChunksTrailer {
            ask = ask.trailer("x-amz-checksum-crc32", &sum);
        }
        let (head, mut framed) = ask.parts(ALPHA, server.now_ms());
        framed[at] ^= 1;
        let answer = server
            .exchange(&[head.as_bytes(), &framed].concat(), false)
            .await;
        assert!(matches!(answer.status, 400 | 403), "{sign:?} {at}");
    }
    let trailing = ask(Sign::ChunksTrailer).trailer("x-amz-checksum-crc32", &sum);
    let (head, framed) = trailing.parts(ALPHA, server.now_ms());
    let text = String::from_utf8_lossy(&framed).into_owned();
    let at = text.find("x-amz-trailer-signature:").expect("signed") + 30;
    let mut forged = framed.clone();
    let from_end = text.len() - at;
    let index = forged.len() - from_end;
    forged[index] = if forged[index] == b'0' { b'1' } else { b'0' };
    let answer = server
        .exchange(&[head.as_bytes(), &forged].concat(), false)
        .await;
    answer.is(403, "SignatureDoesNotMatch");

    // The last chunk is cut off.
    let (head, framed) = ask(Sign::Chunks).parts(ALPHA, server.now_ms());
    let cut = &framed[..framed.len() - 90];
    let text = server.raw(&[head.as_bytes(), cut].concat()).await;
    assert!(text.is_empty() || text.contains("IncompleteBody"), "{text}");

    // A trailer that lies.
    let lie = ask(Sign::UnsignedTrailer).trailer("x-amz-checksum-crc32", "AAAAAA==");
    server.ask(ALPHA, lie).await.is(400, "BadDigest");

    server.get("/bucket/key").await.is(404, "NoSuchKey");
    server.finish().await;
}

#[tokio::test]
async fn keys_and_clocks_are_checked() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let stranger = Who {
        id: "NOBODY",
        ..ALPHA
    };
    let ask = || Ask::new("GET", "/bucket");
    server
        .ask(stranger, ask())
        .await
        .is(403, "InvalidAccessKeyId");
    let liar = Who {
        secret: "wrong",
        ..ALPHA
    };
    server
        .ask(liar, ask())
        .await
        .is(403, "SignatureDoesNotMatch");
    // The right key is still right after a wrong secret was tried.
    assert_eq!(server.ask(ALPHA, ask()).await.status, 200);
    for skew_ms in [-16 * 60_000i64, 16 * 60_000] {
        let then = server.now_ms().saturating_add_signed(skew_ms);
        let answer = server.exchange(&ask().signed(ALPHA, then), false).await;
        answer.is(403, "RequestTimeTooSkewed");
    }
    let then = server.now_ms() - 14 * 60_000;
    let answer = server.exchange(&ask().signed(ALPHA, then), false).await;
    assert_eq!(answer.status, 200);
    server.finish().await;
}

#[tokio::test]
async fn presigned_urls_work_until_they_expire() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/a%20b", b"hello").await;
    let now = server.now_ms();
    let target =
        Ask::new("GET", "/bucket/a%20b?response-content-type=a%2Fb").presigned(ALPHA, now, 60);
    let fetch = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    let answer = server.exchange(fetch(&target).as_bytes(), false).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
    assert_eq!(answer.header("content-type"), Some("a/b"));

    let other = target.replace("a%20b", "a%20c");
    let answer = server.exchange(fetch(&other).as_bytes(), false).await;
    answer.is(403, "SignatureDoesNotMatch");
    let longer = target.replace("X-Amz-Expires=60", "X-Amz-Expires=61");
    let answer = server.exchange(fetch(&longer).as_bytes(), false).await;
    answer.is(403, "SignatureDoesNotMatch");

    server.advance_ms(61_000);
    let answer = server.exchange(fetch(&target).as_bytes(), false).await;
    answer.is(403, "AccessDenied");
    assert!(answer.text().contains("expired"), "{}", answer.text());

    let put = Ask::new("PUT", "/bucket/new").presigned(ALPHA, server.now_ms(), 60);
    let request = format!("PUT {put} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 3\r\n\r\nabc");
    assert_eq!(server.exchange(request.as_bytes(), false).await.status, 200);
    assert_eq!(server.get("/bucket/new").await.body, b"abc");
    server.finish().await;
}

#[tokio::test]
async fn headers_in_the_query_of_a_presigned_url_count() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let put = async |query: &str| {
        let ask = Ask::new("PUT", &format!("/bucket/key?{query}"));
        let target = ask.presigned(ALPHA, server.now_ms(), 60);
        let request =
            format!("PUT {target} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 3\r\n\r\nabc");
        server.exchange(request.as_bytes(), false).await
    };
    let answer = put("x-amz-meta-a=1%2B1&X-Amz-Meta-B=b&x-amz-tagging=t%3D1").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let stored = server.get("/bucket/key").await;
    assert_eq!(stored.header("x-amz-meta-a"), Some("1+1"));
    assert_eq!(stored.header("x-amz-meta-b"), Some("b"));
    assert_eq!(stored.header("x-amz-tagging-count"), Some("1"));
    let tags = server.get("/bucket/key?tagging").await.text();
    assert!(tags.contains("<Key>t</Key><Value>1</Value>"), "{tags}");

    for (query, status, code) in [
        ("x-amz-copy-source=%2Fbucket%2Fkey", 501, "NotImplemented"),
        ("x-amz-rdma-token=ort1.a.b", 501, "NotImplemented"),
        ("x-amz-server-side-encryption=AES256", 501, "NotImplemented"),
        ("x-amz-write-offset-bytes=3", 501, "NotImplemented"),
        (
            "x-amz-acl=public-read",
            400,
            "AccessControlListNotSupported",
        ),
        (
            "x-amz-grant-read=id%3Dx",
            400,
            "AccessControlListNotSupported",
        ),
        ("x-amz-storage-class=NONE", 400, "InvalidStorageClass"),
        ("x-amz-object-lock-mode=GOVERNANCE", 400, "InvalidRequest"),
        ("x-amz-expected-bucket-owner=beta", 403, "AccessDenied"),
        ("x-amz-meta-a=%0A", 400, "InvalidArgument"),
    ] {
        put(query).await.is(status, code);
    }
    assert_eq!(server.get("/bucket/key").await.etag(), stored.etag());

    // The checksum that some put there is not of the body that comes.
    let answer = put("x-amz-checksum-crc32=AAAAAA%3D%3D").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Only a presigned URL has headers in its query.
    let ask = Ask::new("PUT", "/bucket/key?x-amz-meta-a=1").body("abc");
    assert_eq!(server.ask(ALPHA, ask).await.status, 200);
    assert_eq!(server.get("/bucket/key").await.header("x-amz-meta-a"), None);
    server.finish().await;
}

#[tokio::test]
async fn what_is_about_the_object_in_the_query_of_a_presigned_url_counts() {
    const FIRST: usize = 5 << 20;
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let ask = async |method: &'static str, target: &str, body: &str| {
        let target = Ask::new(method, target).presigned(ALPHA, server.now_ms(), 60);
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        server.exchange(request.as_bytes(), method == "HEAD").await
    };
    let chosen = "x-amz-checksum-algorithm=CRC32&x-amz-checksum-type=FULL_OBJECT";
    let begun = ask("POST", &format!("/bucket/key?uploads&{chosen}"), "").await;
    assert_eq!(begun.status, 200, "{}", begun.text());
    assert_eq!(begun.header("x-amz-checksum-algorithm"), Some("CRC32"));
    assert_eq!(begun.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
    let id = begun.element("UploadId").expect("an upload");
    let whole = payload(FIRST + 9);
    let mut parts = String::new();
    for (number, part) in (1..).zip(whole.chunks(FIRST)) {
        let target = format!("/bucket/key?partNumber={number}&uploadId={id}");
        let etag = server.put(&target, part).await.etag();
        parts.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        ));
    }
    let parts = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let end = async |claim: &str| {
        let target = format!("/bucket/key?uploadId={id}&{claim}");
        ask("POST", &target, &parts).await
    };
    for (claim, code) in [
        ("x-amz-checksum-type=COMPOSITE", "InvalidRequest"),
        ("x-amz-checksum-crc32=AAAAAA%3D%3D", "BadDigest"),
        ("x-amz-mp-object-size=9", "InvalidRequest"),
    ] {
        end(claim).await.is(400, code);
    }
    let sum = checksum(Algorithm::Crc32, &whole).to_base64();
    let encoded = sum
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    let done = end(&format!("x-amz-checksum-crc32={encoded}")).await;
    assert_eq!(done.status, 200, "{}", done.text());

    let shown = ask("HEAD", "/bucket/key?x-amz-checksum-mode=ENABLED", "").await;
    assert_eq!(shown.header("x-amz-checksum-crc32"), Some(sum.as_str()));
    let names = "x-amz-object-attributes=ObjectSize%2CObjectParts";
    let page = "x-amz-max-parts=1&x-amz-part-number-marker=1";
    let target = format!("/bucket/key?attributes&{names}&{page}");
    let told = ask("GET", &target, "").await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert_eq!(told.element("ObjectSize"), Some(whole.len().to_string()));
    assert_eq!(told.element("PartNumberMarker").as_deref(), Some("1"));
    assert_eq!(told.element("PartNumber").as_deref(), Some("2"));
    server.finish().await;
}

#[tokio::test]
async fn what_is_anothers_looks_absent() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"secret").await;
    for (method, target) in [
        ("GET", "/bucket/key"),
        ("GET", "/bucket"),
        ("GET", "/bucket?location"),
        ("GET", "/bucket?policy"),
        ("PUT", "/bucket/key"),
        ("DELETE", "/bucket/key"),
        ("DELETE", "/bucket"),
        ("POST", "/bucket/key?uploads"),
        ("POST", "/bucket?delete"),
    ] {
        let foreign = server.ask(BETA, Ask::new(method, target)).await;
        foreign.is(404, "NoSuchBucket");
        let absent = server
            .ask(BETA, Ask::new(method, &target.replace("bucket", "absent")))
            .await;
        absent.is(404, "NoSuchBucket");
        let anonymous = server.anonymous(Ask::new(method, target)).await;
        anonymous.is(403, "AccessDenied");
        let anonymous = server
            .anonymous(Ask::new(method, &target.replace("bucket", "absent")))
            .await;
        anonymous.is(403, "AccessDenied");
    }
    server
        .ask(BETA, Ask::new("PUT", "/bucket"))
        .await
        .is(409, "BucketAlreadyExists");
    server
        .ask(ALPHA, Ask::new("PUT", "/bucket"))
        .await
        .is(409, "BucketAlreadyOwnedByYou");
    let listed = server.ask(BETA, Ask::new("GET", "/")).await;
    assert!(!listed.text().contains("bucket</Name>"));
    // A copy cannot read what its maker cannot.
    server
        .ask(BETA, Ask::new("PUT", "/beta-own"))
        .await
        .is(200, "");
    let copy = Ask::new("PUT", "/beta-own/k").header("x-amz-copy-source", "bucket/key");
    server.ask(BETA, copy).await.is(404, "NoSuchBucket");
    server.finish().await;
}

#[tokio::test]
async fn virtual_host_style_and_unsigned_headers() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"x").await;
    let ask = Ask::new("GET", "/key").header("host", "bucket.localhost:9000");
    assert_eq!(server.ask(ALPHA, ask).await.body, b"x");
    // A header of S3 that was added on the way.
    let bytes = Ask::new("GET", "/bucket/key").signed(ALPHA, server.now_ms());
    let text = String::from_utf8(bytes).expect("a head");
    let added = text.replacen("\r\nhost", "\r\nx-amz-meta-a: b\r\nhost", 1);
    let answer = server.exchange(added.as_bytes(), false).await;
    answer.is(403, "AccessDenied");
    server.finish().await;
}

#[tokio::test]
async fn a_deleted_key_signs_nothing_any_more() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.delete_key(ALPHA);
    let answer = server.ask(ALPHA, Ask::new("GET", "/bucket")).await;
    answer.is(403, "InvalidAccessKeyId");
    server.finish().await;
}

#[tokio::test]
async fn the_signature_covers_the_host_that_picks_the_bucket() {
    let config = Config {
        domains: vec!["test".to_owned()],
        ..Config::default()
    };
    let server = Server::with(config, u64::MAX).await;
    for host in [HOST, "other.test"] {
        for (target, body) in [("/", ""), ("/report", host)] {
            let ask = Ask::new("PUT", target).header("host", host).body(body);
            assert_eq!(server.ask(ALPHA, ask).await.status, 200);
        }
    }
    let target = Ask::new("GET", "/report").presigned(ALPHA, server.now_ms(), 60);
    let get = |authority: &str, host: &str| {
        format!("GET http://{authority}{target} HTTP/1.1\r\nhost: {host}\r\n\r\n")
    };
    // RFC 9112 section 3.2.2: the target's authority counts, whatever Host says.
    let strayed = get("other.test", HOST);
    let answer = server.exchange(strayed.as_bytes(), false).await;
    answer.is(403, "SignatureDoesNotMatch");
    for host in [HOST, "other.test"] {
        let answer = server.exchange(get(HOST, host).as_bytes(), false).await;
        assert_eq!((answer.status, answer.text()), (200, HOST.to_owned()));
    }
    server.finish().await;
}
