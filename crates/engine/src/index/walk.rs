//! A walk over rows in order of key, led by rows that match alone: a key that is damaged, and what leads from page to page, may be
//! anywhere in that order, and what redb looks up in it is beside its place then.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use forebay_store::listing::next_key;
use forebay_store::{Result, StoreError};
use redb::{Cursor, ReadableTable};

use crate::keys::Table;

use super::snapshot::RawRows;
use super::{checked, corrupt, failed, of_row};

/// A row of a walk.
pub(crate) enum Row {
    Whole(Bytes, Bytes),
    /// It does not match, or is beside its place.
    Damaged {
        key: Bytes,
        /// Where in the order of keys it is: its key, or where it lies if that is elsewhere.
        place: Bytes,
        error: StoreError,
    },
}

impl Row {
    pub fn place(&self) -> &Bytes {
        match self {
            Row::Whole(key, _) => key,
            Row::Damaged { place, .. } => place,
        }
    }

    /// Whether it is the row of this key, as far as anything tells.
    pub fn is_of(&self, wanted: &Bytes) -> bool {
        match self {
            Row::Whole(key, _) => key == wanted,
            Row::Damaged { key, place, .. } => key == wanted && place == wanted,
        }
    }
}

pub(super) struct Walk<'a> {
    cursor: Cursor<'a, &'static [u8], &'static [u8]>,
    table: Table,
    from: Vec<u8>,
    until: Option<Vec<u8>>,
    /// The key of the last row that matched: what follows is behind it.
    last: Option<Vec<u8>>,
    ahead: VecDeque<Row>,
    ended: bool,
}

impl<'a> Walk<'a> {
    /// From `from` (included) to `until` (excluded).
    pub fn new(
        rows: &'a RawRows,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<Walk<'a>> {
        let mut cursor = rows.lower_bound(Bound::Included(from)).map_err(failed)?;
        let mut last = None;
        // A row with this very key that matches tells by itself that nothing before it belongs here.
        let here = cursor.peek_next().map_err(failed)?;
        let is_here = here.is_some_and(|(key, value)| {
            key.value() == from && checked(table.name(), from, value.value()).is_ok()
        });
        while !is_here && let Some((key, value)) = cursor.peek_prev().map_err(failed)? {
            let key = key.value();
            if key < from && checked(table.name(), key, value.value()).is_ok() {
                last = Some(key.to_vec());
                break;
            }
            cursor.prev().map_err(failed)?;
        }
        Ok(Walk {
            cursor,
            table,
            from: from.to_vec(),
            until: until.map(<[u8]>::to_vec),
            last,
            ahead: VecDeque::new(),
            ended: false,
        })
    }

    pub fn next(&mut self) -> Result<Option<Row>> {
        while self.ahead.is_empty() && !self.ended {
            self.read_on()?;
        }
        Ok(self.ahead.pop_front())
    }

    /// Reads to the next row that matches: those on both sides tell where what is between them belongs.
    fn read_on(&mut self) -> Result<()> {
        let mut damaged = Vec::new();
        let whole = loop {
            let Some((key, value)) = self.cursor.next().map_err(failed)? else {
                break None;
            };
            let key = key.value();
            let row = checked(self.table.name(), key, value.value());
            let is_behind = self.last.as_ref().is_none_or(|last| &last[..] < key);
            let key = Bytes::copy_from_slice(key);
            match row {
                Ok(value) if is_behind => break Some((key, value)),
                Ok(_) => damaged.push((key, corrupt("the order of rows"))),
                Err(error) => damaged.push((key, error)),
            }
        };
        let next = whole.as_ref().map(|(key, _)| &key[..]);
        for (key, error) in damaged {
            if let Some(place) = self.place(&key, next) {
                let error = of_row(error);
                self.ahead.push_back(Row::Damaged { key, place, error });
            }
        }
        let Some((key, value)) = whole else {
            self.ended = true;
            return Ok(());
        };
        if !self.is_before_end(&key) {
            self.ended = true;
            return Ok(());
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(&key);
        if let Some(value) = value
            && key >= self.from
        {
            self.ahead.push_back(Row::Whole(key, value));
        }
        Ok(())
    }

    fn is_before_end(&self, key: &[u8]) -> bool {
        self.until.as_ref().is_none_or(|until| key < &until[..])
    }

    /// Where a damaged row is that lies behind the last one that matched and before `next`; `None` when that is not in the walk.
    fn place(&self, key: &Bytes, next: Option<&[u8]>) -> Option<Bytes> {
        let is_behind = self.last.as_ref().is_none_or(|last| &last[..] < key);
        if is_behind && next.is_none_or(|next| key < next) {
            return (key >= &self.from && self.is_before_end(key)).then(|| key.clone());
        }
        if next.is_some_and(|next| next <= &self.from[..]) {
            return None;
        }
        let behind = self.last.as_ref().map(|last| next_key(last));
        let place = behind.filter(|behind| *behind > self.from);
        let place = place.unwrap_or_else(|| self.from.clone());
        self.is_before_end(&place).then(|| place.into())
    }
}
