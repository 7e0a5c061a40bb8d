//! The encoder: what goes around each chunk of a client's payload.

use sha2::{Digest, Sha256};

use super::ChunkChain;
use crate::hex;

/// Makes the framing of one body. The payload itself is sent by the caller, uncopied:
/// [`Encoder::header`], the data, CRLF, and so on; then [`Encoder::finish`].
#[derive(Debug)]
pub struct Encoder {
    chain: Option<ChunkChain>,
    /// Whether trailers are signed after the last chunk (when `chain` is there).
    trailer: bool,
}

/// What follows the data of every chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

impl Encoder {
    /// A body of signed chunks; `trailer` for the `-TRAILER` form.
    #[must_use]
    pub const fn signed(chain: ChunkChain, trailer: bool) -> Encoder {
        Encoder {
            chain: Some(chain),
            trailer,
        }
    }

    /// A body of unsigned chunks with trailers.
    #[must_use]
    pub const fn unsigned() -> Encoder {
        Encoder {
            chain: None,
            trailer: true,
        }
    }

    /// The line before a chunk whose data is the concatenation of `data` (not empty).
    #[must_use]
    pub fn header(&mut self, data: &[&[u8]]) -> String {
        let size: usize = data.iter().map(|part| part.len()).sum();
        let mut line = format!("{size:x}");
        if let Some(chain) = &mut self.chain {
            let mut sha = Sha256::new();
            for part in data {
                sha.update(part);
            }
            line.push_str(";chunk-signature=");
            line.push_str(&hex::encode(&chain.chunk(&sha.finalize().into())));
        }
        line.push_str("\r\n");
        line
    }

    /// The last chunk and the trailers (names in lower case), to be sent after the last CRLF.
    #[must_use]
    pub fn finish(mut self, trailers: &[(&str, &str)]) -> String {
        let mut text = self.header(&[]);
        let mut canonical = String::new();
        for (name, value) in trailers {
            text.push_str(&format!("{name}:{value}\r\n"));
            canonical.push_str(&format!("{name}:{value}\n"));
        }
        if self.trailer
            && let Some(chain) = &mut self.chain
        {
            let signature = chain.trailer(canonical.as_bytes());
            text.push_str(&format!(
                "x-amz-trailer-signature:{}\r\n",
                hex::encode(&signature)
            ));
        }
        text.push_str("\r\n");
        text
    }
}

/// The `Content-Length` of a body of `payload` bytes sent in chunks of `chunk` bytes (the last
/// one shorter), with these trailers.
#[must_use]
pub fn encoded_length(
    payload: u64,
    chunk: u64,
    signed: bool,
    signed_trailer: bool,
    trailers: &[(&str, &str)],
) -> u64 {
    const SIGNATURE: u64 = ";chunk-signature=".len() as u64 + 64;
    const TRAILER_SIGNATURE: u64 = "x-amz-trailer-signature:\r\n".len() as u64 + 64;
    let chunk = chunk.max(1);
    let digits = |size: u64| u64::from((64 - size.leading_zeros()).div_ceil(4).max(1));
    let header = |size: u64| digits(size) + if signed { SIGNATURE } else { 0 } + 2;
    let framed = |size: u64| header(size) + size + 2;
    let rest = payload % chunk;
    let mut length = (payload / chunk) * framed(chunk);
    if rest > 0 {
        length += framed(rest);
    }
    length += header(0) + 2;
    for (name, value) in trailers {
        length += (name.len() + value.len() + 3) as u64;
    }
    if signed && signed_trailer {
        length += TRAILER_SIGNATURE;
    }
    length
}
