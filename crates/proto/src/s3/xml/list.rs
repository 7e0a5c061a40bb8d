//! Listings of objects and of versions.

use super::{Owner, XmlWriter};
use crate::s3::checksum::{Algorithm, ChecksumType};

/// An object in a listing.
#[derive(Clone, Debug)]
pub struct ObjectEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Last change, Unix milliseconds.
    pub last_modified_ms: u64,
    /// Entity tag without quotes.
    pub etag: &'a str,
    /// Length in bytes.
    pub size: u64,
    /// Stored checksum, when there is one.
    pub checksum: Option<(Algorithm, ChecksumType)>,
    /// Owner, when it was asked for.
    pub owner: Option<Owner<'a>>,
}

/// A page of `ListObjects` or `ListObjectsV2`. Keys of all kinds are bytes; they are
/// percent-encoded when `encode_url` says so.
#[derive(Clone, Debug, Default)]
pub struct Listing<'a> {
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The prefix asked for.
    pub prefix: &'a [u8],
    /// The delimiter asked for; `None` when absent or empty.
    pub delimiter: Option<&'a [u8]>,
    /// The bound that holds, at most 1000.
    pub max_keys: u32,
    /// `encoding-type=url`.
    pub encode_url: bool,
    /// Whether there is more.
    pub is_truncated: bool,
    /// V1: the marker asked for. V2: the `start-after` asked for.
    pub start_after: Option<&'a [u8]>,
    /// V1: where to go on (only with a delimiter). V2: the continuation token.
    pub next: Option<&'a [u8]>,
    /// V2: the continuation token asked for.
    pub continuation_token: Option<&'a str>,
    /// Objects in order.
    pub contents: Vec<ObjectEntry<'a>>,
    /// Common prefixes in order.
    pub common_prefixes: Vec<&'a [u8]>,
}

impl Listing<'_> {
    fn start(&self) -> XmlWriter {
        let room = 512 + self.contents.len() * 320 + self.common_prefixes.len() * 128;
        let mut writer = XmlWriter::with_capacity("ListBucketResult", room);
        writer.text("Name", self.bucket);
        writer.key("Prefix", self.prefix, self.encode_url);
        writer
    }

    fn finish(&self, mut writer: XmlWriter) -> String {
        writer.number("MaxKeys", u64::from(self.max_keys));
        if let Some(delimiter) = self.delimiter {
            writer.key("Delimiter", delimiter, self.encode_url);
        }
        if self.encode_url {
            writer.text("EncodingType", "url");
        }
        writer.boolean("IsTruncated", self.is_truncated);
        for object in &self.contents {
            writer.open("Contents");
            writer.key("Key", object.key, self.encode_url);
            put_entry(&mut writer, object);
            writer.close("Contents");
        }
        put_prefixes(&mut writer, &self.common_prefixes, self.encode_url);
        writer.finish("ListBucketResult")
    }
}

/// All of an entry but its key.
fn put_entry(writer: &mut XmlWriter, object: &ObjectEntry<'_>) {
    writer.time("LastModified", object.last_modified_ms);
    writer.etag("ETag", object.etag);
    if let Some((algorithm, kind)) = object.checksum {
        writer.text("ChecksumAlgorithm", algorithm.as_str());
        writer.text("ChecksumType", kind.as_str());
    }
    writer.number("Size", object.size);
    if let Some(owner) = &object.owner {
        writer.owner("Owner", owner);
    }
    writer.raw("<StorageClass>STANDARD</StorageClass>");
}

pub(super) fn put_prefixes(writer: &mut XmlWriter, prefixes: &[&[u8]], url: bool) {
    for prefix in prefixes {
        writer.open("CommonPrefixes");
        writer.key("Prefix", prefix, url);
        writer.close("CommonPrefixes");
    }
}

/// The reply to `ListObjects` (V1).
#[must_use]
pub fn list_objects_v1(listing: &Listing<'_>) -> String {
    let mut writer = listing.start();
    writer.key(
        "Marker",
        listing.start_after.unwrap_or_default(),
        listing.encode_url,
    );
    if let Some(next) = listing.next {
        writer.key("NextMarker", next, listing.encode_url);
    }
    listing.finish(writer)
}

/// The reply to `ListObjectsV2`.
#[must_use]
pub fn list_objects_v2(listing: &Listing<'_>) -> String {
    let mut writer = listing.start();
    writer.optional("ContinuationToken", listing.continuation_token);
    if let Some(next) = listing.next {
        writer.key("NextContinuationToken", next, false);
    }
    if let Some(start_after) = listing.start_after {
        writer.key("StartAfter", start_after, listing.encode_url);
    }
    let count = listing.contents.len() + listing.common_prefixes.len();
    writer.number("KeyCount", count as u64);
    listing.finish(writer)
}

/// A version or a delete marker in a listing.
#[derive(Clone, Debug)]
pub struct VersionEntry<'a> {
    /// The object; of a delete marker the key, the time and the owner count.
    pub object: ObjectEntry<'a>,
    /// The version's id; `null` for one made without versioning.
    pub version_id: &'a str,
    /// Whether it is the newest of its key.
    pub is_latest: bool,
    /// Whether it is a delete marker.
    pub is_delete_marker: bool,
}

/// A page of `ListObjectVersions`.
#[derive(Clone, Debug, Default)]
pub struct VersionListing<'a> {
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The prefix asked for.
    pub prefix: &'a [u8],
    /// The delimiter asked for.
    pub delimiter: Option<&'a [u8]>,
    /// The key marker asked for.
    pub key_marker: &'a [u8],
    /// The version marker asked for.
    pub version_id_marker: &'a str,
    /// Where to go on, when truncated: key and version.
    pub next: Option<(&'a [u8], &'a str)>,
    /// The bound that holds.
    pub max_keys: u32,
    /// `encoding-type=url`.
    pub encode_url: bool,
    /// Versions and delete markers, by key and then newest first.
    pub versions: Vec<VersionEntry<'a>>,
    /// Common prefixes in order.
    pub common_prefixes: Vec<&'a [u8]>,
}

/// The reply to `ListObjectVersions`.
#[must_use]
pub fn list_versions(listing: &VersionListing<'_>) -> String {
    const ROOT: &str = "ListVersionsResult";
    let url = listing.encode_url;
    let mut writer = XmlWriter::with_capacity(ROOT, 512 + listing.versions.len() * 400);
    writer.text("Name", listing.bucket);
    writer.key("Prefix", listing.prefix, url);
    writer.key("KeyMarker", listing.key_marker, url);
    writer.text("VersionIdMarker", listing.version_id_marker);
    if let Some((key, version_id)) = listing.next {
        writer.key("NextKeyMarker", key, url);
        writer.text("NextVersionIdMarker", version_id);
    }
    writer.number("MaxKeys", u64::from(listing.max_keys));
    if let Some(delimiter) = listing.delimiter {
        writer.key("Delimiter", delimiter, url);
    }
    if url {
        writer.text("EncodingType", "url");
    }
    writer.boolean("IsTruncated", listing.next.is_some());
    for entry in &listing.versions {
        let name = if entry.is_delete_marker {
            "DeleteMarker"
        } else {
            "Version"
        };
        writer.open(name);
        writer.key("Key", entry.object.key, url);
        writer.text("VersionId", entry.version_id);
        writer.boolean("IsLatest", entry.is_latest);
        if entry.is_delete_marker {
            writer.time("LastModified", entry.object.last_modified_ms);
            if let Some(owner) = &entry.object.owner {
                writer.owner("Owner", owner);
            }
        } else {
            put_entry(&mut writer, &entry.object);
        }
        writer.close(name);
    }
    put_prefixes(&mut writer, &listing.common_prefixes, url);
    writer.finish(ROOT)
}
