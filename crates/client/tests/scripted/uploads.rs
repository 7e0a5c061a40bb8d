//! Values that are sent in parts.

use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_client::transfer::{Moved, Options, copy_object, upload_file, upload_stream};
use forebay_client::{Client, Error, Kind, PutOptions};
use tokio::sync::mpsc::unbounded_channel;

use crate::script::{Act, answer, refusal, serve};

const PART: usize = 5 << 20;
/// Long for anything on loopback.
const LONG: Duration = Duration::from_secs(20);

/// A server in which there is the key `there` and no other; the heads of the requests that come.
fn holding() -> (Client, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::<String>::new()));
    let seen = heads.clone();
    let client = serve(move |head| {
        seen.lock().unwrap().push(head.to_owned());
        let (method, rest) = head.split_once(' ').unwrap();
        let target = rest.split(' ').next().unwrap();
        let refused = target.starts_with("/ns/there?") && head.contains("if-none-match: *\r\n");
        match method {
            "GET" => answer("200 OK", "", b"<ListMultipartUploadsResult/>"),
            "POST" if target.ends_with("?uploads=") => begun(),
            "POST" if refused => refusal("412 Precondition Failed", "PreconditionFailed"),
            "POST" => answer("200 OK", "", b"<Result><ETag>\"e-2\"</ETag></Result>"),
            "PUT" => answer("200 OK", "etag: \"e\"\r\n", b""),
            "DELETE" => answer("204 No Content", "", b""),
            _ => panic!("{head}"),
        }
    });
    (client, heads)
}

fn begun() -> Act {
    let id =
        b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    answer("200 OK", "", id)
}

/// Stores `from`, or as much as a stream, under `key` if it is absent.
async fn stored(client: &Client, key: &str, from: Option<&Path>) -> Result<Moved, Error> {
    let options = Options {
        part_bytes: Some(PART as u64),
        ..Options::default()
    };
    let put = PutOptions {
        if_absent: true,
        ..PutOptions::default()
    };
    match from {
        Some(file) => upload_file(client, "ns", key, file, &put, &options).await,
        None => {
            let reader = Cursor::new(vec![7; PART + 1]);
            upload_stream(client, "ns", key, "it", reader, &put, &options).await
        }
    }
}

#[tokio::test]
async fn what_is_sent_in_parts_replaces_nothing_either_if_it_is_not_to() {
    let file = std::env::temp_dir().join(format!("forebay-absent-{}", std::process::id()));
    std::fs::write(&file, vec![7; PART + 1]).unwrap();
    for from in [Some(file.as_path()), None] {
        let (client, heads) = holding();
        let moved = stored(&client, "key", from).await.unwrap();
        assert_eq!(moved.bytes, PART as u64 + 1);
        let given_up = |heads: &Mutex<Vec<String>>| {
            let heads = heads.lock().unwrap();
            heads
                .iter()
                .filter(|head| head.starts_with("DELETE /ns/"))
                .count()
        };
        assert_eq!(given_up(&heads), 0);
        let (client, heads) = holding();
        let refused = stored(&client, "there", from).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Precondition, "{refused}");
        // Nobody goes on with it.
        assert_eq!(given_up(&heads), 1);
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn an_upload_that_is_given_up_while_it_is_begun_is_ended() {
    let file = std::env::temp_dir().join(format!("forebay-begun-{}", std::process::id()));
    std::fs::write(&file, vec![7; PART + 1]).unwrap();
    for way in ["file", "stream", "copy"] {
        for (told, ended) in [(begun(), 1), (refusal("403 Forbidden", "AccessDenied"), 0)] {
            let heads = Arc::new(Mutex::new(Vec::<String>::new()));
            let seen = heads.clone();
            let (asked, mut asks) = unbounded_channel();
            let (tell, to_tell) = mpsc::channel();
            let to_tell = Mutex::new(to_tell);
            let client = serve(move |head| {
                let (method, _) = head.split_once(' ').unwrap();
                seen.lock().unwrap().push(method.to_owned());
                match method {
                    "HEAD" => Act::Say(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 600000000\r\netag: \"e\"\r\n\r\n"
                            .into(),
                    ),
                    "GET" => answer("200 OK", "", b"<ListMultipartUploadsResult/>"),
                    "POST" => {
                        asked.send(()).unwrap();
                        to_tell.lock().unwrap().recv().unwrap()
                    }
                    "DELETE" => answer("204 No Content", "", b""),
                    _ => panic!("{head}"),
                }
            });
            let options = Options {
                part_bytes: Some(PART as u64),
                ..Options::default()
            };
            let put = PutOptions::default();
            let sent = async {
                match way {
                    "file" => upload_file(&client, "ns", "key", &file, &put, &options).await,
                    "stream" => {
                        let reader = Cursor::new(vec![7; PART + 1]);
                        upload_stream(&client, "ns", "key", "it", reader, &put, &options).await
                    }
                    _ => copy_object(&client, ("ns", "from"), ("ns", "key"), &options).await,
                }
            };
            tokio::select! {
                sent = sent => panic!("{sent:?}"),
                _ = asks.recv() => {}
            }
            // The server has begun it, or not; its answer comes to nobody who sends.
            let answered = async { tell.send(told).unwrap() };
            tokio::join!(options.unfinished.abort(), answered);
            let heads = heads.lock().unwrap();
            let deleted = heads.iter().filter(|method| *method == "DELETE");
            assert_eq!(deleted.count(), ended, "{way}");
        }
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn who_may_not_list_uploads_stores_and_leaves_none() {
    let file = std::env::temp_dir().join(format!("forebay-unlisted-{}", std::process::id()));
    std::fs::write(&file, vec![7; PART + 1]).unwrap();
    for (status, code) in [
        ("404 Not Found", "NoSuchBucket"),
        ("403 Forbidden", "AccessDenied"),
    ] {
        for may_store in [true, false] {
            let ended = Arc::new(Mutex::new(0));
            let seen = ended.clone();
            let client = serve(move |head| match head.split_once(' ').unwrap() {
                ("GET", _) => refusal(status, code),
                ("POST", rest) if rest.contains("?uploads=") => begun(),
                ("POST", _) => answer("200 OK", "", b"<Result><ETag>\"e-2\"</ETag></Result>"),
                ("PUT", _) if may_store => answer("200 OK", "etag: \"e\"\r\n", b""),
                ("PUT", _) => refusal("403 Forbidden", "AccessDenied"),
                ("DELETE", _) => {
                    *seen.lock().unwrap() += 1;
                    answer("204 No Content", "", b"")
                }
                _ => panic!("{head}"),
            });
            let sent = stored(&client, "key", Some(&file)).await;
            assert_eq!(sent.is_ok(), may_store, "{code}: {sent:?}");
            assert_eq!(*ended.lock().unwrap(), i32::from(!may_store), "{code}");
        }
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn uploads_of_keys_that_only_begin_so_are_not_gone_through() {
    let file = std::env::temp_dir().join(format!("forebay-others-{}", std::process::id()));
    std::fs::write(&file, vec![7; PART + 1]).unwrap();
    let pages = Arc::new(Mutex::new(0));
    let seen = pages.clone();
    let client = serve(move |head| match head.split_once(' ').unwrap() {
        ("GET", _) => {
            *seen.lock().unwrap() += 1;
            let page = format!(
                "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><Upload><Key>key-{0:03}</Key>\
                 <UploadId>u</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>\
                 <NextKeyMarker>key-{0:03}</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>\
                 </ListMultipartUploadsResult>",
                *seen.lock().unwrap()
            );
            answer("200 OK", "", page.as_bytes())
        }
        ("POST", rest) if rest.contains("?uploads=") => begun(),
        ("POST", _) => answer("200 OK", "", b"<Result><ETag>\"e-2\"</ETag></Result>"),
        ("PUT", _) => answer("200 OK", "etag: \"e\"\r\n", b""),
        _ => panic!("{head}"),
    });
    let sent = tokio::time::timeout(LONG, stored(&client, "key", Some(&file))).await;
    sent.expect("an end").unwrap();
    assert_eq!(*pages.lock().unwrap(), 1);
    std::fs::remove_file(file).unwrap();
}
