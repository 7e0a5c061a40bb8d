//! What answers say beside what is stored: headers as the request wants them, and what errors are about.

use std::collections::BTreeSet;

use crate::support::{ALPHA, Ask, Server, Sign};

#[tokio::test]
async fn a_request_may_say_what_six_headers_of_its_answer_are() {
    const SIX: [(&str, &str, &str, &str); 6] = [
        ("content-type", "text/x", "a%2Fb", "a/b"),
        ("cache-control", "no-store", "max-age%3D1", "max-age=1"),
        (
            "content-disposition",
            "inline",
            "attachment%3B%20filename%3D%22a%20b%22",
            "attachment; filename=\"a b\"",
        ),
        ("content-language", "de", "en%2C%20fr", "en, fr"),
        ("content-encoding", "gzip", "br", "br"),
        (
            "expires",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sat%2C%2001%20Jan%202000%2000%3A00%3A00%20GMT",
            "Sat, 01 Jan 2000 00:00:00 GMT",
        ),
    ];
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/bare", b"x").await;
    let put = Ask::new("PUT", "/bucket/key").body(b"x");
    let put = SIX
        .iter()
        .fold(put, |put, (name, stored, ..)| put.header(name, stored));
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    let all: Vec<String> = SIX
        .iter()
        .map(|(name, _, value, _)| format!("response-{name}={value}"))
        .collect();
    for method in ["GET", "HEAD"] {
        let ask = |target: String| server.ask(ALPHA, Ask::new(method, &target));
        // All together, also where nothing is stored.
        for key in ["key", "bare"] {
            let answer = ask(format!("/bucket/{key}?{}", all.join("&"))).await;
            assert_eq!(answer.status, 200);
            for (name, _, _, shown) in SIX {
                assert_eq!(answer.header(name), Some(shown), "{method} {key} {name}");
            }
        }
        // One alone leaves the others as they are.
        for (at, parameter) in all.iter().enumerate() {
            let answer = ask(format!("/bucket/key?{parameter}")).await;
            assert_eq!(answer.status, 200);
            for (other, (name, stored, _, shown)) in SIX.into_iter().enumerate() {
                let expected = if at == other { shown } else { stored };
                assert_eq!(answer.header(name), Some(expected), "{method} {parameter}");
            }
        }
        // An answer may be asked for as it likes; the object is as it was.
        let answer = ask("/bucket/key".to_owned()).await;
        for (name, stored, ..) in SIX {
            assert_eq!(answer.header(name), Some(stored), "{method} {name}");
        }
    }
    let forged = server.get("/bucket/key?response-expires=a%0D%0Ab%3A%20c");
    forged.await.is(400, "InvalidArgument");
    server.finish().await;
}

#[tokio::test]
async fn an_error_says_what_it_is_about_and_which_request_it_answers() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let get = |target: &str| Ask::new("GET", target);
    let mut ids = BTreeSet::new();
    for (ask, code, resource) in [
        (Ask::new("DELETE", "/"), "MethodNotAllowed", "/"),
        (get("/absent"), "NoSuchBucket", "/absent"),
        (get("/absent/key"), "NoSuchBucket", "/absent/key"),
        (get("/bucket/absent"), "NoSuchKey", "/bucket/absent"),
        // The path as it was sent, without what followed it, and fit for a document.
        (
            get("/bucket/a%20b%2Fc%26d"),
            "NoSuchKey",
            "/bucket/a%20b%2Fc%26d",
        ),
        (get("/bucket/a&b"), "NoSuchKey", "/bucket/a&amp;b"),
        (
            get("/bucket/key?uploadId=nonsense"),
            "NoSuchUpload",
            "/bucket/key",
        ),
        (get("/bucket?cors"), "NoSuchCORSConfiguration", "/bucket"),
        (get("/bucket/%zz"), "InvalidURI", "/bucket/%zz"),
        (
            Ask::new("PUT", "/bucket/key").header("if-match", "\"tag\""),
            "NoSuchKey",
            "/bucket/key",
        ),
        (
            get("/key").header("host", "bucket.localhost"),
            "NoSuchKey",
            "/key",
        ),
        (
            Ask::new("POST", "/bucket?delete").body("nonsense"),
            "MalformedXML",
            "/bucket",
        ),
    ] {
        let answer = server.ask(ALPHA, ask).await;
        assert_eq!(answer.element("Code").as_deref(), Some(code));
        assert_eq!(answer.header("content-type"), Some("application/xml"));
        assert_eq!(answer.element("Resource").as_deref(), Some(resource));
        let id = answer.element("RequestId").expect("an id");
        assert_eq!(answer.header("x-amz-request-id"), Some(id.as_str()));
        let legible = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(legible, "{id}");
        assert!(ids.insert(id), "{resource}: an id of two requests");
    }
    // Who is not known is told, too.
    let answer = server.anonymous(get("/bucket/key")).await;
    answer.is(403, "AccessDenied");
    assert_eq!(answer.element("Resource").as_deref(), Some("/bucket/key"));
    // Where no document may be, the header names the request.
    let head = server.ask(ALPHA, Ask::new("HEAD", "/bucket/absent")).await;
    assert_eq!((head.status, head.body.len()), (404, 0));
    let id = head.header("x-amz-request-id").expect("an id");
    assert!(ids.insert(id.to_owned()));
    server.finish().await;
}

#[tokio::test]
async fn refusals_say_what_else_there_is() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.keep_versions("bucket").await;
    let put = Ask::new("PUT", "/bucket/key").body(b"abc");
    let put = put.header("expires", "Thu, 01 Jan 2032 00:00:00 GMT");
    let put = server
        .ask(ALPHA, put.header("cache-control", "max-age=60"))
        .await;
    let version = put
        .header("x-amz-version-id")
        .expect("a version")
        .to_owned();
    let get = Ask::new("GET", "/bucket/key").header("if-none-match", &put.etag());
    let unchanged = server.ask(ALPHA, get).await;
    assert_eq!(unchanged.status, 304);
    for (name, value) in [
        ("x-amz-version-id", version.as_str()),
        ("expires", "Thu, 01 Jan 2032 00:00:00 GMT"),
        ("cache-control", "max-age=60"),
    ] {
        assert_eq!(unchanged.header(name), Some(value), "{name}");
    }
    let deleted = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    let marker = deleted.header("x-amz-version-id").expect("a marker");
    let all = "DELETE, GET, HEAD, OPTIONS, POST, PUT";
    for (method, target, allowed) in [
        ("GET", format!("/bucket/key?versionId={marker}"), "DELETE"),
        ("DELETE", "/".to_owned(), "GET, OPTIONS"),
        ("PATCH", "/bucket".to_owned(), all),
        ("PATCH", "/bucket/key".to_owned(), all),
    ] {
        let refused = server.ask(ALPHA, Ask::new(method, &target)).await;
        assert_eq!(refused.status, 405, "{method} {target}");
        assert_eq!(refused.header("allow"), Some(allowed), "{method} {target}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_list_in_several_lines_is_kept_whole() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let put = Ask::new("PUT", "/bucket/key")
        .body(b"abc")
        .sign(Sign::Chunks);
    let put = put
        .header("content-encoding", "aws-chunked")
        .header("content-encoding", "gzip")
        .header("cache-control", "no-cache")
        .header("cache-control", "private");
    let put = server.ask(ALPHA, put).await;
    assert_eq!(put.status, 200, "{}", put.text());
    let got = server.get("/bucket/key").await;
    assert_eq!(got.header("content-encoding"), Some("gzip"));
    assert_eq!(got.header("cache-control"), Some("no-cache,private"));
    server.finish().await;
}
