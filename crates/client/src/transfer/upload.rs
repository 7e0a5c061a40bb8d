//! From here to the server.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::staging::{Piece, put_staged};
use super::{Moved, Options, Staging};
use crate::direct::Path as Way;
use crate::{Attributes, Client, Crc64, Error, Part, PutOptions, Result};

/// Stores the file at `path`.
///
/// # Errors
/// As every call; [`Error::Local`] when the file cannot be read or changes meanwhile.
pub async fn upload_file(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    let file = Arc::new(File::open(path).map_err(Error::local(path.display()))?);
    let before = file.metadata().map_err(Error::local(path.display()))?;
    let size = before.len();
    let part_bytes = options.part_bytes(size);
    let source = Source {
        file: file.clone(),
        name: path.display().to_string(),
        part_bytes,
        size,
        staging: options.staging(part_bytes.min(size)).cloned(),
    };
    let moved = if size <= part_bytes {
        let (piece, crc) = source.part(1).await?;
        put_whole(client, namespace, key, piece, crc, put, options).await?
    } else {
        upload_parts(client, namespace, key, &source, put, options).await?
    };
    let after = file.metadata().map_err(Error::local(path.display()))?;
    if after.len() != size || after.modified().ok() != before.modified().ok() {
        return Err(Error::Local {
            what: path.display().to_string(),
            source: std::io::Error::other("the file changed while it was sent"),
        });
    }
    Ok(moved)
}

struct Source {
    file: Arc<File>,
    name: String,
    part_bytes: u64,
    size: u64,
    staging: Option<Arc<Staging>>,
}

impl Source {
    fn parts(&self) -> u32 {
        self.size.div_ceil(self.part_bytes) as u32
    }

    /// Part `number`, from 1, and its checksum.
    async fn part(&self, number: u32) -> Result<(Piece, Crc64)> {
        let offset = u64::from(number - 1) * self.part_bytes;
        let len = self.part_bytes.min(self.size - offset) as usize;
        let file = self.file.clone();
        let staged = match &self.staging {
            Some(staging) => Some(staging.take(len).await?),
            None => None,
        };
        let name = self.name.clone();
        let read = tokio::task::spawn_blocking(move || match staged {
            Some(staged) => {
                staged.load(&file, offset).map_err(Error::local(&name))?;
                let crc = staged.crc()?;
                Ok((Piece::Staged(staged), crc))
            }
            None => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset)
                    .map_err(Error::local(&name))?;
                let crc = Crc64::of(&bytes);
                Ok((Piece::Heap(Bytes::from(bytes)), crc))
            }
        });
        joined(read.await)?
    }
}

/// Stores a value of one part.
async fn put_whole(
    client: &Client,
    namespace: &str,
    key: &str,
    piece: Piece,
    crc: Crc64,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    let bytes = piece.len();
    let path = match piece {
        Piece::Staged(staged) => {
            let stored = put_staged(client, &staged, crc, namespace, key, put);
            stored.await?
        }
        Piece::Heap(body) => {
            client.put(namespace, key, body, put).await?;
            Way::Http
        }
    };
    (options.progress)(bytes);
    Ok(Moved {
        bytes,
        resumed: 0,
        verified: true,
        path: Some(path),
    })
}

async fn upload_parts(
    client: &Client,
    namespace: &str,
    key: &str,
    source: &Source,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    // What an upload keeps was said when it was begun, and cannot be asked for.
    let resume = options.resume && put.attributes == Attributes::default();
    let (upload, there) = match resume {
        true => match unfinished(client, namespace, key, source).await? {
            Some(found) => found,
            None => (client.create_upload(namespace, key, put).await?, Vec::new()),
        },
        false => (client.create_upload(namespace, key, put).await?, Vec::new()),
    };
    let (upload, there) = (&upload, &there);
    let results: Vec<(Part, Crc64, u64, Option<Way>)> = stream::iter(1..=source.parts())
        .map(|number| async move {
            let (piece, crc) = source.part(number).await?;
            let size = piece.len();
            let kept = there.iter().find(|part| {
                part.number == number && part.size == size && part.crc64nvme == Some(crc.value())
            });
            let (part, resumed, path) = match kept {
                Some(part) => (part.clone(), size, None),
                None => {
                    let sent = client.upload_piece(namespace, key, upload, number, piece, crc);
                    let (part, path) = sent.await?;
                    (part, 0, Some(path))
                }
            };
            (options.progress)(size);
            Ok::<_, Error>((part, crc, resumed, path))
        })
        .buffered(options.parallel(source.part_bytes))
        .try_collect()
        .await?;
    let whole = results
        .iter()
        .fold(Crc64::default(), |whole, (_, crc, _, _)| whole.then(*crc));
    let resumed = results.iter().map(|(_, _, resumed, _)| resumed).sum();
    let path = Moved::worst(results.iter().filter_map(|(_, _, _, path)| *path));
    let parts: Vec<Part> = results.into_iter().map(|(part, _, _, _)| part).collect();
    client
        .complete_upload(namespace, key, upload, &parts, Some(whole))
        .await?;
    Ok(Moved {
        bytes: source.size,
        resumed,
        verified: true,
        path,
    })
}

/// The newest upload of this key that was begun with the same part size, and its parts.
async fn unfinished(
    client: &Client,
    namespace: &str,
    key: &str,
    source: &Source,
) -> Result<Option<(String, Vec<Part>)>> {
    let mut uploads = client.uploads(namespace, key).await?;
    uploads.retain(|upload| upload.key == key);
    uploads.sort_by_key(|upload| std::cmp::Reverse(upload.initiated));
    for upload in uploads {
        let parts = client.parts(namespace, key, &upload.id).await?;
        let fits = |part: &Part| {
            part.number <= source.parts()
                && (part.size == source.part_bytes || part.number == source.parts())
        };
        if !parts.is_empty() && parts.iter().all(fits) {
            return Ok(Some((upload.id, parts)));
        }
    }
    Ok(None)
}

/// Stores what `reader` yields, whose length nobody knows. It cannot be resumed; when it fails, the parts sent go.
///
/// # Errors
/// As every call; [`Error::Local`] when reading fails.
pub async fn upload_stream(
    client: &Client,
    namespace: &str,
    key: &str,
    reader: impl Read + Send + 'static,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    let part_bytes = options.part_bytes(0);
    // One part waits while the parts in flight are sent.
    let (sender, mut chunks) = tokio::sync::mpsc::channel(1);
    let reading = tokio::task::spawn_blocking(move || read_chunks(reader, part_bytes, &sender));
    let Some(first) = chunks.recv().await else {
        joined(reading.await)?.map_err(Error::local("standard input"))?;
        return Err(Error::Protocol("nothing was read".to_owned()));
    };
    if (first.len() as u64) < part_bytes {
        joined(reading.await)?.map_err(Error::local("standard input"))?;
        let staging = options.staging(first.len() as u64);
        let crc = Crc64::of(&first);
        let piece = piece(first, staging).await?;
        return put_whole(client, namespace, key, piece, crc, put, options).await;
    }
    let upload = &client.create_upload(namespace, key, put).await?;
    let rest = stream::unfold(chunks, async |mut chunks| {
        let chunk = chunks.recv().await?;
        Some((chunk, chunks))
    });
    let sent: Result<Vec<(Part, Crc64, Way)>> = stream::iter([first])
        .chain(rest)
        .enumerate()
        .map(|(index, body)| async move {
            let crc = Crc64::of(&body);
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            let piece = piece(body, options.staging(part_bytes)).await?;
            let (part, path) = client
                .upload_piece(namespace, key, upload, number, piece, crc)
                .await?;
            (options.progress)(part.size);
            Ok((part, crc, path))
        })
        .buffered(options.parallel(part_bytes))
        .try_collect()
        .await;
    let done = async {
        let sent = sent?;
        joined(reading.await)?.map_err(Error::local("standard input"))?;
        let whole = sent
            .iter()
            .fold(Crc64::default(), |whole, (_, crc, _)| whole.then(*crc));
        let path = Moved::worst(sent.iter().map(|(_, _, path)| *path));
        let parts: Vec<Part> = sent.into_iter().map(|(part, _, _)| part).collect();
        client
            .complete_upload(namespace, key, upload, &parts, Some(whole))
            .await?;
        Ok(Moved {
            bytes: whole.len(),
            resumed: 0,
            verified: true,
            path,
        })
    };
    match done.await {
        Err(error) => {
            // The first error is the one to report.
            let _ = client.abort_upload(namespace, key, upload).await;
            Err(error)
        }
        moved => moved,
    }
}

/// Bytes in registered memory, if there is some.
async fn piece(bytes: Bytes, staging: Option<&Arc<Staging>>) -> Result<Piece> {
    let Some(staging) = staging else {
        return Ok(Piece::Heap(bytes));
    };
    let staged = staging.take(bytes.len()).await?;
    staged.fill(&bytes)?;
    Ok(Piece::Staged(staged))
}

/// Sends chunks of exactly `part_bytes`, the last one shorter (an empty input is one empty chunk).
fn read_chunks(
    mut reader: impl Read,
    part_bytes: u64,
    sender: &tokio::sync::mpsc::Sender<Bytes>,
) -> std::io::Result<()> {
    let mut first = true;
    loop {
        let mut chunk = Vec::new();
        reader.by_ref().take(part_bytes).read_to_end(&mut chunk)?;
        let last = (chunk.len() as u64) < part_bytes;
        if (!chunk.is_empty() || first) && sender.blocking_send(chunk.into()).is_err() {
            return Ok(());
        }
        if last {
            return Ok(());
        }
        first = false;
    }
}

pub(super) fn joined<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| Error::Local {
        what: "a worker thread".to_owned(),
        source: std::io::Error::other(error),
    })
}
