//! A value held in memory, and reading it.

use std::ops::Range;
use std::sync::Arc;

use forebay_mem::Buf;

use crate::{Away, Body, Change, Meta, Present, Result, VersionId};

/// Chunks are shared: a reader keeps its value alive whatever happens to the key.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub meta: Meta,
    pub chunks: Arc<[Buf]>,
    /// Where the bytes are when they were let go; then there are no chunks.
    pub away: Option<Away>,
}

/// What stands under one key.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub current: Option<Value>,
    /// Oldest first.
    pub kept: Vec<Kept>,
}

#[derive(Debug)]
pub(super) enum Kept {
    Value(Value),
    Marker { version: VersionId, modified: u64 },
}

impl Kept {
    pub fn version(&self) -> VersionId {
        match self {
            Kept::Value(value) => value.meta.version,
            Kept::Marker { version, .. } => *version,
        }
    }

    pub fn is_marker(&self) -> bool {
        matches!(self, Kept::Marker { .. })
    }
}

impl Slot {
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.kept.is_empty()
    }

    /// All versions, newest first.
    pub fn versions(&self) -> impl Iterator<Item = VersionId> {
        let current = self.current.iter().map(|value| value.meta.version);
        current.chain(self.kept.iter().rev().map(Kept::version))
    }

    /// The delete marker that hides the kept values.
    pub fn marker(&self) -> Option<VersionId> {
        let newest = self.kept.last().filter(|kept| kept.is_marker());
        newest.filter(|_| self.current.is_none()).map(Kept::version)
    }

    /// What `versions::plan_*` wants to know.
    pub fn present(&self) -> Present {
        let mut newest = self.kept.iter().rev();
        let mut kept = || newest.next().map(|kept| (kept.version(), kept.is_marker()));
        Present {
            current: self.current.as_ref().map(|value| value.meta.version),
            kept_null: self.position(VersionId::NULL).is_some(),
            newest_kept: kept(),
            second_kept: kept(),
        }
    }

    /// The value that a change lets go.
    pub fn dropped_by(&self, change: Change) -> Option<&Value> {
        match change {
            Change::DropCurrent => self.current.as_ref(),
            Change::DropKept(version) => match self.kept.get(self.position(version)?)? {
                Kept::Value(value) => Some(value),
                Kept::Marker { .. } => None,
            },
            Change::PutCurrent(_)
            | Change::KeepCurrent
            | Change::PutMarker(_)
            | Change::PromoteKept(_) => None,
        }
    }

    pub fn position(&self, version: VersionId) -> Option<usize> {
        self.kept.iter().position(|kept| kept.version() == version)
    }
}

/// The bytes of a value in a [`MemoryStore`](crate::MemoryStore).
#[derive(Debug)]
pub struct MemoryBody {
    chunks: Arc<[Buf]>,
    next: usize,
    /// Where the next chunk begins in the value.
    offset: u64,
    range: Range<u64>,
}

impl MemoryBody {
    pub(super) fn new(chunks: Arc<[Buf]>, range: Range<u64>) -> MemoryBody {
        MemoryBody {
            chunks,
            next: 0,
            offset: 0,
            range,
        }
    }
}

impl Body for MemoryBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        while self.offset < self.range.end
            && let Some(chunk) = self.chunks.get(self.next)
        {
            let begin = self.offset;
            let end = begin + chunk.len() as u64;
            self.next += 1;
            self.offset = end;
            let wanted = begin.max(self.range.start)..end.min(self.range.end);
            if wanted.start < wanted.end {
                let slice = (wanted.start - begin) as usize..(wanted.end - begin) as usize;
                return Ok(Some(chunk.slice(slice)));
            }
        }
        Ok(None)
    }
}
