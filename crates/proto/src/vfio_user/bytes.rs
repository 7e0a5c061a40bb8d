//! Integers in messages.

use super::Malformed;

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    let end = at.checked_add(N).ok_or(Malformed::Truncated)?;
    let part = bytes.get(at..end).ok_or(Malformed::Truncated)?;
    part.try_into().map_err(|_| Malformed::Truncated)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Malformed> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
