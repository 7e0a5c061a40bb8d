//! Keys in commands.

use std::fmt;

use super::KEY_BYTES_MAX;
use crate::nvme::SubmissionQueueEntry;

/// 1 to 16 bytes, any bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// `None` when empty or longer than [`KEY_BYTES_MAX`].
    pub fn new(key: &[u8]) -> Option<Key> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Some(Key {
            bytes,
            len: key.len() as u8,
        })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The key of `len` bytes in an entry (command dwords 2, 3, 14, 15); `None` when there is none of that length. What stands
    /// behind the key is not looked at.
    pub(super) fn of_entry(entry: &SubmissionQueueEntry, len: u8) -> Option<Key> {
        let mut bytes = [0; KEY_BYTES_MAX];
        for (at, dword) in [2, 3, 14, 15].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&entry.cdw(dword).to_le_bytes());
        }
        Key::new(bytes.get(..usize::from(len))?)
    }

    /// The entry with this key and its length in it.
    pub(super) fn put(&self, mut entry: SubmissionQueueEntry) -> SubmissionQueueEntry {
        for (at, dword) in [2, 3, 14, 15].into_iter().enumerate() {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&self.bytes[at * 4..at * 4 + 4]);
            entry = entry.with_cdw(dword, u32::from_le_bytes(bytes));
        }
        entry.with_cdw(11, entry.cdw(11) & !0xff | u32::from(self.len))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.as_bytes().escape_ascii())
    }
}
