//! Header names of S3, and their values made without formatting machinery.

use forebay_proto::s3::date;
use forebay_store::{Etag, VersionId};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::status::{Outcome, Refusal};

macro_rules! names {
    ($($constant:ident = $text:literal;)*) => {
        $(pub(crate) const $constant: HeaderName = HeaderName::from_static($text);)*
    };
}

names! {
    ACL = "x-amz-acl";
    BUCKET_REGION = "x-amz-bucket-region";
    CHECKSUM_ALGORITHM = "x-amz-checksum-algorithm";
    CHECKSUM_MODE = "x-amz-checksum-mode";
    CHECKSUM_TYPE = "x-amz-checksum-type";
    CONTENT_MD5 = "content-md5";
    CONTENT_SHA256 = "x-amz-content-sha256";
    COPY_SOURCE = "x-amz-copy-source";
    COPY_SOURCE_IF_MATCH = "x-amz-copy-source-if-match";
    COPY_SOURCE_IF_MODIFIED_SINCE = "x-amz-copy-source-if-modified-since";
    COPY_SOURCE_IF_NONE_MATCH = "x-amz-copy-source-if-none-match";
    COPY_SOURCE_IF_UNMODIFIED_SINCE = "x-amz-copy-source-if-unmodified-since";
    COPY_SOURCE_RANGE = "x-amz-copy-source-range";
    COPY_SOURCE_VERSION_ID = "x-amz-copy-source-version-id";
    DECODED_CONTENT_LENGTH = "x-amz-decoded-content-length";
    DELETE_MARKER = "x-amz-delete-marker";
    EXPIRATION = "x-amz-expiration";
    EXPECTED_BUCKET_OWNER = "x-amz-expected-bucket-owner";
    METADATA_DIRECTIVE = "x-amz-metadata-directive";
    MP_OBJECT_SIZE = "x-amz-mp-object-size";
    MP_PARTS_COUNT = "x-amz-mp-parts-count";
    OBJECT_ATTRIBUTES = "x-amz-object-attributes";
    MAX_PARTS = "x-amz-max-parts";
    PART_NUMBER_MARKER = "x-amz-part-number-marker";
    OBJECT_LOCK_ENABLED = "x-amz-bucket-object-lock-enabled";
    REQUEST_ID = "x-amz-request-id";
    SDK_CHECKSUM_ALGORITHM = "x-amz-sdk-checksum-algorithm";
    SOURCE_EXPECTED_BUCKET_OWNER = "x-amz-source-expected-bucket-owner";
    STORAGE_CLASS = "x-amz-storage-class";
    TAGGING = "x-amz-tagging";
    TAGGING_COUNT = "x-amz-tagging-count";
    TAGGING_DIRECTIVE = "x-amz-tagging-directive";
    TRAILER = "x-amz-trailer";
    VERSION_ID = "x-amz-version-id";
    WRITE_OFFSET_BYTES = "x-amz-write-offset-bytes";
    LOGS = "x-forebay-logs";
    OUTPUT_LENGTH = "x-forebay-output-length";
    PROGRAM_CODE = "x-forebay-program-code";
    READ_LENGTH = "x-forebay-read-length";
}

pub(crate) const TRUE: HeaderValue = HeaderValue::from_static("true");
pub(crate) const BYTES: HeaderValue = HeaderValue::from_static("bytes");
pub(crate) const OCTET_STREAM: HeaderValue = HeaderValue::from_static("binary/octet-stream");
pub(crate) const SERVER: HeaderValue = HeaderValue::from_static("forebay");

/// The value of a header as text; absent when it is not visible ASCII.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// As [`text`], refusing a value that is not visible ASCII.
pub(crate) fn legible<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Outcome<Option<&'a str>> {
    headers
        .get(name)
        .map(|value| value.to_str())
        .transpose()
        .map_err(|_| Refusal::argument(name.as_str(), "", "The header is not visible ASCII."))
}

/// A number; anything else is refused.
pub(crate) fn number<N: std::str::FromStr>(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Outcome<Option<N>> {
    legible(headers, name)?
        .map(|value| {
            value.parse().map_err(|_| {
                Refusal::argument(name.as_str(), value, "The header is not a number in range.")
            })
        })
        .transpose()
}

/// An entity tag in its quotes.
pub(crate) fn etag_value(etag: &Etag) -> HeaderValue {
    let mut quoted = [b'"'; forebay_store::limits::ETAG_BYTES_MAX + 2];
    let text = etag.as_str().as_bytes();
    quoted[1..=text.len()].copy_from_slice(text);
    value(&quoted[..text.len() + 2])
}

/// A version as S3 clients see it: 32 hexadecimal digits, or `null`.
pub fn version_text(version: VersionId) -> String {
    if version == VersionId::NULL {
        return "null".to_owned();
    }
    format!("{:032x}", version.0)
}

/// A version in a header.
pub(crate) fn version_value(version: VersionId) -> HeaderValue {
    if version == VersionId::NULL {
        return HeaderValue::from_static("null");
    }
    value(version_text(version).as_bytes())
}

/// Reads what [`version_text`] writes.
pub fn read_version(text: &str) -> Option<VersionId> {
    if text == "null" {
        return Some(VersionId::NULL);
    }
    let legal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    legal
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
        .filter(|id| *id != 0)
        .map(VersionId)
}

/// The version that a request names.
pub(crate) fn parse_version(text: &str) -> Outcome<VersionId> {
    read_version(text)
        .ok_or_else(|| Refusal::argument("versionId", text, "Invalid version id specified"))
}

/// An HTTP date, from Unix milliseconds.
pub(crate) fn date_value(unix_ms: u64) -> HeaderValue {
    let unix_s = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    value(date::http_date(unix_s).as_bytes())
}

/// Bytes as a value; those that no header may carry leave it empty.
pub(crate) fn value(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(bytes).unwrap_or(HeaderValue::from_static(""))
}
