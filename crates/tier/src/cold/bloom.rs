//! A set in few bits (Bloom): all that is in it is found, and by chance now and then what is not.

use std::hash::{BuildHasher, Hash, RandomState};

/// With so many bits for each member one in seventy strangers is taken for a member, with two it is four in ten.
const BITS_EACH: u64 = 16;
const BITS_MIN: u64 = 1 << 19;
/// 32 MiB.
const BITS_MAX: u64 = 1 << 28;

/// A set of at most 32 MiB. Who is mistaken for a member in one is not in the next.
pub(super) struct Bloom {
    words: Vec<u64>,
    random: RandomState,
}

impl Bloom {
    /// A set for about so many.
    pub fn for_members(members: u64) -> Bloom {
        let bits = members.saturating_mul(BITS_EACH).clamp(BITS_MIN, BITS_MAX);
        Bloom {
            words: vec![0; bits.div_ceil(64) as usize],
            random: RandomState::new(),
        }
    }

    /// Two bits: word and mask.
    fn bits(&self, member: impl Hash) -> [(usize, u64); 2] {
        let hash = self.random.hash_one(member);
        [hash >> 32, hash & 0xffff_ffff].map(|half| {
            let bit = (half * (self.words.len() as u64 * 64)) >> 32;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    pub fn insert(&mut self, member: impl Hash) {
        for (word, mask) in self.bits(member) {
            self.words[word] |= mask;
        }
    }

    pub fn may_have(&self, member: impl Hash) -> bool {
        let is_set = |(word, mask): &(usize, u64)| self.words[*word] & mask != 0;
        self.bits(member).iter().all(is_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_and_few_strangers() {
        for (expected, members, bytes, mistaken) in [
            (100, 100, 64 << 10, 10),
            (1 << 16, 1 << 16, 128 << 10, 300),
            (u64::MAX, 1 << 16, 32 << 20, 10),
        ] {
            let mut set = Bloom::for_members(expected);
            assert_eq!(set.words.len() * 8, bytes);
            (0..members).for_each(|member| set.insert(member));
            assert!((0..members).all(|member| set.may_have(member)));
            let strangers = members..members + 10_000;
            let taken = strangers.filter(|stranger| set.may_have(stranger)).count();
            assert!(taken < mistaken, "{taken} of {members}");
        }
    }
}
