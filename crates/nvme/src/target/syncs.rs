//! Syncs of one file, shared by all who wait for one.

use std::sync::Arc;

use forebay_io::File;
use forebay_proto::nvme::Status;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use parking_lot::Mutex;

use super::status::of_change;

/// At most one sync is with the device, and at most one waits for its end: whoever comes meanwhile shares that one. So hosts that flush
/// often take one of the threads that block, and not all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Syncs(Arc<Inner>);

type Next = BoxFuture<'static, Result<(), Status>>;

#[derive(Debug, Default)]
struct Inner {
    /// Held while one is with the device.
    with_device: Arc<tokio::sync::Mutex<()>>,
    /// The one that has not begun.
    waiting: Mutex<Option<WeakShared<Next>>>,
}

impl Syncs {
    /// Makes what was written before this call durable.
    pub(super) async fn sync<F: File>(&self, file: &F) -> Result<(), Status> {
        let shared = {
            let mut waiting = self.0.waiting.lock();
            let known = waiting.as_ref().and_then(WeakShared::upgrade);
            known.unwrap_or_else(|| {
                let made = self.clone().next(file.clone()).boxed().shared();
                *waiting = made.downgrade();
                made
            })
        };
        shared.await
    }

    async fn next<F: File>(self, file: F) -> Result<(), Status> {
        let alone = self.0.with_device.clone().lock_owned().await;
        // Whoever comes from now on may have written what this one misses.
        *self.0.waiting.lock() = None;
        let synced = tokio::task::spawn_blocking(move || {
            let synced = file.sync_data();
            drop(alone);
            synced
        });
        match synced.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(of_change(&error)),
            Err(_) => Err(Status::INTERNAL_ERROR),
        }
    }
}
