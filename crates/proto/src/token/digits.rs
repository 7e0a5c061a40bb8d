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
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = hex::digit(pair[0])? << 4 | hex::digit(pair[1])?;
    }
    Some(bytes)
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
