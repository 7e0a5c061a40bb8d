//! Bytes of a cold copy on their way to a reader: fetched in one stream, checked block by block before any leaves.

use std::ops::Range;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Pool, copy};
use forebay_store::{Away, ErrorKind, Meta, Result, StoreError};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::bucket::Bucket;
use super::format::{
    BLOCK_BYTES, covering, decode_sums, head_of, is_head, sum, sums_of, trailer_bytes,
};

/// What leaves at once: whole blocks.
const CHUNK_BYTES: u64 = BLOCK_MAX_BYTES as u64;
/// So much of a trailer comes in one piece rather than in two requests.
const TRAILER_PIECE_BYTES: u64 = 64 << 10;

/// A range of a value, read from its cold copy. Nothing is asked of the bucket before the first bytes are wanted.
pub(super) struct Fetch {
    copy: ColdCopy,
    pool: Pool,
    /// Of a value that is read whole: its bytes so far.
    whole: Option<Digest>,
    /// What is still to leave.
    range: Range<u64>,
    flow: Option<Flow>,
}

/// Where the bytes are, and of which value they must be.
struct ColdCopy {
    bucket: Bucket,
    away: Away,
    size: u64,
    crc64nvme: u64,
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
            copy: ColdCopy {
                bucket: bucket.clone(),
                away,
                size: meta.size,
                crc64nvme: meta.crc64nvme,
            },
            pool: pool.clone(),
            whole: all.then(|| Digest::new(CrcAlgorithm::Crc64Nvme)),
            range,
            flow: None,
        }
    }

    /// The next bytes; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Buf>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        if self.flow.is_none() {
            self.flow = Some(self.copy.open(&self.range).await?);
        }
        let Some(flow) = &mut self.flow else {
            return Ok(None);
        };
        let (at, chunk) = flow.fill(&self.pool).await?;
        if let Some(digest) = &mut self.whole {
            digest.update(&chunk);
            if at + chunk.len() as u64 == self.copy.size && digest.finalize() != self.copy.crc64nvme
            {
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

impl ColdCopy {
    /// Asks for the blocks that `range` touches.
    async fn open(&self, range: &Range<u64>) -> Result<Flow> {
        let blocks = covering(range, self.size);
        let all = blocks.start..self.size + trailer_bytes(self.size);
        if all.end - all.start <= CHUNK_BYTES {
            // The end of a small copy comes in one piece, its trailer with it.
            let mut rest = self.bucket.get_all(self.away, all).await?;
            let trailer = rest.split_off((self.size - blocks.start) as usize);
            let sums = self.sums_in(&trailer, &blocks)?;
            rest.truncate((blocks.end - blocks.start) as usize);
            let bytes = futures_util::stream::empty().boxed();
            return Ok(Flow::new(bytes, rest, sums, blocks));
        }
        let bytes = self.bucket.get(self.away, blocks.clone());
        let sums = self.sums(&blocks);
        let (sums, bytes) = futures_util::future::try_join(sums, bytes).await?;
        Ok(Flow::new(bytes, Bytes::new(), sums, blocks))
    }

    /// The sums of these blocks, of a copy that is this value's.
    async fn sums(&self, blocks: &Range<u64>) -> Result<Vec<u32>> {
        let (head, sums) = (head_of(self.size), sums_of(blocks, self.size));
        if sums.end - head.start <= TRAILER_PIECE_BYTES {
            let trailer = self.bucket.get_all(self.away, head.start..sums.end).await?;
            return self.sums_in(&trailer, blocks);
        }
        let head = self.bucket.get_all(self.away, head);
        let sums = self.bucket.get_all(self.away, sums);
        let (head, sums) = futures_util::future::try_join(head, sums).await?;
        self.check_head(&head)?;
        Ok(decode_sums(&sums))
    }

    /// The same out of a trailer, at least as far as they stand in it.
    fn sums_in(&self, trailer: &[u8], blocks: &Range<u64>) -> Result<Vec<u32>> {
        let within = |range: Range<u64>| {
            let (from, to) = (range.start - self.size, range.end - self.size);
            trailer.get(from as usize..to as usize).ok_or_else(corrupt)
        };
        self.check_head(within(head_of(self.size))?)?;
        Ok(decode_sums(within(sums_of(blocks, self.size))?))
    }

    fn check_head(&self, head: &[u8]) -> Result<()> {
        match is_head(head, self.size, self.crc64nvme) {
            true => Ok(()),
            false => Err(corrupt()),
        }
    }
}

impl Flow {
    fn new(
        bytes: BoxStream<'static, Result<Bytes>>,
        rest: Bytes,
        sums: Vec<u32>,
        blocks: Range<u64>,
    ) -> Flow {
        Flow {
            bytes,
            rest,
            sums: sums.into_iter(),
            at: blocks.start,
            end: blocks.end,
            filling: None,
        }
    }

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
