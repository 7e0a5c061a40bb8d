//! Answers that nobody could mean, or that would never end.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::{Client, Config, Error, PutOptions, Result};

use crate::script::{Act, answer, credentials, read_request, script, serve};

/// Long for anything on loopback.
const LONG: Duration = Duration::from_secs(20);

/// The answer to a ranged GET: these headers, then these bytes.
fn part(headers: &str, body: &str) -> Act {
    let head = format!("HTTP/1.1 206 Partial Content\r\netag: \"e\"\r\n{headers}\r\n");
    Act::Say([head.as_bytes(), body.as_bytes()].concat())
}

/// Fetches ten bytes of a server that answers every request so; how many came, and where the last of them ended.
async fn fetched(headers: &'static str, body: &'static str) -> (Result<()>, u64) {
    let client = serve(move |_| part(headers, body));
    let mut end = 0;
    let fetch = client.fetch("ns", "key", "e", 10..20, |offset, bytes| {
        end = end.max(offset + bytes.len() as u64);
        Ok(())
    });
    let fetched = tokio::time::timeout(LONG, fetch).await;
    (fetched.expect("an end").map(drop), end)
}

#[tokio::test]
async fn nothing_comes_beyond_the_range_that_was_asked_for() {
    let twenty = "14\r\n01234567890123456789\r\n0\r\n\r\n";
    for (headers, body) in [
        // Two lengths, of which the body has neither.
        (
            "content-length: 10\r\ntransfer-encoding: chunked\r\ncontent-range: bytes 10-19/30\r\n",
            twenty,
        ),
        (
            "transfer-encoding: chunked\r\ncontent-range: bytes 10-19/30\r\n",
            twenty,
        ),
        // More than was asked for.
        (
            "content-length: 20\r\ncontent-range: bytes 10-29/30\r\n",
            "01234567890123456789",
        ),
        // More than was said.
        (
            "content-length: 20\r\ncontent-range: bytes 10-19/30\r\n",
            "01234567890123456789",
        ),
    ] {
        let (result, end) = fetched(headers, body).await;
        assert!(result.is_err(), "{headers}");
        assert!(end <= 20, "{headers}: bytes up to {end}");
    }
}

#[tokio::test]
async fn other_bytes_than_those_asked_for_are_refused() {
    for headers in [
        "content-length: 10\r\ncontent-range: bytes 0-9/30\r\n",
        "content-length: 10\r\ncontent-range: bytes 11-20/30\r\n",
        "content-length: 10\r\ncontent-range: bytes 19-10/30\r\n",
        "content-length: 10\r\ncontent-range: bytes 10-19/15\r\n",
        "content-length: 10\r\ncontent-range: items 10-19/30\r\n",
        "content-length: 10\r\n",
    ] {
        let (result, end) = fetched(headers, "0123456789").await;
        assert!(
            matches!(result, Err(Error::Protocol(_))),
            "{headers}: {result:?}"
        );
        assert_eq!(end, 0, "{headers}");
    }
}

#[tokio::test]
async fn a_range_of_nothing_is_not_asked_for_again_for_ever() {
    for range in ["10-9/30", "10-19/30", "*/30"] {
        let headers = format!("content-length: 0\r\ncontent-range: bytes {range}\r\n");
        let (result, _) = fetched(headers.leak(), "").await;
        assert!(
            matches!(result, Err(Error::Protocol(_))),
            "{range}: {result:?}"
        );
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_refused() {
    let said = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n\
                5\r\n12345\r\n0\r\n\r\n";
    let (client, _heads) = script(vec![Act::Say(said.into())]);
    let got = client.get("ns", "key", None, None).await;
    assert!(matches!(got, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn a_list_that_goes_on_where_it_began_is_refused() {
    let page = |page: &str| answer("200 OK", "", page.as_bytes());
    let objects =
        "<ListBucketResult><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let (client, _heads) = script(vec![page(objects), page(objects)]);
    let first = client.list("ns", "", None, None).await.unwrap();
    let second = client.list("ns", "", None, first.next.as_deref()).await;
    assert!(matches!(second, Err(Error::Protocol(_))), "{second:?}");

    let uploads = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
                   <NextUploadIdMarker>u</NextUploadIdMarker></ListMultipartUploadsResult>";
    let (client, heads) = script(vec![page(uploads), page(uploads), Act::Hang]);
    let listed = client.uploads("ns", "").await;
    assert!(matches!(listed, Err(Error::Protocol(_))), "{listed:?}");
    assert_eq!(heads.try_iter().count(), 2);

    let parts = "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>7</NextPartNumberMarker>\
                 </ListPartsResult>";
    let (client, heads) = script(vec![page(parts), page(parts), Act::Hang]);
    let listed = client.parts("ns", "key", "upload").await;
    assert!(matches!(listed, Err(Error::Protocol(_))), "{listed:?}");
    assert_eq!(heads.try_iter().count(), 2);
}

#[tokio::test]
async fn a_list_that_goes_in_a_circle_is_refused() {
    let turns = AtomicU32::new(0);
    let client = serve(move |head| {
        let turn = turns.fetch_add(1, Relaxed) % 2;
        let page = match head.contains("uploadId=") {
            true => format!(
                "<ListPartsResult><IsTruncated>true</IsTruncated>\
                 <NextPartNumberMarker>{turn}</NextPartNumberMarker></ListPartsResult>"
            ),
            false => format!(
                "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
                 <NextUploadIdMarker>{turn}</NextUploadIdMarker></ListMultipartUploadsResult>"
            ),
        };
        answer("200 OK", "", page.as_bytes())
    });
    let uploads = tokio::time::timeout(LONG, client.uploads("ns", "")).await;
    assert!(
        matches!(uploads, Ok(Err(Error::Protocol(_)))),
        "{uploads:?}"
    );
    let parts = tokio::time::timeout(LONG, client.parts("ns", "key", "upload")).await;
    assert!(matches!(parts, Ok(Err(Error::Protocol(_)))), "{parts:?}");
}

#[tokio::test]
async fn more_parts_than_an_upload_has_are_refused() {
    let part = "<Part><PartNumber>1</PartNumber><Size>0</Size><ETag>e</ETag></Part>".repeat(1000);
    let pages = AtomicU32::new(0);
    let client = serve(move |_| {
        let page = pages.fetch_add(1, Relaxed);
        let page = format!(
            "<ListPartsResult><IsTruncated>{}</IsTruncated>{part}\
             <NextPartNumberMarker>{}</NextPartNumberMarker></ListPartsResult>",
            page < 10,
            page + 1,
        );
        answer("200 OK", "", page.as_bytes())
    });
    let parts = client.parts("ns", "key", "upload").await;
    assert!(matches!(parts, Err(Error::Protocol(_))), "{parts:?}");
    let beyond = "<ListPartsResult><IsTruncated>true</IsTruncated>\
                  <NextPartNumberMarker>10001</NextPartNumberMarker></ListPartsResult>";
    let (client, _heads) = script(vec![answer("200 OK", "", beyond.as_bytes())]);
    let parts = client.parts("ns", "key", "upload").await;
    assert!(matches!(parts, Err(Error::Protocol(_))), "{parts:?}");
}

#[tokio::test]
async fn bytes_of_another_value_are_refused() {
    let client = serve(|_| {
        part(
            "content-length: 10\r\ncontent-range: bytes 10-19/30\r\n",
            "0123456789",
        )
    });
    let taken = client
        .fetch("ns", "key", "other", 10..20, |_, _| panic!("bytes"))
        .await;
    assert!(matches!(taken, Err(Error::Corrupt(_))), "{taken:?}");
}

#[tokio::test]
async fn a_server_that_answers_early_and_stops_reading_hangs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (ended, end) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        let (mut deaf, _) = listener.accept().unwrap();
        deaf.read_exact(&mut [0; 100]).unwrap();
        deaf.write_all(b"HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let head = read_request(&mut other).unwrap();
        other.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        // Until the test has ended, so that the first connection stays.
        let _ = end.recv();
        head
    });
    let mut config = Config::new(endpoint.parse().unwrap(), credentials());
    config.timeout = Duration::from_millis(300);
    let client = Client::new(config).unwrap();
    // More than sockets hold.
    let body = Bytes::from(vec![0; 32 << 20]);
    let put = PutOptions::default();
    client.put("ns", "key", body, &put).await.unwrap();
    let next = tokio::time::timeout(LONG, client.delete("ns", "key")).await;
    next.expect("an end").unwrap();
    drop(ended);
    assert!(serving.join().unwrap().starts_with("DELETE "));
}
