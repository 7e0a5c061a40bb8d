//! Bounded reading of a message in place.

use super::Malformed;

/// What of a message was not read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// `len` bytes, at most `max`, of what is called `what`.
    pub(super) fn bounded(
        &mut self,
        len: usize,
        max: usize,
        what: &'static str,
    ) -> Result<&'a [u8], Malformed> {
        if len > max {
            return Err(Malformed::TooLong(what));
        }
        self.take(len)
    }

    /// The same as text.
    pub(super) fn text(
        &mut self,
        len: usize,
        max: usize,
        what: &'static str,
    ) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bounded(len, max, what)?).map_err(|_| Malformed::NotText(what))
    }

    /// `len` bytes that are zero in this version.
    pub(super) fn zeroes(&mut self, len: usize) -> Result<(), Malformed> {
        match self.take(len)?.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(Malformed::Reserved),
        }
    }
}
