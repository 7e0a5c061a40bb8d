//! What namespaces hold, for whoever asks: not what is past its time, dropped or not.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use forebay_io::Disk;
use forebay_store::Usage;

use crate::Result;
use crate::core::Core;
use crate::keys::{self, Table};
use crate::namespaces::stored_usage;

/// How often it is counted what namespaces hold while some of it is being dropped.
const COUNTS_MAX: usize = 2;
/// Rows looked at in one step.
const STEP: usize = 256;

impl<D: Disk> Core<D> {
    /// What namespaces hold that is not past its time. Both are told by rows that everybody sees: what is about to be dropped is counted
    /// and past its time until it is neither. Where much is dropped all the time it may be less by what one group drops.
    pub fn used(&self, ids: &BTreeSet<u32>) -> Result<Usage> {
        let mut before = self.counted(ids)?;
        let mut counts = 0;
        loop {
            let from = self.expires_from.load(SeqCst);
            let expired = self.expired(ids, from)?;
            let counted = self.counted(ids)?;
            counts += 1;
            // Else some of it may have been dropped between the looks, or put there with an earlier time.
            let is_one_moment = expired == Usage::default() || counted == before;
            let is_from_first = from <= self.expires_from.load(SeqCst);
            if is_one_moment && is_from_first || counts == COUNTS_MAX {
                return Ok(counted.less(expired));
            }
            before = counted;
        }
    }

    fn counted(&self, ids: &BTreeSet<u32>) -> Result<Usage> {
        ids.iter().try_fold(Usage::default(), |sum, id| {
            Ok(sum.plus(stored_usage(&self.tables, *id)?))
        })
    }

    /// What is counted for namespaces but past its time, of what expires at `from` or later, as far as rows that are whole tell.
    fn expired(&self, ids: &BTreeSet<u32>, from: u64) -> Result<Usage> {
        let view = self.view();
        let until = view.now.checked_add(1).map(|next| next.to_be_bytes());
        let mut from = from.to_be_bytes().to_vec();
        let mut expired = Usage::default();
        loop {
            let until = until.as_ref().map(|until| &until[..]);
            let scan = view.survey(Table::Expiry, &from, until, STEP)?;
            for (_, row) in scan.rows {
                if let Some((size, key)) = row.split_first_chunk()
                    && let Some((namespace, space, _)) = keys::split_current(key)
                    && ids.contains(&namespace)
                {
                    expired = expired.plus(Usage::of(space, u64::from_le_bytes(*size)));
                }
            }
            match scan.next {
                Some(next) => from = next,
                None => return Ok(expired),
            }
        }
    }
}
