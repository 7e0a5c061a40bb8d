//! Where the client says how far its queues go.
//!
//! Each pair of queues has eight bytes: the tail of the submission queue, then the head of the completion queue. The client writes them
//! by messages, or in a page that it has mapped, or (shadow doorbells, Base 2.0 section 5.8) in a page of its own memory. In the last
//! case it looks in a second page at where we want to be told by a message, and else stays silent. Whatever it writes is checked by
//! whoever reads it.
//!
//! When one of the two pages is far, nobody can watch it. Then we always want to be told: each message starts a [`Tour`], which says in
//! the second page that the next step is to be told of, too, and then reads the first one. When steps were made meanwhile, another
//! follows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use forebay_mem::{Backing, PAGE_BYTES, Region, RegionSlice};

use super::IO_QUEUES_MAX;
use super::bar::DOORBELLS;
use super::memory::{Gone, Place};

/// Bytes of a pair of queues.
const PAIR_BYTES: usize = 8;

/// Bytes in front of I/O queues' doorbells, and those of all of them.
const TOUR_AT: usize = PAIR_BYTES;
const TOUR_BYTES: usize = IO_QUEUES_MAX as usize * PAIR_BYTES;

/// A word that no queue listens to.
const NOTHING: u64 = u64::MAX;

/// The client's word on one pair of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    /// How far the submission queue goes.
    pub(super) tail: u32,
    /// How far completions were taken.
    pub(super) head: u32,
}

impl Pair {
    fn of(word: u64) -> Pair {
        Pair {
            tail: word as u32,
            head: (word >> 32) as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.tail) | u64::from(self.head) << 32
    }
}

/// Pages in the client's memory.
pub(super) struct Shadow {
    /// What the client writes.
    doorbells: Place,
    /// It tells us only when it passes these.
    events: Place,
    /// When one of them is far: what the client wrote, as far as is known, from [`TOUR_AT`] on.
    known: Vec<u64>,
    /// It may have written more.
    stale: bool,
}

/// What is to be written and read where doorbells are far: bytes by their addresses, and the address of what to read, and how much.
pub(super) struct Tour {
    pub(super) writes: Vec<(u64, Vec<u8>)>,
    pub(super) read: (u64, usize),
}

impl Shadow {
    fn is_far(&self) -> bool {
        self.doorbells.is_far() || self.events.is_far()
    }

    /// What the client wrote, where only a tour can tell.
    fn known(&self, at: usize) -> u64 {
        let word = at.checked_sub(TOUR_AT).map(|at| at / PAIR_BYTES);
        match word.and_then(|word| self.known.get(word)) {
            Some(&word) if self.is_far() => word,
            _ => NOTHING,
        }
    }

    fn tour(&self, writes: Vec<(u64, Vec<u8>)>) -> Tour {
        Tour {
            writes,
            read: (tour_address(&self.doorbells), TOUR_BYTES),
        }
    }

    fn write(&self, at: usize, pair: Pair) {
        for place in [&self.doorbells, &self.events] {
            // What has vanished is told to nobody.
            if let Ok(memory) = place.memory() {
                write(memory, at, pair.word());
            }
        }
    }
}

/// The doorbells of one controller.
pub(super) struct Doorbells {
    /// A file whose one page lies where doorbells do; the client may have it mapped.
    file: Arc<Region>,
    page: RegionSlice,
    shadow: Option<Shadow>,
}

impl Doorbells {
    pub(super) fn new() -> io::Result<Doorbells> {
        let len = (DOORBELLS.offset + DOORBELLS.size) as usize;
        let file = Region::memfd(len)?;
        let page = file.slice(DOORBELLS.offset as usize..len);
        let page = page.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Doorbells {
            file,
            page,
            shadow: None,
        })
    }

    /// What the client may map.
    pub(super) fn backing(&self) -> Option<Backing<'_>> {
        self.file.backing()
    }

    /// How many pairs of queues there is room for.
    pub(super) const PAIRS: u16 = (PAGE_BYTES / PAIR_BYTES) as u16;

    /// The client's word on a pair of queues.
    pub(super) fn read(&self, qid: u16) -> Pair {
        let at = usize::from(qid) * PAIR_BYTES;
        match &self.shadow {
            Some(shadow) if qid > 0 => match shadow.doorbells.memory() {
                Ok(doorbells) => Pair::of(read(doorbells, at)),
                Err(Gone) => Pair::of(shadow.known(at)),
            },
            _ => Pair::of(read(&self.page, at)),
        }
    }

    /// The client rang by a message: the doorbell at `offset` of the page.
    pub(super) fn ring(&mut self, offset: usize, value: u32) {
        set(&self.page, offset, value);
        self.doubt();
    }

    /// A submission queue begins at zero.
    pub(super) fn clear_tail(&self, qid: u16) {
        self.clear(Doorbells::tail_at(qid));
    }

    /// A completion queue begins at zero.
    pub(super) fn clear_head(&self, qid: u16) {
        self.clear(Doorbells::head_at(qid));
    }

    fn clear(&self, at: usize) {
        set(&self.page, at, 0);
        let shadow = self.shadow.as_ref();
        for place in shadow
            .iter()
            .flat_map(|shadow| [&shadow.doorbells, &shadow.events])
        {
            if let Ok(memory) = place.memory() {
                set(memory, at, 0);
            }
        }
    }

    /// All begin at zero, in the mapped page.
    pub(super) fn reset(&mut self) {
        self.shadow = None;
        for qid in 0..Doorbells::PAIRS {
            write(&self.page, usize::from(qid) * PAIR_BYTES, 0);
        }
    }

    /// From now on I/O queues have their doorbells in the client's memory, where `queues` stand as they do now.
    pub(super) fn set_shadow(
        &mut self,
        doorbells: Place,
        events: Place,
        queues: impl Iterator<Item = (u16, Pair)>,
    ) {
        let mut shadow = Shadow {
            doorbells,
            events,
            known: vec![0; usize::from(IO_QUEUES_MAX)],
            stale: true,
        };
        for (qid, pair) in queues.filter(|(qid, _)| *qid > 0) {
            if let Some(known) = shadow.known.get_mut(usize::from(qid) - 1) {
                *known = pair.word();
            }
            shadow.write(usize::from(qid) * PAIR_BYTES, pair);
        }
        self.shadow = Some(shadow);
    }

    /// Whether I/O queues have their doorbells in the client's memory, where they can be looked at.
    pub(super) fn are_watched(&self) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| !shadow.is_far())
    }

    /// What is known of far doorbells may be old.
    pub(super) fn doubt(&mut self) {
        if let Some(shadow) = &mut self.shadow {
            shadow.stale = true;
        }
    }

    /// The first tour of far doorbells: both pages as queues stand. `None` when they are not far.
    pub(super) fn first_tour(&self) -> Option<Tour> {
        let shadow = self.shadow.as_ref().filter(|shadow| shadow.is_far())?;
        let bytes: Vec<u8> = shadow
            .known
            .iter()
            .copied()
            .flat_map(u64::to_le_bytes)
            .collect();
        let writes =
            [&shadow.doorbells, &shadow.events].map(|place| (tour_address(place), bytes.clone()));
        Some(shadow.tour(writes.into()))
    }

    /// A tour that lets one far doorbell begin at zero, `offset` bytes into the pages.
    pub(super) fn clearing_tour(&self, offset: usize) -> Option<Tour> {
        let shadow = self.shadow.as_ref().filter(|shadow| shadow.is_far())?;
        let writes = [&shadow.doorbells, &shadow.events]
            .map(|place| (place.address().wrapping_add(offset as u64), vec![0; 4]));
        Some(shadow.tour(writes.into()))
    }

    /// A tour, if far doorbells may have been rung since the last one.
    pub(super) fn next_tour(&mut self) -> Option<Tour> {
        let shadow = self.shadow.as_mut().filter(|shadow| shadow.is_far())?;
        let there = !shadow.doorbells.is_gone() && !shadow.events.is_gone();
        if !there || !std::mem::take(&mut shadow.stale) {
            return None;
        }
        let bytes = shadow
            .known
            .iter()
            .copied()
            .flat_map(u64::to_le_bytes)
            .collect();
        let writes = vec![(tour_address(&shadow.events), bytes)];
        Some(shadow.tour(writes))
    }

    /// What a tour has read.
    pub(super) fn learn(&mut self, bytes: &[u8]) {
        let Some(shadow) = &mut self.shadow else {
            return;
        };
        for (known, bytes) in shadow.known.iter_mut().zip(bytes.as_chunks().0) {
            let word = u64::from_le_bytes(*bytes);
            // Of the step after this one we are not told yet.
            shadow.stale |= *known != word;
            *known = word;
        }
    }

    /// Whether a page was taken away.
    pub(super) fn are_gone(&self) -> bool {
        let gone = |shadow: &Shadow| shadow.doorbells.is_gone() || shadow.events.is_gone();
        self.shadow.as_ref().is_some_and(gone)
    }

    /// Where a submission queue's doorbell lies in the pages.
    pub(super) fn tail_at(qid: u16) -> usize {
        usize::from(qid) * PAIR_BYTES
    }

    /// Where a completion queue's doorbell lies in the pages.
    pub(super) fn head_at(qid: u16) -> usize {
        Doorbells::tail_at(qid) + 4
    }

    /// There are no shadow doorbells any more.
    pub(super) fn drop_shadow(&mut self) {
        self.shadow = None;
    }

    /// The pages in the client's memory.
    pub(super) fn places(&mut self) -> impl Iterator<Item = &mut Place> {
        let shadow = self.shadow.as_mut();
        shadow
            .into_iter()
            .flat_map(|shadow| [&mut shadow.doorbells, &mut shadow.events])
    }

    /// Asks to be told by a message when this pair of queues goes on from here; without shadow doorbells messages come always.
    pub(super) fn announce(&self, qid: u16, here: Pair) {
        if let Some(shadow) = &self.shadow
            && !shadow.is_far()
            && let Ok(events) = shadow.events.memory()
        {
            write(events, usize::from(qid) * PAIR_BYTES, here.word());
        }
    }

    /// What is read after this was written after what was announced, or the writer has seen the announcement.
    pub(super) fn announced(&self) {
        fence(SeqCst);
    }
}

fn tour_address(place: &Place) -> u64 {
    place.address().wrapping_add(TOUR_AT as u64)
}

fn read(page: &RegionSlice, at: usize) -> u64 {
    if let Some(word) = page.word(at) {
        return word.load(Acquire);
    }
    // Memory that may vanish, or may not be written, is copied; not all at once, maybe: only what stays the same was written so.
    let copy = || {
        let mut bytes = [0; PAIR_BYTES];
        page.read(at, &mut bytes)
            .then_some(u64::from_le_bytes(bytes))
    };
    let (first, second) = (copy(), copy());
    match (first, second) {
        (Some(first), Some(second)) if first == second => first,
        _ => NOTHING,
    }
}

/// Sets one doorbell; the client may be setting the other one of the pair.
fn set(page: &RegionSlice, at: usize, value: u32) {
    let Some(word) = page.word(at & !7) else {
        // What has vanished is told to nobody.
        let _ = page.write(at, &value.to_le_bytes());
        return;
    };
    let (mask, value) = match at & 4 {
        0 => (0xffff_ffff, u64::from(value)),
        _ => (0xffff_ffff << 32, u64::from(value) << 32),
    };
    // It never fails: each time there is a value to set.
    let _ = word.fetch_update(AcqRel, Relaxed, |old| Some(old & !mask | value));
}

fn write(page: &RegionSlice, at: usize, word: u64) {
    match page.word(at) {
        Some(there) => there.store(word, Release),
        // What has vanished is told to nobody.
        None => drop(page.write(at, &word.to_le_bytes())),
    }
}
