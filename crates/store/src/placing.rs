//! Bytes into memory that a peer may also touch, summed on their way.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{CopySite, RegionSlice, count_copy, fetch_ahead};

use crate::Result;
use crate::store::too_short;

/// What is summed before it is copied, which the first cache keeps for the second look. The next step is on its way meanwhile: a seventh
/// faster than steps of 8 KiB that are waited for.
const STEP_BYTES: usize = 4 << 10;
/// The same where each copy is a call of the kernel.
const CALL_BYTES: usize = 32 << 10;

/// Places blocks of a value one after the other, and sums what it looks at while it is close to the processor.
///
/// Whether a block is what it should be is known when its bytes are in the target: whoever places answers with an error then, or
/// places it again.
#[derive(Debug)]
pub struct Placing<'t> {
    target: &'t RegionSlice,
    at: usize,
    step: usize,
    block: Digest,
}

impl<'t> Placing<'t> {
    /// Into `target`, from offset `at` on.
    pub fn new(target: &'t RegionSlice, at: usize) -> Placing<'t> {
        Placing {
            target,
            at,
            step: match target.region().is_steady() {
                true => STEP_BYTES,
                false => CALL_BYTES,
            },
            block: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Sums `bytes`, and copies those of `wanted`; counts what it copied.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the target is too short, or its owner took its pages away.
    pub fn put(&mut self, bytes: &[u8], wanted: Range<usize>) -> Result<()> {
        let mut steps = bytes.chunks(self.step).peekable();
        let mut end = 0;
        while let Some(step) = steps.next() {
            let begin = end;
            end += step.len();
            self.block.update(step);
            let from = wanted.start.max(begin);
            let to = wanted.end.min(end);
            if from < to {
                if let Some(next) = steps.peek() {
                    fetch_ahead(next);
                }
                if !self.target.write(self.at, &bytes[from..to]) {
                    return Err(too_short());
                }
                count_copy(CopySite::RetrieveInto, to - from);
                self.at += to - from;
            }
        }
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
