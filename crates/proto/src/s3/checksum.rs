//! S3's object checksums: CRC32, CRC32C, CRC64NVME, SHA-1, SHA-256; whole, by part, composite.
//!
//! On the wire a checksum is the base64 of its big-endian bytes. A multipart object has either
//! the checksum of the whole (`FULL_OBJECT`, CRCs only: [`combine`]) or the checksum of its
//! parts' checksums followed by `-N` (`COMPOSITE`: [`composite`]).

use crc_fast::CrcAlgorithm;
use sha2::Digest as _;

use crate::md5::Md5;

/// A checksum algorithm of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// CRC-32 (ISO HDLC), 4 bytes.
    Crc32,
    /// CRC-32C (Castagnoli), 4 bytes.
    Crc32C,
    /// CRC-64/NVME, 8 bytes.
    Crc64Nvme,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
}

/// How the checksum of a multipart object is made (`x-amz-checksum-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumType {
    /// Of all bytes, as if uploaded at once.
    FullObject,
    /// Of the checksums of the parts.
    Composite,
}

impl ChecksumType {
    /// `FULL_OBJECT` or `COMPOSITE`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ChecksumType::FullObject => "FULL_OBJECT",
            ChecksumType::Composite => "COMPOSITE",
        }
    }

    /// Parses the value of `x-amz-checksum-type`.
    #[must_use]
    pub fn parse(text: &str) -> Option<ChecksumType> {
        [ChecksumType::FullObject, ChecksumType::Composite]
            .into_iter()
            .find(|kind| kind.as_str().eq_ignore_ascii_case(text))
    }
}

impl Algorithm {
    /// All algorithms, in the order of their declaration.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Crc32,
        Algorithm::Crc32C,
        Algorithm::Crc64Nvme,
        Algorithm::Sha1,
        Algorithm::Sha256,
    ];

    /// The name in `x-amz-checksum-algorithm` and in XML: `CRC32`, `CRC64NVME`, ...
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32C => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// Parses [`Algorithm::as_str`] in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|known| known.as_str().eq_ignore_ascii_case(text))
    }

    /// The header or trailer that carries the value: `x-amz-checksum-crc32`, ...
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32C => "x-amz-checksum-crc32c",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// Finds the algorithm of a header or trailer name in lower case.
    #[must_use]
    pub fn from_header(name: &str) -> Option<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|known| known.header() == name)
    }

    /// The XML element that carries the value: `ChecksumCRC32`, ...
    #[must_use]
    pub const fn element(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "ChecksumCRC32",
            Algorithm::Crc32C => "ChecksumCRC32C",
            Algorithm::Crc64Nvme => "ChecksumCRC64NVME",
            Algorithm::Sha1 => "ChecksumSHA1",
            Algorithm::Sha256 => "ChecksumSHA256",
        }
    }

    /// Finds the algorithm of an XML element.
    #[must_use]
    pub fn from_element(name: &str) -> Option<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|known| known.element() == name)
    }

    /// Length of the value in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32C => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        }
    }

    /// Whether a multipart object may have a checksum of this kind. CRC64NVME exists only
    /// `FULL_OBJECT`; the SHAs only `COMPOSITE`.
    #[must_use]
    pub const fn allows(self, kind: ChecksumType) -> bool {
        match kind {
            ChecksumType::FullObject => self.crc().is_some(),
            ChecksumType::Composite => !matches!(self, Algorithm::Crc64Nvme),
        }
    }

    /// The kind that a multipart upload has when it names the algorithm alone.
    #[must_use]
    pub const fn default_type(self) -> ChecksumType {
        match self {
            Algorithm::Crc64Nvme => ChecksumType::FullObject,
            Algorithm::Crc32 | Algorithm::Crc32C | Algorithm::Sha1 | Algorithm::Sha256 => {
                ChecksumType::Composite
            }
        }
    }

    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32C => Some(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 | Algorithm::Sha256 => None,
        }
    }
}

/// The value of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    algorithm: Algorithm,
    /// The value in the first [`Algorithm::length`] bytes, zero after them.
    bytes: [u8; 32],
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.to_base64())
    }
}

impl Checksum {
    /// A value from its big-endian bytes; `None` when the length is not the algorithm's.
    #[must_use]
    pub fn from_bytes(algorithm: Algorithm, value: &[u8]) -> Option<Checksum> {
        if value.len() != algorithm.length() {
            return None;
        }
        let mut bytes = [0; 32];
        bytes[..value.len()].copy_from_slice(value);
        Some(Checksum { algorithm, bytes })
    }

    /// Parses the base64 of a header; `None` when it is not exactly the algorithm's length.
    #[must_use]
    pub fn parse(algorithm: Algorithm, base64: &str) -> Option<Checksum> {
        let mut buffer = [0u8; 33];
        Checksum::from_bytes(algorithm, decode_base64(base64, &mut buffer)?)
    }

    /// Its algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Its big-endian bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.length()]
    }

    /// Its base64, as headers carry it.
    #[must_use]
    pub fn to_base64(&self) -> String {
        encode_base64(self.as_bytes())
    }

    /// A CRC as a number (of 32 or 64 bits); `None` for the SHAs.
    #[must_use]
    pub fn crc_value(&self) -> Option<u64> {
        self.algorithm.crc()?;
        Some(
            self.as_bytes()
                .iter()
                .fold(0, |value, byte| (value << 8) | u64::from(*byte)),
        )
    }

    /// A CRC from its number; `None` for the SHAs and for a number that does not fit.
    #[must_use]
    pub fn from_crc_value(algorithm: Algorithm, value: u64) -> Option<Checksum> {
        algorithm.crc()?;
        let bytes = value.to_be_bytes();
        let (high, low) = bytes.split_at(8 - algorithm.length());
        high.iter().all(|byte| *byte == 0).then_some(())?;
        Checksum::from_bytes(algorithm, low)
    }
}

/// Computes a checksum piece by piece.
#[derive(Clone, Debug)]
pub struct Hasher(State);

#[derive(Clone, Debug)]
enum State {
    Crc(Algorithm, crc_fast::Digest),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Hasher {
    /// Starts a checksum.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Hasher {
        Hasher(match (algorithm, algorithm.crc()) {
            (Algorithm::Sha1, _) => State::Sha1(sha1::Sha1::new()),
            (_, Some(crc)) => State::Crc(algorithm, crc_fast::Digest::new(crc)),
            (_, None) => State::Sha256(sha2::Sha256::new()),
        })
    }

    /// Takes the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.0 {
            State::Crc(_, digest) => digest.update(data),
            State::Sha1(digest) => digest.update(data),
            State::Sha256(digest) => digest.update(data),
        }
    }

    /// The value of all bytes taken.
    #[must_use]
    pub fn finalize(self) -> Checksum {
        let mut bytes = [0u8; 32];
        let algorithm = match self.0 {
            State::Crc(algorithm, digest) => {
                let value = digest.finalize().to_be_bytes();
                let length = algorithm.length();
                bytes[..length].copy_from_slice(&value[8 - length..]);
                algorithm
            }
            State::Sha1(digest) => {
                bytes[..20].copy_from_slice(&digest.finalize());
                Algorithm::Sha1
            }
            State::Sha256(digest) => {
                bytes = digest.finalize().into();
                Algorithm::Sha256
            }
        };
        Checksum { algorithm, bytes }
    }
}

/// The checksum of `data`.
#[must_use]
pub fn checksum(algorithm: Algorithm, data: &[u8]) -> Checksum {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(data);
    hasher.finalize()
}

/// The checksum of the concatenation of two stretches, from theirs and the length of the second
/// in bytes. `None` unless both are the same CRC.
#[must_use]
pub fn combine(first: &Checksum, second: &Checksum, second_length: u64) -> Option<Checksum> {
    if first.algorithm != second.algorithm {
        return None;
    }
    let crc = first.algorithm.crc()?;
    let value =
        crc_fast::checksum_combine(crc, first.crc_value()?, second.crc_value()?, second_length);
    Checksum::from_crc_value(first.algorithm, value)
}

/// The composite checksum of parts, in order: the checksum of their checksums. `None` when there
/// is no part or a part has another algorithm. On the wire it is followed by `-N`, N parts:
/// [`composite_text`].
#[must_use]
pub fn composite<'a>(parts: impl IntoIterator<Item = &'a Checksum>) -> Option<(Checksum, u32)> {
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let mut hasher = Hasher::new(first.algorithm);
    hasher.update(first.as_bytes());
    let mut count = 1u32;
    for part in parts {
        (part.algorithm == first.algorithm).then_some(())?;
        hasher.update(part.as_bytes());
        count = count.checked_add(1)?;
    }
    Some((hasher.finalize(), count))
}

/// A composite checksum as headers and XML carry it: `BASE64-N`.
#[must_use]
pub fn composite_text(value: &Checksum, parts: u32) -> String {
    format!("{}-{parts}", value.to_base64())
}

/// Parses a checksum that may end in `-N`: the value, and the number of parts when composite.
#[must_use]
pub fn parse_composite(algorithm: Algorithm, text: &str) -> Option<(Checksum, Option<u32>)> {
    match text.rsplit_once('-') {
        None => Some((Checksum::parse(algorithm, text)?, None)),
        Some((value, parts)) => {
            let digits = !parts.is_empty() && parts.bytes().all(|byte| byte.is_ascii_digit());
            digits.then_some(())?;
            Some((
                Checksum::parse(algorithm, value)?,
                Some(parts.parse().ok()?),
            ))
        }
    }
}

/// Parses a `Content-MD5` header: the base64 of 16 bytes.
#[must_use]
pub fn parse_content_md5(base64: &str) -> Option<[u8; 16]> {
    let mut buffer = [0u8; 33];
    decode_base64(base64, &mut buffer)?.try_into().ok()
}

/// The entity tag of a multipart object: MD5 of its parts' MD5s, `-N`; without quotes.
#[must_use]
pub fn multipart_etag<'a>(parts: impl IntoIterator<Item = &'a [u8; 16]>) -> String {
    let mut md5 = Md5::default();
    let mut count = 0u32;
    for part in parts {
        md5.update(part);
        count = count.saturating_add(1);
    }
    format!("{}-{count}", crate::hex::encode(&md5.finalize()))
}

/// Standard base64 with padding.
#[must_use]
pub fn encode_base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Decodes at most 32 bytes of standard base64 with padding into `buffer`.
fn decode_base64<'a>(text: &str, buffer: &'a mut [u8; 33]) -> Option<&'a [u8]> {
    // 44 characters hold 31 to 33 bytes: the longest that a checksum needs.
    (text.len() <= 44).then_some(())?;
    let decoded = base64_simd::STANDARD
        .decode(text.as_bytes(), base64_simd::Out::from_slice(buffer))
        .ok()?;
    Some(decoded)
}

#[cfg(test)]
mod tests;
