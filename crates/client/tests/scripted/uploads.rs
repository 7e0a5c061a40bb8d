//! Values that are sent in parts.

use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_client::transfer::{Moved, Options, upload_file, upload_stream};
use forebay_client::{Client, Error, Kind, PutOptions};

use crate::script::{answer, refusal, serve};

const PART: usize = 5 << 20;

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
            "POST" if target.ends_with("?uploads=") => answer(
                "200 OK",
                "",
                b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
            ),
            "POST" if refused => refusal("412 Precondition Failed", "PreconditionFailed"),
            "POST" => answer("200 OK", "", b"<Result><ETag>\"e-2\"</ETag></Result>"),
            "PUT" => answer("200 OK", "etag: \"e\"\r\n", b""),
            "DELETE" => answer("204 No Content", "", b""),
            _ => panic!("{head}"),
        }
    });
    (client, heads)
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
