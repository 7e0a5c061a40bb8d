//! MD5 (RFC 1321), alone or up to sixteen messages at a time.
//!
//! S3's ETag is the MD5 of the object, and MD5 is a chain of dependent additions: one message uses a third of a core's
//! adders. Two independent messages interleaved run almost twice as fast in total (measured: 0.67 GB/s alone, 1.23 GB/s as a
//! pair), with nothing but scalar code. Four fit the lanes of vectors that every x86-64 has (1.6 GB/s), eight those of AVX2 (as fast as
//! four), sixteen those of AVX-512 (6.5 GB/s where a single one has 0.75).

#[cfg(target_arch = "x86_64")]
mod sixteen;

use std::array;

use pulp::{Arch, NullaryFnOnce};

/// The length of a digest in bytes.
pub const DIGEST_BYTES: usize = 16;

const BLOCK_BYTES: usize = 64;

/// A message being hashed.
#[derive(Debug, Clone)]
pub struct Md5 {
    state: [u32; 4],
    /// Bytes hashed so far, the buffered ones included.
    len: u64,
    /// The last `len % 64` bytes.
    partial: [u8; BLOCK_BYTES],
}

impl Default for Md5 {
    fn default() -> Self {
        Md5 {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
            len: 0,
            partial: [0; BLOCK_BYTES],
        }
    }
}

impl Md5 {
    /// The digest of `bytes`.
    pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
        let mut md5 = Md5::default();
        md5.update(bytes);
        md5.finalize()
    }

    /// Appends `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let bytes = self.complete_block(bytes);
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            compress([&mut self.state], [block]);
        }
        self.advance(blocks.len(), rest);
    }

    /// The most messages that this processor hashes faster together than in smaller numbers: 4, 8 or 16.
    pub fn lanes() -> usize {
        match Arch::new() {
            Arch::Scalar => 4,
            #[cfg(target_arch = "x86_64")]
            Arch::V4(_) => 16,
            _ => 8,
        }
    }

    /// Appends to each message its bytes, interleaved as far as all last. Two and four are the numbers that pay, and those up to
    /// [`lanes`](Md5::lanes).
    pub fn update_all<const N: usize>(messages: [(&mut Md5, &[u8]); N]) {
        let mut messages = messages.map(|(md5, bytes)| {
            let bytes = md5.complete_block(bytes);
            (md5, bytes)
        });
        let shortest = messages.iter().map(|(_, bytes)| bytes.len()).min();
        let count = shortest.unwrap_or(0) / BLOCK_BYTES;
        let blocks = messages
            .each_ref()
            .map(|(_, bytes)| bytes.as_chunks::<BLOCK_BYTES>().0);
        let states = messages.each_mut().map(|(md5, _)| &mut md5.state);
        Together {
            states,
            blocks,
            count,
        }
        .hash();
        for (md5, bytes) in messages {
            md5.advance(count, &[]);
            md5.update(&bytes[count * BLOCK_BYTES..]);
        }
    }

    /// The digest of everything appended.
    pub fn finalize(mut self) -> [u8; DIGEST_BYTES] {
        let bits = self.len.wrapping_mul(8);
        let filled = (self.len % BLOCK_BYTES as u64) as usize;
        // RFC 1321 section 3.1: one 1 bit, then zeroes until 8 bytes are left in a block.
        let zeroes = (2 * BLOCK_BYTES - 9 - filled) % BLOCK_BYTES;
        let mut padding = [0; 2 * BLOCK_BYTES];
        padding[0] = 0x80;
        padding[1 + zeroes..9 + zeroes].copy_from_slice(&bits.to_le_bytes());
        self.update(&padding[..9 + zeroes]);
        let mut digest = [0; DIGEST_BYTES];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    /// Completes a block begun earlier, if there is one; what is left of `bytes` starts on a block or is empty.
    fn complete_block<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let filled = (self.len % BLOCK_BYTES as u64) as usize;
        if filled == 0 {
            return bytes;
        }
        let (head, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - filled));
        self.partial[filled..filled + head.len()].copy_from_slice(head);
        self.len += head.len() as u64;
        if filled + head.len() == BLOCK_BYTES {
            compress([&mut self.state], [&self.partial]);
        }
        rest
    }

    /// Counts `blocks` as hashed and keeps `rest`, less than a block, for later.
    fn advance(&mut self, blocks: usize, rest: &[u8]) {
        self.partial[..rest.len()].copy_from_slice(rest);
        self.len += (blocks * BLOCK_BYTES + rest.len()) as u64;
    }
}

/// The first `count` blocks of each message, and the states they lead on.
struct Together<'a, const N: usize> {
    states: [&'a mut [u32; 4]; N],
    blocks: [&'a [[u8; BLOCK_BYTES]]; N],
    count: usize,
}

impl<const N: usize> Together<'_, N> {
    /// By the code that this processor is fastest with.
    fn hash(self) {
        match Arch::new() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(simd) if N == sixteen::LANES => {
                let (mut states, mut blocks) = (self.states.into_iter(), self.blocks.into_iter());
                let next = "as many as there are lanes";
                simd.vectorize(sixteen::Sixteen {
                    simd,
                    states: array::from_fn(|_| states.next().expect(next)),
                    blocks: array::from_fn(|_| blocks.next().expect(next)),
                    count: self.count,
                });
            }
            // Compiled once for each width of vectors.
            arch => arch.dispatch(self),
        }
    }
}

impl<const N: usize> NullaryFnOnce for Together<'_, N> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        for at in 0..self.count {
            let states = self.states.each_mut().map(|state| &mut **state);
            compress(states, self.blocks.map(|blocks| &blocks[at]));
        }
    }
}

/// RFC 1321 section 3.4 on one block of each of `N` messages.
#[inline(always)]
fn compress<const N: usize>(states: [&mut [u32; 4]; N], blocks: [&[u8; BLOCK_BYTES]; N]) {
    let words: [[u32; N]; 16] = array::from_fn(|word| {
        array::from_fn(|lane| {
            let bytes = &blocks[lane].as_chunks::<4>().0[word];
            u32::from_le_bytes(*bytes)
        })
    });
    let [mut a, mut b, mut c, mut d]: [[u32; N]; 4] =
        array::from_fn(|word| array::from_fn(|lane| states[lane][word]));

    // One operation: a = b + ((a + f(b, c, d) + word + sine) <<< shift), in every lane.
    macro_rules! operation {
        ($f:expr, $a:ident $b:ident $c:ident $d:ident, $word:expr, $sine:expr, $shift:expr) => {
            for lane in 0..N {
                let f: fn(u32, u32, u32) -> u32 = $f;
                $a[lane] = $a[lane]
                    .wrapping_add(f($b[lane], $c[lane], $d[lane]))
                    .wrapping_add(words[$word % 16][lane])
                    .wrapping_add(SINES[$sine])
                    .rotate_left($shift)
                    .wrapping_add($b[lane]);
            }
        };
    }
    // Sixteen operations, four a turn; words are taken from `start` in strides. Unrolled by the macro: every index has to
    // be a constant, or the message words live in memory and the speed halves.
    macro_rules! round {
        ($round:expr, $f:expr, $start:expr, $stride:expr, $shifts:expr) => {
            round!(@turn 0, $round, $f, $start, $stride, $shifts);
            round!(@turn 1, $round, $f, $start, $stride, $shifts);
            round!(@turn 2, $round, $f, $start, $stride, $shifts);
            round!(@turn 3, $round, $f, $start, $stride, $shifts);
        };
        (@turn $turn:expr, $round:expr, $f:expr, $start:expr, $stride:expr, $shifts:expr) => {{
            const WORD: usize = $start + $stride * 4 * $turn;
            const SINE: usize = $round * 16 + 4 * $turn;
            const SHIFTS: [u32; 4] = $shifts;
            operation!($f, a b c d, WORD, SINE, SHIFTS[0]);
            operation!($f, d a b c, WORD + $stride, SINE + 1, SHIFTS[1]);
            operation!($f, c d a b, WORD + 2 * $stride, SINE + 2, SHIFTS[2]);
            operation!($f, b c d a, WORD + 3 * $stride, SINE + 3, SHIFTS[3]);
        }};
    }
    round!(0, |x, y, z| z ^ (x & (y ^ z)), 0, 1, [7, 12, 17, 22]);
    round!(
        1,
        |x, y, z| (x & z).wrapping_add(y & !z),
        1,
        5,
        [5, 9, 14, 20]
    );
    round!(2, |x, y, z| x ^ y ^ z, 5, 3, [4, 11, 16, 23]);
    round!(3, |x, y, z| y ^ (x | !z), 0, 7, [6, 10, 15, 21]);

    for (lane, state) in states.into_iter().enumerate() {
        for (word, added) in state.iter_mut().zip([a, b, c, d]) {
            *word = word.wrapping_add(added[lane]);
        }
    }
}

/// `floor(2^32 * abs(sin(i + 1)))`, RFC 1321 section 3.4.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

#[cfg(test)]
mod tests {
    use md5::Digest;
    use proptest::prelude::*;

    use super::*;

    fn independent(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
        md5::Md5::digest(bytes).into()
    }

    #[test]
    fn published_digest() {
        let mut md5 = Md5::default();
        md5.update(b"message digest");
        assert_eq!(
            crate::hex::encode(&md5.finalize()),
            "f96b697d7cb7938d525a2f31aaf161d0"
        );
    }

    proptest! {
        #[test]
        fn any_split_agrees_with_another_implementation(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
            let mut md5 = Md5::default();
            for part in &parts {
                md5.update(part);
            }
            prop_assert_eq!(md5.finalize(), independent(&parts.concat()));
        }

        #[test]
        fn messages_together_agree_with_each_alone(
            parts in prop::collection::vec(prop::array::uniform16(prop::collection::vec(any::<u8>(), 0..300)), 1..6),
        ) {
            let mut sixteen: [Md5; 16] = Default::default();
            let mut eight: [Md5; 8] = Default::default();
            let mut four: [Md5; 4] = Default::default();
            let mut two: [Md5; 2] = Default::default();
            for part in &parts {
                let mut md5s = sixteen.each_mut().into_iter();
                Md5::update_all(part.each_ref().map(|bytes| (md5s.next().unwrap(), &bytes[..])));
                let mut lane = 0;
                Md5::update_all(eight.each_mut().map(|md5| {
                    lane += 1;
                    (md5, &part[lane - 1][..])
                }));
                let mut lane = 0;
                Md5::update_all(four.each_mut().map(|md5| {
                    lane += 1;
                    (md5, &part[lane - 1][..])
                }));
                let [first, second] = two.each_mut();
                Md5::update_all([(first, &part[0]), (second, &part[3])]);
            }
            let whole = |lane: usize| independent(&parts.iter().flat_map(|part| part[lane].clone()).collect::<Vec<_>>());
            for (lane, md5) in sixteen.into_iter().enumerate() {
                prop_assert_eq!(md5.finalize(), whole(lane));
            }
            for (lane, md5) in eight.into_iter().enumerate() {
                prop_assert_eq!(md5.finalize(), whole(lane));
            }
            for (lane, md5) in four.into_iter().enumerate() {
                prop_assert_eq!(md5.finalize(), whole(lane));
            }
            let [first, second] = two;
            prop_assert_eq!(first.finalize(), whole(0));
            prop_assert_eq!(second.finalize(), whole(3));
        }
    }
}
