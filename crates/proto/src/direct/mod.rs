//! Object calls as messages of a link: the direct path's own protocol, version 1. `docs/direct.md` is its specification.
//!
//! - [`Request`], [`RequestWriter`]: one message that asks; many elements (keys) of one operation in one namespace.
//! - [`Reply`], [`ReplyWriter`]: one or more messages that answer, results in the order of the elements.
//!
//! All integers are little-endian. A message is a fixed header, then elements; an element is a fixed part, then names and bytes whose
//! lengths the fixed part tells. Everything is read in place and written into a caller's buffer: no call here allocates once that
//! buffer has grown to [`MESSAGE_BYTES_MAX`].
//!
//! A message that parses is right in form alone: whether a name is legal or a region exists is for those who know names and regions.

mod attributes;
mod bytes;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use attributes::Attributes;
pub use reply::{
    Deleted, Listed, Outcome, Reply, ReplyWriter, Results, Status, Value, parse_reply,
};
pub use request::{
    Body, Call, Condition, Delete, Elements, Key, List, ListAfter, Range, Request, RequestWriter,
    Retrieve, Stat, Store, Target, parse_request,
};

/// The version that every message begins with.
pub const VERSION: u8 = 1;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// The most payload that rides in a message.
pub const INLINE_BYTES_MAX: usize = 8 << 10;
/// The most elements of a message.
pub const ELEMENTS_MAX: usize = 1000;
/// The longest key or prefix that the format takes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest namespace name.
pub const NAMESPACE_BYTES_MAX: usize = 63;
/// The longest entity tag.
pub const ETAG_BYTES_MAX: usize = 64;
/// The longest attributes of a value, all told.
pub const ATTRIBUTES_BYTES_MAX: usize = 4 << 10;
/// The longest text of an error.
pub const TEXT_BYTES_MAX: usize = 256;
/// The header of every message.
pub const HEADER_BYTES: usize = 24;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Nothing: shows that the peer serves.
    Ping = 0,
    /// Values into the caller's memory; several are a gather.
    Retrieve = 1,
    /// Values out of the caller's memory; several are a scatter.
    Store = 2,
    /// Which keys hold values.
    Exist = 3,
    /// How many keys, from the first on, hold values.
    LongestPrefix = 4,
    /// Metadata.
    Stat = 5,
    /// Removes values.
    Delete = 6,
    /// Keys in order.
    List = 7,
}

impl Operation {
    /// All, by number.
    pub const ALL: [Operation; 8] = [
        Operation::Ping,
        Operation::Retrieve,
        Operation::Store,
        Operation::Exist,
        Operation::LongestPrefix,
        Operation::Stat,
        Operation::Delete,
        Operation::List,
    ];

    /// Its name in metrics and texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Ping => "ping",
            Operation::Retrieve => "retrieve",
            Operation::Store => "store",
            Operation::Exist => "exist",
            Operation::LongestPrefix => "longest_prefix",
            Operation::Stat => "stat",
            Operation::Delete => "delete",
            Operation::List => "list",
        }
    }

    fn from_number(number: u8) -> Option<Operation> {
        Operation::ALL.get(usize::from(number)).copied()
    }
}

/// A message that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early, or says so.
    #[error("the message is cut off")]
    Truncated,
    /// Bytes follow its last element.
    #[error("bytes follow the last element")]
    Trailing,
    /// Another version of this protocol.
    #[error("version {0} is not spoken here")]
    Version(u8),
    /// An operation, status or other number that version 1 does not have.
    #[error("{0} has no such number")]
    Number(&'static str),
    /// A length over its bound.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// Attributes whose names are not in ascending order, each once.
    #[error("the attributes are not in order")]
    Order,
    /// Text that is not.
    #[error("{0} is not text")]
    NotText(&'static str),
    /// Bits or bytes that are zero in version 1 are not.
    #[error("reserved bits are set")]
    Reserved,
}

/// What the writer of a message was asked to append does not fit; nothing was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not fit into the message")]
pub struct Full;

/// Where a checksum did not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Hop {
    /// It was no checksum.
    #[default]
    None = 0,
    /// In the store: what lies there is not what was stored.
    Storage = 1,
    /// Between the caller's memory and the server.
    ToServer = 2,
    /// Between the server and the caller's memory; only the caller finds that.
    ToClient = 3,
}

impl Hop {
    /// In words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Hop::None => "no checksum",
            Hop::Storage => "in the store",
            Hop::ToServer => "between the client's memory and the server",
            Hop::ToClient => "between the server and the client's memory",
        }
    }

    fn from_number(number: u8) -> Option<Hop> {
        [Hop::None, Hop::Storage, Hop::ToServer, Hop::ToClient]
            .get(usize::from(number))
            .copied()
    }
}

/// A window of the caller's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The region's steering tag on this link.
    pub stag: u32,
    /// The tagged offset of the first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// What both kinds of message begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    operation: Operation,
    /// Requests: 0. Replies: [`reply::LAST`] and [`reply::MORE`].
    flags: u16,
    /// Requests: the length of the namespace. Replies: the number of the first element answered.
    first: u16,
    /// How many elements follow.
    count: u16,
    id: u64,
    /// What follows the header, in bytes.
    body: u32,
}

impl Header {
    fn read(message: &[u8]) -> Result<(Header, bytes::Reader<'_>), Malformed> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Malformed::TooLong("the message"));
        }
        let mut reader = bytes::Reader::new(message);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let operation =
            Operation::from_number(reader.u8()?).ok_or(Malformed::Number("the operation"))?;
        let header = Header {
            operation,
            flags: reader.u16()?,
            first: reader.u16()?,
            count: reader.u16()?,
            id: reader.u64()?,
            body: reader.u32()?,
        };
        if reader.u32()? != 0 {
            return Err(Malformed::Reserved);
        }
        if usize::from(header.count) > ELEMENTS_MAX {
            return Err(Malformed::TooLong("the list of elements"));
        }
        match (header.body as usize).cmp(&reader.rest().len()) {
            std::cmp::Ordering::Greater => Err(Malformed::Truncated),
            std::cmp::Ordering::Less => Err(Malformed::Trailing),
            std::cmp::Ordering::Equal => Ok((header, reader)),
        }
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut encoded = [0; HEADER_BYTES];
        encoded[0] = VERSION;
        encoded[1] = self.operation as u8;
        encoded[2..4].copy_from_slice(&self.flags.to_le_bytes());
        encoded[4..6].copy_from_slice(&self.first.to_le_bytes());
        encoded[6..8].copy_from_slice(&self.count.to_le_bytes());
        encoded[8..16].copy_from_slice(&self.id.to_le_bytes());
        encoded[16..20].copy_from_slice(&self.body.to_le_bytes());
        encoded
    }
}

/// The id of a message that may be malformed otherwise, so that its sender can be told.
#[must_use]
pub fn peek_id(message: &[u8]) -> Option<u64> {
    let id = message.get(8..16)?;
    Some(u64::from_le_bytes(id.try_into().ok()?))
}
