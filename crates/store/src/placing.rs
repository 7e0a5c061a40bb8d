//! Bytes into memory that a peer may also touch, summed on their way.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{CopySite, RegionSlice, count_copy};

use crate::Result;
use crate::store::too_short;

/// Places blocks of a value one after the other, and sums what it looks at in the same pass.
///
/// Whether a block is what it should be is known when its bytes are in the target: whoever places answers with an error then, or
/// places it again.
#[derive(Debug)]
pub struct Placing<'t> {
    target: &'t RegionSlice,
    at: usize,
    block: Digest,
}

impl<'t> Placing<'t> {
    /// Into `target`, from offset `at` on.
    pub fn new(target: &'t RegionSlice, at: usize) -> Placing<'t> {
        Placing {
            target,
            at,
            block: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Sums `bytes`, and copies those of `wanted`; counts what it copied.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the target is too short, or its owner took its pages away.
    pub fn put(&mut self, bytes: &[u8], wanted: Range<usize>) -> Result<()> {
        let from = wanted.start.min(bytes.len());
        let to = wanted.end.clamp(from, bytes.len());
        let (before, rest) = bytes.split_at(from);
        let (wanted, after) = rest.split_at(to - from);
        self.block.update(before);
        if !self.target.write_summed(self.at, wanted, &mut self.block) {
            return Err(too_short());
        }
        count_copy(CopySite::RetrieveInto, wanted.len());
        self.at += wanted.len();
        self.block.update(after);
        Ok(())
    }

    /// The CRC32C of what was put since the last block ended. Another one begins.
    pub fn end_block(&mut self) -> u32 {
        let sum = self.block.finalize() as u32;
        self.block.reset();
        sum
    }
}

#[cfg(test)]
mod tests {
    use forebay_mem::Region;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn places_what_is_wanted_and_sums_all() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        let region = Region::anonymous(bytes.len()).expect("memory");
        let target = region.slice(0..bytes.len()).expect("inside");
        let mut placing = Placing::new(&target, 3);
        let (first, second) = bytes.split_at(40_000);
        placing.put(first, 39_999..40_000).expect("room");
        placing.put(second, 0..20_001).expect("room");
        assert_eq!(placing.end_block(), crc_fast::crc32_iscsi(&bytes));
        placing.put(second, 7..7).expect("room");
        assert_eq!(placing.end_block(), crc_fast::crc32_iscsi(second));
        let mut placed = vec![0; 20_006];
        assert!(target.read(0, &mut placed));
        assert!(placed[3..20_005] == bytes[39_999..60_001]);
        assert!(placed[..3] == [0; 3] && placed[20_005] == 0);
        let full = placing.put(&bytes, 0..bytes.len()).expect_err("no room");
        assert_eq!(full.kind(), ErrorKind::Invalid);
    }
}
