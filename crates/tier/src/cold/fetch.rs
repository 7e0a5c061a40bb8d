//! Bytes of a cold copy on their way to a reader: fetched in one stream, checked block by block before any leaves.

use std::ops::Range;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Pool, copy};
use forebay_store::{Away, ErrorKind, Meta, Result, StoreError};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::bucket::Bucket;
use super::format::{BLOCK_BYTES, covering, decode_sums, sum, sums_of, trailer_bytes};

/// What leaves at once: whole blocks.
const CHUNK_BYTES: u64 = BLOCK_MAX_BYTES as u64;

/// A range of a value, read from its cold copy. Nothing is asked of the bucket before the first bytes are wanted.
pub(super) struct Fetch {
    bucket: Bucket,
    pool: Pool,
    away: Away,
    size: u64,
    /// Of a value that is read whole: what its bytes must come to.
    whole: Option<(Digest, u64)>,
    /// What is still to leave.
    range: Range<u64>,
    flow: Option<Flow>,
}

/// A stream that has begun.
struct Flow {
    bytes: BoxStream<'static, Result<Bytes>>,
    /// Came, but did not fit any more.
    rest: Bytes,
    sums: std::vec::IntoIter<u32>,
    /// Where in the value the chunk begins that is being filled.
    at: u64,
    /// Where the stream ends.
    end: u64,
    filling: Option<BufMut>,
}

impl Fetch {
    /// `range` is not empty and within the value.
    pub fn new(bucket: &Bucket, pool: &Pool, meta: &Meta, away: Away, range: Range<u64>) -> Fetch {
        let all = range == (0..meta.size);
        Fetch {
            bucket: bucket.clone(),
            pool: pool.clone(),
            away,
            size: meta.size,
            whole: all.then(|| (Digest::new(CrcAlgorithm::Crc64Nvme), meta.crc64nvme)),
            range,
            flow: None,
        }
    }

    async fn begin(&mut self) -> Result<Flow> {
        let blocks = covering(&self.range, self.size);
        let all = blocks.start..self.size + trailer_bytes(self.size);
        if all.end - all.start <= CHUNK_BYTES {
            // The end of a small copy comes in one piece, its sums with it.
            let sums = sums_of(&blocks, self.size);
            let mut rest = self.bucket.get_all(self.away, all).await?;
            let sums = rest
                .slice((sums.start - blocks.start) as usize..(sums.end - blocks.start) as usize);
            rest.truncate((blocks.end - blocks.start) as usize);
            return Ok(Flow {
                bytes: futures_util::stream::empty().boxed(),
                rest,
                sums: decode_sums(&sums).into_iter(),
                at: blocks.start,
                end: blocks.end,
                filling: None,
            });
        }
        let sums = self.bucket.get_all(self.away, sums_of(&blocks, self.size));
        let bytes = self.bucket.get(self.away, blocks.clone());
        let (sums, bytes) = futures_util::future::try_join(sums, bytes).await?;
        Ok(Flow {
            bytes,
            rest: Bytes::new(),
            sums: decode_sums(&sums).into_iter(),
            at: blocks.start,
            end: blocks.end,
            filling: None,
        })
    }

    /// The next bytes; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Buf>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        if self.flow.is_none() {
            self.flow = Some(self.begin().await?);
        }
        let Some(flow) = &mut self.flow else {
            return Ok(None);
        };
        let (at, chunk) = flow.fill(&self.pool).await?;
        if let Some((digest, wanted)) = &mut self.whole {
            digest.update(&chunk);
            if at + chunk.len() as u64 == self.size && digest.finalize() != *wanted {
                return Err(corrupt());
            }
        }
        let begin = self.range.start.max(at);
        let end = self.range.end.min(at + chunk.len() as u64);
        self.range.start = end;
        Ok(Some(
            chunk.slice((begin - at) as usize..(end - at) as usize),
        ))
    }
}

impl Flow {
    /// One chunk of checked blocks, and where it begins. May be dropped and called again: what came is kept.
    async fn fill(&mut self, pool: &Pool) -> Result<(u64, Buf)> {
        let len = (self.end - self.at).min(CHUNK_BYTES) as usize;
        if self.filling.is_none() {
            self.filling = Some(pool.take(len).await);
        }
        loop {
            let Some(filling) = &mut self.filling else {
                return Err(corrupt());
            };
            let had = filling.len();
            if had == len {
                break;
            }
            if self.rest.is_empty() {
                self.rest = match self.bytes.next().await {
                    Some(bytes) => bytes?,
                    None => return Err(corrupt()),
                };
            }
            let taken = self.rest.split_to(self.rest.len().min(len - had));
            copy(
                CopySite::HttpBody,
                &mut filling.spare()[..taken.len()],
                &taken,
            );
            filling.set_len(had + taken.len());
        }
        let at = self.at;
        let Some(filled) = self.filling.take() else {
            return Err(corrupt());
        };
        for block in filled.chunks(BLOCK_BYTES as usize) {
            if self.sums.next() != Some(sum(block)) {
                return Err(corrupt());
            }
        }
        self.at += filled.len() as u64;
        Ok((at, filled.freeze()))
    }
}

fn corrupt() -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        "the cold copy of the value does not match its checksum",
    )
}
