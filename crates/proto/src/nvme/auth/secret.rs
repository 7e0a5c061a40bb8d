//! Secrets and what is computed with them.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// Which hash function (DH-HMAC-CHAP Hash Identifier).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// `None` for one that does not exist.
    pub fn from_wire(id: u8) -> Option<Hash> {
        match id {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        }
    }

    /// Bytes of a digest.
    pub fn digest_bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The digest of `bytes`.
    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Hash::Sha256 => Sha256::digest(bytes).to_vec(),
            Hash::Sha384 => Sha384::digest(bytes).to_vec(),
            Hash::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// The HMAC of all `pieces`, one after the other.
    pub(in crate::nvme) fn hmac(self, key: &[u8], pieces: &[&[u8]]) -> Vec<u8> {
        fn run<M: Mac + KeyInit>(key: &[u8], pieces: &[&[u8]]) -> Vec<u8> {
            let mut mac =
                <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
            for piece in pieces {
                mac.update(piece);
            }
            mac.finalize().into_bytes().to_vec()
        }
        match self {
            Hash::Sha256 => run::<Hmac<Sha256>>(key, pieces),
            Hash::Sha384 => run::<Hmac<Sha384>>(key, pieces),
            Hash::Sha512 => run::<Hmac<Sha512>>(key, pieces),
        }
    }
}

/// A secret of a host or of a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    /// How it is bound to its holder's name; `None`: it is used as it is.
    transform: Option<Hash>,
}

const PREFIX: &str = "DHHC-1:";
const CRC_BYTES: usize = 4;

impl Secret {
    /// From `DHHC-1:HH:BASE64:`, where the key of 32, 48 or 64 bytes is followed by its CRC-32; `None` when it is not that.
    pub fn parse(text: &str) -> Option<Secret> {
        let (transform, rest) = text.strip_prefix(PREFIX)?.split_once(':')?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return None,
        };
        let encoded = rest.strip_suffix(':')?;
        let mut key = base64_simd::STANDARD.decode_to_vec(encoded).ok()?;
        let crc = key.split_off(key.len().checked_sub(CRC_BYTES)?);
        let own = checksum(CrcAlgorithm::Crc32IsoHdlc, &key) as u32;
        let whole = matches!(key.len(), 32 | 48 | 64) && crc == own.to_le_bytes();
        whole.then_some(Secret { key, transform })
    }

    /// The key by which `nqn` proves to hold the secret.
    pub(super) fn key_of(&self, nqn: &str) -> Vec<u8> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
