//! CRC-64/NVME as S3 writes it.

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

/// A CRC-64/NVME under way. Pieces computed apart can be joined in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crc64 {
    value: u64,
    len: u64,
}

impl Crc64 {
    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Crc64 {
        Crc64 {
            value: checksum(CrcAlgorithm::Crc64Nvme, bytes),
            len: bytes.len() as u64,
        }
    }

    /// A checksum known from elsewhere, over `len` bytes.
    pub fn known(value: u64, len: u64) -> Crc64 {
        Crc64 { value, len }
    }

    /// Of these bytes followed by those of `next`.
    pub fn then(self, next: Crc64) -> Crc64 {
        let value = match (self.len, next.len) {
            (0, _) => next.value,
            (_, 0) => self.value,
            _ => checksum_combine(CrcAlgorithm::Crc64Nvme, self.value, next.value, next.len),
        };
        Crc64 {
            value,
            len: self.len + next.len,
        }
    }

    /// The checksum.
    pub fn value(self) -> u64 {
        self.value
    }

    /// How many bytes it covers.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it covers none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The value of `x-amz-checksum-crc64nvme`: base64 of the big-endian bytes.
    pub fn to_header(self) -> String {
        base64_simd::STANDARD.encode_to_string(self.value.to_be_bytes())
    }
}

/// Reads the value of `x-amz-checksum-crc64nvme`; `None` for a composite one (`...-3`) or anything else.
pub(crate) fn from_header(text: &str) -> Option<u64> {
    let bytes = base64_simd::STANDARD.decode_to_vec(text).ok()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// A CRC over bytes that arrive one after another.
pub(crate) struct Running {
    digest: Digest,
    len: u64,
}

impl Running {
    pub(crate) fn new() -> Running {
        Running {
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            len: 0,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.len += bytes.len() as u64;
    }

    pub(crate) fn crc(&self) -> Crc64 {
        Crc64 {
            value: self.digest.finalize(),
            len: self.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 4096, 99_999, 100_000] {
            let joined = Crc64::of(&bytes[..cut]).then(Crc64::of(&bytes[cut..]));
            assert_eq!(joined, Crc64::of(&bytes));
        }
        assert_eq!(
            from_header(&Crc64::of(&bytes).to_header()),
            Some(Crc64::of(&bytes).value())
        );
        assert_eq!(from_header("AAAAAAAAAAA=-3"), None);
        // The check value of CRC-64/NVME.
        assert_eq!(Crc64::of(b"123456789").value(), 0xae8b_1486_0a79_9888);
    }
}
