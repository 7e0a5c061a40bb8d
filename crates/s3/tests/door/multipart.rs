//! Multipart uploads, right and wrong.

use forebay_proto::s3::checksum::{Algorithm, checksum, composite, composite_text};

use crate::support::{ALPHA, Answer, Ask, Server};

const PART: usize = 5 << 20;

async fn begin(server: &Server, target: &str, headers: &[(&str, &str)]) -> String {
    let mut ask = Ask::new("POST", &format!("{target}?uploads"));
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    let answer = server.ask(ALPHA, ask).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.element("UploadId").expect("an upload")
}

async fn part(server: &Server, target: &str, id: &str, number: u32, body: &[u8]) -> Answer {
    let target = format!("{target}?partNumber={number}&uploadId={id}");
    server.ask(ALPHA, Ask::new("PUT", &target).body(body)).await
}

async fn complete(server: &Server, target: &str, id: &str, parts: &[(u32, &str)]) -> Answer {
    complete_with(server, target, id, parts, &[]).await
}

async fn complete_with(
    server: &Server,
    target: &str,
    id: &str,
    parts: &[(u32, &str)],
    headers: &[(&str, &str)],
) -> Answer {
    let inner: String = parts
        .iter()
        .map(|(number, etag)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        })
        .collect();
    let body = format!("<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>");
    let mut ask = Ask::new("POST", &format!("{target}?uploadId={id}")).body(body);
    for (name, value) in headers {
        ask = ask.header(name, value);
    }
    server.ask(ALPHA, ask).await
}

#[tokio::test]
async fn parts_become_one_object() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(
        &server,
        "/bucket/key",
        &[
            ("content-type", "text/x"),
            ("x-amz-meta-a", "b"),
            ("x-amz-tagging", "t=1"),
        ],
    )
    .await;
    let bodies = [vec![1u8; PART], vec![2u8; PART + 7], vec![3u8; 11]];
    let mut etags = Vec::new();
    // In any order, and one of them twice.
    for (number, body) in [
        (9, &bodies[2]),
        (2, &bodies[0]),
        (5, &bodies[0]),
        (5, &bodies[1]),
    ] {
        let answer = part(&server, "/bucket/key", &id, number, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        etags.push((number, answer.etag()));
    }
    // One that is left out.
    part(&server, "/bucket/key", &id, 7, b"unused").await;
    let listed = server
        .get(&format!(
            "/bucket/key?uploadId={id}&max-parts=2&part-number-marker=2"
        ))
        .await;
    assert_eq!(listed.element("NextPartNumberMarker").as_deref(), Some("7"));
    assert!(listed.text().contains("<IsTruncated>true</IsTruncated>"));
    server.get("/bucket/key").await.is(404, "NoSuchKey");
    let parts = [
        (2, etags[1].1.as_str()),
        (5, etags[3].1.as_str()),
        (9, etags[0].1.as_str()),
    ];
    let done = complete(&server, "/bucket/key", &id, &parts).await;
    assert_eq!(done.status, 200, "{}", done.text());
    let etag = done.element("ETag").expect("a tag");
    assert!(etag.ends_with("-3&quot;"), "{etag}");
    assert_eq!(
        done.element("Location").as_deref(),
        Some("http://door.test/bucket/key")
    );
    let whole = bodies.concat();
    let answer = server.get("/bucket/key").await;
    assert!(answer.body == whole);
    assert_eq!(answer.header("content-type"), Some("text/x"));
    assert_eq!(answer.header("x-amz-meta-a"), Some("b"));
    assert_eq!(answer.header("x-amz-tagging-count"), Some("1"));
    assert_eq!(server.used().bytes, whole.len() as u64);

    // Its parts by number, as they lie in the object.
    for (number, body) in (1..).zip(&bodies) {
        let answer = server
            .get(&format!("/bucket/key?partNumber={number}"))
            .await;
        assert_eq!(answer.status, 206);
        assert!(answer.body == *body);
        assert_eq!(answer.header("x-amz-mp-parts-count"), Some("3"));
    }
    server
        .get("/bucket/key?partNumber=4")
        .await
        .is(416, "InvalidPartNumber");
    let ask =
        Ask::new("GET", "/bucket/key?attributes").header("x-amz-object-attributes", "ObjectParts");
    let answer = server.ask(ALPHA, ask).await;
    assert_eq!(answer.element("PartsCount").as_deref(), Some("3"));

    // Asked again, it answers the same; the upload itself is gone.
    let again = complete(&server, "/bucket/key", &id, &parts).await;
    assert_eq!(again.element("ETag"), Some(etag));
    part(&server, "/bucket/key", &id, 1, b"x")
        .await
        .is(404, "NoSuchUpload");
    server.finish().await;
}

#[tokio::test]
async fn wrong_completions_are_refused_and_change_nothing() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(&server, "/bucket/key", &[]).await;
    let one = part(&server, "/bucket/key", &id, 1, &[1; 1000])
        .await
        .etag();
    let two = part(&server, "/bucket/key", &id, 2, &[2; 1000])
        .await
        .etag();
    let (one, two) = (one.as_str(), two.as_str());
    for (parts, code) in [
        (&[(1, one), (2, two)][..], "EntityTooSmall"),
        (&[(2, two), (1, one)], "InvalidPartOrder"),
        (&[(1, one), (1, one)], "InvalidPartOrder"),
        (&[(1, one), (3, two)], "InvalidPart"),
        (&[(1, two)], "InvalidPart"),
        (&[(1, "nonsense")], "InvalidPart"),
        (&[(0, one)], "InvalidArgument"),
        (&[(10_001, one)], "InvalidArgument"),
        (&[], "MalformedXML"),
    ] {
        let answer = complete(&server, "/bucket/key", &id, parts).await;
        assert_eq!(answer.refusal(), (400, code.to_owned()), "{parts:?}");
    }
    for number in ["0", "10001", "x", "", "-1"] {
        let target = format!("/bucket/key?partNumber={number}&uploadId={id}");
        let answer = server.ask(ALPHA, Ask::new("PUT", &target).body(b"x")).await;
        answer.is(400, "InvalidArgument");
    }
    for number in ["0", "10001"] {
        let answer = server
            .get(&format!("/bucket/key?partNumber={number}"))
            .await;
        answer.is(400, "InvalidArgument");
    }
    let other = "0".repeat(32);
    for id in [other.as_str(), "nonsense", ""] {
        complete(&server, "/bucket/key", id, &[(1, one)])
            .await
            .is(404, "NoSuchUpload");
        part(&server, "/bucket/key", id, 1, b"x")
            .await
            .is(404, "NoSuchUpload");
    }
    // An upload belongs to its key.
    complete(&server, "/bucket/other", &id, &[(1, one)])
        .await
        .is(404, "NoSuchUpload");
    let size = [("x-amz-mp-object-size", "999")];
    complete_with(&server, "/bucket/key", &id, &[(1, one)], &size)
        .await
        .is(400, "InvalidRequest");
    server.get("/bucket/key").await.is(404, "NoSuchKey");
    // After all that it still completes.
    let done = complete(&server, "/bucket/key", &id, &[(2, two)]).await;
    assert_eq!(done.status, 200);
    assert_eq!(server.get("/bucket/key").await.body, [2; 1000]);
    server.finish().await;
}

/// Ten thousand parts, each with a SHA-256, one element a line: more than other documents may be, and bounded too.
#[tokio::test]
async fn the_longest_list_of_parts_is_read() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(&server, "/bucket/key", &[]).await;
    let sum = checksum(Algorithm::Sha256, b"x").to_base64();
    let etag = "0".repeat(32);
    let list = |indent: usize| {
        let (outer, inner) = (" ".repeat(indent), " ".repeat(2 * indent));
        let parts: String = (1..=10_000)
            .map(|number| {
                format!(
                    "{outer}<Part>\n{inner}<PartNumber>{number}</PartNumber>\n\
                     {inner}<ETag>&quot;{etag}&quot;</ETag>\n\
                     {inner}<ChecksumSHA256>{sum}</ChecksumSHA256>\n{outer}</Part>\n"
                )
            })
            .collect();
        format!("<CompleteMultipartUpload>\n{parts}</CompleteMultipartUpload>")
    };
    for (indent, code) in [
        // No such part: it was read to its end.
        (0, "InvalidPart"),
        (8, "InvalidPart"),
        (40, "MaxMessageLengthExceeded"),
    ] {
        let ask = Ask::new("POST", &format!("/bucket/key?uploadId={id}")).body(list(indent));
        server.ask(ALPHA, ask).await.is(400, code);
    }
    server.finish().await;
}

#[tokio::test]
async fn an_empty_part_is_empty() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(&server, "/bucket/key", &[]).await;
    let bodies = [vec![1u8; PART], Vec::new()];
    let mut etags = Vec::new();
    for (number, body) in (1..).zip(&bodies) {
        let answer = part(&server, "/bucket/key", &id, number, body).await;
        etags.push((number, answer.etag()));
    }
    let parts: Vec<(u32, &str)> = etags.iter().map(|(n, etag)| (*n, &**etag)).collect();
    let done = complete(&server, "/bucket/key", &id, &parts).await;
    assert_eq!(done.status, 200, "{}", done.text());
    for (number, body, range) in [
        (1, &bodies[0], "bytes 0-5242879/5242880"),
        (2, &bodies[1], "bytes */5242880"),
    ] {
        let target = format!("/bucket/key?partNumber={number}");
        let length = body.len().to_string();
        let got = server.get(&target).await;
        let looked = server.ask(ALPHA, Ask::new("HEAD", &target)).await;
        assert!(got.body == *body, "part {number}");
        for answer in [got, looked] {
            assert_eq!(answer.status, 206);
            assert_eq!(answer.header("content-length"), Some(length.as_str()));
            assert_eq!(answer.header("content-range"), Some(range));
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn conditions_decide_at_the_end() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(&server, "/bucket/key", &[]).await;
    let etag = part(&server, "/bucket/key", &id, 1, b"new").await.etag();
    server.put("/bucket/key", b"old").await;
    let absent = [("if-none-match", "*")];
    complete_with(&server, "/bucket/key", &id, &[(1, &etag)], &absent)
        .await
        .is(412, "PreconditionFailed");
    assert_eq!(server.get("/bucket/key").await.body, b"old");
    let current = server.get("/bucket/key").await.etag();
    let same = [("if-match", current.as_str())];
    let done = complete_with(&server, "/bucket/key", &id, &[(1, &etag)], &same).await;
    assert_eq!(done.status, 200);
    assert_eq!(server.get("/bucket/key").await.body, b"new");
    server.finish().await;
}

#[tokio::test]
async fn aborted_uploads_leave_nothing() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let id = begin(&server, "/bucket/key", &[]).await;
    part(&server, "/bucket/key", &id, 1, &[1; 1000]).await;
    assert_eq!(server.used().bytes, 1000);
    // A part that is on its way when the upload is given up.
    let target = format!("/bucket/key?partNumber=2&uploadId={id}");
    let (head, body) = Ask::new("PUT", &target)
        .header("expect", "100-continue")
        .body([2; 1000])
        .parts(ALPHA, server.now_ms());
    let mut late = server.connect().await;
    late.send(head.as_bytes()).await;
    assert_eq!(late.answer(false).await.status, 100);
    let abort = Ask::new("DELETE", &format!("/bucket/key?uploadId={id}"));
    assert_eq!(server.ask(ALPHA, abort.clone()).await.status, 204);
    late.send(&body).await;
    late.answer(false).await.is(404, "NoSuchUpload");
    assert_eq!(server.used().bytes, 0);
    server.ask(ALPHA, abort).await.is(404, "NoSuchUpload");
    // A bucket with nothing but unfinished uploads can go.
    begin(&server, "/bucket/other", &[]).await;
    let gone = server.ask(ALPHA, Ask::new("DELETE", "/bucket")).await;
    assert_eq!(gone.status, 204, "{}", gone.text());
    drop(late);
    server.finish().await;
}

#[tokio::test]
async fn checksums_of_parts_and_of_the_whole() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let bodies = [vec![1u8; PART], vec![2u8; 99]];
    let whole = bodies.concat();
    for (algorithm, kind) in [
        (Algorithm::Crc32, "FULL_OBJECT"),
        (Algorithm::Crc32C, "FULL_OBJECT"),
        (Algorithm::Crc64Nvme, "FULL_OBJECT"),
        (Algorithm::Crc32, "COMPOSITE"),
        (Algorithm::Sha1, "COMPOSITE"),
        (Algorithm::Sha256, "COMPOSITE"),
    ] {
        let choice = [
            ("x-amz-checksum-algorithm", algorithm.as_str()),
            ("x-amz-checksum-type", kind),
        ];
        let id = begin(&server, "/bucket/key", &choice).await;
        let mut etags = Vec::new();
        for (number, body) in (1..).zip(&bodies) {
            let answer = part(&server, "/bucket/key", &id, number, body).await;
            let sum = checksum(algorithm, body).to_base64();
            assert_eq!(answer.header(algorithm.header()), Some(sum.as_str()));
            etags.push((number, answer.etag()));
        }
        let parts: Vec<(u32, &str)> = etags
            .iter()
            .map(|(number, etag)| (*number, etag.as_str()))
            .collect();
        let wrong = checksum(algorithm, b"other").to_base64();
        let claim = [(algorithm.header(), wrong.as_str())];
        complete_with(&server, "/bucket/key", &id, &parts, &claim)
            .await
            .is(400, "BadDigest");
        let other_kind = match kind {
            "COMPOSITE" => "FULL_OBJECT",
            _ => "COMPOSITE",
        };
        let claim = [("x-amz-checksum-type", other_kind)];
        complete_with(&server, "/bucket/key", &id, &parts, &claim)
            .await
            .is(400, "InvalidRequest");
        // As the answer will show it, and the CRC-64/NVME that every object has.
        let claimed = match kind {
            "FULL_OBJECT" => checksum(algorithm, &whole).to_base64(),
            _ => {
                let sums = bodies.each_ref().map(|body| checksum(algorithm, body));
                let (sum, count) = composite(&sums).expect("of one algorithm");
                composite_text(&sum, count)
            }
        };
        let crc64nvme = checksum(Algorithm::Crc64Nvme, &whole).to_base64();
        let claim = [
            (algorithm.header(), claimed.as_str()),
            ("x-amz-checksum-type", kind),
            (Algorithm::Crc64Nvme.header(), &crc64nvme),
        ];
        let claim = &claim[..if algorithm == Algorithm::Crc64Nvme {
            2
        } else {
            3
        }];
        let done = complete_with(&server, "/bucket/key", &id, &parts, claim).await;
        let shown = done.element(algorithm.element()).expect("a checksum");
        assert_eq!(shown, claimed);
        match kind {
            "FULL_OBJECT" => assert_eq!(shown, checksum(algorithm, &whole).to_base64()),
            _ => assert!(shown.ends_with("-2"), "{shown}"),
        }
        let ask = Ask::new("HEAD", "/bucket/key").header("x-amz-checksum-mode", "ENABLED");
        let head = server.ask(ALPHA, ask).await;
        assert_eq!(head.header(algorithm.header()), Some(shown.as_str()));
        assert_eq!(head.header("x-amz-checksum-type"), Some(kind));
        let ask = Ask::new("GET", "/bucket/key?attributes")
            .header("x-amz-object-attributes", "ObjectParts");
        let text = server.ask(ALPHA, ask).await.text();
        for (number, body) in (1..).zip(&bodies) {
            let element = algorithm.element();
            let sum = checksum(algorithm, body).to_base64();
            let size = body.len();
            let part = format!(
                "<Part><PartNumber>{number}</PartNumber><Size>{size}</Size><{element}>{sum}</{element}></Part>"
            );
            assert!(text.contains(&part), "{text}");
        }
    }
    let id = begin(
        &server,
        "/bucket/key",
        &[("x-amz-checksum-algorithm", "CRC32")],
    )
    .await;
    let target = format!("/bucket/key?partNumber=1&uploadId={id}");
    let other = Ask::new("PUT", &target)
        .header(
            "x-amz-checksum-sha1",
            &checksum(Algorithm::Sha1, b"x").to_base64(),
        )
        .body(b"x");
    server.ask(ALPHA, other).await.is(400, "InvalidRequest");
    for headers in [
        &[("x-amz-checksum-type", "COMPOSITE")][..],
        &[("x-amz-checksum-algorithm", "CRC99")],
        &[
            ("x-amz-checksum-algorithm", "SHA256"),
            ("x-amz-checksum-type", "FULL_OBJECT"),
        ],
        &[
            ("x-amz-checksum-algorithm", "CRC64NVME"),
            ("x-amz-checksum-type", "COMPOSITE"),
        ],
    ] {
        let mut ask = Ask::new("POST", "/bucket/key?uploads");
        for (name, value) in headers {
            ask = ask.header(name, value);
        }
        server.ask(ALPHA, ask).await.is(400, "InvalidRequest");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_checksum_that_the_whole_has_not_is_refused_whatever_its_algorithm() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for choice in [&[][..], &[("x-amz-checksum-algorithm", "SHA1")]] {
        for algorithm in Algorithm::ALL {
            let id = begin(&server, "/bucket/key", choice).await;
            let etag = part(&server, "/bucket/key", &id, 1, b"hello").await.etag();
            let wrong = checksum(algorithm, b"other").to_base64();
            for text in [wrong.as_str(), "none"] {
                let claim = [(algorithm.header(), text)];
                let answer =
                    complete_with(&server, "/bucket/key", &id, &[(1, &etag)], &claim).await;
                assert_eq!(
                    answer.status,
                    400,
                    "{algorithm:?} {text}: {}",
                    answer.text()
                );
            }
            server.get("/bucket/key").await.is(404, "NoSuchKey");
        }
    }
    let id = begin(&server, "/bucket/key", &[]).await;
    let etag = part(&server, "/bucket/key", &id, 1, b"hello").await.etag();
    let right = checksum(Algorithm::Crc64Nvme, b"hello").to_base64();
    let claim = [
        (Algorithm::Crc64Nvme.header(), right.as_str()),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    ];
    let unknown = [claim[0], ("x-amz-checksum-sha512", "AAAA")];
    complete_with(&server, "/bucket/key", &id, &[(1, &etag)], &unknown)
        .await
        .is(400, "InvalidRequest");
    let done = complete_with(&server, "/bucket/key", &id, &[(1, &etag)], &claim).await;
    assert_eq!(done.status, 200, "{}", done.text());
    server.finish().await;
}

/// Clients repeat in the list what `UploadPart` told them, and some what they computed themselves.
#[tokio::test]
async fn a_checksum_in_the_list_is_one_that_the_part_has() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for kept in std::iter::once(None).chain(Algorithm::ALL.map(Some)) {
        let id = begin(&server, "/bucket/key", &[]).await;
        let target = format!("/bucket/key?partNumber=1&uploadId={id}");
        let mut ask = Ask::new("PUT", &target).body(b"hello");
        if let Some(algorithm) = kept {
            ask = ask.header(
                algorithm.header(),
                &checksum(algorithm, b"hello").to_base64(),
            );
        }
        let stored = server.ask(ALPHA, ask).await;
        let etag = stored.etag();
        let end = async |algorithm: Algorithm, sum: &str| {
            let element = algorithm.element();
            let list = format!(
                "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag>\
                 <{element}>{sum}</{element}></Part></CompleteMultipartUpload>"
            );
            let ask = Ask::new("POST", &format!("/bucket/key?uploadId={id}")).body(list);
            server.ask(ALPHA, ask).await
        };
        for algorithm in Algorithm::ALL {
            let wrong = checksum(algorithm, b"other").to_base64();
            end(algorithm, &wrong).await.is(400, "InvalidPart");
            if Some(algorithm) != kept && algorithm != Algorithm::Crc64Nvme {
                // It is right, and nobody can say so.
                let right = checksum(algorithm, b"hello").to_base64();
                end(algorithm, &right).await.is(400, "InvalidPart");
            }
        }
        let told = kept.unwrap_or(Algorithm::Crc64Nvme);
        let sum = match kept {
            Some(algorithm) => stored.header(algorithm.header()).expect("told").to_owned(),
            None => checksum(told, b"hello").to_base64(),
        };
        let done = end(told, &sum).await;
        assert_eq!(done.status, 200, "{kept:?}: {}", done.text());
    }
    server.finish().await;
}

#[tokio::test]
async fn parts_are_copied_from_objects() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at >> 10) as u8).collect();
    server.put("/bucket/source", &body).await;
    let id = begin(&server, "/bucket/key", &[]).await;
    let target = format!("/bucket/key?partNumber=1&uploadId={id}");
    let copy = |range: &str| {
        Ask::new("PUT", &target)
            .header("x-amz-copy-source", "/bucket/source")
            .header("x-amz-copy-source-range", range)
    };
    for (range, status) in [
        ("bytes=0-3000000", 416),
        ("bytes=5-1", 400),
        ("bytes=5-", 400),
        ("nonsense", 400),
    ] {
        assert_eq!(
            server.ask(ALPHA, copy(range)).await.status,
            status,
            "{range}"
        );
    }
    let answer = server.ask(ALPHA, copy("bytes=100-2000099")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let etag = answer.element("ETag").expect("a tag");
    let done = complete(&server, "/bucket/key", &id, &[(1, &etag)]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(server.get("/bucket/key").await.body == body[100..2_000_100]);
    server.finish().await;
}

#[tokio::test]
async fn uploads_are_listed_by_key_and_age() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let mut expected = Vec::new();
    for key in ["a", "b/1", "b/2", "c", "c", "d%20"] {
        server.advance_ms(1);
        let id = begin(&server, &format!("/bucket/{key}"), &[]).await;
        expected.push((key.replace("%20", " "), id));
    }
    for page in 1..=7 {
        let (mut found, mut marker) = (Vec::new(), String::new());
        loop {
            let answer = server
                .get(&format!("/bucket?uploads&max-uploads={page}{marker}"))
                .await;
            let text = answer.text();
            for upload in text.split("<Upload>").skip(1) {
                let field = |name: &str| {
                    let (_, rest) = upload.split_once(&format!("<{name}>")).expect("present");
                    rest.split('<').next().unwrap_or_default().to_owned()
                };
                found.push((field("Key"), field("UploadId")));
            }
            let next = (
                answer.element("NextKeyMarker"),
                answer.element("NextUploadIdMarker"),
            );
            match next {
                (Some(key), Some(id)) if text.contains("<IsTruncated>true") => {
                    let key = key.replace(' ', "%20").replace('/', "%2F");
                    marker = format!("&key-marker={key}&upload-id-marker={id}");
                }
                _ => break,
            }
        }
        assert_eq!(found, expected, "{page}");
    }
    let text = server.get("/bucket?uploads&delimiter=%2F").await.text();
    assert!(text.contains("<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>"));
    assert_eq!(text.matches("<Upload>").count(), 4);
    let text = server.get("/bucket?uploads&prefix=b%2F").await.text();
    assert_eq!(text.matches("<Upload>").count(), 2);
    let text = server
        .get("/bucket?uploads&delimiter=%2F&max-uploads=2&key-marker=b%2F")
        .await
        .text();
    assert_eq!(text.matches("<Upload>").count(), 2);
    assert!(!text.contains("b/</Prefix></CommonPrefixes>"));
    server.finish().await;
}
