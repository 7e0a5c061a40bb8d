//! Integers and byte strings of the records, little-endian; every length is checked against what is there.

use bytes::Bytes;
use forebay_store::{Attributes, Etag, Usage};

/// No version has a greater number, no key more objects or bytes: whatever follows, or is added, is a number still.
const NUMBER_MAX: u64 = u64::MAX / 2;

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

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
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

    pub fn u128(&mut self) -> Result<u128, Malformed> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Something that may be missing, behind a byte that says so.
    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        self.bool()?.then(|| read(self)).transpose()
    }

    /// A byte string behind its u32 length.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// A list behind its u32 length, whose items have at least `least` bytes each: so much memory is taken and no more.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len = self.u32()? as usize;
        if len > self.rest.len() / least.max(1) {
            return Err(Malformed);
        }
        (0..len).map(|_| read(self)).collect()
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.string()?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| Malformed)
    }

    pub fn etag(&mut self) -> Result<Etag, Malformed> {
        Etag::new(&self.text()?).ok_or(Malformed)
    }

    pub fn attributes(&mut self) -> Result<Attributes, Malformed> {
        Attributes::decode(Bytes::copy_from_slice(self.string()?)).ok_or(Malformed)
    }

    /// The number of a version, or of objects or bytes.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        match self.u64()? {
            number if number <= NUMBER_MAX => Ok(number),
            _ => Err(Malformed),
        }
    }

    pub fn usage(&mut self) -> Result<Usage, Malformed> {
        Ok(Usage {
            objects: self.number()?,
            bytes: self.number()?,
        })
    }

    /// Nothing may follow.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Malformed),
        }
    }
}

/// An encoding being made.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub fn string(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.0.extend_from_slice(value);
    }

    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Writer, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            write(self, item);
        }
    }

    pub fn usage(&mut self, usage: Usage) {
        self.u64(usage.objects);
        self.u64(usage.bytes);
    }
}
