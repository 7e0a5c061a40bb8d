//! What a store keeps beside the bytes of a value.

use std::fmt;

use crate::limits::ETAG_BYTES_MAX;
use crate::{Attributes, ErrorKind, Result, StoreError};

/// An opaque tag that changes with the bytes: at most [`ETAG_BYTES_MAX`] visible ASCII characters, without quotes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Etag {
    len: u8,
    text: [u8; ETAG_BYTES_MAX],
}

impl Etag {
    /// `None` when the text is empty, too long, or holds a quote or anything but visible ASCII.
    pub fn new(text: &str) -> Option<Etag> {
        let bytes = text.as_bytes();
        let legal = !bytes.is_empty()
            && bytes.len() <= ETAG_BYTES_MAX
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_graphic() && *byte != b'"');
        legal.then(|| {
            let mut text = [0; ETAG_BYTES_MAX];
            text[..bytes.len()].copy_from_slice(bytes);
            Etag {
                len: bytes.len() as u8,
                text,
            }
        })
    }

    /// Lower-case hexadecimal of `digest`, as S3 shows an MD5; at most half of [`ETAG_BYTES_MAX`] bytes are used.
    pub fn from_digest(digest: &[u8]) -> Etag {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; ETAG_BYTES_MAX];
        let mut len = 0;
        for byte in digest.iter().take(ETAG_BYTES_MAX / 2) {
            text[len] = HEX[usize::from(byte >> 4)];
            text[len + 1] = HEX[usize::from(byte & 15)];
            len += 2;
        }
        Etag {
            len: len as u8,
            text,
        }
    }

    /// The tag of a value whose writer gave none. It holds a `-`, so that nobody takes it for an MD5.
    pub fn of_value(crc64nvme: u64, size: u64) -> Etag {
        let mut text = [0; ETAG_BYTES_MAX];
        let made = format!("{crc64nvme:016x}-{size:x}");
        text[..made.len()].copy_from_slice(made.as_bytes());
        Etag {
            len: made.len() as u8,
            text,
        }
    }

    /// The text, without quotes.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etag({self})")
    }
}

/// Names one version of a key. Ids grow with time within a store and are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionId(pub u64);

impl VersionId {
    /// The version that values have in a namespace that is not versioned; a key has at most one.
    pub const NULL: VersionId = VersionId(0);
}

/// What is known of a stored value without touching its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its length in bytes.
    pub size: u64,
    /// Changes with the bytes.
    pub etag: Etag,
    /// When it was stored, in milliseconds since 1970.
    pub modified: u64,
    /// Which version this is.
    pub version: VersionId,
    /// CRC-64/NVME of the whole value, made where the bytes entered.
    pub crc64nvme: u64,
    /// From when on it no longer exists, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// What the door keeps with it: content type, user metadata, tags.
    pub attributes: Attributes,
}

impl Meta {
    /// Refuses when this is no longer what was `seen`, for [`Store::amend`](crate::Store::amend).
    ///
    /// # Errors
    /// [`ErrorKind::PreconditionFailed`].
    pub fn check_seen(&self, seen: Option<&Meta>) -> Result<()> {
        match seen.is_none_or(|seen| seen == self) {
            true => Ok(()),
            false => Err(StoreError::new(
                ErrorKind::PreconditionFailed,
                "the value was changed meanwhile",
            )),
        }
    }
}
