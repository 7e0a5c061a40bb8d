//! Dropping what is past its time.

use std::time::Duration;

use bytes::Bytes;
use forebay_io::Disk;
use forebay_store::listing::next_key;
use forebay_store::{Durability, ErrorKind, Result, StoreError, Usage, VersionId, Versioning};

use crate::command::Command;
use crate::draft::{Draft, Slot};
use crate::findings::Finding;
use crate::index::{Tour, corrupt, is_damage};
use crate::keys;
use crate::keys::Table;
use crate::passage::behind;
use crate::view::versioning;

use super::{Decider, SWEEP_MAX};

/// Changes that wait have a sweep end after so long: when the value that it is at is dropped.
const SWEEP_FOR: Duration = Duration::from_millis(2);
/// After so long what could not be read is looked at again; after twice as long each time that some cannot be read even then.
pub(super) const AGAIN_MS: u64 = 60_000;
const AGAIN_MS_MAX: u64 = 3_600_000;
/// Places that could not be read for one group: nobody is to wait for more.
const UNREAD_MAX: usize = 16;
/// Places are not told apart further than by so many bytes.
const PLACE_BYTES_MAX: usize = 2 << 10;
/// Rows remembered as noted. Further ones are not listed: there is no room among the findings either.
const PASSED_OVER_MAX: usize = 1000;

/// Rows of table expiry, in order.
#[derive(Default)]
struct Expiring {
    rows: Vec<(Bytes, Bytes)>,
    /// Nothing that follows them can be read.
    is_cut: bool,
}

impl<D: Disk> Decider<D> {
    /// Whether anything may be past its time.
    pub(super) fn is_due(&self) -> bool {
        time_of(&self.next_expiry) <= self.now || self.is_again()
    }

    /// Whether what could not be read is to be looked at again.
    fn is_again(&self) -> bool {
        self.again_at.is_some_and(|at| at <= self.now)
    }

    /// Nothing that is there once the group is published expires before this time, in milliseconds since 1970.
    pub fn expires_from(&self) -> u64 {
        time_of(&self.next_expiry).min(self.passed_from)
    }

    /// Something expires at `time`.
    pub(super) fn expires_at(&mut self, time: u64) {
        let first = keys::expiry(time, 0);
        if first < self.next_expiry {
            self.next_expiry = first;
        }
    }

    /// Drops some of what is past its time; tells whether that is as much as a group may. What is damaged or cannot be read is passed over: it
    /// stops nothing else.
    pub(super) fn sweep(&mut self) -> bool {
        let tour = Tour::begin();
        let begun = self.core.clock.monotonic();
        if self.is_again() {
            self.again_at = None;
            self.again_ms = AGAIN_MS_MAX.min(2 * self.again_ms);
            self.next_expiry = Bytes::new();
            self.passed_from = u64::MAX;
        }
        let mut from = self.next_expiry.to_vec();
        let until = self.now.checked_add(1).map(u64::to_be_bytes);
        let until = until.as_ref().map(|until| &until[..]);
        let mut left = None;
        let mut is_enough = false;
        for (expiry, row) in &self.expiring(&from, until, SWEEP_MAX).rows {
            left = left.or(self.expire(expiry, row));
            from = next_key(expiry);
            let is_long = self.core.clock.monotonic().saturating_sub(begun) >= SWEEP_FOR;
            is_enough = self.is_full() || is_long && self.is_waited_for();
            if is_enough || tour.unread() > UNREAD_MAX {
                break;
            }
        }
        self.next_expiry = self.first_expiry(&from);
        if let Some(time) = left {
            self.expires_at(time);
        }
        if self.again_at.is_none() && !self.is_due() {
            self.again_ms = AGAIN_MS;
        }
        is_enough
    }

    /// Whether anybody has asked for more than a sweep.
    fn is_waited_for(&self) -> bool {
        let is_change = |command: &Command| !matches!(command, Command::Sweep(_));
        self.core
            .queue
            .with(|waiting| waiting.iter().any(is_change))
    }

    /// The key in table expiry of what expires first, from `from` on. Where that cannot be told it is looked for later.
    pub(super) fn first_expiry(&mut self, from: &[u8]) -> Bytes {
        let found = self.expiring(from, None, 1);
        match found.rows.into_iter().next() {
            Some((key, _)) => key,
            None if found.is_cut => keys::expiry(self.now.saturating_add(AGAIN_MS), 0),
            None => keys::expiry(u64::MAX, u64::MAX),
        }
    }

    /// The first rows of what expires, at most `most`. A scan also counts rows that were removed lately, and may find nothing else.
    fn expiring(&mut self, from: &[u8], until: Option<&[u8]>, most: usize) -> Expiring {
        let tour = Tour::begin();
        let mut from = from.to_vec();
        let mut step = SWEEP_MAX;
        let mut found = Expiring::default();
        loop {
            let surveyed = self.view().survey(Table::Expiry, &from, until, step);
            let scan = match surveyed {
                // What there is before the place that is in the way comes one by one.
                Err(_) if step > 1 => {
                    step = 1;
                    continue;
                }
                Err(error) => {
                    self.pass_over(Bytes::new(), None, &error);
                    let goes_on = is_damage(&error) && tour.unread() <= UNREAD_MAX;
                    let nearest = goes_on.then(|| self.behind(&from));
                    let Some(next) = nearest.flatten() else {
                        found.is_cut = true;
                        return found;
                    };
                    (from, step) = (next, SWEEP_MAX);
                    continue;
                }
                Ok(scan) => scan,
            };
            for (expiry, error) in scan.damaged {
                self.pass_over(expiry, None, &error);
            }
            found.rows.extend(scan.rows);
            match scan.next {
                Some(next) if found.rows.len() < most => from = next,
                _ => {
                    found.rows.truncate(most);
                    return found;
                }
            }
        }
    }

    /// What can be read of table expiry behind a place where nothing can.
    fn behind(&self, from: &[u8]) -> Option<Vec<u8>> {
        behind(self.view(), Table::Expiry, from, PLACE_BYTES_MAX)
    }

    /// Drops what a row of table expiry names; the time at which what it leaves expires.
    fn expire(&mut self, expiry: &Bytes, row: &Bytes) -> Option<u64> {
        let found = keys::split_expiry(expiry).zip(row.get(8..).and_then(keys::split_current));
        let Some(((_, sequence), (namespace, space, key))) = found else {
            self.pass_over(expiry.clone(), None, &corrupt("a time of expiry"));
            return None;
        };
        let slot = Slot {
            namespace,
            space,
            key,
        };
        let mut draft = match self.drop_expired(expiry.clone(), slot, sequence) {
            Ok(draft) => draft,
            Err(error) => {
                self.pass_over(expiry.clone(), Some((slot, sequence)), &error);
                return None;
            }
        };
        let left = draft.expires;
        // The namespace may be gone, and its account with it.
        let nothing = Usage::default();
        if self
            .core
            .ledger
            .settle(namespace, nothing, nothing, draft.lost, None)
            .is_ok()
        {
            self.batch.touched.insert(namespace);
        }
        self.note(std::mem::take(&mut draft.losses));
        self.batch.take(draft, Durability::Sync);
        left
    }

    fn drop_expired(&self, expiry: Bytes, slot: Slot<'_>, sequence: u64) -> Result<Draft> {
        let view = self.view();
        let mut draft = self.draft();
        draft.record.remove(Table::Expiry, expiry);
        let current = view.current(slot.namespace, slot.space, slot.key)?;
        match current.filter(|current| current.sequence() == sequence) {
            Some(current) => draft.drop_current(view, slot, &current)?,
            None => {
                if let Some(kept) = view.kept_at(slot.namespace, slot.key, sequence)? {
                    draft.drop_kept(view, slot, &kept)?;
                }
            }
        }
        self.check(&draft)?;
        Ok(draft)
    }

    /// Leaves a row of table expiry where it is, for a while if it may be read later. That it is damaged, or was lost by the medium, is noted
    /// once, with the value that it names as far as that is known.
    fn pass_over(&mut self, expiry: Bytes, of: Option<(Slot<'_>, u64)>, error: &StoreError) {
        self.passed_from = self.passed_from.min(time_of(&expiry));
        if error.kind() == ErrorKind::Io {
            let at = self.now.saturating_add(self.again_ms);
            self.again_at = self.again_at.or(Some(at));
            if !is_damage(error) {
                // There is no way to it now, which says nothing of what is there.
                return;
            }
        }
        if self.passed_over.len() == PASSED_OVER_MAX || !self.passed_over.insert(expiry) {
            return;
        }
        let what = error.message().to_owned();
        let named = of.and_then(|(slot, sequence)| {
            let namespace = self.core.registry.read().by_id(slot.namespace).cloned()?;
            let version = match versioning(&namespace, slot.space) {
                Versioning::Off => VersionId::NULL.0,
                Versioning::Enabled | Versioning::Suspended => sequence,
            };
            Some((namespace, Bytes::copy_from_slice(slot.key), version))
        });
        self.core.note_for_good(match named {
            Some((namespace, key, version)) => Finding::of_row(&namespace.name, key, version, what),
            None => Finding::of_nobody(what),
        });
    }
}

/// When what a key in table expiry names expires; the beginning of time where it does not tell.
fn time_of(expiry: &[u8]) -> u64 {
    expiry
        .first_chunk()
        .map_or(0, |time| u64::from_be_bytes(*time))
}
