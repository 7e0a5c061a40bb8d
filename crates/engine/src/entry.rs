//! What stands under a key: a value's metadata and where its bytes are, or a delete marker.

use bytes::Bytes;
use forebay_store::{Attributes, Away, Etag, Meta, VersionId};

use crate::codec::{Malformed, Reader, put_string};
use crate::extent::Extent;

const VALUE: u8 = 0;
const MARKER: u8 = 1;
const NEVER: u64 = u64::MAX;
/// Extents that a body holds beside its entry rather than in table layout.
pub(crate) const ENTRY_EXTENTS_MAX: usize = 4;
/// Extents of one row of table layout.
pub(crate) const LAYOUT_EXTENTS_MAX: usize = 1024;

/// Where the bytes of a value are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Empty,
    /// In table inline.
    Inline(u64),
    /// Here: a body id and its extents.
    Extents(u64, Vec<Extent>),
    /// Extents in table layout.
    Layout(u64),
    /// Parts in table layout.
    Joined(u64),
    /// Not here: a layer keeps them under this name.
    Away(Away),
}

impl Place {
    pub fn encode(&self, into: &mut Vec<u8>) {
        let (kind, id) = match self {
            Place::Empty => {
                into.push(0);
                return;
            }
            Place::Inline(id) => (1, id),
            Place::Extents(id, _) => (2, id),
            Place::Layout(id) => (3, id),
            Place::Joined(id) => (4, id),
            Place::Away(away) => {
                into.push(5);
                into.extend_from_slice(&away.0.to_le_bytes());
                return;
            }
        };
        into.push(kind);
        into.extend_from_slice(&id.to_le_bytes());
        if let Place::Extents(_, extents) = self {
            Extent::encode_all(extents, into);
        }
    }

    pub fn decode(from: &mut Reader<'_>) -> Result<Place, Malformed> {
        Ok(match from.u8()? {
            0 => Place::Empty,
            1 => Place::Inline(from.u64()?),
            2 => Place::Extents(from.u64()?, Extent::decode_all(from)?),
            3 => Place::Layout(from.u64()?),
            4 => Place::Joined(from.u64()?),
            5 => Place::Away(Away(
                u128::from(from.u64()?) | u128::from(from.u64()?) << 64,
            )),
            _ => return Err(Malformed),
        })
    }

    /// The same of a value that is one extent, here, and otherwise `None`: most small values are, and need no list.
    fn decode_extent(from: &mut Reader<'_>) -> Result<Option<(u64, Extent)>, Malformed> {
        if from.u8()? != 2 {
            return Ok(None);
        }
        let body = from.u64()?;
        Ok(match from.u32()? {
            1 => Some((body, Extent::decode(from)?)),
            _ => None,
        })
    }
}

/// A part of a joined value: its size and place.
pub(crate) type Part = (u64, Place);

/// The row in table layout of a joined value.
pub(crate) fn encode_parts(parts: &[Part]) -> Bytes {
    let mut encoded = Vec::with_capacity(4 + parts.len() * 24);
    encoded.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    for (size, place) in parts {
        encoded.extend_from_slice(&size.to_le_bytes());
        place.encode(&mut encoded);
    }
    encoded.into()
}

/// Reads what [`encode_parts`] made.
pub(crate) fn decode_parts(encoded: &[u8]) -> Result<Vec<Part>, Malformed> {
    let mut from = Reader::new(encoded);
    let count = from.u32()?;
    (0..count)
        .map(|_| Ok((from.u64()?, Place::decode(&mut from)?)))
        .collect()
}

/// One entry, as stored; fields are decoded when they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    encoded: Bytes,
}

/// Offsets of the fixed fields.
const SEQUENCE: usize = 1;
const VERSION: usize = 9;
const MODIFIED: usize = 17;
const EXPIRES: usize = 25;
const SIZE: usize = 33;
const CRC: usize = 41;
const FIXED: usize = 49;

impl Entry {
    pub fn value(sequence: u64, meta: &Meta, place: &Place) -> Entry {
        let attributes = meta.attributes.encoded();
        let mut encoded = Vec::with_capacity(FIXED + 64 + attributes.len() + 48);
        head(&mut encoded, VALUE, sequence, meta);
        let etag = meta.etag.as_str().as_bytes();
        encoded.push(etag.len() as u8);
        encoded.extend_from_slice(etag);
        put_string(&mut encoded, attributes);
        place.encode(&mut encoded);
        Entry {
            encoded: encoded.into(),
        }
    }

    pub fn marker(sequence: u64, version: VersionId, modified: u64) -> Entry {
        let mut encoded = Vec::with_capacity(FIXED);
        encoded.push(MARKER);
        for field in [sequence, version.0, modified, NEVER, 0, 0] {
            encoded.extend_from_slice(&field.to_le_bytes());
        }
        Entry {
            encoded: encoded.into(),
        }
    }

    /// Adopts an encoding whose fixed part is there.
    pub fn adopt(encoded: Bytes) -> Result<Entry, Malformed> {
        if encoded.len() < FIXED || encoded[0] > MARKER {
            return Err(Malformed);
        }
        Ok(Entry { encoded })
    }

    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    fn field(&self, at: usize) -> u64 {
        let mut field = [0; 8];
        field.copy_from_slice(&self.encoded[at..at + 8]);
        u64::from_le_bytes(field)
    }

    pub fn is_marker(&self) -> bool {
        self.encoded[0] == MARKER
    }

    pub fn sequence(&self) -> u64 {
        self.field(SEQUENCE)
    }

    pub fn version(&self) -> VersionId {
        VersionId(self.field(VERSION))
    }

    pub fn modified(&self) -> u64 {
        self.field(MODIFIED)
    }

    pub fn expires(&self) -> Option<u64> {
        Some(self.field(EXPIRES)).filter(|expires| *expires != NEVER)
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.field(EXPIRES) <= now
    }

    pub fn size(&self) -> u64 {
        self.field(SIZE)
    }

    pub fn etag(&self) -> Result<Etag, Malformed> {
        let mut from = Reader::new(&self.encoded[FIXED..]);
        etag(&mut from)
    }

    pub fn meta(&self) -> Result<Meta, Malformed> {
        let mut from = Reader::new(&self.encoded[FIXED..]);
        let etag = etag(&mut from)?;
        let attributes = Reader::share(&self.encoded, from.string()?);
        Ok(Meta {
            size: self.size(),
            etag,
            modified: self.modified(),
            version: self.version(),
            crc64nvme: self.field(CRC),
            expires: self.expires(),
            attributes: Attributes::decode(attributes).ok_or(Malformed)?,
        })
    }

    pub fn place(&self) -> Result<Place, Malformed> {
        Place::decode(&mut self.behind_attributes()?)
    }

    /// The body and the extent of a value that is one extent, described here.
    pub fn only_extent(&self) -> Result<Option<(u64, Extent)>, Malformed> {
        Place::decode_extent(&mut self.behind_attributes()?)
    }

    fn behind_attributes(&self) -> Result<Reader<'_>, Malformed> {
        let mut from = Reader::new(&self.encoded[FIXED..]);
        let tag = usize::from(from.u8()?);
        from.take(tag)?;
        from.string()?;
        Ok(from)
    }
}

fn head(encoded: &mut Vec<u8>, kind: u8, sequence: u64, meta: &Meta) {
    encoded.push(kind);
    for field in [
        sequence,
        meta.version.0,
        meta.modified,
        meta.expires.unwrap_or(NEVER),
        meta.size,
        meta.crc64nvme,
    ] {
        encoded.extend_from_slice(&field.to_le_bytes());
    }
}

fn etag(from: &mut Reader<'_>) -> Result<Etag, Malformed> {
    let len = usize::from(from.u8()?);
    std::str::from_utf8(from.take(len)?)
        .ok()
        .and_then(Etag::new)
        .ok_or(Malformed)
}
