//! `aws-chunked` bodies: framing, chunk signatures, trailers.
//!
//! ```text
//! signed    HEX;chunk-signature=SIG CRLF data CRLF ... 0;chunk-signature=SIG CRLF [trailers] CRLF
//! unsigned  HEX CRLF data CRLF ... 0 CRLF trailers CRLF
//! trailers  name:value CRLF ... [x-amz-trailer-signature:SIG CRLF]
//! ```
//! (from "Transferring Payload in Multiple Chunks" and "... with trailing headers")
//!
//! minio-go ends the last trailer with a lone LF and adds one CRLF to an unsigned body; both are taken.
//!
//! [`Decoder`] is fed slices as they come from the network and yields slices of the same
//! memory: a payload byte is never copied. The signature of a chunk is known only at its end, so
//! **data that was yielded must not be committed before [`Decoder::finish`] says so**.
//! [`Encoder`] is the client's side.
//!
//! Limits: a header line [`MAX_LINE`], all trailers [`MAX_TRAILERS`], a chunk [`MAX_CHUNK`], all
//! data the declared `x-amz-decoded-content-length`.

mod decode;
mod encode;

pub use decode::{Decoder, Event};
pub use encode::{CHUNK_END, Encoder, encoded_length};

use sha2::{Digest, Sha256};

use super::{
    error::ErrorCode,
    sigv4::{AmzDate, CredentialScope, EMPTY_SHA256, SigningKey},
};
use crate::hex;

/// The longest chunk header or trailer line, in bytes without its line end.
pub const MAX_LINE: usize = 1024;
/// All trailer lines together, in bytes.
pub const MAX_TRAILERS: usize = 4096;
/// The largest chunk: 5 GiB, as the largest single upload.
pub const MAX_CHUNK: u64 = 5 << 30;

/// Why a chunked body was refused. Nothing of it may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A chunk header, a line end or a size is not what the framing allows.
    #[error("malformed chunk: {0}")]
    Malformed(&'static str),
    /// A trailer does not follow its grammar, or there are too many.
    #[error("malformed trailer: {0}")]
    MalformedTrailer(&'static str),
    /// The signature of a chunk or of the trailers is not the one its key makes.
    #[error("chunk signature does not match")]
    SignatureDoesNotMatch,
    /// More data than `x-amz-decoded-content-length`.
    #[error("more data than declared")]
    TooLong,
    /// The body ended early, or with less data than `x-amz-decoded-content-length`.
    #[error("body ended before its declared length")]
    Incomplete,
    /// Bytes after the end of the body.
    #[error("bytes after the last chunk")]
    Excess,
}

impl ChunkError {
    /// The S3 code of the refusal.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            ChunkError::Malformed(_) | ChunkError::Excess => ErrorCode::InvalidRequest,
            ChunkError::MalformedTrailer(_) => ErrorCode::MalformedTrailerError,
            ChunkError::SignatureDoesNotMatch => ErrorCode::SignatureDoesNotMatch,
            ChunkError::TooLong | ChunkError::Incomplete => ErrorCode::IncompleteBody,
        }
    }
}

/// The chain of chunk signatures: each signs the one before it, the first the request's own.
#[derive(Clone, Debug)]
pub struct ChunkChain {
    key: SigningKey,
    /// `DATE\nSCOPE\n`, the second and third line of every string to sign.
    context: String,
    previous: [u8; 32],
}

impl ChunkChain {
    /// Starts at the signature of the request (the seed).
    #[must_use]
    pub fn new(
        key: SigningKey,
        date: &AmzDate,
        scope: &CredentialScope<'_>,
        seed: [u8; 32],
    ) -> ChunkChain {
        let context = format!("{}\n{}\n", date.as_str(), scope.to_text());
        ChunkChain {
            key,
            context,
            previous: seed,
        }
    }

    /// The signature of the next chunk, whose data hashes to `data_sha256`.
    fn chunk(&mut self, data_sha256: &[u8; 32]) -> [u8; 32] {
        self.previous = self.key.sign(&[
            b"AWS4-HMAC-SHA256-PAYLOAD\n",
            self.context.as_bytes(),
            &hex::encode32(&self.previous),
            b"\n",
            EMPTY_SHA256.as_bytes(),
            b"\n",
            &hex::encode32(data_sha256),
        ]);
        self.previous
    }

    /// The signature of the trailers in their canonical form (`name:value\n` each).
    fn trailer(&mut self, canonical: &[u8]) -> [u8; 32] {
        self.previous = self.key.sign(&[
            b"AWS4-HMAC-SHA256-TRAILER\n",
            self.context.as_bytes(),
            &hex::encode32(&self.previous),
            b"\n",
            &hex::encode32(&Sha256::digest(canonical).into()),
        ]);
        self.previous
    }
}

#[cfg(test)]
mod tests;
