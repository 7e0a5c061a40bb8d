//! Small values: inline, or packed into one write of the group.

use bytes::Bytes;
use forebay_io::{Disk, File};
use forebay_mem::{Buf, CopySite, copy, count_copy};
use forebay_store::{ErrorKind, Result, StoreError};

use crate::draft::Draft;
use crate::entry::Place;
use crate::extent::{EXTENT_BYTES_MAX, Extent, GRANULE_BYTES, Run, granules};
use crate::keys;
use crate::keys::Table;

use super::{Decider, INLINE_BYTES_MAX};

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
        let (run, unwritten) = core.space.take_noting(&core.disk, needed, most)?;
        if unwritten {
            let len = run.granules as usize * GRANULE_BYTES;
            let mut zeroes = self.pool.try_take(len).map_err(|_| no_buffer())?;
            zeroes.set_len(len);
            zeroes.fill(0);
            let offset = core.space.offset(run.start);
            if let Err(error) = core.data.write_all_at(offset, &zeroes) {
                core.space.put(run);
                let kind = match error.kind() {
                    std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
                    _ => ErrorKind::Io,
                };
                return Err(StoreError::new(kind, "new space cannot be written").with_source(error));
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
        let fits = self.batch.packs.last().is_some_and(|(start, pack)| {
            start + u64::from(granules(pack.len())) == run.start && pack.room() >= bytes
        });
        if !fits {
            let room = run.granules as usize * GRANULE_BYTES;
            let block = self.pool.try_take(room).map_err(|_| no_buffer())?;
            self.batch.packs.push((run.start, block));
        }
        let Some((_, pack)) = self.batch.packs.last_mut() else {
            return Err(no_buffer());
        };
        let spare = pack.spare();
        copy(CopySite::EngineRepack, &mut spare[..buf.len()], buf);
        spare[buf.len()..bytes].fill(0);
        pack.set_len(pack.len() + bytes);
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

fn no_buffer() -> StoreError {
    StoreError::new(ErrorKind::Busy, "the journal has no buffer left")
}
