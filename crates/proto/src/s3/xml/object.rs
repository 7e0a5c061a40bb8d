//! Replies about single objects and batches of them.

use super::{PartEntry, XmlWriter};
use crate::s3::{
    checksum::{Algorithm, Checksum, ChecksumType},
    error::S3Error,
};

/// Whether an object or a part was made by a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// `CopyObject`.
    Object,
    /// `UploadPartCopy`.
    Part,
}

/// The reply to `CopyObject` or `UploadPartCopy`. The time is Unix milliseconds.
#[must_use]
pub fn copy_result(
    kind: CopyKind,
    etag: &str,
    last_modified_ms: u64,
    checksum: Option<(Algorithm, &str, ChecksumType)>,
) -> String {
    let root = match kind {
        CopyKind::Object => "CopyObjectResult",
        CopyKind::Part => "CopyPartResult",
    };
    let mut writer = XmlWriter::new(root);
    writer.time("LastModified", last_modified_ms);
    writer.etag("ETag", etag);
    if let Some((algorithm, text, kind)) = checksum {
        writer.text(algorithm.element(), text);
        writer.text("ChecksumType", kind.as_str());
    }
    writer.finish(root)
}

/// What became of one object of `DeleteObjects`.
#[derive(Clone, Debug)]
pub struct DeleteOutcome<'a> {
    /// The key as it was asked for.
    pub key: &'a str,
    /// The version asked for.
    pub version_id: Option<&'a str>,
    /// Deleted: the delete marker that was made, or removed when a version was asked for.
    pub result: Result<Option<&'a str>, S3Error>,
}

/// The reply to `DeleteObjects`. `quiet` leaves out what was deleted.
#[must_use]
pub fn delete_result(outcomes: &[DeleteOutcome<'_>], quiet: bool) -> String {
    const ROOT: &str = "DeleteResult";
    let mut writer = XmlWriter::with_capacity(ROOT, 160 + outcomes.len() * 96);
    for outcome in outcomes {
        match &outcome.result {
            Ok(_) if quiet => {}
            Ok(marker) => {
                writer.open("Deleted");
                writer.text("Key", outcome.key);
                writer.optional("VersionId", outcome.version_id);
                if let Some(marker) = marker {
                    writer.boolean("DeleteMarker", true);
                    writer.text("DeleteMarkerVersionId", marker);
                }
                writer.close("Deleted");
            }
            Err(error) => {
                writer.open("Error");
                writer.text("Key", outcome.key);
                writer.optional("VersionId", outcome.version_id);
                writer.text("Code", error.code.as_str());
                writer.text("Message", error.message());
                writer.close("Error");
            }
        }
    }
    writer.finish(ROOT)
}

/// What `GetObjectAttributes` answers; what was not asked for is `None`.
#[derive(Clone, Debug, Default)]
pub struct ObjectAttributes<'a> {
    /// Entity tag without quotes.
    pub etag: Option<&'a str>,
    /// The object's checksum: algorithm, text, kind.
    pub checksum: Option<(Algorithm, &'a str, ChecksumType)>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Whether the storage class was asked for.
    pub storage_class: bool,
    /// Parts, when asked for and the object was made of parts.
    pub parts: Option<AttributeParts<'a>>,
}

/// The parts of an object.
#[derive(Clone, Debug, Default)]
pub struct AttributeParts<'a> {
    /// How many there are in all.
    pub total: u32,
    /// The marker asked for.
    pub part_number_marker: u32,
    /// Where to go on, when truncated.
    pub next_part_number_marker: Option<u32>,
    /// The bound that holds.
    pub max_parts: u32,
    /// The parts of this page; number, size and checksum count.
    pub parts: Vec<PartEntry<'a>>,
}

/// The reply to `GetObjectAttributes`.
#[must_use]
pub fn object_attributes(attributes: &ObjectAttributes<'_>) -> String {
    const ROOT: &str = "GetObjectAttributesResponse";
    let mut writer = XmlWriter::with_capacity(ROOT, 512);
    // The only document whose entity tag has no quotes.
    writer.optional("ETag", attributes.etag);
    if let Some((algorithm, text, kind)) = attributes.checksum {
        writer.open("Checksum");
        writer.text(algorithm.element(), text);
        writer.text("ChecksumType", kind.as_str());
        writer.close("Checksum");
    }
    if let Some(parts) = &attributes.parts {
        writer.open("ObjectParts");
        writer.number("PartsCount", u64::from(parts.total));
        writer.number("PartNumberMarker", u64::from(parts.part_number_marker));
        if let Some(next) = parts.next_part_number_marker {
            writer.number("NextPartNumberMarker", u64::from(next));
        }
        writer.number("MaxParts", u64::from(parts.max_parts));
        writer.boolean("IsTruncated", parts.next_part_number_marker.is_some());
        for part in &parts.parts {
            writer.open("Part");
            writer.number("PartNumber", u64::from(part.number));
            writer.number("Size", part.size);
            if let Some(checksum) = &part.checksum {
                writer.text(
                    checksum.algorithm().element(),
                    &Checksum::to_base64(checksum),
                );
            }
            writer.close("Part");
        }
        writer.close("ObjectParts");
    }
    if attributes.storage_class {
        writer.text("StorageClass", "STANDARD");
    }
    if let Some(size) = attributes.size {
        writer.number("ObjectSize", size);
    }
    writer.finish(ROOT)
}
