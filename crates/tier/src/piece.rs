//! Part of a value as it is kept: the buffers that it arrived in, and what they must sum up to.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum_combine, crc32_iscsi};
use forebay_mem::{Buf, CopySite, RegionSlice, count_copy, slices};
use forebay_store::{Placing, Result};

/// Values are kept in pieces of so many bytes, the last one shorter: a range costs the pieces that it touches.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Sums are made of so many bytes: a small range of a piece costs no look at all of it.
const BLOCK_BYTES: usize = 64 << 10;
/// What an item costs beside its buffers, about: the value and its place in tables that are half full, the piece, its buffers' handles and
/// sums, its place in a policy, and what the allocator needs for each.
const OVERHEAD_BYTES: u64 = 1024;

/// A block that is longer than its bytes by more than this is not kept for them.
const HELD_TIMES_MAX: usize = 2;

/// A piece. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bufs: Vec<Buf>,
    len: usize,
    crcs: Vec<u32>,
}

impl Piece {
    /// Sums up what arrived.
    pub fn new(bufs: Vec<Buf>) -> Piece {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let crcs = sums(&bufs, 0..len);
        Piece {
            inner: Arc::new(Inner { bufs, len, crcs }),
        }
    }

    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// What it takes of memory, in bytes.
    pub fn held_bytes(&self) -> u64 {
        let held: usize = self.inner.bufs.iter().map(Buf::held_bytes).sum();
        held as u64 + OVERHEAD_BYTES
    }

    /// The bytes `range`, sharing their memory; false when they are not what came in.
    pub fn checked(&self, range: Range<usize>, into: &mut impl Extend<Buf>) -> bool {
        if range.is_empty() {
            return true;
        }
        let first = range.start / BLOCK_BYTES;
        let found = sums(&self.inner.bufs, self.blocks(&range));
        if self.inner.crcs.get(first..first + found.len()) != Some(&found[..]) {
            return false;
        }
        into.extend(slices(&self.inner.bufs, range));
        true
    }

    /// Copies the bytes `range` to offset `at` of `target`; false when they are not what came in, which is known when some are there.
    pub fn place(&self, range: Range<usize>, target: &RegionSlice, at: usize) -> Result<bool> {
        let mut placing = Placing::new(target, at);
        for part in parts(&self.inner.bufs, self.blocks(&range)) {
            let within = |at: usize| at.clamp(part.at, part.at + part.bytes.len()) - part.at;
            placing.put(part.bytes, within(range.start)..within(range.end))?;
            let block = part.at / BLOCK_BYTES;
            if part.ends_block && self.inner.crcs.get(block) != Some(&placing.end_block()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The blocks that hold some of `range`.
    fn blocks(&self, range: &Range<usize>) -> Range<usize> {
        let first = range.start / BLOCK_BYTES * BLOCK_BYTES;
        first..self.len().min(range.end.next_multiple_of(BLOCK_BYTES))
    }

    /// What becomes of it when a byte of memory turns.
    #[cfg(test)]
    pub fn with_damage_at(&self, at: usize) -> Piece {
        let mut bytes: Vec<u8> = self
            .inner
            .bufs
            .iter()
            .flat_map(|buf| buf.to_vec())
            .collect();
        bytes[at] ^= 1;
        Piece {
            inner: Arc::new(Inner {
                bufs: vec![Buf::from(bytes)],
                len: self.len(),
                crcs: self.inner.crcs.clone(),
            }),
        }
    }
}

/// Which pieces a range of bytes touches.
pub(crate) fn pieces_of(range: &Range<u64>) -> Range<u32> {
    let first = range.start / PIECE_BYTES;
    let end = range.end.div_ceil(PIECE_BYTES).max(first + 1);
    // A value has at most 5 TiB.
    first as u32..end as u32
}

/// The bytes of pieces, of a value of `size` bytes.
pub(crate) fn bytes_of(pieces: &Range<u32>, size: u64) -> Range<u64> {
    u64::from(pieces.start) * PIECE_BYTES..size.min(u64::from(pieces.end) * PIECE_BYTES)
}

/// Which bytes of piece `number` lie in `range`.
pub(crate) fn part_of(number: u32, range: &Range<u64>) -> Range<usize> {
    let begin = u64::from(number) * PIECE_BYTES;
    let within = |at: u64| at.clamp(begin, begin + PIECE_BYTES) - begin;
    within(range.start) as usize..within(range.end) as usize
}

/// Turns buffers of a value into pieces. Blocks of a pool stay what they are, if more than a little of them is of use; of other memory,
/// which may be a small part of a large message, there is a copy, so that a piece holds what it counts, and little more than it has.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    waiting: Vec<Buf>,
    /// The bytes after those.
    copied: Vec<u8>,
    /// Of both.
    len: usize,
}

impl Cutter {
    /// Appends; whole pieces come out.
    pub fn push(&mut self, mut buf: Buf, out: &mut Vec<Piece>) {
        while self.len + buf.len() >= PIECE_BYTES as usize {
            let room = PIECE_BYTES as usize - self.len;
            self.take(buf.slice(0..room));
            buf = buf.slice(room..buf.len());
            out.extend(self.finish());
        }
        if !buf.is_empty() {
            self.take(buf);
        }
    }

    fn take(&mut self, buf: Buf) {
        self.len += buf.len();
        if buf.place().is_some() && buf.held_bytes() <= HELD_TIMES_MAX * buf.len() {
            self.end_copy();
            self.waiting.push(buf);
        } else {
            self.copied.extend_from_slice(&buf);
            count_copy(CopySite::CacheKeep, buf.len());
        }
    }

    fn end_copy(&mut self) {
        if !self.copied.is_empty() {
            // Without the room that a vector keeps to grow.
            let copied = std::mem::take(&mut self.copied).into_boxed_slice();
            self.waiting.push(Bytes::from(copied).into());
        }
    }

    /// The last piece, when the value ends inside one.
    pub fn finish(&mut self) -> Option<Piece> {
        self.end_copy();
        self.len = 0;
        let mut bufs = std::mem::take(&mut self.waiting);
        bufs.shrink_to_fit();
        (!bufs.is_empty()).then(|| Piece::new(bufs))
    }
}

/// Bytes of a block, as many as lie in one buffer.
struct PartOfBlock<'b> {
    /// Where they begin in the piece.
    at: usize,
    bytes: &'b [u8],
    ends_block: bool,
}

/// The bytes of `range`, which begins with a block and ends with one or with the piece.
fn parts(bufs: &[Buf], range: Range<usize>) -> impl Iterator<Item = PartOfBlock<'_>> {
    let mut end = 0;
    bufs.iter().flat_map(move |buf| {
        let begin = end;
        end += buf.len();
        let mut at = range.start.max(begin);
        let (stop, last) = (range.end.min(end), range.end);
        std::iter::from_fn(move || {
            (at < stop).then(|| {
                let from = at;
                at = stop.min((from / BLOCK_BYTES + 1) * BLOCK_BYTES);
                PartOfBlock {
                    at: from,
                    bytes: &buf[from - begin..at - begin],
                    ends_block: at.is_multiple_of(BLOCK_BYTES) || at == last,
                }
            })
        })
    })
}

/// The sum of each block of `range`, which begins with one.
fn sums(bufs: &[Buf], range: Range<usize>) -> Vec<u32> {
    let mut sums = Vec::with_capacity(range.len().div_ceil(BLOCK_BYTES));
    let mut sum = 0;
    for part in parts(bufs, range) {
        let crc = crc32_iscsi(part.bytes);
        // A block that lies in one buffer, as most do, is one call.
        sum = match part.at % BLOCK_BYTES {
            0 => crc,
            _ => joined(sum, crc, part.bytes.len()),
        };
        if part.ends_block {
            sums.push(sum);
        }
    }
    sums
}

/// The sum of two parts, the second of `len` bytes, one after the other.
fn joined(first: u32, second: u32, len: usize) -> u32 {
    let (first, second) = (u64::from(first), u64::from(second));
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first, second, len as u64) as u32
}

#[cfg(test)]
mod tests {
    use forebay_mem::Region;

    use super::*;

    #[test]
    fn cuts_where_pieces_end_and_gives_back_what_came() {
        let value: Vec<u8> = (0..2_500_000_u32).map(|at| (at % 251) as u8).collect();
        let mut cutter = Cutter::default();
        let mut pieces = Vec::new();
        for chunk in value.chunks(300_007) {
            cutter.push(Buf::from(chunk.to_vec()), &mut pieces);
        }
        pieces.extend(cutter.finish());
        let lens: Vec<usize> = pieces.iter().map(Piece::len).collect();
        assert_eq!(lens, [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]);
        for range in [0..1_u64, 65_535..65_537, 1_000_000..2_400_000, 0..2_500_000] {
            let mut got = Vec::new();
            for number in pieces_of(&range) {
                assert!(pieces[number as usize].checked(part_of(number, &range), &mut got));
            }
            let bytes: Vec<u8> = got.iter().flat_map(|buf| buf.to_vec()).collect();
            assert!(bytes == value[range.start as usize..range.end as usize]);
            let memory = Region::anonymous(bytes.len() + 1).expect("memory");
            let target = memory.slice(0..memory.len()).expect("all of it");
            let mut at = 1;
            for number in pieces_of(&range) {
                let part = part_of(number, &range);
                let placed = pieces[number as usize].place(part.clone(), &target, at);
                assert!(placed.expect("there is room"));
                at += part.len();
            }
            let mut placed = vec![0; memory.len()];
            assert!(target.read(0, &mut placed));
            assert!(placed[1..] == bytes && placed[0] == 0);
        }
    }

    #[test]
    fn sums_do_not_depend_on_where_buffers_end() {
        let value: Vec<u8> = (0..200_000_u32).map(|at| (at % 253) as u8).collect();
        let whole = [Buf::from(value.clone())];
        let parts: Vec<Buf> = value.chunks(7_001).map(|c| Buf::from(c.to_vec())).collect();
        assert_eq!(sums(&whole, 0..200_000), sums(&parts, 0..200_000));
        assert_eq!(
            sums(&whole, 0..200_000)[0],
            crc32_iscsi(&value[..BLOCK_BYTES])
        );
    }

    #[test]
    fn what_changed_in_memory_is_not_given_out() {
        let piece = Piece::new(vec![Buf::from(vec![7; 200_000])]).with_damage_at(100_000);
        let mut got = Vec::new();
        assert!(piece.checked(0..65_536, &mut got));
        assert!(!piece.checked(70_000..80_000, &mut got));
        assert!(piece.checked(131_072..200_000, &mut got));
        let memory = Region::anonymous(200_000).expect("memory");
        let target = memory.slice(0..200_000).expect("all of it");
        for (range, is_good) in [
            (0..65_536, true),
            (70_000..80_000, false),
            (131_072..200_000, true),
        ] {
            let placed = piece.place(range, &target, 0).expect("there is room");
            assert_eq!(placed, is_good);
        }
    }
}
