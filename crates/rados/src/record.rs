//! What is kept of a value and of a key (`docs/rados.md` sections 2 and 3).

use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{Attributes, Away, Etag, Meta, Usage, VersionId};

use crate::codec::{Malformed, Reader, Writer};

/// The format of every record here.
const FORMAT: u8 = 1;
/// Most records take no more.
const ORDINARY_BYTES: usize = 256;
/// Attributes up to this many bytes are in the index, too; others are looked up.
const INDEXED_ATTRIBUTES_BYTES_MAX: usize = 1024;
/// Bytes under one checksum.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;

/// A value, wherever its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// Grows with every value and marker of a key; the version's id, unless that is the null version.
    pub seq: u64,
    pub null: bool,
    pub size: u64,
    pub crc64nvme: u64,
    pub modified: u64,
    pub expires: Option<u64>,
    pub etag: Etag,
    pub attributes: Attributes,
    pub layout: Layout,
}

/// Where a value's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The data of the key's object; with the CRC32C of each block.
    Inline(Vec<u32>),
    /// Stripes, one segment after the other. (No bytes: no segment.)
    Striped(Vec<Segment>),
    /// Not here: a layer above keeps them under this name.
    Away(Away),
}

/// Bytes that were written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// Names the stripes, and who wrote them.
    pub id: u128,
    pub len: u64,
    /// All stripes but the last have so many bytes.
    pub stripe_bytes: u32,
}

impl Segment {
    const BYTES: usize = 28;
    /// Of a value whose length nobody knows up to twice as much may be announced as there will be.
    const LEN_MAX: u64 = 2 * VALUE_BYTES_MAX;

    /// What has the stripes up to this one; `None` where no value has so many.
    pub fn up_to(id: u128, number: u64, stripe_bytes: u32) -> Option<Segment> {
        let len = number.checked_add(1)?;
        let len = len.checked_mul(u64::from(stripe_bytes))?;
        (len <= Segment::LEN_MAX).then_some(Segment {
            id,
            len,
            stripe_bytes,
        })
    }

    /// How many stripes.
    pub fn stripes(&self) -> u64 {
        self.len.div_ceil(u64::from(self.stripe_bytes.max(1)))
    }

    pub fn write(writer: &mut Writer, segment: &Segment) {
        writer.u128(segment.id);
        writer.u64(segment.len);
        writer.u32(segment.stripe_bytes);
    }

    pub fn read(reader: &mut Reader<'_>) -> Result<Segment, Malformed> {
        let segment = Segment {
            id: reader.u128()?,
            len: reader.u64()?,
            stripe_bytes: reader.u32()?,
        };
        let whole = u64::from(segment.stripe_bytes);
        let fits = whole > 0 && whole.is_multiple_of(BLOCK_BYTES);
        match fits && segment.len <= Segment::LEN_MAX {
            true => Ok(segment),
            false => Err(Malformed),
        }
    }
}

impl Value {
    pub fn version(&self) -> VersionId {
        match self.null {
            true => VersionId::NULL,
            false => VersionId(self.seq),
        }
    }

    pub fn meta(&self) -> Meta {
        Meta {
            size: self.size,
            etag: self.etag,
            modified: self.modified,
            version: self.version(),
            crc64nvme: self.crc64nvme,
            expires: self.expires,
            attributes: self.attributes.clone(),
        }
    }

    /// Bytes that the key's own object holds for it.
    pub fn inline_bytes(&self) -> u64 {
        match &self.layout {
            Layout::Inline(_) => self.size,
            Layout::Striped(_) | Layout::Away(_) => 0,
        }
    }

    pub fn segments(&self) -> &[Segment] {
        match &self.layout {
            Layout::Inline(_) | Layout::Away(_) => &[],
            Layout::Striped(segments) => segments,
        }
    }

    /// Under which name its bytes are elsewhere, if they were let go.
    pub fn away(&self) -> Option<Away> {
        match self.layout {
            Layout::Inline(_) | Layout::Striped(_) => None,
            Layout::Away(away) => Some(away),
        }
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.seq);
        writer.bool(self.null);
        writer.u64(self.size);
        writer.u64(self.crc64nvme);
        writer.u64(self.modified);
        writer.option(self.expires, Writer::u64);
        writer.string(self.etag.as_str().as_bytes());
        writer.string(self.attributes.encoded());
        match &self.layout {
            Layout::Inline(sums) => {
                writer.u8(0);
                writer.list(sums, |writer, sum| writer.u32(*sum));
            }
            Layout::Striped(segments) => {
                writer.u8(1);
                writer.list(segments, Segment::write);
            }
            Layout::Away(away) => {
                writer.u8(2);
                writer.u128(away.0);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Value, Malformed> {
        let value = Value {
            seq: reader.number()?,
            null: reader.bool()?,
            size: reader.u64()?,
            crc64nvme: reader.u64()?,
            modified: reader.u64()?,
            expires: reader.option(Reader::u64)?,
            etag: reader.etag()?,
            attributes: reader.attributes()?,
            layout: match reader.u8()? {
                0 => Layout::Inline(reader.list(4, Reader::u32)?),
                1 => Layout::Striped(reader.list(Segment::BYTES, Segment::read)?),
                2 => Layout::Away(Away(reader.u128()?)),
                _ => return Err(Malformed),
            },
        };
        let whole = match &value.layout {
            Layout::Inline(sums) => value.size.div_ceil(BLOCK_BYTES) == sums.len() as u64,
            Layout::Striped(segments) => {
                let mut lengths = segments.iter().map(|segment| segment.len);
                lengths.try_fold(0, u64::checked_add) == Some(value.size)
            }
            Layout::Away(_) => value.size > 0,
        };
        match whole && value.size <= VALUE_BYTES_MAX {
            true => Ok(value),
            false => Err(Malformed),
        }
    }
}

/// An older version of a key, beside the data of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    Value(Value),
    Marker { seq: u64, null: bool, modified: u64 },
}

impl Kept {
    pub fn seq(&self) -> u64 {
        match self {
            Kept::Value(value) => value.seq,
            Kept::Marker { seq, .. } => *seq,
        }
    }

    pub fn version(&self) -> VersionId {
        match self {
            Kept::Value(value) => value.version(),
            Kept::Marker { null: true, .. } => VersionId::NULL,
            Kept::Marker { seq, .. } => VersionId(*seq),
        }
    }

    pub fn is_marker(&self) -> bool {
        matches!(self, Kept::Marker { .. })
    }

    pub fn value(&self) -> Option<&Value> {
        match self {
            Kept::Value(value) => Some(value),
            Kept::Marker { .. } => None,
        }
    }

    pub fn expires(&self) -> Option<u64> {
        self.value().and_then(|value| value.expires)
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires().is_some_and(|expires| expires <= now)
    }

    /// The key beside the data: the newest comes first.
    pub fn name(seq: u64) -> Vec<u8> {
        format!("v{:016x}", !seq).into_bytes()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        match self {
            Kept::Value(value) => {
                writer.u8(0);
                value.write(&mut writer);
            }
            Kept::Marker {
                seq,
                null,
                modified,
            } => {
                writer.u8(1);
                writer.u64(*seq);
                writer.bool(*null);
                writer.u64(*modified);
            }
        }
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Kept, Malformed> {
        let mut reader = begin(encoded)?;
        let kept = match reader.u8()? {
            0 => Kept::Value(Value::read(&mut reader)?),
            1 => Kept::Marker {
                seq: reader.number()?,
                null: reader.bool()?,
                modified: reader.u64()?,
            },
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(kept)
    }
}

/// A key's record: the current value, and what there is to know of the kept ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// When the object was changed last, in seconds: an object that shows another time was changed by another hand.
    pub stamp: i64,
    /// The greatest that a value or marker of this key had.
    pub last_seq: u64,
    /// Of all versions.
    pub usage: Usage,
    /// Nothing expires before.
    pub expires_next: Option<u64>,
    /// How many versions are kept, markers included.
    pub kept: u32,
    /// The kept null version.
    pub kept_null: Option<u64>,
    /// The newest kept version, if it is a marker: when there is no current value, it hides the others.
    pub marker: Option<(u64, bool, u64)>,
    /// The composition that made it what it is; open as long as that has an object.
    pub composition: Option<u128>,
    /// The key, when the object is not named so.
    pub key: Option<Vec<u8>>,
    pub current: Option<Value>,
}

impl Head {
    /// Of a key that was never there.
    pub fn new(key: Option<Vec<u8>>) -> Head {
        Head {
            stamp: 0,
            last_seq: 0,
            usage: Usage::default(),
            expires_next: None,
            kept: 0,
            kept_null: None,
            marker: None,
            composition: None,
            key,
            current: None,
        }
    }

    /// Whether the key has nothing: somebody made way for a value that has not come.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.kept == 0
    }

    /// The current value, if it has not expired.
    pub fn current(&self, now: u64) -> Option<&Value> {
        self.current.as_ref().filter(|value| !value.is_expired(now))
    }

    /// The marker that hides what is kept.
    pub fn hidden_by(&self) -> Option<VersionId> {
        let (seq, null, _) = self.marker.filter(|_| self.current.is_none())?;
        Some(match null {
            true => VersionId::NULL,
            false => VersionId(seq),
        })
    }

    /// Bytes that the object's data must have.
    pub fn inline_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, Value::inline_bytes)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.u64(self.stamp as u64);
        writer.u64(self.last_seq);
        writer.usage(self.usage);
        writer.option(self.expires_next, Writer::u64);
        writer.u32(self.kept);
        writer.option(self.kept_null, Writer::u64);
        writer.option(self.marker, write_marker);
        writer.option(self.composition, Writer::u128);
        writer.option(self.key.as_ref(), |writer, key| writer.string(key));
        writer.option(self.current.as_ref(), |writer, value| value.write(writer));
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Head, Malformed> {
        let mut reader = begin(encoded)?;
        let head = Head {
            stamp: reader.u64()? as i64,
            last_seq: reader.number()?,
            usage: reader.usage()?,
            expires_next: reader.option(Reader::u64)?,
            kept: reader.u32()?,
            kept_null: reader.option(Reader::number)?,
            marker: reader.option(read_marker)?,
            composition: reader.option(Reader::u128)?,
            key: reader.option(|reader| Ok(reader.string()?.to_vec()))?,
            current: reader.option(Value::read)?,
        };
        reader.end()?;
        Ok(head)
    }
}

fn write_marker(writer: &mut Writer, (seq, null, modified): (u64, bool, u64)) {
    writer.u64(seq);
    writer.bool(null);
    writer.u64(modified);
}

fn read_marker(reader: &mut Reader<'_>) -> Result<(u64, bool, u64), Malformed> {
    Ok((reader.number()?, reader.bool()?, reader.u64()?))
}

/// What the index knows of a key: made from its head and the version of its object alone, so that whoever knows the two knows what must
/// stand in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The object's version; of a key that was looked for and is gone, a number that no other entry has.
    pub version: u64,
    /// `None`: the key is gone, and its entry will be.
    pub known: Option<Known>,
}

/// What the index knows of a key that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub usage: Usage,
    pub expires_next: Option<u64>,
    pub kept: u32,
    pub marker: Option<(u64, bool, u64)>,
    /// The current value's.
    pub current: Option<Meta>,
    /// Whether the attributes of `current` are not here but in the head.
    pub attributes_elsewhere: bool,
}

impl Entry {
    /// Of an object of this version that has this head, or is gone. Of a key that has nothing the index knows nothing.
    pub fn of(version: u64, head: Option<&Head>) -> Entry {
        let known = head.filter(|head| !head.is_empty()).map(|head| {
            let mut current = head.current.as_ref().map(Value::meta);
            let large =
                |meta: &Meta| meta.attributes.encoded().len() > INDEXED_ATTRIBUTES_BYTES_MAX;
            let attributes_elsewhere = current.as_ref().is_some_and(large);
            if let Some(meta) = current.as_mut().filter(|_| attributes_elsewhere) {
                meta.attributes = Attributes::EMPTY;
            }
            Known {
                usage: head.usage,
                expires_next: head.expires_next,
                kept: head.kept,
                marker: head.marker,
                current,
                attributes_elsewhere,
            }
        });
        Entry { version, known }
    }

    pub fn usage(&self) -> Usage {
        self.known
            .as_ref()
            .map_or_else(Usage::default, |known| known.usage)
    }

    pub fn expires_next(&self) -> Option<u64> {
        self.known.as_ref().and_then(|known| known.expires_next)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.u64(self.version);
        writer.option(self.known.as_ref(), |writer, known| {
            writer.usage(known.usage);
            writer.option(known.expires_next, Writer::u64);
            writer.u32(known.kept);
            writer.option(known.marker, write_marker);
            writer.bool(known.attributes_elsewhere);
            writer.option(known.current.as_ref(), write_meta);
        });
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Entry, Malformed> {
        let mut reader = begin(encoded)?;
        let entry = Entry {
            version: reader.u64()?,
            known: reader.option(|reader| {
                Ok(Known {
                    usage: reader.usage()?,
                    expires_next: reader.option(Reader::u64)?,
                    kept: reader.u32()?,
                    marker: reader.option(read_marker)?,
                    attributes_elsewhere: reader.bool()?,
                    current: reader.option(read_meta)?,
                })
            })?,
        };
        reader.end()?;
        Ok(entry)
    }
}

fn write_meta(writer: &mut Writer, meta: &Meta) {
    writer.u64(meta.size);
    writer.u64(meta.version.0);
    writer.u64(meta.crc64nvme);
    writer.u64(meta.modified);
    writer.option(meta.expires, Writer::u64);
    writer.string(meta.etag.as_str().as_bytes());
    writer.string(meta.attributes.encoded());
}

fn read_meta(reader: &mut Reader<'_>) -> Result<Meta, Malformed> {
    Ok(Meta {
        size: reader.u64()?,
        version: VersionId(reader.u64()?),
        crc64nvme: reader.u64()?,
        modified: reader.u64()?,
        expires: reader.option(Reader::u64)?,
        etag: reader.etag()?,
        attributes: reader.attributes()?,
    })
}

pub(crate) fn begin(encoded: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(encoded);
    match reader.u8()? {
        FORMAT => Ok(reader),
        _ => Err(Malformed),
    }
}

pub(crate) fn writer() -> Writer {
    let mut writer = Writer(Vec::with_capacity(ORDINARY_BYTES));
    writer.u8(FORMAT);
    writer
}
