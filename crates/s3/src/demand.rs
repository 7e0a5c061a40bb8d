//! Who waits for buffers, so that those who keep them are hurried ([`crate::pace`]).
//!
//! Whoever waits for a buffer hurries everybody. Whoever waits for the share of a tenant hurries only those whose share it is: others
//! keep nothing that it may have.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::timeout;

/// Requests that have waited for buffers for a while.
#[derive(Debug)]
pub(crate) struct Demand {
    /// A shorter wait may be for a device, and hurries nobody.
    pub(crate) grace: Duration,
    waiting: AtomicUsize,
}

impl Demand {
    pub(crate) fn new(grace: Duration) -> Demand {
        Demand {
            grace,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for what takes buffers, or for what may be taken.
    pub(crate) async fn wait<F: Future>(&self, wanted: F) -> F::Output {
        let mut wanted = pin!(wanted);
        match timeout(self.grace, wanted.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                wanted.await
            }
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_there(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

/// One who waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
