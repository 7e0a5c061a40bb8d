//! One device: what its client's messages change, and what its commands do to it.

use std::collections::BTreeMap;
use std::io;

use forebay_proto::nvme::{
    AdminReply, CompletionQueueEntry, Controller, Effect, QueueName, QueueRequest, Status,
    SubmissionQueueEntry,
};

use super::doorbells::{Doorbells, Pair};
use super::interrupts::Interrupts;
use super::memory::{Direction, Gone, Memory, Unmapped};
use super::pci;
use super::queues::{CompletionQueue, SubmissionQueue};
use super::transfer::Segments;

/// What is behind a device.
pub(super) trait Behind {
    /// Its controller as it is after power was turned on, at a time in milliseconds.
    fn controller(&self, now_ms: u64) -> Controller;

    /// Before an admin command.
    fn prepare(&self, controller: &mut Controller, entry: &SubmissionQueueEntry);

    /// The controller was reset.
    fn reset(&self);
}

/// The admin queues.
const ADMIN: u16 = 0;

/// How a reset begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reset {
    /// CC.EN was cleared: registers stay.
    Controller,
    /// All of it.
    Function,
}

/// A device and its queues.
pub(super) struct Device<'a> {
    behind: &'a dyn Behind,
    pub(super) controller: Controller,
    pub(super) config: pci::Config,
    pub(super) memory: Memory,
    pub(super) interrupts: Interrupts,
    pub(super) doorbells: Doorbells,
    pub(super) submission: BTreeMap<u16, SubmissionQueue>,
    pub(super) completion: BTreeMap<u16, CompletionQueue>,
    /// Commands are taken no more; when none is in progress, this is done.
    pub(super) reset: Option<Reset>,
    /// Commands that are in progress.
    pub(super) busy: u32,
    /// The host says that it goes: no more I/O.
    shut_down: bool,
    /// Data of admin commands.
    segments: Segments,
    /// Milliseconds of a clock that never goes back.
    pub(super) now_ms: u64,
}

impl<'a> Device<'a> {
    pub(super) fn new(behind: &'a dyn Behind) -> io::Result<Device<'a>> {
        Ok(Device {
            controller: behind.controller(0),
            behind,
            config: pci::Config::new(),
            memory: Memory::new(),
            interrupts: Interrupts::default(),
            doorbells: Doorbells::new()?,
            submission: BTreeMap::new(),
            completion: BTreeMap::new(),
            reset: None,
            busy: 0,
            shut_down: false,
            segments: Segments::default(),
            now_ms: 0,
        })
    }

    /// Whether commands are taken.
    pub(super) fn runs(&self) -> bool {
        self.reset.is_none() && self.controller.is_ready()
    }

    /// Does what a change of a register asks.
    pub(super) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Enable => self.enable(),
            Effect::Reset => self.begin_reset(Reset::Controller),
            Effect::Shutdown => self.shut_down = true,
        }
    }

    fn enable(&mut self) {
        if self.reset.is_some() {
            // Before CSTS.RDY was cleared: what then happens is not defined.
            return self.controller.failed();
        }
        let queues = self.controller.admin_queues();
        let (base, bytes) = (
            queues.submission_base,
            SubmissionQueue::bytes(queues.submission_entries),
        );
        let submission = self.memory.place(base, bytes, Direction::ToController);
        let (base, bytes) = (
            queues.completion_base,
            CompletionQueue::bytes(queues.completion_entries),
        );
        let completion = self.memory.place(base, bytes, Direction::ToHost);
        // One entry would be full and empty at once.
        let usable = queues.submission_entries > 1 && queues.completion_entries > 1;
        let (Some(submission), Some(completion), true) = (submission, completion, usable) else {
            return self.controller.failed();
        };
        let submission = SubmissionQueue::new(submission, queues.submission_entries, ADMIN);
        let completion = CompletionQueue::new(completion, queues.completion_entries, Some(ADMIN));
        self.doorbells.reset();
        self.submission.insert(ADMIN, submission);
        self.completion.insert(ADMIN, completion);
        self.shut_down = false;
        self.controller.enabled();
    }

    /// Stops taking commands; [`Device::try_finish_reset`] does the rest.
    pub(super) fn begin_reset(&mut self, reset: Reset) {
        self.reset = self.reset.max(Some(reset));
    }

    /// Ends a reset when nothing is in progress any more; whether one ended.
    pub(super) fn try_finish_reset(&mut self) -> bool {
        if self.busy > 0 {
            return false;
        }
        let Some(reset) = self.reset.take() else {
            return false;
        };
        self.drop_queues();
        self.behind.reset();
        match reset {
            Reset::Controller => self.controller.reset_done(),
            Reset::Function => {
                self.controller = self.behind.controller(self.now_ms);
                self.config = pci::Config::new();
            }
        }
        true
    }

    fn drop_queues(&mut self) {
        self.submission.clear();
        self.completion.clear();
        self.doorbells.reset();
    }

    /// It cannot go on: its queues are gone.
    pub(super) fn fail(&mut self, _: Gone) {
        tracing::debug!("a queue lies in memory that is gone: the controller stops");
        self.drop_queues();
        self.controller.failed();
    }

    /// Lets go of memory that was unmapped.
    pub(super) fn let_go(&mut self, unmapped: &Unmapped) {
        let queues = self.submission.values_mut().map(SubmissionQueue::place);
        let queues = queues.chain(self.completion.values_mut().map(CompletionQueue::place));
        for place in queues.chain(self.doorbells.places()) {
            place.let_go(unmapped);
        }
    }

    /// Finds what was let go in memory that was mapped.
    pub(super) fn find(&mut self) {
        let queues = self.submission.values_mut().map(SubmissionQueue::place);
        let queues = queues.chain(self.completion.values_mut().map(CompletionQueue::place));
        for place in queues.chain(self.doorbells.places()) {
            place.find(&self.memory);
        }
    }

    /// A command of queue `qid` has ended.
    pub(super) fn complete(&mut self, qid: u16, cid: u16, status: Status, result: u64) {
        // The queues may have gone meanwhile.
        let Some(submission) = self.submission.get_mut(&qid) else {
            return;
        };
        let Some(completion) = self.completion.get_mut(&submission.cqid) else {
            return;
        };
        let entry = CompletionQueueEntry {
            result,
            sq_head: submission.head() as u16,
            sq_id: qid,
            cid,
            status: status.answered(),
        };
        let mut put = Ok(());
        if completion.has_no_room() {
            put = completion.advance(self.doorbells.read(submission.cqid).head);
        }
        if let Err(gone) = put.and_then(|()| completion.put(entry)) {
            self.fail(gone);
        }
    }

    /// What was started for queue `qid` has ended, and was completed.
    pub(super) fn ended(&mut self, qid: u16) {
        self.busy -= 1;
        let Some(submission) = self.submission.get_mut(&qid) else {
            return;
        };
        submission.busy = submission.busy.saturating_sub(1);
        if submission.busy == 0
            && let Some(admin) = submission.deleting
        {
            self.delete_submission(qid, admin);
        }
    }

    fn delete_submission(&mut self, qid: u16, admin: u16) {
        self.submission.remove(&qid);
        self.complete(ADMIN, admin, Status::SUCCESS, 0);
    }

    /// Tells the client of completions that it does not know of.
    pub(super) fn interrupt(&mut self) {
        for queue in self.completion.values_mut() {
            if std::mem::take(&mut queue.news)
                && let Some(vector) = queue.vector
            {
                self.interrupts.raise(vector.into());
            }
        }
    }

    /// Executes an admin command.
    pub(super) fn admin(&mut self, entry: &SubmissionQueueEntry) {
        let cid = entry.cid();
        self.behind.prepare(&mut self.controller, entry);
        let reply = match self.admin_data(entry) {
            Ok(data) => self.controller.admin(self.now_ms, entry, &data),
            Err(status) => return self.complete(ADMIN, cid, status, 0),
        };
        match reply {
            AdminReply::Complete {
                result,
                status,
                data,
                effect,
            } => {
                let status = match self.give(entry, &data) {
                    Ok(()) => status,
                    Err(status) => status,
                };
                self.complete(ADMIN, cid, status, result);
                self.apply(effect);
            }
            AdminReply::Held => {}
            // Commands run to their end, which is near.
            AdminReply::Abort { .. } => self.complete(ADMIN, cid, Status::SUCCESS, 1),
            AdminReply::CreateQueue(request) => {
                let status = self.create_queue(request);
                if !status.is_success() {
                    self.controller.undo_create(name_of(&request));
                }
                self.complete(ADMIN, cid, status, 0);
            }
            AdminReply::DeleteQueue(QueueName::Submission(qid)) => {
                match self.submission.get_mut(&qid) {
                    Some(queue) if queue.busy > 0 => queue.deleting = Some(cid),
                    _ => self.delete_submission(qid, cid),
                }
            }
            AdminReply::DeleteQueue(QueueName::Completion(qid)) => {
                self.completion.remove(&qid);
                self.complete(ADMIN, cid, Status::SUCCESS, 0);
            }
            AdminReply::ShadowDoorbells {
                doorbells,
                event_indices,
            } => {
                let status = self.set_shadow(doorbells, event_indices);
                self.complete(ADMIN, cid, status, 0);
            }
            // Of Fabrics.
            AdminReply::Disconnect => self.complete(ADMIN, cid, Status::INVALID_OPCODE, 0),
        }
        self.tell_events();
    }

    /// What comes with an admin command.
    fn admin_data(&mut self, entry: &SubmissionQueueEntry) -> Result<Vec<u8>, Status> {
        let bytes = Controller::data_in_bytes(entry);
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if entry.psdt() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let direction = Direction::ToController;
        self.segments
            .walk(&self.memory, entry, bytes as u64, direction)?;
        let mut data = vec![0; bytes];
        let mut done = 0;
        for part in &self.segments.parts {
            if !part.read(0, &mut data[done..done + part.len()]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            done += part.len();
        }
        self.segments.clear();
        Ok(data)
    }

    /// What an admin command is answered with.
    fn give(&mut self, entry: &SubmissionQueueEntry, data: &[u8]) -> Result<(), Status> {
        let len = data.len() as u64;
        self.segments
            .walk(&self.memory, entry, len, Direction::ToHost)?;
        let mut done = 0;
        for part in &self.segments.parts {
            if !part.write(0, &data[done..done + part.len()]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            done += part.len();
        }
        self.segments.clear();
        Ok(())
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
        let page = forebay_mem::PAGE_BYTES as u64;
        if !doorbells.is_multiple_of(page) || !events.is_multiple_of(page) || doorbells == events {
            return Status::INVALID_FIELD;
        }
        let doorbells = self.memory.place(doorbells, page, Direction::ToHost);
        let events = self.memory.place(events, page, Direction::ToHost);
        let (Some(doorbells), Some(events)) = (doorbells, events) else {
            return Status::INVALID_FIELD;
        };
        let here: Vec<(u16, Pair)> = self.pairs().collect();
        self.doorbells
            .set_shadow(doorbells, events, here.into_iter());
        Status::SUCCESS
    }

    /// Looks at the doorbells: the queues that have commands to be taken are appended to `ready`.
    pub(super) fn look(&mut self, ready: &mut Vec<u16>) {
        if !self.runs() {
            return;
        }
        let mut failed = None;
        for (&qid, queue) in &mut self.completion {
            if queue.is_full() {
                failed = queue
                    .advance(self.doorbells.read(qid).head)
                    .err()
                    .or(failed);
            }
        }
        for (&qid, queue) in &mut self.submission {
            let waits = self.completion.get(&queue.cqid);
            if queue.deleting.is_some() || waits.is_none_or(CompletionQueue::is_full) {
                continue;
            }
            if queue.extend(self.doorbells.read(qid).tail) && (qid == ADMIN || !self.shut_down) {
                ready.push(qid);
            }
        }
        if let Some(gone) = failed {
            self.fail(gone);
        }
    }

    /// Takes the next commands of a queue, at most so many, and no more of an I/O queue than there is room for completions.
    pub(super) fn take(&mut self, qid: u16, most: usize, into: &mut Vec<SubmissionQueueEntry>) {
        let Some(queue) = self.submission.get_mut(&qid) else {
            return;
        };
        let Some(completion) = self.completion.get_mut(&queue.cqid) else {
            return;
        };
        let taken = completion
            .advance(self.doorbells.read(queue.cqid).head)
            .and_then(|()| match queue.deleting {
                None if !completion.is_full() => {
                    // For one there may be room when it is needed.
                    queue.take(most.min(completion.room().max(1)), into)
                }
                _ => Ok(()),
            });
        if let Err(gone) = taken {
            self.fail(gone);
        }
    }

    /// Says in shadow doorbells whether to be told of commands, and of room for completions that wait.
    pub(super) fn announce(&mut self, asleep: bool) {
        for (&qid, queue) in &self.submission {
            let completion = self.completion.get(&qid);
            let waits = completion.is_some_and(CompletionQueue::is_full);
            let head = completion.map_or(0, CompletionQueue::head);
            // What lies one behind is passed never.
            let here = Pair {
                tail: queue.head().wrapping_sub(u32::from(!asleep)),
                head: head.wrapping_sub(u32::from(!(asleep && waits))),
            };
            self.doorbells.announce(qid, here);
        }
        self.doorbells.announced();
    }

    /// How far pairs of queues have gone.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u16, Pair)> {
        let names = self.submission.keys().chain(self.completion.keys());
        names.map(|&qid| {
            let tail = self.submission.get(&qid).map_or(0, SubmissionQueue::head);
            let head = self.completion.get(&qid).map_or(0, CompletionQueue::head);
            (qid, Pair { tail, head })
        })
    }

    /// Completes what waited for an event.
    pub(super) fn tell_events(&mut self) {
        while let Some(event) = self.controller.next_event() {
            self.complete(ADMIN, event.cid, Status::SUCCESS, event.result);
        }
    }
}

fn name_of(request: &QueueRequest) -> QueueName {
    match request {
        QueueRequest::Submission { qid, .. } => QueueName::Submission(*qid),
        QueueRequest::Completion { qid, .. } => QueueName::Completion(*qid),
    }
}
