//! A key at the head of a payload: its length in two bytes, then the key.

use super::EXTENDED_KEY_BYTES_MAX;
use crate::nvme::Status;

/// Bytes of the length in front of the key.
pub const LENGTH_BYTES: usize = 2;
/// The longest head.
pub const BYTES_MAX: usize = LENGTH_BYTES + EXTENDED_KEY_BYTES_MAX;

/// The length of the key that follows.
///
/// # Errors
/// [`Status::INVALID_KEY_SIZE`] unless it is 1 to [`EXTENDED_KEY_BYTES_MAX`].
pub fn key_len(head: [u8; LENGTH_BYTES]) -> Result<usize, Status> {
    let len = usize::from(u16::from_le_bytes(head));
    match len {
        1..=EXTENDED_KEY_BYTES_MAX => Ok(len),
        _ => Err(Status::INVALID_KEY_SIZE),
    }
}

/// The head for `key`; `None` when no key of that length can be sent.
pub fn encode(key: &[u8]) -> Option<Vec<u8>> {
    if key.is_empty() || key.len() > EXTENDED_KEY_BYTES_MAX {
        return None;
    }
    let mut head = Vec::with_capacity(LENGTH_BYTES + key.len());
    head.extend_from_slice(&(key.len() as u16).to_le_bytes());
    head.extend_from_slice(key);
    Some(head)
}
