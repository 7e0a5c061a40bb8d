//! What the fuzzers call for what the cold tier reads: the copies and the answers of a far side that is not trusted, and what a process
//! keeps for the next one. Each takes any bytes and asserts what must hold whatever they are. Without a fuzzer the tests below replay
//! `fuzz/corpus` through the same functions.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use forebay_mem::Pool;
use forebay_store::{Attributes, Away, ErrorKind, Etag, Meta, VersionId};
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::memory::InMemory;
use object_store::{ClientOptions, ObjectStoreExt, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use super::bucket::{Bucket, named};
use super::fetch::Fetch;
use super::format::{BLOCK_BYTES, trailer_bytes};
use super::reads::Times;
use super::rules::Rules;
use super::s3::ColdUrl;
use crate::kept_meta;

const HOME: &str = "far/home";
const AWAY: Away = Away(0x0102_0304 << 96 | 7);
/// Answers that one call gets before the line is dead: a list may go on for ever.
const ANSWERS_MAX: usize = 4;

/// Made once: what a fuzzer is to see is the bytes.
static WORLD: LazyLock<(Runtime, Pool)> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().build();
    (runtime.expect("a runtime"), Pool::new(8 << 20))
});

fn meta(size: u64, crc64nvme: u64) -> Meta {
    Meta {
        size,
        etag: Etag::of_value(crc64nvme, size),
        modified: 1,
        version: VersionId::NULL,
        crc64nvme,
        expires: None,
        attributes: Attributes::EMPTY,
    }
}

/// What a bucket holds in the place of a copy. First twelve bytes: how many whole blocks the value has beside one byte, and by the
/// highest bit whether zeros fill the object up to the length of a copy; where the range that is read begins and how long it is, in
/// eighths of blocks; how many of the bytes that follow are before the zeros; the checksum that the value should have.
pub fn copy(data: &[u8]) {
    let _ = copied(data);
}

/// As [`copy`]; says whether the range and the whole value could be read.
fn copied(data: &[u8]) -> Option<[bool; 2]> {
    let ([blocks, first, len, before, crc @ ..], held) = data.split_first_chunk::<12>()?;
    let size = u64::from(blocks % 128 % 24) * BLOCK_BYTES + 1;
    let first = (u64::from(*first) * (BLOCK_BYTES / 8)).min(size - 1);
    let range = first..(first + u64::from(*len) * (BLOCK_BYTES / 8) + 1).min(size);
    let mut object = held.to_vec();
    if *blocks >= 128 {
        let before = usize::from(*before).min(held.len());
        let whole = (size + trailer_bytes(size)) as usize;
        let zeros = std::iter::repeat_n(0, whole.saturating_sub(held.len()));
        object.splice(before..before, zeros);
    }
    let meta = meta(size, u64::from_le_bytes(*crc));
    let (runtime, pool) = &*WORLD;
    runtime.block_on(async {
        let objects = Arc::new(InMemory::new());
        let bucket = Bucket::new(objects.clone(), HOME);
        let path = bucket.path(AWAY);
        let put = objects.put(&path, object.clone().into());
        put.await.expect("memory takes it");
        let part = fetched(&bucket, pool, &meta, range.clone()).await;
        if let Some(part) = &part {
            let there = &object[range.start as usize..range.end as usize];
            assert!(part == there, "what is there, or nothing");
        }
        let all = fetched(&bucket, pool, &meta, 0..size).await;
        if let Some(all) = &all {
            assert_eq!(checksum(CrcAlgorithm::Crc64Nvme, all), meta.crc64nvme);
        }
        Some([part.is_some(), all.is_some()])
    })
}

/// The bytes of a range, unless reading fails; never more than were asked for.
async fn fetched(
    bucket: &Bucket,
    pool: &Pool,
    meta: &Meta,
    range: std::ops::Range<u64>,
) -> Option<Vec<u8>> {
    let mut fetch = Fetch::new(bucket, pool, meta, AWAY, range.clone());
    let mut bytes = Vec::new();
    loop {
        match fetch.next().await {
            Ok(Some(buf)) => bytes.extend_from_slice(&buf),
            Ok(None) => break,
            Err(error) => {
                let kinds = [ErrorKind::Busy, ErrorKind::Corrupt, ErrorKind::Io];
                assert!(kinds.contains(&error.kind()), "{error:?}");
                return None;
            }
        }
        assert!(bytes.len() as u64 <= range.end - range.start);
    }
    assert_eq!(bytes.len() as u64, range.end - range.start);
    Some(bytes)
}

/// A far side that answers everything alike: the status in three digits, a line for each header, an empty line, the body.
#[derive(Debug, Clone)]
struct Answers {
    answer: Arc<Answer>,
    given: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Answers {
    fn read(data: &[u8]) -> Option<Answers> {
        let end = data.windows(2).position(|pair| pair == b"\n\n")?;
        let mut lines = std::str::from_utf8(&data[..end]).ok()?.lines();
        let status = lines.next()?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let answer = Answer {
            status,
            headers: headers.collect(),
            body: Bytes::copy_from_slice(&data[end + 2..]),
        };
        Some(Answers {
            answer: Arc::new(answer),
            given: Arc::default(),
        })
    }

    fn next(&self) -> Result<HttpResponse, HttpError> {
        let dead = || HttpError::new(HttpErrorKind::Interrupted, fmt::Error);
        if self.given.fetch_add(1, Relaxed) >= ANSWERS_MAX {
            return Err(dead());
        }
        let mut answer = http::Response::builder().status(self.answer.status);
        for (name, value) in &self.answer.headers {
            answer = answer.header(name, value);
        }
        let body = self.answer.body.clone();
        answer.body(body.into()).map_err(|_| dead())
    }
}

impl HttpConnector for Answers {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Answers {
    fn call<'this, 'call>(
        &'this self,
        _: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'this: 'call,
        Self: 'call,
    {
        Box::pin(std::future::ready(self.next()))
    }
}

/// An answer of an S3 to whatever it is asked: reading, listing, deleting.
pub fn answer(data: &[u8]) {
    let _ = answered(data);
}

/// As [`answer`]; says whether bytes 5 to 24 of a copy could be read, whether the copy of twenty zeros could, and which copies are
/// listed.
fn answered(data: &[u8]) -> Option<(bool, bool, Vec<Away>)> {
    let answers = Answers::read(data)?;
    let given = answers.given.clone();
    let objects = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_endpoint("http://127.0.0.1:1")
        .with_allow_http(true)
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_http_connector(answers)
        .with_retry(RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        });
    let bucket = Bucket::new(Arc::new(objects.build().expect("a client")), HOME);
    let (runtime, pool) = &*WORLD;
    runtime.block_on(async {
        let part = bucket.get_all(AWAY, 5..25).await;
        assert!(part.as_ref().is_ok_and(|part| part.len() == 20) || part.is_err());
        given.store(0, Relaxed);
        let meta = meta(20, checksum(CrcAlgorithm::Crc64Nvme, &[0; 20]));
        let all = fetched(&bucket, pool, &meta, 0..20).await;
        assert!(all.as_ref().is_none_or(|all| all == &[0; 20]));
        given.store(0, Relaxed);
        let listed: Result<Vec<_>, _> = bucket.list().try_collect().await;
        given.store(0, Relaxed);
        drop(bucket.delete(AWAY).await);
        let names = listed.into_iter().flatten().map(|found| found.away());
        Some((part.is_ok(), all.is_some(), names.collect()))
    })
}

/// What is kept: its kind, then its bytes. What is read is written as it was, or means the same.
pub fn record(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 5 {
        0 => {
            if let Some(times) = Times::decode(bytes) {
                assert!(times.encode() == bytes);
            }
        }
        1 => {
            if let Some((meta, since)) = kept_meta::decode(bytes) {
                assert!(kept_meta::encode(&meta, since) == bytes);
            }
        }
        2 => {
            if let Ok(rules) = Rules::read(bytes) {
                let again = serde_json::to_vec(&rules).expect("rules are written");
                assert_eq!(Rules::read(&again).ok(), Some(rules));
            }
        }
        kind => {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return;
            };
            match kind {
                3 => {
                    if let Some(away) = named(text, &format!("{HOME}/")) {
                        let bucket = Bucket::new(Arc::new(InMemory::new()), HOME);
                        assert_eq!(bucket.path(away).as_ref(), text);
                    }
                }
                _ => {
                    if let Ok(url) = ColdUrl::parse(text) {
                        assert!(!url.bucket.is_empty() && !url.prefix.starts_with('/'));
                        assert!(url.home("store").ends_with("store"));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
