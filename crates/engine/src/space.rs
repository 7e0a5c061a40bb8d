//! The map of space as it is stored: which granules are taken, a chunk at a time.

use bytes::Bytes;

use crate::codec::Malformed;
use crate::extent::Run;

/// Granules of one chunk: 128 MiB of space.
pub(crate) const CHUNK_GRANULES: u64 = 32 * 1024;
const WORDS: usize = CHUNK_GRANULES as usize / 64;

/// The parts of a run: the number of a chunk, the first granule in it, and how many.
pub(crate) fn by_chunks(run: Run) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut at = run.start;
    std::iter::from_fn(move || {
        let (number, within) = (at / CHUNK_GRANULES, at % CHUNK_GRANULES);
        let count = (CHUNK_GRANULES - within).min(run.end() - at);
        at += count;
        (count > 0).then_some((number, within, count))
    })
}

/// One chunk of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    words: Vec<u64>,
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk {
            words: vec![0; WORDS],
        }
    }
}

impl Chunk {
    /// Marks granules `at..at + count` of the chunk.
    pub fn set(&mut self, at: u64, count: u64, taken: bool) {
        let mut bit = at;
        let end = (at + count).min(CHUNK_GRANULES);
        while bit < end {
            let word = (bit / 64) as usize;
            let low = bit % 64;
            let count = (64 - low).min(end - bit);
            let mask = (u64::MAX >> (64 - count)) << low;
            if taken {
                self.words[word] |= mask;
            } else {
                self.words[word] &= !mask;
            }
            bit += count;
        }
    }

    /// Whether any of granules `at..at + count` is taken.
    pub fn has_some(&self, at: u64, count: u64) -> bool {
        self.distance(at, false) < count
    }

    /// The taken runs: first granule in the chunk and count.
    pub fn taken(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            at += self.distance(at, false);
            let count = self.distance(at, true);
            let start = at;
            at += count;
            (count > 0).then_some((start, count))
        })
    }

    /// How many granules from `at` on are `taken` without interruption.
    fn distance(&self, at: u64, taken: bool) -> u64 {
        let mut bit = at;
        while bit < CHUNK_GRANULES {
            let word = self.words[(bit / 64) as usize];
            let word = if taken { !word } else { word } >> (bit % 64);
            if word != 0 {
                return bit + u64::from(word.trailing_zeros()) - at;
            }
            bit = (bit / 64 + 1) * 64;
        }
        CHUNK_GRANULES - at
    }

    pub fn encode(&self) -> Bytes {
        if self.words.iter().all(|word| *word == 0) {
            return Bytes::from_static(&[0]);
        }
        if self.words.iter().all(|word| *word == u64::MAX) {
            return Bytes::from_static(&[1]);
        }
        let bytes: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.into()
    }

    pub fn decode(encoded: &[u8]) -> Result<Chunk, Malformed> {
        let words = match encoded {
            [0] => vec![0; WORDS],
            [1] => vec![u64::MAX; WORDS],
            _ if encoded.len() == WORDS * 8 => {
                let (words, _) = encoded.as_chunks::<8>();
                words.iter().map(|word| u64::from_le_bytes(*word)).collect()
            }
            _ => return Err(Malformed),
        };
        Ok(Chunk { words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunk_agrees_with_single_bits(changes in proptest::collection::vec((0..CHUNK_GRANULES, 1_u64..5000, any::<bool>()), 0..20)) {
            let mut chunk = Chunk::default();
            let mut bits = vec![false; CHUNK_GRANULES as usize];
            for (at, count, taken) in changes {
                chunk.set(at, count, taken);
                let end = (at + count).min(CHUNK_GRANULES) as usize;
                bits[at as usize..end].fill(taken);
            }
            let mut found = vec![false; CHUNK_GRANULES as usize];
            for (start, count) in Chunk::decode(&chunk.encode()).unwrap().taken() {
                found[start as usize..(start + count) as usize].fill(true);
            }
            prop_assert!(found == bits);
        }
    }
}
