//! CRC-64/NVME over memory that a peer may be writing, without a copy of it.
//!
//! Memory like that may not be borrowed, so a library that takes `&[u8]` cannot look at it: it would have to be copied first, which
//! costs more than the sum. Here it is read once, by wide loads, and folded: 256 bytes are carried along that have the same remainder
//! as all that was read, and their sum in the end is the sum of the whole. What a peer changes meanwhile changes the sum, no more.
#![expect(unsafe_code, reason = "wide loads from memory that a peer may write")]

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest, checksum};

use crate::RegionSlice;

/// Below it nothing is gained.
const FOLDED_BYTES_MIN: usize = 1024;

impl RegionSlice {
    /// The CRC-64/NVME of bytes `range`; `None` when they are out of range or a peer took their pages away.
    pub fn crc64nvme(&self, range: Range<usize>) -> Option<u64> {
        let place = self.place(range.start, range.end.checked_sub(range.start)?)?;
        let len = range.len();
        #[cfg(target_arch = "x86_64")]
        if len >= FOLDED_BYTES_MIN && self.region().is_steady() && folding::is_supported() {
            // SAFETY: the range lies inside the mapping, checked by `place`, which `self` keeps; its pages do not vanish; the
            // processor has the instructions.
            return Some(unsafe { folding::crc64nvme(place.as_ptr(), len) });
        }
        let _ = place;
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        let mut small = [0; FOLDED_BYTES_MIN];
        match small.get_mut(..len) {
            Some(small) => self
                .read(range.start, small)
                .then(|| checksum(CrcAlgorithm::Crc64Nvme, small)),
            None => self
                .slice(range)?
                .for_each_chunk(|chunk| digest.update(chunk))
                .then(|| digest.finalize()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod folding {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        __m512i, _mm_set_epi64x, _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128,
        _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
        _mm512_zextsi128_si512,
    };

    use crc_fast::{CrcAlgorithm, checksum};

    const LANE_BYTES: usize = size_of::<__m512i>();
    const LANES: usize = 4;
    /// What is carried along, and read at a time.
    const STEP_BYTES: usize = LANES * LANE_BYTES;

    /// The polynomial of CRC-64/NVME: bit 63 is the coefficient of x^0.
    const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

    /// What multiplies the first and the second word of 16 bytes when they move on by a step. The product of two words has one
    /// more factor x.
    const FIRST: u64 = power(8 * STEP_BYTES + 64 - 1);
    const SECOND: u64 = power(8 * STEP_BYTES - 1);

    /// The remainder of x^`exponent`.
    const fn power(exponent: usize) -> u64 {
        let mut remainder = 1 << 63;
        let mut at = 0;
        while at < exponent {
            let carry = remainder & 1;
            remainder >>= 1;
            if carry != 0 {
                remainder ^= POLYNOMIAL;
            }
            at += 1;
        }
        remainder
    }

    pub(super) fn is_supported() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// # Safety
    /// The `len` bytes at `from`, at least two steps, can be read, and [`is_supported`].
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn crc64nvme(from: *const u8, len: usize) -> u64 {
        debug_assert!(len >= 2 * STEP_BYTES);
        // A step, and less than another one.
        let mut rest = [0; 2 * STEP_BYTES];
        let tail = len % STEP_BYTES;
        // SAFETY: all reads are of whole steps before the tail, or of the tail; all writes are inside `rest`.
        unsafe {
            let load = |at: usize| _mm512_loadu_si512(from.add(at).cast());
            let factors =
                _mm512_broadcast_i32x4(_mm_set_epi64x(SECOND.cast_signed(), FIRST.cast_signed()));
            let mut carried: [__m512i; LANES] = std::array::from_fn(|lane| load(lane * LANE_BYTES));
            // The sum begins with all ones in the place of nothing: a summand of the first word.
            let ones = _mm512_zextsi128_si512(_mm_set_epi64x(0, -1));
            carried[0] = _mm512_xor_si512(carried[0], ones);
            let mut at = STEP_BYTES;
            while at + STEP_BYTES <= len {
                for (lane, carried) in carried.iter_mut().enumerate() {
                    let first = _mm512_clmulepi64_epi128::<0x00>(*carried, factors);
                    let second = _mm512_clmulepi64_epi128::<0x11>(*carried, factors);
                    let next = load(at + lane * LANE_BYTES);
                    // The exclusive or of all three.
                    *carried = _mm512_ternarylogic_epi64::<0x96>(first, second, next);
                }
                at += STEP_BYTES;
            }
            for (lane, carried) in carried.into_iter().enumerate() {
                _mm512_storeu_si512(rest.as_mut_ptr().add(lane * LANE_BYTES).cast(), carried);
            }
            std::ptr::copy_nonoverlapping(from.add(at), rest.as_mut_ptr().add(STEP_BYTES), tail);
        }
        // The sum of what is left begins with all ones, too: they are taken out again.
        for byte in &mut rest[..size_of::<u64>()] {
            *byte ^= 0xff;
        }
        checksum(CrcAlgorithm::Crc64Nvme, &rest[..STEP_BYTES + tail])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Region;

    proptest! {
        /// The same as the library's over a copy, wherever the bytes begin and end.
        #[test]
        fn is_that_of_a_copy(seed in any::<u64>(), start in 0usize..200, len in prop_oneof![0usize..3000, 3000usize..70_000]) {
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..start + len)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            let region = Region::memfd(start + len + 1).unwrap();
            let memory = region.slice(0..start + len).unwrap();
            prop_assert!(memory.write(0, &bytes));
            let expected = checksum(CrcAlgorithm::Crc64Nvme, &bytes[start..]);
            prop_assert_eq!(memory.crc64nvme(start..start + len), Some(expected));
        }
    }

    #[test]
    fn only_of_bytes_that_are_there() {
        let region = Region::memfd(8192).unwrap();
        let memory = region.slice(0..5000).unwrap();
        assert!(memory.crc64nvme(0..5000).is_some());
        assert_eq!(memory.crc64nvme(0..5001), None);
        assert_eq!(memory.crc64nvme(std::ops::Range { start: 5, end: 4 }), None);
        assert!(memory.write(0, b"123456789"));
        assert_eq!(memory.crc64nvme(0..9), Some(0xae8b_1486_0a79_9888));
    }
}
