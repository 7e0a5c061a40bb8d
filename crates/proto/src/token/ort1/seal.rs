//! A payload with its tag: the text of a token.

use super::key::{self, Covered};
use super::{OpenToken, TokenError};
use crate::token::TOKEN_BYTES_MAX;

/// The bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The characters of a tag.
const TAG_CHARS: usize = 22;
const PREFIX: &str = "ort1.";
/// The longest payload, in bytes: what is left of a header's [`TOKEN_BYTES_MAX`].
pub const PAYLOAD_BYTES_MAX: usize = (TOKEN_BYTES_MAX - PREFIX.len() - 1 - TAG_CHARS) / 4 * 3;

/// The bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    bytes: [u8; PAYLOAD_BYTES_MAX],
    length: usize,
}

impl Default for Payload {
    fn default() -> Payload {
        Payload {
            bytes: [0; PAYLOAD_BYTES_MAX],
            length: 0,
        }
    }
}

impl Payload {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), TokenError> {
        let end = self.length + bytes.len();
        self.bytes
            .get_mut(self.length..end)
            .ok_or(TokenError::Malformed(
                "the token does not fit into a header",
            ))?
            .copy_from_slice(bytes);
        self.length = end;
        Ok(())
    }
}

impl OpenToken {
    /// The text of this token for one request of its session.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] when no server would take it.
    pub fn seal(&self, key: &[u8; 32], request: &Covered<'_>) -> Result<String, TokenError> {
        let payload = self.encode()?;
        let tag = key::tag(key, payload.as_bytes(), request);
        let mut text = String::with_capacity(TOKEN_BYTES_MAX);
        text.push_str(PREFIX);
        base64_simd::URL_SAFE_NO_PAD.encode_append(payload.as_bytes(), &mut text);
        text.push('.');
        base64_simd::URL_SAFE_NO_PAD.encode_append(tag, &mut text);
        Ok(text)
    }
}

/// A token as it came. What it says is worth nothing before [`Sealed::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    token: OpenToken,
    payload: Payload,
    tag: [u8; TAG_BYTES],
}

impl Sealed {
    /// Reads the text of a token.
    ///
    /// # Errors
    /// As [`OpenToken::decode`].
    pub fn parse(text: &str) -> Result<Sealed, TokenError> {
        let malformed = TokenError::Malformed;
        let (payload, tag) = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('.'))
            .ok_or(malformed("the token is not made of three parts"))?;
        let mut tag_bytes = [0; TAG_BYTES];
        if tag.len() != TAG_CHARS {
            return Err(malformed("the tag is not 16 bytes long"));
        }
        key::unbase64(tag, &mut tag_bytes)?;
        let mut bytes = [0; PAYLOAD_BYTES_MAX];
        let length = key::unbase64(payload, &mut bytes)?.len();
        let payload = Payload { bytes, length };
        Ok(Sealed {
            token: OpenToken::decode(payload.as_bytes())?,
            payload,
            tag: tag_bytes,
        })
    }

    /// The session that it says it belongs to, by which its key is found.
    #[must_use]
    pub const fn session(&self) -> &[u8; 16] {
        &self.token.session
    }

    /// What it says, if this key made it for this request. Takes the same time whether it did or not.
    #[must_use]
    pub fn verify(&self, key: &[u8; 32], request: &Covered<'_>) -> Option<&OpenToken> {
        let made = key::tag(key, self.payload.as_bytes(), request);
        key::same(&made, &self.tag).then_some(&self.token)
    }

    /// What it says, whoever made it: enough to refuse it by, never to act on.
    #[must_use]
    pub const fn unverified(&self) -> &OpenToken {
        &self.token
    }
}
