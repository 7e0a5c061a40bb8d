//! The map of space in the index.

use std::collections::BTreeMap;
use std::iter::Peekable;

use forebay_store::Result;
use redb::{ReadableTable, TableDefinition, TableHandle, WriteTransaction};

use crate::space::{Chunk, by_chunks};
use crate::tables::SpaceChange;

use super::backend::looking;
use super::write::ROW_BYTES;
use super::{Index, RawTable, corrupt, failed, seal, whole};

pub(crate) const SPACE: RawTable = TableDefinition::new("space");

impl Index {
    /// All chunks of the space map, in order.
    pub fn chunks(&self, each: impl FnMut(u64, Chunk)) -> Result<()> {
        looking(|| self.each_chunk(each))
    }

    fn each_chunk(&self, mut each: impl FnMut(u64, Chunk)) -> Result<()> {
        let transaction = self.begin_read()?;
        let table = transaction.open_table(SPACE).map_err(failed)?;
        for row in table.range::<&[u8]>(..).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            let (number, chunk) = decode(key.value(), value.value())?;
            each(number, chunk);
        }
        Ok(())
    }
}

fn decode(key: &[u8], stored: &[u8]) -> Result<(u64, Chunk)> {
    let value = whole(SPACE.name(), key, stored)?;
    decode_chunk(key, value).ok_or_else(|| corrupt("the map of space"))
}

/// The number of a chunk and what the map says of it.
pub(crate) fn decode_chunk(key: &[u8], value: &[u8]) -> Option<(u64, Chunk)> {
    let number = key.try_into().map(u64::from_be_bytes).ok()?;
    Some((number, Chunk::decode(value).ok()?))
}

/// What changes in a chunk of the map of space, in the order of commits: from where on in it, how many granules, and whether they
/// are taken.
pub(super) type ChunkChanges = Vec<(u64, u64, bool)>;

pub(super) fn by_chunk(changes: &[SpaceChange]) -> BTreeMap<u64, ChunkChanges> {
    let mut chunks = BTreeMap::<u64, ChunkChanges>::new();
    for change in changes {
        let (run, taken) = match change {
            SpaceChange::Taken(run) => (run, true),
            SpaceChange::Freed(run) => (run, false),
        };
        for (number, at, count) in by_chunks(*run) {
            chunks.entry(number).or_default().push((at, count, taken));
        }
    }
    chunks
}

/// Changes chunks of the map while there is room left.
pub(super) fn write_space<'a>(
    transaction: &WriteTransaction,
    chunks: &mut Peekable<impl Iterator<Item = (&'a u64, &'a ChunkChanges)>>,
    left: &mut u64,
) -> Result<()> {
    if chunks.peek().is_none() {
        return Ok(());
    }
    let mut open = transaction.open_table(SPACE).map_err(failed)?;
    let mut checked_chunk = Vec::new();
    while *left > 0
        && let Some((number, changes)) = chunks.next()
    {
        let key = number.to_be_bytes();
        let mut chunk = match open.get(&key[..]).map_err(failed)? {
            None => Chunk::default(),
            Some(stored) => decode(&key, stored.value())?.1,
        };
        for (at, count, taken) in changes {
            chunk.set(*at, *count, *taken);
        }
        let encoded = chunk.encode();
        seal(&key, &encoded, &mut checked_chunk);
        open.insert(&key[..], &checked_chunk[..]).map_err(failed)?;
        *left = left.saturating_sub(ROW_BYTES + 2 * encoded.len() as u64);
    }
    Ok(())
}
