//! What a node chooses about its S3 door.

use std::time::Duration;

/// How the entity tag of an object uploaded at once is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EtagKind {
    /// MD5 of the bytes, which many clients compare with their own.
    #[default]
    Md5,
    /// From the CRC-64/NVME that is made anyway: no MD5 is computed (which caps a stream at some 0.6 GB/s). The tag
    /// holds a `-`, so that no client takes it for an MD5.
    Crc64Nvme,
}

/// The door's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The region that buckets are in.
    pub region: String,
    /// Bases of virtual-host style: `BUCKET.DOMAIN`. `localhost` is always one.
    pub domains: Vec<String>,
    /// The most requests being served at once; more are answered `503 SlowDown`.
    pub requests_in_flight: usize,
    /// How large the pool is that all buffers come from, in bytes.
    pub pool_bytes: u64,
    /// How long a request's head may take to arrive after its first byte.
    pub header_timeout: Duration,
    /// How long a connection may be kept open without a request.
    pub idle_timeout: Duration,
    /// How long a client may stop sending its body, or stop taking ours.
    pub body_timeout: Duration,
    /// How entity tags are made.
    pub etag: EtagKind,
    /// Whether a GET whose token is not served is answered with a body instead of `501`.
    pub decline_with_body: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            region: "us-east-1".to_owned(),
            domains: Vec::new(),
            requests_in_flight: 1024,
            pool_bytes: 64 << 20,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            etag: EtagKind::Md5,
            decline_with_body: false,
        }
    }
}
