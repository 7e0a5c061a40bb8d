//! Changes that are with a device, or a store that makes them durable. They cannot be taken back: when their command is given up they go
//! on, and whoever comes after them must not be overtaken by them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_io::Striped;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The host whose change it is, by its NQN; `None`: a device.
pub(super) type Whose = Option<Arc<str>>;

/// The changes of one file that are with its device, or those of values that are with their store. Each thread keeps those that it has
/// begun by themselves: no command waits for the locks of all others.
#[derive(Debug, Clone, Default)]
pub(super) struct UnderWay(Arc<Striped<Arc<Part>>>);

#[derive(Debug, Default)]
struct Part {
    changes: Mutex<Changes>,
    /// Told when one has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Changes {
    /// The number of the next one.
    next: u64,
    open: BTreeMap<u64, Whose>,
}

/// One of them, until this is dropped, wherever that is.
pub(super) struct Change {
    of: Arc<Part>,
    number: u64,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.of.changes.lock().open.remove(&self.number);
        self.of.ended.notify_waiters();
    }
}

impl Part {
    /// Waits until none is left of those that had smaller numbers: of a host, or of all.
    async fn settled(&self, before: u64, whose: Option<&Whose>) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let is_meant = |(_, one): (&u64, &Whose)| whose.is_none_or(|whose| whose == one);
            if !self.changes.lock().open.range(..before).any(is_meant) {
                return;
            }
            ended.await;
        }
    }
}

impl UnderWay {
    /// Counts one more.
    pub(super) fn begin(&self, whose: &Whose) -> Change {
        let part = self.0.mine();
        let mut changes = part.changes.lock();
        let number = changes.next;
        changes.next += 1;
        changes.open.insert(number, whose.clone());
        Change {
            of: part.clone(),
            number,
        }
    }

    /// Waits until none is left of those that have begun: of a host, or of all. Nobody waits for this.
    pub(super) async fn settled(&self, whose: Option<&Whose>) {
        let before = |part: &Arc<Part>| part.changes.lock().next;
        let begun: Vec<u64> = self.0.all().map(before).collect();
        for (part, before) in self.0.all().zip(begun) {
            part.settled(before, whose).await;
        }
    }

    /// Makes a change, to its end also when this future is dropped.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        whose: &Whose,
        change: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let guard = self.begin(whose);
        let change = Box::pin(async move {
            let done = change.await;
            drop(guard);
            done
        });
        let change = Landing(Some(change));
        change.await
    }
}

/// A change that goes on when nobody waits for it any more.
struct Landing<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> Future for Landing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(change) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = change.as_mut().poll(context);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Landing<T> {
    fn drop(&mut self) {
        if let (Some(change), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            // Whether it succeeded, nobody asks any more.
            runtime.spawn(async move { drop(change.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_was_given_up_is_waited_for() {
        let under_way = UnderWay::default();
        let (ours, theirs) = (Some(Arc::from("ours")), Some(Arc::from("theirs")));
        let (land, landed) = oneshot::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let mut change = Box::pin(under_way.make(&ours, async move {
            landed.await.map_err(io::Error::other)?;
            seen.store(true, Relaxed);
            Ok::<_, io::Error>(())
        }));
        assert!(change.as_mut().now_or_never().is_none());
        drop(change);
        let mut settled = Box::pin(under_way.settled(Some(&ours)));
        let mut all_settled = Box::pin(under_way.settled(None));
        assert!(settled.as_mut().now_or_never().is_none());
        assert!(all_settled.as_mut().now_or_never().is_none());
        // Neither another host nor anything that begins waits for it, and it waits for nothing that began after it.
        assert!(under_way.settled(Some(&theirs)).now_or_never().is_some());
        let made = under_way.make(&theirs, async { 7 }).now_or_never();
        assert_eq!(made, Some(7));
        let _later = under_way.begin(&ours);
        land.send(()).unwrap();
        settled.await;
        all_settled.await;
        assert!(done.load(Relaxed));
    }

    #[tokio::test]
    async fn changes_of_all_threads_are_waited_for() {
        let under_way = UnderWay::default();
        let ours = Some(Arc::from("ours"));
        let begin = || under_way.begin(&ours);
        let changes = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            let changes = threads.into_iter().map(|thread| thread.join().unwrap());
            changes.collect::<Vec<_>>()
        });
        let mut settled = Box::pin(under_way.settled(Some(&ours)));
        for change in changes {
            assert!(settled.as_mut().now_or_never().is_none());
            // By another thread than that which has begun it.
            drop(change);
        }
        assert!(settled.now_or_never().is_some());
    }
}
