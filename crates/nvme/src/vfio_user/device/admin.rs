//! Admin commands of a device: their data, their answers, and the queues and doorbells that they make.

use forebay_mem::PAGE_BYTES;
use forebay_proto::nvme::{
    AdminReply, Controller, QueueName, QueueRequest, Status, SubmissionQueueEntry,
};

use super::errands::{Bells, Ending};
use super::{ADMIN, Device};
use crate::vfio_user::doorbells::{Doorbells, Pair};
use crate::vfio_user::far::{Far, Wanted};
use crate::vfio_user::memory::Direction;
use crate::vfio_user::queues::{CompletionQueue, SubmissionQueue};
use crate::vfio_user::transfer::Stop;

impl Device<'_> {
    /// Executes an admin command.
    pub(in crate::vfio_user) fn admin(&mut self, entry: &SubmissionQueueEntry) {
        match self.admin_data(entry) {
            Ok(Some(data)) => self.execute_admin(entry, &data),
            // It is executed when it is there.
            Ok(None) => self.admin_waits = true,
            Err(status) => self.complete(ADMIN, entry.cid(), status, 0),
        }
    }

    pub(super) fn execute_admin(&mut self, entry: &SubmissionQueueEntry, data: &[u8]) {
        let cid = entry.cid();
        self.behind.prepare(&mut self.controller, entry);
        match self.controller.admin(self.now_ms, entry, data) {
            AdminReply::Complete {
                result,
                status,
                data,
                effect,
            } => {
                let ending = Ending {
                    cid,
                    status,
                    result,
                    effect,
                };
                match self.give(entry, data, ending) {
                    Some(given) => self.end_admin(ending, given),
                    None => self.admin_waits = true,
                }
            }
            AdminReply::Held => {}
            // Commands run to their end, which is near.
            AdminReply::Abort { .. } => self.complete(ADMIN, cid, Status::SUCCESS, 1),
            AdminReply::CreateQueue(request) => {
                let at = match request {
                    QueueRequest::Submission { qid, .. } => Doorbells::tail_at(qid),
                    QueueRequest::Completion { qid, .. } => Doorbells::head_at(qid),
                };
                if self.doorbells.clearing_tour(at).is_some() {
                    self.admin_waits = true;
                    self.bells = Some(Bells::Clear(request, cid));
                } else {
                    self.end_create(request, cid);
                }
            }
            AdminReply::DeleteQueue(QueueName::Submission(qid)) => {
                if let Some(queue) = self.submission.get_mut(&qid) {
                    queue.deleting = Some(cid);
                }
                self.try_delete_submission(qid);
            }
            AdminReply::DeleteQueue(QueueName::Completion(qid)) => {
                if let Some(queue) = self.completion.get_mut(&qid) {
                    queue.deleting = Some(cid);
                }
                self.try_delete_completion(qid);
            }
            AdminReply::ShadowDoorbells {
                doorbells,
                event_indices,
            } => {
                let status = self.set_shadow(doorbells, event_indices);
                if status.is_success() && self.doorbells.first_tour().is_some() {
                    self.admin_waits = true;
                    self.bells = Some(Bells::Begin(cid));
                } else {
                    self.complete(ADMIN, cid, status, 0);
                }
            }
            // Of Fabrics.
            AdminReply::Authenticate { .. } | AdminReply::Disconnect => {
                self.complete(ADMIN, cid, Status::INVALID_OPCODE, 0);
            }
        }
        self.tell_events();
    }

    pub(super) fn end_admin(&mut self, ending: Ending, given: Result<(), Status>) {
        let status = match given {
            Ok(()) => ending.status,
            Err(status) => status,
        };
        self.complete(ADMIN, ending.cid, status, ending.result);
        self.apply(ending.effect);
    }

    pub(super) fn end_create(&mut self, request: QueueRequest, cid: u16) {
        let status = self.create_queue(request);
        if !status.is_success() {
            self.controller.undo_create(name_of(&request));
        }
        self.complete(ADMIN, cid, status, 0);
    }

    /// What comes with an admin command; `None` when it is far, and on its way.
    fn admin_data(&mut self, entry: &SubmissionQueueEntry) -> Result<Option<Vec<u8>>, Status> {
        let bytes = Controller::data_in_bytes(entry);
        if bytes == 0 {
            return Ok(Some(Vec::new()));
        }
        if entry.psdt() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let direction = Direction::ToController;
        let walked = self
            .segments
            .walk(&self.memory, entry, bytes as u64, direction);
        match walked {
            Ok(()) => {}
            Err(Stop::Status(status)) => return Err(status),
            Err(Stop::Far) => {
                let data = self.admin_far(entry, bytes, direction);
                self.busy += 1;
                self.errands.take(data, *entry);
                return Ok(None);
            }
        }
        let mut data = vec![0; bytes];
        let read = self.segments.read(&mut data);
        self.segments.clear();
        read.map(|()| Some(data))
    }

    fn admin_far(&self, entry: &SubmissionQueueEntry, bytes: usize, direction: Direction) -> Far {
        let wanted = Wanted {
            direction,
            bytes: bytes as u64,
            headed: false,
            bytes_max: bytes as u64,
        };
        Far::new(self.asker.clone(), *entry, wanted)
    }

    /// What an admin command is answered with; `None` when that is on its way to far memory.
    fn give(
        &mut self,
        entry: &SubmissionQueueEntry,
        data: Vec<u8>,
        ending: Ending,
    ) -> Option<Result<(), Status>> {
        let direction = Direction::ToHost;
        let walked = self
            .segments
            .walk(&self.memory, entry, data.len() as u64, direction);
        match walked {
            Ok(()) => {}
            Err(Stop::Status(status)) => return Some(Err(status)),
            Err(Stop::Far) => {
                let far = self.admin_far(entry, data.len(), direction);
                self.busy += 1;
                self.errands.give(far, data, ending);
                return None;
            }
        }
        let written = self.segments.write(&data);
        self.segments.clear();
        Some(written)
    }

    fn create_queue(&mut self, request: QueueRequest) -> Status {
        match request {
            QueueRequest::Submission {
                qid,
                cqid,
                entries,
                base,
            } => {
                let bytes = SubmissionQueue::bytes(entries);
                let place = self.memory.place(base, bytes, Direction::ToController);
                let Some(place) = place.filter(|_| self.completion.contains_key(&cqid)) else {
                    return Status::INVALID_FIELD;
                };
                self.doorbells.clear_tail(qid);
                let queue = SubmissionQueue::new(place, entries, cqid);
                self.submission.insert(qid, queue);
            }
            QueueRequest::Completion {
                qid,
                entries,
                base,
                vector,
            } => {
                let bytes = CompletionQueue::bytes(entries);
                let Some(place) = self.memory.place(base, bytes, Direction::ToHost) else {
                    return Status::INVALID_FIELD;
                };
                self.doorbells.clear_head(qid);
                let queue = CompletionQueue::new(place, entries, vector);
                self.completion.insert(qid, queue);
            }
        }
        Status::SUCCESS
    }

    fn set_shadow(&mut self, doorbells: u64, events: u64) -> Status {
        let page = PAGE_BYTES as u64;
        if !doorbells.is_multiple_of(page) || !events.is_multiple_of(page) || doorbells == events {
            return Status::INVALID_FIELD;
        }
        let doorbells = self.memory.place(doorbells, page, Direction::Both);
        let events = self.memory.place(events, page, Direction::ToHost);
        let (Some(doorbells), Some(events)) = (doorbells, events) else {
            return Status::INVALID_FIELD;
        };
        let here: Vec<(u16, Pair)> = self.pairs().collect();
        self.doorbells
            .set_shadow(doorbells, events, here.into_iter());
        Status::SUCCESS
    }

    /// Completes what waited for an event.
    pub(in crate::vfio_user) fn tell_events(&mut self) {
        while let Some(event) = self.controller.next_event() {
            self.complete(ADMIN, event.cid, Status::SUCCESS, event.result);
        }
    }
}

/// What a queue that is to be made is called.
pub(super) fn name_of(request: &QueueRequest) -> QueueName {
    match request {
        QueueRequest::Submission { qid, .. } => QueueName::Submission(*qid),
        QueueRequest::Completion { qid, .. } => QueueName::Completion(*qid),
    }
}
