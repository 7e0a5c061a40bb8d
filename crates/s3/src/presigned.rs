//! Headers that stand in the query of a presigned URL.
//!
//! SDKs move a request's `x-amz-*` headers there, so that whoever is given the URL need not send them, and S3 takes them from there.
//! What names a payload that is no body, or where it is to go, or asks for encryption, is refused: ignored, it would have something
//! else stored than was meant. So is a condition that is not looked at: what it is to keep would be removed. Checksums count where they
//! are about the object. Elsewhere SDKs move along those of a body that they did not have, which stay ignored.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::Query;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::claims::Proof;
use crate::conditions::OF_DIRECTORY_BUCKETS;
use crate::router::Operation;
use crate::status::{Outcome, Refusal};

const TAKEN: [&str; 10] = [
    "x-amz-acl",
    "x-amz-bucket-object-lock-enabled",
    "x-amz-expected-bucket-owner",
    "x-amz-max-parts",
    "x-amz-mp-object-size",
    "x-amz-object-attributes",
    "x-amz-part-number-marker",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
];
const TAKEN_PREFIXES: [&str; 3] = ["x-amz-grant-", "x-amz-meta-", "x-amz-object-lock-"];
const CHECKSUM_PREFIX: &str = "x-amz-checksum-";
const REFUSED_PREFIXES: [&str; 5] = [
    "x-amz-copy-source",
    OF_DIRECTORY_BUCKETS,
    "x-amz-rdma-",
    "x-amz-server-side-encryption",
    "x-amz-write-offset-bytes",
];

/// Whether checksums of a request are about the object: which one it is to have, which one it has, and whether to show it.
fn sums_up_object(op: Operation) -> bool {
    matches!(
        op,
        Operation::GetObject
            | Operation::HeadObject
            | Operation::CreateMultipartUpload
            | Operation::CompleteMultipartUpload
    )
}

/// The headers of a request with those of its query, where a verified signature covers them there; `None` when that has none. What
/// came as a header counts, and not what the query says of it.
///
/// # Errors
/// `NotImplemented`, `InvalidArgument`.
pub(crate) fn joined(
    op: Operation,
    proof: &Proof,
    query: &Query<'_>,
    request: &HeaderMap,
) -> Outcome<Option<HeaderMap>> {
    if !proof.presigned {
        return Ok(None);
    }
    let mut joined = None;
    for (name, value) in query.iter() {
        let name = name.to_ascii_lowercase();
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if begins(&REFUSED_PREFIXES) {
            return Err(Refusal::new(
                ErrorCode::NotImplemented,
                format!("{name} is not taken from the query of a presigned URL."),
            ));
        }
        let taken = TAKEN.contains(&&*name)
            || begins(&TAKEN_PREFIXES)
            || sums_up_object(op) && name.starts_with(CHECKSUM_PREFIX);
        if !taken || request.contains_key(&name) {
            continue;
        }
        let (Ok(header), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        ) else {
            let text = String::from_utf8_lossy(value);
            return Err(Refusal::argument(
                &name,
                &text,
                "The value cannot stand in a header.",
            ));
        };
        joined
            .get_or_insert_with(|| request.clone())
            .append(header, value);
    }
    Ok(joined)
}
