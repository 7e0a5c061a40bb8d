//! Keys of the tables (docs/engine-format.md section 3).

use bytes::Bytes;
use forebay_store::Space;

/// The tables that journal, memtables and index hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Table {
    Current = 0,
    Kept = 1,
    KeptNull = 2,
    Layout = 3,
    Inline = 4,
    Namespace = 5,
    Tenant = 6,
    Usage = 7,
    Expiry = 8,
}

impl Table {
    pub const ALL: [Table; 9] = [
        Table::Current,
        Table::Kept,
        Table::KeptNull,
        Table::Layout,
        Table::Inline,
        Table::Namespace,
        Table::Tenant,
        Table::Usage,
        Table::Expiry,
    ];

    pub fn from_number(number: u8) -> Option<Table> {
        Table::ALL.get(usize::from(number)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Table::Current => "current",
            Table::Kept => "kept",
            Table::KeptNull => "kept_null",
            Table::Layout => "layout",
            Table::Inline => "inline",
            Table::Namespace => "namespace",
            Table::Tenant => "tenant",
            Table::Usage => "usage",
            Table::Expiry => "expiry",
        }
    }
}

fn space_number(space: Space) -> u8 {
    match space {
        Space::Objects => 0,
        Space::Staging => 1,
    }
}

/// What a key in table current begins with, in bytes.
const CURRENT_HEAD: usize = 5;
/// So long may a key be in table current that is looked up without memory of its own.
const SHORT_BYTES: usize = 128;

/// Looks with the key in table current.
pub(crate) fn with_current<T>(
    namespace: u32,
    space: Space,
    key: &[u8],
    look: impl FnOnce(&[u8]) -> T,
) -> T {
    let mut short = [0; SHORT_BYTES];
    let Some(short) = short.get_mut(..CURRENT_HEAD + key.len()) else {
        return look(&current(namespace, space, key));
    };
    let (head, rest) = short.split_at_mut(CURRENT_HEAD);
    head[..4].copy_from_slice(&namespace.to_be_bytes());
    head[4] = space_number(space);
    rest.copy_from_slice(key);
    look(short)
}

/// The key in table current.
pub(crate) fn current(namespace: u32, space: Space, key: &[u8]) -> Bytes {
    let mut encoded = Vec::with_capacity(CURRENT_HEAD + key.len());
    encoded.extend_from_slice(&namespace.to_be_bytes());
    encoded.push(space_number(space));
    encoded.extend_from_slice(key);
    encoded.into()
}

/// The parts of a key in table current.
pub(crate) fn split_current(encoded: &[u8]) -> Option<(u32, Space, &[u8])> {
    let (namespace, rest) = encoded.split_first_chunk::<4>()?;
    let (space, key) = rest.split_first()?;
    let space = match space {
        0 => Space::Objects,
        1 => Space::Staging,
        _ => return None,
    };
    Some((u32::from_be_bytes(*namespace), space, key))
}

/// What all keys of a namespace begin with, in every table that has such keys.
pub(crate) fn namespace(namespace: u32) -> [u8; 4] {
    namespace.to_be_bytes()
}

/// What the kept entries of one key begin with, in table kept.
pub(crate) fn kept_prefix(namespace: u32, key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(16 + key.len());
    encoded.extend_from_slice(&namespace.to_be_bytes());
    escape(key, &mut encoded);
    encoded.extend_from_slice(&[0, 0]);
    encoded
}

/// The lower bound in table kept of the entries of all keys from `key` on.
pub(crate) fn kept_from(namespace: u32, key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(16 + key.len());
    encoded.extend_from_slice(&namespace.to_be_bytes());
    escape(key, &mut encoded);
    encoded
}

/// The key in table kept.
pub(crate) fn kept(namespace: u32, key: &[u8], sequence: u64) -> Bytes {
    let mut encoded = kept_prefix(namespace, key);
    encoded.extend_from_slice(&(!sequence).to_be_bytes());
    encoded.into()
}

/// The lower bound in table kept of the entries of a key with a lesser sequence.
pub(crate) fn kept_before(namespace: u32, key: &[u8], sequence: u64) -> Vec<u8> {
    kept(namespace, key, sequence.saturating_sub(1)).into()
}

/// The user's key and the sequence in a key of table kept.
pub(crate) fn split_kept(encoded: &[u8]) -> Option<(Vec<u8>, u64)> {
    let (rest, sequence) = encoded.get(4..)?.split_last_chunk::<8>()?;
    let escaped = rest.strip_suffix(&[0, 0])?;
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        key.push(*byte);
        if *byte == 0 && bytes.next() != Some(&0xff) {
            return None;
        }
    }
    Some((key, !u64::from_be_bytes(*sequence)))
}

fn escape(key: &[u8], into: &mut Vec<u8>) {
    for byte in key {
        into.push(*byte);
        if *byte == 0 {
            into.push(0xff);
        }
    }
}

/// The key in table kept_null.
pub(crate) fn kept_null(namespace: u32, key: &[u8]) -> Bytes {
    let mut encoded = Vec::with_capacity(4 + key.len());
    encoded.extend_from_slice(&namespace.to_be_bytes());
    encoded.extend_from_slice(key);
    encoded.into()
}

/// The key in tables layout and inline.
pub(crate) fn body(id: u64) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

/// The key in table expiry.
pub(crate) fn expiry(expires: u64, sequence: u64) -> Bytes {
    let mut encoded = Vec::with_capacity(16);
    encoded.extend_from_slice(&expires.to_be_bytes());
    encoded.extend_from_slice(&sequence.to_be_bytes());
    encoded.into()
}

/// Time and sequence of a key in table expiry.
pub(crate) fn split_expiry(encoded: &[u8]) -> Option<(u64, u64)> {
    let (expires, sequence) = encoded.split_first_chunk::<8>()?;
    let sequence = sequence.try_into().ok()?;
    Some((u64::from_be_bytes(*expires), u64::from_be_bytes(sequence)))
}

/// The smallest bound above every key that begins with `prefix`; `None` when there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    forebay_store::listing::after_prefix(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn kept_keys_sort_by_key_then_newest_first(
            left in (proptest::collection::vec(0_u8..3, 1..5), 0_u64..4),
            right in (proptest::collection::vec(0_u8..3, 1..5), 0_u64..4),
        ) {
            let encoded = |(key, sequence): &(Vec<u8>, u64)| kept(7, key, *sequence);
            let order = left.0.cmp(&right.0).then(right.1.cmp(&left.1));
            prop_assert_eq!(encoded(&left).cmp(&encoded(&right)), order);
            prop_assert_eq!(split_kept(&encoded(&left)), Some(left));
        }
    }
}
