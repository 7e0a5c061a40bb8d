//! I/O queues: which there are, and making and deleting them on PCIe (Base 2.0, sections 5.3 to 5.6 of the memory-based transport).

use std::collections::{BTreeMap, BTreeSet};

use super::admin::Done;
use super::{AdminReply, Controller, QueueName, QueueRequest, Transport};
use crate::nvme::opcode::admin;
use crate::nvme::{PAGE_BYTES, Status, SubmissionQueueEntry};

#[derive(Debug)]
pub(super) struct Queues {
    granted: u16,
    max: u16,
    /// Submission queues and the completion queue each uses; over Fabrics its own.
    submission: BTreeMap<u16, u16>,
    completion: BTreeSet<u16>,
    /// Those of them that are being deleted: they are there until the transport says that they are gone.
    leaving: BTreeSet<QueueName>,
}

impl Queues {
    pub(super) fn new(max: u16) -> Queues {
        Queues {
            granted: max,
            max,
            submission: BTreeMap::new(),
            completion: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }

    pub(super) fn granted(&self) -> u16 {
        self.granted
    }

    pub(super) fn grant(&mut self, count: u16) {
        self.granted = count.clamp(1, self.max.max(1));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.submission.is_empty() && self.completion.is_empty()
    }

    /// Whether there is such a queue.
    fn exists(&self, name: QueueName) -> bool {
        match name {
            QueueName::Submission(qid) => self.submission.contains_key(&qid),
            QueueName::Completion(qid) => self.completion.contains(&qid),
        }
    }

    /// Whether there is such a queue, and it is not being deleted.
    pub(super) fn stays(&self, name: QueueName) -> bool {
        self.exists(name) && !self.leaving.contains(&name)
    }

    /// Whether a submission queue uses this completion queue: also one whose commands have still to end.
    fn is_used(&self, cqid: u16) -> bool {
        self.submission.values().any(|used| *used == cqid)
    }

    pub(super) fn reset(&mut self) {
        *self = Queues::new(self.max);
    }

    /// A queue that is made by its connection.
    pub(super) fn connect(&mut self, qid: u16) -> bool {
        let free = qid >= 1 && qid <= self.granted && !self.submission.contains_key(&qid);
        if free {
            self.submission.insert(qid, qid);
        }
        free
    }

    fn delete(&mut self, name: QueueName) -> Result<AdminReply, Status> {
        if !self.stays(name) {
            return Err(Status::INVALID_QUEUE_IDENTIFIER);
        }
        if let QueueName::Completion(qid) = name
            && self.is_used(qid)
        {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        self.leaving.insert(name);
        Ok(AdminReply::DeleteQueue(name))
    }

    pub(super) fn remove(&mut self, name: QueueName) {
        self.leaving.remove(&name);
        match name {
            QueueName::Submission(qid) => {
                self.submission.remove(&qid);
            }
            QueueName::Completion(qid) => {
                self.completion.remove(&qid);
            }
        }
    }

    fn may_make(&self, name: QueueName) -> Result<(), Status> {
        let (QueueName::Submission(qid) | QueueName::Completion(qid)) = name;
        match qid >= 1 && qid <= self.granted && !self.exists(name) {
            true => Ok(()),
            false => Err(Status::INVALID_QUEUE_IDENTIFIER),
        }
    }
}

impl Controller {
    pub(super) fn queue_command(&mut self, entry: &SubmissionQueueEntry) -> Result<Done, Status> {
        let qid = entry.cdw(10) as u16;
        let reply = match entry.opcode() {
            admin::CREATE_IO_CQ => AdminReply::CreateQueue(self.create_completion(entry)?),
            admin::CREATE_IO_SQ => AdminReply::CreateQueue(self.create_submission(entry)?),
            admin::DELETE_IO_SQ => self.queues.delete(QueueName::Submission(qid))?,
            admin::DELETE_IO_CQ => self.queues.delete(QueueName::Completion(qid))?,
            _ => return Err(Status::INVALID_OPCODE),
        };
        Ok(Done::Reply(reply))
    }

    fn create_completion(&mut self, entry: &SubmissionQueueEntry) -> Result<QueueRequest, Status> {
        const INTERRUPTS_ENABLED: u32 = 2;
        let qid = entry.cdw(10) as u16;
        self.queues.may_make(QueueName::Completion(qid))?;
        let (entries, base) = self.queue_place(entry)?;
        let cdw11 = entry.cdw(11);
        let vector = (cdw11 >> 16) as u16;
        let vectors = match self.config.transport {
            Transport::Pcie { vectors } => vectors,
            Transport::Tcp { .. } => 0,
        };
        if vector >= vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        self.queues.completion.insert(qid);
        Ok(QueueRequest::Completion {
            qid,
            entries,
            base,
            vector: (cdw11 & INTERRUPTS_ENABLED != 0).then_some(vector),
        })
    }

    fn create_submission(&mut self, entry: &SubmissionQueueEntry) -> Result<QueueRequest, Status> {
        let qid = entry.cdw(10) as u16;
        self.queues.may_make(QueueName::Submission(qid))?;
        let (entries, base) = self.queue_place(entry)?;
        let cqid = (entry.cdw(11) >> 16) as u16;
        if cqid == 0 {
            return Err(Status::INVALID_QUEUE_IDENTIFIER);
        }
        if !self.queues.stays(QueueName::Completion(cqid)) {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        self.queues.submission.insert(qid, cqid);
        Ok(QueueRequest::Submission {
            qid,
            cqid,
            entries,
            base,
        })
    }

    fn queue_place(&self, entry: &SubmissionQueueEntry) -> Result<(u32, u64), Status> {
        const PHYSICALLY_CONTIGUOUS: u32 = 1;
        let entries = (entry.cdw(10) >> 16) + 1;
        if entries < 2 || entries > self.config.queue_entries_max {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        if entry.cdw(11) & PHYSICALLY_CONTIGUOUS == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let base = entry.prp1();
        if base == 0 || !base.is_multiple_of(PAGE_BYTES as u64) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        Ok((entries, base))
    }

    /// PCIe: a queue is gone, after [`AdminReply::DeleteQueue`].
    pub fn deleted(&mut self, name: QueueName) {
        self.queues.remove(name);
    }

    /// PCIe: forgets a queue whose memory could not be had, after [`AdminReply::CreateQueue`].
    pub fn undo_create(&mut self, name: QueueName) {
        self.queues.remove(name);
    }
}
