//! CRC32C of headers and of data (NVMe/TCP Transport Specification, section 3.3.1.1): 4 bytes, the least significant first.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a header or data digest.
pub const DIGEST_BYTES: usize = 4;

/// The digest of bytes that come in pieces.
#[derive(Debug, Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Of nothing yet.
    #[expect(
        clippy::new_without_default,
        reason = "a digest begins, it has no default"
    )]
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Digests the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The field as it is sent.
    pub fn field(&self) -> [u8; DIGEST_BYTES] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

/// The digest field of these bytes.
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}
