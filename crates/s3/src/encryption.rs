//! Server-side encryption is refused by name until there is a layer that does it: bytes that a client believes encrypted
//! must never be stored in the clear.

use forebay_proto::s3::error::ErrorCode;
use http::header::HeaderMap;

use crate::status::{Outcome, Refusal};

const PREFIXES: [&str; 2] = [
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
];

/// Refuses a request that asks for encryption (SSE-S3, SSE-KMS, SSE-C).
///
/// # Errors
/// `NotImplemented`.
pub(crate) fn refuse(request: &HeaderMap) -> Outcome<()> {
    let asked = request.keys().find(|name| {
        PREFIXES
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix))
    });
    match asked {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            ErrorCode::NotImplemented,
            format!("Server-side encryption is not available here; remove the header {name}."),
        )),
    }
}
