//! Going past what cannot be read, or is garbage, to the rows behind it.
//!
//! A look-up by key comes to one page of rows: where that is a bad one, nothing tells what is beside it. A cursor goes from page to page, and
//! moves before it reads: one that came to a bad page has left it behind, and its next step is to the page after that.

use std::ops::Bound;

use bytes::Bytes;
use forebay_store::Result;
use redb::{AccessGuard, Cursor, ReadableTable};

use crate::keys::Table;

use super::backend::{Tour, is_damage, looking};
use super::snapshot::Snapshot;
use super::unplaced::unless_unread;
use super::{checked, failed};

/// Steps of one way that may fail: each is to a page, or to a row of one that is garbage.
const FAILED_MAX: usize = 1 << 12;
/// Places on one way that the medium does not give: each may take it seconds, and nobody else has the thread meanwhile.
const UNREAD_MAX: usize = 16;

type RawCursor<'a> = Cursor<'a, &'static [u8], &'static [u8]>;
type RawRow<'a> = (
    AccessGuard<'a, &'static [u8]>,
    AccessGuard<'a, &'static [u8]>,
);

/// What is behind a place.
#[derive(Debug)]
pub(crate) enum Behind {
    /// The key of the first row that can be read and matches.
    Row {
        key: Bytes,
        /// Whether something before it cannot be read.
        is_past: bool,
    },
    /// No such row.
    Nothing,
    /// Too much is in the way.
    Unknown,
}

/// Where a step led.
enum Step {
    To(Bytes),
    /// To a row that does not match.
    Damaged,
    /// To what cannot be read.
    Failed,
    /// The same, and there is no next one.
    Stuck,
    End,
}

impl Snapshot {
    /// What is behind `from`, on the way there from the row `start`, which is not behind it and can be read.
    ///
    /// # Errors
    /// Those that say nothing of what is there.
    pub fn behind(&self, table: Table, start: &[u8], from: &[u8]) -> Result<Behind> {
        let tour = Tour::begin();
        let known = tour.unread();
        let Some(mut cursor) = unless_unread(self.cursor(table, start))? else {
            return Ok(Behind::Unknown);
        };
        let mut failures = 0;
        while failures < FAILED_MAX && tour.unread() - known <= UNREAD_MAX {
            match step(&mut cursor, table, |cursor| cursor.next())? {
                Step::To(key) if key[..] > *from => {
                    let is_past = failures > 0;
                    return Ok(Behind::Row { key, is_past });
                }
                Step::To(_) | Step::Damaged => {}
                Step::Failed => failures += 1,
                Step::Stuck => break,
                Step::End => return Ok(Behind::Nothing),
            }
        }
        Ok(Behind::Unknown)
    }

    /// The first row behind `from` that can be read and matches, on the way back from `place`, which is behind it and where some can be read.
    ///
    /// # Errors
    /// Those that say nothing of what is there.
    pub fn behind_before(&self, table: Table, place: &[u8], from: &[u8]) -> Result<Option<Bytes>> {
        let tour = Tour::begin();
        let known = tour.unread();
        let Some(mut cursor) = unless_unread(self.cursor(table, place))? else {
            return Ok(None);
        };
        let mut first = match step(&mut cursor, table, |cursor| cursor.peek_next())? {
            Step::To(key) => Some(key),
            Step::Damaged | Step::Failed | Step::Stuck | Step::End => None,
        };
        let mut failures = 0;
        while failures < FAILED_MAX && tour.unread() - known <= UNREAD_MAX {
            match step(&mut cursor, table, |cursor| cursor.prev())? {
                Step::To(key) if key[..] > *from => first = Some(key),
                Step::Damaged => {}
                Step::Failed => failures += 1,
                Step::To(_) | Step::Stuck | Step::End => break,
            }
        }
        Ok(first)
    }

    fn cursor(&self, table: Table, place: &[u8]) -> Result<RawCursor<'_>> {
        looking(|| {
            let rows = self.rows(table)?;
            rows.lower_bound(Bound::Included(place)).map_err(failed)
        })
    }
}

fn step<'a>(
    cursor: &mut RawCursor<'a>,
    table: Table,
    go: impl FnOnce(&mut RawCursor<'a>) -> redb::Result<Option<RawRow<'a>>>,
) -> Result<Step> {
    // What unwinds through the library leaves the cursor as it is; after an error that it hands on it goes no further.
    let mut is_handed_on = false;
    let found = looking(|| {
        let found = go(cursor);
        is_handed_on = found.is_err();
        let Some((key, value)) = found.map_err(failed)? else {
            return Ok(Step::End);
        };
        let (key, value) = (key.value(), value.value());
        Ok(match checked(table.name(), key, value) {
            Ok(_) => Step::To(Bytes::copy_from_slice(key)),
            Err(_) => Step::Damaged,
        })
    });
    match found {
        Err(error) if is_damage(&error) && is_handed_on => Ok(Step::Stuck),
        Err(error) if is_damage(&error) => Ok(Step::Failed),
        found => found,
    }
}
