//! One result.

use std::fmt;

use serde::Serialize;

use crate::Size;

/// What one combination of operation, size and concurrency measured. Serialises as the documented JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Which generator: `s3`, `direct`, `kv`, `nvme`, `engine`, `rados`, `exec`, `files`, `memory`.
    pub bench: &'static str,
    /// The operation.
    pub op: &'static str,
    /// Bytes of a value.
    pub size: u64,
    /// Operations in flight.
    pub concurrency: usize,
    /// The way the bytes took: `http`, `shm`, `iwarp`, `nvme-tcp`, `vfio-user`, `io_uring`, `threads`,
    /// `librados`, `file`, `memory`; of functions what runs them: `wasmi`, `wasmtime`.
    pub path: &'static str,
    /// Length of the measured window in seconds.
    pub seconds: f64,
    /// Operations finished without error in each second; of a batch each value or key counts.
    pub ops_per_s: f64,
    /// Payload of those operations in 10^6 bytes a second.
    pub mb_per_s: f64,
    /// Median latency in microseconds; like the others none when no operation ended well.
    pub p50_us: Option<f64>,
    /// 99th percentile in microseconds.
    pub p99_us: Option<f64>,
    /// 99.9th percentile in microseconds.
    pub p999_us: Option<f64>,
    /// CPU seconds of the generating threads for 10^9 bytes of payload (for an engine on a namespace: of this process, the engine among
    /// them); none when no payload moved.
    pub client_cpu_s_per_gb: Option<f64>,
    /// CPU seconds of the server's process for 10^9 bytes of payload (for the engine: of this process); none when it is not known.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Payload that the private server copied in memory meanwhile, warm-up included; left out when it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied_bytes: Option<u64>,
    /// Operations that failed within the window.
    pub errors: u64,
    /// What the first failure was; for people, not part of the JSON object.
    #[serde(skip)]
    pub first_error: Option<String>,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} x{}: {:.0} ops/s, {:.1} MB/s",
            self.bench,
            self.op,
            Size(self.size),
            self.concurrency,
            self.ops_per_s,
            self.mb_per_s,
        )?;
        for (name, latency) in [
            ("p50", self.p50_us),
            ("p99", self.p99_us),
            ("p99.9", self.p999_us),
        ] {
            if let Some(latency) = latency {
                write!(f, ", {name} {latency:.0} us")?;
            }
        }
        for (who, cost) in [
            ("client", self.client_cpu_s_per_gb),
            ("server", self.server_cpu_s_per_gb),
        ] {
            if let Some(cost) = cost {
                write!(f, ", {who} {cost:.3} CPU s/GB")?;
            }
        }
        if self.errors > 0 {
            write!(f, ", {} errors", self.errors)?;
        }
        match &self.first_error {
            Some(error) => write!(f, " (first: {error})"),
            None => Ok(()),
        }
    }
}
