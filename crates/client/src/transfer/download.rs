//! From the server to a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forebay_proto::direct::Status;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::target::{Place, Target};
use super::upload::joined;
use super::{Moved, Moving, Options, Staging};
use crate::checksum::Running;
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
    let value = Moving {
        client,
        namespace,
        key,
        options,
    };
    value.get_file(path, size).await
}

/// Feeds bytes `range` of a value (all of it without one), in order, to `sink`; by the direct path if `options` has one. Where a connection
/// is lost, what is still to come is asked for by another one, while it is the same value.
///
/// # Errors
/// As every call, and those of `sink`.
pub async fn download_stream(
    client: &Client,
    namespace: &str,
    key: &str,
    range: Option<Range<u64>>,
    options: &Options,
    sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Moved> {
    let value = Moving {
        client,
        namespace,
        key,
        options,
    };
    value.get_stream(range, sink).await
}

/// The size of the parts that are asked for: of the direct path not more than one slot of its memory holds. S3 bounds the number of an
/// upload's parts only.
fn gets_of(part_bytes: u64, staging: Option<&Arc<Staging>>) -> u64 {
    staging.map_or(part_bytes, |staging| part_bytes.min(staging.slot_bytes()))
}

impl Moving<'_> {
    async fn get_file(self, path: &Path, size: Option<u64>) -> Result<Moved> {
        let path = match Place::of(path)? {
            Place::File(path) => path,
            Place::Stream => return self.get_into(path).await,
        };
        let path = path.as_path();
        let Some(size) = size.filter(|size| *size <= self.options.part_bytes(*size)) else {
            return self.get_parts(path).await;
        };
        let Some(staging) = self.options.staging(size)? else {
            return self.get_small(path).await;
        };
        match self.get_staged(staging, path, size).await {
            Err(error) if staging.leaves_to(self.client, &error) => self.get_small(path).await,
            // It has been replaced by a longer one since the list.
            Err(Error::Refused(refusal)) if refusal.code == Status::TooShort.name() => {
                self.get_parts(path).await
            }
            moved => moved,
        }
    }

    async fn get_parts(self, path: &Path) -> Result<Moved> {
        let (info, staging) = self.find().await?;
        let part_bytes = gets_of(self.options.part_bytes(info.size), staging);
        let count = info.size.div_ceil(part_bytes);
        // Of one part there is nothing to go on with.
        let target = match self.options.resume && count > 1 {
            true => {
                // What is there is read and compared.
                let (path, known) = (path.to_owned(), info.clone());
                let resumed = move || Target::resumed(&path, &known, part_bytes);
                joined(tokio::task::spawn_blocking(resumed).await)??
            }
            false => Target::fresh(path)?,
        };
        let (into, etag) = (&target, info.etag.as_str());
        let parts: Vec<(Crc64, u64, Option<Way>)> = stream::iter(0..count)
            .map(|index| async move {
                let range = index * part_bytes..((index + 1) * part_bytes).min(info.size);
                let len = range.end - range.start;
                if let Some(crc) = into.there(index) {
                    (self.options.progress)(len);
                    return Ok((Crc64::known(crc, len), len, None));
                }
                let (crc, way) = self.get_part(etag, range, staging, into).await?;
                into.arrived(index, crc)?;
                Ok::<_, Error>((crc, 0, Some(way)))
            })
            .buffered(self.options.parallel_gets(part_bytes))
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
            let about = format!("{}/{}", self.namespace, self.key);
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

    /// Writes bytes `range` of the value whose tag is `etag` where they belong; their checksum, and the way that they took.
    async fn get_part(
        self,
        etag: &str,
        range: Range<u64>,
        staging: Option<&Arc<Staging>>,
        target: &Target,
    ) -> Result<(Crc64, Way)> {
        let (namespace, key) = (self.namespace, self.key);
        let Some(staging) = staging else {
            let sink = |offset, bytes: &Bytes| {
                target.write(offset, bytes)?;
                (self.options.progress)(bytes.len() as u64);
                Ok(())
            };
            let fetched = self.client.fetch(namespace, key, etag, range, sink);
            return Ok((fetched.await?, Way::Http));
        };
        let (start, len) = (range.start, range.end - range.start);
        let (staged, got) = staging.get(namespace, key, etag, range).await?;
        staged.each_step(|at, bytes| target.write(start + at, bytes))?;
        (self.options.progress)(len);
        let crc = match got.checksum {
            Some(crc) => Crc64::known(crc, len),
            None => staged.crc()?,
        };
        Ok((crc, got.path))
    }

    async fn get_small(self, path: &Path) -> Result<Moved> {
        let mut attempt = 1;
        loop {
            match self.get_whole(path).await {
                Err(error) if error.is_transient() && attempt < self.client.attempts() => {
                    pause(attempt).await;
                    attempt += 1;
                }
                moved => return moved,
            }
        }
    }

    async fn get_whole(self, path: &Path) -> Result<Moved> {
        let once = self.client.trying_once();
        let mut download = once.get(self.namespace, self.key, None, None).await?;
        let target = Target::fresh(path)?;
        let mut size = 0;
        while let Some(bytes) = download.next().await? {
            target.write(size, &bytes)?;
            size += bytes.len() as u64;
        }
        target.finish(size, false)?;
        (self.options.progress)(size);
        Ok(Moved {
            bytes: size,
            resumed: 0,
            verified: download.stated().is_some(),
            path: Some(Way::Http),
        })
    }

    /// A value of one part, whose size a list told, by the direct path.
    async fn get_staged(self, staging: &Arc<Staging>, path: &Path, size: u64) -> Result<Moved> {
        let staged = staging
            .take(usize::try_from(size).unwrap_or(usize::MAX))
            .await?;
        let direct = staging.client();
        let got = direct.get_into(self.namespace, self.key, .., staged.window());
        let got = got.await?;
        let target = Target::fresh(path)?;
        let staged = staged.cut(got.bytes);
        staged.each_step(|at, bytes| target.write(at, bytes))?;
        target.finish(got.bytes, false)?;
        (self.options.progress)(got.bytes);
        Ok(Moved {
            bytes: got.bytes,
            resumed: 0,
            verified: got.checksum.is_some(),
            path: Some(got.path),
        })
    }

    /// Writes it into what is there and is no file.
    async fn get_into(self, path: &Path) -> Result<Moved> {
        let name = path.display().to_string();
        let path = path.to_owned();
        // Opening a pipe waits for who reads from it.
        let open = move || OpenOptions::new().write(true).open(path);
        let opened = joined(tokio::task::spawn_blocking(open).await)?;
        let mut into = opened.map_err(Error::local(&name))?;
        let sink = |bytes: &[u8]| into.write_all(bytes).map_err(Error::local(&name));
        self.get_stream(None, sink).await
    }

    /// Feeds `sink` by a body, and where that breaks off by others from there on: what has been fed cannot be taken back.
    async fn get_bodies(
        self,
        range: Option<Range<u64>>,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Moved> {
        let (client, namespace, key) = (self.client, self.namespace, self.key);
        let mut sink = |bytes: &[u8]| -> Result<()> {
            sink(bytes)?;
            (self.options.progress)(bytes.len() as u64);
            Ok(())
        };
        let download = client.get(namespace, key, range, None).await?;
        let (range, etag) = (download.range(), download.info().etag.clone());
        let stated = download.stated();
        let mut crc = Running::new();
        // Its connection is given back before another one is asked for.
        let came = async {
            let mut download = download.unsummed();
            while let Some(bytes) = download.next().await? {
                sink(&bytes)?;
                crc.update(&bytes);
            }
            Ok::<(), Error>(())
        };
        let came = came.await;
        let mut crc = crc.crc();
        match came {
            Err(error) if error.is_transient() && client.attempts() > 1 => {
                pause(1).await;
                let rest = range.start + crc.len()..range.end;
                let fetched = client.fetch(namespace, key, &etag, rest, |_, bytes| sink(bytes));
                crc = crc.then(fetched.await?);
            }
            came => came?,
        }
        if let Some(stated) = stated
            && stated != crc.value()
        {
            let about = format!("{namespace}/{key}");
            return Err(Error::of_download(&about, Way::Http, crc.value(), stated));
        }
        Ok(Moved {
            bytes: range.end - range.start,
            resumed: 0,
            verified: stated.is_some(),
            path: Some(Way::Http),
        })
    }

    async fn get_stream(
        self,
        range: Option<Range<u64>>,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Moved> {
        let (namespace, key, progress) = (self.namespace, self.key, &self.options.progress);
        let direct = match &self.options.direct {
            Some(_) => Some(self.find().await?),
            None => None,
        };
        let Some((stat, Some(staging))) = direct else {
            return self.get_bodies(range, sink).await;
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
        let part_bytes = gets_of(
            self.options.part_bytes(range.end - range.start),
            Some(staging),
        );
        let etag = stat.etag.as_str();
        let starts =
            (range.start..range.end).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
        let parts = stream::iter(starts).map(|start| {
            let part = start..(start + part_bytes).min(range.end);
            staging.get(namespace, key, etag, part)
        });
        let parts = parts.buffered(self.options.parallel_gets(part_bytes));
        let mut parts = std::pin::pin!(parts);
        let (mut way, mut verified) = (None, true);
        while let Some(part) = parts.next().await {
            let (staged, got) = part?;
            staged.each_step(|_, bytes| sink(bytes))?;
            progress(got.bytes);
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

    /// Every value is empty, and so has no range; of one it is said first that it has grown.
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

    /// A client of that server, and what copies go by; the link lives as long as the sessions.
    async fn started() -> (Client, Options, impl Sized) {
        let linked = Direct::linked("http://127.0.0.1:1", Links::default());
        let (direct, server, sessions) = linked.await;
        tokio::spawn(serve(server));
        let s3 = direct.s3().unwrap();
        let options = Options {
            direct: Some(Staging::new(direct, 4096, 1).unwrap()),
            ..Options::default()
        };
        (s3, options, sessions)
    }

    #[tokio::test]
    async fn an_empty_value_has_no_range() {
        let (s3, options, _sessions) = started().await;
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
        let (s3, options, _sessions) = started().await;
        let path = std::env::temp_dir().join(format!("forebay-grown-{}", std::process::id()));
        let moved = download_file(&s3, "ns", "grown", &path, Some(5), &options).await;
        assert_eq!(moved.unwrap().bytes, 0);
        std::fs::remove_file(path).unwrap();
    }
}
