//! Objects: what goes in comes out, conditions, ranges, checksums, copies, lists.

use forebay_proto::s3::checksum::{Algorithm, checksum};

use crate::support::{ALPHA, Ask, Server};

#[tokio::test]
async fn headers_and_metadata_come_back() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let ask = Ask::new("PUT", "/bucket/key")
        .header("content-type", "text/x")
        .header("cache-control", "no-store")
        .header("content-disposition", "inline")
        .header("content-language", "de")
        .header("content-encoding", "gzip")
        .header("expires", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("x-amz-meta-one", "1")
        .header("x-amz-tagging", "a=1&b=2")
        .header("x-amz-storage-class", "STANDARD_IA")
        .header("x-amz-acl", "private")
        .body(b"hello");
    let put = server.ask(ALPHA, ask).await;
    assert_eq!(put.status, 200);
    assert_eq!(put.etag(), "\"5d41402abc4b2a76b9719d911017c592\"");
    for method in ["GET", "HEAD"] {
        let answer = server.ask(ALPHA, Ask::new(method, "/bucket/key")).await;
        assert_eq!(answer.status, 200);
        for (name, value) in [
            ("content-type", "text/x"),
            ("cache-control", "no-store"),
            ("content-disposition", "inline"),
            ("content-language", "de"),
            ("content-encoding", "gzip"),
            ("expires", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-amz-meta-one", "1"),
            ("x-amz-tagging-count", "2"),
            ("content-length", "5"),
            ("accept-ranges", "bytes"),
            ("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT"),
            ("etag", "\"5d41402abc4b2a76b9719d911017c592\""),
        ] {
            assert_eq!(answer.header(name), Some(value), "{method} {name}");
        }
        assert_eq!(answer.header("x-amz-request-id").map(str::len), Some(16));
        assert_eq!(answer.header("x-amz-version-id"), None);
    }
    server.finish().await;
}

#[tokio::test]
async fn ranges_are_cut_ignored_or_refused_as_rfc_9110_says() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body: Vec<u8> = (0..=255)
        .cycle()
        .take(3 << 20)
        .map(|at: u16| at as u8)
        .collect();
    let etag = server.put("/bucket/key", &body).await.etag();
    server.put("/bucket/empty", b"").await;
    let size = body.len();
    let ranged = |target: &str, range: &str| Ask::new("GET", target).header("range", range);
    for (range, expected) in [
        ("bytes=0-0", 0..1),
        ("bytes=5-9", 5..10),
        ("bytes=1048570-2097160", 1_048_570..2_097_161),
        ("bytes=3145720-", 3_145_720..size),
        ("bytes=3145720-99999999", 3_145_720..size),
        ("bytes=-7", size - 7..size),
        ("bytes=-99999999", 0..size),
        ("bytes=0-", 0..size),
    ] {
        let answer = server.ask(ALPHA, ranged("/bucket/key", range)).await;
        assert_eq!(answer.status, 206, "{range}");
        assert!(answer.body == body[expected.clone()], "{range}");
        let shown = format!("bytes {}-{}/{size}", expected.start, expected.end - 1);
        assert_eq!(answer.header("content-range"), Some(shown.as_str()));
        let mut head = ranged("/bucket/key", range);
        head.method = "HEAD";
        let answer = server.ask(ALPHA, head).await;
        assert_eq!(answer.header("content-range"), Some(shown.as_str()));
    }
    // Reversed, several, of another unit, or nonsense: the header is ignored.
    for range in ["bytes=9-5", "bytes=0-1,5-6", "lines=0-1", "bytes=x"] {
        let answer = server.ask(ALPHA, ranged("/bucket/key", range)).await;
        assert_eq!((answer.status, answer.body.len()), (200, size), "{range}");
    }
    for (target, range, total) in [
        ("/bucket/key", "bytes=3145728-", size),
        ("/bucket/key", "bytes=-0", size),
        ("/bucket/empty", "bytes=0-", 0),
        ("/bucket/empty", "bytes=-1", 0),
    ] {
        let answer = server.ask(ALPHA, ranged(target, range)).await;
        answer.is(416, "InvalidRange");
        let shown = format!("bytes */{total}");
        assert_eq!(answer.header("content-range"), Some(shown.as_str()));
    }
    let same = ranged("/bucket/key", "bytes=0-1").header("if-range", &etag);
    assert_eq!(server.ask(ALPHA, same).await.status, 206);
    let other = ranged("/bucket/key", "bytes=0-1").header("if-range", "\"other\"");
    assert_eq!(server.ask(ALPHA, other).await.status, 200);
    let empty = server.get("/bucket/empty").await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    server.finish().await;
}

#[tokio::test]
async fn reads_are_conditional() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let etag = server.put("/bucket/key", b"x").await.etag();
    let with = |name: &str, value: &str| Ask::new("GET", "/bucket/key").header(name, value);
    for (name, value, status) in [
        ("if-match", etag.as_str(), 200),
        ("if-match", "\"other\"", 412),
        ("if-none-match", etag.as_str(), 304),
        ("if-none-match", "\"other\"", 200),
        ("if-modified-since", "Sat, 21 Nov 2026 00:00:00 GMT", 304),
        ("if-modified-since", "Fri, 20 Nov 2026 00:00:00 GMT", 200),
        ("if-modified-since", "nonsense", 200),
        ("if-unmodified-since", "Fri, 20 Nov 2026 00:00:00 GMT", 412),
        ("if-unmodified-since", "Sat, 21 Nov 2026 00:00:00 GMT", 200),
    ] {
        let answer = server.ask(ALPHA, with(name, value)).await;
        assert_eq!(answer.status, status, "{name}: {value}");
        if status == 304 {
            assert_eq!(answer.header("etag"), Some(etag.as_str()));
            assert!(answer.body.is_empty());
        }
    }
    // A condition is about the object, so it comes before the range.
    let both = with("if-match", "\"other\"").header("range", "bytes=9-");
    server.ask(ALPHA, both).await.is(412, "PreconditionFailed");
    server.finish().await;
}

#[tokio::test]
async fn writes_are_conditional_and_one_of_two_wins() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let create = |body: &'static [u8]| {
        Ask::new("PUT", "/bucket/key")
            .header("if-none-match", "*")
            .body(body)
    };
    let (one, two) = tokio::join!(
        server.ask(ALPHA, create(b"one")),
        server.ask(ALPHA, create(b"two"))
    );
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412]);
    let current = server.get("/bucket/key").await;
    let swap =
        |tag: &str, target: &str| Ask::new("PUT", target).header("if-match", tag).body(b"new");
    server
        .ask(ALPHA, swap("\"other\"", "/bucket/key"))
        .await
        .is(412, "PreconditionFailed");
    server
        .ask(ALPHA, swap("\"other\"", "/bucket/absent"))
        .await
        .is(404, "NoSuchKey");
    let swapped = server
        .ask(ALPHA, swap(&current.etag(), "/bucket/key"))
        .await;
    assert_eq!(swapped.status, 200);
    assert_eq!(server.get("/bucket/key").await.body, b"new");
    // It was stored on the 21st. Where there is nothing there is no date.
    let dated = |name: &'static str, day: &str| {
        let date = format!("{day} Nov 2026 00:00:00 GMT");
        server.ask(ALPHA, Ask::new("PUT", "/bucket/dated").header(name, &date))
    };
    let (earlier, later) = ("Fri, 20", "Sun, 22");
    assert_eq!(dated("if-unmodified-since", earlier).await.status, 200);
    let newer = dated("if-unmodified-since", earlier).await;
    newer.is(412, "PreconditionFailed");
    assert_eq!(dated("if-unmodified-since", later).await.status, 200);
    for day in [earlier, later] {
        assert_eq!(dated("if-modified-since", day).await.status, 200);
    }
    let odd = Ask::new("PUT", "/bucket/key").header("if-none-match", "\"tag\"");
    server.ask(ALPHA, odd).await.is(501, "NotImplemented");
    let stale = Ask::new("DELETE", "/bucket/key").header("if-match", "\"other\"");
    server.ask(ALPHA, stale).await.is(412, "PreconditionFailed");
    server.finish().await;
}

#[tokio::test]
async fn two_writers_of_one_key_leave_one_whole_object() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let bodies = [vec![1u8; 2_500_000], vec![2u8; 2_500_000]];
    let asks = bodies
        .iter()
        .map(|body| server.ask(ALPHA, Ask::new("PUT", "/bucket/key").body(body)));
    for answer in futures_util::future::join_all(asks).await {
        assert_eq!(answer.status, 200);
    }
    let answer = server.get("/bucket/key").await;
    assert!(bodies.contains(&answer.body));
    server.finish().await;
}

#[tokio::test]
async fn checksums_are_verified_kept_and_shown() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body = vec![7u8; 100_000];
    for algorithm in Algorithm::ALL {
        let right = checksum(algorithm, &body).to_base64();
        let wrong = checksum(algorithm, b"other").to_base64();
        let put = |value: &str| {
            Ask::new("PUT", "/bucket/key")
                .header(algorithm.header(), value)
                .body(&body)
        };
        server.ask(ALPHA, put(&wrong)).await.is(400, "BadDigest");
        server
            .ask(ALPHA, put("AAAA"))
            .await
            .is(400, "InvalidRequest");
        let answer = server.ask(ALPHA, put(&right)).await;
        assert_eq!(answer.header(algorithm.header()), Some(right.as_str()));
        let shown = server
            .ask(
                ALPHA,
                Ask::new("HEAD", "/bucket/key").header("x-amz-checksum-mode", "ENABLED"),
            )
            .await;
        assert_eq!(shown.header(algorithm.header()), Some(right.as_str()));
        assert_eq!(shown.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
        let silent = server.get("/bucket/key").await;
        assert_eq!(silent.header(algorithm.header()), None);
    }
    let md5 = |value: &str| {
        Ask::new("PUT", "/bucket/md5")
            .header("content-md5", value)
            .body(b"hello")
    };
    server
        .ask(ALPHA, md5("nonsense"))
        .await
        .is(400, "InvalidDigest");
    server
        .ask(ALPHA, md5("AAAAAAAAAAAAAAAAAAAAAA=="))
        .await
        .is(400, "BadDigest");
    let answer = server.ask(ALPHA, md5("XUFAKrxLKna5cZ2REBfFkg==")).await;
    assert_eq!(answer.status, 200);
    // Every object has a CRC-64/NVME, asked for or not.
    let expected = checksum(Algorithm::Crc64Nvme, b"hello").to_base64();
    assert_eq!(
        answer.header("x-amz-checksum-crc64nvme"),
        Some(expected.as_str())
    );
    let two = Ask::new("PUT", "/bucket/two")
        .header("x-amz-checksum-crc32", "AAAAAA==")
        .header("x-amz-checksum-crc32c", "AAAAAA==");
    server.ask(ALPHA, two).await.is(400, "InvalidRequest");
    // What is not made here cannot be compared.
    for (name, value) in [
        ("x-amz-checksum-md5", "XUFAKrxLKna5cZ2REBfFkg=="),
        ("x-amz-checksum-sha512", "AAAA"),
        ("x-amz-checksum-xxhash3", "AAAAAAAAAAA="),
        ("x-amz-checksum-xxhash64", "AAAAAAAAAAA="),
        ("x-amz-checksum-xxhash128", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("x-amz-sdk-checksum-algorithm", "MD5"),
        ("x-amz-sdk-checksum-algorithm", "SHA512"),
    ] {
        let ask = Ask::new("PUT", "/bucket/other").header(name, value);
        let answer = server.ask(ALPHA, ask.body(b"hello")).await;
        assert_eq!(answer.refusal().1, "InvalidRequest", "{name}: {value}");
    }
    server.get("/bucket/other").await.is(404, "NoSuchKey");
    let compared = md5("XUFAKrxLKna5cZ2REBfFkg==").header("x-amz-sdk-checksum-algorithm", "MD5");
    assert_eq!(server.ask(ALPHA, compared).await.status, 200);
    server.finish().await;
}

#[tokio::test]
async fn copies_keep_or_replace() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.make_bucket("second").await;
    let ask = Ask::new("PUT", "/bucket/a%20b")
        .header("content-type", "text/x")
        .header("x-amz-meta-one", "1")
        .header("x-amz-tagging", "t=1")
        .body(vec![3u8; 2_000_000]);
    let etag = server.ask(ALPHA, ask).await.etag();
    let copy = |target: &str| Ask::new("PUT", target).header("x-amz-copy-source", "/bucket/a%20b");

    let answer = server.ask(ALPHA, copy("/second/kept")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains(&etag.replace('"', "&quot;")));
    let kept = server.get("/second/kept").await;
    assert_eq!(kept.header("content-type"), Some("text/x"));
    assert_eq!(kept.header("x-amz-meta-one"), Some("1"));
    assert_eq!(kept.header("x-amz-tagging-count"), Some("1"));
    assert_eq!((kept.etag(), kept.body.len()), (etag.clone(), 2_000_000));

    let replaced = copy("/second/replaced")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-tagging-directive", "REPLACE")
        .header("x-amz-meta-two", "2");
    assert_eq!(server.ask(ALPHA, replaced).await.status, 200);
    let answer = server.get("/second/replaced").await;
    assert_eq!(answer.header("content-type"), Some("binary/octet-stream"));
    assert_eq!(answer.header("x-amz-meta-one"), None);
    assert_eq!(answer.header("x-amz-meta-two"), Some("2"));
    assert_eq!(answer.header("x-amz-tagging-count"), None);

    server
        .ask(ALPHA, copy("/bucket/a%20b"))
        .await
        .is(400, "InvalidRequest");
    let itself = copy("/bucket/a%20b")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-meta-three", "3");
    assert_eq!(server.ask(ALPHA, itself).await.status, 200);
    let answer = server.get("/bucket/a%20b").await;
    assert_eq!(answer.header("x-amz-meta-three"), Some("3"));
    assert_eq!(answer.body.len(), 2_000_000);

    for (name, value, status) in [
        ("x-amz-copy-source-if-match", "\"other\"", 412),
        ("x-amz-copy-source-if-match", etag.as_str(), 200),
        ("x-amz-copy-source-if-none-match", etag.as_str(), 412),
        ("x-amz-metadata-directive", "NONSENSE", 400),
    ] {
        let answer = server
            .ask(ALPHA, copy("/second/c").header(name, value))
            .await;
        assert_eq!(answer.status, status, "{name}");
    }
    for (source, code) in [
        ("bucket/absent", "NoSuchKey"),
        ("absent/key", "NoSuchBucket"),
        ("nonsense", "InvalidArgument"),
    ] {
        let ask = Ask::new("PUT", "/second/c").header("x-amz-copy-source", source);
        assert_eq!(server.ask(ALPHA, ask).await.refusal().1, code);
    }
    server.finish().await;
}

#[tokio::test]
async fn lists_page_through_everything_once() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for name in ["a", "b/1", "b/2", "b/3/x", "c", "d/1", "e%20%26%3C", "f"] {
        server.put(&format!("/bucket/{name}"), b"x").await;
    }
    let server_ref = &server;
    let list = |query: String| async move {
        let answer = server_ref.get(&query).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    for page in 1..=9 {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let text = list(format!(
                "/bucket?list-type=2&delimiter=%2F&max-keys={page}{token}"
            ))
            .await;
            found.extend(entries(&text));
            match between(&text, "NextContinuationToken") {
                Some(next) => token = format!("&continuation-token={next}"),
                None => break,
            }
        }
        assert_eq!(
            found,
            ["a", "c", "e &amp;&lt;", "f", "b/", "d/"].sorted(),
            "{page}"
        );
        let (mut found, mut marker) = (Vec::new(), String::new());
        loop {
            let text = list(format!(
                "/bucket?delimiter=%2F&encoding-type=url&max-keys={page}{marker}"
            ))
            .await;
            found.extend(entries(&text));
            match between(&text, "NextMarker") {
                Some(next) => marker = format!("&marker={next}"),
                None => break,
            }
        }
        assert_eq!(
            found,
            ["a", "c", "e%20%26%3C", "f", "b/", "d/"].sorted(),
            "{page}"
        );
    }
    let text = list("/bucket?list-type=2&prefix=b%2F&start-after=b%2F1".to_owned()).await;
    assert_eq!(entries(&text), ["b/2", "b/3/x"]);
    assert!(text.contains("<KeyCount>2</KeyCount>"));
    let text = list("/bucket?max-keys=0".to_owned()).await;
    assert!(text.contains("<IsTruncated>false</IsTruncated>") && entries(&text).is_empty());
    for (query, code) in [
        ("max-keys=x", "InvalidArgument"),
        ("max-keys=-1", "InvalidArgument"),
        ("encoding-type=x", "InvalidArgument"),
        ("list-type=2&continuation-token=x", "InvalidArgument"),
    ] {
        server.get(&format!("/bucket?{query}")).await.is(400, code);
    }
    server.finish().await;
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl<const N: usize> Sorted for [&str; N] {
    /// Keys come before common prefixes within a page, so only pages of one are in order of name.
    fn sorted(mut self) -> Self {
        self.sort_unstable();
        self
    }
}

fn between(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
}

/// Keys and common prefixes of a page, in order of name.
fn entries(text: &str) -> Vec<String> {
    let mut found: Vec<String> = ["<Contents><Key>", "<CommonPrefixes><Prefix>"]
        .into_iter()
        .flat_map(|mark| {
            text.split(mark)
                .skip(1)
                .filter_map(|rest| rest.split('<').next())
        })
        .map(str::to_owned)
        .collect();
    found.sort_unstable();
    found
}

#[tokio::test]
async fn deletes_single_and_many() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for name in ["a", "b", "c"] {
        server.put(&format!("/bucket/{name}"), b"x").await;
    }
    for _ in 0..2 {
        let answer = server.ask(ALPHA, Ask::new("DELETE", "/bucket/a")).await;
        assert_eq!(answer.status, 204);
    }
    let body = "<Delete><Object><Key>b</Key></Object><Object><Key>absent</Key></Object>\
        <Object><Key>c</Key><ETag>wrong</ETag></Object></Delete>";
    let answer = server
        .ask(ALPHA, Ask::new("POST", "/bucket/?delete").body(body))
        .await;
    assert_eq!(answer.status, 200);
    let text = answer.text();
    assert!(text.contains("<Deleted><Key>b</Key></Deleted>"), "{text}");
    assert!(text.contains("<Deleted><Key>absent</Key></Deleted>"));
    assert!(text.contains("<Error><Key>c</Key><Code>PreconditionFailed</Code>"));
    assert_eq!(server.get("/bucket/c").await.status, 200);
    server.get("/bucket/b").await.is(404, "NoSuchKey");
    server.finish().await;
}

#[tokio::test]
async fn a_read_outlives_the_object() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let body: Vec<u8> = (0..30_000_000u32).map(|at| (at >> 12) as u8).collect();
    server.put("/bucket/key", &body).await;
    let mut client = server.connect().await;
    client
        .send(&Ask::new("GET", "/bucket/key").signed(ALPHA, server.now_ms()))
        .await;
    assert!(client.more().await, "the read has begun");
    let answer = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    assert_eq!(answer.status, 204);
    server.get("/bucket/key").await.is(404, "NoSuchKey");
    assert!(client.answer(false).await.body == body);
    server.finish().await;
}

#[tokio::test]
async fn attributes_and_tags() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"hello").await;
    let ask = Ask::new("GET", "/bucket/key?attributes").header(
        "x-amz-object-attributes",
        "ETag,ObjectSize,Checksum,StorageClass",
    );
    let answer = server.ask(ALPHA, ask).await;
    assert_eq!(answer.element("ObjectSize").as_deref(), Some("5"));
    assert_eq!(
        answer.element("ETag").as_deref(),
        Some("5d41402abc4b2a76b9719d911017c592")
    );
    assert!(answer.text().contains("<ChecksumCRC64NVME>"));
    let wrong = Ask::new("GET", "/bucket/key?attributes").header("x-amz-object-attributes", "X");
    server.ask(ALPHA, wrong).await.is(400, "InvalidArgument");

    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    let put = Ask::new("PUT", "/bucket/key?tagging").body(tags);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    let answer = server.get("/bucket/key?tagging").await;
    assert!(answer.text().contains("<Key>k</Key><Value>v</Value>"));
    let delete = Ask::new("DELETE", "/bucket/key?tagging");
    assert_eq!(server.ask(ALPHA, delete).await.status, 204);
    let answer = server.get("/bucket/key?tagging").await;
    assert!(!answer.text().contains("<Tag>"));
    server
        .get("/bucket/absent?tagging")
        .await
        .is(404, "NoSuchKey");
    server.finish().await;
}
