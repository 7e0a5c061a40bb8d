//! One device: its memory, its queues and doorbells, and what its client's messages change.

mod admin;
mod errands;

use std::collections::BTreeMap;
use std::io;

use forebay_proto::nvme::{
    CompletionQueueEntry, Controller, Effect, QueueName, Status, SubmissionQueueEntry,
};

use self::errands::{Bells, Errands};
use super::asking::Asker;
use super::doorbells::{Doorbells, Pair};
use super::interrupts::Interrupts;
use super::memory::{Direction, Gone, Memory, Unmapped};
use super::payload::Ticket;
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
    /// The last to go: what nothing else here uses any more is unmapped together.
    pub(super) memory: Memory,
}

impl<'a> Device<'a> {
    pub(super) fn new(behind: &'a dyn Behind, asker: Asker) -> io::Result<Device<'a>> {
        Ok(Device {
            controller: behind.controller(0),
            behind,
            config: pci::Config::new(),
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
            memory: Memory::new(),
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
            Effect::Shutdown => {
                self.shut_down = true;
                self.try_finish_shutdown();
            }
        }
    }

    /// CSTS says that a shutdown is complete when nothing is in progress any more.
    pub(super) fn try_finish_shutdown(&mut self) {
        if self.shut_down && self.busy == 0 {
            self.controller.shutdown_done();
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

    /// Lets go of memory that was unmapped. Commands that are executed do so when they end; the first half of a fused operation, which may
    /// wait for ever, ends now.
    pub(super) fn let_go(&mut self, unmapped: &Unmapped) {
        let queues = self.submission.values_mut().map(SubmissionQueue::place);
        let queues = queues.chain(self.completion.values_mut().map(CompletionQueue::place));
        for place in queues.chain(self.doorbells.places()) {
            place.let_go(unmapped);
        }
        let holds = |half: &Ticket| half.data.holds(unmapped);
        let queues = self.submission.values_mut();
        let halves = queues.filter_map(|queue| queue.fuser.interrupted_if(holds));
        for half in halves.collect::<Vec<_>>() {
            self.complete(half.qid, half.cid, Status::DATA_TRANSFER_ERROR, 0);
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
        self.try_finish_shutdown();
        let Some(submission) = self.submission.get_mut(&qid) else {
            return;
        };
        submission.busy = submission.busy.saturating_sub(1);
        if submission.deleting.is_some() {
            self.try_delete_submission(qid);
        }
    }

    /// Deletes a queue that is to be, once its commands have ended and the client can see that they have. Its number, and its queue of
    /// completions, stay taken until then: whose their completions are must stay known.
    fn try_delete_submission(&mut self, qid: u16) {
        let Some(queue) = self.submission.get(&qid) else {
            return;
        };
        let completion = self.completion.get(&queue.cqid);
        let seen = completion.is_none_or(CompletionQueue::is_written);
        if let Some(admin) = queue.deleting.filter(|_| queue.busy == 0 && seen) {
            self.submission.remove(&qid);
            self.controller.deleted(QueueName::Submission(qid));
            self.complete(ADMIN, admin, Status::SUCCESS, 0);
        }
    }

    fn try_delete_completion(&mut self, qid: u16) {
        let Some(queue) = self.completion.get(&qid) else {
            return;
        };
        if let Some(admin) = queue.deleting.filter(|_| queue.is_written()) {
            self.completion.remove(&qid);
            self.controller.deleted(QueueName::Completion(qid));
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

    /// Takes the next command of a queue, of those that were [made ready](Device::ready).
    pub(super) fn take(&mut self, qid: u16) -> Option<SubmissionQueueEntry> {
        self.submission.get_mut(&qid)?.take()
    }

    /// Makes the next commands of a queue ready to be taken, at most so many, and no more of an I/O queue than there is room for
    /// completions; how many may be taken.
    pub(super) fn ready(&mut self, qid: u16, most: usize) -> usize {
        let Some(queue) = self.submission.get_mut(&qid) else {
            return 0;
        };
        let Some(completion) = self.completion.get_mut(&queue.cqid) else {
            return 0;
        };
        let room = completion
            .advance(self.doorbells.read(queue.cqid).head)
            .and_then(|()| match queue.deleting {
                None if !completion.is_full() => {
                    // For one there may be room when it is needed.
                    let most = most.min(completion.room().max(1));
                    if !queue.is_far() {
                        queue.read_near(most)?;
                    }
                    Ok(most)
                }
                _ => Ok(0),
            });
        if queue.is_far()
            && queue.has_taken_all()
            && queue.deleting.is_none()
            && let Some(place) = queue.to_read()
        {
            queue.reading = true;
            queue.busy += 1;
            self.busy += 1;
            self.errands.read(self.asker.clone(), qid, place);
        }
        room.unwrap_or_else(|gone| {
            self.fail(gone);
            0
        })
    }

    /// Says in shadow doorbells whether to be told of commands, and of room for completions that wait.
    pub(super) fn announce(&mut self, asleep: bool) {
        // What lies one behind is passed never.
        let unless = |at: u32, told: bool| at.wrapping_sub(u32::from(!told));
        // A queue of completions may serve several queues of commands, and none of its own number.
        for (&qid, queue) in &mut self.completion {
            let tail = self.submission.get(&qid).map_or(0, SubmissionQueue::head);
            let (head, waits) = queue.announce(asleep);
            let here = Pair {
                tail: unless(tail, asleep),
                head: unless(head, waits),
            };
            self.doorbells.announce(qid, here);
        }
        for (&qid, queue) in &self.submission {
            if !self.completion.contains_key(&qid) {
                let here = Pair {
                    tail: unless(queue.head(), asleep),
                    head: unless(0, false),
                };
                self.doorbells.announce(qid, here);
            }
        }
        self.doorbells.announced();
    }

    /// Whether completions wait for room of which nobody has been asked to tell.
    pub(super) fn waits_untold(&self) -> bool {
        self.completion.values().any(CompletionQueue::waits_untold)
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
}
