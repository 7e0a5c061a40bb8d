//! Numbers as tokens write them.

use super::TokenError;
use crate::hex;

/// A number of hexadecimal digits of either case alone: no sign, no prefix. `None` when there is none or more than 16.
pub(super) fn number(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.bytes().try_fold(0u64, |value, byte| {
        Some(value << 4 | u64::from(hex::digit(byte)?))
    })
}

/// A number of exactly `width` hexadecimal digits.
pub(super) fn fixed(text: &str, width: usize) -> Option<u64> {
    (text.len() == width).then(|| number(text)).flatten()
}

/// Bytes of exactly twice as many hexadecimal digits.
pub(super) fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    hex::decode(text.as_bytes())
}

/// The next bytes of a block whose length was checked; zeroes behind its end.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk() {
        Some((bytes, later)) => {
            *rest = later;
            *bytes
        }
        None => [0; N],
    }
}

/// The 32 lower-case hexadecimal digits of a session id or a nonce.
#[must_use]
pub fn hex16(bytes: &[u8; 16]) -> String {
    hex::encode(bytes)
}

/// Reads 32 hexadecimal digits of either case.
#[must_use]
pub fn parse_hex16(text: &str) -> Option<[u8; 16]> {
    bytes(text)
}

/// Refuses a window that is empty or leaves the address space.
pub(super) fn check_window(address: u64, length: u64) -> Result<(), TokenError> {
    if length == 0 {
        return Err(TokenError::Malformed("the window is empty"));
    }
    match address.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(TokenError::Malformed("the window leaves the address space")),
    }
}
