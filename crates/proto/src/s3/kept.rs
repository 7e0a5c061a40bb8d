//! What a writer may say of an object besides its bytes: headers that are given back with it, user metadata, tags. Every door that
//! stores objects keeps the same under the same names, so that an object looks the same whichever door it came through.

use std::borrow::Cow;

use super::error::{ErrorCode, S3Error};
use super::tags::Tags;

/// The headers that are kept under their own names.
pub const HEADERS: [&str; 7] = [
    "cache-control",
    "content-disposition",
    CONTENT_ENCODING,
    "content-language",
    "content-type",
    "expires",
    "x-amz-website-redirect-location",
];
/// What names of user metadata begin with.
pub const USER: &str = "x-amz-meta-";
/// S3's bound on user metadata: names without [`USER`], and values.
pub const USER_BYTES_MAX: usize = 2048;
/// The header that brings tags, `key=value&key=value`.
pub const TAGGING: &str = "x-amz-tagging";
/// The name under which tags are kept.
pub const TAGS: &str = "s3.tags";

const CONTENT_ENCODING: &str = "content-encoding";

/// Checks what is to be kept with one object.
#[derive(Debug, Default)]
pub struct Keeper {
    user_bytes: usize,
}

impl Keeper {
    /// Checks one header, its name in lower case, and has `insert` called with what is kept of it, if anything is: no more than an object
    /// may have.
    ///
    /// # Errors
    /// `InvalidArgument` for what nobody keeps and for what is no header; of [`Tags::parse_header`] for tags.
    pub fn keep(
        &mut self,
        name: &str,
        value: &[u8],
        insert: impl FnOnce(&str, &[u8]),
    ) -> Result<(), S3Error> {
        if !value.iter().all(|byte| is_visible(*byte)) {
            return Err(illegal(name));
        }
        if let Some(short) = name.strip_prefix(USER) {
            if !short.bytes().all(is_name) {
                return Err(illegal(name));
            }
            self.user_bytes = self.user_bytes.saturating_add(short.len() + value.len());
            // More than that is refused as a whole, however much it is.
            if self.user_bytes <= USER_BYTES_MAX {
                insert(name, value);
            }
        } else if name == TAGGING {
            let text = std::str::from_utf8(value).map_err(|_| illegal(name))?;
            let tags = Tags::parse_header(text)?;
            if !tags.is_empty() {
                insert(TAGS, tags.to_header().as_bytes());
            }
        } else if HEADERS.contains(&name) {
            let value = match name {
                CONTENT_ENCODING => Cow::Owned(without_framing(value)),
                _ => Cow::Borrowed(value),
            };
            if !value.is_empty() {
                insert(name, &value);
            }
        } else {
            return Err(illegal(name));
        }
        Ok(())
    }

    /// Checks the whole.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub fn finish(self) -> Result<(), S3Error> {
        if self.user_bytes <= USER_BYTES_MAX {
            return Ok(());
        }
        Err(S3Error::new(ErrorCode::MetadataTooLarge)
            .field("Size", self.user_bytes.to_string())
            .field("MaxSizeAllowed", USER_BYTES_MAX.to_string()))
    }
}

/// The codings without `aws-chunked`, which is how a body travelled and not what it is.
fn without_framing(value: &[u8]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(value.len());
    for coding in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        if coding.is_empty() || coding.eq_ignore_ascii_case(b"aws-chunked") {
            continue;
        }
        if !rest.is_empty() {
            rest.push(b',');
        }
        rest.extend_from_slice(coding);
    }
    rest
}

/// What the value of a header may hold (RFC 9110 section 5.5).
fn is_visible(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// What the name of a header may hold (RFC 9110 section 5.1), as HTTP/2 writes it.
fn is_name(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn illegal(name: &str) -> S3Error {
    S3Error::with_message(
        ErrorCode::InvalidArgument,
        "This is not a header that is kept with an object.",
    )
    .field("ArgumentName", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, ErrorCode> {
        let mut keeper = Keeper::default();
        let mut kept = Vec::new();
        for (name, value) in pairs {
            let insert = |name: &str, value: &[u8]| {
                kept.push((name.to_owned(), String::from_utf8_lossy(value).into_owned()));
            };
            let checked = keeper.keep(name, value.as_bytes(), insert);
            checked.map_err(|error| error.code)?;
        }
        keeper.finish().map_err(|error| error.code)?;
        Ok(kept)
    }

    #[test]
    fn what_is_kept() {
        for (name, value, expected) in [
            (
                "content-type",
                "text/plain",
                Some(("content-type", "text/plain")),
            ),
            ("content-type", "", None),
            (
                "content-encoding",
                "aws-chunked, gzip ,br",
                Some(("content-encoding", "gzip,br")),
            ),
            ("content-encoding", "AWS-Chunked", None),
            ("x-amz-meta-a", "", Some(("x-amz-meta-a", ""))),
            (
                "x-amz-meta-a.b_c",
                "\u{e9}",
                Some(("x-amz-meta-a.b_c", "\u{e9}")),
            ),
            ("x-amz-tagging", "a=1&b", Some(("s3.tags", "a=1&b="))),
            ("x-amz-tagging", "", None),
        ] {
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(
                kept(&[(name, value)]),
                Ok(expected.into_iter().collect()),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_refused() {
        for (name, value) in [
            ("s3.checksum", "CRC32 FULL_OBJECT AAAAAA=="),
            ("s3.tags", "a=1"),
            ("Content-Type", "text/plain"),
            ("content-length", "7"),
            ("content-type", "a\r\nset-cookie: b"),
            ("content-type", "\0"),
            ("x-amz-meta-A", "1"),
            ("x-amz-meta-a b", "1"),
            ("x-amz-meta-a:", "1"),
            ("", ""),
        ] {
            let refused = kept(&[(name, value)]);
            assert_eq!(
                refused,
                Err(ErrorCode::InvalidArgument),
                "{name:?}: {value:?}"
            );
        }
        assert_eq!(
            kept(&[("x-amz-tagging", "a=1&a=2")]),
            Err(ErrorCode::InvalidTag)
        );
        let (half, more) = (
            "x".repeat(USER_BYTES_MAX / 2 - 1),
            "x".repeat(USER_BYTES_MAX / 2),
        );
        assert!(kept(&[("x-amz-meta-a", &half), ("x-amz-meta-b", &half)]).is_ok());
        let refused = kept(&[("x-amz-meta-a", &half), ("x-amz-meta-b", &more)]);
        assert_eq!(refused, Err(ErrorCode::MetadataTooLarge));
    }

    #[test]
    fn what_is_too_much_is_not_collected() {
        let mut keeper = Keeper::default();
        let mut collected = 0;
        for number in 0..10_000 {
            let name = format!("{USER}{number}");
            keeper.keep(&name, b"x", |_, _| collected += 1).unwrap();
        }
        assert!(collected < USER_BYTES_MAX, "{collected}");
        let refused = keeper.finish().unwrap_err();
        assert_eq!(refused.code, ErrorCode::MetadataTooLarge);
    }
}
