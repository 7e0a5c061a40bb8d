//! Arguments and answers of the store's operations.

use bytes::Bytes;

use crate::{Attributes, ErrorKind, Etag, Meta, Result, StoreError, VersionId};

/// Which of a namespace's two key spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// What users see.
    Objects,
    /// Parts of values still being put together; counted in usage, invisible through every door, never versioned.
    Staging,
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'a> {
    /// The namespace's name.
    pub namespace: &'a str,
    /// Which key space.
    pub space: Space,
    /// 1 to [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes; any bytes.
    pub key: &'a [u8],
}

impl<'a> Address<'a> {
    /// An address users see.
    pub fn object(namespace: &'a str, key: &'a [u8]) -> Address<'a> {
        Address {
            namespace,
            space: Space::Objects,
            key,
        }
    }

    /// An address of a part being put together.
    pub fn staging(namespace: &'a str, key: &'a [u8]) -> Address<'a> {
        Address {
            namespace,
            space: Space::Staging,
            key,
        }
    }
}

/// Which bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ByteRange {
    /// All of them.
    #[default]
    Full,
    /// From an offset to the end; not satisfiable at or past the end.
    From(u64),
    /// First to last, both included; the last is cut to the end; not satisfiable when the first is past the end.
    Inclusive(u64, u64),
    /// The last so many; not satisfiable when 0, or when the value is empty.
    Suffix(u64),
}

impl ByteRange {
    /// The half-open range for a value of `size` bytes, or `None` when it is not satisfiable (RFC 9110 section 14.1.2).
    pub fn resolve(self, size: u64) -> Option<std::ops::Range<u64>> {
        match self {
            ByteRange::Full => Some(0..size),
            ByteRange::From(first) => (first < size).then_some(first..size),
            ByteRange::Inclusive(first, last) => {
                (first < size && first <= last).then(|| first..last.saturating_add(1).min(size))
            }
            ByteRange::Suffix(count) => {
                (count > 0 && size > 0).then(|| size.saturating_sub(count)..size)
            }
        }
    }
}

/// What must hold of the current value for a change to happen; checked atomically with the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// There is no current value.
    IfAbsent,
    /// There is a current value.
    IfPresent,
    /// The current value has this tag.
    IfMatch(Etag),
}

impl Condition {
    /// Whether it holds for a key whose current value has this tag.
    pub fn holds(self, current: Option<&Etag>) -> bool {
        match self {
            Condition::None => true,
            Condition::IfAbsent => current.is_none(),
            Condition::IfPresent => current.is_some(),
            Condition::IfMatch(etag) => current == Some(&etag),
        }
    }
}

/// What is known when a value begins to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// Its length, when known: quota and space are then checked and reserved before any byte is taken, and `commit` fails
    /// unless exactly so many bytes came.
    pub size: Option<u64>,
    /// Checked now, to refuse early, and again by `commit`, which decides.
    pub condition: Condition,
}

/// A staged value to be joined.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// What was read of it: joined only if that is still what is there. What is derived from some values never ends up on others.
    pub seen: Option<&'a Meta>,
}

impl<'a> Source<'a> {
    /// Whatever is there.
    pub const fn any(key: &'a [u8]) -> Source<'a> {
        Source { key, seen: None }
    }

    /// One that is to be joined or consumed is not there.
    pub fn missing() -> StoreError {
        StoreError::new(
            ErrorKind::NotFound,
            "a value to be joined or consumed is not there",
        )
    }

    /// Refuses what is no longer what was seen.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn check(&self, found: &Meta) -> Result<()> {
        match self.seen.is_none_or(|seen| seen == found) {
            true => Ok(()),
            false => Err(StoreError::new(
                ErrorKind::NotFound,
                "a value to be joined was changed meanwhile",
            )),
        }
    }
}

/// What is known when all bytes of a value have arrived.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seal {
    /// The tag; without one the store makes one from the CRC-64/NVME and the size.
    pub etag: Option<Etag>,
    /// Kept with the value.
    pub attributes: Attributes,
    /// From when on the value no longer exists, in milliseconds since 1970; the namespace's `ttl_ms` applies too.
    pub expires: Option<u64>,
}

/// A finished change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The new value's.
    pub meta: Meta,
    /// Whether a current value was there before.
    pub replaced: bool,
}

/// How to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Removes just this version (or delete marker) for good; otherwise the namespace's versioning decides.
    pub version: Option<VersionId>,
    /// Must hold of the current value.
    pub condition: Condition,
}

/// A finished delete. Deleting what is not there is not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Whether anything was there.
    pub existed: bool,
    /// The version removed, or the delete marker made.
    pub version: Option<VersionId>,
    /// Whether `version` is a delete marker.
    pub marker: bool,
}

/// Where a list page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum After<'a> {
    /// At the first key.
    #[default]
    Start,
    /// After this key.
    Key(&'a [u8]),
    /// After every key that begins so (a common prefix already reported).
    Prefix(&'a [u8]),
    /// For version lists: after this version of this key. When it is gone: after the versions of the key that are newer
    /// than it, so that a caller who deletes each page before asking for the next one misses nothing. (For value lists:
    /// after this key.)
    Version(&'a [u8], VersionId),
}

impl<'a> After<'a> {
    /// Behind what a page of versions ended with ([`VersionPage::last`]); without one at the first key.
    pub fn last(last: &'a Option<(Bytes, VersionId)>) -> After<'a> {
        match last {
            Some((key, version)) => After::Version(key, *version),
            None => After::Start,
        }
    }
}

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOptions<'a> {
    /// The namespace's name.
    pub namespace: &'a str,
    /// Which key space.
    pub space: Space,
    /// Only keys that begin so.
    pub prefix: &'a [u8],
    /// Keys that share what comes before the first delimiter after the prefix are reported once, as that common prefix. An
    /// empty delimiter is none.
    pub delimiter: Option<&'a [u8]>,
    /// Where to begin.
    pub after: After<'a>,
    /// At most this many items, common prefixes included; cut to [`LIST_ITEMS_MAX`](crate::limits::LIST_ITEMS_MAX). A page of
    /// none says that no more follows.
    pub limit: usize,
}

impl<'a> ListOptions<'a> {
    /// All that there is, from its start.
    pub fn of(namespace: &'a str, space: Space) -> ListOptions<'a> {
        ListOptions {
            namespace,
            space,
            prefix: b"",
            delimiter: None,
            after: After::Start,
            limit: crate::limits::LIST_ITEMS_MAX,
        }
    }
}

/// One line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A current value.
    Value(Bytes, Meta),
    /// A common prefix, delimiter included.
    Prefix(Bytes),
}

/// Part of a list, in ascending byte order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListPage {
    /// What was found.
    pub items: Vec<Item>,
    /// Whether more follows; continue after the last item.
    pub more: bool,
}

impl ListPage {
    /// Where the next page begins; `None` when nothing follows.
    pub fn next(&self) -> Option<After<'_>> {
        let last = self.items.last().filter(|_| self.more)?;
        Some(match last {
            Item::Value(key, _) => After::Key(key),
            Item::Prefix(prefix) => After::Prefix(prefix),
        })
    }
}

/// One line of a version list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionItem {
    /// A value, current or kept.
    Value {
        /// Its key.
        key: Bytes,
        /// Its metadata.
        meta: Meta,
        /// Whether it is the newest version of its key.
        latest: bool,
    },
    /// A delete marker.
    Marker {
        /// Its key.
        key: Bytes,
        /// Its version.
        version: VersionId,
        /// When it was made, in milliseconds since 1970.
        modified: u64,
        /// Whether it is the newest version of its key.
        latest: bool,
    },
    /// A common prefix, delimiter included.
    Prefix(Bytes),
}

/// Part of a version list: keys ascending, within a key the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionPage {
    /// What was found.
    pub items: Vec<VersionItem>,
    /// Whether more follows; continue after the last item.
    pub more: bool,
    /// Keys of which some versions cannot be read and were passed over, ascending: they may be there all the same, so nobody may take them
    /// for gone.
    pub passed_over: Vec<Bytes>,
}

impl VersionPage {
    /// Where the next page begins; `None` when nothing follows.
    pub fn next(&self) -> Option<After<'_>> {
        let last = self.items.last().filter(|_| self.more)?;
        Some(match last {
            VersionItem::Value { key, meta, .. } => After::Version(key, meta.version),
            VersionItem::Marker { key, version, .. } => After::Version(key, *version),
            VersionItem::Prefix(prefix) => After::Prefix(prefix),
        })
    }

    /// The last version, behind which more follow: where the next page begins of a list without a delimiter. `None` when nothing follows.
    pub fn last(&self) -> Option<(Bytes, VersionId)> {
        match self.next()? {
            After::Version(key, version) => Some((Bytes::copy_from_slice(key), version)),
            After::Start | After::Key(_) | After::Prefix(_) => None,
        }
    }
}
