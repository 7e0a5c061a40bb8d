//! Small values: inline, or packed into one write of the group.

use bytes::Bytes;
use forebay_io::{Disk, File};
use forebay_mem::{Buf, CopySite, Pool, copy, count_copy};
use forebay_store::{ErrorKind, Result, StoreError};

use crate::core::device_failed;
use crate::draft::Draft;
use crate::entry::Place;
use crate::extent::{EXTENT_BYTES_MAX, Extent, GRANULE_BYTES, Run, granules};
use crate::keys;
use crate::keys::Table;

use super::{Decider, INLINE_BYTES_MAX};

/// Small values in granules one after the other, as they will be written: where they arrived.
#[derive(Debug)]
pub(crate) struct Pack {
    /// The first granule.
    pub start: u64,
    /// The first granule after it.
    end: u64,
    /// Whole pages.
    pub pages: Vec<Buf>,
}

impl Pack {
    /// Whether the group's write takes this run along.
    pub fn has(&self, run: Run) -> bool {
        self.start <= run.start && run.end() <= self.end
    }
}

impl<D: Disk> Decider<D> {
    /// The place of a small value, and its body and run when it was packed.
    pub(super) fn place_small(
        &mut self,
        draft: &mut Draft,
        buf: &Buf,
    ) -> Result<(Place, Option<(u64, Run)>)> {
        if buf.is_empty() {
            return Ok((Place::Empty, None));
        }
        if buf.len() <= INLINE_BYTES_MAX {
            let body = self.id();
            count_copy(CopySite::EngineInline, buf.len());
            let row = Bytes::copy_from_slice(buf);
            draft.record.put(Table::Inline, keys::body(body), row);
            return Ok((Place::Inline(body), None));
        }
        let extent = Extent::of(self.pack(buf)?, buf);
        let body = self.id();
        draft.record.written.push(extent);
        Ok((
            Place::Extents(body, vec![extent]),
            Some((body, extent.run())),
        ))
    }

    /// Takes granules for small values. New ones are filled with zeroes first: else every sync of a group would have to make the
    /// file system note, in its own journal, that a few more of them are written.
    fn take_pack(&self, needed: u32) -> Result<Run> {
        let core = &self.core;
        let most = (EXTENT_BYTES_MAX / GRANULE_BYTES) as u32;
        let (run, unwritten) = core.take_space(needed, most)?;
        if unwritten {
            let len = run.granules as usize * GRANULE_BYTES;
            let Ok(mut zeroes) = self.pool.try_take(len) else {
                core.space.put(run);
                return Err(no_buffer());
            };
            zeroes.set_len(len);
            zeroes.fill(0);
            let offset = core.space.offset(run.start);
            if let Err(error) = core.data.write_all_at(offset, &zeroes) {
                core.space.put_suspect(run);
                return Err(device_failed("new space cannot be written")(error));
            }
        }
        Ok(run)
    }

    /// Puts a small value where the group's write will take it; returns its first granule.
    pub(super) fn pack(&mut self, buf: &Buf) -> Result<u64> {
        let needed = granules(buf.len());
        if self.pack.is_none_or(|run| run.granules < needed) {
            if let Some(rest) = self.pack.take() {
                self.core.space.put(rest);
            }
            self.pack = Some(self.take_pack(needed)?);
        }
        let Some(run) = &mut self.pack else {
            return Err(no_buffer());
        };
        let bytes = needed as usize * GRANULE_BYTES;
        let pages = match buf.padded_to_page() {
            Some(pages) => pages,
            None => copied(&self.pool, buf, bytes)?,
        };
        match self.batch.packs.last_mut() {
            Some(pack) if pack.end == run.start => pack.pages.push(pages),
            _ => self.batch.packs.push(Pack {
                start: run.start,
                end: run.start,
                pages: vec![pages],
            }),
        }
        if let Some(pack) = self.batch.packs.last_mut() {
            pack.end += u64::from(needed);
        }
        self.batch.packed_bytes += bytes;
        let start = run.start;
        run.start += u64::from(needed);
        run.granules -= needed;
        if run.granules == 0 {
            self.pack = None;
        }
        Ok(start)
    }
}

/// `buf` in `bytes` of whole pages, zeroes after it.
fn copied(pool: &Pool, buf: &Buf, bytes: usize) -> Result<Buf> {
    let mut pages = pool.try_take(bytes).map_err(|_| no_buffer())?;
    pages.set_len(bytes);
    let (head, tail) = pages.split_at_mut(buf.len());
    copy(CopySite::EngineRepack, head, buf);
    tail.fill(0);
    Ok(pages.freeze())
}

fn no_buffer() -> StoreError {
    StoreError::new(ErrorKind::Busy, "the journal has no buffer left")
}
