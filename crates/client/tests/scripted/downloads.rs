//! Values on their way here.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use forebay_client::transfer::{Options, download_file, download_stream};
use forebay_client::{Client, Config, Crc64, Error, Kind};

use crate::script::{credentials, read_request, refusal, serve};

const VALUE: &[u8] = b"0123456789";

/// A server that answers so, each time on a connection that ends with the answer; the heads of the requests that came.
fn breaking_off(answers: Vec<Vec<u8>>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let answered = answers.into_iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let head = read_request(&mut stream).unwrap();
            stream.write_all(&answer).unwrap();
            head
        });
        answered.collect()
    });
    let client = Client::new(Config::new(endpoint.parse().unwrap(), credentials())).unwrap();
    (client, serving)
}

/// What comes of the whole value before the connection ends.
fn whole(crc: Crc64, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"e\"\r\nx-amz-checksum-crc64nvme: {}\r\n\r\n",
        VALUE.len(),
        crc.to_header()
    );
    [head.as_bytes(), body].concat()
}

/// The same of bytes `first` to the last one.
fn rest(first: usize, body: &[u8]) -> Vec<u8> {
    let (last, len) = (VALUE.len() - 1, VALUE.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {first}-{last}/{len}\r\netag: \"e\"\r\n\r\n",
        len - first
    );
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn a_body_that_breaks_off_is_asked_for_again_from_there() {
    let (client, serving) = breaking_off(vec![rest(0, b"0123"), rest(4, b"456789")]);
    let mut got = vec![0; 10];
    let crc = client
        .fetch("ns", "key", "e", 0..10, |offset, bytes| {
            got[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(got, VALUE);
    assert_eq!(crc, Crc64::of(VALUE));
    let heads = serving.join().unwrap();
    assert!(heads[0].contains("range: bytes=0-9\r\n") && heads[1].contains("range: bytes=4-9\r\n"));
    assert!(heads[1].contains("if-match: \"e\"\r\n"));
}

#[tokio::test]
async fn a_stream_goes_on_where_a_body_broke_off() {
    for (stated, right) in [(VALUE, true), (&b"other bytes"[..], false)] {
        let answers = vec![
            whole(Crc64::of(stated), b"0123"),
            rest(4, b"45"),
            rest(6, b"6789"),
        ];
        let (client, serving) = breaking_off(answers);
        let mut got = Vec::new();
        let options = Options::default();
        let moved = download_stream(&client, "ns", "key", None, &options, |bytes| {
            got.extend_from_slice(bytes);
            Ok(())
        });
        match (moved.await, right) {
            (Ok(moved), true) => assert!(moved.verified && moved.bytes == 10, "{moved:?}"),
            (Err(Error::Corrupt(_)), false) => {}
            (moved, _) => panic!("{moved:?}"),
        }
        assert_eq!(got, VALUE);
        let heads = serving.join().unwrap();
        assert!(heads[1].contains("range: bytes=4-9\r\n"), "{}", heads[1]);
        assert!(heads[2].contains("if-match: \"e\"\r\n"), "{}", heads[2]);
    }
}

#[tokio::test]
async fn a_busy_server_is_asked_as_often_as_was_said() {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let client = serve(move |_| {
        counted.fetch_add(1, Relaxed);
        refusal("503 Slow Down", "SlowDown")
    });
    let fetched = client.fetch("ns", "key", "e", 0..10, |_, _| Ok(())).await;
    assert_eq!(fetched.unwrap_err().kind(), Kind::Limit);
    assert_eq!(asked.swap(0, Relaxed), 3);
    let path = std::env::temp_dir().join(format!("forebay-busy-{}", std::process::id()));
    let options = Options::default();
    let moved = download_file(&client, "ns", "key", &path, Some(10), &options).await;
    assert_eq!(moved.unwrap_err().kind(), Kind::Limit);
    assert_eq!(asked.load(Relaxed), 3);
}
