//! Bytes of a file that may be long and mostly empty.

use std::collections::BTreeMap;

const CHUNK_BYTES: u64 = 4096;

/// Sparse bytes; what was never written, or lies past the length, is zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    chunks: BTreeMap<u64, Box<[u8]>>,
    len: u64,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `into` from `offset`, and says how much of it lies before the end.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len.saturating_sub(offset) as usize);
        self.image(offset, &mut into[..len]);
        len
    }

    /// The bytes at `offset`, zeroes past the end.
    pub(super) fn image(&self, offset: u64, into: &mut [u8]) {
        for (chunk, within, range) in pieces(offset, into.len()) {
            let piece = &mut into[range];
            match self.chunks.get(&chunk) {
                Some(bytes) => piece.copy_from_slice(&bytes[within..within + piece.len()]),
                None => piece.fill(0),
            }
        }
    }

    /// Puts bytes without changing the length: those past it must be zero.
    pub(super) fn put(&mut self, offset: u64, from: &[u8]) {
        for (chunk, within, range) in pieces(offset, from.len()) {
            let bytes = self
                .chunks
                .entry(chunk)
                .or_insert_with(|| vec![0; CHUNK_BYTES as usize].into_boxed_slice());
            bytes[within..within + range.len()].copy_from_slice(&from[range]);
        }
    }

    pub(super) fn extend_to(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.chunks.split_off(&len.div_ceil(CHUNK_BYTES));
        if let Some(last) = self.chunks.get_mut(&(len / CHUNK_BYTES)) {
            last[(len % CHUNK_BYTES) as usize..].fill(0);
        }
        self.len = len;
    }

    /// Flips bit `bit` of byte `offset`.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.image(offset, &mut byte);
        self.put(offset, &[byte[0] ^ (1 << bit)]);
    }
}

/// Cuts `len` bytes at `offset` at the chunks' borders: chunk, place in it, range of the whole.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK_BYTES) as usize;
        let piece = (CHUNK_BYTES as usize - within).min(len - done);
        done += piece;
        Some((at / CHUNK_BYTES, within, done - piece..done))
    })
}
