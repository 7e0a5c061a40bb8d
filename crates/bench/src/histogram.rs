//! Latencies, counted in buckets whose width grows with the value.

use std::time::Duration;

/// Buckets for every doubling: the error of a quantile is below 1/64 of its value.
const PER_DOUBLING_LOG2: u32 = 6;
const PER_DOUBLING: u64 = 1 << PER_DOUBLING_LOG2;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const BUCKETS: usize = (40 - PER_DOUBLING_LOG2 as usize + 1) << PER_DOUBLING_LOG2;

/// A histogram of nanoseconds that never drops a sample and never grows.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one sample.
    pub fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    /// Adds another histogram's samples.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// Samples counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The smallest latency, in microseconds, that at least `share` (0 to 1) of the samples do not exceed; none without samples.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let wanted = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Some(upper_bound(index) as f64 / 1e3);
            }
        }
        None
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < PER_DOUBLING {
        return nanos as usize;
    }
    let doubling = nanos.ilog2() - PER_DOUBLING_LOG2;
    let within = (nanos >> doubling) - PER_DOUBLING;
    (((u64::from(doubling) + 1) * PER_DOUBLING + within) as usize).min(BUCKETS - 1)
}

/// The largest value that falls into a bucket.
fn upper_bound(index: usize) -> u64 {
    let index = index as u64;
    if index < PER_DOUBLING {
        return index;
    }
    let doubling = index / PER_DOUBLING - 1;
    ((PER_DOUBLING + index % PER_DOUBLING + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(Histogram::default().quantile_us(0.99), None);
    }

    #[test]
    fn absurd_latencies_land_in_the_last_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.total(), 1);
        assert!(histogram.quantile_us(1.0) > Some(1e9));
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_samples(
            mut nanos in prop::collection::vec(0u64..1 << 36, 1..200),
            share in 0.0f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            let mut second = Histogram::default();
            for (index, value) in nanos.iter().enumerate() {
                let which = if index % 2 == 0 { &mut histogram } else { &mut second };
                which.record(Duration::from_nanos(*value));
            }
            histogram.merge(&second);
            nanos.sort_unstable();
            let rank = ((nanos.len() as f64 * share).ceil() as usize).clamp(1, nanos.len());
            let exact = nanos[rank - 1] as f64 / 1e3;
            let told = histogram.quantile_us(share).unwrap();
            prop_assert!(told >= exact && told <= exact * (1.0 + 1.0 / 64.0) + 1e-3, "{told} {exact}");
        }
    }
}
