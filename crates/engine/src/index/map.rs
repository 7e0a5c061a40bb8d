//! The map of space in the index.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_store::{Result, StoreError};
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use crate::space::{Chunk, by_chunks};
use crate::tables::SpaceChange;

use super::backend::{guarded, looking};
use super::{Index, ROW_BYTES, RawTable, corrupt, failed, seal, whole};

pub(super) const SPACE: RawTable = TableDefinition::new("space");

impl Index {
    /// All chunks of the space map, in order.
    pub fn chunks(&self, each: impl FnMut(u64, Chunk)) -> Result<()> {
        looking(|| self.each_chunk(each))
    }

    fn each_chunk(&self, mut each: impl FnMut(u64, Chunk)) -> Result<()> {
        self.each_row(|row| {
            let (number, chunk) = row?;
            each(number, chunk);
            Ok(())
        })
    }

    /// The chunks whose rows match, encoded, and what is wrong with one that does not.
    pub fn whole_chunks(&self) -> Result<(BTreeMap<u64, Bytes>, Option<StoreError>)> {
        let mut chunks = BTreeMap::new();
        let mut damage = None;
        looking(|| {
            self.each_row(|row| {
                match row {
                    Ok((number, chunk)) => drop(chunks.insert(number, chunk.encode())),
                    Err(error) => damage = Some(error),
                }
                Ok(())
            })
        })?;
        Ok((chunks, damage))
    }

    fn each_row(&self, mut each: impl FnMut(Result<(u64, Chunk)>) -> Result<()>) -> Result<()> {
        let transaction = self.begin_read()?;
        let table = transaction.open_table(SPACE).map_err(failed)?;
        for row in table.range::<&[u8]>(..).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            each(decode(key.value(), value.value()))?;
        }
        Ok(())
    }

    /// Makes the map anew of these chunks: a row whose key is damaged could not be found to be replaced.
    pub fn replace_map(&self, chunks: &BTreeMap<u64, Bytes>) -> Result<()> {
        guarded(|| {
            let transaction = self.begin()?;
            transaction.delete_table(SPACE).map_err(failed)?;
            let mut open = transaction.open_table(SPACE).map_err(failed)?;
            let mut sealed = Vec::new();
            for (number, chunk) in chunks {
                let key = number.to_be_bytes();
                seal(&key, chunk, &mut sealed);
                open.insert(&key[..], &sealed[..]).map_err(failed)?;
            }
            drop(open);
            transaction.commit().map_err(failed)
        })
    }
}

fn decode(key: &[u8], stored: &[u8]) -> Result<(u64, Chunk)> {
    let value = whole("space", key, stored)?;
    let number = key.try_into().map(u64::from_be_bytes);
    match (number, Chunk::decode(value)) {
        (Ok(number), Ok(chunk)) => Ok((number, chunk)),
        _ => Err(corrupt("the map of space")),
    }
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
    chunks: &mut impl Iterator<Item = (&'a u64, &'a ChunkChanges)>,
    left: &mut u64,
) -> Result<()> {
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
