//! Framing: `u16 ULPDU_Length | ULPDU | pad | u32 CRC` (RFC 5044 section 4).

use crc_fast::{CrcAlgorithm, Digest};

use super::Fault;

/// Bytes of the length field in front of a ULPDU.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the CRC field, present (as zeroes) also when no CRC is used.
pub const CRC_BYTES: usize = 4;
/// The longest ULPDU whose length plus 2 needs no pad.
pub const ULPDU_BYTES_MAX: usize = 65534;
/// The longest pad.
pub const PAD_BYTES_MAX: usize = 3;
/// The longest FPDU that the length field can say, with pad and CRC.
pub const FPDU_BYTES_MAX: usize = LENGTH_BYTES + 65535 + PAD_BYTES_MAX + CRC_BYTES;

/// Zero bytes after a ULPDU of this length, so that all before the CRC is a multiple of 4.
pub fn pad_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() % 4
}

/// The whole length of an FPDU around a ULPDU of this length.
pub fn fpdu_bytes(ulpdu_bytes: usize) -> usize {
    LENGTH_BYTES + ulpdu_bytes + pad_bytes(ulpdu_bytes) + CRC_BYTES
}

/// CRC32c over the length, ULPDU and pad of one FPDU (RFC 5044 section 4.2).
#[derive(Debug, Clone, Copy)]
pub struct Crc(Digest);

impl Crc {
    /// Nothing digested yet.
    #[expect(
        clippy::new_without_default,
        reason = "a digest begins, it has no default"
    )]
    pub fn new() -> Crc {
        Crc(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Digests the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The field as it is sent: the least significant byte first.
    pub fn field(&self) -> [u8; CRC_BYTES] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

/// What follows a ULPDU: pad and CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; PAD_BYTES_MAX + CRC_BYTES],
    len: usize,
}

impl Trailer {
    /// After a ULPDU of this length; `crc` has digested the length field and the ULPDU, `None` when no CRC is used.
    pub fn new(ulpdu_bytes: usize, crc: Option<Crc>) -> Trailer {
        let pad = pad_bytes(ulpdu_bytes);
        let mut bytes = [0; PAD_BYTES_MAX + CRC_BYTES];
        if let Some(mut crc) = crc {
            crc.update(&bytes[..pad]);
            bytes[pad..pad + CRC_BYTES].copy_from_slice(&crc.field());
        }
        Trailer {
            bytes,
            len: pad + CRC_BYTES,
        }
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// How long the FPDU is that starts here; `None` while its length field is not all there.
pub fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    let length = bytes.first_chunk::<LENGTH_BYTES>()?;
    Some(fpdu_bytes(usize::from(u16::from_be_bytes(*length))))
}

/// Checks the CRC of one whole FPDU.
///
/// # Errors
/// [`Fault::Length`] when `frame` is not one whole FPDU, [`Fault::Crc`].
pub fn verify(frame: &[u8]) -> Result<(), Fault> {
    if frame_bytes(frame) != Some(frame.len()) {
        return Err(Fault::Length);
    }
    let (covered, field) = frame.split_at(frame.len() - CRC_BYTES);
    let mut crc = Crc::new();
    crc.update(covered);
    if crc.field() == field {
        Ok(())
    } else {
        Err(Fault::Crc)
    }
}
