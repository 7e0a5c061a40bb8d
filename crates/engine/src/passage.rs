//! A way through all rows of a table that what cannot be read, or leads nowhere, does not end.

use bytes::Bytes;
use forebay_store::{Result, StoreError};

use crate::index::{Tour, is_damage};
use crate::keys::{self, Table};
use crate::tables::Scan;
use crate::view::View;

/// Places are not told apart further than by so many bytes.
const PLACE_BYTES_MAX: usize = 2 << 10;

/// What keys begin with that tells their namespace.
const NAMESPACE_BYTES: usize = 4;

/// What is met next.
pub(crate) enum Met {
    /// Those of them that are damaged once.
    Rows(Scan),
    /// Nothing tells what is there. It goes on behind that.
    Damage(StoreError),
}

/// A way through table current or kept, some rows at a time.
pub(crate) struct Passage<'a> {
    view: View<'a>,
    table: Table,
    /// Where it may go on when nothing of the namespace it is in can be read any more, in order.
    namespaces: Vec<u32>,
    from: Option<Vec<u8>>,
    /// Rows looked at in one step.
    step: usize,
    /// Before something that is in the way they are looked at one by one: so many times.
    single: usize,
    /// Damaged rows of the last step: one that is beside its place is met again behind each row that may be before it.
    met: Vec<Bytes>,
}

impl<'a> Passage<'a> {
    /// In steps of so many rows. Behind damage it goes on with what can be read of the namespace, or with those of `namespaces` that come
    /// later.
    pub fn new(view: View<'a>, table: Table, mut namespaces: Vec<u32>, step: usize) -> Self {
        namespaces.sort_unstable();
        Passage {
            view,
            table,
            namespaces,
            from: Some(Vec::new()),
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
            let step = if self.single > 0 { 1 } else { self.step };
            match self.view.survey(self.table, &from, None, step) {
                Ok(mut scan) => {
                    self.single = self.single.saturating_sub(1);
                    self.from = scan.next.take();
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
                    self.single = 0;
                    let nearest = behind(self.view, self.table, &from, NAMESPACE_BYTES);
                    self.from = nearest.or_else(|| self.next_namespace(&from));
                    return Ok(Some(Met::Damage(error)));
                }
            }
        }
        Ok(None)
    }

    fn next_namespace(&self, from: &[u8]) -> Option<Vec<u8>> {
        let id = from.first_chunk().map_or(0, |id| u32::from_be_bytes(*id));
        let next = self.namespaces.iter().find(|next| **next > id);
        next.map(|next| keys::namespace(*next).to_vec())
    }
}

/// A place behind `from`, where nothing can be read, from which on something can: the nearest that begins with as many bytes of it, found byte
/// by byte.
pub(crate) fn behind(view: View<'_>, table: Table, from: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let _tour = Tour::begin();
    let mut place = from.get(..bytes)?.to_vec();
    let mut nearest = None;
    // As long as `place` is how `from` begins, lesser bytes lead back.
    let mut is_along = true;
    while place.len() < PLACE_BYTES_MAX {
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
