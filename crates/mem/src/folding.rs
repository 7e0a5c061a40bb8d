//! Remainders of many bytes, by carry-less multiplication, and copying them on the way.
//!
//! Bytes are read once, by wide loads, and folded: 256 of them are carried along that have the same remainder as all that was read, and
//! their remainder in the end is that of the whole. A copy for a device goes past the caches: its memory is not read first, as it would be to
//! write a part of a line, and what only the device will look at does not push out what this processor does.
#![expect(
    unsafe_code,
    reason = "wide loads from memory that a peer may write, and wide stores"
)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m512i, _MM_HINT_T1, _mm_prefetch, _mm_set_epi64x, _mm_sfence, _mm512_broadcast_i32x4,
    _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use crc_fast::{CrcAlgorithm, Digest};

const LANE_BYTES: usize = size_of::<__m512i>();
const LANES: usize = 4;
/// What is carried along, and read at a time.
const STEP_BYTES: usize = LANES * LANE_BYTES;
/// How far ahead memory is asked for: the processor itself stops at the end of a page. Not as far as a power of two, which a cache has
/// fewer places for beside what is looked at: 16 KiB ahead, a copy takes a tenth longer.
const AHEAD_BYTES: usize = 12 << 10;

/// Fewer bytes are not folded.
pub(crate) const FOLDED_BYTES_MIN: usize = 2 * STEP_BYTES;
/// Where a copy may begin: it is written in whole lines.
pub(crate) const ALIGNMENT: usize = LANE_BYTES;

/// What multiplies the first and the second word of 16 bytes when they move on by a step. The product of two words has one more factor
/// x.
#[derive(Clone, Copy)]
struct Factors {
    first: u64,
    second: u64,
}

const CRC64NVME: Factors = Factors::of(64, 0x9a6c_9329_ac4b_c9b5);
const CRC32C: Factors = Factors::of(32, 0x82f6_3b78 << 32);

impl Factors {
    /// Of the polynomial of that degree: bit 63 is the coefficient of x^0.
    const fn of(degree: u32, polynomial: u64) -> Factors {
        Factors {
            first: power(degree, polynomial, 8 * STEP_BYTES + 64 - 1),
            second: power(degree, polynomial, 8 * STEP_BYTES - 1),
        }
    }

    #[target_feature(enable = "avx512f")]
    fn broadcast(self) -> __m512i {
        let words = _mm_set_epi64x(self.second.cast_signed(), self.first.cast_signed());
        _mm512_broadcast_i32x4(words)
    }
}

/// The remainder of x^`exponent`.
const fn power(degree: u32, polynomial: u64, exponent: usize) -> u64 {
    let mut remainder = 1 << 63;
    let mut at = 0;
    while at < exponent {
        let carry = remainder >> (64 - degree) & 1;
        // Without x^degree, which the polynomial stands for.
        remainder = remainder >> 1 & u64::MAX << (64 - degree);
        if carry != 0 {
            remainder ^= polynomial;
        }
        at += 1;
    }
    remainder
}

pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Goes on with the CRC-64/NVME `whole`: `len` bytes at `from`.
///
/// # Safety
/// They can be read, there are [`FOLDED_BYTES_MIN`] at least, and [`is_supported`].
pub(crate) unsafe fn sum(from: *const u8, len: usize, whole: &mut Digest) {
    // SAFETY: as the caller promises.
    unsafe { fold::<NOWHERE, true, false>(from, std::ptr::null_mut(), len, Some(whole), None) }
}

/// The same, and with the CRC32C `block` if there is one, and copies the bytes to `into` past the caches: what is summed is what is copied,
/// whatever a peer does meanwhile.
///
/// # Safety
/// The bytes can be read there and written here, do not overlap, there are [`FOLDED_BYTES_MIN`] at least, `into` is a multiple of
/// [`ALIGNMENT`], and [`is_supported`].
pub(crate) unsafe fn copy(
    from: *const u8,
    into: *mut u8,
    len: usize,
    whole: &mut Digest,
    block: Option<&mut Digest>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match block {
            Some(_) => fold::<PAST_CACHES, true, true>(from, into, len, Some(whole), block),
            None => fold::<PAST_CACHES, true, false>(from, into, len, Some(whole), None),
        }
    }
}

/// Goes on with the CRC32C `block`: `len` bytes at `from`, which are copied to `into` for somebody who is about to look at them.
///
/// # Safety
/// As [`copy`], but `into` may be any place.
pub(crate) unsafe fn place(from: *const u8, into: *mut u8, len: usize, block: &mut Digest) {
    // SAFETY: as the caller promises.
    unsafe { fold::<INTO_CACHES, false, true>(from, into, len, None, Some(block)) }
}

/// What becomes of what is read.
type Copying = u8;
const NOWHERE: Copying = 0;
const INTO_CACHES: Copying = 1;
const PAST_CACHES: Copying = 2;

/// `WHOLE` and `BLOCK` say which sums are there.
///
/// # Safety
/// As [`sum`], [`place`] or [`copy`].
#[target_feature(enable = "avx512f,vpclmulqdq")]
unsafe fn fold<const COPYING: Copying, const WHOLE: bool, const BLOCK: bool>(
    from: *const u8,
    into: *mut u8,
    len: usize,
    whole_sum: Option<&mut Digest>,
    block_sum: Option<&mut Digest>,
) {
    debug_assert!(len >= FOLDED_BYTES_MIN);
    debug_assert!(COPYING != PAST_CACHES || into.addr().is_multiple_of(ALIGNMENT));
    let tail_bytes = len % STEP_BYTES;
    let mut tail = [0; STEP_BYTES];
    let mut whole = [_mm512_setzero_si512(); LANES];
    let mut block = [_mm512_setzero_si512(); LANES];
    // SAFETY: all loads and stores are of whole steps before the tail, or of the tail.
    unsafe {
        let take = |at: usize| {
            let lane = _mm512_loadu_si512(from.add(at).cast());
            match COPYING {
                PAST_CACHES => _mm512_stream_si512(into.add(at).cast(), lane),
                INTO_CACHES => _mm512_storeu_si512(into.add(at).cast(), lane),
                _ => {}
            }
            lane
        };
        for lane in 0..LANES {
            let first = take(lane * LANE_BYTES);
            (whole[lane], block[lane]) = (first, first);
        }
        if let Some(sum) = &whole_sum {
            whole[0] = after(sum, whole[0]);
        }
        if let Some(sum) = &block_sum {
            block[0] = after(sum, block[0]);
        }
        let (whole_factors, block_factors) = (CRC64NVME.broadcast(), CRC32C.broadcast());
        let mut at = STEP_BYTES;
        while at + STEP_BYTES <= len {
            for lane in 0..LANES {
                let offset = at + lane * LANE_BYTES;
                if COPYING != PAST_CACHES {
                    // A hint: it may be of memory that is not there.
                    let ahead = from.wrapping_add(offset + AHEAD_BYTES);
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                }
                let next = take(offset);
                if WHOLE {
                    whole[lane] = folded(whole[lane], whole_factors, next);
                }
                if BLOCK {
                    block[lane] = folded(block[lane], block_factors, next);
                }
            }
            at += STEP_BYTES;
        }
        std::ptr::copy_nonoverlapping(from.add(at), tail.as_mut_ptr(), tail_bytes);
        if COPYING != NOWHERE {
            std::ptr::copy_nonoverlapping(tail.as_ptr(), into.add(at), tail_bytes);
        }
        if COPYING == PAST_CACHES {
            // Stores past the caches are not ordered with those that tell of them.
            _mm_sfence();
        }
    }
    let tail = &tail[..tail_bytes];
    if let Some(sum) = whole_sum {
        *sum = end(CrcAlgorithm::Crc64Nvme, whole, tail);
    }
    if let Some(sum) = block_sum {
        *sum = end(CrcAlgorithm::Crc32Iscsi, block, tail);
    }
}

/// The first lane, where something was summed before it: a summand of its first word.
#[target_feature(enable = "avx512f")]
fn after(sum: &Digest, first: __m512i) -> __m512i {
    let state = _mm_set_epi64x(0, sum.get_state().cast_signed());
    _mm512_xor_si512(first, _mm512_zextsi128_si512(state))
}

/// What is carried along after a lane's next bytes.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn folded(carried: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(carried, factors);
    let second = _mm512_clmulepi64_epi128::<0x11>(carried, factors);
    // The exclusive or of all three.
    _mm512_ternarylogic_epi64::<0x96>(first, second, next)
}

/// The sum of what is carried along and the bytes after it.
#[target_feature(enable = "avx512f")]
fn end(algorithm: CrcAlgorithm, carried: [__m512i; LANES], tail: &[u8]) -> Digest {
    let mut bytes = [0_u8; STEP_BYTES];
    for (lane, carried) in bytes.chunks_exact_mut(LANE_BYTES).zip(carried) {
        // SAFETY: the chunk has as many bytes.
        unsafe { _mm512_storeu_si512(lane.as_mut_ptr().cast(), carried) };
    }
    // What was summed before is in it already.
    let mut sum = Digest::new_with_init_state(algorithm, 0);
    sum.update(&bytes);
    sum.update(tail);
    sum
}
