//! Where unfinished uploads are: keys of the staging space, and the locks that keep completing apart from uploading.
//!
//! - `u NUL KEY NUL UPLOAD`: the upload itself; an empty value whose attributes are those that the object will have, with
//!   the checksum algorithm and kind that were chosen. Object keys hold no NUL here, so uploads sort by key and, since
//!   the names of uploads begin with the time, then by age.
//! - `p NUL UPLOAD NUL NNNNN`: a part.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_proto::s3::checksum::{Algorithm, ChecksumType};
use forebay_proto::s3::error::ErrorCode;
use forebay_store::{
    Address, After, Attributes, DeleteOptions, ErrorKind, Item, ListOptions, Meta, Space, Store,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::delete::AT_ONCE;
use crate::status::Outcome;

/// The attribute of the chosen algorithm and kind: `CRC32 COMPOSITE`.
pub(crate) const CHOSEN: &str = "s3.checksum-choice";

/// What the keys of all parts begin with.
pub(crate) const PARTS: &[u8] = b"p\0";

const UPLOAD_LEN: usize = 32;

/// The name of an upload: 32 hexadecimal digits, of which the first 16 are the time it was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UploadId([u8; UPLOAD_LEN]);

impl UploadId {
    /// A new name, from the time and 16 digits that no other upload of this moment has.
    pub(crate) fn new(now_ms: u64, unique: &str) -> UploadId {
        let text = format!("{now_ms:016x}{unique:0>16}").to_ascii_lowercase();
        let mut id = [b'0'; UPLOAD_LEN];
        id.copy_from_slice(&text.as_bytes()[..UPLOAD_LEN]);
        UploadId(id)
    }

    /// Reads what a client sends.
    ///
    /// # Errors
    /// `NoSuchUpload` for what cannot be one.
    pub(crate) fn parse(text: &str) -> Outcome<UploadId> {
        let id: [u8; UPLOAD_LEN] = text
            .as_bytes()
            .try_into()
            .map_err(|_| ErrorCode::NoSuchUpload)?;
        let legal = id
            .iter()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        match legal {
            true => Ok(UploadId(id)),
            false => Err(ErrorCode::NoSuchUpload.into()),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The key of the upload itself.
    pub(crate) fn manifest(&self, key: &[u8]) -> Vec<u8> {
        let mut staged = uploads_of(key);
        staged.extend_from_slice(&self.0);
        staged
    }

    /// What the keys of all its parts begin with.
    pub(crate) fn parts(&self) -> Vec<u8> {
        let mut staged = PARTS.to_vec();
        staged.extend_from_slice(&self.0);
        staged.push(0);
        staged
    }

    /// The key of part `number`.
    pub(crate) fn part(&self, number: u32) -> Vec<u8> {
        let mut staged = self.parts();
        staged.extend_from_slice(format!("{number:05}").as_bytes());
        staged
    }
}

/// What the keys of all uploads of keys that begin with `prefix` begin with.
pub(crate) fn uploads_under(prefix: &[u8]) -> Vec<u8> {
    [b"u\0", prefix].concat()
}

/// What the keys of all uploads of `key` begin with.
pub(crate) fn uploads_of(key: &[u8]) -> Vec<u8> {
    [b"u\0", key, b"\0"].concat()
}

/// The object key and the upload that a staged key stands for; `None` for a part.
pub(crate) fn parse_manifest(staged: &[u8]) -> Option<(&[u8], UploadId)> {
    let rest = staged.strip_prefix(b"u\0")?;
    let (key, id) = rest.split_at_checked(rest.len().checked_sub(UPLOAD_LEN)?)?;
    let id = UploadId(id.try_into().ok()?);
    Some((key.strip_suffix(b"\0")?, id))
}

/// The upload whose parts have keys that begin so.
pub(crate) fn parse_parts(prefix: &[u8]) -> Option<UploadId> {
    let id = prefix.strip_prefix(PARTS)?.strip_suffix(b"\0")?;
    Some(UploadId(id.try_into().ok()?))
}

/// The checksum that an upload was begun with.
pub(crate) fn chosen(attributes: &Attributes) -> Option<(Algorithm, ChecksumType)> {
    let (algorithm, kind) = attributes.get_str(CHOSEN)?.split_once(' ')?;
    Some((Algorithm::parse(algorithm)?, ChecksumType::parse(kind)?))
}

/// Finds an upload.
///
/// # Errors
/// `NoSuchUpload`.
pub(crate) async fn find<S: Store>(
    store: &S,
    bucket: &str,
    key: &str,
    id: &UploadId,
) -> Outcome<Meta> {
    match store
        .stat(Address::staging(bucket, &id.manifest(key.as_bytes())), None)
        .await
    {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(ErrorCode::NoSuchUpload.into()),
        other => Ok(other?),
    }
}

/// A part that is there.
pub(crate) struct Part {
    pub(crate) number: u32,
    pub(crate) key: Bytes,
    pub(crate) meta: Meta,
}

/// Up to `limit` parts after part number `marker`, and whether more follow.
pub(crate) async fn parts<S: Store>(
    store: &S,
    bucket: &str,
    id: &UploadId,
    marker: u32,
    limit: usize,
) -> Outcome<(Vec<Part>, bool)> {
    let prefix = id.parts();
    let mut found = Vec::new();
    let mut after = id.part(marker);
    loop {
        let page = store
            .list(ListOptions {
                namespace: bucket,
                space: Space::Staging,
                prefix: &prefix,
                delimiter: None,
                after: After::Key(&after),
                limit: limit - found.len(),
            })
            .await?;
        let more = page.more;
        for item in page.items {
            let Item::Value(key, meta) = item else {
                continue;
            };
            after = key.to_vec();
            let number = key
                .get(prefix.len()..)
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| digits.parse().ok());
            if let Some(number) = number {
                found.push(Part { number, key, meta });
            }
        }
        if !more || found.len() >= limit {
            return Ok((found, more));
        }
    }
}

/// Removes what is staged under these keys, a few side by side: each waits until it is durable. What is gone already is as well.
///
/// # Errors
/// Those of the store.
pub(crate) async fn remove<S: Store>(
    store: &S,
    bucket: &str,
    keys: &[impl AsRef<[u8]>],
) -> Outcome<()> {
    for some in keys.chunks(AT_ONCE) {
        let removals = some.iter().map(|key| {
            let address = Address::staging(bucket, key.as_ref());
            store.delete(address, DeleteOptions::default())
        });
        for removed in join_all(removals).await {
            match removed {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => drop(removed?),
            }
        }
    }
    Ok(())
}

/// Locks by upload: parts are committed under a shared lock while the upload is known to exist, and an upload is
/// completed or aborted under an exclusive one. So no part outlives its upload, and no part changes while it is joined.
///
/// Each upload has a lock of its own while somebody uses it: an upload of many parts takes long to end, and what another
/// client does with its own is not to wait for that.
#[derive(Default)]
pub(crate) struct Locks {
    locks: Mutex<HashMap<UploadId, Weak<RwLock<()>>>>,
}

impl Locks {
    pub(crate) async fn shared(&self, id: &UploadId) -> OwnedRwLockReadGuard<()> {
        self.of(id).read_owned().await
    }

    pub(crate) async fn exclusive(&self, id: &UploadId) -> OwnedRwLockWriteGuard<()> {
        self.of(id).write_owned().await
    }

    fn of(&self, id: &UploadId) -> Arc<RwLock<()>> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.get(id).and_then(Weak::upgrade) {
            return lock;
        }
        // Instead of growing, what nobody uses any more goes. Then there is room for as many as are in use, so that this is rare.
        if locks.len() == locks.capacity() {
            locks.retain(|_, lock| lock.strong_count() > 0);
            let used = locks.len();
            locks.reserve(used + 1);
        }
        let lock = Arc::default();
        locks.insert(*id, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn locks_that_nobody_uses_are_not_kept() {
        let locks = Locks::default();
        let id = |number: u64| UploadId::new(number, "0");
        let _used = locks.exclusive(&id(0)).await;
        for number in 1..1000 {
            let _ending = locks.exclusive(&id(number)).await;
        }
        assert!(locks.locks.lock().len() < 20);
        assert!(locks.of(&id(0)).try_read().is_err());
    }

    #[test]
    fn staged_keys_say_what_they_are() {
        let id = UploadId::new(1234, "00ABCDEF00112233");
        assert_eq!(id.as_str().len(), 32);
        assert_eq!(UploadId::parse(id.as_str()).ok(), Some(id));
        let staged = id.manifest(b"a/b");
        assert_eq!(parse_manifest(&staged), Some((&b"a/b"[..], id)));
        assert_eq!(parse_manifest(&id.part(7)), None);
        assert_eq!(parse_parts(&id.parts()), Some(id));
        assert_eq!(parse_parts(&id.part(7)), None);
        assert!(id.part(9_999) < id.part(10_000));
        for wrong in ["", "x", &"g".repeat(32), &"\u{e9}".repeat(16)] {
            assert!(UploadId::parse(wrong).is_err(), "{wrong}");
        }
    }
}
