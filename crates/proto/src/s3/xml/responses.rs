//! Replies as a client reads them. Elements that are not known are passed over.

use super::{Scanner, XmlError, requests::unquoted, scan::once};
use crate::s3::{date, percent};

/// The longest reply that is read: a page of 1000 keys of 1024 bytes, each encoded, with room.
const MAX_REPLY: usize = 8 << 20;

/// Reads an error document: code and message.
///
/// # Errors
/// [`XmlError`] when the body is something else (a proxy's page, for example).
pub fn parse_error(body: &[u8]) -> Result<(String, String), XmlError> {
    let mut scanner = Scanner::root_within(body, "Error", MAX_REPLY)?;
    let (mut code, mut message) = (None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "Code" => once(&mut code, scanner.text()?)?,
            "Message" => once(&mut message, scanner.text()?)?,
            _ => scanner.skip()?,
        }
    }
    Ok((
        code.ok_or(XmlError::Schema("no code"))?,
        message.unwrap_or_default(),
    ))
}

/// Reads one text out of a flat document.
fn one_text(body: &[u8], root: &str, element: &str) -> Result<String, XmlError> {
    let mut scanner = Scanner::root_within(body, root, MAX_REPLY)?;
    let mut found = None;
    while let Some(name) = scanner.child()? {
        if name == element {
            once(&mut found, scanner.text()?)?;
        } else {
            scanner.skip()?;
        }
    }
    found.ok_or(XmlError::Schema("an element is missing"))
}

/// Reads the upload id of `CreateMultipartUpload`.
///
/// # Errors
/// [`XmlError`].
pub fn parse_initiate_result(body: &[u8]) -> Result<String, XmlError> {
    one_text(body, "InitiateMultipartUploadResult", "UploadId")
}

/// Reads the entity tag (without quotes) of `CompleteMultipartUpload`. The reply may be an
/// error document in spite of status 200: look with [`parse_error`] when this fails.
///
/// # Errors
/// [`XmlError`].
pub fn parse_complete_result(body: &[u8]) -> Result<String, XmlError> {
    one_text(body, "CompleteMultipartUploadResult", "ETag").map(unquoted)
}

/// Reads the entity tag (without quotes) of `CopyObject` or `UploadPartCopy`.
///
/// # Errors
/// [`XmlError`].
pub fn parse_copy_result(body: &[u8]) -> Result<String, XmlError> {
    one_text(body, "CopyObjectResult", "ETag")
        .or_else(|_| one_text(body, "CopyPartResult", "ETag"))
        .map(unquoted)
}

/// Reads `ListBuckets`: names and times of making (Unix seconds).
///
/// # Errors
/// [`XmlError`].
pub fn parse_list_buckets(body: &[u8]) -> Result<Vec<(String, i64)>, XmlError> {
    let mut scanner = Scanner::root_within(body, "ListAllMyBucketsResult", MAX_REPLY)?;
    let mut buckets = Vec::new();
    while let Some(name) = scanner.child()? {
        if name != "Buckets" {
            scanner.skip()?;
            continue;
        }
        while scanner.child()?.is_some() {
            let (mut bucket, mut created_s) = (None, 0);
            while let Some(name) = scanner.child()? {
                match name {
                    "Name" => once(&mut bucket, scanner.text()?)?,
                    "CreationDate" => {
                        created_s = date::parse_iso8601(&scanner.text()?).unwrap_or(0);
                    }
                    _ => scanner.skip()?,
                }
            }
            buckets.push((bucket.ok_or(XmlError::Schema("no name"))?, created_s));
        }
    }
    Ok(buckets)
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// The key, decoded.
    pub key: String,
    /// Length in bytes.
    pub size: u64,
    /// Entity tag without quotes.
    pub etag: String,
    /// Last change, Unix seconds.
    pub last_modified_s: i64,
}

/// A page of `ListObjects` of either version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListReply {
    /// Objects in order.
    pub objects: Vec<ListedObject>,
    /// Common prefixes in order, decoded.
    pub common_prefixes: Vec<String>,
    /// Whether there is more.
    pub is_truncated: bool,
    /// V2: the token of the next page.
    pub next_continuation_token: Option<String>,
    /// V1: the next marker, decoded.
    pub next_marker: Option<String>,
}

/// Reads a page of `ListObjects` or `ListObjectsV2`; keys are decoded when the reply says that
/// they are encoded.
///
/// # Errors
/// [`XmlError`].
pub fn parse_list_objects(body: &[u8]) -> Result<ListReply, XmlError> {
    let mut scanner = Scanner::root_within(body, "ListBucketResult", MAX_REPLY)?;
    let mut reply = ListReply::default();
    let mut encoded = false;
    while let Some(name) = scanner.child()? {
        match name {
            "EncodingType" => encoded = scanner.text()? == "url",
            "IsTruncated" => reply.is_truncated = scanner.boolean()?,
            "NextContinuationToken" => {
                once(&mut reply.next_continuation_token, scanner.text()?)?;
            }
            "NextMarker" => once(&mut reply.next_marker, scanner.text()?)?,
            "Contents" => reply.objects.push(listed_object(&mut scanner)?),
            "CommonPrefixes" => {
                while scanner.child()?.is_some() {
                    reply.common_prefixes.push(scanner.text()?);
                }
            }
            _ => scanner.skip()?,
        }
    }
    if encoded {
        // The declaration of the encoding may come after what it governs.
        let keys = reply.objects.iter_mut().map(|object| &mut object.key);
        for text in keys
            .chain(&mut reply.common_prefixes)
            .chain(&mut reply.next_marker)
        {
            *text = decoded(text)?;
        }
    }
    Ok(reply)
}

fn decoded(text: &str) -> Result<String, XmlError> {
    percent::decode(text, true)
        .and_then(|bytes| String::from_utf8(bytes.into_owned()).ok())
        .ok_or(XmlError::Schema("a key is not encoded as announced"))
}

fn listed_object(scanner: &mut Scanner<'_>) -> Result<ListedObject, XmlError> {
    let mut key = None;
    let mut object = ListedObject {
        key: String::new(),
        size: 0,
        etag: String::new(),
        last_modified_s: 0,
    };
    while let Some(name) = scanner.child()? {
        match name {
            "Key" => once(&mut key, scanner.text()?)?,
            "Size" => object.size = scanner.number()?,
            "ETag" => object.etag = unquoted(scanner.text()?),
            "LastModified" => {
                object.last_modified_s =
                    date::parse_iso8601(&scanner.text()?).ok_or(XmlError::Schema("not a time"))?;
            }
            _ => scanner.skip()?,
        }
    }
    object.key = key.ok_or(XmlError::Schema("no key"))?;
    Ok(object)
}

/// A page of `ListParts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartsReply {
    /// Number, length in bytes, entity tag without quotes.
    pub parts: Vec<(u32, u64, String)>,
    /// Where to go on, when there is more.
    pub next_part_number_marker: Option<u32>,
}

/// Reads a page of `ListParts`.
///
/// # Errors
/// [`XmlError`].
pub fn parse_list_parts(body: &[u8]) -> Result<PartsReply, XmlError> {
    let mut scanner = Scanner::root_within(body, "ListPartsResult", MAX_REPLY)?;
    let mut reply = PartsReply::default();
    let mut is_truncated = false;
    while let Some(name) = scanner.child()? {
        match name {
            "IsTruncated" => is_truncated = scanner.boolean()?,
            "NextPartNumberMarker" => {
                once(&mut reply.next_part_number_marker, scanner.number()?)?;
            }
            "Part" => {
                let mut part = (0, 0, String::new());
                while let Some(name) = scanner.child()? {
                    match name {
                        "PartNumber" => part.0 = scanner.number()?,
                        "Size" => part.1 = scanner.number()?,
                        "ETag" => part.2 = unquoted(scanner.text()?),
                        _ => scanner.skip()?,
                    }
                }
                reply.parts.push(part);
            }
            _ => scanner.skip()?,
        }
    }
    if !is_truncated {
        reply.next_part_number_marker = None;
    }
    Ok(reply)
}

/// An upload of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedUpload {
    /// The key.
    pub key: String,
    /// The upload.
    pub upload_id: String,
    /// When it was begun, Unix seconds.
    pub initiated_s: i64,
}

/// Reads a page of `ListMultipartUploads`.
///
/// # Errors
/// [`XmlError`].
pub fn parse_list_uploads(body: &[u8]) -> Result<Vec<ListedUpload>, XmlError> {
    let mut scanner = Scanner::root_within(body, "ListMultipartUploadsResult", MAX_REPLY)?;
    let mut uploads = Vec::new();
    let mut encoded = false;
    while let Some(name) = scanner.child()? {
        match name {
            "EncodingType" => encoded = scanner.text()? == "url",
            "Upload" => {
                let mut upload = ListedUpload::default();
                while let Some(name) = scanner.child()? {
                    match name {
                        "Key" => upload.key = scanner.text()?,
                        "UploadId" => upload.upload_id = scanner.text()?,
                        "Initiated" => {
                            upload.initiated_s = date::parse_iso8601(&scanner.text()?).unwrap_or(0);
                        }
                        _ => scanner.skip()?,
                    }
                }
                uploads.push(upload);
            }
            _ => scanner.skip()?,
        }
    }
    if encoded {
        for upload in &mut uploads {
            upload.key = decoded(&upload.key)?;
        }
    }
    Ok(uploads)
}

/// What could not be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteReply {
    /// Keys that are gone; empty when the request was quiet.
    pub deleted: Vec<String>,
    /// Key, code, message.
    pub errors: Vec<(String, String, String)>,
}

/// Reads the reply to `DeleteObjects`.
///
/// # Errors
/// [`XmlError`].
pub fn parse_delete_result(body: &[u8]) -> Result<DeleteReply, XmlError> {
    let mut scanner = Scanner::root_within(body, "DeleteResult", MAX_REPLY)?;
    let mut reply = DeleteReply::default();
    while let Some(name) = scanner.child()? {
        let failed = name == "Error";
        let (mut key, mut code, mut message) = (String::new(), String::new(), String::new());
        while let Some(name) = scanner.child()? {
            match name {
                "Key" => key = scanner.text()?,
                "Code" => code = scanner.text()?,
                "Message" => message = scanner.text()?,
                _ => scanner.skip()?,
            }
        }
        if failed {
            reply.errors.push((key, code, message));
        } else {
            reply.deleted.push(key);
        }
    }
    Ok(reply)
}
