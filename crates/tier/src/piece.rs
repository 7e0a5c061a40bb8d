//! Part of a value as it is kept: the buffers that it arrived in, and what they must sum up to.

use std::ops::Range;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, checksum_combine, crc32_iscsi};
use forebay_mem::Buf;

/// Values are kept in pieces of so many bytes, the last one shorter: a range costs the pieces that it touches.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Sums are made of so many bytes: a small range of a piece costs no look at all of it.
const BLOCK_BYTES: usize = 64 << 10;
/// What an item costs beside its buffers, about.
const OVERHEAD_BYTES: u64 = 256;

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

    /// The bytes `range`, sharing their memory; `None` when they are not what came in.
    pub fn checked(&self, range: Range<usize>, into: &mut impl Extend<Buf>) -> bool {
        if range.is_empty() {
            return true;
        }
        let first = range.start / BLOCK_BYTES;
        let blocks = first * BLOCK_BYTES..self.len().min(range.end.next_multiple_of(BLOCK_BYTES));
        let found = sums(&self.inner.bufs, blocks);
        if self.inner.crcs.get(first..first + found.len()) != Some(&found[..]) {
            return false;
        }
        into.extend(cut(&self.inner.bufs, range));
        true
    }

    /// All of its buffers.
    pub fn bufs(&self) -> &[Buf] {
        &self.inner.bufs
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

/// Turns buffers of a value into pieces, without copying.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    waiting: Vec<Buf>,
    len: usize,
}

impl Cutter {
    /// Appends; whole pieces come out.
    pub fn push(&mut self, mut buf: Buf, out: &mut Vec<Piece>) {
        while self.len + buf.len() >= PIECE_BYTES as usize {
            let room = PIECE_BYTES as usize - self.len;
            self.waiting.push(buf.slice(0..room));
            buf = buf.slice(room..buf.len());
            self.len = 0;
            out.push(Piece::new(std::mem::take(&mut self.waiting)));
        }
        if !buf.is_empty() {
            self.len += buf.len();
            self.waiting.push(buf);
        }
    }

    /// The last piece, when the value ends inside one.
    pub fn finish(&mut self) -> Option<Piece> {
        self.len = 0;
        (!self.waiting.is_empty()).then(|| Piece::new(std::mem::take(&mut self.waiting)))
    }
}

fn cut(bufs: &[Buf], range: Range<usize>) -> impl Iterator<Item = Buf> {
    let mut begin = 0;
    bufs.iter().filter_map(move |buf| {
        let from = range.start.max(begin) - begin;
        let to = range.end.min(begin + buf.len()).saturating_sub(begin);
        begin += buf.len();
        (from < to).then(|| buf.slice(from..to))
    })
}

/// The sum of each block of `range`, which begins with one.
fn sums(bufs: &[Buf], range: Range<usize>) -> Vec<u32> {
    let mut sums = Vec::with_capacity(range.len().div_ceil(BLOCK_BYTES));
    let mut sum = 0;
    let mut done = 0;
    for buf in cut(bufs, range) {
        let mut rest = &buf[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - done));
            let crc = crc32_iscsi(now);
            // A block that lies in one buffer, as most do, is one call.
            sum = match done {
                0 => crc,
                _ => joined(sum, crc, now.len()),
            };
            done += now.len();
            rest = later;
            if done == BLOCK_BYTES {
                sums.push(sum);
                done = 0;
            }
        }
    }
    if done > 0 {
        sums.push(sum);
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
        let mut piece = Piece::new(vec![Buf::from(vec![7; 200_000])]);
        let inner = Arc::get_mut(&mut piece.inner).expect("one reference");
        let mut bytes = vec![7; 200_000];
        bytes[100_000] = 8;
        inner.bufs = vec![Buf::from(bytes)];
        let mut got = Vec::new();
        assert!(piece.checked(0..65_536, &mut got));
        assert!(!piece.checked(70_000..80_000, &mut got));
        assert!(piece.checked(131_072..200_000, &mut got));
    }
}
