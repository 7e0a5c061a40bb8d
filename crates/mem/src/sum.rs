//! Sums of memory that a peer may be writing, without a copy of it; and of what is copied to or from it, on the way.
//!
//! Memory like that may not be borrowed, so a library that takes `&[u8]` cannot look at it: it would have to be copied first, which
//! costs more than the sum. What a peer changes meanwhile changes the sum, no more.
#![expect(unsafe_code, reason = "memory that a peer may write")]

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

use crate::RegionSlice;
use crate::ahead::fetch_ahead;
#[cfg(target_arch = "x86_64")]
use crate::folding;

/// So few are copied to be looked at.
const SMALL_BYTES: usize = 1024;
/// Fewer bytes are copied into the caches, where they will soon be looked for.
const STREAMED_BYTES_MIN: usize = 32 << 10;
/// What is summed and copied at a time else: the first cache keeps it for the second look. The next step is on its way meanwhile.
const STEP_BYTES: usize = 4 << 10;
/// The same where each copy is a call of the kernel.
const CALL_BYTES: usize = 32 << 10;

impl RegionSlice {
    /// The CRC-64/NVME of bytes `range`; `None` when they are out of range or a peer took their pages away.
    pub fn crc64nvme(&self, range: Range<usize>) -> Option<u64> {
        let len = range.end.checked_sub(range.start)?;
        let place = self.place(range.start, len)?;
        let mut sum = Digest::new(CrcAlgorithm::Crc64Nvme);
        #[cfg(target_arch = "x86_64")]
        if self.is_folded(len) {
            // SAFETY: the range lies inside the mapping, checked by `place`, which `self` keeps; its pages do not vanish; the
            // processor has the instructions.
            unsafe { folding::sum(place.as_ptr(), len, &mut sum) };
            return Some(sum.finalize());
        }
        let _ = place;
        let mut small = [0; SMALL_BYTES];
        let whole = match small.get_mut(..len) {
            Some(small) => self.read(range.start, small).then(|| sum.update(small)),
            None => self
                .slice(range)?
                .for_each_chunk(|chunk| sum.update(chunk))
                .then_some(()),
        };
        whole.map(|()| sum.finalize())
    }

    /// Copies bytes from `offset` on into `into`, as [`RegionSlice::read`] does, and goes on with their sums: `whole` is one of CRC-64/NVME,
    /// `block` of CRC32C. After false the sums are of no use.
    pub fn read_summed(
        &self,
        offset: usize,
        into: &mut [u8],
        whole: &mut Digest,
        mut block: Option<&mut Digest>,
    ) -> bool {
        let Some(place) = self.place(offset, into.len()) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        if self.is_streamed(into.as_ptr(), into.len()) {
            let (from, len) = (place.as_ptr(), into.len());
            // SAFETY: the range lies inside the mapping, checked by `place`; its pages do not vanish; `into` is ours alone, so they do not
            // overlap; the rest says `is_streamed`.
            unsafe { folding::copy(from, into.as_mut_ptr(), len, whole, block) };
            return true;
        }
        let _ = place;
        let mut at = offset;
        for step in into.chunks_mut(self.step_bytes()) {
            if !self.read(at, step) {
                return false;
            }
            whole.update(step);
            if let Some(block) = &mut block {
                block.update(step);
            }
            at += step.len();
        }
        true
    }

    /// Copies `from` to `offset` and on, as [`RegionSlice::write`] does, and goes on with the CRC32C `block`. After false the sum is of no use.
    pub fn write_summed(&self, offset: usize, from: &[u8], block: &mut Digest) -> bool {
        let Some(place) = self.place_to_write(offset, from.len()) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        if self.is_folded(from.len()) {
            // SAFETY: the range lies inside the mapping, checked by `place_to_write`; its pages do not vanish; no Rust reference is to
            // bytes of it, so they do not overlap with `from`; the rest says `is_folded`.
            unsafe { folding::place(from.as_ptr(), place.as_ptr(), from.len(), block) };
            return true;
        }
        let _ = place;
        let mut at = offset;
        let mut steps = from.chunks(self.step_bytes()).peekable();
        while let Some(step) = steps.next() {
            if let Some(next) = steps.peek() {
                fetch_ahead(next);
            }
            block.update(step);
            if !self.write(at, step) {
                return false;
            }
            at += step.len();
        }
        true
    }

    fn step_bytes(&self) -> usize {
        match self.region().is_steady() {
            true => STEP_BYTES,
            false => CALL_BYTES,
        }
    }

    /// Whether so many bytes of it are folded.
    #[cfg(target_arch = "x86_64")]
    fn is_folded(&self, len: usize) -> bool {
        len >= folding::FOLDED_BYTES_MIN && self.region().is_steady() && folding::is_supported()
    }

    /// Whether a copy of so many bytes to `into` is folded past the caches.
    #[cfg(target_arch = "x86_64")]
    fn is_streamed(&self, into: *const u8, len: usize) -> bool {
        len >= STREAMED_BYTES_MIN
            && into.addr().is_multiple_of(folding::ALIGNMENT)
            && self.is_folded(len)
    }
}

#[cfg(test)]
mod tests {
    use crc_fast::checksum;
    use proptest::prelude::*;

    use super::*;
    use crate::Region;

    fn random(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..3000, 3000usize..70_000, Just(STREAMED_BYTES_MIN)]
    }

    /// Memory whose pages stay, or may vanish.
    fn shared(steady: bool, len: usize) -> RegionSlice {
        let region = if steady {
            Region::memfd(len)
        } else {
            let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len as u64).unwrap();
            Region::from_fd(file)
        };
        region.unwrap().slice(0..len).unwrap()
    }

    fn sums() -> (Digest, Digest) {
        let algorithms = [CrcAlgorithm::Crc64Nvme, CrcAlgorithm::Crc32Iscsi];
        algorithms.map(Digest::new).into()
    }

    proptest! {
        /// The same as the library's over a copy, wherever the bytes begin and end.
        #[test]
        fn is_that_of_a_copy(seed in any::<u64>(), start in 0usize..200, len in lengths()) {
            let bytes = random(seed, start + len);
            let region = Region::memfd(start + len + 1).unwrap();
            let memory = region.slice(0..start + len).unwrap();
            prop_assert!(memory.write(0, &bytes));
            let expected = checksum(CrcAlgorithm::Crc64Nvme, &bytes[start..]);
            prop_assert_eq!(memory.crc64nvme(start..start + len), Some(expected));
        }

        /// Going on with sums while bytes are copied gives the same bytes and the same sums as a look at them afterwards, on every way:
        /// past the caches and through them.
        #[test]
        fn are_those_of_what_is_copied(
            seed in any::<u64>(),
            steady in any::<bool>(),
            (from, to) in (0usize..200, prop_oneof![Just(0usize), 1usize..200]),
            lens in proptest::collection::vec(lengths(), 1..4),
            with_block in any::<bool>(),
        ) {
            let all: usize = lens.iter().sum();
            let bytes = random(seed, from + all);
            let source = shared(steady, from + all + 1);
            prop_assert!(source.write(0, &bytes));
            let pool = crate::Pool::new(1 << 20);
            let (mut whole, mut block) = sums();
            let mut at = from;
            for len in lens {
                let mut buf = pool.try_take(to + len + 1).unwrap();
                buf.set_len(to + len + 1);
                buf.fill(7);
                let block = with_block.then_some(&mut block);
                prop_assert!(source.read_summed(at, &mut buf[to..to + len], &mut whole, block));
                prop_assert_eq!(&buf[to..to + len], &bytes[at..at + len]);
                prop_assert!(buf[..to].iter().all(|byte| *byte == 7) && buf[to + len] == 7);
                at += len;
            }
            let bytes = &bytes[from..];
            prop_assert_eq!(whole.finalize(), checksum(CrcAlgorithm::Crc64Nvme, bytes));
            let expected = if with_block { bytes } else { &[] };
            prop_assert_eq!(block.finalize(), checksum(CrcAlgorithm::Crc32Iscsi, expected));
        }

        /// The same in the other direction.
        #[test]
        fn is_that_of_what_is_placed(
            seed in any::<u64>(),
            steady in any::<bool>(),
            (from, to) in (0usize..200, prop_oneof![Just(0usize), 1usize..200]),
            len in lengths(),
        ) {
            let bytes = random(seed, from + len);
            let target = shared(steady, to + len + 1);
            let (_, mut block) = sums();
            prop_assert!(target.write_summed(to, &bytes[from..], &mut block));
            prop_assert_eq!(block.finalize(), checksum(CrcAlgorithm::Crc32Iscsi, &bytes[from..]));
            let mut placed = vec![7; to + len + 1];
            prop_assert!(target.read(0, &mut placed));
            prop_assert_eq!(&placed[to..to + len], &bytes[from..]);
            prop_assert!(placed[..to].iter().all(|byte| *byte == 0) && placed[to + len] == 0);
        }
    }

    #[test]
    fn only_of_bytes_that_are_there() {
        let region = Region::memfd(8192).unwrap();
        let memory = region.slice(0..5000).unwrap();
        assert!(memory.crc64nvme(0..5000).is_some());
        assert_eq!(memory.crc64nvme(0..5001), None);
        assert_eq!(memory.crc64nvme(Range { start: 5, end: 4 }), None);
        assert!(memory.write(0, b"123456789"));
        assert_eq!(memory.crc64nvme(0..9), Some(0xae8b_1486_0a79_9888));
        let (mut whole, mut block) = sums();
        assert!(!memory.read_summed(1, &mut [0; 5000], &mut whole, None));
        assert!(!memory.write_summed(1, &[0; 5000], &mut block));
        assert!(!memory.read_summed(usize::MAX, &mut [0; 2], &mut whole, Some(&mut block)));
    }
}
