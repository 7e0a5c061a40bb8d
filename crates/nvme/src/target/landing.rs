//! Changes that are with a device. They cannot be taken back: when their command is given up they go on, and whoever comes after
//! them must not be overtaken by them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// The changes of one file that are with its device.
#[derive(Debug, Clone, Default)]
pub(super) struct UnderWay(Arc<RwLock<()>>);

impl UnderWay {
    /// Counts one more, until the guard is dropped.
    pub(super) async fn begin(&self) -> OwnedRwLockReadGuard<()> {
        self.0.clone().read_owned().await
    }

    /// Waits until none is left of those that have begun.
    pub(super) async fn settled(&self) {
        drop(self.0.write().await);
    }

    /// Makes a change, to its end also when this future is dropped.
    pub(super) async fn make(
        &self,
        change: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<()> {
        let guard = self.begin().await;
        let change = Box::pin(async move {
            let done = change.await;
            drop(guard);
            done
        });
        let change = Landing {
            change: Some(change),
            begun: false,
        };
        change.await
    }
}

/// A change that goes on when nobody waits for it any more.
struct Landing {
    change: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
    begun: bool,
}

impl Future for Landing {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begun = true;
        let Some(change) = &mut self.change else {
            return Poll::Pending;
        };
        let done = change.as_mut().poll(context);
        if done.is_ready() {
            self.change = None;
        }
        done
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let (Some(change), true, Ok(runtime)) =
            (self.change.take(), self.begun, Handle::try_current())
        {
            // Whether it succeeded, nobody asks any more.
            runtime.spawn(async move { drop(change.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_was_given_up_is_waited_for() {
        let under_way = UnderWay::default();
        let (land, landed) = oneshot::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let mut change = Box::pin(under_way.make(async move {
            landed.await.map_err(io::Error::other)?;
            seen.store(true, Relaxed);
            Ok(())
        }));
        assert!(change.as_mut().now_or_never().is_none());
        drop(change);
        let mut settled = Box::pin(under_way.settled());
        assert!(settled.as_mut().now_or_never().is_none());
        land.send(()).unwrap();
        settled.await;
        assert!(done.load(Relaxed));
    }

    #[tokio::test]
    async fn what_has_not_begun_does_not_begin_when_it_is_given_up() {
        let under_way = UnderWay::default();
        let waiting = under_way.0.write().await;
        let mut change = Box::pin(under_way.make(async { panic!("begun") }));
        assert!(change.as_mut().now_or_never().is_none());
        drop(change);
        drop(waiting);
        under_way.settled().await;
    }
}
