//! Configured keys, and what is derived from them.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};

use super::identity::Identity;
use crate::nvme::auth::Hash;

const PREFIX: &str = "NVMeTLSkey-1:";
const CRC_BYTES: usize = 4;

/// A configured key: what a host and a subsystem, or those who administer them, have agreed on.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsKey {
    key: Vec<u8>,
    /// How it is bound to the host's name before it is used; `None`: it is used as it is.
    hash: Option<Hash>,
}

/// What TLS is given for one host and one subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    /// What the host calls it.
    pub identity: String,
    /// The key.
    pub key: Vec<u8>,
    /// That of the cipher suite: SHA-256 with AES-128-GCM, SHA-384 with AES-256-GCM.
    pub hash: Hash,
    /// Whether the derivation is that of libnvme before 1.16.
    pub is_legacy: bool,
}

/// How `HkdfLabel` (RFC 8446, section 7.1) is laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Standard,
    /// Without length bytes, and with the length in little-endian.
    Legacy,
}

impl TlsKey {
    /// From `NVMeTLSkey-1:HH:BASE64:`, where the key of 32 or 48 bytes is followed by its CRC-32; `None` when it is not that.
    pub fn parse(text: &str) -> Option<TlsKey> {
        let (hash, rest) = text.strip_prefix(PREFIX)?.split_once(':')?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return None,
        };
        let encoded = rest.strip_suffix(':')?;
        let mut key = base64_simd::STANDARD.decode_to_vec(encoded).ok()?;
        let crc = key.split_off(key.len().checked_sub(CRC_BYTES)?);
        let whole = matches!(key.len(), 32 | 48) && crc == crc_of(&key);
        // TLS takes no key of zeroes for a key.
        let random = key.iter().any(|byte| *byte != 0);
        (whole && random).then_some(TlsKey { key, hash })
    }

    /// A new key of 32 bytes, bound to its host by SHA-256, of what `random` gives.
    pub fn generate(random: impl FnOnce(&mut [u8])) -> TlsKey {
        let mut key = vec![0; Hash::Sha256.digest_bytes()];
        random(&mut key);
        TlsKey {
            key,
            hash: Some(Hash::Sha256),
        }
    }

    /// The interchange format: whoever reads it has the key.
    pub fn interchange(&self) -> String {
        let mut bytes = self.key.clone();
        bytes.extend_from_slice(&crc_of(&self.key));
        let hash = self.hash.map_or(0, |hash| hash as u8);
        format!(
            "{PREFIX}{hash:02}:{}:",
            base64_simd::STANDARD.encode_to_string(&bytes)
        )
    }

    /// What a host offers to a subsystem, the most preferred first.
    pub fn offers(&self, host: &str, subsystem: &str) -> Vec<Psk> {
        let hash = self.hash.unwrap_or(match self.key.len() {
            48 => Hash::Sha384,
            _ => Hash::Sha256,
        });
        let mut offers = vec![self.psk_1(host, subsystem, hash, Label::Standard)];
        let legacy = self.psk_1(host, subsystem, hash, Label::Legacy);
        // Where the key is not bound to the host, both have one name, and peers with the standard's way come first.
        if legacy.identity != offers[0].identity {
            offers.push(legacy);
        }
        offers.extend(self.psk_0(host, subsystem, hash));
        offers
    }

    /// What this key is for who is offered an identity; `None` when the identity is not of this key.
    pub fn answer(&self, offered: &Identity<'_>) -> Option<Psk> {
        let Identity {
            host,
            subsystem,
            hash,
            ..
        } = *offered;
        let Some(digest) = offered.digest else {
            return self.psk_0(host, subsystem, hash);
        };
        [Label::Standard, Label::Legacy]
            .into_iter()
            .find(|label| self.digest(host, subsystem, hash, *label) == digest)
            .map(|label| self.psk_1(host, subsystem, hash, label))
    }

    /// `None` for names that are too long together: a context has at most 255 bytes (RFC 8446, section 7.1).
    fn psk_0(&self, host: &str, subsystem: &str, hash: Hash) -> Option<Psk> {
        let identity = format!("NVMe0R{:02} {host} {subsystem}", hash as u8);
        let fits = identity.len() <= usize::from(u8::MAX);
        fits.then(|| self.psk(identity.clone(), &identity, host, hash, Label::Standard))
    }

    fn psk_1(&self, host: &str, subsystem: &str, hash: Hash, label: Label) -> Psk {
        let digest = self.digest(host, subsystem, hash, label);
        let identity = format!("NVMe1R{:02} {host} {subsystem} {digest}", hash as u8);
        let context = format!("{:02} {digest}", hash as u8);
        self.psk(identity, &context, host, hash, label)
    }

    fn psk(&self, identity: String, context: &str, host: &str, hash: Hash, label: Label) -> Psk {
        let retained = self.retained(host, label);
        Psk {
            identity,
            key: derive(
                hash,
                &retained,
                label,
                b"nvme-tls-psk",
                context.as_bytes(),
                hash.digest_bytes(),
            ),
            hash,
            is_legacy: label == Label::Legacy,
        }
    }

    /// The retained key: the configured one, bound to the host.
    fn retained(&self, host: &str, label: Label) -> Vec<u8> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => derive(
                hash,
                &self.key,
                label,
                b"HostNQN",
                host.as_bytes(),
                self.key.len(),
            ),
        }
    }

    /// The digest of version 1, which tells this key from others.
    fn digest(&self, host: &str, subsystem: &str, hash: Hash, label: Label) -> String {
        let retained = self.retained(host, label);
        let pieces: [&[u8]; 4] = [
            host.as_bytes(),
            b" ",
            subsystem.as_bytes(),
            b" NVMe-over-Fabrics",
        ];
        base64_simd::STANDARD.encode_to_string(hash.hmac(&retained, &pieces))
    }
}

/// HKDF-Extract with a salt of zeroes, and HKDF-Expand-Label (RFC 5869, RFC 8446 section 7.1).
fn derive(
    hash: Hash,
    key: &[u8],
    label: Label,
    name: &[u8],
    context: &[u8],
    bytes: usize,
) -> Vec<u8> {
    let extracted = hash.hmac(&[0; 64][..hash.digest_bytes()], &[key]);
    let mut info = Vec::new();
    match label {
        Label::Standard => {
            info.extend_from_slice(&(bytes as u16).to_be_bytes());
            info.push((PREFIX_TLS13.len() + name.len()) as u8);
            info.extend_from_slice(PREFIX_TLS13);
            info.extend_from_slice(name);
            info.push(context.len() as u8);
        }
        Label::Legacy => {
            info.extend_from_slice(&(bytes as u16).to_le_bytes());
            info.extend_from_slice(PREFIX_TLS13);
            info.extend_from_slice(name);
        }
    }
    info.extend_from_slice(context);
    let mut derived = Vec::with_capacity(bytes + hash.digest_bytes());
    let mut block = Vec::new();
    for counter in 1..=u8::MAX {
        block = hash.hmac(&extracted, &[&block, &info, &[counter]]);
        derived.extend_from_slice(&block);
        if derived.len() >= bytes {
            break;
        }
    }
    derived.truncate(bytes);
    derived
}

const PREFIX_TLS13: &[u8] = b"tls13 ";

fn crc_of(key: &[u8]) -> [u8; CRC_BYTES] {
    (checksum(CrcAlgorithm::Crc32IsoHdlc, key) as u32).to_le_bytes()
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKey")
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psk({})", self.identity)
    }
}
