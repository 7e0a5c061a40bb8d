//! Sixteen messages at a time, one in each lane of the vectors of AVX-512.
//!
//! Written out because a compiler leaves the words where the messages have them and gathers them one by one, which costs more than the
//! hash: here sixteen blocks become sixteen vectors of words by sixty-four shuffles. What is left is the chain of operations, two
//! turns of the processor each.

use std::arch::x86_64::__m512i;
use std::array;

use pulp::x86::V4;
use pulp::{NullaryFnOnce, cast};

use super::{BLOCK_BYTES, SINES};

/// Messages.
pub(super) const LANES: usize = 16;

/// The first `count` blocks of each message, and the states they lead on.
pub(super) struct Sixteen<'a> {
    pub simd: V4,
    pub states: [&'a mut [u32; 4]; LANES],
    pub blocks: [&'a [[u8; BLOCK_BYTES]]; LANES],
    pub count: usize,
}

impl NullaryFnOnce for Sixteen<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Sixteen { simd, states, .. } = self;
        let mut state: [__m512i; 4] = array::from_fn(|word| {
            let words: [u32; LANES] = array::from_fn(|lane| states[lane][word]);
            cast(words)
        });
        for at in 0..self.count {
            let blocks = array::from_fn(|lane| cast(self.blocks[lane][at]));
            state = compress(simd, state, transposed(simd, blocks));
        }
        let words: [[u32; LANES]; 4] = state.map(cast);
        for (lane, state) in states.into_iter().enumerate() {
            *state = array::from_fn(|word| words[word][lane]);
        }
    }
}

/// Word `n` of every block in vector `n`, from block `n` in vector `n`.
#[inline(always)]
fn transposed(simd: V4, blocks: [__m512i; LANES]) -> [__m512i; LANES] {
    let avx512 = simd.avx512f;
    // Pairs of words of two blocks, then fours of four; each vector four times, a quarter of the words in each quarter.
    let (mut from, mut into) = (blocks, blocks);
    for pair in 0..LANES / 2 {
        let (low, high) = (2 * pair, 2 * pair + 1);
        into[low] = avx512._mm512_unpacklo_epi32(from[low], from[high]);
        into[high] = avx512._mm512_unpackhi_epi32(from[low], from[high]);
    }
    (from, into) = (into, from);
    for four in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (low, high) = (from[four + half], from[four + half + 2]);
            into[four + 2 * half] = avx512._mm512_unpacklo_epi64(low, high);
            into[four + 2 * half + 1] = avx512._mm512_unpackhi_epi64(low, high);
        }
    }
    (from, into) = (into, from);
    // Then quarters: of eight blocks, and of all.
    for eight in (0..LANES).step_by(8) {
        for low in eight..eight + 4 {
            into[low] = avx512._mm512_shuffle_i32x4::<0x88>(from[low], from[low + 4]);
            into[low + 4] = avx512._mm512_shuffle_i32x4::<0xdd>(from[low], from[low + 4]);
        }
    }
    (from, into) = (into, from);
    for low in 0..8 {
        into[low] = avx512._mm512_shuffle_i32x4::<0x88>(from[low], from[low + 8]);
        into[low + 8] = avx512._mm512_shuffle_i32x4::<0xdd>(from[low], from[low + 8]);
    }
    into
}

/// RFC 1321 section 3.4.
#[inline(always)]
fn compress(simd: V4, state: [__m512i; 4], words: [__m512i; LANES]) -> [__m512i; 4] {
    let avx512 = simd.avx512f;
    let [mut a, mut b, mut c, mut d] = state;

    // One operation: a = b + ((a + f(b, c, d) + word + sine) <<< shift). `f` is its table of truth.
    macro_rules! operation {
        ($f:literal, $a:ident $b:ident $c:ident $d:ident, $word:expr, $sine:expr, $shift:literal) => {
            let sine = avx512._mm512_set1_epi32(SINES[$sine].cast_signed());
            let added = avx512._mm512_add_epi32(words[$word % 16], sine);
            let added = avx512._mm512_add_epi32($a, added);
            let f = avx512._mm512_ternarylogic_epi32::<$f>($b, $c, $d);
            let turned = avx512._mm512_rol_epi32::<$shift>(avx512._mm512_add_epi32(added, f));
            $a = avx512._mm512_add_epi32(turned, $b);
        };
    }
    // Sixteen operations, four a turn; words are taken from `start` in strides.
    macro_rules! round {
        ($round:literal, $f:literal, $start:literal, $stride:literal, $shifts:tt) => {
            round!(@turn 0, $round, $f, $start, $stride, $shifts);
            round!(@turn 1, $round, $f, $start, $stride, $shifts);
            round!(@turn 2, $round, $f, $start, $stride, $shifts);
            round!(@turn 3, $round, $f, $start, $stride, $shifts);
        };
        (@turn $turn:literal, $round:literal, $f:literal, $start:literal, $stride:literal,
            [$first:literal, $second:literal, $third:literal, $fourth:literal]) => {
            operation!($f, a b c d, $start + $stride * (4 * $turn), $round * 16 + 4 * $turn, $first);
            operation!($f, d a b c, $start + $stride * (4 * $turn + 1), $round * 16 + 4 * $turn + 1, $second);
            operation!($f, c d a b, $start + $stride * (4 * $turn + 2), $round * 16 + 4 * $turn + 2, $third);
            operation!($f, b c d a, $start + $stride * (4 * $turn + 3), $round * 16 + 4 * $turn + 3, $fourth);
        };
    }
    round!(0, 0xca, 0, 1, [7, 12, 17, 22]);
    round!(1, 0xe4, 1, 5, [5, 9, 14, 20]);
    round!(2, 0x96, 5, 3, [4, 11, 16, 23]);
    round!(3, 0x39, 0, 7, [6, 10, 15, 21]);

    let [first, second, third, fourth] = state;
    [
        avx512._mm512_add_epi32(first, a),
        avx512._mm512_add_epi32(second, b),
        avx512._mm512_add_epi32(third, c),
        avx512._mm512_add_epi32(fourth, d),
    ]
}
