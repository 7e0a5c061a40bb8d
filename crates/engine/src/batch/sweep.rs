//! Dropping what is past its time.

use bytes::Bytes;
use forebay_io::Disk;
use forebay_store::listing::next_key;
use forebay_store::{Durability, Result, Usage};

use crate::draft::{Draft, Slot};
use crate::index::corrupt;
use crate::keys;
use crate::keys::Table;
use crate::view::View;

use super::{Decider, SWEEP_MAX};

impl<D: Disk> Decider<D> {
    /// Drops some of what is past its time.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let mut from = keys::expiry(self.next_expiry.0, self.next_expiry.1).to_vec();
        let until = self.now.checked_add(1).map(u64::to_be_bytes);
        let until = until.as_ref().map(|until| &until[..]);
        for (expiry, row) in &expiring(self.view(), &from, until, SWEEP_MAX)? {
            if self.is_full() {
                break;
            }
            let found = keys::split_expiry(expiry).zip(row.get(8..).and_then(keys::split_current));
            let Some(((_, sequence), (namespace, space, key))) = found else {
                return Err(corrupt("a time of expiry"));
            };
            let slot = Slot {
                namespace,
                space,
                key,
            };
            let view = self.view();
            let mut draft = Draft::default();
            let current = view.current(namespace, space, key)?;
            match current.filter(|current| current.sequence() == sequence) {
                Some(current) => draft.drop_current(view, slot, &current)?,
                None => {
                    if let Some(kept) = view.kept_at(namespace, key, sequence)? {
                        draft.drop_kept(view, slot, &kept)?;
                    }
                }
            }
            draft.record.remove(Table::Expiry, expiry.clone());
            // The namespace may be gone, and its account with it.
            if self
                .core
                .ledger
                .settle(namespace, Usage::default(), draft.lost, None)
                .is_ok()
            {
                self.batch.touched.insert(namespace);
            }
            self.batch.take(draft, Durability::Sync);
            from = next_key(expiry);
        }
        self.next_expiry = first_expiry(self.view(), &from)?;
        Ok(())
    }
}

/// Time and sequence of what expires first, from `from` on.
pub(super) fn first_expiry(view: View<'_>, from: &[u8]) -> Result<(u64, u64)> {
    match expiring(view, from, None, 1)?.first() {
        Some((key, _)) => keys::split_expiry(key).ok_or_else(|| corrupt("a time of expiry")),
        None => Ok((u64::MAX, u64::MAX)),
    }
}

/// The first rows of what expires, at most `most`. A scan also counts rows that were removed lately, and may find nothing else.
fn expiring(
    view: View<'_>,
    from: &[u8],
    until: Option<&[u8]>,
    most: usize,
) -> Result<Vec<(Bytes, Bytes)>> {
    let mut from = from.to_vec();
    let mut found = Vec::new();
    loop {
        let scan = view.scan(Table::Expiry, &from, until, SWEEP_MAX)?;
        found.extend(scan.rows);
        match scan.next {
            Some(next) if found.len() < most => from = next,
            _ => {
                found.truncate(most);
                return Ok(found);
            }
        }
    }
}
