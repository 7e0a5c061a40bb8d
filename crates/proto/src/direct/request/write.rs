//! Writing a request.

use super::{
    Body, CHECKSUM, Condition, Delete, HAS_EXPIRES, HAS_VERSION, IN_MESSAGE, List, ListAfter,
    Range, Retrieve, Stat, Store, Target,
};
use crate::direct::{
    ELEMENTS_MAX, ETAG_BYTES_MAX, Full, HEADER_BYTES, Header, INLINE_BYTES_MAX, KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX, NAMESPACE_BYTES_MAX, Operation, Window,
};

/// The fixed part of each kind of element, in bytes.
const RETRIEVE_BYTES: usize = 48;
const STORE_BYTES: usize = 48;
const KEY_BYTES: usize = 2;
const STAT_BYTES: usize = 16;
const DELETE_BYTES: usize = 16;
const LIST_BYTES: usize = 24;

/// Writes one request into a buffer. Until [`RequestWriter::finish`] the buffer holds no message.
#[derive(Debug)]
pub struct RequestWriter<'a> {
    message: &'a mut Vec<u8>,
    header: Header,
}

impl<'a> RequestWriter<'a> {
    /// Begins a request in place of what `message` held.
    ///
    /// # Errors
    /// When the namespace is longer than [`NAMESPACE_BYTES_MAX`].
    pub fn begin(
        message: &'a mut Vec<u8>,
        operation: Operation,
        id: u64,
        namespace: &str,
    ) -> Result<RequestWriter<'a>, Full> {
        if namespace.len() > NAMESPACE_BYTES_MAX {
            return Err(Full);
        }
        message.clear();
        message.extend_from_slice(&[0; HEADER_BYTES]);
        message.extend_from_slice(namespace.as_bytes());
        let header = Header {
            operation,
            flags: 0,
            first: namespace.len() as u16,
            count: 0,
            id,
            body: 0,
        };
        Ok(RequestWriter { message, header })
    }

    /// How many elements it has.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.header.count)
    }

    /// Ends it: the buffer then holds the message.
    pub fn finish(mut self) {
        self.header.body = (self.message.len() - HEADER_BYTES) as u32;
        self.message[..HEADER_BYTES].copy_from_slice(&self.header.encode());
    }

    /// Room for an element of `operation` with a key and `more` bytes.
    fn admit(
        &mut self,
        operation: Operation,
        fixed: usize,
        key: &[u8],
        more: usize,
    ) -> Result<(), Full> {
        let fits = key.len() <= KEY_BYTES_MAX
            && self.count() < ELEMENTS_MAX
            && self.message.len() + fixed + key.len() + more <= MESSAGE_BYTES_MAX;
        if !fits || self.header.operation != operation {
            return Err(Full);
        }
        self.header.count += 1;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        self.message.extend_from_slice(bytes);
    }

    fn window(&mut self, window: Window) {
        self.put(&window.offset.to_le_bytes());
        self.put(&window.len.to_le_bytes());
        self.put(&window.stag.to_le_bytes());
    }

    /// Appends a value to retrieve.
    ///
    /// # Errors
    /// When it does not fit: send this request and begin another.
    pub fn retrieve(&mut self, element: &Retrieve<'_>) -> Result<(), Full> {
        self.admit(Operation::Retrieve, RETRIEVE_BYTES, element.key, 0)?;
        let (kind, first, second) = match element.range {
            Range::Full => (0u8, 0, 0),
            Range::From(first) => (1, first, 0),
            Range::Inclusive(first, last) => (2, first, last),
            Range::Suffix(count) => (3, count, 0),
        };
        let (window, in_message) = match element.target {
            Target::Window(window) => (window, 0),
            Target::Message => (NO_WINDOW, IN_MESSAGE),
        };
        let flags = in_message
            | flag(element.version.is_some(), HAS_VERSION)
            | flag(element.checksum, CHECKSUM);
        self.put(&first.to_le_bytes());
        self.put(&second.to_le_bytes());
        self.window(window);
        self.put(&(element.key.len() as u16).to_le_bytes());
        self.put(&[kind, flags]);
        self.put(&element.version.unwrap_or(0).to_le_bytes());
        self.put(element.key);
        Ok(())
    }

    /// Appends a value to store.
    ///
    /// # Errors
    /// As [`RequestWriter::retrieve`]; a body in the message is at most [`INLINE_BYTES_MAX`] long.
    pub fn store(&mut self, element: &Store<'_>) -> Result<(), Full> {
        let (window, in_message, bytes) = match element.body {
            Body::Window(window) => (window, 0, &[][..]),
            Body::Message(bytes) => {
                let len = bytes.len() as u64;
                (Window { len, ..NO_WINDOW }, IN_MESSAGE, bytes)
            }
        };
        let (condition, etag) = numbered(element.condition)?;
        if bytes.len() > INLINE_BYTES_MAX {
            return Err(Full);
        }
        let attributes = element.attributes.encoded();
        let more = etag.len() + attributes.len() + bytes.len();
        self.admit(Operation::Store, STORE_BYTES, element.key, more)?;
        let flags = in_message
            | flag(element.crc64nvme.is_some(), CHECKSUM)
            | flag(element.expires.is_some(), HAS_EXPIRES);
        self.window(window);
        self.put(&(element.key.len() as u16).to_le_bytes());
        self.put(&[condition, flags]);
        self.put(&element.crc64nvme.unwrap_or(0).to_le_bytes());
        self.put(&element.expires.unwrap_or(0).to_le_bytes());
        self.put(&[etag.len() as u8, 0]);
        self.put(&(attributes.len() as u16).to_le_bytes());
        self.put(&[0; 4]);
        self.put(element.key);
        self.put(etag.as_bytes());
        self.put(attributes);
        self.put(bytes);
        Ok(())
    }

    /// Appends a key of [`Operation::Exist`] or [`Operation::LongestPrefix`].
    ///
    /// # Errors
    /// As [`RequestWriter::retrieve`].
    pub fn key(&mut self, key: &[u8]) -> Result<(), Full> {
        let operation = match self.header.operation {
            Operation::LongestPrefix => Operation::LongestPrefix,
            _ => Operation::Exist,
        };
        self.admit(operation, KEY_BYTES, key, 0)?;
        self.put(&(key.len() as u16).to_le_bytes());
        self.put(key);
        Ok(())
    }

    /// Appends a key whose metadata is wanted.
    ///
    /// # Errors
    /// As [`RequestWriter::retrieve`].
    pub fn stat(&mut self, element: &Stat<'_>) -> Result<(), Full> {
        self.admit(Operation::Stat, STAT_BYTES, element.key, 0)?;
        self.put(&element.version.unwrap_or(0).to_le_bytes());
        self.put(&(element.key.len() as u16).to_le_bytes());
        self.put(&[flag(element.version.is_some(), HAS_VERSION), 0, 0, 0, 0, 0]);
        self.put(element.key);
        Ok(())
    }

    /// Appends what to delete.
    ///
    /// # Errors
    /// As [`RequestWriter::retrieve`].
    pub fn delete(&mut self, element: &Delete<'_>) -> Result<(), Full> {
        let (condition, etag) = numbered(element.condition)?;
        self.admit(Operation::Delete, DELETE_BYTES, element.key, etag.len())?;
        self.put(&element.version.unwrap_or(0).to_le_bytes());
        self.put(&(element.key.len() as u16).to_le_bytes());
        self.put(&[
            flag(element.version.is_some(), HAS_VERSION),
            condition,
            etag.len() as u8,
            0,
            0,
            0,
        ]);
        self.put(element.key);
        self.put(etag.as_bytes());
        Ok(())
    }

    /// Says what to list; once.
    ///
    /// # Errors
    /// As [`RequestWriter::retrieve`].
    pub fn list(&mut self, element: &List<'_>) -> Result<(), Full> {
        let (kind, after) = match element.after {
            ListAfter::Start => (0u8, &[][..]),
            ListAfter::Key(key) => (1, key),
            ListAfter::Prefix(prefix) => (2, prefix),
        };
        let long = element.delimiter.len() > KEY_BYTES_MAX || after.len() > KEY_BYTES_MAX;
        if long || self.header.count != 0 {
            return Err(Full);
        }
        let more = element.delimiter.len() + after.len();
        self.admit(Operation::List, LIST_BYTES, element.prefix, more)?;
        self.put(&element.limit.to_le_bytes());
        self.put(&(element.prefix.len() as u16).to_le_bytes());
        self.put(&(element.delimiter.len() as u16).to_le_bytes());
        self.put(&(after.len() as u16).to_le_bytes());
        self.put(&[kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.put(element.prefix);
        self.put(element.delimiter);
        self.put(after);
        Ok(())
    }
}

const NO_WINDOW: Window = Window {
    stag: 0,
    offset: 0,
    len: 0,
};

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn numbered(condition: Condition<'_>) -> Result<(u8, &str), Full> {
    match condition {
        Condition::None => Ok((0, "")),
        Condition::IfAbsent => Ok((1, "")),
        Condition::IfPresent => Ok((2, "")),
        Condition::IfMatch(etag) if etag.is_empty() || etag.len() > ETAG_BYTES_MAX => Err(Full),
        Condition::IfMatch(etag) => Ok((3, etag)),
    }
}
