//! Changes of the store, seen to their end: whoever asked for one may go away, and the store carries it out all the same.

use std::future::Future;
use std::time::Duration;

use forebay_store::{ErrorKind, Result, StoreError};

use crate::stripes::Changing;
use crate::write_back::Direct;

/// For so long a change of which nobody knows whether it happened may still happen: it waits where the bytes are, and was given up
/// by who waited for the answer.
const UNKNOWN: Duration = Duration::from_secs(120);

/// Makes a change of a key, which is the store's own affair meanwhile.
pub(crate) async fn make<T: Send + 'static>(
    direct: Option<Direct>,
    changing: Changing,
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    see_through(async move {
        let done = change.await;
        changing.end(is_unknown(&done));
        drop(direct);
        done
    })
    .await
}

/// Does something to its end, also when this future is dropped.
pub(crate) async fn see_through<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(change).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::new(
                ErrorKind::OutcomeUnknown,
                "the process ended while the change was under way",
            )),
        },
    }
}

/// Whether a change may have happened, or may yet.
pub(crate) fn is_unknown<T>(done: &Result<T>) -> bool {
    let error = done.as_ref().err();
    error.is_some_and(|error| error.kind() == ErrorKind::OutcomeUnknown)
}

impl Changing {
    /// It is over; when it is `unknown` how it ended, only once it cannot happen any more.
    pub(crate) fn end(self, unknown: bool) {
        if unknown {
            tokio::spawn(async move {
                tokio::time::sleep(UNKNOWN).await;
                drop(self);
            });
        }
    }
}
