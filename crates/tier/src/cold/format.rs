//! A cold copy: the bytes of a value, then its trailer. `head -c SIZE` of the object is the value.
//!
//! Trailer, little-endian: magic `FBCOLD01`, size u64, CRC-64/NVME of the value u64, then the CRC32C of each block of 64 KiB, the last of which
//! may be shorter. The block sums let a range be checked before any of it leaves, without the rest of the value.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Bytes under one sum.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"FBCOLD01";
const HEAD_BYTES: u64 = 24;

/// How long a copy's trailer is.
pub(super) fn trailer_bytes(size: u64) -> u64 {
    HEAD_BYTES + 4 * size.div_ceil(BLOCK_BYTES)
}

/// The whole blocks of a value of `size` bytes that `range`, which is not empty, touches.
pub(super) fn covering(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = range.end.next_multiple_of(BLOCK_BYTES).min(size);
    range.start - range.start % BLOCK_BYTES..end
}

/// Where in a copy the sums of the blocks `blocks` (as [`covering`] gives them) are.
pub(super) fn sums_of(blocks: &Range<u64>, size: u64) -> Range<u64> {
    let sum = |block: u64| size + HEAD_BYTES + 4 * block;
    sum(blocks.start / BLOCK_BYTES)..sum(blocks.end.div_ceil(BLOCK_BYTES))
}

/// Reads sums.
pub(super) fn decode_sums(bytes: &[u8]) -> Vec<u32> {
    let (sums, _) = bytes.as_chunks::<4>();
    sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()
}

/// Where in a copy the head of its trailer is.
pub(super) fn head_of(size: u64) -> Range<u64> {
    size..size + HEAD_BYTES
}

/// Whether this is the head of the trailer of a value of `size` bytes with this checksum: the copy of another one is whole, too.
pub(super) fn is_head(head: &[u8], size: u64, crc64nvme: u64) -> bool {
    let numbers = [size.to_le_bytes(), crc64nvme.to_le_bytes()];
    head.strip_prefix(MAGIC) == Some(numbers.as_flattened())
}

/// The sum of a block.
pub(super) fn sum(block: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// Makes the trailer of a value from its bytes as they pass.
pub(super) struct Summing {
    size: u64,
    value: Digest,
    block: Digest,
    trailer: Vec<u8>,
}

impl Summing {
    pub fn new() -> Summing {
        Summing {
            size: 0,
            value: Digest::new(CrcAlgorithm::Crc64Nvme),
            block: Digest::new(CrcAlgorithm::Crc32Iscsi),
            trailer: vec![0; HEAD_BYTES as usize],
        }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        self.value.update(bytes);
        while !bytes.is_empty() {
            let room = BLOCK_BYTES - self.size % BLOCK_BYTES;
            let (now, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.block.update(now);
            self.size += now.len() as u64;
            if self.size.is_multiple_of(BLOCK_BYTES) {
                self.end_block();
            }
            bytes = rest;
        }
    }

    fn end_block(&mut self) {
        let sum = self.block.finalize_reset() as u32;
        self.trailer.extend_from_slice(&sum.to_le_bytes());
    }

    /// The value's size and checksum, and the trailer.
    pub fn finish(mut self) -> (u64, u64, Vec<u8>) {
        if !self.size.is_multiple_of(BLOCK_BYTES) {
            self.end_block();
        }
        let crc64nvme = self.value.finalize();
        self.trailer[..8].copy_from_slice(MAGIC);
        self.trailer[8..16].copy_from_slice(&self.size.to_le_bytes());
        self.trailer[16..24].copy_from_slice(&crc64nvme.to_le_bytes());
        (self.size, crc64nvme, self.trailer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trailer_says_what_passed() {
        let bytes: Vec<u8> = (0..(2 * BLOCK_BYTES + 7))
            .map(|at| (at * 31) as u8)
            .collect();
        let mut summing = Summing::new();
        for piece in bytes.chunks(1000) {
            summing.update(piece);
        }
        let (size, crc, trailer) = summing.finish();
        assert_eq!(size, bytes.len() as u64);
        assert_eq!(crc, checksum(CrcAlgorithm::Crc64Nvme, &bytes));
        let head = &trailer[..HEAD_BYTES as usize];
        assert!(is_head(head, size, crc));
        assert!(!is_head(head, size, crc ^ 1) && !is_head(head, size + 1, crc));
        assert!(!is_head(&trailer, size, crc) && !is_head(&head[..23], size, crc));
        let object = [&bytes[..], &trailer[..]].concat();
        let blocks = covering(&(BLOCK_BYTES + 5..BLOCK_BYTES + 6), size);
        assert_eq!(blocks, BLOCK_BYTES..2 * BLOCK_BYTES);
        let at = sums_of(&blocks, size);
        let sums = decode_sums(&object[at.start as usize..at.end as usize]);
        let block = &object[blocks.start as usize..blocks.end as usize];
        assert_eq!(sums, [sum(block)]);
        let last = covering(&(size - 1..size), size);
        let at = sums_of(&last, size);
        assert_eq!(at.end, size + trailer_bytes(size));
    }
}
