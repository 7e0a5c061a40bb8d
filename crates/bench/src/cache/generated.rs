//! A trace made up after what is published of Mooncake's conversation trace: 12,031 requests of some 24 blocks, three quarters of
//! all blocks asked for once, little more than a third of requests for blocks ever answerable by a cache.
//!
//! People talk in turns: each turn sends all that was said before and something new, and comes some time after the last one.

use crate::payload::Random;

const REQUESTS: usize = 12_031;
/// Blocks of a first turn, and of what a later one adds: from 1 to twice as many.
const FIRST_BLOCKS: u64 = 19;
const MORE_BLOCKS: u64 = 5;
/// Of a hundred first turns, and of a hundred later ones, so many are followed by another.
const GOES_ON: u64 = 20;
const STILL_GOES_ON: u64 = 60;
/// Requests of others until it comes: at least so many, and so many more on average.
const GAP_LEAST: u64 = 100;
const GAP_MORE: f64 = 450.0;

/// Its blocks in the order in which they are asked for.
pub(super) fn conversation() -> Vec<u64> {
    let mut random = Random::new(2025);
    let mut fresh = 1_u64;
    let mut waiting: Vec<Vec<Vec<u64>>> = vec![Vec::new(); REQUESTS];
    let mut asked = Vec::new();
    let mut grow = |prompt: &mut Vec<u64>, mean: u64, random: &mut Random| {
        for _ in 0..random.below(2 * mean) + 1 {
            prompt.push(fresh);
            fresh += 1;
        }
    };
    for now in 0..REQUESTS {
        let first = waiting[now].is_empty();
        let mut prompt = match waiting[now].pop() {
            Some(mut prompt) => {
                grow(&mut prompt, MORE_BLOCKS, &mut random);
                prompt
            }
            // All of one service's prompts begin alike.
            None => {
                let mut prompt = vec![0];
                grow(&mut prompt, FIRST_BLOCKS, &mut random);
                prompt
            }
        };
        // Who came at the same moment comes next.
        let late = std::mem::take(&mut waiting[now]);
        if let Some(next) = waiting.get_mut(now + 1) {
            next.extend(late);
        }
        asked.extend(&prompt);
        let even = (random.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
        let gap = (GAP_LEAST + (-even.ln() * GAP_MORE) as u64) as usize;
        let goes_on = if first { GOES_ON } else { STILL_GOES_ON };
        if random.below(100) < goes_on
            && let Some(later) = waiting.get_mut(now + gap)
        {
            prompt.shrink_to_fit();
            later.push(prompt);
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn is_like_what_is_published() {
        let asked = conversation();
        let mut times: HashMap<u64, u64> = HashMap::new();
        for number in &asked {
            *times.entry(*number).or_default() += 1;
        }
        let once = times.values().filter(|times| **times == 1).count() as f64;
        let ceiling = 1.0 - times.len() as f64 / asked.len() as f64;
        let mean = asked.len() as f64 / REQUESTS as f64;
        assert!((20.0..32.0).contains(&mean), "{mean} blocks a request");
        assert!((0.30..0.45).contains(&ceiling), "{ceiling}");
        assert!(
            (0.65..0.85).contains(&(once / times.len() as f64)),
            "{once}"
        );
    }
}
