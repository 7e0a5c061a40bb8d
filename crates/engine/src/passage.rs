//! A way through all rows of a table that what cannot be read, or leads nowhere, does not end.

use bytes::Bytes;
use forebay_store::listing::next_key;
use forebay_store::{Result, StoreError};

use crate::index::{Behind, Tour, is_damage};
use crate::keys::{self, Table};
use crate::tables::Scan;
use crate::view::View;

/// For a place from which the way goes back row by row: so many bytes tell well enough where that is.
const NEAR_BYTES_MAX: usize = 64;

/// What is met next.
pub(crate) enum Met {
    /// Those of them that are damaged once.
    Rows(Scan),
    /// Nothing in the index can be read from one place to the other, or to the end. What is in memory there comes next.
    Damage {
        from: Vec<u8>,
        until: Option<Vec<u8>>,
        error: StoreError,
    },
}

/// A way through table current or kept, some rows at a time.
pub(crate) struct Passage<'a> {
    view: View<'a>,
    table: Table,
    /// Some of them may be behind what is in the way where nothing else tells what is.
    namespaces: Vec<u32>,
    from: Option<Vec<u8>>,
    /// Up to here, or to the end, rows in memory are looked at alone.
    gap: Option<Option<Vec<u8>>>,
    /// Up to here the index can be read, although not much further.
    until: Option<Vec<u8>>,
    /// A row of the index that was read, or that one in memory is above.
    last: Option<Bytes>,
    /// Rows looked at in one step.
    step: usize,
    /// Before something that is in the way they are looked at one by one: so many times.
    single: usize,
    /// Damaged rows of the last step: one that is beside its place is met again behind each row that may be before it.
    met: Vec<Bytes>,
}

impl<'a> Passage<'a> {
    /// In steps of so many rows. Behind damage it goes on with the first row that can be read: where none could be before, and not the last ones
    /// either, that is looked for from where `namespaces` begin.
    pub fn new(view: View<'a>, table: Table, mut namespaces: Vec<u32>, step: usize) -> Self {
        namespaces.sort_unstable();
        Passage {
            view,
            table,
            namespaces,
            from: Some(Vec::new()),
            gap: None,
            until: None,
            last: None,
            step,
            single: 0,
            met: Vec::new(),
        }
    }

    /// What comes next; `None` at the end.
    ///
    /// # Errors
    /// Those that say nothing of what is there: there is no way to it now.
    pub fn next(&mut self) -> Result<Option<Met>> {
        while let Some(from) = self.from.take() {
            if let Some(until) = self.gap.take() {
                let scan = self.in_gap(&from, until);
                if !scan.rows.is_empty() {
                    return Ok(Some(Met::Rows(scan)));
                }
                continue;
            }
            let step = if self.single > 0 { 1 } else { self.step };
            let until = self.until.as_deref();
            match self.view.survey(self.table, &from, until, step) {
                Ok(mut scan) => {
                    self.single = self.single.saturating_sub(1);
                    // The row that it ends before was read already.
                    if self.until.is_none()
                        && let Some((key, _)) = scan.rows.last()
                    {
                        self.last = Some(key.clone());
                    }
                    self.from = scan.next.take().or_else(|| self.until.take());
                    let damaged = scan.damaged.iter().map(|(key, _)| key.clone()).collect();
                    let met = std::mem::replace(&mut self.met, damaged);
                    scan.damaged.retain(|(key, _)| !met.contains(key));
                    return Ok(Some(Met::Rows(scan)));
                }
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) if self.single == 0 => {
                    self.single = self.step;
                    self.from = Some(from);
                }
                Err(error) => {
                    let (begin, until, is_past) = match self.until.take() {
                        // It could be a moment ago.
                        Some(until) => (from.clone(), Some(until), true),
                        None => {
                            let last = self.last.as_ref().filter(|last| last[..] >= from[..]);
                            let begin = last.map_or_else(|| from.clone(), |last| next_key(last));
                            let (until, is_past) = self.behind(&from)?;
                            (begin, until, is_past)
                        }
                    };
                    self.from = Some(from);
                    if is_past {
                        self.gap = Some(until.clone());
                        return Ok(Some(Met::Damage {
                            from: begin,
                            until,
                            error,
                        }));
                    }
                    // What is in the way is behind a row that memory has removed, and there may be damaged ones before that.
                    self.until = until;
                }
            }
        }
        Ok(None)
    }

    /// Some of what is in memory from here to the end of the gap.
    fn in_gap(&mut self, from: &[u8], until: Option<Vec<u8>>) -> Scan {
        let View { tables, over, .. } = self.view;
        let mut scan = tables.survey_memory(over, self.table, from, until.as_deref(), self.step);
        match scan.next.take() {
            Some(next) => {
                self.from = Some(next);
                self.gap = Some(until);
            }
            None => self.from = until,
        }
        scan
    }

    /// Where something can be read behind `from`, if anything can, and whether something before that cannot.
    fn behind(&mut self, from: &[u8]) -> Result<(Option<Vec<u8>>, bool)> {
        let found = match &self.last {
            Some(last) => self.view.tables.behind(self.table, last, from)?,
            None => Behind::Unknown,
        };
        let (key, is_past) = match found {
            Behind::Row { key, is_past } => (Some(key), is_past),
            Behind::Nothing => (None, true),
            Behind::Unknown => (self.looked_for(from)?, true),
        };
        let place = key.as_deref().map(<[u8]>::to_vec);
        self.last = key.or(self.last.take());
        Ok((place, is_past))
    }

    /// The first row that can be read behind `from`, found on the way back from one that is further behind.
    fn looked_for(&self, from: &[u8]) -> Result<Option<Bytes>> {
        let _tour = Tour::begin();
        let near = behind(self.view, self.table, from, NEAR_BYTES_MAX);
        let namespaces = self.namespaces.iter();
        let namespaces = namespaces.map(|id| keys::namespace(*id).to_vec());
        let later = namespaces.filter(|place| place[..] > *from);
        for place in near.into_iter().chain(later) {
            let found = self.view.tables.behind_before(self.table, &place, from)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// A place of at most so many bytes behind `from`, where nothing can be read, from which on something can, found byte by byte: the nearest,
/// where nothing else is in the way behind it.
pub(crate) fn behind(view: View<'_>, table: Table, from: &[u8], most: usize) -> Option<Vec<u8>> {
    let _tour = Tour::begin();
    let mut place = Vec::new();
    let mut nearest = None;
    // As long as `place` is how `from` begins, lesser bytes lead back.
    let mut is_along = true;
    while place.len() < most {
        let along = from.get(place.len()).filter(|_| is_along).copied();
        let least = along.map_or(0, |byte| u16::from(byte) + 1);
        let before = match least_readable(view, table, &mut place, least) {
            Some(readable) => {
                nearest = Some([&place[..], &[readable]].concat());
                readable.checked_sub(1)
            }
            None => along.or(nearest.is_some().then_some(u8::MAX)),
        };
        // What is nearer begins with that.
        let Some(before) = before else {
            break;
        };
        is_along = along == Some(before);
        place.push(before);
    }
    nearest
}

/// The least byte, from `least` on, behind which with `place` something can be read.
fn least_readable(view: View<'_>, table: Table, place: &mut Vec<u8>, mut least: u16) -> Option<u8> {
    let mut readable = u16::from(u8::MAX) + 1;
    while least < readable {
        let middle = u16::midpoint(least, readable);
        place.push(middle as u8);
        let looked = view.survey(table, place, None, 1);
        place.pop();
        match looked {
            Ok(_) => readable = middle,
            Err(_) => least = middle + 1,
        }
    }
    u8::try_from(readable).ok()
}
