//! Checksums of bytes that come piece by piece.

use crc_fast::{CrcAlgorithm, Digest};

use crate::record::BLOCK_BYTES;

/// CRC-64/NVME of all, and CRC32C of each block.
pub(crate) struct Sums {
    whole: Digest,
    blocks: Blocks,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums {
            whole: Digest::new(CrcAlgorithm::Crc64Nvme),
            blocks: Blocks::default(),
        }
    }
}

impl Sums {
    pub fn update(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        self.blocks.update(bytes);
    }

    pub fn crc64nvme(&self) -> u64 {
        self.whole.finalize()
    }

    pub fn into_blocks(self) -> Vec<u32> {
        self.blocks.finish()
    }
}

/// CRC32C of each block of some bytes.
pub(crate) struct Blocks {
    done: Vec<u32>,
    block: Digest,
    filled: u64,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            done: Vec::new(),
            block: Digest::new(CrcAlgorithm::Crc32Iscsi),
            filled: 0,
        }
    }
}

impl Blocks {
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // What has not to be carried on is summed at once, which is faster.
            if self.filled == 0
                && let Some((whole, rest)) = bytes.split_at_checked(BLOCK_BYTES as usize)
            {
                self.done.push(block(whole));
                bytes = rest;
                continue;
            }
            let room = (BLOCK_BYTES - self.filled) as usize;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.block.update(now);
            self.filled += now.len() as u64;
            if self.filled == BLOCK_BYTES {
                self.end();
            }
            bytes = rest;
        }
    }

    fn end(&mut self) {
        self.done.push(self.block.finalize() as u32);
        self.block.reset();
        self.filled = 0;
    }

    pub fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.end();
        }
        self.done
    }
}

/// CRC32C of a block.
pub(crate) fn block(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_give_the_same_sums() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let wanted: Vec<u32> = bytes.chunks(BLOCK_BYTES as usize).map(block).collect();
        for piece in [1, 100, 65_535, 65_536, 65_537, 200_000] {
            let mut sums = Sums::default();
            bytes.chunks(piece).for_each(|piece| sums.update(piece));
            let whole = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &bytes);
            assert_eq!(sums.crc64nvme(), whole);
            assert_eq!(sums.into_blocks(), wanted);
        }
    }
}
