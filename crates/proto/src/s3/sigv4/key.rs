//! The key that signs a day's requests, and the instant of one request.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{ALGORITHM, CredentialScope};
use crate::{hex, s3::date};

/// A signing key, derived from a secret for one date, region and service.
///
/// Holds the hash state after the key's block, so that signing hashes only the message. Worth
/// caching by (access key, date, region, service): deriving costs four HMACs.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // HMAC takes a key of any length, so the zero key below is never used.
    Hmac::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()))
}

fn hmac(key: &[u8], message: &str) -> [u8; 32] {
    let mut mac = keyed(key);
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().into()
}

impl SigningKey {
    /// Derives the key of `date` (`YYYYMMDD`), `region` and `service` (`s3`) from a secret.
    #[must_use]
    pub fn derive(secret: &str, date: &str, region: &str, service: &str) -> SigningKey {
        let mut first = String::with_capacity(4 + secret.len());
        first.push_str("AWS4");
        first.push_str(secret);
        let date_key = hmac(first.as_bytes(), date);
        let region_key = hmac(&date_key, region);
        let service_key = hmac(&region_key, service);
        SigningKey(keyed(&hmac(&service_key, "aws4_request")))
    }

    /// A key that somebody else derived, who keeps the secret.
    #[must_use]
    pub fn from_bytes(key: &[u8; 32]) -> SigningKey {
        SigningKey(keyed(key))
    }

    /// The key for a scope, as its owner's secret makes it.
    #[must_use]
    pub fn for_scope(secret: &str, scope: &CredentialScope<'_>) -> SigningKey {
        SigningKey::derive(secret, &scope.date, &scope.region, &scope.service)
    }

    /// Signs the concatenation of `parts`.
    #[must_use]
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Signs the string to sign of a request whose canonical request hashes to `hash`.
    #[must_use]
    pub(super) fn sign_request(
        &self,
        date: &AmzDate,
        scope: &CredentialScope<'_>,
        hash: &[u8; 32],
    ) -> [u8; 32] {
        self.sign(&[
            ALGORITHM.as_bytes(),
            b"\n",
            date.as_str().as_bytes(),
            b"\n",
            scope.date.as_bytes(),
            b"/",
            scope.region.as_bytes(),
            b"/",
            scope.service.as_bytes(),
            b"/aws4_request\n",
            &hex::encode32(hash),
        ])
    }
}

/// The instant of a request, as text (`20130524T000000Z`) and as Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmzDate {
    text: [u8; 16],
    unix_s: i64,
}

impl AmzDate {
    /// The instant of a Unix time.
    #[must_use]
    pub fn from_unix_s(unix_s: i64) -> AmzDate {
        AmzDate {
            text: date::basic(unix_s),
            unix_s,
        }
    }

    /// Parses `20130524T000000Z`.
    #[must_use]
    pub fn parse(text: &str) -> Option<AmzDate> {
        let unix_s = date::parse_basic(text.as_bytes())?;
        Some(AmzDate {
            text: text.as_bytes().try_into().ok()?,
            unix_s,
        })
    }

    /// `20130524T000000Z`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The date of the scope, `20130524`.
    #[must_use]
    pub fn date(&self) -> &str {
        self.as_str().get(..8).unwrap_or_default()
    }

    /// Unix seconds.
    #[must_use]
    pub const fn unix_s(&self) -> i64 {
        self.unix_s
    }
}
