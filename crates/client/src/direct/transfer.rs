//! What a call that moved bytes tells.

use std::fmt;
use std::sync::Arc;

use super::options::Path;

/// A payload that was moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// How many bytes of the value were moved.
    pub bytes: u64,
    /// Which way they took.
    pub path: Path,
    /// Why they took no better way; none when they took the best there is.
    pub fallback: Option<Arc<Fallback>>,
    /// The CRC-64/NVME of those bytes, made over this process' memory and compared with the other end's; none when checksums are
    /// off, or the server had none to compare with.
    pub checksum: Option<u64>,
    /// The length of the whole value in bytes.
    pub size: u64,
    /// The tag of the value.
    pub etag: String,
}

/// The better ways that were not taken, each with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fallback {
    /// Best first.
    pub reasons: Vec<(Path, String)>,
}

impl Fallback {
    pub(crate) fn push(&mut self, path: Path, reason: impl fmt::Display) {
        self.reasons.push((path, reason.to_string()));
    }

    /// Of the ways better than `path`, or none.
    pub(crate) fn above(&self, path: Path) -> Option<Arc<Fallback>> {
        let reasons: Vec<_> = self
            .reasons
            .iter()
            .filter(|(other, _)| rank(*other) < rank(path))
            .cloned()
            .collect();
        (!reasons.is_empty()).then(|| Arc::new(Fallback { reasons }))
    }
}

fn rank(path: Path) -> usize {
    Path::ALL
        .iter()
        .position(|other| *other == path)
        .unwrap_or(0)
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (path, reason)) in self.reasons.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(f, "{comma}{path}: {reason}")?;
        }
        Ok(())
    }
}
