//! The optimum: what is needed last leaves, or never comes in (Belady, "A study of replacement algorithms", 1966).

use std::collections::{BTreeSet, HashMap};

/// Hits of a cache of `room` blocks that knows the future.
pub(super) fn hits(asked: &[u64], room: u64) -> u64 {
    const NEVER: usize = usize::MAX;
    let mut next = vec![NEVER; asked.len()];
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for (at, number) in asked.iter().enumerate().rev() {
        if let Some(later) = seen.insert(*number, at) {
            next[at] = later;
        }
    }
    // Held blocks by when they are needed next; each such moment belongs to one block.
    let mut held: BTreeSet<usize> = BTreeSet::new();
    let mut hits = 0;
    for (at, needed) in next.into_iter().enumerate() {
        hits += u64::from(held.remove(&at));
        if needed == NEVER {
            continue;
        }
        held.insert(needed);
        if held.len() as u64 > room {
            held.pop_last();
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_future() {
        // The example of many textbooks: 3 frames, 20 references, 9 faults; the 4 that is asked for once is one of them there, and takes a
        // frame that here goes on being of use.
        let asked = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(hits(&asked, 3), 12);
        assert_eq!(hits(&asked, 100), 14);
        assert_eq!(hits(&asked, 0), 0);
    }
}
