//! One result of `forebay bench exec`.

use std::fmt;

use serde::Serialize;

use crate::Point;

/// What one combination of operation, size and concurrency measured, and what that says about sending functions to the data.
#[derive(Clone, Debug, Serialize)]
pub struct ExecPoint {
    /// What every bench says.
    #[serde(flatten)]
    pub point: Point,
    /// Calls for each second of CPU time, threads of functions and of the store taken together: what one core does.
    pub calls_per_cpu_s: f64,
    /// Bytes that came to the caller, for each byte of the object.
    pub moved_share: f64,
    /// Throughput beside that of `native` of the same size and concurrency; left out when that was not measured before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_native: Option<f64>,
}

impl fmt::Display for ExecPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExecPoint {
            point,
            calls_per_cpu_s,
            moved_share,
            of_native,
        } = self;
        write!(
            f,
            "{point}, {calls_per_cpu_s:.0} calls/CPU s, {:.4} % moved",
            moved_share * 100.0
        )?;
        match of_native {
            Some(of_native) => write!(f, ", {of_native:.2} of native"),
            None => Ok(()),
        }
    }
}
