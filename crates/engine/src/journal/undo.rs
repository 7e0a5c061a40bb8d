//! Groups that could not be written: withdrawn from the journal, so that what asked for them can be refused and the store goes on.
//!
//! A sync that failed is another thing: what is on the device is not known then, and the store takes no more changes.

use forebay_io::{Disk, File};
use forebay_store::{ErrorKind, StoreError};

use crate::Result;
use crate::batch::Batch;
use crate::command::Answer;
use crate::extent::GRANULE_BYTES;

use super::{Journal, failed};

/// What became of a group.
pub(super) enum Outcome {
    Published,
    /// Nothing of it will ever be found. This is why.
    Undone(StoreError),
    /// The store takes no more changes.
    Unknown,
}

/// Why a group was not written.
pub(super) enum Unwritten {
    /// Nothing of it is on the device, and never will be.
    Withdrawn(StoreError),
    /// There is no place for it: the index has no room for what is there.
    Unplaced(StoreError),
    Unknown(StoreError),
}

impl From<StoreError> for Unwritten {
    fn from(error: StoreError) -> Unwritten {
        Unwritten::Unknown(error)
    }
}

impl Unwritten {
    pub(super) fn into_cause(self) -> StoreError {
        match self {
            Unwritten::Withdrawn(error)
            | Unwritten::Unplaced(error)
            | Unwritten::Unknown(error) => error,
        }
    }
}

impl<D: Disk> Journal<D> {
    /// Makes sure that no group is found at `at`, where writing one failed.
    pub(super) fn withdraw(&mut self, at: u64, error: StoreError) -> Unwritten {
        let page = self.core.data.write_all_at(at, &[0; GRANULE_BYTES]);
        match page.map_err(failed).and_then(|()| self.sync()) {
            Ok(()) => Unwritten::Withdrawn(error),
            Err(_) => Unwritten::Unknown(error),
        }
    }

    /// Refuses what a group was to answer.
    pub(super) fn refuse(
        &mut self,
        unwritten: Unwritten,
        batch: Batch,
        answers: Vec<Answer>,
    ) -> Outcome {
        let undone_of = match unwritten {
            Unwritten::Withdrawn(error) => self.undo(batch).map(|()| error),
            Unwritten::Unplaced(error) => self.decider.undo(batch).map(|()| error),
            Unwritten::Unknown(error) => Err(error),
        };
        let cause = match undone_of {
            Ok(cause) => {
                let error: &dyn std::error::Error = &cause;
                tracing::error!(error, "changes cannot be written, and are refused");
                for answer in answers {
                    answer.refuse(|| undone(&cause));
                }
                return Outcome::Undone(cause);
            }
            Err(error) => error,
        };
        self.core.latch_read_only(&cause);
        for answer in answers {
            answer.refuse(unknown);
        }
        Outcome::Unknown
    }

    /// Goes on without a group that was withdrawn. What cannot be written may be its place in the journal: the next one gets another, unless
    /// there is none.
    fn undo(&mut self, batch: Batch) -> Result<()> {
        self.decider.undo(batch)?;
        match self.next_segment() {
            Err(Unwritten::Unplaced(_)) => Ok(()),
            begun => begun.map_err(Unwritten::into_cause),
        }
    }
}

/// What is told of a change that `cause` kept from being made.
pub(super) fn undone(cause: &StoreError) -> StoreError {
    let what = format!(
        "{}, and nothing was changed: it may succeed when it is tried again",
        cause.message()
    );
    StoreError::new(cause.kind(), what)
}

fn unknown() -> StoreError {
    StoreError::new(
        ErrorKind::OutcomeUnknown,
        "the device failed while the change was made durable",
    )
}
