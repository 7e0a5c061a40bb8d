//! The payload of List: how many keys, then each with its length, padded so that the next begins at a multiple of four.

/// Bytes of the count in front (NRK).
const COUNT_BYTES: usize = 4;
const LENGTH_BYTES: usize = 2;

fn entry_bytes(key_len: usize) -> usize {
    (LENGTH_BYTES + key_len).next_multiple_of(4)
}

/// Fills a buffer with whole keys.
#[derive(Debug)]
pub struct ListWriter<'a> {
    buffer: &'a mut [u8],
    at: usize,
    count: u32,
}

impl<'a> ListWriter<'a> {
    /// A list of no keys; `None` when not even their number fits.
    pub fn new(buffer: &'a mut [u8]) -> Option<ListWriter<'a>> {
        buffer.get_mut(..COUNT_BYTES)?.fill(0);
        Some(ListWriter {
            buffer,
            at: COUNT_BYTES,
            count: 0,
        })
    }

    /// Appends a key of 1 to 65535 bytes; false when it does not fit (nothing was written).
    pub fn push(&mut self, key: &[u8]) -> bool {
        let Ok(len) = u16::try_from(key.len()) else {
            return false;
        };
        let end = self.at + entry_bytes(key.len());
        let Some(entry) = self.buffer.get_mut(self.at..end) else {
            return false;
        };
        entry[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
        entry[LENGTH_BYTES..LENGTH_BYTES + key.len()].copy_from_slice(key);
        entry[LENGTH_BYTES + key.len()..].fill(0);
        self.at = end;
        self.count += 1;
        self.buffer[..COUNT_BYTES].copy_from_slice(&self.count.to_le_bytes());
        true
    }

    /// How many keys were written.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many bytes of the buffer are the list.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Whether no key was written.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Walks over the keys of a list. Ends early where the list says more than its bytes hold.
#[derive(Debug, Clone)]
pub struct ListReader<'a> {
    bytes: &'a [u8],
    left: u32,
}

impl<'a> ListReader<'a> {
    /// `None` when the bytes do not even hold the number of keys.
    pub fn new(bytes: &'a [u8]) -> Option<ListReader<'a>> {
        let (count, rest) = bytes.split_first_chunk::<COUNT_BYTES>()?;
        Some(ListReader {
            bytes: rest,
            left: u32::from_le_bytes(*count),
        })
    }

    /// How many of the bytes were not looked at.
    pub fn unread(&self) -> usize {
        self.bytes.len()
    }

    /// How many keys the list says still follow.
    pub fn left(&self) -> u32 {
        self.left
    }
}

impl<'a> Iterator for ListReader<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left.checked_sub(1)?;
        let (len, rest) = self.bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let key = rest.get(..len)?;
        self.left -= 1;
        // The padding of the last entry may be missing.
        self.bytes = self.bytes.get(entry_bytes(len)..).unwrap_or_default();
        Some(key)
    }
}
