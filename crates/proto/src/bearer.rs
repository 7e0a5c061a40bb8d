//! Bearer tokens that a client makes from its access key, so that no secret travels.
//!
//! `fbk1.<access key id>.<expiry>.<tag>`: the expiry in decimal seconds since 1970, the tag in base64url without padding:
//! `HMAC-SHA256(secret, "fbk1 bearer" 00 || id || "." || expiry)`. Whoever sees a token can use it until it expires, and nobody can
//! make one live longer: doors take it over TLS, or on loopback.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The longest token in bytes: an id of 128, twenty digits, a tag of 43.
pub const BEARER_BYTES_MAX: usize = PREFIX.len() + 128 + 1 + 20 + 1 + TAG_TEXT_BYTES;
/// How far ahead an expiry may lie, in seconds: as far as that of a presigned URL.
pub const LIFETIME_S_MAX: u64 = 7 * 24 * 3600;
/// How far the client's clock may be ahead of the server's, in seconds.
pub const CLOCK_SKEW_S: u64 = 15 * 60;

const PREFIX: &str = "fbk1.";
const LABEL: &[u8] = b"fbk1 bearer\0";
const TAG_BYTES: usize = 32;
const TAG_TEXT_BYTES: usize = 43;

/// Why a token proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    /// It does not have the form above.
    #[error("the token has not the form fbk1.ID.EXPIRY.TAG")]
    Malformed,
    /// The tag is not that of this key; or there is no such key.
    #[error("the token was not made with this access key")]
    Forged,
    /// It is genuine and too old.
    #[error("the token has expired, or the clock of whoever made it is slow")]
    Expired,
    /// It is genuine and lives longer than [`LIFETIME_S_MAX`].
    #[error("the token lives longer than {LIFETIME_S_MAX} s")]
    TooLong,
}

/// A token as a client claims it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bearer<'a> {
    /// The access key's public half.
    pub access_key: &'a str,
    /// When it expires, in seconds since 1970.
    pub expires_s: u64,
    expiry: &'a str,
    tag: [u8; TAG_BYTES],
}

impl<'a> Bearer<'a> {
    /// Reads a token; nothing is proved by that.
    ///
    /// # Errors
    /// [`BearerError::Malformed`], for a second spelling of the same token too.
    pub fn parse(token: &'a str) -> Result<Bearer<'a>, BearerError> {
        let parsed = || {
            if token.len() > BEARER_BYTES_MAX {
                return None;
            }
            // An id may hold dots; expiry and tag do not.
            let (rest, tag) = token.strip_prefix(PREFIX)?.rsplit_once('.')?;
            let (access_key, expiry) = rest.rsplit_once('.')?;
            let canonical = !access_key.is_empty()
                && !expiry.starts_with('0')
                && expiry.bytes().all(|digit| digit.is_ascii_digit());
            if !canonical || tag.len() != TAG_TEXT_BYTES {
                return None;
            }
            let decoded = base64_simd::URL_SAFE_NO_PAD
                .decode_to_vec(tag)
                .ok()
                .filter(|bytes| base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes) == tag)?;
            Some(Bearer {
                access_key,
                expires_s: expiry.parse().ok()?,
                expiry,
                tag: decoded.try_into().ok()?,
            })
        };
        parsed().ok_or(BearerError::Malformed)
    }

    /// Checks the tag, then the time. Without a `secret`, which is what an unknown key has, it takes as long and is
    /// [`BearerError::Forged`].
    ///
    /// # Errors
    /// All but [`BearerError::Malformed`].
    pub fn check(&self, secret: Option<&str>, now_s: u64) -> Result<(), BearerError> {
        let expected = tag(secret.unwrap_or_default(), self.access_key, self.expiry);
        let genuine = bool::from(expected.ct_eq(&self.tag)) & secret.is_some();
        if !genuine {
            return Err(BearerError::Forged);
        }
        if self.expires_s <= now_s {
            return Err(BearerError::Expired);
        }
        if self.expires_s - now_s > LIFETIME_S_MAX + CLOCK_SKEW_S {
            return Err(BearerError::TooLong);
        }
        Ok(())
    }
}

/// Makes a token that expires at `expires_s`, in seconds since 1970.
#[must_use]
pub fn make(access_key: &str, secret: &str, expires_s: u64) -> String {
    let expiry = expires_s.to_string();
    let tag = tag(secret, access_key, &expiry);
    let tag = base64_simd::URL_SAFE_NO_PAD.encode_to_string(tag);
    format!("{PREFIX}{access_key}.{expiry}.{tag}")
}

fn tag(secret: &str, access_key: &str, expiry: &str) -> [u8; TAG_BYTES] {
    // HMAC takes keys of any length; the default key is never reached.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .unwrap_or_else(|_| Hmac::new(&Default::default()));
    for part in [LABEL, access_key.as_bytes(), b".", expiry.as_bytes()] {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_790_000_000;

    fn verdict(token: &str, secret: Option<&str>, now: u64) -> Result<(), BearerError> {
        Bearer::parse(token)?.check(secret, now)
    }

    #[test]
    fn known_answer() {
        // By Python's hmac module.
        assert_eq!(
            make("FBEXAMPLE", "secret-of-the-example", NOW),
            "fbk1.FBEXAMPLE.1790000000.rtV_yRV1QMm9dxnKYQKwj3y05-tjweRtnJ-DcUqAHW4"
        );
    }

    #[test]
    fn a_token_proves_its_key_until_it_expires() {
        let token = make("key.with.dots", "a secret", NOW + 60);
        let bearer = Bearer::parse(&token).unwrap();
        assert_eq!(
            (bearer.access_key, bearer.expires_s),
            ("key.with.dots", NOW + 60)
        );
        assert_eq!(verdict(&token, Some("a secret"), NOW), Ok(()));
        assert_eq!(verdict(&token, Some("a secret"), NOW + 59), Ok(()));
        assert_eq!(
            verdict(&token, Some("a secret"), NOW + 60),
            Err(BearerError::Expired)
        );
        assert_eq!(
            verdict(&token, Some("a secres"), NOW),
            Err(BearerError::Forged)
        );
        assert_eq!(verdict(&token, None, NOW), Err(BearerError::Forged));
        // A forged token does not tell that its key's tokens expire.
        assert_eq!(verdict(&token, None, NOW + 60), Err(BearerError::Forged));
        let unknown = make("nobody", "", NOW + 60);
        assert_eq!(verdict(&unknown, None, NOW), Err(BearerError::Forged));
    }

    #[test]
    fn a_token_cannot_live_for_ever() {
        let longest = NOW + LIFETIME_S_MAX + CLOCK_SKEW_S;
        assert_eq!(verdict(&make("id", "s", longest), Some("s"), NOW), Ok(()));
        let token = make("id", "s", longest + 1);
        assert_eq!(verdict(&token, Some("s"), NOW), Err(BearerError::TooLong));
        assert_eq!(
            verdict(&make("id", "s", u64::MAX), Some("s"), 0),
            Err(BearerError::TooLong)
        );
    }

    #[test]
    fn other_spellings_are_refused() {
        let token = make("id", "s", NOW + 60);
        let (head, tag) = token.rsplit_once('.').unwrap();
        // The last character of 32 bytes in base64 carries two bits of padding, which must be zero.
        let last = tag.chars().next_back().unwrap();
        let sloppy = char::from_u32(u32::from(last) + 1).unwrap();
        for wrong in [
            String::new(),
            "fbk1".into(),
            "fbk1...".into(),
            token[..token.len() - 1].into(),
            format!("{token}="),
            format!("{token}A"),
            format!("{head}.{}{sloppy}", &tag[..tag.len() - 1]),
            token.replacen("fbk1", "fbk2", 1),
            token.replacen(".id.", "..", 1),
            token.replacen("id.", "id.0", 1),
            token.replacen("id.", "id.+", 1),
            token.replacen("id.", &format!("{}.", "x".repeat(200)), 1),
        ] {
            assert_eq!(
                Bearer::parse(&wrong),
                Err(BearerError::Malformed),
                "{wrong:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_what_was_made(text in "(fbk1\\.)?[ -~]{0,220}") {
            let _ = Bearer::parse(&text).map(|bearer| bearer.check(Some("s"), NOW));
        }

        #[test]
        fn a_changed_byte_proves_nothing(at in 5usize..200, to in "[A-Za-z0-9._-]") {
            let token = make("FBKEY", "a secret", NOW + 60);
            let at = at % token.len();
            let mut changed = token.clone();
            changed.replace_range(at..at + 1, &to);
            prop_assume!(changed != token);
            prop_assert!(verdict(&changed, Some("a secret"), NOW).is_err());
        }
    }
}
