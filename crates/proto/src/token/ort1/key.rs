//! Keys and tags: what makes a token its session's own.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::TokenError;
use super::seal::TAG_BYTES;
use crate::s3::percent::{self, Slash};
use crate::s3::sigv4::{SigningKey, canonical_query};

/// HMAC-SHA256 of the concatenation of `parts`.
fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes a key of any length, so the zero key below is never used.
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()));
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn truncated(mac: &[u8; 32]) -> [u8; TAG_BYTES] {
    std::array::from_fn(|at| mac[at])
}

/// The key of a session. `signing` is the SigV4 key of the connect request, which both sides have and none sends.
#[must_use]
pub fn session_key(
    signing: &SigningKey,
    session: &[u8; 16],
    client_nonce: &[u8; 16],
    server_nonce: &[u8; 16],
) -> [u8; 32] {
    signing.sign(&[b"ort1 session\0", session, client_nonce, server_nonce])
}

/// The request that a tag covers, as it stands in the request line.
#[derive(Clone, Copy, Debug)]
pub struct Covered<'a> {
    /// `GET`, `PUT`.
    pub method: &'a str,
    /// The path, percent-encoded.
    pub path: &'a str,
    /// The query without `?`; empty for none. Of a presigned URL all but the signature itself is covered.
    pub query: &'a str,
    /// The value of `Range`; empty for none.
    pub range: &'a str,
}

/// The tag of a payload for one request.
pub(super) fn tag(key: &[u8; 32], payload: &[u8], request: &Covered<'_>) -> [u8; TAG_BYTES] {
    let path = match request.path {
        "" => "/",
        path => path,
    };
    let path = percent::canonical(path, Slash::Keep, false);
    let query = canonical_query(request.query);
    truncated(&mac(
        key,
        &[
            b"ort1 token\0",
            payload,
            request.method.as_bytes(),
            b"\n",
            path.as_bytes(),
            b"\n",
            query.as_bytes(),
            b"\n",
            request.range.trim_ascii().as_bytes(),
            b"\n",
        ],
    ))
}

/// Compares in constant time.
pub(super) fn same(one: &[u8; TAG_BYTES], other: &[u8; TAG_BYTES]) -> bool {
    one.ct_eq(other).into()
}

/// Decodes base64url without padding, in its one canonical spelling, into the start of `into`.
pub(super) fn unbase64<'b>(text: &str, into: &'b mut [u8]) -> Result<&'b [u8], TokenError> {
    let malformed = TokenError::Malformed("the token is not base64url in its canonical spelling");
    let length = base64_simd::URL_SAFE_NO_PAD
        .decoded_length(text.as_bytes())
        .map_err(|_| malformed)?;
    let into = into
        .get_mut(..length)
        .ok_or(TokenError::Malformed("the token is too long"))?;
    let decoded = base64_simd::URL_SAFE_NO_PAD
        .decode(text.as_bytes(), base64_simd::Out::from_slice(&mut *into))
        .map_err(|_| malformed)?;
    let length = decoded.len();
    // The bits behind the last whole byte are zero in the canonical spelling; a decoder may overlook them.
    let spare = match text.len() % 4 {
        2 => 0x0f,
        3 => 0x03,
        _ => 0,
    };
    let last = text.as_bytes().last().copied().and_then(sextet);
    match last.unwrap_or(0) & spare {
        0 => Ok(&into[..length]),
        _ => Err(malformed),
    }
}

fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}
