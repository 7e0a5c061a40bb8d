//! Rows looked up lately, in front of the tables: a look-up that hits walks no tree.
//!
//! A row is put here only while nothing can have changed it since it was read (see [`Tables::get`](crate::tables::Tables::get)), and
//! follows its key in the same step that publishes a change, so that what is found here is what the tables hold.
//!
//! With many rows nearly every line of memory that a look-up touches comes from far away. Key, row and the count of who uses them
//! therefore lie in one piece, and the cache knows it by the key's hash alone: of two keys with one hash the later takes the place.

use std::hash::BuildHasher;

use bytes::{Buf, Bytes};
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Weighter};

use crate::keys::Table;

/// What a row takes beside the bytes of its piece: its place in the cache, and what rounds the piece up to whole lines.
const PLACE_BYTES: u64 = 128;
/// Bytes that tell the length of the key.
const PREFIX_BYTES: usize = 2;

#[derive(Clone)]
struct PieceBytes;

impl Weighter<u64, Bytes> for PieceBytes {
    fn weight(&self, _: &u64, piece: &Bytes) -> u64 {
        PLACE_BYTES + piece.len() as u64
    }
}

type Pieces = Cache<u64, Bytes, PieceBytes>;

/// Rows of the tables that readers of values look into.
pub(crate) struct RecentRows {
    current: Pieces,
    inline: Pieces,
    hasher: DefaultHashBuilder,
}

impl RecentRows {
    /// At most `bytes` of rows.
    pub fn new(bytes: u64) -> RecentRows {
        let pieces = |bytes| Cache::with_weighter((bytes / 256) as usize, bytes, PieceBytes);
        RecentRows {
            current: pieces(bytes / 4 * 3),
            inline: pieces(bytes / 4),
            hasher: DefaultHashBuilder::default(),
        }
    }

    fn of(&self, table: Table) -> Option<&Pieces> {
        match table {
            Table::Current => Some(&self.current),
            Table::Inline => Some(&self.inline),
            Table::Kept
            | Table::KeptNull
            | Table::Layout
            | Table::Namespace
            | Table::Tenant
            | Table::Usage
            | Table::Expiry => None,
        }
    }

    /// Whether rows of `table` are kept at all.
    pub fn keeps(&self, table: Table) -> bool {
        self.of(table).is_some()
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Option<Bytes> {
        let mut piece = self.of(table)?.get(&self.hasher.hash_one(key))?;
        let (prefix, rest) = piece.split_first_chunk::<PREFIX_BYTES>()?;
        if usize::from(u16::from_le_bytes(*prefix)) != key.len() || !rest.starts_with(key) {
            return None;
        }
        piece.advance(PREFIX_BYTES + key.len());
        Some(piece)
    }

    /// Keeps a copy of the row of a key; `None` is its removal.
    pub fn put(&self, table: Table, key: &[u8], row: Option<&[u8]>) {
        let Some(pieces) = self.of(table) else {
            return;
        };
        let hash = self.hasher.hash_one(key);
        match row.and_then(|row| piece(key, row)) {
            Some(piece) => pieces.insert(hash, piece),
            // What stands there may be an older row of this key.
            None => drop(pieces.remove(&hash)),
        }
    }
}

/// The key with its length, and the row; `None` when the key is longer than any that is stored.
fn piece(key: &[u8], row: &[u8]) -> Option<Bytes> {
    let prefix = u16::try_from(key.len()).ok()?.to_le_bytes();
    let parts = [&prefix[..], key, row];
    let bytes = PREFIX_BYTES + key.len() + row.len();
    Some(if bytes <= 118 {
        Piece::<118>::joined(parts)
    } else if bytes <= 182 {
        Piece::<182>::joined(parts)
    } else if bytes <= 246 {
        Piece::<246>::joined(parts)
    } else {
        parts.concat().into()
    })
}

/// Bytes that lie beside the count of their users, as those of a vector do not. With that and their number they fill whole lines.
struct Piece<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Piece<N> {
    fn joined(parts: [&[u8]; 3]) -> Bytes {
        let mut piece = Piece {
            len: 0,
            bytes: [0; N],
        };
        let mut rest = &mut piece.bytes[..];
        for part in parts {
            let (into, after) = rest.split_at_mut(part.len());
            into.copy_from_slice(part);
            rest = after;
        }
        piece.len = (N - rest.len()) as u16;
        Bytes::from_owner(piece)
    }
}

impl<const N: usize> AsRef<[u8]> for Piece<N> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_lengths_are_found_and_only_under_their_own_key() {
        let rows = RecentRows::new(64 << 20);
        let long = vec![7; 2000];
        for len in 0..long.len() {
            let key = format!("key-{len}");
            rows.put(Table::Current, key.as_bytes(), Some(&long[..len]));
        }
        for len in 0..long.len() {
            let key = format!("key-{len}");
            let found = rows.get(Table::Current, key.as_bytes());
            assert_eq!(found.as_deref(), Some(&long[..len]), "{key}");
            assert!(rows.get(Table::Inline, key.as_bytes()).is_none());
            rows.put(Table::Current, key.as_bytes(), None);
            assert!(rows.get(Table::Current, key.as_bytes()).is_none());
        }
    }

    #[test]
    fn a_key_that_shares_its_hash_with_another_is_not_taken_for_it() {
        let rows = RecentRows::new(1 << 20);
        let place = |key: &[u8]| rows.hasher.hash_one(key);
        let other = piece(b"other", b"row").unwrap();
        rows.current.insert(place(b"one"), other.clone());
        assert!(rows.get(Table::Current, b"one").is_none());
        // The key is a beginning of what stands there.
        rows.current.insert(place(b"oth"), other);
        assert!(rows.get(Table::Current, b"oth").is_none());
        rows.put(Table::Current, b"one", Some(b"its own"));
        assert_eq!(rows.get(Table::Current, b"one").unwrap(), b"its own"[..]);
    }

    #[test]
    fn a_row_that_cannot_be_kept_leaves_no_older_one() {
        let rows = RecentRows::new(1 << 20);
        let key = vec![1; 1 << 16];
        let older = piece(b"any", b"older").unwrap();
        rows.current.insert(rows.hasher.hash_one(&key[..]), older);
        rows.put(Table::Current, &key, Some(b"newer"));
        assert!(rows.get(Table::Current, &key).is_none());
        assert_eq!(rows.current.len(), 0);
    }
}
