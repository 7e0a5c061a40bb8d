//! The client's side: signing headers and making presigned URLs.

use super::{
    ALGORITHM, AmzDate, CredentialScope, HeaderLookup, MAX_EXPIRES_S, Request, SigningKey,
    UNSIGNED_PAYLOAD, canonical_request_hash,
};
use crate::{
    hex,
    s3::percent::{self, Slash},
};

/// Signs a request over `signed_headers` (lower case, sorted, `;` between; must hold `host` and
/// every `x-amz-*` header of the request). `payload_hash` is the value of
/// `x-amz-content-sha256`.
#[must_use]
pub fn sign<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    signed_headers: &str,
    payload_hash: &str,
    date: &AmzDate,
    scope: &CredentialScope<'_>,
    key: &SigningKey,
) -> [u8; 32] {
    let hash = canonical_request_hash(request, signed_headers, payload_hash);
    key.sign_request(date, scope, &hash)
}

/// The value of the `Authorization` header for a signature made by [`sign`].
#[must_use]
pub fn authorization_header(
    scope: &CredentialScope<'_>,
    signed_headers: &str,
    signature: &[u8; 32],
) -> String {
    let mut text = String::with_capacity(160 + scope.access_key.len() + signed_headers.len());
    text.push_str(ALGORITHM);
    text.push_str(" Credential=");
    for part in [
        &scope.access_key,
        &scope.date,
        &scope.region,
        &scope.service,
    ] {
        text.push_str(part);
        text.push('/');
    }
    text.push_str("aws4_request,SignedHeaders=");
    text.push_str(signed_headers);
    text.push_str(",Signature=");
    text.push_str(&hex::encode(signature));
    text
}

/// Makes the whole query of a presigned URL: the request's own query, then the `X-Amz-*`
/// parameters, then the signature. `expires_s` is clamped to 1..=[`MAX_EXPIRES_S`].
#[must_use]
pub fn presign<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    signed_headers: &str,
    date: &AmzDate,
    expires_s: u32,
    scope: &CredentialScope<'_>,
    key: &SigningKey,
) -> String {
    let mut query = String::with_capacity(request.query.len() + 320);
    query.push_str(request.query);
    if !query.is_empty() {
        query.push('&');
    }
    query.push_str("X-Amz-Algorithm=");
    query.push_str(ALGORITHM);
    query.push_str("&X-Amz-Credential=");
    percent::encode_into(&mut query, scope.access_key.as_bytes(), Slash::Encode);
    query.push_str("%2F");
    percent::encode_into(&mut query, scope.to_text().as_bytes(), Slash::Encode);
    query.push_str("&X-Amz-Date=");
    query.push_str(date.as_str());
    query.push_str("&X-Amz-Expires=");
    query.push_str(itoa::Buffer::new().format(expires_s.clamp(1, MAX_EXPIRES_S)));
    query.push_str("&X-Amz-SignedHeaders=");
    percent::encode_into(&mut query, signed_headers.as_bytes(), Slash::Encode);
    let signature = {
        let request = Request {
            query: &query,
            ..*request
        };
        sign(&request, signed_headers, UNSIGNED_PAYLOAD, date, scope, key)
    };
    query.push_str("&X-Amz-Signature=");
    query.push_str(&hex::encode(&signature));
    query
}
