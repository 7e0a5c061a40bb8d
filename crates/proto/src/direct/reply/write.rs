//! Writing replies.

use super::{
    ABSENT, Deleted, EXISTED, HAS_VERSION, IN_MESSAGE, LAST, Listed, MARKER, MORE, PART, REPLACED,
    Status, Value, WHOLE,
};
use crate::direct::{
    ELEMENTS_MAX, ETAG_BYTES_MAX, Full, HEADER_BYTES, Header, Hop, INLINE_BYTES_MAX, KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX, Operation, TEXT_BYTES_MAX,
};

/// Every result begins with a status, a hop, the length of what follows, and four bytes that are zero.
const RESULT_BYTES: usize = 8;
const VALUE_BYTES: usize = 64;
const DELETED_BYTES: usize = 16;
const LISTED_BYTES: usize = 48;

/// Writes replies, one after another, into a buffer of its own.
#[derive(Debug)]
pub struct ReplyWriter {
    message: Vec<u8>,
    header: Header,
}

impl ReplyWriter {
    /// Begins a reply in place of what `message` held; its first result is that of element `first`.
    #[must_use]
    pub fn begin(message: Vec<u8>, operation: Operation, id: u64, first: u16) -> ReplyWriter {
        let header = Header {
            operation,
            flags: 0,
            first,
            count: 0,
            id,
            body: 0,
        };
        let mut writer = ReplyWriter { message, header };
        writer.clear();
        writer
    }

    /// How many results it has.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.header.count
    }

    /// The message with the results so far. `last`: no more replies follow. `more`: a list goes on.
    pub fn finish(&mut self, last: bool, more: bool) -> &[u8] {
        self.header.flags = if last { LAST } else { 0 } | if more { MORE } else { 0 };
        self.header.body = (self.message.len() - HEADER_BYTES) as u32;
        self.message[..HEADER_BYTES].copy_from_slice(&self.header.encode());
        &self.message
    }

    /// Begins the next reply to the same request.
    pub fn next(&mut self) {
        self.header.first = self.header.first.saturating_add(self.header.count);
        self.header.count = 0;
        self.clear();
    }

    /// The buffer, to be used again.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.message
    }

    fn clear(&mut self) {
        self.message.clear();
        self.message.extend_from_slice(&[0; HEADER_BYTES]);
    }

    fn admit(&mut self, status: Status, hop: Hop, len: usize) -> Result<(), Full> {
        let fits = self.message.len() + RESULT_BYTES + len <= MESSAGE_BYTES_MAX
            && usize::from(self.header.count) < ELEMENTS_MAX;
        if !fits {
            return Err(Full);
        }
        self.header.count += 1;
        let [low, high] = (len as u16).to_le_bytes();
        self.put(&[status as u8, hop as u8, low, high, 0, 0, 0, 0]);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        self.message.extend_from_slice(bytes);
    }

    /// Appends a failure; its text is cut to [`TEXT_BYTES_MAX`].
    ///
    /// # Errors
    /// When it does not fit: send this reply and begin another.
    pub fn failed(&mut self, status: Status, hop: Hop, text: &str) -> Result<(), Full> {
        let mut len = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.admit(status, hop, len)?;
        self.put(&text.as_bytes()[..len]);
        Ok(())
    }

    /// Appends what a retrieve, store or stat tells.
    ///
    /// # Errors
    /// As [`ReplyWriter::failed`]; an entity tag has at most [`ETAG_BYTES_MAX`] bytes, the bytes are at most [`INLINE_BYTES_MAX`].
    pub fn value(&mut self, value: &Value<'_>) -> Result<(), Full> {
        let (bytes, in_message) = match value.bytes {
            Some(bytes) => (bytes, IN_MESSAGE),
            None => (&[][..], 0),
        };
        if value.etag.len() > ETAG_BYTES_MAX || bytes.len() > INLINE_BYTES_MAX {
            return Err(Full);
        }
        self.admit(
            Status::Ok,
            Hop::None,
            VALUE_BYTES + value.etag.len() + bytes.len(),
        )?;
        let (crc, kind) = match (value.part_crc64nvme, value.crc64nvme) {
            (Some(part), _) => (part, PART),
            (None, Some(whole)) => (whole, WHOLE),
            (None, None) => (0, 0),
        };
        let replaced = if value.replaced { REPLACED } else { 0 };
        let mut fixed = [0; VALUE_BYTES];
        let words = [
            value.size,
            value.moved,
            value.first,
            value.version,
            value.modified,
            value.expires.unwrap_or(0),
            crc,
        ];
        for (place, word) in fixed.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        fixed[56] = value.etag.len() as u8;
        fixed[57] = kind | replaced | in_message;
        fixed[58..60].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.put(&fixed);
        self.put(value.etag.as_bytes());
        self.put(bytes);
        Ok(())
    }

    /// Appends the sizes of an exist's values, in order, as one result.
    ///
    /// # Errors
    /// As [`ReplyWriter::failed`].
    pub fn sizes(&mut self, sizes: impl ExactSizeIterator<Item = Option<u64>>) -> Result<(), Full> {
        self.admit(Status::Ok, Hop::None, sizes.len() * 8)?;
        for size in sizes {
            self.put(&size.unwrap_or(ABSENT).to_le_bytes());
        }
        Ok(())
    }

    /// Appends the count of a longest prefix.
    ///
    /// # Errors
    /// As [`ReplyWriter::failed`].
    pub fn prefix(&mut self, count: u64) -> Result<(), Full> {
        self.admit(Status::Ok, Hop::None, 8)?;
        self.put(&count.to_le_bytes());
        Ok(())
    }

    /// Appends what a delete did.
    ///
    /// # Errors
    /// As [`ReplyWriter::failed`].
    pub fn deleted(&mut self, deleted: &Deleted) -> Result<(), Full> {
        self.admit(Status::Ok, Hop::None, DELETED_BYTES)?;
        let flags = [
            (deleted.existed, EXISTED),
            (deleted.version.is_some(), HAS_VERSION),
            (deleted.marker, MARKER),
        ];
        let flags = flags
            .iter()
            .filter(|(set, _)| *set)
            .fold(0, |flags, (_, flag)| flags | flag);
        self.put(&deleted.version.unwrap_or(0).to_le_bytes());
        self.put(&[flags, 0, 0, 0, 0, 0, 0, 0]);
        Ok(())
    }

    /// Appends one line of a list.
    ///
    /// # Errors
    /// As [`ReplyWriter::failed`].
    pub fn listed(&mut self, line: &Listed<'_>) -> Result<(), Full> {
        let (kind, key, etag, words) = match *line {
            Listed::Value {
                key,
                size,
                modified,
                version,
                crc64nvme,
                etag,
            } => (0u8, key, etag, [size, modified, version, crc64nvme]),
            Listed::Prefix(prefix) => (1, prefix, "", [0; 4]),
        };
        if key.len() > KEY_BYTES_MAX || etag.len() > ETAG_BYTES_MAX {
            return Err(Full);
        }
        self.admit(Status::Ok, Hop::None, LISTED_BYTES + key.len() + etag.len())?;
        let [low, high] = (key.len() as u16).to_le_bytes();
        self.put(&[kind, etag.len() as u8, low, high, 0, 0, 0, 0]);
        for word in words {
            self.put(&word.to_le_bytes());
        }
        self.put(&[0; 8]);
        self.put(key);
        self.put(etag.as_bytes());
        Ok(())
    }
}
