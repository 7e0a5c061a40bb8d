//! Which sequence numbers of a session were used: a sliding window (docs/token.md section 7.4).

/// How far behind the newest number an unused one is still accepted.
pub const WINDOW: u64 = 1024;

const WORDS: usize = (WINDOW / 64) as usize;

/// The newest number seen and which of the [`WINDOW`] numbers up to it were used.
#[derive(Debug, Default)]
pub(super) struct Window {
    newest: u64,
    /// Bit `n % WINDOW` is set when `n`, one of the last `WINDOW` numbers, was used.
    used: [u64; WORDS],
}

impl Window {
    /// Takes `sequence`; false when it was taken before, is zero, or is too old to tell.
    pub(super) fn take(&mut self, sequence: u64) -> bool {
        if sequence == 0 {
            return false;
        }
        if sequence > self.newest {
            if sequence - self.newest >= WINDOW {
                self.used = [0; WORDS];
            } else {
                (self.newest + 1..=sequence).for_each(|between| self.clear(between));
            }
            self.newest = sequence;
        } else if self.newest - sequence >= WINDOW {
            return false;
        }
        let (word, bit) = place(sequence);
        let fresh = self.used[word] & bit == 0;
        self.used[word] |= bit;
        fresh
    }

    fn clear(&mut self, sequence: u64) {
        let (word, bit) = place(sequence);
        self.used[word] &= !bit;
    }
}

fn place(sequence: u64) -> (usize, u64) {
    let at = sequence % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::{WINDOW, Window};

    proptest! {
        /// Every number is accepted at most once, and an unused one unless it is too old.
        #[test]
        fn against_a_set(steps in prop::collection::vec((0u64..3, 0u64..3000), 1..400)) {
            let (mut window, mut seen, mut newest) = (Window::default(), HashSet::new(), 0u64);
            for (way, by) in steps {
                let sequence = match way {
                    0 => newest.saturating_sub(by),
                    1 => newest + by % 70,
                    _ => newest + by,
                };
                let old = newest >= sequence && newest - sequence >= WINDOW;
                let expected = sequence != 0 && !old && !seen.contains(&sequence);
                prop_assert_eq!(window.take(sequence), expected, "{} after {}", sequence, newest);
                if expected {
                    seen.insert(sequence);
                    newest = newest.max(sequence);
                }
            }
        }
    }

    #[test]
    fn the_largest_number_does_not_overflow() {
        let mut window = Window::default();
        assert!(window.take(u64::MAX));
        assert!(!window.take(u64::MAX));
        assert!(window.take(u64::MAX - WINDOW + 1));
        assert!(!window.take(u64::MAX - WINDOW));
    }
}
