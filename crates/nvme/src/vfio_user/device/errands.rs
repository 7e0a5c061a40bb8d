//! What a device does itself in far memory: reads commands, writes completions, looks at doorbells, moves the data of admin commands.
//!
//! Each is a future that asks and waits; what it leads to, the device does when it has come back.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_mem::Buf;
use forebay_proto::nvme::{Effect, QueueRequest, Status, SubmissionQueueEntry};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::admin::name_of;
use super::{ADMIN, Device};
use crate::vfio_user::asking::Asker;
use crate::vfio_user::doorbells::{Doorbells, Tour};
use crate::vfio_user::far::Far;
use crate::vfio_user::memory::Gone;
use crate::vfio_user::queues::CompletionQueue;

/// What has come back.
pub(super) enum Errand {
    /// Commands of this queue.
    Read(u16, Result<Vec<u8>, Gone>),
    /// Completions of this queue are written.
    Written(u16, Result<(), Gone>),
    /// Far doorbells were read; they were made so for an admin command.
    Toured(Option<Bells>, Result<Vec<u8>, Gone>),
    /// The data of an admin command.
    Taken(SubmissionQueueEntry, Result<Vec<u8>, Status>),
    /// An admin command has its data.
    Given(Ending, Result<(), Status>),
}

/// An admin command that waits for far doorbells.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bells {
    /// They are where they are to be from now on; its identifier.
    Begin(u16),
    /// A queue's begins at zero; its identifier.
    Clear(QueueRequest, u16),
}

/// How an admin command ends when its data was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) effect: Effect,
}

/// Those that have not come back.
#[derive(Default)]
pub(super) struct Errands {
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Errand> + Send>>>,
    /// One has begun and was not polled.
    begun: bool,
}

impl Errands {
    /// The next one that has come back.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Errand>> {
        self.begun = false;
        self.under_way.poll_next_unpin(cx)
    }

    /// Whether one is to be polled.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    fn begin(&mut self, errand: impl Future<Output = Errand> + Send + 'static) {
        self.under_way.push(Box::pin(errand));
        self.begun = true;
    }

    /// Reads commands of a queue.
    pub(super) fn read(&mut self, asker: Asker, qid: u16, (address, len): (u64, usize)) {
        self.begin(async move {
            let mut bytes = vec![0; len];
            let read = asker.read(address, &mut bytes).await;
            Errand::Read(qid, read.map(|()| bytes))
        });
    }

    /// Writes completions of a queue: their phase last, all of it after the rest is there.
    pub(super) fn write(&mut self, asker: Asker, qid: u16, (address, bytes): (u64, [Vec<u8>; 2])) {
        self.begin(async move {
            let mut written = Ok(());
            for bytes in bytes {
                if written.is_ok() {
                    written = asker.write(address, &Buf::from(bytes)).await;
                }
            }
            Errand::Written(qid, written)
        });
    }

    /// Looks at far doorbells.
    pub(super) fn tour(&mut self, asker: Asker, tour: Tour, bells: Option<Bells>) {
        self.begin(async move {
            let toured = async {
                for (address, bytes) in tour.writes {
                    asker.write(address, &Buf::from(bytes)).await?;
                }
                let (address, len) = tour.read;
                let mut bytes = vec![0; len];
                asker.read(address, &mut bytes).await?;
                Ok::<_, Gone>(bytes)
            };
            Errand::Toured(bells, toured.await)
        });
    }

    /// Takes the data of an admin command.
    pub(super) fn take(&mut self, mut data: Far, entry: SubmissionQueueEntry) {
        self.begin(async move { Errand::Taken(entry, data.take().await) });
    }

    /// Gives an admin command its data.
    pub(super) fn give(&mut self, mut data: Far, bytes: Vec<u8>, ending: Ending) {
        self.begin(async move {
            let given = async {
                data.locate().await?;
                data.send(&Buf::from(bytes)).await
            };
            Errand::Given(ending, given.await)
        });
    }
}

impl Device<'_> {
    /// Goes on with what is done in far memory; whether anything came of it.
    pub(in crate::vfio_user) fn run_errands(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        loop {
            self.send_errands();
            match self.errands.poll(cx) {
                Poll::Ready(Some(errand)) => {
                    moved = true;
                    self.come_back(errand);
                }
                Poll::Ready(None) | Poll::Pending => return moved,
            }
        }
    }

    /// Whether there is more to do in far memory at once.
    pub(in crate::vfio_user) fn has_errands(&self) -> bool {
        let waits = || {
            self.completion
                .values()
                .any(CompletionQueue::is_to_be_written)
        };
        self.memory.any_far() && (self.errands.has_begun() || self.reset.is_none() && waits())
    }

    /// Begins what is to be done in far memory by itself.
    fn send_errands(&mut self) {
        if self.reset.is_some() {
            return;
        }
        for (&qid, queue) in &mut self.completion {
            if let Some(place) = queue.next_write() {
                self.busy += 1;
                self.errands.write(self.asker.clone(), qid, place);
            }
        }
        if self.touring {
            return;
        }
        let bells = self.bells.take();
        let tour = match bells {
            None => self.doorbells.next_tour(),
            Some(Bells::Begin(_)) => self.doorbells.first_tour(),
            Some(Bells::Clear(QueueRequest::Submission { qid, .. }, _)) => {
                self.doorbells.clearing_tour(Doorbells::tail_at(qid))
            }
            Some(Bells::Clear(QueueRequest::Completion { qid, .. }, _)) => {
                self.doorbells.clearing_tour(Doorbells::head_at(qid))
            }
        };
        match (tour, bells) {
            (Some(tour), bells) => {
                self.busy += 1;
                self.touring = true;
                self.errands.tour(self.asker.clone(), tour, bells);
            }
            // The pages were taken away, or have files now.
            (None, Some(bells)) => self.rang(bells, Err(Gone)),
            (None, None) => {}
        }
    }

    fn come_back(&mut self, errand: Errand) {
        match errand {
            Errand::Read(qid, read) => {
                if let Some(queue) = self.submission.get_mut(&qid) {
                    queue.reading = false;
                    if let Ok(bytes) = &read {
                        queue.has_read(bytes);
                    }
                }
                // As every command of the queue.
                self.ended(qid);
                self.fail_unless(read.map(drop));
            }
            Errand::Written(qid, written) => {
                self.busy -= 1;
                self.try_finish_shutdown();
                if let Some(queue) = self.completion.get_mut(&qid) {
                    queue.writing = false;
                    queue.news |= written.is_ok();
                }
                let leaving = self
                    .submission
                    .iter()
                    .filter(|(_, queue)| queue.cqid == qid);
                let leaving: Vec<u16> = leaving.map(|(&qid, _)| qid).collect();
                for qid in leaving {
                    self.try_delete_submission(qid);
                }
                self.try_delete_completion(qid);
                self.fail_unless(written);
            }
            Errand::Toured(bells, read) => {
                self.busy -= 1;
                self.touring = false;
                if let Ok(bytes) = &read {
                    self.doorbells.learn(bytes);
                }
                match bells {
                    Some(bells) => self.rang(bells, read.map(drop)),
                    // Whoever takes the pages away may give them back.
                    None if self.doorbells.are_gone() => {}
                    None => self.fail_unless(read.map(drop)),
                }
            }
            Errand::Taken(entry, data) => {
                self.busy -= 1;
                self.admin_waits = false;
                match data {
                    Ok(data) if self.runs() => self.execute_admin(&entry, &data),
                    Ok(_) => {}
                    Err(status) => self.complete(ADMIN, entry.cid(), status, 0),
                }
            }
            Errand::Given(ending, given) => {
                self.busy -= 1;
                self.admin_waits = false;
                self.end_admin(ending, given);
                self.tell_events();
            }
        }
    }

    /// Far doorbells are as an admin command wants them, or cannot be.
    fn rang(&mut self, bells: Bells, done: Result<(), Gone>) {
        self.admin_waits = false;
        match (bells, done) {
            (Bells::Begin(cid), Ok(())) => self.complete(ADMIN, cid, Status::SUCCESS, 0),
            (Bells::Begin(cid), Err(gone)) => {
                self.doorbells.drop_shadow();
                self.complete(ADMIN, cid, gone.into(), 0);
            }
            (Bells::Clear(request, cid), Ok(())) => self.end_create(request, cid),
            (Bells::Clear(request, cid), Err(gone)) => {
                self.controller.undo_create(name_of(&request));
                self.complete(ADMIN, cid, gone.into(), 0);
            }
        }
    }

    /// Where queues cannot be reached, there is nothing to go on with; unless it was cut off for a reset.
    fn fail_unless(&mut self, done: Result<(), Gone>) {
        if let (Err(gone), None) = (done, self.reset) {
            self.fail(gone);
        }
    }
}
