//! A controller, and the queues that have joined it, wherever they are served.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_proto::nvme::fabrics::{Connect, Refused, connect_at};
use forebay_proto::nvme::{Controller, Status};
use forebay_store::Store;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::leaving::Leaving;
use crate::target::{Connection, Session, Share};

/// How long an Abort waits for the end of its command, which may be that of a device or of its host's data.
const ABORT: Duration = Duration::from_secs(2);

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

    /// Waits until the queue is to end, while it has no commands yet.
    pub(super) async fn ended(&self) {
        poll_fn(|cx| match self.take(cx) {
            Some(given) if given.ending.is_some() => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
    }
}

/// A queue that has joined, one of the connections that its host has.
#[derive(Clone)]
pub(super) struct Member {
    orders: Arc<Orders>,
    _connection: Arc<Connection>,
}

impl PartialEq for Member {
    fn eq(&self, other: &Member) -> bool {
        Arc::ptr_eq(&self.orders, &other.orders)
    }
}

/// One controller and its queues.
pub(super) struct Association<S: Store> {
    pub(super) session: Arc<Session<S>>,
    controller: Mutex<Controller>,
    queues: Mutex<Queues>,
    /// What commands of all its queues together may hold.
    pub(super) lending: Arc<Share>,
    leaving: Arc<Leaving>,
}

#[derive(Default)]
struct Queues {
    members: BTreeMap<u16, Member>,
    over: bool,
}

impl<S: Store> Association<S> {
    pub(super) fn new(
        controller: Controller,
        session: Arc<Session<S>>,
        lending: Share,
        leaving: Arc<Leaving>,
    ) -> Association<S> {
        Association {
            session,
            controller: Mutex::new(controller),
            queues: Mutex::default(),
            lending: Arc::new(lending),
            leaving,
        }
    }

    pub(super) fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock()
    }

    /// An I/O queue joins; gives the result of its Connect.
    ///
    /// # Errors
    /// What to answer.
    pub(super) fn join(
        &self,
        connect: &Connect,
        orders: &Arc<Orders>,
    ) -> Result<(Member, u64), Refused> {
        let mut queues = self.queues.lock();
        if queues.over {
            return Err(Refused::in_data(connect_at::CNTLID));
        }
        let connection = self.session.connection();
        let connection = connection.ok_or(Status::CONNECT_CONTROLLER_BUSY)?;
        let mut controller = self.controller.lock();
        controller.connect_io(connect)?;
        let member = Member {
            orders: orders.clone(),
            _connection: Arc::new(connection),
        };
        queues.members.insert(connect.qid, member.clone());
        Ok((member, controller.connect_result()))
    }

    /// An I/O queue has ended, and nothing of it is in progress.
    pub(super) fn leave(&self, qid: u16, member: &Member) {
        let mut queues = self.queues.lock();
        // After a reset another may have come in its place.
        if queues.members.get(&qid) == Some(member) {
            queues.members.remove(&qid);
            let mut controller = self.controller.lock();
            controller.disconnect_io(qid);
            if queues.members.is_empty() {
                controller.shutdown_done();
            }
        }
        drop(queues);
        self.leaving.leave(member);
    }

    /// The host shuts the controller down: its I/O queues end.
    pub(super) fn shut_down(&self) {
        let queues = self.queues.lock();
        for member in queues.members.values() {
            member.orders.end(Ending::Soon);
        }
        if queues.members.is_empty() {
            self.controller.lock().shutdown_done();
        }
    }

    /// The controller was reset: others may join in the place of its queues.
    pub(super) fn reset(&self) {
        self.end_io_queues(&mut self.queues.lock());
    }

    /// The admin queue has ended, and the controller with it.
    pub(super) fn end(&self) {
        let mut queues = self.queues.lock();
        queues.over = true;
        self.end_io_queues(&mut queues);
    }

    fn end_io_queues(&self, queues: &mut Queues) {
        let host = self.session.host().unwrap_or_default();
        for member in std::mem::take(&mut queues.members).into_values() {
            member.orders.end(Ending::Now);
            self.leaving.enter(host, member);
        }
    }

    /// Waits until nothing of what the host began on queues that were told to end is in progress.
    pub(super) async fn settled(&self) {
        let host = self.session.host().unwrap_or_default();
        self.leaving.settled(host).await;
    }

    /// Gives up a command, wherever it is; says whether there was one, and it is completed.
    pub(super) async fn abort(&self, sqid: u16, cid: u16) -> bool {
        let member = self.queues.lock().members.get(&sqid).cloned();
        let Some(member) = member else {
            return false;
        };
        let (answer, answered) = oneshot::channel();
        member.orders.give(|given| given.aborts.push((cid, answer)));
        drop(member);
        let answered = timeout(ABORT, answered).await;
        answered.is_ok_and(|answer| answer.unwrap_or(false))
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
