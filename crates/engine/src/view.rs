//! Looking entries up, for readers and for the journal, which also sees the group it is building.

use bytes::Bytes;
use forebay_store::{
    Condition, ErrorKind, NamespaceInfo, Present, Result, Space, StoreError, VersionId, Versioning,
};

use crate::codec::Malformed;
use crate::codec::Reader;
use crate::entry::{Entry, Part, Place, decode_parts};
use crate::extent::Extent;
use crate::index::{corrupt, is_of_row, of_row};
use crate::keys::{self, Table};
use crate::tables::{Memtable, Scan, Tables};

/// The tables at a time of day, with an unpublished group above them.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub tables: &'a Tables,
    pub over: Option<&'a Memtable>,
    pub now: u64,
    /// Rows looked up lately do not answer: a scrub wants to know what is stored.
    pub stored: bool,
}

/// What stands under a key.
#[derive(Debug)]
pub(crate) struct Standing {
    pub present: Present,
    pub current: Option<Entry>,
    /// A current value that is past its time, but still takes space.
    pub expired: Option<Entry>,
    /// What is wrong with the entry of the current value, which is one that nobody can tell anything of.
    pub damaged: Option<String>,
    /// The same of one of the newest kept entries: which they are is not known.
    pub kept_damaged: Option<String>,
}

impl Standing {
    /// Refuses when the condition does not hold of the current value, or nobody can tell.
    pub fn check(&self, condition: Condition) -> Result<()> {
        if condition == Condition::None {
            return Ok(());
        }
        known(&self.damaged)?;
        let etag = self.current.as_ref().map(Entry::etag).transpose();
        if condition.holds(etag.map_err(malformed)?.as_ref()) {
            return Ok(());
        }
        Err(StoreError::new(
            ErrorKind::PreconditionFailed,
            "the condition does not hold of the current value",
        ))
    }

    /// Refuses to delete a version where nobody can tell which entry that is, or what would be current without it.
    pub fn check_version(
        &self,
        versioning: Versioning,
        version: VersionId,
        is_kept: bool,
    ) -> Result<()> {
        if versioning != Versioning::Off && !is_kept {
            known(&self.damaged)?;
        }
        match self.present.current {
            Some(current) if current != version => Ok(()),
            _ => known(&self.kept_damaged),
        }
    }
}

fn known(damaged: &Option<String>) -> Result<()> {
    match damaged {
        Some(what) => Err(StoreError::new(ErrorKind::Corrupt, what)),
        None => Ok(()),
    }
}

/// A version that no entry has: that of a damaged one.
const UNKNOWN_VERSION: VersionId = VersionId(u64::MAX);

impl View<'_> {
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        match self.over.and_then(|over| over.get(table, key)) {
            Some(row) => Ok(row.clone()),
            None if self.stored => self.tables.get_stored(table, key),
            None => self.tables.get(table, key),
        }
    }

    pub fn scan(
        &self,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan> {
        self.tables.scan(self.over, table, from, until, limit)
    }

    /// The same, going on after damaged rows.
    pub fn survey(
        &self,
        table: Table,
        from: &[u8],
        until: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan> {
        self.tables.survey(self.over, table, from, until, limit)
    }

    fn entry(&self, table: Table, key: &[u8]) -> Result<Option<Entry>> {
        self.get(table, key)?
            .map(|encoded| Entry::adopt(encoded).map_err(|_| of_row(corrupt("an entry"))))
            .transpose()
    }

    /// The current value, expired or not.
    pub fn current(&self, namespace: u32, space: Space, key: &[u8]) -> Result<Option<Entry>> {
        keys::with_current(namespace, space, key, |row_key| {
            self.entry(Table::Current, row_key)
        })
    }

    /// The kept entry of a version, expired or not.
    pub fn kept(&self, namespace: u32, key: &[u8], version: VersionId) -> Result<Option<Entry>> {
        let Some(sequence) = self.kept_sequence(namespace, key, version)? else {
            return Ok(None);
        };
        let entry = self.kept_at(namespace, key, sequence)?;
        Ok(entry.filter(|entry| entry.version() == version))
    }

    /// The sequence that a version has if it is kept.
    pub fn kept_sequence(
        &self,
        namespace: u32,
        key: &[u8],
        version: VersionId,
    ) -> Result<Option<u64>> {
        let VersionId::NULL = version else {
            return Ok(Some(version.0));
        };
        let row = self.get(Table::KeptNull, &keys::kept_null(namespace, key))?;
        row.map(|row| Reader::new(&row).u64())
            .transpose()
            .map_err(|_| corrupt("a null version"))
    }

    pub fn kept_at(&self, namespace: u32, key: &[u8], sequence: u64) -> Result<Option<Entry>> {
        self.entry(Table::Kept, &keys::kept(namespace, key, sequence))
    }

    /// The newest kept entry with a lesser sequence that is not expired.
    pub fn kept_before(&self, namespace: u32, key: &[u8], sequence: u64) -> Result<Option<Entry>> {
        let until = keys::after_prefix(&keys::kept_prefix(namespace, key));
        let mut from = keys::kept_before(namespace, key, sequence);
        loop {
            let scan = self.scan(Table::Kept, &from, until.as_deref(), 1)?;
            for (_, encoded) in scan.rows {
                let entry = Entry::adopt(encoded).map_err(|_| of_row(corrupt("an entry")))?;
                if !entry.is_expired(self.now) {
                    return Ok(Some(entry));
                }
            }
            match scan.next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }

    /// What `versions::plan_store` wants to know. Expired entries are not there; damaged ones are, of no version that is known. Kept entries
    /// are not looked for where nothing becomes of them.
    pub fn present(&self, namespace: &NamespaceInfo, space: Space, key: &[u8]) -> Result<Standing> {
        let versioning = versioning(namespace, space);
        let (found, damaged) = unless_damaged(self.current(namespace.id, space, key))?;
        let (current, expired) = match found {
            Some(entry) if entry.is_expired(self.now) => (None, Some(entry)),
            found => (found, None),
        };
        let mut present = Present {
            current: current.as_ref().map(Entry::version),
            ..Present::default()
        };
        if damaged.is_some() {
            present.current = Some(match versioning {
                Versioning::Off => VersionId::NULL,
                Versioning::Enabled | Versioning::Suspended => UNKNOWN_VERSION,
            });
        }
        if versioning == Versioning::Suspended {
            let (kept_null, damaged) =
                unless_damaged(self.kept(namespace.id, key, VersionId::NULL))?;
            present.kept_null = damaged.is_some() || kept_null.is_some();
        }
        Ok(Standing {
            present,
            current,
            expired,
            damaged,
            kept_damaged: None,
        })
    }

    /// The same for `versions::plan_delete`, by which `version` goes, if one is named: the newest kept entries too where one of them may be
    /// current then.
    pub fn present_without(
        &self,
        namespace: &NamespaceInfo,
        space: Space,
        key: &[u8],
        version: Option<VersionId>,
    ) -> Result<Standing> {
        let mut standing = self.present(namespace, space, key)?;
        let Some(version) = version.filter(|_| versioning(namespace, space) != Versioning::Off)
        else {
            return Ok(standing);
        };
        let sequence = match (standing.present.current, &standing.current) {
            (Some(current), _) if current != version => return Ok(standing),
            // What is kept is older, and behind any number of removals of what was newer.
            (_, Some(current)) => current.sequence(),
            (_, None) => u64::MAX,
        };
        let kept_damaged = &mut standing.kept_damaged;
        let mut before = |sequence| -> Result<Option<Entry>> {
            let kept = self.kept_before(namespace.id, key, sequence);
            let (kept, damaged) = unless_damaged(kept)?;
            *kept_damaged = kept_damaged.take().or(damaged);
            Ok(kept)
        };
        let newest = before(sequence)?;
        let second = match &newest {
            Some(newest) if newest.is_marker() && newest.version() == version => {
                before(newest.sequence())?
            }
            _ => None,
        };
        let shown = |entry: Entry| (entry.version(), entry.is_marker());
        standing.present.newest_kept = newest.map(shown);
        standing.present.second_kept = second.map(shown);
        Ok(standing)
    }

    /// The current value or one version, as a door asks for it.
    pub fn find(
        &self,
        namespace: &NamespaceInfo,
        space: Space,
        key: &[u8],
        version: Option<VersionId>,
    ) -> Result<Entry> {
        let versioned = versioning(namespace, space) != Versioning::Off;
        let Some(version) = version else {
            let current = self.current(namespace.id, space, key)?;
            if let Some(current) = current.filter(|entry| !entry.is_expired(self.now)) {
                return Ok(current);
            }
            let error = StoreError::new(ErrorKind::NotFound, "the key holds no value");
            let newest = match versioned {
                true => self.kept_before(namespace.id, key, u64::MAX)?,
                false => None,
            };
            return Err(match newest.filter(Entry::is_marker) {
                Some(marker) => error.with_marker(marker.version()),
                None => error,
            });
        };
        let found = self.version(namespace.id, space, key, version, versioned)?;
        match found {
            None => Err(StoreError::new(
                ErrorKind::NoSuchVersion,
                "the key has no such version",
            )),
            Some(marker) if marker.is_marker() => Err(StoreError::new(
                ErrorKind::IsDeleteMarker,
                "the version is a delete marker",
            )
            .with_marker(version)),
            Some(entry) => Ok(entry),
        }
    }

    /// The entry of a version.
    fn version(
        &self,
        namespace: u32,
        space: Space,
        key: &[u8],
        version: VersionId,
        versioned: bool,
    ) -> Result<Option<Entry>> {
        let live = |entry: &Entry| !entry.is_expired(self.now);
        let look = || Ok(self.current(namespace, space, key)?.filter(live));
        let mut current = look()?;
        loop {
            if current.as_ref().map(Entry::version) == Some(version) {
                return Ok(current);
            }
            let kept = match versioned {
                true => self.kept(namespace, key, version)?.filter(live),
                false => None,
            };
            if kept.is_some() {
                return Ok(kept);
            }
            // Between the two looks a delete may have made it current again: only what did not change does without it.
            let again = look()?;
            if again == current {
                return Ok(None);
            }
            current = again;
        }
    }

    /// The parts of a joined value; `None` when it is gone.
    pub fn parts(&self, body: u64) -> Result<Option<Vec<Part>>> {
        self.get(Table::Layout, &keys::body(body))?
            .map(|row| decode_parts(&row).map_err(|_| of_row(corrupt("a layout"))))
            .transpose()
    }

    /// The extents of a body that is not inline; `None` when it is gone.
    pub fn extents(&self, place: Place) -> Result<Option<(u64, Vec<Extent>)>> {
        match place {
            Place::Empty | Place::Inline(_) | Place::Joined(_) | Place::Away(_) => Ok(None),
            Place::Extents(body, extents) => Ok(Some((body, extents))),
            Place::Layout(body) => self
                .layout(body)?
                .map(|row| Ok((body, decode_layout(&row)?)))
                .transpose(),
        }
    }

    /// The row in table layout of a body that has its extents there; `None` when it is gone.
    pub fn layout(&self, body: u64) -> Result<Option<Bytes>> {
        self.get(Table::Layout, &keys::body(body))
    }
}

/// The extents that a row in table layout tells of.
pub(crate) fn decode_layout(row: &[u8]) -> Result<Vec<Extent>> {
    let extents = Extent::decode_all(&mut Reader::new(row));
    extents.map_err(|_| of_row(corrupt("a layout")))
}

/// What was found, or what is wrong with the row where that would be.
pub(crate) fn unless_damaged<T: Default>(found: Result<T>) -> Result<(T, Option<String>)> {
    match found {
        Ok(found) => Ok((found, None)),
        Err(error) if is_of_row(&error) => Ok((T::default(), Some(error.message().to_owned()))),
        Err(error) => Err(error),
    }
}

/// Staged values are never versioned.
pub(crate) fn versioning(namespace: &NamespaceInfo, space: Space) -> Versioning {
    match space {
        Space::Objects => namespace.config.versioning,
        Space::Staging => Versioning::Off,
    }
}

pub(crate) fn malformed(_: Malformed) -> StoreError {
    corrupt("an entry")
}
