//! Bodies of `DeleteObjects` and `CompleteMultipartUpload`, read by servers, written by clients.

use super::{MAX_COMPLETE_BODY, Scanner, XmlWriter, scan::once};
use crate::s3::{
    checksum::{Algorithm, Checksum},
    error::{ErrorCode, S3Error},
};

/// The most objects that one `DeleteObjects` may name.
pub const MAX_DELETE: usize = 1000;
/// The most parts of an upload, and the highest part number.
pub const MAX_PARTS: u32 = 10_000;

/// One object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteObject {
    /// The key.
    pub key: String,
    /// The version, when one is asked for.
    pub version_id: Option<String>,
    /// Delete only when the entity tag (without quotes, or `*`) is this one.
    pub etag: Option<String>,
}

/// The body of `DeleteObjects`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRequest {
    /// Answer with errors only.
    pub quiet: bool,
    /// What to delete, 1 to [`MAX_DELETE`].
    pub objects: Vec<DeleteObject>,
}

/// Reads the body of `DeleteObjects`.
///
/// # Errors
/// `MalformedXML`, also for none or too many objects.
pub fn parse_delete(body: &[u8]) -> Result<DeleteRequest, S3Error> {
    let mut scanner = Scanner::root(body, "Delete")?;
    let mut quiet = None;
    let mut objects = Vec::new();
    while let Some(name) = scanner.child()? {
        match name {
            "Quiet" => once(&mut quiet, scanner.boolean()?)?,
            "Object" if objects.len() < MAX_DELETE => objects.push(delete_object(&mut scanner)?),
            _ => return Err(ErrorCode::MalformedXML.into()),
        }
    }
    scanner.finish()?;
    if objects.is_empty() {
        return Err(ErrorCode::MalformedXML.into());
    }
    Ok(DeleteRequest {
        quiet: quiet.unwrap_or(false),
        objects,
    })
}

fn delete_object(scanner: &mut Scanner<'_>) -> Result<DeleteObject, S3Error> {
    let (mut key, mut version_id, mut etag) = (None, None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "Key" => once(&mut key, scanner.text()?)?,
            "VersionId" => once(&mut version_id, scanner.text()?)?,
            "ETag" => once(&mut etag, unquoted(scanner.text()?))?,
            // Conditions on time and size exist for directory buckets only.
            _ => return Err(ErrorCode::NotImplemented.into()),
        }
    }
    let key = key.ok_or(ErrorCode::MalformedXML)?;
    Ok(DeleteObject {
        key,
        version_id: version_id.filter(|id| !id.is_empty()),
        etag,
    })
}

/// Writes the body of `DeleteObjects`.
#[must_use]
pub fn delete_body<'a>(
    objects: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    quiet: bool,
) -> String {
    let mut writer = XmlWriter::with_capacity("Delete", 4096);
    if quiet {
        writer.boolean("Quiet", true);
    }
    for (key, version_id) in objects {
        writer.open("Object");
        writer.text("Key", key);
        writer.optional("VersionId", version_id);
        writer.close("Object");
    }
    writer.finish("Delete")
}

/// One part of a `CompleteMultipartUpload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedPart {
    /// 1 to [`MAX_PARTS`].
    pub number: u32,
    /// Entity tag without quotes.
    pub etag: String,
    /// The part's checksum, when the client repeats it.
    pub checksum: Option<Checksum>,
}

/// Reads the body of `CompleteMultipartUpload`, at most [`MAX_COMPLETE_BODY`] bytes. The order is checked by [`check_part_order`].
///
/// # Errors
/// `MalformedXML`, also for none or too many parts; `InvalidArgument` for a part number out of
/// range; `InvalidRequest` for a checksum that is none.
pub fn parse_complete_multipart_upload(body: &[u8]) -> Result<Vec<CompletedPart>, S3Error> {
    let mut scanner = Scanner::root_within(body, "CompleteMultipartUpload", MAX_COMPLETE_BODY)?;
    let mut parts = Vec::new();
    while let Some(name) = scanner.child()? {
        if name != "Part" || parts.len() >= MAX_PARTS as usize {
            return Err(ErrorCode::MalformedXML.into());
        }
        parts.push(completed_part(&mut scanner)?);
    }
    scanner.finish()?;
    if parts.is_empty() {
        return Err(ErrorCode::MalformedXML.into());
    }
    Ok(parts)
}

fn completed_part(scanner: &mut Scanner<'_>) -> Result<CompletedPart, S3Error> {
    let (mut number, mut etag, mut checksum) = (None, None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "PartNumber" => once(&mut number, scanner.number::<u32>()?)?,
            "ETag" => once(&mut etag, unquoted(scanner.text()?))?,
            other => {
                let algorithm = Algorithm::from_element(other).ok_or(ErrorCode::MalformedXML)?;
                let text = scanner.text()?;
                let value = Checksum::parse(algorithm, text.trim_ascii()).ok_or_else(|| {
                    S3Error::with_message(
                        ErrorCode::InvalidRequest,
                        format!("Value for {} is invalid.", algorithm.header()),
                    )
                })?;
                once(&mut checksum, value)?;
            }
        }
    }
    let number = number.ok_or(ErrorCode::MalformedXML)?;
    if !(1..=MAX_PARTS).contains(&number) {
        return Err(S3Error::with_message(
            ErrorCode::InvalidArgument,
            "PartNumber must be an integer between 1 and 10000, inclusive",
        ));
    }
    Ok(CompletedPart {
        number,
        etag: etag.ok_or(ErrorCode::MalformedXML)?,
        checksum,
    })
}

/// Checks that part numbers rise.
///
/// # Errors
/// `InvalidPartOrder`.
pub fn check_part_order(parts: &[CompletedPart]) -> Result<(), S3Error> {
    if parts.windows(2).all(|pair| pair[0].number < pair[1].number) {
        Ok(())
    } else {
        Err(ErrorCode::InvalidPartOrder.into())
    }
}

/// Writes the body of `CompleteMultipartUpload`.
#[must_use]
pub fn complete_multipart_upload_body(parts: &[CompletedPart]) -> String {
    const ROOT: &str = "CompleteMultipartUpload";
    let mut writer = XmlWriter::with_capacity(ROOT, 128 + parts.len() * 128);
    for part in parts {
        writer.open("Part");
        writer.number("PartNumber", u64::from(part.number));
        writer.etag("ETag", &part.etag);
        if let Some(checksum) = &part.checksum {
            writer.text(checksum.algorithm().element(), &checksum.to_base64());
        }
        writer.close("Part");
    }
    writer.finish(ROOT)
}

/// An entity tag without its quotes and white space.
pub(super) fn unquoted(text: String) -> String {
    let trimmed = text.trim_ascii();
    let inner = trimmed
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(trimmed).to_owned()
}
