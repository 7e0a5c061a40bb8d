//! A controller, and the queues that have joined it, wherever they are served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::task::Context;

use forebay_proto::nvme::Controller;
use forebay_proto::nvme::fabrics::{Connect, Refused, connect_at};
use forebay_store::Store;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::target::{Session, Share};

/// What a queue is told from outside of its connection.
#[derive(Default)]
pub(super) struct Orders {
    given: AtomicBool,
    state: Mutex<Given>,
    task: AtomicWaker,
}

#[derive(Default)]
pub(super) struct Given {
    /// Commands to give up, and who wants to know whether there was one.
    pub(super) aborts: Vec<(u16, oneshot::Sender<bool>)>,
    /// How the queue is to end.
    pub(super) ending: Option<Ending>,
}

/// How a queue is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// What is in progress may end before.
    Soon,
    /// What is in progress is given up.
    Now,
}

impl Orders {
    fn give(&self, order: impl FnOnce(&mut Given)) {
        order(&mut self.state.lock());
        self.given.store(true, Release);
        self.task.wake();
    }

    /// What was ordered since the last look; wakes the task when there is more.
    pub(super) fn take(&self, cx: &mut Context<'_>) -> Option<Given> {
        self.task.register(cx.waker());
        self.given
            .swap(false, AcqRel)
            .then(|| std::mem::take(&mut *self.state.lock()))
    }

    /// Ends the queue.
    pub(super) fn end(&self, ending: Ending) {
        self.give(|given| given.ending = given.ending.max(Some(ending)));
    }
}

/// One controller and its queues.
pub(super) struct Association<S: Store> {
    pub(super) session: Arc<Session<S>>,
    controller: Mutex<Controller>,
    queues: Mutex<Queues>,
    /// What commands of all its queues together may hold.
    pub(super) lending: Arc<Share>,
}

#[derive(Default)]
struct Queues {
    orders: BTreeMap<u16, Arc<Orders>>,
    over: bool,
}

impl<S: Store> Association<S> {
    pub(super) fn new(
        controller: Controller,
        session: Arc<Session<S>>,
        lending: Share,
    ) -> Association<S> {
        Association {
            session,
            controller: Mutex::new(controller),
            queues: Mutex::default(),
            lending: Arc::new(lending),
        }
    }

    pub(super) fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock()
    }

    /// An I/O queue joins; gives the result of its Connect.
    ///
    /// # Errors
    /// What to answer.
    pub(super) fn join(&self, connect: &Connect, orders: &Arc<Orders>) -> Result<u64, Refused> {
        let mut queues = self.queues.lock();
        if queues.over {
            return Err(Refused::in_data(connect_at::CNTLID));
        }
        let mut controller = self.controller.lock();
        controller.connect_io(connect)?;
        queues.orders.insert(connect.qid, orders.clone());
        Ok(controller.connect_result())
    }

    /// An I/O queue has ended, and nothing of it is in progress.
    pub(super) fn leave(&self, qid: u16, orders: &Arc<Orders>) {
        let mut queues = self.queues.lock();
        let joined = queues.orders.get(&qid);
        // After a reset another may have come in its place.
        if joined.is_some_and(|joined| Arc::ptr_eq(joined, orders)) {
            queues.orders.remove(&qid);
            self.controller.lock().disconnect_io(qid);
        }
    }

    /// Ends all I/O queues. After a reset others may join in their place.
    pub(super) fn end_io_queues(&self, ending: Ending) {
        for orders in self.queues.lock().orders.values() {
            orders.end(ending);
        }
    }

    /// The controller was reset.
    pub(super) fn reset(&self) {
        self.end_io_queues(Ending::Now);
        self.session.reset();
    }

    /// The admin queue has ended, and the controller with it.
    pub(super) fn end(&self) {
        self.queues.lock().over = true;
        self.end_io_queues(Ending::Now);
    }

    /// Gives up a command, wherever it is; says whether there was one.
    pub(super) async fn abort(&self, sqid: u16, cid: u16) -> bool {
        let orders = self.queues.lock().orders.get(&sqid).cloned();
        let Some(orders) = orders else {
            return false;
        };
        let (answer, answered) = oneshot::channel();
        orders.give(|given| given.aborts.push((cid, answer)));
        drop(orders);
        answered.await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn orders_wake_whoever_looks_for_them_and_the_harder_end_stands() {
        let orders = Arc::new(Orders::default());
        let taker = orders.clone();
        let taken = tokio::spawn(async move {
            poll_fn(|cx| taker.take(cx).map_or(Poll::Pending, Poll::Ready)).await
        });
        tokio::task::yield_now().await;
        orders.end(Ending::Now);
        orders.end(Ending::Soon);
        assert_eq!(taken.await.unwrap().ending, Some(Ending::Now));
        let again = poll_fn(|cx| Poll::Ready(orders.take(cx).is_some())).await;
        assert!(!again);
    }
}
