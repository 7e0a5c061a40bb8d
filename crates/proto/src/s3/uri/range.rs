//! The `Range` header (RFC 9110 section 14) as S3 honours it: one range of bytes.

use std::ops::Range;

use crate::s3::error::{ErrorCode, S3Error};

/// A range as asked for, before the length of the object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// `bytes=first-last`, both inclusive.
    Span {
        /// First byte.
        first: u64,
        /// Last byte, not before the first.
        last: u64,
    },
    /// `bytes=first-`.
    From(u64),
    /// `bytes=-count`: the last `count` bytes.
    Suffix(u64),
}

/// Parses a `Range` header. `None` means that the header is to be ignored and the whole object
/// sent, as S3 does: another unit, several ranges, a reversed or malformed one.
#[must_use]
pub fn parse_range(header: &str) -> Option<ByteRange> {
    let (unit, set) = header.trim_ascii().split_once('=')?;
    unit.trim_ascii()
        .eq_ignore_ascii_case("bytes")
        .then_some(())?;
    let (first, last) = set.trim_ascii().split_once('-')?;
    let (first, last) = (first.trim_ascii(), last.trim_ascii());
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => number(last).map(ByteRange::Suffix),
        (false, true) => number(first).map(ByteRange::From),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::Span { first, last })
        }
    }
}

/// Digits alone; what is too large for 64 bits is as good as the largest number.
fn number(text: &str) -> Option<u64> {
    text.bytes().try_fold(0u64, |value, byte| {
        byte.is_ascii_digit().then(|| {
            value
                .saturating_mul(10)
                .saturating_add(u64::from(byte - b'0'))
        })
    })
}

impl ByteRange {
    /// The bytes that are meant of an object of `size` bytes, cut at its end.
    ///
    /// # Errors
    /// `InvalidRange` when no byte of the object is meant.
    pub fn resolve(self, size: u64) -> Result<Range<u64>, S3Error> {
        let range = match self {
            ByteRange::Span { first, last } => first..last.saturating_add(1).min(size),
            ByteRange::From(first) => first..size,
            ByteRange::Suffix(count) => size.saturating_sub(count)..size,
        };
        if range.start < range.end {
            Ok(range)
        } else {
            Err(S3Error::new(ErrorCode::InvalidRange).field("ActualObjectSize", size.to_string()))
        }
    }
}

/// Parses `x-amz-copy-source-range`, which must be `bytes=first-last` and lie in the source.
///
/// # Errors
/// `InvalidArgument`.
pub fn parse_copy_range(header: &str) -> Result<Range<u64>, S3Error> {
    match parse_range(header) {
        Some(ByteRange::Span { first, last }) if last < u64::MAX => Ok(first..last + 1),
        _ => Err(S3Error::with_message(
            ErrorCode::InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
             and last are the zero-based offsets of the first and last bytes to copy",
        )
        .field("ArgumentName", "x-amz-copy-source-range")
        .field("ArgumentValue", header)),
    }
}
