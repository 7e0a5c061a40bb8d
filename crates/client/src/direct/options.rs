//! How to connect and how calls behave.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Tls;

/// The way a payload took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// Memory shared with a server on this host.
    Shm,
    /// RDMA over TCP (RFC 5040, 5041, 5044).
    Iwarp,
    /// The body of an HTTP message.
    Http,
}

impl Path {
    /// All, the best first.
    pub const ALL: [Path; 3] = [Path::Shm, Path::Iwarp, Path::Http];

    /// Its name in results and flags.
    pub fn name(self) -> &'static str {
        match self {
            Path::Shm => "shm",
            Path::Iwarp => "iwarp",
            Path::Http => "http",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which ways may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The best that works.
    #[default]
    Auto,
    /// This one or none.
    Only(Path),
}

impl Choice {
    pub(crate) fn allows(self, path: Path) -> bool {
        match self {
            Choice::Auto => true,
            Choice::Only(only) => only == path,
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "auto" {
            return Ok(Choice::Auto);
        }
        Path::ALL
            .into_iter()
            .find(|path| path.name() == text)
            .map(Choice::Only)
            .ok_or_else(|| format!("{text:?} is not a path: auto, shm, iwarp or http"))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Only(path) => path.fmt(f),
        }
    }
}

/// How to connect and how calls behave.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which ways payloads may take.
    pub path: Choice,
    /// Whether checksums are made over this process' memory on put and checked there on get.
    pub checksum: bool,
    /// How long a call may take in all, attempts and waiting for memory included, and a second more for every 256 KiB of its windows (of
    /// what a range names in them), however few bytes there are to move.
    pub deadline: Duration,
    /// How often a call is made in all before it fails.
    pub attempts: u32,
    /// Calls in flight on each link; more wait.
    pub in_flight_max: usize,
    /// Links made to the best path; more than one where a single core's TCP is the limit.
    pub links: usize,
    /// How long after payloads fell back to HTTP better paths are tried again, while calls are made. Every time in vain doubles it, up to
    /// a minute.
    pub better_after: Duration,
    /// How long the server keeps the session without a sign of life.
    pub lease: Duration,
    /// For `https` endpoints, and where the server asks for TLS on links: whom to trust; the machine's certificates when missing.
    pub tls: Option<Tls>,
    /// The region that signatures of S3 requests name.
    pub region: String,
}

impl Default for Options {
    /// The best path, checksums, 30 s, 3 attempts, 256 calls in flight, one link, better paths tried again after 1 s, a lease of 30 s.
    fn default() -> Options {
        Options {
            path: Choice::Auto,
            checksum: true,
            deadline: Duration::from_secs(30),
            attempts: 3,
            in_flight_max: 256,
            links: 1,
            better_after: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            tls: None,
            region: "us-east-1".to_owned(),
        }
    }
}
