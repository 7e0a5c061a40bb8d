//! Percent-encoding as S3 and SigV4 use it: only `A-Z a-z 0-9 - . _ ~` stand for themselves.

use std::borrow::Cow;

use crate::hex;

const UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// Whether `/` stands for itself (in paths and keys) or is encoded (in query components).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slash {
    /// `/` stays `/`.
    Keep,
    /// `/` becomes `%2F`.
    Encode,
}

const fn plain(byte: u8, slash: Slash) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~')
        || (byte == b'/' && matches!(slash, Slash::Keep))
}

/// Appends the encoded form of `bytes` to `out`.
pub fn encode_into(out: &mut String, bytes: &[u8], slash: Slash) {
    for &byte in bytes {
        if plain(byte, slash) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(UPPER[usize::from(byte >> 4)]));
            out.push(char::from(UPPER[usize::from(byte & 15)]));
        }
    }
}

/// The encoded form of `bytes`, borrowed when nothing needs encoding.
#[must_use]
pub fn encode(text: &str, slash: Slash) -> Cow<'_, str> {
    if text.bytes().all(|byte| plain(byte, slash)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    encode_into(&mut out, text.as_bytes(), slash);
    Cow::Owned(out)
}

/// Decodes `%XX`, and `+` to a space where `plus_is_space`. `None` for a broken escape.
#[must_use]
pub fn decode(text: &str, plus_is_space: bool) -> Option<Cow<'_, [u8]>> {
    let bytes = text.as_bytes();
    if !bytes
        .iter()
        .any(|byte| *byte == b'%' || (plus_is_space && *byte == b'+'))
    {
        return Some(Cow::Borrowed(bytes));
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (pair, tail) = rest.split_at_checked(2)?;
                out.push((hex::digit(pair[0])? << 4) | hex::digit(pair[1])?);
                rest = tail;
            }
            b'+' if plus_is_space => out.push(b' '),
            _ => out.push(byte),
        }
    }
    Some(Cow::Owned(out))
}

/// Whether `text` is exactly what [`canonical`] would make of it.
#[must_use]
pub fn is_canonical(text: &str, slash: Slash) -> bool {
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let Some((pair, tail)) = rest.split_at_checked(2) else {
                return false;
            };
            let (Some(high), Some(low)) = (hex::digit(pair[0]), hex::digit(pair[1])) else {
                return false;
            };
            if pair.iter().any(u8::is_ascii_lowercase) || plain((high << 4) | low, slash) {
                return false;
            }
            rest = tail;
        } else if !plain(byte, slash) {
            return false;
        }
    }
    true
}

/// Decodes and encodes again, so that every spelling of a component becomes the one that is
/// signed. A broken escape keeps its `%` as a character. Borrowed when already canonical.
#[must_use]
pub fn canonical(text: &str, slash: Slash, plus_is_space: bool) -> Cow<'_, str> {
    if is_canonical(text, slash) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let decoded = match byte {
            b'%' => match tail.split_at_checked(2).and_then(|(pair, after)| {
                Some(((hex::digit(pair[0])? << 4) | hex::digit(pair[1])?, after))
            }) {
                Some((value, after)) => {
                    rest = after;
                    value
                }
                None => b'%',
            },
            b'+' if plus_is_space => b' ',
            _ => byte,
        };
        encode_into(&mut out, &[decoded], slash);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_meet_in_one_form() {
        assert_eq!(
            canonical("/a%2fb%7e+c d", Slash::Keep, false),
            "/a/b~%2Bc%20d"
        );
        assert_eq!(canonical("a+b%", Slash::Encode, true), "a%20b%25");
        assert!(is_canonical("/test%24file.text", Slash::Keep));
        assert!(!is_canonical("/test$file.text", Slash::Keep));
        assert_eq!(decode("a%2", false), None);
        assert_eq!(decode("a%zz", false), None);
        assert_eq!(decode("a+%2B", true).as_deref(), Some(b"a +".as_slice()));
    }

    proptest! {
        #[test]
        fn encoding_is_undone_by_decoding(text in ".{0,60}") {
            let encoded = encode(&text, Slash::Encode);
            prop_assert!(is_canonical(&encoded, Slash::Encode));
            let decoded = decode(&encoded, true);
            prop_assert_eq!(decoded.as_deref(), Some(text.as_bytes()));
        }

        #[test]
        fn canonical_is_idempotent(text in "[%+/a-f0-9 ~]{0,40}") {
            let once = canonical(&text, Slash::Keep, false).into_owned();
            prop_assert!(is_canonical(&once, Slash::Keep), "{once}");
        }
    }
}
