//! Copies inside a server.

use std::sync::{Arc, Mutex};

use forebay_client::transfer::{Options, copy_object};
use forebay_client::{Client, Crc64, Error, Kind};

use crate::script::{Act, answer, refusal, script_trying, serve};

const MIB: u64 = 1 << 20;

/// A server with one value of this size, and the heads of the requests that come.
fn holding(size: u64, more: &str, replaced_after: usize) -> (Client, Arc<Mutex<Vec<String>>>) {
    let stat = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\netag: \"tag\"\r\n{more}\r\n");
    let heads = Arc::new(Mutex::new(Vec::<String>::new()));
    let seen = heads.clone();
    let client = serve(move |head| {
        let mut seen = seen.lock().unwrap();
        seen.push(head.to_owned());
        let copied = seen.iter().filter(|head| head.contains("copy-source: "));
        let copied = copied.count();
        let (method, rest) = head.split_once(' ').unwrap();
        let target = rest.split(' ').next().unwrap();
        match (method, target) {
            ("HEAD", _) => Act::Say(stat.clone().into()),
            ("GET", target) if target.ends_with("?tagging=") => answer(
                "200 OK",
                "",
                b"<Tagging><TagSet><Tag><Key>k y</Key><Value>v/+</Value></Tag></TagSet></Tagging>",
            ),
            ("POST", target) if target.ends_with("?uploads=") => answer(
                "200 OK",
                "",
                b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
            ),
            ("PUT", _) if head.contains("if-match: \"tag\"\r\n") && copied > replaced_after => {
                refusal("412 Precondition Failed", "PreconditionFailed")
            }
            ("PUT", _) => answer("200 OK", "", b"<CopyResult><ETag>\"e\"</ETag></CopyResult>"),
            ("POST", _) => answer("200 OK", "", b"<Result><ETag>\"e-2\"</ETag></Result>"),
            ("DELETE", _) => answer("204 No Content", "", b""),
            _ => panic!("{head}"),
        }
    });
    (client, heads)
}

async fn copied(client: &Client) -> Result<(), Error> {
    let options = Options::default();
    let copied = copy_object(client, ("ns", "from"), ("ns", "to"), &options).await;
    copied.map(drop)
}

fn of<'h>(heads: &'h [String], method: &str) -> Vec<&'h String> {
    let begin = format!("{method} ");
    heads
        .iter()
        .filter(|head| head.starts_with(&begin))
        .collect()
}

#[tokio::test]
async fn a_large_copy_is_of_one_value_and_keeps_what_is_kept_with_it() {
    let crc = Crc64::of(b"anything").to_header();
    let kept = [
        "content-type: text/plain",
        "cache-control: no-cache",
        "content-disposition: inline",
        "content-encoding: zstd",
        "content-language: de",
        "expires: Thu, 01 Dec 2050 16:00:00 GMT",
        "x-amz-website-redirect-location: /elsewhere",
        "x-amz-meta-origin: the lab",
    ];
    let more = format!(
        "{}\r\nx-amz-tagging-count: 1\r\nx-amz-checksum-crc64nvme: {crc}\r\n",
        kept.join("\r\n")
    );
    let (client, heads) = holding(6 << 30, &more, usize::MAX);
    copied(&client).await.unwrap();
    let heads = heads.lock().unwrap();
    let posts = of(&heads, "POST");
    for line in kept.into_iter().chain(["x-amz-tagging: k%20y=v%2F%2B"]) {
        assert!(
            posts[0].contains(&format!("{line}\r\n")),
            "{line}: {}",
            posts[0]
        );
    }
    for part in of(&heads, "PUT") {
        assert!(
            part.contains("x-amz-copy-source-if-match: \"tag\"\r\n"),
            "{part}"
        );
    }
    let whole = format!("x-amz-checksum-crc64nvme: {crc}\r\n");
    assert!(posts[1].contains(&whole), "{}", posts[1]);
    assert!(!posts[0].contains("x-amz-checksum-crc64nvme: "));
}

#[tokio::test]
async fn a_value_that_is_replaced_while_it_is_copied_makes_no_copy() {
    let (client, heads) = holding(6 << 30, "", 3);
    let error = copied(&client).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition, "{error}");
    let heads = heads.lock().unwrap();
    assert_eq!(of(&heads, "DELETE").len(), 1);
    // One that was begun, and none that was completed.
    assert_eq!(of(&heads, "POST").len(), 1);
}

#[tokio::test]
async fn who_may_not_read_tags_copies_what_has_none() {
    let (client, heads) = holding(6 << 30, "", usize::MAX);
    copied(&client).await.unwrap();
    assert!(of(&heads.lock().unwrap(), "GET").is_empty());
}

#[tokio::test]
async fn what_takes_long_is_copied_in_parts() {
    for (size, puts) in [(MIB, 1), (200 * MIB, 1), (600 * MIB, 10)] {
        let (client, heads) = holding(size, "", usize::MAX);
        copied(&client).await.unwrap();
        let heads = heads.lock().unwrap();
        assert_eq!(of(&heads, "PUT").len(), puts, "{size}");
    }
}

#[tokio::test]
async fn a_copy_has_a_second_more_for_every_256_kib() {
    for (parts, bytes, seconds) in [(false, 100 * MIB, 460), (true, 64 * MIB, 316)] {
        let (client, _heads) =
            script_trying(1, vec![answer("204 No Content", "", b""), Act::Silence]);
        // The connection is made in the time of this world, and kept.
        client.delete("ns", "key").await.unwrap();
        tokio::time::pause();
        let (from, to) = (("ns", "from"), ("ns", "to"));
        let error = match parts {
            false => client.copy(from, to, bytes).await.unwrap_err(),
            true => {
                let range = (MIB, MIB + bytes - 1);
                let copied = client.copy_part(from, "tag", range, to, "upload", 1);
                copied.await.unwrap_err()
            }
        };
        tokio::time::resume();
        assert!(
            matches!(error, Error::TimedOut(after) if after.as_secs() == seconds),
            "{error}"
        );
    }
}
