//! What is answered: its parts, and reading them.

mod write;

use super::bytes::Reader;
use super::{
    ETAG_BYTES_MAX, Header, Hop, INLINE_BYTES_MAX, KEY_BYTES_MAX, Malformed, Operation,
    TEXT_BYTES_MAX,
};

pub use write::ReplyWriter;

/// No more replies follow for this request.
const LAST: u16 = 1;
/// A list goes on after its last item.
const MORE: u16 = 2;

const WHOLE: u8 = 1;
const PART: u8 = 2;
const REPLACED: u8 = 4;
const IN_MESSAGE: u8 = 8;

const EXISTED: u8 = 1;
const HAS_VERSION: u8 = 2;
const MARKER: u8 = 4;

/// The size that says that a key holds no value.
const ABSENT: u64 = u64::MAX;

/// How an element went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The key holds no value.
    NotFound = 1,
    /// The key has no such version.
    NoSuchVersion = 2,
    /// The version is a delete marker.
    IsDeleteMarker = 3,
    /// There is no such namespace, or it is another tenant's.
    NoSuchNamespace = 4,
    /// A condition did not hold; nothing changed.
    PreconditionFailed = 5,
    /// The range lies outside the value.
    RangeNotSatisfiable = 6,
    /// An argument breaks a limit.
    Invalid = 7,
    /// The value is too large.
    TooLarge = 8,
    /// A quota has no room.
    QuotaExceeded = 9,
    /// The device has no room.
    NoSpace = 10,
    /// A bound on work in flight is reached; trying again later is right.
    Busy = 11,
    /// Bytes do not match their checksum; the hop tells where.
    Corrupt = 12,
    /// The store takes no writes.
    ReadOnly = 13,
    /// Whether the change happened is not known.
    OutcomeUnknown = 14,
    /// The store cannot do that.
    Unsupported = 15,
    /// A device or the system failed.
    Io = 16,
    /// The window is not in memory that this link exposes for this; another session's looks the same.
    NotReachable = 17,
    /// The window, or what rides in a message, is shorter than the bytes asked for; nothing counts as placed.
    TooShort = 18,
    /// The request was not one.
    Malformed = 19,
}

impl Status {
    /// All, by number.
    pub const ALL: [Status; 20] = [
        Status::Ok,
        Status::NotFound,
        Status::NoSuchVersion,
        Status::IsDeleteMarker,
        Status::NoSuchNamespace,
        Status::PreconditionFailed,
        Status::RangeNotSatisfiable,
        Status::Invalid,
        Status::TooLarge,
        Status::QuotaExceeded,
        Status::NoSpace,
        Status::Busy,
        Status::Corrupt,
        Status::ReadOnly,
        Status::OutcomeUnknown,
        Status::Unsupported,
        Status::Io,
        Status::NotReachable,
        Status::TooShort,
        Status::Malformed,
    ];

    /// Its name in metrics and texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::NotFound => "not_found",
            Status::NoSuchVersion => "no_such_version",
            Status::IsDeleteMarker => "is_delete_marker",
            Status::NoSuchNamespace => "no_such_namespace",
            Status::PreconditionFailed => "precondition_failed",
            Status::RangeNotSatisfiable => "range_not_satisfiable",
            Status::Invalid => "invalid",
            Status::TooLarge => "too_large",
            Status::QuotaExceeded => "quota_exceeded",
            Status::NoSpace => "no_space",
            Status::Busy => "busy",
            Status::Corrupt => "corrupt",
            Status::ReadOnly => "read_only",
            Status::OutcomeUnknown => "outcome_unknown",
            Status::Unsupported => "unsupported",
            Status::Io => "io",
            Status::NotReachable => "not_reachable",
            Status::TooShort => "too_short",
            Status::Malformed => "malformed",
        }
    }
}

/// A parsed reply; everything in it lies in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The request's.
    pub id: u64,
    /// The request's.
    pub operation: Operation,
    /// The number of the first element answered here; results follow in the order of the elements.
    pub first: u16,
    /// Whether no more replies follow.
    pub last: bool,
    /// Whether a list goes on after its last item.
    pub more: bool,
    /// What came of the elements.
    pub results: Results<'a>,
}

/// Results, read as they are asked for. Their lengths were checked when the message was parsed.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a> {
    reader: Reader<'a>,
    left: u16,
}

impl PartialEq for Results<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left && self.reader.rest() == other.reader.rest()
    }
}

impl Eq for Results<'_> {}

/// The result of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// How it went.
    pub status: Status,
    /// For [`Status::Corrupt`]: where.
    pub hop: Hop,
    tail: &'a [u8],
}

/// What a retrieve, store or stat tells of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// Its length.
    pub size: u64,
    /// How many of its bytes were moved.
    pub moved: u64,
    /// Where in the value the first of them is.
    pub first: u64,
    /// Its version; 0 is S3's `null`.
    pub version: u64,
    /// When it was stored, in milliseconds since 1970.
    pub modified: u64,
    /// From when on it no longer exists, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// The CRC-64/NVME of the whole value.
    pub crc64nvme: Option<u64>,
    /// The CRC-64/NVME of the bytes moved, when they are a part and a checksum was asked for.
    pub part_crc64nvme: Option<u64>,
    /// Whether a store replaced a value.
    pub replaced: bool,
    /// Its entity tag.
    pub etag: &'a str,
    /// The bytes, when they ride in the message.
    pub bytes: Option<&'a [u8]>,
}

/// What a delete did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Whether anything was there.
    pub existed: bool,
    /// The version removed, or the delete marker made.
    pub version: Option<u64>,
    /// Whether it is a delete marker.
    pub marker: bool,
}

/// One line of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed<'a> {
    /// A value.
    Value {
        /// Its key.
        key: &'a [u8],
        /// Its length.
        size: u64,
        /// When it was stored, in milliseconds since 1970.
        modified: u64,
        /// Its version.
        version: u64,
        /// The CRC-64/NVME of the whole value.
        crc64nvme: u64,
        /// Its entity tag.
        etag: &'a str,
    },
    /// What several keys have in common, delimiter included.
    Prefix(&'a [u8]),
}

/// Reads a reply as far as the lengths of its results.
///
/// # Errors
/// When it is not one.
pub fn parse_reply(message: &[u8]) -> Result<Reply<'_>, Malformed> {
    let (header, reader) = Header::read(message)?;
    if header.flags & !(LAST | MORE) != 0 {
        return Err(Malformed::Reserved);
    }
    let mut rest = reader;
    for _ in 0..header.count {
        result(&mut rest)?;
    }
    if !rest.rest().is_empty() {
        return Err(Malformed::Trailing);
    }
    Ok(Reply {
        id: header.id,
        operation: header.operation,
        first: header.first,
        last: header.flags & LAST != 0,
        more: header.flags & MORE != 0,
        results: Results {
            reader,
            left: header.count,
        },
    })
}

fn result<'a>(reader: &mut Reader<'a>) -> Result<Outcome<'a>, Malformed> {
    let status = reader.u8()?;
    let hop = reader.u8()?;
    let len = reader.u16()?;
    reader.zeroes(4)?;
    Ok(Outcome {
        status: *Status::ALL
            .get(usize::from(status))
            .ok_or(Malformed::Number("the status"))?,
        hop: Hop::from_number(hop).ok_or(Malformed::Number("the hop"))?,
        tail: reader.take(usize::from(len))?,
    })
}

impl<'a> Iterator for Results<'a> {
    type Item = Outcome<'a>;

    fn next(&mut self) -> Option<Outcome<'a>> {
        self.left = self.left.checked_sub(1)?;
        // They were read once before.
        result(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Results<'_> {}

impl<'a> Outcome<'a> {
    /// What is said of a failure.
    ///
    /// # Errors
    /// When that is not text.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let mut reader = Reader::new(self.tail);
        reader.text(self.tail.len(), TEXT_BYTES_MAX, "the text of an error")
    }

    /// Of a retrieve, store or stat that went well.
    ///
    /// # Errors
    /// When the result is none of these.
    pub fn value(&self) -> Result<Value<'a>, Malformed> {
        let mut reader = Reader::new(self.tail);
        let (size, moved, first) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (version, modified, expires) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let crc = reader.u64()?;
        let etag_len = reader.u8()?;
        let flags = reader.u8()?;
        let len = reader.u16()?;
        reader.zeroes(4)?;
        let contradiction = flags & (WHOLE | PART) == WHOLE | PART
            || flags & (WHOLE | PART) == 0 && crc != 0
            || flags & IN_MESSAGE == 0 && len != 0;
        if contradiction || flags & !(WHOLE | PART | REPLACED | IN_MESSAGE) != 0 {
            return Err(Malformed::Reserved);
        }
        let etag = reader.text(usize::from(etag_len), ETAG_BYTES_MAX, "an entity tag")?;
        let bytes = reader.bounded(usize::from(len), INLINE_BYTES_MAX, "the payload")?;
        ended(reader)?;
        Ok(Value {
            size,
            moved,
            first,
            version,
            modified,
            expires: (expires != 0).then_some(expires),
            crc64nvme: (flags & WHOLE != 0).then_some(crc),
            part_crc64nvme: (flags & PART != 0).then_some(crc),
            replaced: flags & REPLACED != 0,
            etag,
            bytes: (flags & IN_MESSAGE != 0).then_some(bytes),
        })
    }

    /// Of an exist that went well: the size of each key's value, in order.
    ///
    /// # Errors
    /// When the result is not that.
    pub fn sizes(&self) -> Result<impl ExactSizeIterator<Item = Option<u64>> + use<'a>, Malformed> {
        let (sizes, rest) = self.tail.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Malformed::Truncated);
        }
        Ok(sizes.iter().map(|size| {
            let size = u64::from_le_bytes(*size);
            (size != ABSENT).then_some(size)
        }))
    }

    /// Of a longest prefix that went well: how many keys, from the first on, hold values.
    ///
    /// # Errors
    /// When the result is not that.
    pub fn prefix(&self) -> Result<u64, Malformed> {
        let mut reader = Reader::new(self.tail);
        let count = reader.u64()?;
        ended(reader)?;
        Ok(count)
    }

    /// Of a delete that went well.
    ///
    /// # Errors
    /// When the result is not that.
    pub fn deleted(&self) -> Result<Deleted, Malformed> {
        let mut reader = Reader::new(self.tail);
        let version = reader.u64()?;
        let flags = reader.u8()?;
        reader.zeroes(7)?;
        ended(reader)?;
        if flags & !(EXISTED | HAS_VERSION | MARKER) != 0 {
            return Err(Malformed::Reserved);
        }
        Ok(Deleted {
            existed: flags & EXISTED != 0,
            version: (flags & HAS_VERSION != 0).then_some(version),
            marker: flags & MARKER != 0,
        })
    }

    /// Of a list that went well: one line.
    ///
    /// # Errors
    /// When the result is not that.
    pub fn listed(&self) -> Result<Listed<'a>, Malformed> {
        let mut reader = Reader::new(self.tail);
        let kind = reader.u8()?;
        let etag_len = reader.u8()?;
        let key_len = reader.u16()?;
        reader.zeroes(4)?;
        let (size, modified, version) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let crc64nvme = reader.u64()?;
        reader.zeroes(8)?;
        let key = reader.bounded(usize::from(key_len), KEY_BYTES_MAX, "a key")?;
        let etag = reader.text(usize::from(etag_len), ETAG_BYTES_MAX, "an entity tag")?;
        ended(reader)?;
        match kind {
            0 => Ok(Listed::Value {
                key,
                size,
                modified,
                version,
                crc64nvme,
                etag,
            }),
            1 => Ok(Listed::Prefix(key)),
            _ => Err(Malformed::Number("the line of a list")),
        }
    }
}

fn ended(reader: Reader<'_>) -> Result<(), Malformed> {
    match reader.rest() {
        [] => Ok(()),
        _ => Err(Malformed::Trailing),
    }
}
