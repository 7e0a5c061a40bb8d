//! How often the cache has what is asked for, on a trace: ours beside simulations of the policies that were published.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::bench::figures::Check;
use crate::bench::measure::Bench;
use crate::tool::output;

/// What is asked beside the better of S3-FIFO and W-TinyLFU.
const OF_THE_BETTER: f64 = 0.95;
/// What is asked beyond LRU, in points of a hundred.
const BEYOND_LRU: f64 = 5.0;

/// Hit ratios at one size of the cache, as `forebay bench cache --json` tells them.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Hits {
    /// Of a block, in bytes.
    pub block: u64,
    /// Of the cache, in bytes.
    pub cache: u64,
    /// Ours.
    pub tier: f64,
    /// S3-FIFO as published.
    pub s3_fifo: f64,
    /// W-TinyLFU as published.
    pub w_tinylfu: f64,
    /// The least recently used leaves.
    pub lru: f64,
    /// Whoever knows the future.
    pub optimum: f64,
    /// A cache that holds everything.
    pub ceiling: f64,
}

impl Hits {
    /// Blocks that fit.
    pub fn blocks(&self) -> u64 {
        self.cache / self.block.max(1)
    }

    /// How it came out.
    pub fn checks(&self) -> [Check; 2] {
        let ratio = self.tier / self.s3_fifo.max(self.w_tinylfu);
        let points = (self.tier - self.lru) * 100.0;
        let blocks = self.blocks();
        let check = |told: String, met: bool| Check {
            text: format!(
                "{blocks} blocks: {told}: {}",
                if met { "met" } else { "missed" }
            ),
            met,
        };
        [
            check(
                format!(
                    "{ratio:.2} times the better of S3-FIFO and W-TinyLFU; asked at least {OF_THE_BETTER}"
                ),
                ratio >= OF_THE_BETTER,
            ),
            check(
                format!("{points:.1} points beyond LRU; asked at least {BEYOND_LRU}"),
                points >= BEYOND_LRU,
            ),
        ]
    }
}

/// The command, as one would type it.
pub fn arguments(trace: Option<&Path>) -> Vec<String> {
    let mut arguments = vec!["cache".to_owned()];
    if let Some(trace) = trace {
        arguments.extend(["--trace".to_owned(), trace.display().to_string()]);
    }
    arguments
}

impl Bench {
    /// Replays the trace, or the made-up one where there is none.
    pub fn hits(&self, trace: Option<&Path>) -> Result<Vec<Hits>> {
        let mut program = self.command(&self.binary);
        let text = output(program.arg("bench").args(arguments(trace)).arg("--json"))?;
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("not ratios: {line}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_are_told_at_each_size() {
        let hits = Hits {
            block: 4096,
            cache: 4096 * 1000,
            tier: 0.20,
            s3_fifo: 0.18,
            w_tinylfu: 0.22,
            lru: 0.14,
            ..Hits::default()
        };
        let [better, lru] = hits.checks();
        assert!(!better.met && better.text.starts_with("1000 blocks: 0.91 times"));
        assert!(lru.met && lru.text.contains("6.0 points"), "{}", lru.text);
    }
}
