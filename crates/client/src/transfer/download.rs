//! From the server to a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_proto::direct::Status;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::staging::Staged;
use super::target::{Place, Target};
use super::upload::joined;
use super::{Moved, Options, Staging, find};
use crate::client::pause;
use crate::direct::Path as Way;
use crate::{Client, Crc64, Error, Result};

/// Retrieves an object into the file at `path`, which appears (or changes) only when all of it is there. With a `size` from a
/// list, an object of one part costs one request; such a file is not synced to disk. Where a link leads to a file, or to nothing, that
/// is the file; a pipe or a device is written to, as [`download_stream`] would.
///
/// # Errors
/// As every call; [`Error::Local`] when the file cannot be written, or is that of a copy which is not done, or another copy fills it;
/// [`Error::Corrupt`].
pub async fn download_file(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    size: Option<u64>,
    options: &Options,
) -> Result<Moved> {
    let path = match Place::of(path)? {
        Place::File(path) => path,
        Place::Stream => return download_into(client, namespace, key, path, options).await,
    };
    let path = path.as_path();
    let small = size.filter(|size| *size <= options.part_bytes(*size));
    if let Some(size) = small {
        let Some(staging) = options.staging(size) else {
            return download_small(client, namespace, key, path, options).await;
        };
        match download_staged(staging, namespace, key, path, size, options).await {
            Err(error) if staging.leaves_to(client, &error) => {
                return download_small(client, namespace, key, path, options).await;
            }
            // It has been replaced by a longer one since the list.
            Err(Error::Refused(refusal)) if refusal.code == Status::TooShort.name() => {}
            moved => return moved,
        }
    }
    let (info, direct) = find(client, namespace, key, options).await?;
    let part_bytes = options.part_bytes(info.size);
    let count = info.size.div_ceil(part_bytes);
    // Of one part there is nothing to go on with.
    let target = match options.resume && count > 1 {
        true => Target::resumed(path, &info, part_bytes)?,
        false => Target::fresh(path)?,
    };
    let (target_ref, info_ref) = (&target, &info);
    let staging = direct.filter(|staging| staging.takes(part_bytes.min(info.size)));
    let parts: Vec<(Crc64, u64, Option<Way>)> = stream::iter(0..count)
        .map(|index| async move {
            let range = index * part_bytes..((index + 1) * part_bytes).min(info_ref.size);
            let len = range.end - range.start;
            if let Some(crc) = target_ref.there(index) {
                (options.progress)(len);
                return Ok((Crc64::known(crc, len), len, None));
            }
            let (crc, way) = match staging {
                Some(staging) => {
                    let start = range.start;
                    let sink = |staged: &Staged| {
                        staged.each_step(|at, bytes| target_ref.write(start + at, bytes))
                    };
                    let fetched = staging.fetch(namespace, key, &info_ref.etag, range, sink);
                    let fetched = fetched.await?;
                    (options.progress)(len);
                    fetched
                }
                None => {
                    let sink = |offset, bytes: &bytes::Bytes| {
                        target_ref.write(offset, bytes)?;
                        (options.progress)(bytes.len() as u64);
                        Ok(())
                    };
                    let fetched = client.fetch(namespace, key, &info_ref.etag, range, sink);
                    (fetched.await?, Way::Http)
                }
            };
            target_ref.arrived(index, crc)?;
            Ok::<_, Error>((crc, 0, Some(way)))
        })
        .buffered(options.parallel_gets(part_bytes))
        .try_collect()
        .await?;
    let whole = parts
        .iter()
        .fold(Crc64::default(), |whole, (crc, _, _)| whole.then(*crc));
    let way = Moved::worst(parts.iter().filter_map(|(_, _, way)| *way));
    if let Some(stated) = info.crc64nvme
        && stated != whole.value()
    {
        target.discard();
        let about = format!("{namespace}/{key}");
        let way = way.unwrap_or(Way::Http);
        return Err(Error::of_download(&about, way, whole.value(), stated));
    }
    target.finish(info.size, true)?;
    Ok(Moved {
        bytes: info.size,
        resumed: parts.iter().map(|(_, resumed, _)| resumed).sum(),
        verified: info.crc64nvme.is_some(),
        path: way,
    })
}

async fn download_small(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    options: &Options,
) -> Result<Moved> {
    let mut attempt = 1;
    loop {
        match download_whole(client, namespace, key, path, options).await {
            Err(error) if error.is_transient() && attempt < client.attempts() => {
                pause(attempt).await;
                attempt += 1;
            }
            moved => return moved,
        }
    }
}

async fn download_whole(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    options: &Options,
) -> Result<Moved> {
    let mut download = client.get(namespace, key, None, None).await?;
    let target = Target::fresh(path)?;
    let mut size = 0;
    while let Some(bytes) = download.next().await? {
        target.write(size, &bytes)?;
        size += bytes.len() as u64;
    }
    target.finish(size, false)?;
    (options.progress)(size);
    Ok(Moved {
        bytes: size,
        resumed: 0,
        verified: download.stated().is_some(),
        path: Some(Way::Http),
    })
}

/// A value of one part, whose size a list told, by the direct path.
async fn download_staged(
    staging: &Arc<Staging>,
    namespace: &str,
    key: &str,
    path: &Path,
    size: u64,
    options: &Options,
) -> Result<Moved> {
    let staged = staging
        .take(usize::try_from(size).unwrap_or(usize::MAX))
        .await?;
    let direct = staging.client();
    let got = direct.get_into(namespace, key, .., staged.window()).await?;
    let target = Target::fresh(path)?;
    let staged = staged.cut(got.bytes);
    staged.each_step(|at, bytes| target.write(at, bytes))?;
    target.finish(got.bytes, false)?;
    (options.progress)(got.bytes);
    Ok(Moved {
        bytes: got.bytes,
        resumed: 0,
        verified: got.checksum.is_some(),
        path: Some(got.path),
    })
}

/// Retrieves an object into what is there and is no file.
async fn download_into(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    options: &Options,
) -> Result<Moved> {
    let name = path.display().to_string();
    let path = path.to_owned();
    // Opening a pipe waits for who reads from it.
    let open = move || OpenOptions::new().write(true).open(path);
    let opened = joined(tokio::task::spawn_blocking(open).await)?;
    let mut into = opened.map_err(Error::local(&name))?;
    let sink = |bytes: &[u8]| into.write_all(bytes).map_err(Error::local(&name));
    download_stream(client, namespace, key, None, options, sink).await
}

/// Feeds bytes `range` of a value (all of it without one), in order, to `sink`; by the direct path if `options` has one.
///
/// # Errors
/// As every call, and those of `sink`.
pub async fn download_stream(
    client: &Client,
    namespace: &str,
    key: &str,
    range: Option<Range<u64>>,
    options: &Options,
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Moved> {
    let direct = match &options.direct {
        Some(_) => Some(find(client, namespace, key, options).await?),
        None => None,
    };
    let Some((stat, Some(staging))) = direct else {
        let mut download = client.get(namespace, key, range, None).await?;
        while let Some(bytes) = download.next().await? {
            sink(&bytes)?;
            (options.progress)(bytes.len() as u64);
        }
        let range = download.range();
        return Ok(Moved {
            bytes: range.end - range.start,
            resumed: 0,
            verified: download.stated().is_some(),
            path: Some(Way::Http),
        });
    };
    if let Some(range) = range.as_ref().filter(|range| range.start >= stat.size) {
        // Whoever knows the words for that is the server.
        let staged = staging.take(1).await?;
        let first = range.start..range.start.saturating_add(1);
        let direct = staging.client();
        direct
            .get_into(namespace, key, first, staged.window())
            .await?;
        return Err(Error::Protocol("a range outside the value".to_owned()));
    }
    let range = match range {
        Some(range) => range.start..range.end.clamp(range.start, stat.size),
        None => 0..stat.size,
    };
    let part_bytes = options.part_bytes(range.end - range.start);
    let etag = stat.etag.as_str();
    let starts =
        (range.start..range.end).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
    let parts = stream::iter(starts).map(|start| async move {
        let part = start..(start + part_bytes).min(range.end);
        let len = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
        let staged = staging.take(len).await?;
        let got = staging
            .client()
            .get_into(namespace, key, part, staged.window())
            .await?;
        match got.etag == etag && got.bytes == len as u64 {
            true => Ok((staged, got)),
            false => Err(Error::replaced(format_args!("{namespace}/{key}"))),
        }
    });
    let mut parts = std::pin::pin!(parts.buffered(options.parallel_gets(part_bytes)));
    let (mut way, mut verified) = (None, true);
    while let Some(part) = parts.next().await {
        let (staged, got) = part?;
        staged.each_step(|_, bytes| sink(bytes))?;
        (options.progress)(got.bytes);
        way = Moved::worst(way.into_iter().chain([got.path]));
        verified &= got.checksum.is_some();
    }
    Ok(Moved {
        bytes: range.end - range.start,
        resumed: 0,
        verified,
        path: way,
    })
}

#[cfg(test)]
mod tests {
    use forebay_fabric::{Connection, Link};
    use forebay_proto::direct::{Call, Hop, ReplyWriter, Value, parse_request};

    use super::*;
    use crate::direct::{Client as Direct, Options as Links};

    const EMPTY: Value<'_> = Value {
        size: 0,
        moved: 0,
        first: 0,
        version: 0,
        modified: 0,
        expires: None,
        crc64nvme: None,
        part_crc64nvme: None,
        replaced: false,
        etag: "tag",
        bytes: None,
    };

    /// Every value is empty, and so has no range.
    async fn serve(link: Connection) {
        let mut message = Vec::new();
        while let Ok(Some(())) = link.recv(&mut message).await {
            let request = parse_request(&message).unwrap();
            let operation = request.call.operation();
            let mut writer = ReplyWriter::begin(Vec::new(), operation, request.id, 0);
            let said = match request.call {
                Call::Stat(_) => writer.value(&EMPTY),
                Call::Retrieve(mut gets) => {
                    let (status, why) = match gets.next().unwrap().key {
                        b"grown" => (Status::TooShort, "it has more bytes"),
                        _ => (Status::RangeNotSatisfiable, "it has 0 bytes"),
                    };
                    writer.failed(status, Hop::None, why)
                }
                _ => panic!("{request:?}"),
            };
            said.unwrap();
            link.send(writer.finish(true, false)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_empty_value_has_no_range() {
        let linked = Direct::linked("http://127.0.0.1:1", Links::default());
        let (direct, server, _sessions) = linked.await;
        tokio::spawn(serve(server));
        let s3 = direct.s3().unwrap();
        let options = Options {
            direct: Some(Staging::new(direct, 4096, 1).unwrap()),
            ..Options::default()
        };
        let stream = async |range| {
            download_stream(&s3, "ns", "empty", range, &options, |bytes| {
                panic!("{bytes:?}")
            })
            .await
        };
        assert_eq!(stream(None).await.unwrap().bytes, 0);
        for range in [0..1, 5..10, 5..5] {
            let refused = stream(Some(range.clone())).await;
            assert!(
                matches!(&refused, Err(Error::Refused(refusal)) if refusal.status == 416),
                "{range:?}: {refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_listed_value_that_has_been_replaced_by_a_longer_one_is_looked_at_again() {
        let linked = Direct::linked("http://127.0.0.1:1", Links::default());
        let (direct, server, _sessions) = linked.await;
        tokio::spawn(serve(server));
        let s3 = direct.s3().unwrap();
        let options = Options {
            direct: Some(Staging::new(direct, 4096, 1).unwrap()),
            ..Options::default()
        };
        let path = std::env::temp_dir().join(format!("forebay-grown-{}", std::process::id()));
        let moved = download_file(&s3, "ns", "grown", &path, Some(5), &options).await;
        assert_eq!(moved.unwrap().bytes, 0);
        std::fs::remove_file(path).unwrap();
    }
}
