//! Streams on their way to the server.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Sender};

use super::pieces::Piece;
use super::upload::joined;
use super::{MEMORY_BYTES, Moved, Moving, Options, PARTS_MAX, Staging};
use crate::calls::kept;
use crate::direct::Path as Way;
use crate::{Client, Crc64, Error, Part, PutOptions, Result};

/// The first parts of a stream are of one size, for which there may be registered memory.
const EVEN_PARTS: u64 = 5000;
/// So many parts after them are of one size, too, and then as many that are larger by that of the first.
const STEP_PARTS: u64 = 100;
/// S3's bound on the size of an object.
const VALUE_BYTES_MAX: u64 = 5 << 40;
/// What memory is counted in.
const UNIT_BYTES: u64 = 1 << 20;
const TOO_LONG: &str = "it is longer than 137 449 times the size of its first parts, or than 5 TiB";

/// Stores what `reader` yields, which errors call `name`, and whose length nobody knows. It cannot be resumed; when it fails, the parts
/// sent go.
///
/// After the first 5000 parts every hundred are larger by the part size of the options than those before, so that 137 449 times that is stored at
/// most: 2 TiB where it is 16 MiB.
///
/// # Errors
/// As every call; [`Error::Local`] when reading fails, or does not come to an end within that.
pub async fn upload_stream(
    client: &Client,
    namespace: &str,
    key: &str,
    name: &str,
    reader: impl Read + Send + 'static,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    let value = Moving {
        client,
        namespace,
        key,
        options,
    };
    value.put_stream(name, reader, put).await
}

impl Moving<'_> {
    async fn put_stream(
        self,
        name: &str,
        reader: impl Read + Send + 'static,
        put: &PutOptions,
    ) -> Result<Moved> {
        let first_bytes = self.options.part_bytes(0);
        // One part waits while the parts in flight are sent.
        let (sender, mut chunks) = mpsc::channel(1);
        let reading =
            tokio::task::spawn_blocking(move || read_chunks(reader, first_bytes, &sender));
        let Some(first) = chunks.recv().await else {
            joined(reading.await)?.map_err(Error::local(name))?;
            return Err(Error::Protocol("nothing was read".to_owned()));
        };
        if (first.len() as u64) < first_bytes {
            joined(reading.await)?.map_err(Error::local(name))?;
            let staging = self.options.staging(first.len() as u64)?;
            let crc = Crc64::of(&first);
            let piece = piece(first, staging).await?;
            return self.put(piece, crc, put).await;
        }
        let kept = kept(&put.attributes)?;
        let upload = &self.options.unfinished.begin(self, kept).await?;
        let room = &Semaphore::new((MEMORY_BYTES / UNIT_BYTES) as usize);
        let parts = stream::unfold(
            (1, Some(first), chunks),
            async |(number, first, mut chunks)| {
                // The largest parts have all the room for themselves.
                let bytes = part_bytes(number, first_bytes).min(MEMORY_BYTES);
                let units = bytes.div_ceil(UNIT_BYTES) as u32;
                let permit = room.acquire_many(units).await.ok()?;
                let chunk = match first {
                    Some(first) => first,
                    None => chunks.recv().await?,
                };
                Some(((number, chunk, permit), (number + 1, None, chunks)))
            },
        );
        let sent: Result<Vec<(Part, Crc64, Way)>> = parts
            .map(|(number, body, permit)| async move {
                let crc = Crc64::of(&body);
                let staging = self.options.staging(body.len() as u64)?;
                let piece = piece(body, staging).await?;
                let (part, path) = self.put_part(upload, number, piece, crc).await?;
                drop(permit);
                (self.options.progress)(part.size);
                Ok((part, crc, path))
            })
            .buffered(self.options.parallel.max(1))
            .try_collect()
            .await;
        let done = async {
            let sent = sent?;
            joined(reading.await)?.map_err(Error::local(name))?;
            let whole = sent
                .iter()
                .fold(Crc64::default(), |whole, (_, crc, _)| whole.then(*crc));
            let path = Moved::worst(sent.iter().map(|(_, _, path)| *path));
            let parts: Vec<Part> = sent.into_iter().map(|(part, _, _)| part).collect();
            self.complete(upload, &parts, Some(whole), put.condition())
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
                self.abort(upload).await;
                Err(error)
            }
            moved => moved,
        }
    }
}

/// The size of part `number`, from 1, of a stream whose first ones have `first` bytes.
fn part_bytes(number: u32, first: u64) -> u64 {
    let more = (u64::from(number) + STEP_PARTS - 1).saturating_sub(EVEN_PARTS) / STEP_PARTS;
    first.saturating_mul(1 + more)
}

/// Bytes in registered memory, if there is some.
async fn piece(bytes: Bytes, staging: Option<&Arc<Staging>>) -> Result<Piece> {
    let Some(staging) = staging else {
        return Ok(Piece::Heap(bytes));
    };
    let staged = staging.take(bytes.len()).await?;
    staged.fill(0, &bytes)?;
    Ok(Piece::Staged(staged))
}

/// Sends chunks of just the sizes that the parts have, the last one shorter (an empty input is one empty chunk).
fn read_chunks(mut reader: impl Read, first: u64, sender: &Sender<Bytes>) -> io::Result<()> {
    let mut whole = 0;
    for number in 1..=PARTS_MAX as u32 {
        let bytes = part_bytes(number, first);
        let mut chunk = Vec::new();
        let len = reader.by_ref().take(bytes).read_to_end(&mut chunk)? as u64;
        whole += len;
        if whole > VALUE_BYTES_MAX {
            return Err(io::Error::other(TOO_LONG));
        }
        if (len > 0 || number == 1) && sender.blocking_send(chunk.into()).is_err() {
            return Ok(());
        }
        if len < bytes {
            return Ok(());
        }
    }
    match reader.take(1).read_to_end(&mut Vec::new())? {
        0 => Ok(()),
        _ => Err(io::Error::other(TOO_LONG)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u64 = 137_449;

    /// The lengths of the chunks in which so much is read, and whether that was the end of it.
    async fn chunks(len: u64, first: u64) -> (Vec<u64>, io::Result<()>) {
        let (sender, mut chunks) = mpsc::channel(1);
        let reader = io::repeat(7).take(len);
        let reading = tokio::task::spawn_blocking(move || read_chunks(reader, first, &sender));
        let mut lens = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            lens.push(chunk.len() as u64);
        }
        (lens, reading.await.unwrap())
    }

    #[tokio::test]
    async fn parts_grow_so_that_a_long_stream_has_no_more_than_there_are() {
        let (lens, read) = chunks(LONGEST, 1).await;
        read.unwrap();
        assert_eq!(lens.len() as u64, PARTS_MAX);
        assert!(lens[..5000].iter().all(|len| *len == 1));
        assert_eq!((lens[5000], lens[5099], lens[5100]), (2, 2, 3));
        assert_eq!(lens.last(), Some(&51));
        // As much as was asked for, and a byte more than fits.
        let (lens, read) = chunks(LONGEST + 1, 1).await;
        assert_eq!(read.unwrap_err().to_string(), TOO_LONG);
        assert_eq!(lens.iter().sum::<u64>(), LONGEST);
    }

    #[tokio::test]
    async fn a_stream_is_cut_into_full_parts_and_a_rest() {
        for (len, lens) in [(0, &[0][..]), (3, &[3]), (4, &[4]), (9, &[4, 4, 1])] {
            let (cut, read) = chunks(len, 4).await;
            read.unwrap();
            assert_eq!(cut, lens);
        }
    }
}
