//! Dropping what is past its time.

use forebay_io::Disk;
use forebay_store::{Durability, Result, Usage};

use crate::draft::{Draft, Slot};
use crate::index::corrupt;
use crate::keys;
use crate::keys::Table;

use super::{Decider, SWEEP_MAX};

impl<D: Disk> Decider<D> {
    /// Drops some of what is past its time.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let until = self.now.checked_add(1).map(|next| next.to_be_bytes());
        let until = until.as_ref().map(|until| &until[..]);
        let due = self.view().scan(Table::Expiry, &[], until, SWEEP_MAX)?;
        for (expiry, row) in &due.rows {
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
        }
        let rest = self.view().scan(Table::Expiry, &[], None, 1)?;
        self.next_expiry = rest
            .rows
            .first()
            .and_then(|(key, _)| keys::split_expiry(key))
            .map_or(u64::MAX, |(expires, _)| expires);
        Ok(())
    }
}
