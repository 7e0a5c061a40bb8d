//! Replies of multipart uploads.

use super::{Owner, XmlWriter, list::put_prefixes};
use crate::s3::checksum::{Algorithm, Checksum, ChecksumType};

/// The reply to `CreateMultipartUpload`.
#[must_use]
pub fn initiate_multipart_upload_result(bucket: &str, key: &[u8], upload_id: &str) -> String {
    const ROOT: &str = "InitiateMultipartUploadResult";
    let mut writer = XmlWriter::new(ROOT);
    writer.text("Bucket", bucket);
    writer.key("Key", key, false);
    writer.text("UploadId", upload_id);
    writer.finish(ROOT)
}

/// What `CompleteMultipartUpload` made.
#[derive(Clone, Debug)]
pub struct CompletedUpload<'a> {
    /// URL of the object.
    pub location: &'a str,
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// Entity tag without quotes.
    pub etag: &'a str,
    /// The object's checksum: algorithm, text (`-N` included when composite), kind.
    pub checksum: Option<(Algorithm, &'a str, ChecksumType)>,
}

/// The reply to `CompleteMultipartUpload`.
#[must_use]
pub fn complete_multipart_upload_result(upload: &CompletedUpload<'_>) -> String {
    const ROOT: &str = "CompleteMultipartUploadResult";
    let mut writer = XmlWriter::with_capacity(ROOT, 512);
    writer.text("Location", upload.location);
    writer.text("Bucket", upload.bucket);
    writer.key("Key", upload.key, false);
    writer.etag("ETag", upload.etag);
    if let Some((algorithm, text, kind)) = upload.checksum {
        writer.text(algorithm.element(), text);
        writer.text("ChecksumType", kind.as_str());
    }
    writer.finish(ROOT)
}

/// A part in a listing.
#[derive(Clone, Debug)]
pub struct PartEntry<'a> {
    /// 1 to 10 000.
    pub number: u32,
    /// When it was uploaded, Unix milliseconds.
    pub last_modified_ms: u64,
    /// Entity tag without quotes.
    pub etag: &'a str,
    /// Length in bytes.
    pub size: u64,
    /// Checksum of the part.
    pub checksum: Option<Checksum>,
}

/// A page of `ListParts`.
#[derive(Clone, Debug)]
pub struct PartListing<'a> {
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The upload.
    pub upload_id: &'a str,
    /// Owner and initiator, who are the same here.
    pub owner: Owner<'a>,
    /// The marker asked for; 0 when none was.
    pub part_number_marker: u32,
    /// Where to go on, when truncated.
    pub next_part_number_marker: Option<u32>,
    /// The bound that holds.
    pub max_parts: u32,
    /// `encoding-type=url`.
    pub encode_url: bool,
    /// The upload's checksum algorithm and kind.
    pub checksum: Option<(Algorithm, ChecksumType)>,
    /// Parts in order.
    pub parts: Vec<PartEntry<'a>>,
}

/// The reply to `ListParts`.
#[must_use]
pub fn list_parts(listing: &PartListing<'_>) -> String {
    const ROOT: &str = "ListPartsResult";
    let mut writer = XmlWriter::with_capacity(ROOT, 768 + listing.parts.len() * 256);
    writer.text("Bucket", listing.bucket);
    writer.key("Key", listing.key, listing.encode_url);
    if listing.encode_url {
        writer.text("EncodingType", "url");
    }
    writer.text("UploadId", listing.upload_id);
    writer.owner("Initiator", &listing.owner);
    writer.owner("Owner", &listing.owner);
    writer.text("StorageClass", "STANDARD");
    if let Some((algorithm, kind)) = listing.checksum {
        writer.text("ChecksumAlgorithm", algorithm.as_str());
        writer.text("ChecksumType", kind.as_str());
    }
    writer.number("PartNumberMarker", u64::from(listing.part_number_marker));
    if let Some(next) = listing.next_part_number_marker {
        writer.number("NextPartNumberMarker", u64::from(next));
    }
    writer.number("MaxParts", u64::from(listing.max_parts));
    writer.boolean("IsTruncated", listing.next_part_number_marker.is_some());
    for part in &listing.parts {
        writer.open("Part");
        writer.number("PartNumber", u64::from(part.number));
        writer.time("LastModified", part.last_modified_ms);
        writer.etag("ETag", part.etag);
        writer.number("Size", part.size);
        if let Some(checksum) = &part.checksum {
            writer.text(checksum.algorithm().element(), &checksum.to_base64());
        }
        writer.close("Part");
    }
    writer.finish(ROOT)
}

/// An upload in a listing.
#[derive(Clone, Debug)]
pub struct UploadEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The upload.
    pub upload_id: &'a str,
    /// Owner and initiator, who are the same here.
    pub owner: Owner<'a>,
    /// When it was begun, Unix milliseconds.
    pub initiated_ms: u64,
    /// The upload's checksum algorithm and kind.
    pub checksum: Option<(Algorithm, ChecksumType)>,
}

/// A page of `ListMultipartUploads`.
#[derive(Clone, Debug, Default)]
pub struct UploadListing<'a> {
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The prefix asked for.
    pub prefix: &'a [u8],
    /// The delimiter asked for.
    pub delimiter: Option<&'a [u8]>,
    /// The key marker asked for.
    pub key_marker: &'a [u8],
    /// The upload marker asked for.
    pub upload_id_marker: &'a str,
    /// Where to go on, when truncated: key and upload.
    pub next: Option<(&'a [u8], &'a str)>,
    /// The bound that holds.
    pub max_uploads: u32,
    /// `encoding-type=url`.
    pub encode_url: bool,
    /// Uploads by key, then by time.
    pub uploads: Vec<UploadEntry<'a>>,
    /// Common prefixes in order.
    pub common_prefixes: Vec<&'a [u8]>,
}

/// The reply to `ListMultipartUploads`.
#[must_use]
pub fn list_multipart_uploads(listing: &UploadListing<'_>) -> String {
    const ROOT: &str = "ListMultipartUploadsResult";
    let url = listing.encode_url;
    let mut writer = XmlWriter::with_capacity(ROOT, 512 + listing.uploads.len() * 400);
    writer.text("Bucket", listing.bucket);
    writer.key("KeyMarker", listing.key_marker, url);
    writer.text("UploadIdMarker", listing.upload_id_marker);
    if let Some((key, upload_id)) = listing.next {
        writer.key("NextKeyMarker", key, url);
        writer.text("NextUploadIdMarker", upload_id);
    }
    writer.key("Prefix", listing.prefix, url);
    if let Some(delimiter) = listing.delimiter {
        writer.key("Delimiter", delimiter, url);
    }
    if url {
        writer.text("EncodingType", "url");
    }
    writer.number("MaxUploads", u64::from(listing.max_uploads));
    writer.boolean("IsTruncated", listing.next.is_some());
    for upload in &listing.uploads {
        writer.open("Upload");
        writer.key("Key", upload.key, url);
        writer.text("UploadId", upload.upload_id);
        writer.owner("Initiator", &upload.owner);
        writer.owner("Owner", &upload.owner);
        writer.text("StorageClass", "STANDARD");
        writer.time("Initiated", upload.initiated_ms);
        if let Some((algorithm, kind)) = upload.checksum {
            writer.text("ChecksumAlgorithm", algorithm.as_str());
            writer.text("ChecksumType", kind.as_str());
        }
        writer.close("Upload");
    }
    put_prefixes(&mut writer, &listing.common_prefixes, url);
    writer.finish(ROOT)
}
