//! Bodies: one shared, incompressible beginning and an end that differs from request to request.

use forebay_proto::hex;
use sha2::{Digest, Sha256};

/// Bytes at the end of a body that differ between requests.
pub(crate) const STAMP_BYTES: usize = 16;

/// The bodies of one size.
///
/// Two bodies never have the same bytes, so a store that keeps equal contents once cannot win by it. Only the end differs: the
/// hash of everything before it is computed once, so that signing a payload costs the client next to nothing and the measured
/// cost is the server's.
pub(crate) struct Payload {
    beginning: Vec<u8>,
    hashed: Sha256,
    stamp_len: usize,
}

impl Payload {
    pub(crate) fn new(size: usize) -> Payload {
        let stamp_len = size.min(STAMP_BYTES);
        let mut beginning = Vec::with_capacity(size - stamp_len + 8);
        let mut random = Random::new(size as u64);
        while beginning.len() < size - stamp_len {
            beginning.extend_from_slice(&random.next().to_le_bytes());
        }
        beginning.truncate(size - stamp_len);
        let hashed = Sha256::new_with_prefix(&beginning);
        Payload {
            beginning,
            hashed,
            stamp_len,
        }
    }

    /// What all bodies begin with.
    pub(crate) fn beginning(&self) -> &[u8] {
        &self.beginning
    }

    pub(crate) fn len(&self) -> usize {
        self.beginning.len() + self.stamp_len
    }

    /// The end of the body numbered `number`, of which the first [`Payload::stamp_len`] bytes count.
    pub(crate) fn stamp(number: u64) -> [u8; STAMP_BYTES] {
        let mut stamp = [0; STAMP_BYTES];
        for (index, byte) in stamp.iter_mut().enumerate() {
            *byte = b"0123456789abcdef"[(number >> (4 * index) & 15) as usize];
        }
        stamp
    }

    pub(crate) fn stamp_len(&self) -> usize {
        self.stamp_len
    }

    /// SHA-256, in hexadecimal, of the body that ends with `stamp`.
    pub(crate) fn sha256(&self, stamp: &[u8; STAMP_BYTES]) -> [u8; 64] {
        let mut hash = self.hashed.clone();
        hash.update(&stamp[..self.stamp_len]);
        hex::encode32(&hash.finalize().into())
    }
}

/// A small generator of numbers that look random (xorshift64*); each thread has its own.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_whole_body() {
        for size in [0, 1, 15, 16, 17, 4096] {
            let payload = Payload::new(size);
            let stamp = Payload::stamp(77);
            let mut body = payload.beginning().to_vec();
            body.extend_from_slice(&stamp[..payload.stamp_len()]);
            assert_eq!(body.len(), size);
            assert_eq!(payload.len(), size);
            assert_eq!(
                payload.sha256(&stamp),
                hex::encode32(&Sha256::digest(&body).into())
            );
        }
        assert_ne!(Payload::stamp(1), Payload::stamp(2));
    }
}
