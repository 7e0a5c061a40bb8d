//! Lent bytes that come back when a link has ended, whoever is still there to wait for that.

use std::mem::{ManuallyDrop, take};
use std::sync::Arc;
use std::thread;

use forebay_fabric::{CloseReason, Link};

use super::region::Loan;

/// Bytes that the server may use until its link has ended.
///
/// A task that waits for the end goes with its runtime, and the server may be at work then: this ends the link, and has a thread wait,
/// when it is dropped with bytes still lent.
pub(super) struct Kept<L: Link> {
    link: Arc<L>,
    loans: Vec<Loan>,
}

impl<L: Link> Kept<L> {
    pub(super) fn new(link: Arc<L>, loans: Vec<Loan>) -> Kept<L> {
        Kept { link, loans }
    }

    /// Nothing can land any more.
    pub(super) fn give_back(mut self) {
        self.loans.clear();
    }
}

impl<L: Link> Drop for Kept<L> {
    fn drop(&mut self) {
        if self.loans.is_empty() {
            return;
        }
        self.link.close(CloseReason::Done);
        let link = self.link.clone();
        // What cannot be waited for stays lent.
        let loans = ManuallyDrop::new(take(&mut self.loans));
        let waiting = thread::Builder::new().name("forebay-link-end".to_owned());
        let _ = waiting.spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else {
                return;
            };
            runtime.block_on(link.closed());
            drop(ManuallyDrop::into_inner(loans));
        });
    }
}
