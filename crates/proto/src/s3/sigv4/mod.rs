//! AWS Signature Version 4 with HMAC-SHA256, as S3 uses it.
//!
//! A door does: [`authorization`] (who claims to ask, borrowed from the request), look up the
//! secret of [`Authorization::scope`]'s access key, [`SigningKey::derive`] (cache it by access
//! key, date, region and service: it changes once a day), [`verify`] with the time. A client
//! does: [`sign`] + [`authorization_header`], or [`presign`]. The body is checked by who reads
//! it: [`Payload`] says how, and [`crate::s3::chunked`] decodes the streaming forms.
//!
//! The canonical request is streamed into the hash; it is never built as a string. Paths are
//! never normalised (`//` and `..` are parts of keys).
//!
//! Not here: Signature Version 2, SigV4A (ECDSA), browser POST policies: refused by name.

mod canonical;
mod key;
mod scope;
mod sign;
mod verify;

pub use canonical::{HeaderLookup, Request, canonical_query, canonical_request_hash};
pub use key::{AmzDate, SigningKey};
pub use scope::{Authorization, CredentialScope, PresignedTime, authorization};
pub use scope::{parse_authorization, parse_presigned};
pub use sign::{authorization_header, presign, sign};
pub use verify::{Payload, Verified, verify};

use super::error::{ErrorCode, S3Error};

/// The only algorithm accepted.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How far a request's clock may be from ours, in seconds.
pub const MAX_SKEW_S: i64 = 15 * 60;
/// The longest life of a presigned URL, in seconds.
pub const MAX_EXPIRES_S: u32 = 604_800;
/// The payload hash of a body that is not signed.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// SHA-256 of nothing, in hexadecimal.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Why a request's identity was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The scheme is not `AWS4-HMAC-SHA256`.
    #[error("unsupported authorization mechanism")]
    UnsupportedAlgorithm,
    /// The `Authorization` header does not follow its grammar; the reason says where.
    #[error("malformed authorization header: {0}")]
    MalformedHeader(&'static str),
    /// The `X-Amz-*` query parameters do not follow their grammar.
    #[error("malformed authorization query: {0}")]
    MalformedQuery(&'static str),
    /// Both a header and a query signature were given.
    #[error("two authorization mechanisms in one request")]
    TwoMechanisms,
    /// A header that must be there is missing.
    #[error("missing header {0}")]
    MissingHeader(&'static str),
    /// `x-amz-content-sha256` is none of the allowed values.
    #[error("invalid x-amz-content-sha256")]
    InvalidContentSha256,
    /// `host` or a present `x-amz-*` header is not covered by the signature.
    #[error("headers present in the request were not signed")]
    HeadersNotSigned,
    /// The request's clock is more than [`MAX_SKEW_S`] from ours.
    #[error("request time too skewed")]
    TimeTooSkewed,
    /// The presigned URL's life is over.
    #[error("presigned request has expired")]
    Expired,
    /// The presigned URL's life has not begun.
    #[error("presigned request is not yet valid")]
    NotYetValid,
    /// The signature is not the one that the secret makes.
    #[error("signature does not match")]
    SignatureDoesNotMatch,
}

impl AuthError {
    /// The S3 code of the refusal.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            AuthError::UnsupportedAlgorithm => ErrorCode::UnsupportedAlgorithm,
            AuthError::MalformedHeader(_) => ErrorCode::AuthorizationHeaderMalformed,
            AuthError::MalformedQuery(_) => ErrorCode::AuthorizationQueryParametersError,
            AuthError::TwoMechanisms | AuthError::InvalidContentSha256 => {
                ErrorCode::InvalidArgument
            }
            AuthError::MissingHeader(_) => ErrorCode::MissingSecurityHeader,
            AuthError::HeadersNotSigned => ErrorCode::HeadersNotSigned,
            AuthError::TimeTooSkewed => ErrorCode::RequestTimeTooSkewed,
            AuthError::Expired | AuthError::NotYetValid => ErrorCode::AccessDenied,
            AuthError::SignatureDoesNotMatch => ErrorCode::SignatureDoesNotMatch,
        }
    }
}

impl From<AuthError> for S3Error {
    fn from(error: AuthError) -> S3Error {
        let code = error.code();
        match error {
            AuthError::MalformedHeader(reason) => S3Error::with_message(
                code,
                format!("The authorization header is malformed; {reason}"),
            ),
            AuthError::MalformedQuery(reason) => S3Error::with_message(code, reason),
            AuthError::TwoMechanisms => S3Error::with_message(
                code,
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter or \
                 the Authorization header should be specified",
            ),
            AuthError::InvalidContentSha256 => S3Error::with_message(
                code,
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, \
                 STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, \
                 STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
            )
            .field("ArgumentName", "x-amz-content-sha256"),
            AuthError::MissingHeader(name) => S3Error::with_message(
                code,
                format!("Missing required header for this request: {name}"),
            ),
            AuthError::Expired => S3Error::with_message(code, "Request has expired"),
            AuthError::NotYetValid => S3Error::with_message(code, "Request is not yet valid"),
            AuthError::UnsupportedAlgorithm
            | AuthError::HeadersNotSigned
            | AuthError::TimeTooSkewed
            | AuthError::SignatureDoesNotMatch => S3Error::new(code),
        }
    }
}

#[cfg(test)]
mod tests;
