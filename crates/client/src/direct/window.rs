//! Parts of regions and of values, as calls name them.

use std::ops::{Bound, Range, RangeBounds};

use forebay_proto::direct;

use super::region::{Region, Remote};
use crate::{Error, Result};

/// A part of a region: where bytes go, or where they come from.
#[derive(Debug, Clone)]
pub struct Window<'a> {
    pub(crate) region: &'a Region,
    pub(crate) range: Range<usize>,
}

impl Region {
    /// Bytes `range` of it.
    pub fn window(&self, range: Range<usize>) -> Window<'_> {
        Window {
            region: self,
            range,
        }
    }
}

impl<'a> From<&'a Region> for Window<'a> {
    fn from(region: &'a Region) -> Window<'a> {
        region.window(0..region.len())
    }
}

/// From an offset to the region's end.
impl<'a> From<(&'a Region, usize)> for Window<'a> {
    fn from((region, offset): (&'a Region, usize)) -> Window<'a> {
        region.window(offset..region.len().max(offset))
    }
}

impl<'a> From<(&'a Region, Range<usize>)> for Window<'a> {
    fn from((region, range): (&'a Region, Range<usize>)) -> Window<'a> {
        region.window(range)
    }
}

impl Window<'_> {
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.range.start <= self.range.end && self.range.end <= self.region.len() {
            true => Ok(()),
            false => Err(argument(format_args!(
                "bytes {}..{} of a region of {} bytes",
                self.range.start,
                self.range.end,
                self.region.len()
            ))),
        }
    }

    /// The same for the server.
    pub(crate) fn remote(&self, remote: Remote) -> direct::Window {
        direct::Window {
            stag: remote.stag.0,
            offset: remote.base + self.range.start as u64,
            len: self.range.len() as u64,
        }
    }
}

/// Which bytes of a value: any range of `u64`, `..` for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub(crate) first: u64,
    /// One after the last; none for up to the end.
    pub(crate) end: Option<u64>,
}

impl Span {
    /// The bytes in `range`.
    pub fn of(range: impl RangeBounds<u64>) -> Span {
        let first = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => None,
        };
        Span { first, end }
    }

    pub(crate) fn is_whole(self) -> bool {
        self.first == 0 && self.end.is_none()
    }

    /// The most bytes that it can mean.
    pub(crate) fn len_max(self) -> u64 {
        self.end
            .map_or(u64::MAX, |end| end.saturating_sub(self.first))
    }

    pub(crate) fn check(self) -> Result<()> {
        match self.end {
            Some(end) if end <= self.first => Err(argument("an empty range of a value")),
            _ => Ok(()),
        }
    }

    pub(crate) fn asked(self) -> direct::Range {
        match (self.first, self.end) {
            (0, None) => direct::Range::Full,
            (first, None) => direct::Range::From(first),
            (first, Some(end)) => direct::Range::Inclusive(first, end.saturating_sub(1)),
        }
    }
}

/// An argument that nobody can serve.
pub(crate) fn argument(what: impl std::fmt::Display) -> Error {
    Error::Local {
        what: what.to_string(),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}
