//! A value read into memory that a peer may also touch: librados fills it, once it is known what may be seen there.
//!
//! Whole blocks go there; what is left at either end, and what came with the look that found the value, goes by way of a buffer of ours.
//! Checksums are made from what landed; where they do not match, the store is not blamed before its bytes were looked at in a buffer that
//! nobody else can touch.

use std::ops::Range;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{Buf, CopySite, RegionSlice, count_copy};
use forebay_store::{ByteRange, ErrorKind, Meta, Result, StoreError, VersionId};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::body::{AHEAD, RadosBody};
use crate::core::{Core, Namespace};
use crate::error::{shown, unread};
use crate::pieces::PieceAt;
use crate::record::BLOCK_BYTES;
use crate::stripes::PIECE_BYTES;
use crate::sys::{Errno, ReadOp};
use crate::under_way::Named;

impl Core {
    /// As [`Core::retrieve`], with the bytes at the start of `target`.
    pub async fn retrieve_into(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
        range: ByteRange,
        target: &RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        if version.is_none()
            && let Some(landed) = self.land_known(namespace, named, range, target).await?
        {
            return Ok(landed);
        }
        let found = self.retrieve(namespace, named, version, range).await?;
        found.check_room(target)?;
        found.body.land(target).await?;
        Ok((found.meta, found.range))
    }

    /// The current value, if it is the data of its key's object and what is remembered of that still holds: the object's version says so in
    /// the look that reads the bytes. `None` when it takes another way.
    async fn land_known(
        &self,
        namespace: &Namespace,
        named: &Named,
        range: ByteRange,
        target: &RegionSlice,
    ) -> Result<Option<(Meta, Range<u64>)>> {
        let Some(seen) = self.heads.get(namespace.id, named) else {
            return Ok(None);
        };
        let Some((value, sums)) = self.remembered(&seen) else {
            return Ok(None);
        };
        let Some(wanted) = range.resolve(value.size) else {
            return Ok(None);
        };
        let part = target.slice(0..(wanted.end - wanted.start) as usize);
        let Some(part) =
            part.filter(|part| is_whole(&wanted, value.size) && !part.is_empty() && may_land(part))
        else {
            return Ok(None);
        };
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = ReadOp::new(place);
        op.assert_version(seen.version);
        op.read_into(wanted.start, part.clone());
        let read = match self.access.read(place, &object, op, part.len()).await {
            // It is another value by now, or gone.
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => {
                self.heads.forget(namespace.id, named);
                return Ok(None);
            }
            Err(errno) => return Err(unread(errno, &shown(&named.key))),
            Ok(read) => read,
        };
        let first = (wanted.start / BLOCK_BYTES) as usize;
        let sums = sums.get(first..).unwrap_or_default().iter().copied();
        let landed = read.landed == [part.len()] && are_blocks(&part, sums);
        Ok(landed.then(|| (value.meta(), wanted)))
    }

    /// The bytes of one piece of a body into `part`, which is as long.
    async fn land_piece(
        &self,
        namespace: &Namespace,
        piece: PieceAt,
        part: RegionSlice,
    ) -> Result<()> {
        if let PieceAt::Stripe(segment, range) = &piece
            && is_whole(range, segment.len)
            && may_land(&part)
        {
            let into = |op: &mut ReadOp, at| op.read_into(at, part.clone());
            let (read, sums) = self
                .read_blocks(&namespace.stripes, *segment, range.clone(), into)
                .await?;
            if read.landed == [part.len()] && are_blocks(&part, sums.into_iter()) {
                return Ok(());
            }
            // Damaged, or changed by whoever owns the memory: what the store holds is judged in a buffer of ours.
        }
        let mut at = 0;
        let place_next = |buf: Buf| {
            place(&part, at, &buf)?;
            at += buf.len();
            Ok(())
        };
        self.for_each_buf(namespace, piece, place_next).await
    }
}

impl RadosBody {
    /// All bytes to the start of `target`, which has room for them.
    async fn land(self, target: &RegionSlice) -> Result<()> {
        let mut at = 0;
        for buf in &self.ready {
            place(target, at, buf)?;
            at += buf.len();
        }
        let (core, namespace) = (&*self.core, &*self.namespace);
        let mut pieces = self.pieces;
        let mut landing = FuturesUnordered::new();
        let mut failed = None;
        loop {
            while failed.is_none()
                && landing.len() < AHEAD
                && let Some(whole) = pieces.front_mut()
            {
                let piece = whole.split(landing_bytes(whole));
                let end = at + piece.len();
                let part = target.slice(at..end).ok_or_else(too_short)?;
                at = end;
                landing.push(core.land_piece(namespace, piece, part));
            }
            // Also after an error: whoever is told of it may use the memory again.
            match landing.next().await {
                Some(landed) => failed = failed.or(landed.err()),
                None => return failed.map_or(Ok(()), Err),
            }
        }
    }
}

/// How much of a piece is read next: where a block is wanted in part, no more goes by way of a buffer with it than is worth an operation.
fn landing_bytes(piece: &PieceAt) -> usize {
    match piece {
        PieceAt::Stripe(segment, range) if !is_whole(range, segment.len) => {
            let len = match range.start.is_multiple_of(BLOCK_BYTES) {
                true => piece.len() / PIECE_BYTES * PIECE_BYTES,
                false => PIECE_BYTES,
            };
            len.max(PIECE_BYTES)
        }
        _ => piece.room(),
    }
}

/// Whether a range of `bytes` bytes ends where blocks end.
fn is_whole(range: &Range<u64>, bytes: u64) -> bool {
    let ends = range.end == bytes || range.end.is_multiple_of(BLOCK_BYTES);
    ends && range.start.is_multiple_of(BLOCK_BYTES)
}

/// Whether the library, which knows nothing of memory that vanishes, may write there.
fn may_land(part: &RegionSlice) -> bool {
    part.region().is_writable() && part.region().is_steady()
}

/// Whether the blocks in `part` have these sums.
fn are_blocks(part: &RegionSlice, sums: impl Iterator<Item = u32>) -> bool {
    let mut sums = sums;
    (0..part.len()).step_by(BLOCK_BYTES as usize).all(|at| {
        let end = part.len().min(at + BLOCK_BYTES as usize);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        part.slice(at..end)
            .is_some_and(|block| block.for_each_chunk(|chunk| digest.update(chunk)))
            && sums.next() == Some(digest.finalize() as u32)
    })
}

fn place(target: &RegionSlice, at: usize, bytes: &[u8]) -> Result<()> {
    if !target.write(at, bytes) {
        return Err(too_short());
    }
    count_copy(CopySite::RetrieveInto, bytes.len());
    Ok(())
}

fn too_short() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "the target does not hold the range")
}
