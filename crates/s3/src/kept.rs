//! What the door keeps with an object: headers to be given back, checksum, tags, and the sizes of its parts.
//!
//! Headers are attributes under their own names. The rest is under names that begin with `s3.`:
//! - `s3.checksum`: `ALGORITHM TYPE VALUE`, e.g. `CRC32 COMPOSITE AAAAAA==-2`.
//! - `s3.parts`: sizes of the parts, run-length encoded: `12*8388608,1*77`.
//! - `s3.part-checksums`: their checksums in a row, as bytes, of the algorithm of `s3.checksum`; only of an upload that chose one.
//! - `s3.tags`: the tags as `x-amz-tagging` writes them.
//! - `s3.upload`: the multipart upload that made it, so that completing it again answers the same.

use bytes::Bytes;
use forebay_proto::s3::checksum::{Algorithm, Checksum, ChecksumType, composite_text};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::kept::{HEADERS, Keeper, USER};
use forebay_proto::s3::tags::Tags;
use forebay_store::{Attributes, AttributesBuilder, Meta};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::headers;
use crate::status::Outcome;
pub(crate) use forebay_proto::s3::kept::TAGS;

/// The attribute of the checksum.
pub(crate) const CHECKSUM: &str = "s3.checksum";
/// The attribute of the part sizes.
pub(crate) const PARTS: &str = "s3.parts";
/// The attribute of the parts' checksums: at most 320 000 bytes (10 000 of SHA-256).
pub(crate) const PART_CHECKSUMS: &str = "s3.part-checksums";
/// The attribute of the upload's name.
pub(crate) const UPLOAD: &str = "s3.upload";

const INTERNAL: &str = "s3.";

/// The storage classes that S3 names. All are kept alike here.
const STORAGE_CLASSES: [&str; 11] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
    "OUTPOSTS",
    "SNOW",
    "EXPRESS_ONEZONE",
];

/// Reads the headers of a write that are kept with the object.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidStorageClass`.
pub(crate) fn from_request(request: &HeaderMap) -> Outcome<AttributesBuilder> {
    let mut kept = Attributes::builder();
    let mut keeper = Keeper::default();
    let users = request.keys().map(HeaderName::as_str);
    let users = users.filter(|name| name.starts_with(USER));
    for name in HEADERS.into_iter().chain(users) {
        // Lines of one name are one list (RFC 9110 section 5.3).
        let lines = request.get_all(name).iter().map(HeaderValue::as_bytes);
        let lines: Vec<&[u8]> = lines.collect();
        if !lines.is_empty() {
            keeper.keep(name, &lines.join(&b','), |name, value| {
                kept.insert(name, value);
            })?;
        }
    }
    keeper.finish()?;
    if let Some(class) = headers::legible(request, &headers::STORAGE_CLASS)?
        && !STORAGE_CLASSES.contains(&class)
    {
        return Err(ErrorCode::InvalidStorageClass.into());
    }
    Ok(kept)
}

/// The attributes, all told.
pub(crate) fn sealed(kept: AttributesBuilder) -> Outcome<Attributes> {
    kept.build()
        .ok_or_else(|| ErrorCode::MetadataTooLarge.into())
}

/// Takes over what a copy keeps of its source: everything but how it was put together.
pub(crate) fn from_source(source: &Attributes) -> AttributesBuilder {
    let mut kept = source.to_builder();
    for name in [PARTS, PART_CHECKSUMS, UPLOAD, CHECKSUM] {
        kept.remove(name);
    }
    kept
}

/// An object's tags.
pub(crate) fn tags(attributes: &Attributes) -> Tags {
    attributes
        .get_str(TAGS)
        .and_then(|text| Tags::parse_header(text).ok())
        .unwrap_or_default()
}

/// The tags that a write brings in `x-amz-tagging`.
///
/// # Errors
/// `InvalidTag`, `InvalidArgument`, `BadRequest` for too many.
pub(crate) fn brought_tags(request: &HeaderMap) -> Outcome<Tags> {
    Ok(match headers::legible(request, &headers::TAGGING)? {
        Some(text) => Tags::parse_header(text)?,
        None => Tags::default(),
    })
}

/// Keeps these tags in place of any others.
pub(crate) fn set_tags(kept: &mut AttributesBuilder, tags: &Tags) {
    if tags.is_empty() {
        kept.remove(TAGS);
    } else {
        kept.insert(TAGS, tags.to_header());
    }
}

/// Gives the kept headers back.
pub(crate) fn respond(attributes: &Attributes, response: &mut HeaderMap) {
    let mut typed = false;
    for (name, value) in attributes.iter() {
        if name.starts_with(INTERNAL) {
            continue;
        }
        let shared: Bytes = attributes.encoded().slice_ref(value);
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_maybe_shared(shared),
        ) else {
            continue;
        };
        typed |= name == CONTENT_TYPE;
        response.insert(name, value);
    }
    if !typed {
        response.insert(CONTENT_TYPE, headers::OCTET_STREAM);
    }
}

/// An object's checksum as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) algorithm: Algorithm,
    pub(crate) kind: ChecksumType,
    /// Base64, with `-N` when composite.
    pub(crate) text: String,
}

impl Shown {
    pub(crate) fn whole(checksum: &Checksum) -> Shown {
        Shown {
            algorithm: checksum.algorithm(),
            kind: ChecksumType::FullObject,
            text: checksum.to_base64(),
        }
    }

    pub(crate) fn composite(checksum: &Checksum, parts: u32) -> Shown {
        Shown {
            algorithm: checksum.algorithm(),
            kind: ChecksumType::Composite,
            text: composite_text(checksum, parts),
        }
    }

    /// The CRC-64/NVME that every object has.
    pub(crate) fn own(crc64nvme: u64) -> Option<Shown> {
        Checksum::from_crc_value(Algorithm::Crc64Nvme, crc64nvme).map(|crc| Shown::whole(&crc))
    }

    /// What `s3.checksum` holds.
    pub(crate) fn encode(&self) -> String {
        format!(
            "{} {} {}",
            self.algorithm.as_str(),
            self.kind.as_str(),
            self.text
        )
    }

    /// The checksum of an object: the one that was asked for when it was written, else its CRC-64/NVME.
    pub(crate) fn of(meta: &Meta) -> Option<Shown> {
        match meta.attributes.get_str(CHECKSUM) {
            Some(text) => Shown::decode(text),
            None => Shown::own(meta.crc64nvme),
        }
    }

    pub(crate) fn decode(text: &str) -> Option<Shown> {
        let mut words = text.splitn(3, ' ');
        Some(Shown {
            algorithm: Algorithm::parse(words.next()?)?,
            kind: ChecksumType::parse(words.next()?)?,
            text: words.next()?.to_owned(),
        })
    }

    /// As the XML emitters take it.
    pub(crate) fn as_xml(&self) -> (Algorithm, &str, ChecksumType) {
        (self.algorithm, &self.text, self.kind)
    }

    /// As headers.
    pub(crate) fn respond(&self, response: &mut HeaderMap) {
        response.insert(
            HeaderName::from_static(self.algorithm.header()),
            headers::value(self.text.as_bytes()),
        );
        response.insert(
            headers::CHECKSUM_TYPE,
            HeaderValue::from_static(self.kind.as_str()),
        );
    }
}

/// The algorithm and kind of an object's checksum, for listings.
pub(crate) fn checksum_kind(meta: &Meta) -> Option<(Algorithm, ChecksumType)> {
    match meta.attributes.get_str(CHECKSUM) {
        Some(text) => Shown::decode(text).map(|shown| (shown.algorithm, shown.kind)),
        None => Some((Algorithm::Crc64Nvme, ChecksumType::FullObject)),
    }
}

/// The checksum of part `number` of an object whose upload chose an algorithm.
pub(crate) fn part_checksum(attributes: &Attributes, number: u32) -> Option<Checksum> {
    let algorithm = Shown::decode(attributes.get_str(CHECKSUM)?)?.algorithm;
    let length = algorithm.length();
    let at = usize::try_from(number.checked_sub(1)?).ok()? * length;
    let value = attributes.get(PART_CHECKSUMS)?.get(at..at + length)?;
    Checksum::from_bytes(algorithm, value)
}

/// The sizes of the parts of an object made of parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PartSizes {
    /// How many parts of what size, in order.
    runs: Vec<(u32, u64)>,
}

impl PartSizes {
    /// Appends a part.
    pub(crate) fn push(&mut self, size: u64) {
        match self.runs.last_mut() {
            Some((count, same)) if *same == size => *count += 1,
            _ => self.runs.push((1, size)),
        }
    }

    /// What `s3.parts` holds.
    pub(crate) fn encode(&self) -> String {
        let runs: Vec<String> = self
            .runs
            .iter()
            .map(|(count, size)| format!("{count}*{size}"))
            .collect();
        runs.join(",")
    }

    /// Reads it; `None` when the object was not made of parts.
    pub(crate) fn of(attributes: &Attributes) -> Option<PartSizes> {
        let runs = attributes
            .get_str(PARTS)?
            .split(',')
            .map(|run| {
                let (count, size) = run.split_once('*')?;
                Some((count.parse().ok()?, size.parse().ok()?))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(PartSizes { runs })
    }

    /// How many parts.
    pub(crate) fn count(&self) -> u32 {
        self.runs
            .iter()
            .fold(0u32, |sum, (count, _)| sum.saturating_add(*count))
    }

    /// Each part's number and size, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        (1u32..).zip(
            self.runs
                .iter()
                .flat_map(|(count, size)| std::iter::repeat_n(*size, *count as usize)),
        )
    }

    /// The first byte and the length of part `number`; `None` when there is no such part.
    pub(crate) fn locate(&self, number: u32) -> Option<(u64, u64)> {
        let mut before = number.checked_sub(1)?;
        let mut offset = 0u64;
        for (count, size) in &self.runs {
            if before < *count {
                return Some((offset + u64::from(before) * size, *size));
            }
            before -= count;
            offset += u64::from(*count) * size;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_sizes_round_trip_and_locate() {
        let mut sizes = PartSizes::default();
        for size in [5, 5, 5, 2] {
            sizes.push(size);
        }
        assert_eq!(sizes.encode(), "3*5,1*2");
        let kept = Attributes::builder()
            .set(PARTS, sizes.encode())
            .build()
            .expect("small");
        let sizes = PartSizes::of(&kept).expect("own encoding");
        assert_eq!((sizes.count(), sizes.locate(3)), (4, Some((10, 5))));
        assert_eq!(sizes.locate(4), Some((15, 2)));
        assert_eq!((sizes.locate(0), sizes.locate(5)), (None, None));
        assert_eq!(sizes.iter().last(), Some((4, 2)));
    }

    #[test]
    fn aws_chunked_is_not_kept() {
        let mut request = HeaderMap::new();
        request.insert(
            "content-encoding",
            HeaderValue::from_static("aws-chunked, gzip"),
        );
        request.insert("x-amz-meta-a", HeaderValue::from_static("1"));
        request.append("x-amz-meta-a", HeaderValue::from_static("2"));
        let kept = from_request(&request)
            .expect("legal")
            .build()
            .expect("small");
        assert_eq!(kept.get_str("content-encoding"), Some("gzip"));
        assert_eq!(kept.get_str("x-amz-meta-a"), Some("1,2"));
        request.insert(
            "x-amz-meta-b",
            HeaderValue::from_bytes(&[b'x'; 2048]).expect("legal"),
        );
        let Err(error) = from_request(&request) else {
            panic!("too large");
        };
        assert_eq!(error.code(), ErrorCode::MetadataTooLarge);
    }
}
