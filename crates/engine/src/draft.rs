//! One change being decided: its record, what it frees, and what it does to usage.

use bytes::Bytes;
use forebay_store::{Attributes, Away, Change, Etag, Meta, Plan, Result, Space, Usage, VersionId};

use crate::entry::{ENTRY_EXTENTS_MAX, Entry, LAYOUT_EXTENTS_MAX, Part, Place, encode_parts};
use crate::extent::{Extent, Run};
use crate::findings::Finding;
use crate::group::{ENCODED_RUN_BYTES, Record};
use crate::index::{corrupt, of_row};
use crate::keys::{self, Table};
use crate::reclaim::Freed;
use crate::view::{Standing, View, malformed, unless_damaged};

/// Collects a change; nothing happens until the journal takes it.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub record: Record,
    pub freed: Vec<Freed>,
    /// Where bytes were that were let go, of values that end or have them back.
    pub forgotten: Vec<Away>,
    pub grown: Usage,
    pub lost: Usage,
    /// What is in `grown` and no quota is asked for.
    pub exempt: Usage,
    /// Namespaces, and what is wrong with values of theirs that end: what those took stays taken, as far as only damaged rows tell.
    pub losses: Vec<(u32, Finding)>,
    /// The earliest time at which something put here expires.
    pub expires: Option<u64>,
    /// While the record is shorter, values are freed at once; without it all but the shortest are left to the sweep.
    freeing_bytes_max: u64,
}

/// Which key a draft changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub namespace: u32,
    pub space: Space,
    pub key: &'a [u8],
}

impl Slot<'_> {
    fn current(&self) -> Bytes {
        keys::current(self.namespace, self.space, self.key)
    }
}

/// Where bodies are that are left to be freed: among the kept entries of a key that nobody can name, in a namespace that never is. They
/// weigh nothing, and expired at the beginning of time.
const LEFT: Slot<'_> = Slot {
    namespace: 0,
    space: Space::Staging,
    key: &[],
};
const LEFT_EXPIRES: u64 = 0;

/// What a record takes to remove a row of table layout or inline.
const ENCODED_REMOVAL_BYTES: usize = 18;

impl Draft {
    /// One that frees values at once while its record is shorter than this.
    pub fn new(freeing_bytes_max: u64) -> Draft {
        Draft {
            freeing_bytes_max,
            ..Draft::default()
        }
    }

    /// Carries out the steps of a plan. `value` makes what `PutCurrent` puts, from its version.
    pub fn carry_out(
        &mut self,
        view: View<'_>,
        slot: Slot<'_>,
        plan: &Plan,
        standing: &Standing,
        fresh: u64,
        mut value: impl FnMut(VersionId) -> Entry,
    ) -> Result<()> {
        for change in plan {
            match *change {
                Change::PutCurrent(version) => {
                    let entry = value(version);
                    self.grown = self.grown.plus(Usage::of(slot.space, entry.size()));
                    self.put_current(slot, &entry);
                }
                Change::KeepCurrent => match &standing.current {
                    Some(current) => {
                        self.record.remove(Table::Current, slot.current());
                        self.keep(slot, current);
                    }
                    None => self.lose_current(slot, standing),
                },
                Change::DropCurrent => match &standing.current {
                    Some(current) => self.drop_current(view, slot, current)?,
                    None => self.lose_current(slot, standing),
                },
                Change::DropKept(version) => {
                    let kept = view.kept(slot.namespace, slot.key, version);
                    let (kept, damaged) = unless_damaged(kept)?;
                    if let Some(what) = damaged {
                        self.lose_kept(view, slot, version, &what)?;
                    }
                    if let Some(kept) = kept {
                        self.unkeep(slot, &kept);
                        match kept.is_marker() {
                            true => self.lost = self.lost.plus(Usage::MARKER),
                            false => self.drop_value(view, slot, &kept)?,
                        }
                    }
                }
                Change::PutMarker(version) => {
                    self.grown = self.grown.plus(Usage::MARKER);
                    self.keep(slot, &Entry::marker(fresh, version, view.now));
                }
                Change::PromoteKept(version) => {
                    if let Some(kept) = view.kept(slot.namespace, slot.key, version)? {
                        self.unkeep(slot, &kept);
                        self.record
                            .put(Table::Current, slot.current(), kept.encoded().clone());
                    }
                }
            }
        }
        Ok(())
    }

    pub fn put_current(&mut self, slot: Slot<'_>, entry: &Entry) {
        let key = slot.current();
        self.put_expiry(slot, entry);
        self.record
            .put(Table::Current, key, entry.encoded().clone());
    }

    fn put_expiry(&mut self, slot: Slot<'_>, entry: &Entry) {
        if let Some(expires) = entry.expires() {
            let row = [&entry.size().to_le_bytes()[..], &slot.current()].concat();
            let expiry = keys::expiry(expires, entry.sequence());
            self.record.put(Table::Expiry, expiry, row.into());
            self.expires = Some(self.expires.map_or(expires, |earlier| earlier.min(expires)));
        }
    }

    fn keep(&mut self, slot: Slot<'_>, entry: &Entry) {
        let key = keys::kept(slot.namespace, slot.key, entry.sequence());
        self.record.put(Table::Kept, key, entry.encoded().clone());
        if entry.version() == VersionId::NULL {
            let sequence = entry.sequence().to_le_bytes().to_vec();
            let key = keys::kept_null(slot.namespace, slot.key);
            self.record.put(Table::KeptNull, key, sequence.into());
        }
    }

    /// Puts a kept entry back, changed.
    pub fn rewrite_kept(&mut self, slot: Slot<'_>, entry: &Entry) {
        let key = keys::kept(slot.namespace, slot.key, entry.sequence());
        self.record.put(Table::Kept, key, entry.encoded().clone());
    }

    fn unkeep(&mut self, slot: Slot<'_>, entry: &Entry) {
        self.remove_kept(slot, entry.sequence(), entry.version());
    }

    fn remove_kept(&mut self, slot: Slot<'_>, sequence: u64, version: VersionId) {
        let key = keys::kept(slot.namespace, slot.key, sequence);
        self.record.remove(Table::Kept, key);
        if version == VersionId::NULL {
            let key = keys::kept_null(slot.namespace, slot.key);
            self.record.remove(Table::KeptNull, key);
        }
    }

    /// Takes the current entry out although it is damaged.
    fn lose_current(&mut self, slot: Slot<'_>, standing: &Standing) {
        if let Some(what) = &standing.damaged {
            self.record.remove(Table::Current, slot.current());
            self.lose_entry(slot, VersionId::NULL, what);
        }
    }

    /// The same of the kept entry of a version.
    fn lose_kept(
        &mut self,
        view: View<'_>,
        slot: Slot<'_>,
        version: VersionId,
        what: &str,
    ) -> Result<()> {
        if let Some(sequence) = view.kept_sequence(slot.namespace, slot.key, version)? {
            self.remove_kept(slot, sequence, version);
            self.lose_entry(slot, version, what);
        }
        Ok(())
    }

    /// An entry of an object counts as one, whatever it was. How many bytes it counted is not known: they stay counted.
    fn lose_entry(&mut self, slot: Slot<'_>, version: VersionId, what: &str) {
        if slot.space == Space::Objects {
            self.lost = self.lost.plus(Usage::MARKER);
        }
        self.lose(slot, version, what);
    }

    fn lose(&mut self, slot: Slot<'_>, version: VersionId, what: &str) {
        let key = Bytes::copy_from_slice(slot.key);
        let what = format!("{what}; what its value took stays taken");
        let finding = Finding::of_row("", key, version.0, what);
        self.losses.push((slot.namespace, finding));
    }

    /// Removes a kept value or marker for good.
    pub fn drop_kept(&mut self, view: View<'_>, slot: Slot<'_>, kept: &Entry) -> Result<()> {
        self.unkeep(slot, kept);
        self.drop_value(view, slot, kept)
    }

    /// Removes the current value for good.
    pub fn drop_current(&mut self, view: View<'_>, slot: Slot<'_>, entry: &Entry) -> Result<()> {
        self.record.remove(Table::Current, slot.current());
        self.drop_value(view, slot, entry)
    }

    /// Takes a staged value out of its key without freeing its bytes.
    pub fn take_staged(&mut self, slot: Slot<'_>, entry: &Entry) -> Result<Place> {
        self.record.remove(Table::Current, slot.current());
        self.discount(slot, entry);
        entry.place().map_err(malformed)
    }

    fn drop_value(&mut self, view: View<'_>, slot: Slot<'_>, entry: &Entry) -> Result<()> {
        self.discount(slot, entry);
        self.free(view, slot, entry)
    }

    fn discount(&mut self, slot: Slot<'_>, entry: &Entry) {
        self.lost = self.lost.plus(Usage::of(slot.space, entry.size()));
        if let Some(expires) = entry.expires() {
            let key = keys::expiry(expires, entry.sequence());
            self.record.remove(Table::Expiry, key);
        }
    }

    /// Frees the bytes of a value. What the record has no room for is left to the sweep: nothing else refers to it any more. Where a
    /// layout is damaged they stay taken.
    pub fn free(&mut self, view: View<'_>, slot: Slot<'_>, entry: &Entry) -> Result<()> {
        let place = entry.place().map_err(malformed)?;
        match place {
            Place::Joined(body) => {
                let mut len = self.record.encoded_len() as u64;
                let Some(mut parts) = self.layout(slot, entry, view.parts(body))? else {
                    return Ok(());
                };
                let count = parts.len();
                while len < self.freeing_bytes_max
                    && let Some((_, part)) = parts.pop()
                {
                    let (rows, runs) = (self.record.rows.len(), self.record.freed.len());
                    self.free_part(view, slot, entry, part)?;
                    let rows = (self.record.rows.len() - rows) * ENCODED_REMOVAL_BYTES;
                    let runs = (self.record.freed.len() - runs) * ENCODED_RUN_BYTES;
                    len += (rows + runs) as u64;
                }
                if parts.is_empty() {
                    self.record.remove(Table::Layout, keys::body(body));
                } else {
                    if parts.len() < count {
                        self.join(&parts, body);
                    }
                    self.leave(body, &place);
                }
                Ok(())
            }
            Place::Layout(body) if self.record.encoded_len() as u64 >= self.freeing_bytes_max => {
                self.leave(body, &place);
                Ok(())
            }
            place => self.free_part(view, slot, entry, place),
        }
    }

    /// A layout that has to be there. Where it is damaged, what its value took stays taken.
    fn layout<T>(
        &mut self,
        slot: Slot<'_>,
        entry: &Entry,
        found: Result<Option<T>>,
    ) -> Result<Option<T>> {
        let found = match found {
            Ok(None) => Err(of_row(corrupt("a layout"))),
            found => found,
        };
        let (found, damaged) = unless_damaged(found)?;
        if let Some(what) = damaged {
            self.lose(slot, entry.version(), &what);
        }
        Ok(found)
    }

    fn free_part(
        &mut self,
        view: View<'_>,
        slot: Slot<'_>,
        entry: &Entry,
        place: Place,
    ) -> Result<()> {
        match place {
            Place::Empty => {}
            Place::Away(away) => self.forgotten.push(away),
            Place::Inline(body) => self.record.remove(Table::Inline, keys::body(body)),
            Place::Extents(body, extents) => self.free_extents(body, &extents, false),
            Place::Layout(body) => {
                let extents = self.layout(slot, entry, view.extents(place))?;
                if let Some((_, extents)) = extents {
                    self.record.remove(Table::Layout, keys::body(body));
                    self.free_extents(body, &extents, true);
                }
            }
            // No part is joined itself.
            Place::Joined(_) => return Err(corrupt("a layout")),
        }
        Ok(())
    }

    /// Leaves a body, or the rest of one, where the sweep finds it.
    fn leave(&mut self, body: u64, place: &Place) {
        let meta = Meta {
            size: 0,
            etag: Etag::of_value(0, 0),
            modified: LEFT_EXPIRES,
            version: VersionId(body),
            crc64nvme: 0,
            expires: Some(LEFT_EXPIRES),
            attributes: Attributes::default(),
        };
        let entry = Entry::value(body, &meta, place);
        self.put_expiry(LEFT, &entry);
        self.rewrite_kept(LEFT, &entry);
    }

    fn free_extents(&mut self, body: u64, extents: &[Extent], laid_out: bool) {
        let mut runs: Vec<Run> = Vec::new();
        for run in extents.iter().map(Extent::run) {
            match runs.last_mut() {
                Some(last)
                    if last.end() == run.start
                        && last.granules.checked_add(run.granules).is_some() =>
                {
                    last.granules += run.granules;
                }
                _ => runs.push(run),
            }
        }
        self.record.freed.extend_from_slice(&runs);
        self.freed.push(Freed {
            body,
            extents: extents.len(),
            laid_out,
            runs,
        });
    }

    /// Gives extents that a value was written to their place in the tables.
    pub fn place_extents(&mut self, extents: Vec<Extent>, mut fresh: impl FnMut() -> u64) -> Place {
        self.record.written.extend_from_slice(&extents);
        if extents.len() <= ENTRY_EXTENTS_MAX {
            return Place::Extents(fresh(), extents);
        }
        let mut parts: Vec<Part> = extents
            .chunks(LAYOUT_EXTENTS_MAX)
            .map(|extents| {
                let body = fresh();
                let mut row = Vec::new();
                Extent::encode_all(extents, &mut row);
                self.record.put(Table::Layout, keys::body(body), row.into());
                let size = extents.iter().map(|extent| u64::from(extent.bytes)).sum();
                (size, Place::Layout(body))
            })
            .collect();
        match parts.pop() {
            Some((_, only)) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                self.join(&parts, fresh())
            }
        }
    }

    /// Joins parts, none of them joined itself, under the unused id `body`.
    pub fn join(&mut self, parts: &[Part], body: u64) -> Place {
        self.record
            .put(Table::Layout, keys::body(body), encode_parts(parts));
        Place::Joined(body)
    }
}

/// An entry with other attributes.
pub(crate) fn amended(entry: &Entry, meta: &Meta) -> Result<Entry> {
    let place = entry.place().map_err(malformed)?;
    Ok(Entry::value(entry.sequence(), meta, &place))
}
