//! The map of space: what its damaged rows said is found again in what entries refer to, or nothing there is given out.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Result;
use crate::findings::Finding;
use crate::index::{Index, SPACE, decode_chunk};
use crate::space::{CHUNK_GRANULES, Chunk, by_chunks};
use crate::tables::{Memtable, Tables};

use super::runs::each_run;
use super::{finding, whole};

/// Makes the map of `granules` anew where no row matches. Any chunk without one may be that of a damaged row, of which the key may be
/// what is damaged.
pub(super) fn mend(index: &Index, journal: &Memtable, granules: u64) -> Result<Option<Finding>> {
    let mut map = index.salvage(SPACE, |key, row| decode_chunk(key, row).is_some())?;
    let Some(damage) = map.damage() else {
        return Ok(None);
    };
    let mut chunks: BTreeMap<u64, Chunk> = (0..granules.div_ceil(CHUNK_GRANULES))
        .filter(|number| !map.rows.contains_key(&number.to_be_bytes()[..]))
        .map(|number| (number, Chunk::default()))
        .collect();
    let what = match take_referenced(index, journal, &mut chunks) {
        Ok(()) => "what it said of space was made anew from what is stored".to_owned(),
        // Something unknown refers to space: it is as if it referred to all of it.
        Err(error) => {
            let taken = take_all(&mut chunks, granules);
            format!(
                "{taken} granules of space stay taken, some of them for nothing: what is stored does not tell which ({})",
                error.message()
            )
        }
    };
    for (number, chunk) in chunks {
        let key = Bytes::copy_from_slice(&number.to_be_bytes());
        map.rows.insert(key, chunk.encode());
    }
    index.replace(SPACE, &map)?;
    Ok(Some(finding(&damage, &what)))
}

/// Marks what entries refer to. What the journal says of space is said on top.
fn take_referenced(
    index: &Index,
    journal: &Memtable,
    chunks: &mut BTreeMap<u64, Chunk>,
) -> Result<()> {
    let tables = Tables::new(index.snapshot()?, Memtable::default(), 0);
    each_run(whole(&tables, journal), |run| {
        for (number, at, count) in by_chunks(run) {
            if let Some(chunk) = chunks.get_mut(&number) {
                chunk.set(at, count, true);
            }
        }
    })
}

/// Marks all there is; tells how many granules that are.
fn take_all(chunks: &mut BTreeMap<u64, Chunk>, granules: u64) -> u64 {
    let mut taken = 0;
    for (number, chunk) in chunks {
        let count = CHUNK_GRANULES.min(granules - number * CHUNK_GRANULES);
        chunk.set(0, count, true);
        taken += count;
    }
    taken
}
