//! What one measurement told.

use serde::Deserialize;

/// What one measurement told, in the units of the documented JSON object; other programs fill what they know.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Sample {
    /// Operations a second.
    pub ops_per_s: f64,
    /// 10^6 bytes of payload a second.
    pub mb_per_s: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// The client's CPU seconds for 10^9 bytes.
    pub client_cpu_s_per_gb: Option<f64>,
    /// The server's CPU seconds for 10^9 bytes.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Operations that failed; one, if nothing could be measured.
    pub errors: u64,
    /// Why nothing could be measured.
    #[serde(skip)]
    pub failure: Option<String>,
    /// Payload on its way out that the server copied in memory meanwhile, warm-up included, as it says itself.
    #[serde(default)]
    pub copied_bytes: Option<f64>,
    /// Calls of functions for each second of CPU time.
    #[serde(default)]
    pub calls_per_cpu_s: Option<f64>,
    /// Bytes that came to the caller of a function, for each byte of its object.
    #[serde(default)]
    pub moved_share: Option<f64>,
}

impl Sample {
    /// Whether its numbers were measured: else they are zeroes that mean nothing.
    pub fn is_measured(&self) -> bool {
        self.failure.is_none()
    }

    /// The server's CPU time for one operation, in microseconds.
    pub fn server_cpu_us_per_op(&self) -> Option<f64> {
        let seconds_per_s = self.server_cpu_s_per_gb? * self.mb_per_s / 1e3;
        (self.ops_per_s > 0.0).then(|| seconds_per_s * 1e6 / self.ops_per_s)
    }

    /// What is compared: operations where latency is told, bytes where only those are.
    pub fn rate(&self) -> f64 {
        if self.ops_per_s > 0.0 {
            self.ops_per_s
        } else {
            self.mb_per_s
        }
    }
}

/// The middle one; of an even number the lower of the two.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(1.0));
    }

    #[test]
    fn cost_of_an_operation() {
        let sample = Sample {
            ops_per_s: 10_000.0,
            mb_per_s: 40.96,
            server_cpu_s_per_gb: Some(5.0),
            ..Sample::default()
        };
        let cost = sample.server_cpu_us_per_op().unwrap_or_default();
        assert!((cost - 20.48).abs() < 1e-9, "{cost}");
    }
}
