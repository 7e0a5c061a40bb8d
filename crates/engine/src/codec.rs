//! Reading the format's integers and byte strings; every length is checked against what is there.

use bytes::Bytes;

/// Bytes that are not what the format says. The caller knows where they came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored bytes do not follow the format")]
pub(crate) struct Malformed;

/// A cursor over an encoding.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(encoded: &'a [u8]) -> Reader<'a> {
        Reader { rest: encoded }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A byte string behind its u32 length.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// The part of `whole` that `part`, taken from it, is; without copying.
    pub fn share(whole: &Bytes, part: &[u8]) -> Bytes {
        if part.is_empty() {
            Bytes::new()
        } else {
            whole.slice_ref(part)
        }
    }
}

/// Appends a byte string behind its u32 length.
pub(crate) fn put_string(into: &mut Vec<u8>, string: &[u8]) {
    into.extend_from_slice(&(string.len() as u32).to_le_bytes());
    into.extend_from_slice(string);
}

/// CRC32C of the parts, one after the other.
pub(crate) fn crc32c(part: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(part)
}
