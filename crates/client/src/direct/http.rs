//! The last path: payloads as bodies of S3 requests.

use std::sync::Arc;

use forebay_mem::{CopySite, count_copy};

use super::attempt::{Failure, Tries};
use super::connected::Connected;
use super::loans::Use;
use super::options::Path;
use super::transfer::{Fallback, Transfer};
use super::values::{Condition, Get, Put, about, lend};
use super::window::argument;
use crate::checksum::Running;
use crate::{Client as S3, Error, PutOptions, Refusal};

/// Gets a value by an S3 request; `why` is the reason why the better path could not be taken for it.
pub(crate) async fn get(
    connected: &Connected,
    namespace: &str,
    get: &Get<'_>,
    why: Option<String>,
    tries: &Tries,
) -> Result<Transfer, Failure> {
    let (s3, key) = (door(connected)?, text(get.key)?);
    let loan = lend(&get.into, Use::Target, tries).await?;
    let range = (!get.span.is_whole()).then(|| get.span.first..get.span.end.unwrap_or(u64::MAX));
    let moved = async {
        let mut download = s3.get(namespace, key, range, None).await?;
        let len = download.range().end - download.range().start;
        if len > get.into.len() as u64 {
            return Err(Error::Refused(Refusal {
                status: 400,
                code: "too_short".to_owned(),
                message: format!("{len} bytes do not fit into {}", get.into.len()),
                resource: about(namespace, get.key),
                request_id: String::new(),
            }));
        }
        let mut at = get.into.range.start;
        let mut crc = Running::new();
        while let Some(bytes) = download.next().await? {
            // The window was checked, and the server sends no more than it said.
            if !get.into.region.write(at, &bytes) {
                return Err(argument("a window outside its region"));
            }
            count_copy(CopySite::Client, bytes.len());
            crc.update(&bytes);
            at += bytes.len();
        }
        let info = download.info();
        // The download itself has compared a whole value.
        let compared = info.crc64nvme.filter(|_| len == info.size);
        Ok(Transfer {
            bytes: len,
            path: Path::Http,
            fallback: because(connected, why),
            checksum: compared,
            size: info.size,
            etag: info.etag.clone(),
        })
    };
    let moved = tokio::time::timeout_at(tries.until.into(), moved).await;
    drop(loan);
    Ok(moved.map_err(|_| Failure::Final(tries.timed_out()))??)
}

/// Puts a value by an S3 request.
pub(crate) async fn put(
    connected: &Connected,
    namespace: &str,
    put: &Put<'_>,
    why: Option<String>,
    tries: &Tries,
) -> Result<Transfer, Failure> {
    let (s3, key) = (door(connected)?, text(put.key)?);
    let if_absent = match (put.condition, put.expires_ms) {
        (Condition::None, None) => false,
        (Condition::IfAbsent, None) => true,
        _ => {
            return Err(Failure::Final(argument(
                "by HTTP a put has no other condition than that the key is free, and no expiry",
            )));
        }
    };
    let loan = lend(&put.from, Use::Source, tries).await?;
    let mut body = vec![0; put.from.len()];
    if !put.from.region.read(put.from.range.start, &mut body) {
        return Err(Failure::Final(argument("a window outside its region")));
    }
    count_copy(CopySite::Client, body.len());
    drop(loan);
    let options = PutOptions {
        if_absent,
        attributes: put.attributes.cloned().unwrap_or_default(),
    };
    let size = body.len() as u64;
    let crc = crate::Crc64::of(&body).value();
    let stored = s3.put(namespace, key, body.into(), &options);
    let stored = tokio::time::timeout_at(tries.until.into(), stored).await;
    Ok(Transfer {
        bytes: size,
        path: Path::Http,
        fallback: because(connected, why),
        checksum: Some(crc),
        size,
        etag: stored.map_err(|_| Failure::Final(tries.timed_out()))??,
    })
}

fn door(connected: &Connected) -> Result<&S3, Failure> {
    connected.s3.as_ref().ok_or_else(|| {
        Failure::Final(Error::Transport {
            endpoint: "http".to_owned(),
            what: "the server has no S3 door".to_owned(),
        })
    })
}

fn text(key: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(key).map_err(|_| Failure::Final(argument("by HTTP a key must be UTF-8")))
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
