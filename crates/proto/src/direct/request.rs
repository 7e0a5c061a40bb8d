//! What is asked: its parts, and reading them.

mod write;

use super::bytes::Reader;
use super::{
    ATTRIBUTES_BYTES_MAX, Attributes, ETAG_BYTES_MAX, Header, INLINE_BYTES_MAX, KEY_BYTES_MAX,
    Malformed, NAMESPACE_BYTES_MAX, Operation, Window,
};

pub use write::RequestWriter;

const IN_MESSAGE: u8 = 1;
const HAS_VERSION: u8 = 2;
const CHECKSUM: u8 = 4;
const HAS_EXPIRES: u8 = 8;

/// A parsed request; everything in it lies in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Chosen by the caller; each reply repeats it.
    pub id: u64,
    /// Not yet known to be a legal name.
    pub namespace: &'a str,
    /// The operation and its elements.
    pub call: Call<'a>,
}

/// An operation with its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call<'a> {
    /// [`Operation::Ping`].
    Ping,
    /// [`Operation::Retrieve`].
    Retrieve(Elements<'a, Retrieve<'a>>),
    /// [`Operation::Store`].
    Store(Elements<'a, Store<'a>>),
    /// [`Operation::Exist`].
    Exist(Elements<'a, Key<'a>>),
    /// [`Operation::LongestPrefix`].
    LongestPrefix(Elements<'a, Key<'a>>),
    /// [`Operation::Stat`].
    Stat(Elements<'a, Stat<'a>>),
    /// [`Operation::Delete`].
    Delete(Elements<'a, Delete<'a>>),
    /// [`Operation::List`].
    List(List<'a>),
}

impl Call<'_> {
    /// Its operation.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Call::Ping => Operation::Ping,
            Call::Retrieve(_) => Operation::Retrieve,
            Call::Store(_) => Operation::Store,
            Call::Exist(_) => Operation::Exist,
            Call::LongestPrefix(_) => Operation::LongestPrefix,
            Call::Stat(_) => Operation::Stat,
            Call::Delete(_) => Operation::Delete,
            Call::List(_) => Operation::List,
        }
    }
}

/// Which bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Range {
    /// All of them.
    #[default]
    Full,
    /// From an offset to the end.
    From(u64),
    /// First to last, both included.
    Inclusive(u64, u64),
    /// The last so many.
    Suffix(u64),
}

/// Where the bytes of a retrieve go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Into the caller's memory, from the window's first byte on.
    Window(Window),
    /// Into the reply, when they are at most [`INLINE_BYTES_MAX`].
    Message,
}

/// One value to retrieve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retrieve<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// A version instead of the current value.
    pub version: Option<u64>,
    /// Which of its bytes.
    pub range: Range,
    /// Where they go.
    pub target: Target,
    /// Whether the reply must carry a checksum of the bytes even when they are a part of the value.
    pub checksum: bool,
}

/// Where the bytes of a store are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the caller's memory.
    Window(Window),
    /// In the message: at most [`INLINE_BYTES_MAX`].
    Message(&'a [u8]),
}

/// What must hold of the current value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition<'a> {
    /// Nothing.
    #[default]
    None,
    /// There is none.
    IfAbsent,
    /// There is one.
    IfPresent,
    /// It has this entity tag.
    IfMatch(&'a str),
}

/// One value to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes.
    pub body: Body<'a>,
    /// What must hold.
    pub condition: Condition<'a>,
    /// The CRC-64/NVME of its bytes, made where they are; the value is stored only if it is right.
    pub crc64nvme: Option<u64>,
    /// From when on it no longer exists, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// What is kept beside its bytes.
    pub attributes: Attributes<'a>,
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a>(pub &'a [u8]);

/// Whose metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat<'a> {
    /// The key.
    pub key: &'a [u8],
    /// A version instead of the current value.
    pub version: Option<u64>,
}

/// What to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Just this version, for good.
    pub version: Option<u64>,
    /// What must hold.
    pub condition: Condition<'a>,
}

/// Where a list begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListAfter<'a> {
    /// At the first key.
    #[default]
    Start,
    /// After this key.
    Key(&'a [u8]),
    /// After every key that begins so.
    Prefix(&'a [u8]),
}

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List<'a> {
    /// Only keys that begin so.
    pub prefix: &'a [u8],
    /// What shares the text up to the next delimiter is one item; empty: none.
    pub delimiter: &'a [u8],
    /// Where to begin.
    pub after: ListAfter<'a>,
    /// At most so many items.
    pub limit: u32,
}

/// Elements of one kind, read as they are asked for. They were checked when the message was parsed.
#[derive(Debug)]
pub struct Elements<'a, T> {
    reader: Reader<'a>,
    left: u16,
    kind: std::marker::PhantomData<T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<T> PartialEq for Elements<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left && self.reader.rest() == other.reader.rest()
    }
}

impl<T> Eq for Elements<'_, T> {}

/// What can be an element of a request.
trait Element<'a>: Sized {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
}

#[expect(
    private_bounds,
    reason = "the kinds of elements are those of this protocol"
)]
impl<'a, T: Element<'a>> Elements<'a, T> {
    fn parse(reader: Reader<'a>, count: u16) -> Result<Elements<'a, T>, Malformed> {
        let mut rest = reader;
        for _ in 0..count {
            T::read(&mut rest)?;
        }
        if !rest.rest().is_empty() {
            return Err(Malformed::Trailing);
        }
        Ok(Elements {
            reader,
            left: count,
            kind: std::marker::PhantomData,
        })
    }
}

impl<'a, T: Element<'a>> Iterator for Elements<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        // They were read once before.
        T::read(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl<'a, T: Element<'a>> ExactSizeIterator for Elements<'a, T> {}

/// Reads a request, every element of it.
///
/// # Errors
/// When it is not one.
pub fn parse_request(message: &[u8]) -> Result<Request<'_>, Malformed> {
    let (header, mut reader) = Header::read(message)?;
    if header.flags != 0 {
        return Err(Malformed::Reserved);
    }
    let namespace = reader.text(
        usize::from(header.first),
        NAMESPACE_BYTES_MAX,
        "the namespace",
    )?;
    let count = header.count;
    let call = match header.operation {
        Operation::Ping => {
            if count != 0 || !reader.rest().is_empty() {
                return Err(Malformed::Trailing);
            }
            Call::Ping
        }
        Operation::Retrieve => Call::Retrieve(Elements::parse(reader, count)?),
        Operation::Store => Call::Store(Elements::parse(reader, count)?),
        Operation::Exist => Call::Exist(Elements::parse(reader, count)?),
        Operation::LongestPrefix => Call::LongestPrefix(Elements::parse(reader, count)?),
        Operation::Stat => Call::Stat(Elements::parse(reader, count)?),
        Operation::Delete => Call::Delete(Elements::parse(reader, count)?),
        Operation::List => {
            if count != 1 {
                return Err(Malformed::Number("the list of elements"));
            }
            Elements::<List<'_>>::parse(reader, count)?
                .next()
                .map(Call::List)
                .ok_or(Malformed::Truncated)?
        }
    };
    Ok(Request {
        id: header.id,
        namespace,
        call,
    })
}

fn window(reader: &mut Reader<'_>) -> Result<Window, Malformed> {
    Ok(Window {
        offset: reader.u64()?,
        len: reader.u64()?,
        stag: reader.u32()?,
    })
}

fn key<'a>(reader: &mut Reader<'a>, len: u16) -> Result<&'a [u8], Malformed> {
    reader.bounded(usize::from(len), KEY_BYTES_MAX, "a key")
}

/// What of `flags` is in `known`; other bits are for later versions.
fn known(flags: u8, known: u8) -> Result<u8, Malformed> {
    match flags & !known {
        0 => Ok(flags),
        _ => Err(Malformed::Reserved),
    }
}

fn given(flag: bool, value: u64) -> Result<Option<u64>, Malformed> {
    match (flag, value) {
        (true, value) => Ok(Some(value)),
        (false, 0) => Ok(None),
        (false, _) => Err(Malformed::Reserved),
    }
}

fn condition<'a>(
    number: u8,
    reader: &mut Reader<'a>,
    etag_len: u8,
) -> Result<Condition<'a>, Malformed> {
    let etag = reader.text(usize::from(etag_len), ETAG_BYTES_MAX, "an entity tag")?;
    match (number, etag.is_empty()) {
        (0, true) => Ok(Condition::None),
        (1, true) => Ok(Condition::IfAbsent),
        (2, true) => Ok(Condition::IfPresent),
        (3, false) => Ok(Condition::IfMatch(etag)),
        _ => Err(Malformed::Number("the condition")),
    }
}

impl<'a> Element<'a> for Retrieve<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Retrieve<'a>, Malformed> {
        let (first, second) = (reader.u64()?, reader.u64()?);
        let window = window(reader)?;
        let key_len = reader.u16()?;
        let kind = reader.u8()?;
        let flags = known(reader.u8()?, IN_MESSAGE | HAS_VERSION | CHECKSUM)?;
        let version = given(flags & HAS_VERSION != 0, reader.u64()?)?;
        let range = match (kind, first, second) {
            (0, 0, 0) => Range::Full,
            (1, first, 0) => Range::From(first),
            (2, first, last) => Range::Inclusive(first, last),
            (3, count, 0) => Range::Suffix(count),
            _ => return Err(Malformed::Number("the range")),
        };
        let target = match flags & IN_MESSAGE != 0 {
            true if (window.stag, window.offset, window.len) != (0, 0, 0) => {
                return Err(Malformed::Reserved);
            }
            true => Target::Message,
            false => Target::Window(window),
        };
        Ok(Retrieve {
            key: key(reader, key_len)?,
            version,
            range,
            target,
            checksum: flags & CHECKSUM != 0,
        })
    }
}

impl<'a> Element<'a> for Store<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Store<'a>, Malformed> {
        let window = window(reader)?;
        let key_len = reader.u16()?;
        let number = reader.u8()?;
        let flags = known(reader.u8()?, IN_MESSAGE | CHECKSUM | HAS_EXPIRES)?;
        let crc64nvme = given(flags & CHECKSUM != 0, reader.u64()?)?;
        let expires = given(flags & HAS_EXPIRES != 0, reader.u64()?)?;
        let etag_len = reader.u8()?;
        reader.zeroes(1)?;
        let attributes_len = usize::from(reader.u16()?);
        reader.zeroes(4)?;
        let key = key(reader, key_len)?;
        let condition = condition(number, reader, etag_len)?;
        let attributes = reader.bounded(
            attributes_len,
            ATTRIBUTES_BYTES_MAX,
            "the list of attributes",
        )?;
        let attributes = Attributes::parse(attributes)?;
        let body = match flags & IN_MESSAGE != 0 {
            false => Body::Window(window),
            true if (window.stag, window.offset) != (0, 0) => return Err(Malformed::Reserved),
            true => {
                let len = usize::try_from(window.len).unwrap_or(usize::MAX);
                Body::Message(reader.bounded(len, INLINE_BYTES_MAX, "the payload")?)
            }
        };
        Ok(Store {
            key,
            body,
            condition,
            crc64nvme,
            expires,
            attributes,
        })
    }
}

impl<'a> Element<'a> for Key<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Key<'a>, Malformed> {
        let len = reader.u16()?;
        key(reader, len).map(Key)
    }
}

impl<'a> Element<'a> for Stat<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Stat<'a>, Malformed> {
        let version = reader.u64()?;
        let key_len = reader.u16()?;
        let flags = known(reader.u8()?, HAS_VERSION)?;
        reader.zeroes(5)?;
        Ok(Stat {
            version: given(flags & HAS_VERSION != 0, version)?,
            key: key(reader, key_len)?,
        })
    }
}

impl<'a> Element<'a> for Delete<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Delete<'a>, Malformed> {
        let version = reader.u64()?;
        let key_len = reader.u16()?;
        let flags = known(reader.u8()?, HAS_VERSION)?;
        let number = reader.u8()?;
        let etag_len = reader.u8()?;
        reader.zeroes(3)?;
        Ok(Delete {
            version: given(flags & HAS_VERSION != 0, version)?,
            key: key(reader, key_len)?,
            condition: condition(number, reader, etag_len)?,
        })
    }
}

impl<'a> Element<'a> for List<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<List<'a>, Malformed> {
        let limit = reader.u32()?;
        let prefix_len = reader.u16()?;
        let delimiter_len = reader.u16()?;
        let after_len = reader.u16()?;
        let kind = reader.u8()?;
        reader.zeroes(13)?;
        let prefix = key(reader, prefix_len)?;
        let delimiter = key(reader, delimiter_len)?;
        let after = key(reader, after_len)?;
        let after = match (kind, after) {
            (0, []) => ListAfter::Start,
            (1, key) => ListAfter::Key(key),
            (2, prefix) => ListAfter::Prefix(prefix),
            _ => return Err(Malformed::Number("the start of the list")),
        };
        Ok(List {
            prefix,
            delimiter,
            after,
            limit,
        })
    }
}
