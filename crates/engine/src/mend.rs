//! A map of space with damaged rows: what they said is found again in what entries refer to, or nothing there is given out.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_store::VersionId;

use crate::Result;
use crate::findings::Finding;
use crate::index::Index;
use crate::scrub::each_run;
use crate::space::{CHUNK_GRANULES, Chunk, by_chunks};
use crate::tables::Tables;
use crate::view::View;

/// Makes the map of `granules` anew where no row matches, and says so. Any chunk without one may be that of a damaged row, of which the key
/// may be what is damaged.
pub(crate) fn mend_map(index: &Index, granules: u64) -> Result<Option<Finding>> {
    let (mut map, damage) = index.whole_chunks()?;
    let Some(damage) = damage else {
        return Ok(None);
    };
    let unknown = (0..granules.div_ceil(CHUNK_GRANULES)).filter(|number| !map.contains_key(number));
    let mut chunks: BTreeMap<u64, Chunk> =
        unknown.map(|number| (number, Chunk::default())).collect();
    let what = match take_referenced(index, &mut chunks) {
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
    map.extend(
        chunks
            .iter()
            .map(|(number, chunk)| (*number, chunk.encode())),
    );
    index.replace_map(&map)?;
    let what = format!("{}: {what}", damage.message());
    let finding = Finding::of_row("", Bytes::new(), VersionId::NULL.0, what);
    Ok(Some(finding))
}

/// Marks what entries refer to.
fn take_referenced(index: &Index, chunks: &mut BTreeMap<u64, Chunk>) -> Result<()> {
    let tables = Tables::new(index.snapshot()?, 0);
    let view = View {
        tables: &tables,
        over: None,
        now: 0,
        stored: true,
    };
    each_run(view, |run| {
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
