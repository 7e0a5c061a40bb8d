//! The metadata of a value, as it stands beside a piece of it on the local disk.
//!
//! Little-endian: format `u8`, size `u64`, modified `u64`, version `u64`, CRC-64/NVME `u64`, expires `u64` (0 is never), from when
//! on it is held `u64`, tag length `u8`, tag, encoded attributes to the end.

use bytes::Bytes;
use forebay_store::{Attributes, Etag, Meta, VersionId};

const FORMAT: u8 = 2;

/// As bytes.
pub(crate) fn encode(meta: &Meta, since: u64) -> Bytes {
    let etag = meta.etag.as_str().as_bytes();
    let attributes = meta.attributes.encoded();
    let mut out = Vec::with_capacity(50 + etag.len() + attributes.len());
    out.push(FORMAT);
    for number in [
        meta.size,
        meta.modified,
        meta.version.0,
        meta.crc64nvme,
        meta.expires.unwrap_or(0),
        since,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(etag.len() as u8);
    out.extend_from_slice(etag);
    out.extend_from_slice(attributes);
    out.into()
}

/// Back; `None` when it is not such.
pub fn decode(bytes: &[u8]) -> Option<(Meta, u64)> {
    let (format, mut rest) = bytes.split_first()?;
    if *format != FORMAT {
        return None;
    }
    let mut number = || {
        let (number, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        Some(u64::from_le_bytes(*number))
    };
    let (size, modified, version) = (number()?, number()?, number()?);
    let (crc64nvme, expires, since) = (number()?, number()?, number()?);
    let (len, rest) = rest.split_first()?;
    let (etag, attributes) = rest.split_at_checked(usize::from(*len))?;
    let meta = Meta {
        size,
        etag: Etag::new(std::str::from_utf8(etag).ok()?)?,
        modified,
        version: VersionId(version),
        crc64nvme,
        expires: (expires > 0).then_some(expires),
        attributes: Attributes::decode(Bytes::copy_from_slice(attributes))?,
    };
    Some((meta, since))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_whole(
            numbers in any::<[u8; 48]>(),
            etag in prop::collection::vec(any::<u8>(), 0..70),
            rest in prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..40),
        ) {
            let len = [etag.len() as u8];
            let bytes = [&[FORMAT][..], &numbers, &len, &etag, &rest].concat();
            if let Some((meta, since)) = decode(&bytes) {
                prop_assert_eq!(&encode(&meta, since)[..], &bytes[..]);
            }
            decode(&rest);
        }
    }

    #[test]
    fn comes_back_and_only_whole() {
        let meta = Meta {
            size: 5,
            etag: Etag::new("abc").expect("a tag"),
            modified: 6,
            version: VersionId(7),
            crc64nvme: 8,
            expires: Some(9),
            attributes: Attributes::builder().set("a", "b").build().expect("small"),
        };
        let bytes = encode(&meta, 10);
        assert_eq!(decode(&bytes), Some((meta, 10)));
        for end in 0..bytes.len() {
            let cut = decode(&bytes[..end]);
            assert!(
                cut.is_none_or(|(meta, _)| meta.attributes.is_empty()),
                "{end}"
            );
        }
    }
}
