//! Refusals, lost connections, wrong bytes.

use bytes::Bytes;
use forebay_client::direct::Condition;
use forebay_client::{Attributes, Client, Config, Crc64, Error, Kind, PutOptions};

use crate::script::{Act, answer, credentials, refusal, script};

#[tokio::test]
async fn what_passes_is_tried_again() {
    let (client, heads) = script(vec![
        refusal("503 Slow Down", "SlowDown"),
        Act::Hang,
        answer("200 OK", "etag: \"tag\"\r\n", b""),
    ]);
    let body = Bytes::from_static(b"123456789");
    let etag = client
        .put("ns", "a b/\u{e9}", body, &PutOptions::default())
        .await
        .unwrap();
    assert_eq!(etag, "tag");
    let heads: Vec<String> = heads.iter().collect();
    assert_eq!(heads.len(), 3);
    for head in &heads {
        assert!(
            head.starts_with("PUT /ns/a%20b/%C3%A9 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"),
            "{head}"
        );
        assert!(
            head.contains("x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n"),
            "{head}"
        );
        assert!(
            head.contains(
                "SignedHeaders=host;x-amz-checksum-crc64nvme;x-amz-content-sha256;x-amz-date,"
            ),
            "{head}"
        );
    }
}

#[tokio::test]
async fn what_will_not_pass_is_not_tried_again() {
    for (status, code, kind) in [
        ("404 Not Found", "NoSuchKey", Kind::NotFound),
        ("403 Forbidden", "AccessDenied", Kind::Denied),
        (
            "507 Insufficient Storage",
            "InsufficientStorage",
            Kind::Limit,
        ),
        (
            "412 Precondition Failed",
            "PreconditionFailed",
            Kind::Precondition,
        ),
        ("400 Bad Request", "InvalidArgument", Kind::Failed),
    ] {
        let (client, heads) = script(vec![refusal(status, code)]);
        let error = client.delete("ns", "key").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(
            matches!(&error, Error::Refused(refusal) if refusal.code == code && refusal.request_id == "R")
        );
        assert_eq!(heads.iter().count(), 1);
    }
}

#[tokio::test]
async fn a_conditional_put_is_never_made_twice() {
    let (client, heads) = script(vec![Act::Hang, answer("200 OK", "", b"")]);
    let options = PutOptions {
        if_absent: true,
        ..PutOptions::default()
    };
    let error = client
        .put("ns", "key", Bytes::new(), &options)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Transport { .. }), "{error}");
    assert!(heads.recv().unwrap().contains("if-none-match: *\r\n"));
    assert!(heads.try_recv().is_err());
}

#[tokio::test]
async fn a_conditional_put_is_made_again_only_if_nothing_was_done() {
    let options = PutOptions {
        if_absent: true,
        ..PutOptions::default()
    };
    for (status, code, attempts) in [
        ("500 Internal Server Error", "InternalError", 1),
        ("502 Bad Gateway", "BadGateway", 1),
        ("504 Gateway Timeout", "GatewayTimeout", 1),
        ("503 Slow Down", "SlowDown", 3),
        ("429 Too Many Requests", "TooManyRequests", 3),
    ] {
        let acts = (0..attempts).map(|_| refusal(status, code)).collect();
        let (client, heads) = script(acts);
        let put = client.put("ns", "key", Bytes::new(), &options).await;
        assert!(
            matches!(&put, Err(Error::Refused(refusal)) if refusal.code == code),
            "{put:?}"
        );
        assert_eq!(heads.iter().count(), attempts, "{status}");
    }
}

#[tokio::test]
async fn a_kept_connection_that_is_dead_costs_nothing() {
    // After the first answer the server closes without a word.
    let (client, heads) = script(vec![
        answer("204 No Content", "", b""),
        Act::Hang,
        answer("204 No Content", "", b""),
    ]);
    client.delete("ns", "one").await.unwrap();
    client.delete("ns", "two").await.unwrap();
    assert_eq!(heads.iter().count(), 3);
}

#[tokio::test]
async fn wrong_bytes_are_an_error() {
    let crc = Crc64::of(b"right").to_header();
    let headers = format!("etag: \"e\"\r\nx-amz-checksum-crc64nvme: {crc}\r\n");
    for (body, right) in [(b"right", true), (b"wrong", false)] {
        let (client, _heads) = script(vec![answer("200 OK", &headers, body)]);
        let mut download = client.get("ns", "key", None, None).await.unwrap();
        let mut end = Ok(());
        loop {
            match download.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        match right {
            true => end.unwrap(),
            false => assert!(matches!(end, Err(Error::Corrupt(_))), "{end:?}"),
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_not_s3_is_said_to_be_none() {
    let (client, _heads) = script(vec![answer("200 OK", "", b"<html>hello</html>")]);
    let error = client
        .create_upload("ns", "key", &Attributes::default())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    let bomb = format!(
        "<!DOCTYPE x [<!ENTITY a \"{}\">]><ListBucketResult><Contents><Key>&a;</Key><Size>0</Size></Contents></ListBucketResult>",
        "a".repeat(1000)
    );
    let (client, _heads) = script(vec![answer("200 OK", "", bomb.as_bytes())]);
    let page = client.list("ns", "", None, None).await;
    assert!(matches!(page, Err(Error::Protocol(_))), "{page:?}");
}

#[tokio::test]
async fn what_is_about_an_object_is_refused_here_without_a_key() {
    let (client, heads) = script(vec![answer("200 OK", "etag: \"e\"\r\n", b"<list/>")]);
    let (ns, key, body) = ("ns", "", Bytes::new());
    let told: [(&str, Result<(), Error>); 9] = [
        ("get", client.get(ns, key, None, None).await.map(drop)),
        ("head", client.head(ns, key).await.map(drop)),
        ("delete", client.delete(ns, key).await),
        (
            "create_upload",
            client
                .create_upload(ns, key, &Attributes::default())
                .await
                .map(drop),
        ),
        (
            "upload_part",
            client.upload_part(ns, key, "u", 1, body).await.map(drop),
        ),
        ("parts", client.parts(ns, key, "u").await.map(drop)),
        (
            "complete_upload",
            client
                .complete_upload(ns, key, "u", &[], None, Condition::None)
                .await
                .map(drop),
        ),
        ("abort_upload", client.abort_upload(ns, key, "u").await),
        (
            "copy_part",
            client
                .copy_part((ns, "from"), "e", (0, 1), (ns, key), "u", 1)
                .await
                .map(drop),
        ),
    ];
    for (call, told) in told {
        assert!(matches!(told, Err(Error::Local { .. })), "{call}: {told:?}");
    }
    assert!(heads.try_recv().is_err());
}

#[test]
fn a_client_shows_no_secret() {
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap(), credentials());
    config.session_token = Some("of-a-day".to_owned());
    let client = Client::new(config.clone()).unwrap();
    for shown in [format!("{config:?}"), format!("{client:?}")] {
        assert!(shown.contains("KEY"), "{shown}");
        assert!(
            !shown.contains("secret") && !shown.contains("of-a-day"),
            "{shown}"
        );
    }
}
