//! What a request says about its body before it is read: length, framing, hashes, checksums.

use forebay_proto::s3::checksum::{Algorithm, Checksum, parse_content_md5};
use forebay_proto::s3::chunked::{ChunkChain, Decoder};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::sigv4::Payload;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName};

use crate::headers;
use crate::status::{Outcome, Refusal};

/// What the signature says about the body.
pub(crate) struct Proof {
    /// Whether it covers what stands in the query, as headers.
    pub(crate) presigned: bool,
    pub(crate) payload: Payload,
    /// For signed chunks.
    pub(crate) chain: Option<ChunkChain>,
}

/// What the headers claim about a body.
pub(crate) struct Claims {
    /// Payload length in bytes, framing not counted.
    pub(crate) length: u64,
    /// From `Content-MD5`.
    pub(crate) md5: Option<[u8; 16]>,
    /// From `x-amz-content-sha256`.
    pub(crate) sha256: Option<[u8; 32]>,
    /// The checksum algorithm that was asked for.
    pub(crate) algorithm: Option<Algorithm>,
    /// Its value, unless it comes in a trailer or is only to be made.
    pub(crate) value: Option<Checksum>,
    pub(crate) in_trailer: bool,
    pub(crate) framing: Framing,
}

/// How the payload is framed inside the body.
pub(crate) enum Framing {
    Plain,
    Chunked(Box<Decoder>),
}

impl Claims {
    /// Reads the headers.
    ///
    /// # Errors
    /// `MissingContentLength`, `InvalidDigest`, `InvalidRequest`, `InvalidArgument`.
    pub(crate) fn read(request: &HeaderMap, proof: Proof) -> Outcome<Claims> {
        let (claimed, in_trailer) = checksum_claim(request)?;
        Claims::of(request, proof, claimed, in_trailer)
    }

    /// As [`Claims::read`], where headers of checksums are about something else than the body; what a trailer claims is about
    /// the body all the same.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) fn read_but_checksums(request: &HeaderMap, proof: Proof) -> Outcome<Claims> {
        let claimed = trailer_claim(request)?.map(|algorithm| (algorithm, None));
        Claims::of(request, proof, claimed, claimed.is_some())
    }

    fn of(
        request: &HeaderMap,
        proof: Proof,
        claimed: Option<(Algorithm, Option<Checksum>)>,
        in_trailer: bool,
    ) -> Outcome<Claims> {
        refuse_unknown(request)?;
        let md5 = headers::legible(request, &headers::CONTENT_MD5)?
            .map(|text| parse_content_md5(text).ok_or(ErrorCode::InvalidDigest))
            .transpose()?;
        let sha256 = match proof.payload {
            Payload::Sha256(hash) => Some(hash),
            _ => None,
        };
        let (algorithm, value) = match claimed {
            Some((algorithm, value)) => (Some(algorithm), value),
            None => (sdk_algorithm(request, md5.is_some())?, None),
        };
        let length_header = match proof.payload.is_chunked() {
            true => headers::DECODED_CONTENT_LENGTH,
            false => CONTENT_LENGTH,
        };
        let length = headers::number::<u64>(request, &length_header)?
            .ok_or(ErrorCode::MissingContentLength)?;
        if in_trailer && !proof.payload.is_chunked() {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "x-amz-trailer needs a body in chunks.",
            ));
        }
        let framing = match (proof.payload, proof.chain) {
            (Payload::SignedChunks { trailer }, Some(chain)) => {
                Framing::Chunked(Box::new(Decoder::signed(chain, trailer, length)))
            }
            (Payload::SignedChunks { .. }, None) => return Err(ErrorCode::AccessDenied.into()),
            (Payload::UnsignedChunksTrailer, _) => {
                Framing::Chunked(Box::new(Decoder::unsigned(length)))
            }
            (Payload::Unsigned | Payload::Sha256(_), _) => Framing::Plain,
        };
        Ok(Claims {
            length,
            md5,
            sha256,
            algorithm,
            value,
            in_trailer,
            framing,
        })
    }

    /// Has the checksum of this algorithm made even when the request does not ask for it.
    ///
    /// # Errors
    /// `InvalidRequest` when the request names another one.
    pub(crate) fn require(&mut self, algorithm: Algorithm) -> Outcome<()> {
        match self.algorithm {
            Some(other) if other != algorithm => Err(mismatch(other, algorithm)),
            _ => {
                self.algorithm = Some(algorithm);
                Ok(())
            }
        }
    }
}

/// The refusal of a checksum of another algorithm than the upload's.
pub(crate) fn mismatch(actual: Algorithm, expected: Algorithm) -> Refusal {
    Refusal::new(
        ErrorCode::InvalidRequest,
        format!(
            "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
            expected.as_str().to_ascii_lowercase(),
            actual.as_str().to_ascii_lowercase()
        ),
    )
}

/// Refuses a header with a checksum that cannot be made here: whoever sent it would take it for compared.
fn refuse_unknown(request: &HeaderMap) -> Outcome<()> {
    const VALUELESS: [HeaderName; 3] = [
        headers::CHECKSUM_ALGORITHM,
        headers::CHECKSUM_MODE,
        headers::CHECKSUM_TYPE,
    ];
    let is_unknown = |name: &HeaderName| {
        name.as_str().starts_with("x-amz-checksum-")
            && !VALUELESS.contains(name)
            && Algorithm::from_header(name.as_str()).is_none()
    };
    match request.keys().any(is_unknown) {
        true => Err(unsupported()),
        false => Ok(()),
    }
}

/// The refusal of an algorithm that there is not.
pub(crate) fn unsupported() -> Refusal {
    Refusal::new(
        ErrorCode::InvalidRequest,
        "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
    )
}

/// The one checksum that headers or an announced trailer name; the flag says which of the two.
#[expect(clippy::type_complexity, reason = "read and taken apart at one place")]
fn checksum_claim(request: &HeaderMap) -> Outcome<(Option<(Algorithm, Option<Checksum>)>, bool)> {
    let mut claimed = None;
    let several = || {
        Refusal::new(
            ErrorCode::InvalidRequest,
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    };
    for algorithm in Algorithm::ALL {
        let Some(header) = request.get(algorithm.header()) else {
            continue;
        };
        let value = header
            .to_str()
            .ok()
            .and_then(|text| Checksum::parse(algorithm, text))
            .ok_or_else(|| {
                Refusal::new(
                    ErrorCode::InvalidRequest,
                    format!("Value for {} header is invalid.", algorithm.header()),
                )
            })?;
        if claimed.replace((algorithm, Some(value))).is_some() {
            return Err(several());
        }
    }
    match trailer_claim(request)? {
        None => Ok((claimed, false)),
        Some(_) if claimed.is_some() => Err(several()),
        Some(algorithm) => Ok((Some((algorithm, None)), true)),
    }
}

/// The algorithm of the checksum that an announced trailer names.
fn trailer_claim(request: &HeaderMap) -> Outcome<Option<Algorithm>> {
    let Some(trailer) = headers::legible(request, &headers::TRAILER)? else {
        return Ok(None);
    };
    let algorithm = Algorithm::from_header(&trailer.trim_ascii().to_ascii_lowercase());
    algorithm.map(Some).ok_or_else(|| {
        Refusal::new(
            ErrorCode::InvalidRequest,
            "The value specified in the x-amz-trailer header is not supported",
        )
    })
}

/// The algorithm that an SDK says it uses; it also has the checksum made when the SDK sends no value. MD5 is one only where there is
/// a `Content-MD5`, which is compared.
fn sdk_algorithm(request: &HeaderMap, has_md5: bool) -> Outcome<Option<Algorithm>> {
    let Some(text) = headers::legible(request, &headers::SDK_CHECKSUM_ALGORITHM)? else {
        return Ok(None);
    };
    match Algorithm::parse(text) {
        Some(algorithm) => Ok(Some(algorithm)),
        None if has_md5 && text.eq_ignore_ascii_case("md5") => Ok(None),
        None => Err(unsupported()),
    }
}

/// The checksum in the trailers.
pub(crate) fn trailing(trailers: &[(String, String)], algorithm: Algorithm) -> Outcome<Checksum> {
    trailers
        .iter()
        .find(|(name, _)| name == algorithm.header())
        .and_then(|(_, text)| Checksum::parse(algorithm, text))
        .ok_or_else(|| ErrorCode::MalformedTrailerError.into())
}
