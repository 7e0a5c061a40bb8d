//! The decoder: framed bytes in, payload slices and trailers out.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{ChunkChain, ChunkError, MAX_CHUNK, MAX_LINE, MAX_TRAILERS};
use crate::hex;

/// What minio-go sends after the end of an unsigned body.
const SPARE_END: &[u8; 2] = b"\r\n";
const SIGNATURE_NAME: &str = "x-amz-trailer-signature";

/// What the decoder found in its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Payload, a part of the input. Not to be committed before the end.
    Data(&'a [u8]),
    /// The body is complete and every signature was right.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the line that announces a chunk.
    Header,
    /// In a chunk's data; so many bytes remain.
    Data(u64),
    /// In the CRLF after a chunk's data.
    DataEnd,
    /// In the lines after the last chunk's header.
    Trailers,
    /// After the end, and so many bytes of [`SPARE_END`].
    Done(usize),
    Failed(ChunkError),
}

/// Signature state of a signed body.
#[derive(Debug)]
struct Signed {
    chain: ChunkChain,
    sha: Sha256,
    claimed: [u8; 32],
    /// Whether trailers with a signature of their own follow.
    trailer: bool,
}

impl Signed {
    fn check_chunk(&mut self) -> Result<(), ChunkError> {
        let expected = self.chain.chunk(&self.sha.finalize_reset_32());
        if bool::from(expected.ct_eq(&self.claimed)) {
            Ok(())
        } else {
            Err(ChunkError::SignatureDoesNotMatch)
        }
    }
}

/// Takes the digest and starts anew.
trait FinalizeReset {
    fn finalize_reset_32(&mut self) -> [u8; 32];
}

impl FinalizeReset for Sha256 {
    fn finalize_reset_32(&mut self) -> [u8; 32] {
        std::mem::take(self).finalize().into()
    }
}

/// An incremental decoder of one `aws-chunked` body.
#[derive(Debug)]
pub struct Decoder {
    signed: Option<Signed>,
    state: State,
    /// A line that began in an earlier input.
    line: Vec<u8>,
    declared: u64,
    decoded: u64,
    trailers: Vec<(String, String)>,
    trailer_bytes: usize,
    trailer_signature: Option<[u8; 32]>,
}

impl Decoder {
    /// A body of signed chunks (`STREAMING-AWS4-HMAC-SHA256-PAYLOAD`, with `trailer` its
    /// `-TRAILER` form). `decoded_length` is `x-amz-decoded-content-length` in bytes.
    #[must_use]
    pub fn signed(chain: ChunkChain, trailer: bool, decoded_length: u64) -> Decoder {
        let signed = Signed {
            chain,
            sha: Sha256::new(),
            claimed: [0; 32],
            trailer,
        };
        Decoder::new(Some(signed), decoded_length)
    }

    /// A body of unsigned chunks with trailers (`STREAMING-UNSIGNED-PAYLOAD-TRAILER`).
    #[must_use]
    pub fn unsigned(decoded_length: u64) -> Decoder {
        Decoder::new(None, decoded_length)
    }

    fn new(signed: Option<Signed>, declared: u64) -> Decoder {
        Decoder {
            signed,
            state: State::Header,
            line: Vec::new(),
            declared,
            decoded: 0,
            trailers: Vec::new(),
            trailer_bytes: 0,
            trailer_signature: None,
        }
    }

    /// Payload bytes yielded so far.
    #[must_use]
    pub const fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Takes bytes from the front of `input` and says what they were. `None`: all of the input
    /// is used up and more is needed. Call again until `None` or [`Event::End`].
    ///
    /// # Errors
    /// Any [`ChunkError`]; the decoder then repeats it for ever.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, ChunkError> {
        let outcome = self.step(input);
        if let Err(error) = outcome {
            self.state = State::Failed(error);
        }
        outcome
    }

    /// The trailers (names in lower case, without the signature), once the body is complete.
    ///
    /// # Errors
    /// [`ChunkError::Incomplete`] before [`Event::End`], or the error that was met.
    pub fn finish(self) -> Result<Vec<(String, String)>, ChunkError> {
        match self.state {
            State::Done(spare) if is_whole(spare) => Ok(self.trailers),
            State::Done(_) => Err(ChunkError::Excess),
            State::Failed(error) => Err(error),
            State::Header | State::Data(_) | State::DataEnd | State::Trailers => {
                Err(ChunkError::Incomplete)
            }
        }
    }

    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, ChunkError> {
        loop {
            match self.state {
                State::Header => {
                    let Some(line) = self.take_line(input, false)? else {
                        return Ok(None);
                    };
                    self.chunk_header(&line)?;
                }
                State::Data(remaining) => {
                    let available = input
                        .len()
                        .min(usize::try_from(remaining).unwrap_or(usize::MAX));
                    if available == 0 {
                        return Ok(None);
                    }
                    let (data, rest) = input.split_at(available);
                    *input = rest;
                    if let Some(signed) = &mut self.signed {
                        signed.sha.update(data);
                    }
                    let length = available as u64;
                    self.decoded += length;
                    self.state = if remaining == length {
                        State::DataEnd
                    } else {
                        State::Data(remaining - length)
                    };
                    return Ok(Some(Event::Data(data)));
                }
                State::DataEnd => {
                    let Some(line) = self.take_line(input, false)? else {
                        return Ok(None);
                    };
                    if !line.is_empty() {
                        return Err(ChunkError::Malformed("no line end after the data"));
                    }
                    if let Some(signed) = &mut self.signed {
                        signed.check_chunk()?;
                    }
                    self.state = State::Header;
                }
                State::Trailers => {
                    let Some(line) = self.take_line(input, true)? else {
                        return Ok(None);
                    };
                    self.trailer_line(&line)?;
                }
                State::Done(spare) => {
                    let Some((byte, rest)) = input.split_first() else {
                        return Ok(is_whole(spare).then_some(Event::End));
                    };
                    if self.signed.is_some() || SPARE_END.get(spare) != Some(byte) {
                        return Err(ChunkError::Excess);
                    }
                    *input = rest;
                    self.state = State::Done(spare + 1);
                }
                State::Failed(error) => return Err(error),
            }
        }
    }

    /// One line without its end. In trailers a lone LF ends a line too, since the published
    /// grammar writes it and some clients send it.
    fn take_line(
        &mut self,
        input: &mut &[u8],
        lone_lf: bool,
    ) -> Result<Option<Vec<u8>>, ChunkError> {
        let room = MAX_LINE + 2 - self.line.len();
        let window = &input[..input.len().min(room)];
        let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
            if window.len() == room {
                return Err(ChunkError::Malformed("line too long"));
            }
            self.line.extend_from_slice(window);
            *input = &input[window.len()..];
            return Ok(None);
        };
        self.line.extend_from_slice(&window[..end]);
        *input = &input[end + 1..];
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        } else if !lone_lf {
            return Err(ChunkError::Malformed("line without CR"));
        }
        Ok(Some(line))
    }

    fn chunk_header(&mut self, line: &[u8]) -> Result<(), ChunkError> {
        let digits = line
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        // Sixteen digits fill 64 bits; leading zeros are not worth accepting more.
        if !(1..=16).contains(&digits) {
            return Err(ChunkError::Malformed("chunk size"));
        }
        let size = line[..digits]
            .iter()
            .filter_map(|byte| hex::digit(*byte))
            .fold(0u64, |size, digit| (size << 4) | u64::from(digit));
        let extension = &line[digits..];
        match &mut self.signed {
            Some(signed) => {
                signed.claimed = extension
                    .strip_prefix(b";chunk-signature=")
                    .and_then(hex::decode::<32>)
                    .ok_or(ChunkError::Malformed("chunk signature"))?;
            }
            None if !extension.is_empty() => {
                return Err(ChunkError::Malformed("unexpected chunk extension"));
            }
            None => {}
        }
        if size > MAX_CHUNK {
            return Err(ChunkError::Malformed("chunk too large"));
        }
        if size > self.declared - self.decoded {
            return Err(ChunkError::TooLong);
        }
        if size > 0 {
            self.state = State::Data(size);
            return Ok(());
        }
        if self.decoded != self.declared {
            return Err(ChunkError::Incomplete);
        }
        if let Some(signed) = &mut self.signed {
            signed.check_chunk()?;
        }
        self.state = State::Trailers;
        Ok(())
    }

    fn trailer_line(&mut self, line: &[u8]) -> Result<(), ChunkError> {
        self.trailer_bytes += line.len() + 2;
        if self.trailer_bytes > MAX_TRAILERS {
            return Err(ChunkError::MalformedTrailer("too long"));
        }
        if line.is_empty() {
            return self.trailers_end();
        }
        if self.signed.as_ref().is_some_and(|signed| !signed.trailer) {
            return Err(ChunkError::MalformedTrailer("none was announced"));
        }
        let line =
            std::str::from_utf8(line).map_err(|_| ChunkError::MalformedTrailer("not UTF-8"))?;
        let (name, value) = line
            .split_once(':')
            .ok_or(ChunkError::MalformedTrailer("no colon"))?;
        let name = name.to_ascii_lowercase();
        // Not other white space: a line's end of which a bit is flipped must not pass for it.
        let value = value.trim_matches(' ');
        let token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty()
            || !name.bytes().all(token)
            || !value.bytes().all(|b| (32..127).contains(&b))
        {
            return Err(ChunkError::MalformedTrailer("name or value"));
        }
        if self.trailer_signature.is_some() {
            return Err(ChunkError::MalformedTrailer("a line after the signature"));
        }
        if name == SIGNATURE_NAME {
            if self.signed.is_none() {
                return Err(ChunkError::MalformedTrailer(
                    "signature in an unsigned body",
                ));
            }
            self.trailer_signature = Some(
                hex::decode::<32>(value.as_bytes())
                    .ok_or(ChunkError::MalformedTrailer("signature"))?,
            );
            return Ok(());
        }
        if self.trailers.iter().any(|(known, _)| *known == name) {
            return Err(ChunkError::MalformedTrailer("given twice"));
        }
        self.trailers.push((name, value.to_owned()));
        Ok(())
    }

    fn trailers_end(&mut self) -> Result<(), ChunkError> {
        if let Some(signed) = self.signed.as_mut().filter(|signed| signed.trailer) {
            // The published grammar puts an empty line between the trailers and their
            // signature; clients leave it out. The signature therefore ends a signed body.
            let Some(claimed) = self.trailer_signature else {
                return Ok(());
            };
            let mut canonical = String::new();
            for (name, value) in &self.trailers {
                canonical.push_str(name);
                canonical.push(':');
                canonical.push_str(value);
                canonical.push('\n');
            }
            let expected = signed.chain.trailer(canonical.as_bytes());
            if !bool::from(expected.ct_eq(&claimed)) {
                return Err(ChunkError::SignatureDoesNotMatch);
            }
        }
        self.state = State::Done(0);
        Ok(())
    }
}

/// Whether nothing or all of [`SPARE_END`] came.
const fn is_whole(spare: usize) -> bool {
    spare == 0 || spare == SPARE_END.len()
}
