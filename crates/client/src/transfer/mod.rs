//! Whole files and streams: in parallel parts, verified, resumed.
//!
//! A file is sent as one object when it fits one part, else as a multipart upload. The server keeps the parts of an attempt that
//! was cut off: [`upload_file`] asks for them, compares each one's CRC-64/NVME with the file's bytes, and sends the rest. It takes an
//! upload for its own that has its mark: part 10 000, which the object never gets, a digest of the host and of the file's path, length
//! and time. An upload that was taken so and does not go on is begun anew.
//!
//! [`download_file`] writes beside the target and renames when all is there: the target is never half. What comes in several parts, and
//! may be gone on with, is in `NAME.forebay-partial`, locked by the copy that fills it, with what has arrived in
//! `NAME.forebay-progress`; anything else is in a file of a name of its own, which goes when the copy fails. Files that only have such
//! names are left alone, and no object gets one.
//!
//! With [`Options::direct`] the bytes go by the direct path: parts of an upload as S3 requests whose payload a token names, everything
//! else as direct calls. A part that cannot go that way goes as a body; so does what lies in another tenant's namespace, where a
//! bucket policy grants it.

mod copy;
mod download;
mod mark;
mod pieces;
mod staging;
mod stream;
mod target;
mod unfinished;
mod upload;

use std::fmt;
use std::sync::Arc;

use crate::direct::{Path, Stat};
use crate::{Client, ObjectInfo, Result};

pub use copy::copy_object;
pub use download::{download_file, download_stream};
pub use staging::Staging;
pub use stream::upload_stream;
pub use target::{is_partial, write_file};
pub use unfinished::Unfinished;
pub use upload::upload_file;

/// The size of a part unless the value needs larger ones; a multiple of the store's blocks.
pub const PART_BYTES: u64 = 16 << 20;
/// S3's bound on the number of parts, but for the one that is a mark.
const PARTS_MAX: u64 = mark::NUMBER as u64 - 1;
/// S3's bounds on the size of a part but the last, which may be shorter.
pub const PART_BYTES_MIN: u64 = 5 << 20;
/// The longest part that S3 takes.
pub const PART_BYTES_MAX: u64 = 5 << 30;
/// Parts in flight on the way here by a link of the direct path.
const DIRECT_GETS: usize = 4;
/// Parts held in memory at once are kept below this, but for one.
const MEMORY_BYTES: u64 = 256 << 20;

/// How to move.
#[derive(Clone)]
pub struct Options {
    /// The size of a part, if not [`PART_BYTES`]: at least [`PART_BYTES_MIN`] whatever it says, and more where the value has more than
    /// 9 999 such parts.
    pub part_bytes: Option<u64>,
    /// Parts in flight at once.
    pub parallel: usize,
    /// Whether to go on where an earlier attempt ended. Uploads that are given attributes do not: the earlier one may have others.
    pub resume: bool,
    /// The direct path, where it is to be taken; without it bytes go as bodies.
    pub direct: Option<Arc<Staging>>,
    /// Called with the number of bytes that have just arrived (or were found there).
    pub progress: Arc<dyn Fn(u64) + Send + Sync>,
    /// Where uploads are noted that a transfer which is dropped leaves, and nobody goes on with.
    pub unfinished: Arc<Unfinished>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            part_bytes: None,
            parallel: 8,
            resume: true,
            direct: None,
            progress: Arc::new(|_| {}),
            unfinished: Arc::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("part_bytes", &self.part_bytes)
            .field("parallel", &self.parallel)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

/// What was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// The value's length in bytes.
    pub bytes: u64,
    /// How many of them had been moved by an earlier attempt.
    pub resumed: u64,
    /// Whether the bytes were compared by checksum from end to end.
    pub verified: bool,
    /// The way the bytes took, the worst of them if they took several; none when none moved between here and the server.
    pub path: Option<Path>,
}

/// What a transfer needs to know of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its length in bytes.
    pub size: u64,
    /// Its entity tag.
    pub etag: String,
    /// CRC-64/NVME of all its bytes, when the server states it.
    pub crc64nvme: Option<u64>,
}

/// Asks for a value, by the direct path if `options` has one.
///
/// # Errors
/// As every call.
pub async fn known(
    client: &Client,
    namespace: &str,
    key: &str,
    options: &Options,
) -> Result<Known> {
    let value = Moving {
        client,
        namespace,
        key,
        options,
    };
    Ok(value.find().await?.0)
}

/// A value that is moved.
#[derive(Clone, Copy)]
struct Moving<'a> {
    client: &'a Client,
    namespace: &'a str,
    key: &'a str,
    options: &'a Options,
}

impl<'a> Moving<'a> {
    /// What is known of it, and the direct path if that reaches it.
    async fn find(self) -> Result<(Known, Option<&'a Arc<Staging>>)> {
        if let Some(staging) = &self.options.direct {
            match staging.client().stat(self.namespace, self.key).await {
                Err(error) if staging.leaves_to(self.client, &error) => {}
                stat => return Ok((stat?.into(), Some(staging))),
            }
        }
        let info = self.client.head(self.namespace, self.key).await?;
        Ok((info.into(), None))
    }
}

impl From<Stat> for Known {
    fn from(stat: Stat) -> Known {
        Known {
            size: stat.size,
            etag: stat.etag,
            crc64nvme: stat.crc64nvme,
        }
    }
}

impl From<ObjectInfo> for Known {
    fn from(info: ObjectInfo) -> Known {
        Known {
            size: info.size,
            etag: info.etag,
            crc64nvme: info.crc64nvme,
        }
    }
}

impl Moved {
    /// Of ways that parts took, the one to tell.
    pub fn worst(paths: impl IntoIterator<Item = Path>) -> Option<Path> {
        let rank = |path: &Path| Path::ALL.iter().position(|other| other == path);
        paths.into_iter().max_by_key(rank)
    }
}

impl Options {
    /// The part size for a value of `size` bytes.
    fn part_bytes(&self, size: u64) -> u64 {
        let wanted = self.part_bytes.unwrap_or(PART_BYTES).max(PART_BYTES_MIN);
        wanted.max(size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20))
    }

    /// Parts in flight on the way here. By the direct path few keep a link busy, and fresh memory costs more than waiting for used one.
    fn parallel_gets(&self, part_bytes: u64) -> usize {
        match &self.direct {
            Some(direct) => {
                let links = direct.client().options().links.max(1);
                self.parallel(part_bytes).min(DIRECT_GETS * links)
            }
            None => self.parallel.max(1),
        }
    }

    /// The registered memory for parts of this size.
    fn staging(&self, part_bytes: u64) -> Result<Option<&Arc<Staging>>> {
        match &self.direct {
            Some(staging) if staging.takes(part_bytes)? => Ok(Some(staging)),
            _ => Ok(None),
        }
    }

    fn parallel(&self, part_bytes: u64) -> usize {
        let fits = usize::try_from(MEMORY_BYTES / part_bytes.max(1)).unwrap_or(usize::MAX);
        self.parallel.min(fits).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_fits_the_parts() {
        let options = Options::default();
        for size in [0, 1, PART_BYTES, 200 << 30, 5 << 40] {
            let part = options.part_bytes(size);
            assert!(size.div_ceil(part) <= PARTS_MAX);
            assert!(part <= PART_BYTES_MAX);
        }
    }
}
