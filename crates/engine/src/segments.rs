//! Where the bytes of a value are, piece by piece, kept from being reused until they are read.
//!
//! A value of a TiB has a million pieces. Those of one part of it, a GiB at most, are in memory at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_io::Disk;
use forebay_mem::Buf;
use forebay_store::{Result, StoreError};

use crate::body::Segment;
use crate::cache::Piece;
use crate::core::Core;
use crate::entry::Place;
use crate::extent::Extent;
use crate::index::{corrupt, of_row};
use crate::keys::{self, Table};
use crate::view::{View, decode_layout};

/// Bodies kept from being reused while they are read.
pub(crate) struct Pins<D: Disk> {
    pub core: Arc<Core<D>>,
    bodies: Vec<u64>,
}

impl<D: Disk> Pins<D> {
    pub fn none(core: &Arc<Core<D>>) -> Pins<D> {
        Pins {
            core: core.clone(),
            bodies: Vec::new(),
        }
    }

    fn pin(&mut self, body: u64) {
        self.core.reclaim.pin(body);
        self.bodies.push(body);
    }
}

impl<D: Disk> Drop for Pins<D> {
    fn drop(&mut self) {
        for body in self.bodies.drain(..) {
            for run in self.core.reclaim.unpin(body) {
                self.core.space.put(run);
            }
        }
    }
}

/// The pieces of a value, in order. Their bodies have to be pinned.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    queue: VecDeque<Queued>,
}

#[derive(Debug)]
enum Queued {
    Segment(Segment),
    /// Bytes `wanted` of a body that has its extents in table layout. The row is here where it may be found nowhere else later.
    Layout {
        body: u64,
        row: Option<Bytes>,
        wanted: Range<u64>,
    },
}

impl Segments {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there is one, or none.
    pub fn is_short(&self) -> bool {
        match self.queue.front() {
            Some(Queued::Segment(_)) => self.queue.len() == 1,
            Some(Queued::Layout { .. }) => false,
            None => true,
        }
    }

    /// How many pieces, and parts whose pieces are not here yet, are left.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// The next one.
    ///
    /// # Errors
    /// Its layout cannot be read, or is damaged; none follows.
    pub fn front<D: Disk>(&mut self, core: &Core<D>) -> Result<Option<&Segment>> {
        self.look_up(core)?;
        Ok(match self.queue.front() {
            Some(Queued::Segment(segment)) => Some(segment),
            Some(Queued::Layout { .. }) | None => None,
        })
    }

    /// Takes the next one out.
    ///
    /// # Errors
    /// As [`front`](Segments::front).
    pub fn pop<D: Disk>(&mut self, core: &Core<D>) -> Result<Option<Segment>> {
        self.look_up(core)?;
        Ok(match self.queue.pop_front() {
            Some(Queued::Segment(segment)) => Some(segment),
            Some(Queued::Layout { .. }) | None => None,
        })
    }

    /// Drops the next one, which was looked at.
    pub fn drop_front(&mut self) {
        self.queue.pop_front();
    }

    /// Looks up the pieces of the part that is next.
    fn look_up<D: Disk>(&mut self, core: &Core<D>) -> Result<()> {
        while let Some(Queued::Layout { .. }) = self.queue.front()
            && let Some(Queued::Layout { body, row, wanted }) = self.queue.pop_front()
        {
            let row = match row {
                Some(row) => Ok(Some(row)),
                None => core.view().layout(body),
            };
            let row = row.map(|row| row.or_else(|| core.reclaim.layout(body)));
            let found = row.and_then(|row| decode_layout(&row.ok_or_else(gone)?));
            match found {
                Ok(extents) => {
                    let mut begin: u64 = extents.iter().map(|extent| u64::from(extent.bytes)).sum();
                    for (number, extent) in extents.into_iter().enumerate().rev() {
                        begin -= u64::from(extent.bytes);
                        let piece = piece(body, number);
                        if let Some(segment) = wanted_of(piece, extent, begin, &wanted) {
                            self.queue.push_front(segment);
                        }
                    }
                }
                Err(error) => {
                    self.queue.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Bytes `wanted` of one more part; false when it went away meanwhile.
    fn add<D: Disk>(
        &mut self,
        view: View<'_>,
        place: Place,
        wanted: Range<u64>,
        pins: &mut Pins<D>,
    ) -> Result<bool> {
        match place {
            Place::Inline(body) => {
                let Some(bytes) = view.get(Table::Inline, &keys::body(body))? else {
                    return Ok(false);
                };
                let end = bytes.len().min(wanted.end as usize);
                let start = end.min(wanted.start as usize);
                let ready = Segment::Ready(Buf::from(bytes.slice(start..end)));
                self.queue.push_back(Queued::Segment(ready));
            }
            Place::Extents(body, extents) => {
                pins.pin(body);
                let mut begin = 0;
                for (number, extent) in extents.into_iter().enumerate() {
                    self.queue
                        .extend(wanted_of(piece(body, number), extent, begin, &wanted));
                    begin += u64::from(extent.bytes);
                }
            }
            Place::Layout(body) => {
                pins.pin(body);
                let is_leaving = pins.core.reclaim.is_leaving();
                let Some(row) = view.layout(body)? else {
                    return Ok(false);
                };
                let row = Some(row).filter(|_| is_leaving || self.is_empty());
                self.queue.push_back(Queued::Layout { body, row, wanted });
            }
            Place::Empty | Place::Joined(_) | Place::Away(_) => return Ok(false),
        }
        Ok(true)
    }
}

/// What is wanted of an extent that begins with byte `begin` of its body.
fn wanted_of(piece: Piece, extent: Extent, begin: u64, wanted: &Range<u64>) -> Option<Queued> {
    let end = begin + u64::from(extent.bytes);
    let part = begin.max(wanted.start)..end.min(wanted.end);
    (part.start < part.end).then(|| {
        Queued::Segment(Segment::Stored {
            piece,
            extent,
            want: (part.start - begin) as usize..(part.end - begin) as usize,
        })
    })
}

fn piece(body: u64, number: usize) -> Piece {
    Piece {
        body,
        extent: number as u32,
        block: None,
    }
}

fn gone() -> StoreError {
    of_row(corrupt("a layout"))
}

/// Where the bytes `range` of a value are; `None` when the value went away meanwhile, none when they were let go.
pub(crate) fn resolve<D: Disk>(
    core: &Arc<Core<D>>,
    view: View<'_>,
    place: Place,
    range: Range<u64>,
) -> Result<Option<(Segments, Pins<D>)>> {
    let mut segments = Segments::default();
    let mut pins = Pins::none(core);
    if range.is_empty() || matches!(place, Place::Away(_)) {
        return Ok(Some((segments, pins)));
    }
    let parts = match place {
        Place::Joined(body) => match view.parts(body)? {
            Some(parts) => parts,
            None => return Ok(None),
        },
        place => vec![(u64::MAX, place)],
    };
    let mut begin = 0_u64;
    for (size, place) in parts {
        let end = begin.saturating_add(size);
        let wanted = begin.max(range.start)..end.min(range.end);
        if wanted.start < wanted.end {
            let wanted = wanted.start - begin..wanted.end - begin;
            if !segments.add(view, place, wanted, &mut pins)? {
                return Ok(None);
            }
        }
        begin = end;
    }
    // The parts of a value that went away may be fewer already, from the end on.
    if begin < range.end {
        return Ok(None);
    }
    segments.look_up(core)?;
    Ok(Some((segments, pins)))
}

#[cfg(test)]
mod tests {
    use forebay_io::sim::{SimClock, SimDisk};
    use forebay_mem::Pool;

    use super::*;
    use crate::Config;
    use crate::entry::{Part, encode_parts};
    use crate::recover;
    use crate::tables::Memtable;

    const PARTS: u64 = 50;
    /// Of each part.
    const PIECES: u64 = 20;
    const PIECE_BYTES: u64 = 4096;
    const BYTES: u64 = PARTS * PIECES * PIECE_BYTES;
    const JOINED: Place = Place::Joined(PARTS + 1);

    /// A store with the rows of a value of many parts, and those that take them away.
    fn made() -> (Arc<Core<SimDisk>>, Memtable) {
        let clock = Arc::new(SimClock::new(1));
        let config = Config {
            segment_bytes: 1 << 20,
            reserve_bytes: 0,
            ..Config::default()
        };
        let pool = Pool::new(8 << 20);
        let (core, _, _) = recover::open(SimDisk::new(1), clock, pool, config).unwrap();
        let piece = [0; PIECE_BYTES as usize];
        let extents: Vec<_> = (0..PIECES).map(|start| Extent::of(start, &piece)).collect();
        let mut row = Vec::new();
        Extent::encode_all(&extents, &mut row);
        let row = Bytes::from(row);
        let parts = (1..=PARTS).map(|body| (PIECES * PIECE_BYTES, Place::Layout(body)));
        let parts: Vec<Part> = parts.collect();
        let (mut rows, mut removals) = (Memtable::default(), Memtable::default());
        for body in 1..=PARTS + 1 {
            let row = match body <= PARTS {
                true => row.clone(),
                false => encode_parts(&parts),
            };
            rows.set(Table::Layout, keys::body(body), Some(row));
            removals.set(Table::Layout, keys::body(body), None);
        }
        core.tables.publish(rows);
        (Arc::new(core), removals)
    }

    fn look(core: &Arc<Core<SimDisk>>) -> Option<(Segments, Pins<SimDisk>)> {
        resolve(core, core.view(), JOINED, 0..BYTES).unwrap()
    }

    fn take_away(core: &Core<SimDisk>, removals: Memtable, before: impl FnOnce()) {
        let layout = |body| core.view().layout(body).unwrap();
        core.reclaim.keep_layouts(1..=PARTS, layout, || {
            before();
            core.tables.publish(removals);
        });
    }

    fn count(core: &Core<SimDisk>, mut segments: Segments) -> u64 {
        std::iter::from_fn(|| segments.pop(core).unwrap()).count() as u64
    }

    #[test]
    fn the_pieces_of_one_part_are_at_hand_at_a_time() {
        let (core, _) = made();
        let (mut segments, _pins) = look(&core).unwrap();
        for number in 0..PARTS * PIECES {
            assert!(segments.len() as u64 <= PARTS + PIECES);
            let segment = segments.pop(&core).unwrap();
            let Some(Segment::Stored { piece, extent, .. }) = segment else {
                panic!("{number}: {segment:?}");
            };
            assert_eq!(piece.body, 1 + number / PIECES);
            assert_eq!(extent.start, number % PIECES);
        }
        assert!(segments.pop(&core).unwrap().is_none());
        let some = 5 * PIECE_BYTES + 1..(PIECES + 3) * PIECE_BYTES;
        let found = resolve(&core, core.view(), JOINED, some).unwrap();
        assert_eq!(count(&core, found.unwrap().0), PIECES - 5 + 3);
    }

    #[test]
    fn the_layouts_of_a_value_that_goes_are_kept_for_who_reads_it() {
        let (core, removals) = made();
        let (segments, pins) = look(&core).unwrap();
        take_away(&core, removals, || {});
        assert!(look(&core).is_none());
        assert_eq!(count(&core, segments), PARTS * PIECES);
        drop(pins);
        assert!(core.reclaim.layout(2).is_none());
    }

    #[test]
    fn who_comes_while_they_go_keeps_them() {
        let (core, removals) = made();
        let mut found = None;
        take_away(&core, removals, || found = look(&core));
        let (segments, _pins) = found.unwrap();
        assert_eq!(count(&core, segments), PARTS * PIECES);
    }
}
