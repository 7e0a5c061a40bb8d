//! The server's side: is this request what the owner of the secret signed, now?

use subtle::ConstantTimeEq;

use super::canonical::{self, PathForm};
use super::{
    AmzDate, AuthError, Authorization, HeaderLookup, MAX_SKEW_S, Request, SigningKey,
    UNSIGNED_PAYLOAD,
};
use crate::{
    hex,
    s3::{
        date,
        percent::{self, Slash},
    },
};

/// What `x-amz-content-sha256` says about the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The body is not signed.
    Unsigned,
    /// The body must hash to this SHA-256.
    Sha256([u8; 32]),
    /// `aws-chunked` with a signature on each chunk, and on the trailers when there are any.
    SignedChunks {
        /// `...-TRAILER`: trailers and their signature follow the last chunk.
        trailer: bool,
    },
    /// `aws-chunked` without signatures, trailers after the last chunk.
    UnsignedChunksTrailer,
}

impl Payload {
    /// Parses the value of `x-amz-content-sha256`.
    ///
    /// # Errors
    /// [`AuthError::InvalidContentSha256`] for anything but the known words and 64 digits.
    pub fn parse(text: &str) -> Result<Payload, AuthError> {
        match text {
            UNSIGNED_PAYLOAD => Ok(Payload::Unsigned),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Ok(Payload::SignedChunks { trailer: false }),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => {
                Ok(Payload::SignedChunks { trailer: true })
            }
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(Payload::UnsignedChunksTrailer),
            digits => hex::decode::<32>(digits.as_bytes())
                .map(Payload::Sha256)
                .ok_or(AuthError::InvalidContentSha256),
        }
    }

    /// Whether the body is framed in `aws-chunked`.
    #[must_use]
    pub const fn is_chunked(self) -> bool {
        matches!(
            self,
            Payload::SignedChunks { .. } | Payload::UnsignedChunksTrailer
        )
    }
}

/// What a verified request is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The instant that was signed; chunk signatures repeat it.
    pub date: AmzDate,
    /// How the body is to be checked.
    pub payload: Payload,
}

/// Verifies a claim against the request it came with, at `now_s` Unix seconds.
///
/// Checks, in this order: `host` and every `x-amz-*` header are signed, the clock, the
/// signature (in constant time). The body is not looked at.
///
/// # Errors
/// Any [`AuthError`] but the two of parsing.
pub fn verify<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    claim: &Authorization<'_>,
    key: &SigningKey,
    now_s: i64,
) -> Result<Verified, AuthError> {
    check_coverage(request.headers, claim)?;
    let (date, payload_text) = match &claim.presigned {
        Some(time) => {
            let age_s = now_s.saturating_sub(time.date.unix_s());
            if age_s < -MAX_SKEW_S {
                return Err(AuthError::NotYetValid);
            }
            if age_s > i64::from(time.expires_s) {
                return Err(AuthError::Expired);
            }
            (time.date, presigned_payload(request, claim))
        }
        None => {
            let date = header_date(request.headers)?;
            if date.unix_s().abs_diff(now_s) > MAX_SKEW_S.unsigned_abs() {
                return Err(AuthError::TimeTooSkewed);
            }
            let text = request
                .headers
                .first_value("x-amz-content-sha256")
                .ok_or(AuthError::MissingHeader("x-amz-content-sha256"))?;
            (date, text)
        }
    };
    if claim.scope.date != date.date() {
        return Err(match claim.presigned {
            Some(_) => AuthError::MalformedQuery("Invalid credential date"),
            None => AuthError::MalformedHeader("Invalid credential date."),
        });
    }
    if claim.scope.service != "s3" {
        return Err(match claim.presigned {
            Some(_) => {
                AuthError::MalformedQuery("incorrect service. This endpoint belongs to \"s3\".")
            }
            None => {
                AuthError::MalformedHeader("incorrect service. This endpoint belongs to \"s3\".")
            }
        });
    }
    let payload = Payload::parse(&payload_text)?;
    let matches = |form| {
        let hash = canonical::hash(request, &claim.signed_headers, &payload_text, form);
        bool::from(
            key.sign_request(&date, &claim.scope, &hash)
                .ct_eq(&claim.signature),
        )
    };
    // A path that is not spelt canonically may have been signed as it was sent: that signature
    // covers the very bytes of this request, so accepting it accepts nothing else.
    let accepted = matches(PathForm::Canonical)
        || (!percent::is_canonical(request.path, Slash::Keep) && matches(PathForm::AsSent));
    if accepted {
        Ok(Verified { date, payload })
    } else {
        Err(AuthError::SignatureDoesNotMatch)
    }
}

/// `host` and all `x-amz-*` headers must be signed, or an intermediary could add them.
fn check_coverage<H: HeaderLookup + ?Sized>(
    headers: &H,
    claim: &Authorization<'_>,
) -> Result<(), AuthError> {
    let mut covered = claim.signs("host");
    headers.names(&mut |name| {
        // Clients leave their own name out of what a presigned URL signs; it decides nothing.
        let free = !name.starts_with("x-amz-") || name == "x-amz-user-agent";
        covered &= free || claim.signs(name);
    });
    if covered {
        Ok(())
    } else {
        Err(AuthError::HeadersNotSigned)
    }
}

fn header_date<H: HeaderLookup + ?Sized>(headers: &H) -> Result<AmzDate, AuthError> {
    if let Some(text) = headers.first_value("x-amz-date") {
        return AmzDate::parse(&text).ok_or(AuthError::MalformedHeader("invalid x-amz-date."));
    }
    let text = headers
        .first_value("date")
        .ok_or(AuthError::MissingHeader("x-amz-date"))?;
    AmzDate::parse(&text)
        .or_else(|| date::parse_http_date(&text).map(AmzDate::from_unix_s))
        .ok_or(AuthError::MalformedHeader("invalid date."))
}

/// A presigned URL signs no body unless it says so in a signed header or in its query.
fn presigned_payload<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    claim: &Authorization<'_>,
) -> String {
    if claim.signs("x-amz-content-sha256")
        && let Some(text) = request.headers.first_value("x-amz-content-sha256")
    {
        return text;
    }
    request
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("X-Amz-Content-Sha256="))
        .unwrap_or(UNSIGNED_PAYLOAD)
        .to_owned()
}
