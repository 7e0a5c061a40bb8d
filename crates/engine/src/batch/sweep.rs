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
        for (expiry, row) in &self.due(from.clone())? {
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

    /// Some rows of what is past its time, from `from` on.
    fn due(&self, mut from: Vec<u8>) -> Result<Vec<(Bytes, Bytes)>> {
        let until = self.now.checked_add(1).map(u64::to_be_bytes);
        let until = until.as_ref().map(|until| &until[..]);
        let mut due = Vec::new();
        loop {
            let room = SWEEP_MAX - due.len();
            let scan = self.view().scan(Table::Expiry, &from, until, room)?;
            due.extend(scan.rows);
            match scan.next {
                Some(next) if due.len() < SWEEP_MAX => from = next,
                _ => return Ok(due),
            }
        }
    }
}

/// Time and sequence of what expires first, from `from` on. A scan also counts rows that were removed lately, and may find nothing else.
pub(super) fn first_expiry(view: View<'_>, from: &[u8]) -> Result<(u64, u64)> {
    let mut from = from.to_vec();
    loop {
        let scan = view.scan(Table::Expiry, &from, None, SWEEP_MAX)?;
        if let Some((key, _)) = scan.rows.first() {
            return keys::split_expiry(key).ok_or_else(|| corrupt("a time of expiry"));
        }
        match scan.next {
            Some(next) => from = next,
            None => return Ok((u64::MAX, u64::MAX)),
        }
    }
}
