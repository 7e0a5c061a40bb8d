//! The last path: payloads as bodies of S3 requests, and in gRPC messages what S3 has no words for.

use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::{CopySite, count_copy};

use super::attempt::{Failure, Tries};
use super::connected::Connected;
use super::loans::Use;
use super::options::Path;
use super::transfer::{Fallback, Transfer};
use super::values::{Get, Put, about, check, lend};
use super::window::{Window, argument};
use crate::{Attributes, Client as S3, Crc64, Error, Refusal, Result};

/// The most bytes of a gRPC message's payload (`Limits.inline_bytes_max`).
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// A value, or the part of it that was asked for, in its window.
struct Arrived {
    len: u64,
    size: u64,
    etag: String,
    /// The checksum of these bytes, if the server states one.
    stated: Option<u64>,
}

/// Gets a value by HTTP; `why` is the reason why the better path could not be taken for it.
pub(crate) async fn get(
    connected: &Connected,
    namespace: &str,
    get: &Get<'_>,
    why: Option<String>,
    tries: &Tries,
) -> Result<Transfer, Failure> {
    let s3 = door(connected)?;
    let loan = lend(&get.into, Use::Target, tries).await?;
    let moved = async {
        match text(get.key) {
            Some(key) => get_body(s3, namespace, key, get).await,
            None => get_messages(connected, namespace, get).await,
        }
    };
    let moved = tokio::time::timeout_at(tries.until.into(), moved).await;
    let arrived = moved.map_err(|_| Failure::Final(tries.timed_out()))??;
    if let Some(stated) = arrived.stated {
        let Window { region, range } = &get.into;
        let placed = range.start..range.start + arrived.len as usize;
        let about = || about(namespace, get.key);
        check(region, placed, stated, Path::Http, about)?;
    }
    drop(loan);
    Ok(Transfer {
        bytes: arrived.len,
        path: Path::Http,
        fallback: because(connected, why),
        checksum: arrived.stated,
        size: arrived.size,
        etag: arrived.etag,
    })
}

async fn get_body(s3: &S3, namespace: &str, key: &str, get: &Get<'_>) -> Result<Arrived> {
    let range = (!get.span.is_whole()).then(|| get.span.first..get.span.end.unwrap_or(u64::MAX));
    // Compared is what lies in the window in the end.
    let download = s3.get(namespace, key, range, None).await?;
    let mut download = download.unsummed();
    let len = download.range().end - download.range().start;
    if len > get.into.len() as u64 {
        return Err(too_short(namespace, get, len));
    }
    let mut at = 0;
    while let Some(bytes) = download.next().await? {
        place(get, at, &bytes)?;
        at += bytes.len();
    }
    Ok(Arrived {
        len,
        size: download.info().size,
        etag: download.info().etag.clone(),
        stated: download.stated(),
    })
}

/// In as many messages as it takes.
async fn get_messages(connected: &Connected, namespace: &str, get: &Get<'_>) -> Result<Arrived> {
    let rpc = &connected.rpc;
    let object = rpc.stat(namespace, get.key).await?;
    let first = get.span.first;
    let end = get.span.end.unwrap_or(u64::MAX).min(object.size);
    let len = end.saturating_sub(first);
    if len > get.into.len() as u64 {
        return Err(too_short(namespace, get, len));
    }
    if len == 0 && !(get.span.is_whole() && object.size == 0) {
        // Whoever knows the words for that is the server.
        rpc.retrieve(namespace, get.key, (first, 1)).await?;
        return Err(Error::Protocol("a range outside the value".to_owned()));
    }
    let mut stated = Crc64::default();
    while stated.len() < len {
        let at = stated.len();
        let wanted = (len - at).min(MESSAGE_BYTES_MAX);
        let range = (first + at, wanted);
        let answer = rpc.retrieve(namespace, get.key, range).await?;
        let (of, bytes) = (answer.object.unwrap_or_default(), answer.data);
        if of.etag != object.etag || bytes.len() as u64 != wanted {
            return Err(Error::replaced(about(namespace, get.key)));
        }
        place(get, at as usize, &bytes)?;
        let crc = answer.crc64nvme.ok_or_else(|| {
            Error::Protocol("bytes without the checksum that was asked for".to_owned())
        })?;
        stated = stated.then(Crc64::known(crc, wanted));
    }
    Ok(Arrived {
        len,
        size: object.size,
        etag: object.etag,
        stated: Some(stated.value()),
    })
}

/// Puts a value by HTTP.
pub(crate) async fn put(
    connected: &Connected,
    namespace: &str,
    put: &Put<'_>,
    why: Option<String>,
    tries: &Tries,
) -> Result<Transfer, Failure> {
    let s3 = door(connected)?;
    let loan = lend(&put.from, Use::Source, tries).await?;
    let Window { region, range } = &put.from;
    let outside = || Failure::Final(argument("a window outside its region"));
    let crc = match put.crc64nvme {
        Some(crc) => Crc64::known(crc, put.from.len() as u64),
        None => region.crc64(range.clone()).ok_or_else(outside)?,
    };
    let mut body = vec![0; put.from.len()];
    if !region.read(range.start, &mut body) {
        return Err(outside());
    }
    count_copy(CopySite::Client, body.len());
    drop(loan);
    let body = Bytes::from(body);
    let stored = async {
        match text(put.key).filter(|_| put.expires_ms.is_none()) {
            Some(key) => {
                let none = Attributes::default();
                let attributes = put.attributes.unwrap_or(&none);
                s3.put_if(namespace, key, body, crc, put.condition, attributes)
                    .await
            }
            None if body.len() as u64 > MESSAGE_BYTES_MAX => Err(argument(
                "by HTTP a value of more than 1 MiB has a key of UTF-8 without NUL, and no expiry of its own",
            )),
            None => connected.rpc.store(namespace, put, body, crc).await,
        }
    };
    let stored = tokio::time::timeout_at(tries.until.into(), stored).await;
    Ok(Transfer {
        bytes: crc.len(),
        path: Path::Http,
        fallback: because(connected, why),
        checksum: Some(crc.value()),
        size: crc.len(),
        etag: stored.map_err(|_| Failure::Final(tries.timed_out()))??,
    })
}

fn door(connected: &Connected) -> Result<&S3, Failure> {
    connected.s3_once.as_ref().ok_or_else(|| {
        Failure::Final(Error::Transport {
            endpoint: "http".to_owned(),
            what: "the server has no S3 door".to_owned(),
        })
    })
}

/// The key as S3 knows it; none when S3 cannot.
fn text(key: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(key).ok();
    text.filter(|text| !text.contains('\0'))
}

/// Puts bytes into the window.
fn place(get: &Get<'_>, at: usize, bytes: &[u8]) -> Result<()> {
    // What lies beside the window is none of the server's.
    let room = get.into.len().saturating_sub(at);
    if bytes.len() > room || !get.into.region.write(get.into.range.start + at, bytes) {
        return Err(argument("bytes outside their window"));
    }
    count_copy(CopySite::Client, bytes.len());
    Ok(())
}

fn too_short(namespace: &str, get: &Get<'_>, len: u64) -> Error {
    Error::Refused(Refusal {
        status: 400,
        code: "too_short".to_owned(),
        message: format!("{len} bytes do not fit into {}", get.into.len()),
        resource: about(namespace, get.key),
        request_id: String::new(),
    })
}

fn because(connected: &Connected, why: Option<String>) -> Option<Arc<Fallback>> {
    match why {
        None => connected.fallback.clone(),
        Some(why) => {
            let mut fallback = connected.fallback.as_deref().cloned().unwrap_or_default();
            fallback.push(connected.path, why);
            Some(Arc::new(fallback))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Kind;
    use crate::direct::{Choice, Client, Condition, Options, Region};

    /// A client of an S3 door that gives every request this answer, and how many requests came.
    async fn client(status: &str, headers: &str, body: &'static str) -> (Client, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicU32::new(0));
        let len = match headers.contains("content-length: ") {
            true => String::new(),
            false => format!("content-length: {}\r\n", body.len()),
        };
        let answer = format!("HTTP/1.1 {status}\r\n{headers}{len}connection: close\r\n\r\n{body}");
        let count = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap().into());
                }
                let len = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                let len = len.map_or(0, |len| len.parse().unwrap());
                stream.read_exact(&mut vec![0; len]).await.unwrap();
                count.fetch_add(1, Relaxed);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let options = Options {
            path: Choice::Only(Path::Http),
            ..Options::default()
        };
        let (client, ..) = Client::linked(&endpoint, options).await;
        assert_eq!(client.path(), Path::Http);
        (client, asked)
    }

    #[tokio::test]
    async fn bytes_that_change_on_the_way_are_told_with_object_and_hop() {
        let region = Region::alloc(9).unwrap();
        let stated = Crc64::of(b"123456789").to_header();
        let stated = format!("x-amz-checksum-crc64nvme: {stated}\r\n");
        let (client, _) = self::client("200 OK", &stated, "123456789").await;
        let got = client.get_into("ns", "key", .., &region).await.unwrap();
        assert_eq!(got.checksum, Some(Crc64::of(b"123456789").value()));
        let told = |result: Result<Transfer>| match result {
            Err(Error::Corrupt(text)) => text,
            other => panic!("{other:?}"),
        };
        let (client, asked) = self::client("200 OK", &stated, "123456788").await;
        let text = told(client.get_into("ns", "key", .., &region).await);
        let place = "ns/key: bytes changed between the server and the client's memory (http): ";
        assert!(text.starts_with(place), "{text}");
        let error = "<Error><Code>BadDigest</Code><Message>The digest.</Message></Error>";
        let (client, _) = self::client("400 Bad Request", "", error).await;
        let text = told(client.put_from("ns", "key", &region).await);
        let place = "ns/key: bytes changed between the client's memory and the server (http): ";
        assert!(text.starts_with(place), "{text}");
        assert_eq!(asked.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn nothing_is_said_to_be_compared_that_was_not() {
        let region = Region::alloc(9).unwrap();
        let headers = "content-range: bytes 0-3/9\r\nx-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n";
        let (client, _) = self::client("206 Partial Content", headers, "1234").await;
        let got = client.get_into("ns", "key", 0..4, &region).await.unwrap();
        assert_eq!((got.bytes, got.checksum), (4, None));
    }

    #[tokio::test]
    async fn the_list_of_a_namespace_is_no_value() {
        let region = Region::alloc(9).unwrap();
        let (client, asked) = self::client("200 OK", "", "123456789").await;
        let got = client.get_into("ns", "", .., &region).await;
        assert!(matches!(got, Err(Error::Local { .. })), "{got:?}");
        assert_eq!(asked.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn nothing_lands_beside_the_window() {
        let region = Region::alloc(64).unwrap();
        let marks = [0xaa; 64];
        assert!(region.write(0, &marks));
        let window = region.window(8..12);
        let chunked = "content-length: 4\r\ntransfer-encoding: chunked\r\n";
        let body = "10\r\n0123456789abcdef\r\n0\r\n\r\n";
        let (client, _) = self::client("200 OK", chunked, body).await;
        let got = client.get_into("ns", "key", .., window.clone()).await;
        assert!(got.is_err(), "{got:?}");
        let headers = format!("content-range: bytes 0-3/16\r\n{chunked}");
        let (client, _) = self::client("206 Partial Content", &headers, body).await;
        let got = client.get_into("ns", "key", 0..4, window).await;
        assert!(got.is_err(), "{got:?}");
        let mut found = [0; 64];
        assert!(region.read(0, &mut found));
        assert_eq!((&found[..8], &found[12..]), (&marks[..8], &marks[12..]));
    }

    #[tokio::test]
    async fn a_busy_server_hears_no_more_of_a_call_than_its_attempts() {
        let region = Region::alloc(9).unwrap();
        let (client, asked) = self::client("503 Slow Down", "", "").await;
        let busy = client.get_into("ns", "key", .., &region).await.unwrap_err();
        assert_eq!((busy.kind(), asked.load(Relaxed)), (Kind::Limit, 3));
        let busy = client.put_from("ns", "key", &region).await.unwrap_err();
        assert_eq!((busy.kind(), asked.load(Relaxed)), (Kind::Limit, 6));
        // It did nothing: what is to be done once may be asked for again, too.
        let once = if_absent(&region);
        let busy = client.put("ns", &once).await.unwrap_err();
        assert_eq!((busy.kind(), asked.load(Relaxed)), (Kind::Limit, 9));
    }

    #[tokio::test]
    async fn what_is_to_be_done_once_is_not_asked_for_again_of_a_server_that_may_have_done_it() {
        let region = Region::alloc(9).unwrap();
        for status in [
            "500 Internal Server Error",
            "502 Bad Gateway",
            "504 Gateway Timeout",
        ] {
            let (client, asked) = client(status, "", "").await;
            client.put("ns", &if_absent(&region)).await.unwrap_err();
            assert_eq!(asked.load(Relaxed), 1, "{status}");
            client.put_from("ns", "key", &region).await.unwrap_err();
            assert_eq!(asked.load(Relaxed), 4, "{status}");
            client
                .scatter("ns", &[if_absent(&region)], |_, put| drop(put.unwrap_err()))
                .await
                .unwrap();
            assert_eq!(asked.load(Relaxed), 5, "{status}");
        }
    }

    fn if_absent(region: &Region) -> Put<'_> {
        Put {
            condition: Condition::IfAbsent,
            ..Put::new(b"key", region.into())
        }
    }
}
