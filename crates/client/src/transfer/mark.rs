//! How an upload that was cut off is known again as one's own.
//!
//! S3 tells the id and the parts of an unfinished upload, and nothing of what was said when it was begun. So the mark is a part: the last
//! number that there is, which no upload is completed with, so that nothing of it is in the object.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use forebay_proto::s3::xml::MAX_PARTS;
use sha2::{Digest, Sha256};

use super::Moving;
use crate::{Crc64, Part, Result};

/// The number of the part that is a mark: S3's last one.
pub(super) const NUMBER: u32 = MAX_PARTS;
/// What tells one host from another; what is missing tells nothing.
const HOST: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/hostname"];

/// Says of an upload which file it sends, of which host, in parts of which size.
pub(super) struct Mark(Bytes);

impl Mark {
    pub(super) fn of(path: &Path, metadata: &Metadata, part_bytes: u64) -> Mark {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut digest = Sha256::new();
        let mut add = |field: &[u8]| {
            digest.update((field.len() as u64).to_le_bytes());
            digest.update(field);
        };
        add(b"forebay upload 1");
        for file in HOST {
            add(&fs::read(file).unwrap_or_default());
        }
        add(path.as_os_str().as_encoded_bytes());
        add(&metadata.len().to_le_bytes());
        add(&metadata.mtime().to_le_bytes());
        add(&metadata.mtime_nsec().to_le_bytes());
        add(&part_bytes.to_le_bytes());
        Mark(Bytes::copy_from_slice(&digest.finalize()))
    }

    /// Marks an upload that has just begun.
    pub(super) async fn put(&self, value: Moving<'_>, upload: &str) -> Result<()> {
        let (namespace, key, mark) = (value.namespace, value.key, self.0.clone());
        let sent = value
            .client
            .upload_part(namespace, key, upload, NUMBER, mark);
        sent.await.map(drop)
    }

    /// Whether an upload that has these parts is so marked.
    pub(super) fn is_among(&self, parts: &[Part]) -> bool {
        let crc = Crc64::of(&self.0).value();
        parts.iter().any(|part| {
            part.number == NUMBER && part.size == self.0.len() as u64 && part.crc64nvme == Some(crc)
        })
    }
}
