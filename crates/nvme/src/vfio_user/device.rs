//! One device: what its client's messages change, and what its commands do to it.

use std::collections::BTreeMap;
use std::io;
use std::task::{Context, Poll};

use forebay_proto::nvme::{
    AdminReply, CompletionQueueEntry, Controller, Effect, QueueName, QueueRequest, Status,
    SubmissionQueueEntry,
};

use super::asking::Asker;
use super::doorbells::{Doorbells, Pair};
use super::errands::{Bells, Ending, Errand, Errands};
use super::far::{Far, Wanted};
use super::interrupts::Interrupts;
use super::memory::{Direction, Gone, Memory, Unmapped};
use super::pci;
use super::queues::{CompletionQueue, SubmissionQueue};
use super::transfer::{Segments, Stop};

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
    /// Reaches far memory.
    pub(super) asker: Asker,
    errands: Errands,
    /// An admin command is in far memory: the next one waits.
    admin_waits: bool,
    /// Far doorbells are being looked at.
    touring: bool,
    /// What is to be done there next.
    bells: Option<Bells>,
    /// Milliseconds of a clock that never goes back.
    pub(super) now_ms: u64,
}

impl<'a> Device<'a> {
    pub(super) fn new(behind: &'a dyn Behind, asker: Asker) -> io::Result<Device<'a>> {
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
            asker,
            errands: Errands::default(),
            admin_waits: false,
            touring: false,
            bells: None,
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
        self.bells = None;
        self.admin_waits = false;
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
        self.doorbells.doubt();
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
        if submission.deleting.is_some() {
            self.try_delete_submission(qid);
        }
    }

    /// Deletes a queue that is to be, once its commands have ended and the client can see that they have.
    fn try_delete_submission(&mut self, qid: u16) {
        let Some(queue) = self.submission.get(&qid) else {
            return;
        };
        let completion = self.completion.get(&queue.cqid);
        let seen = completion.is_none_or(CompletionQueue::is_written);
        if let Some(admin) = queue.deleting.filter(|_| queue.busy == 0 && seen) {
            self.submission.remove(&qid);
            self.complete(ADMIN, admin, Status::SUCCESS, 0);
        }
    }

    fn try_delete_completion(&mut self, qid: u16) {
        let Some(queue) = self.completion.get(&qid) else {
            return;
        };
        if let Some(admin) = queue.deleting.filter(|_| queue.is_written()) {
            self.completion.remove(&qid);
            self.complete(ADMIN, admin, Status::SUCCESS, 0);
        }
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
        match self.admin_data(entry) {
            Ok(Some(data)) => self.execute_admin(entry, &data),
            // It is executed when it is there.
            Ok(None) => self.admin_waits = true,
            Err(status) => self.complete(ADMIN, entry.cid(), status, 0),
        }
    }

    fn execute_admin(&mut self, entry: &SubmissionQueueEntry, data: &[u8]) {
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
            AdminReply::Disconnect => self.complete(ADMIN, cid, Status::INVALID_OPCODE, 0),
        }
        self.tell_events();
    }

    fn end_admin(&mut self, ending: Ending, given: Result<(), Status>) {
        let status = match given {
            Ok(()) => ending.status,
            Err(status) => status,
        };
        self.complete(ADMIN, ending.cid, status, ending.result);
        self.apply(ending.effect);
    }

    fn end_create(&mut self, request: QueueRequest, cid: u16) {
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
        let mut done = 0;
        for part in &self.segments.parts {
            if !part.read(0, &mut data[done..done + part.len()]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            done += part.len();
        }
        self.segments.clear();
        Ok(Some(data))
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
        let mut done = 0;
        for part in &self.segments.parts {
            if !part.write(0, &data[done..done + part.len()]) {
                return Some(Err(Status::DATA_TRANSFER_ERROR));
            }
            done += part.len();
        }
        self.segments.clear();
        Some(Ok(()))
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
            let takes = match qid {
                ADMIN => !self.admin_waits,
                _ => !self.shut_down,
            };
            if queue.extend(self.doorbells.read(qid).tail) && takes && !queue.reading {
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
                    let most = most.min(completion.room().max(1));
                    match queue.is_far() {
                        false => queue.take(most, into),
                        true => {
                            queue.take_read(most, into);
                            Ok(())
                        }
                    }
                }
                _ => Ok(()),
            });
        if into.is_empty()
            && queue.is_far()
            && queue.deleting.is_none()
            && let Some(place) = queue.to_read()
        {
            queue.reading = true;
            queue.busy += 1;
            self.busy += 1;
            self.errands.read(self.asker.clone(), qid, place);
        }
        if let Err(gone) = taken {
            self.fail(gone);
        }
    }

    /// Goes on with what is done in far memory; whether anything came of it.
    pub(super) fn run_errands(&mut self, cx: &mut Context<'_>) -> bool {
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
    pub(super) fn has_errands(&self) -> bool {
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
