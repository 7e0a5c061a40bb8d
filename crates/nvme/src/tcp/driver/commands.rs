//! The commands of a queue: from their capsule to their completion.

use std::future::Future;

use forebay_proto::nvme::opcode::FABRICS;
use forebay_proto::nvme::{CompletionQueueEntry, Effect, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::{FatalErrorStatus, Fault};
use forebay_store::Store;

use super::Driver;
use crate::target::Fused;
use crate::tcp::association::Ending;
use crate::tcp::end::End;
use crate::tcp::payload::Pointer;
use crate::tcp::receiver::Capsule;
use crate::tcp::work::{Begin, Outcome, Then, Work};

impl<S: Store, F: Future<Output = Outcome>, N: Fn(Work) -> F> Driver<'_, S, F, N> {
    /// Completes a command that has ended.
    pub(super) fn complete(&mut self, place: usize, outcome: Outcome) {
        if let Some((first, status)) = outcome.first {
            self.fused.retain(|pair| pair.0 != first);
            self.complete_waiting(first, status);
        }
        {
            let mut state = self.wire.state();
            state.ended(place);
            if let Some((_, payload)) = &outcome.last {
                state.kept_promise(payload.len());
            }
        }
        let Some(cid) = self.cids.get_mut(place).and_then(Option::take) else {
            return;
        };
        let success = outcome.status.is_success();
        match outcome.then {
            Then::Nothing => {}
            Then::Held => return self.held.push(cid),
            Then::Effect(Effect::None | Effect::Enable) => {}
            // The controller has forgotten them, and so has the host.
            Then::Effect(Effect::Reset) => self.held.clear(),
            Then::Effect(Effect::Shutdown) => self.association.shut_down(),
            Then::Disconnect => self.end(Ending::Soon),
        }
        let mut implied = false;
        if let Some((mut data, payload)) = outcome.last.filter(|_| success) {
            implied = outcome.success_by_data && !self.queue.flow_control && outcome.result == 0;
            data.last = true;
            data.success = implied;
            self.wire
                .state()
                .sender
                .data(&data, payload, outcome.memory);
        }
        if !implied {
            self.respond(cid, outcome.status, outcome.result);
        }
        if !self.aborting.is_empty() {
            for (_, answer) in self.aborting.extract_if(.., |(at, _)| *at == place) {
                // Whoever asked may have been given up, too.
                let _ = answer.send(true);
            }
        }
    }

    /// Completes a command that has a place and does not run in it.
    fn complete_waiting(&mut self, place: usize, status: Status) {
        self.slots.give_back(place);
        self.complete(place, Outcome::status(status.answered()));
    }

    fn respond(&self, cid: u16, status: Status, result: u64) {
        let entry = CompletionQueueEntry {
            result,
            sq_head: self.queue.head,
            // Reserved over fabrics.
            sq_id: 0,
            cid,
            status,
        };
        self.wire.state().sender.completion(&entry.encode(false));
    }

    /// Completes held commands by what has happened.
    pub(super) fn raise_events(&mut self) {
        if self.held.is_empty() {
            return;
        }
        loop {
            let event = self.association.controller().next_event();
            let Some(event) = event else {
                return;
            };
            self.held.retain(|cid| *cid != event.cid);
            self.respond(event.cid, Status::SUCCESS, event.result);
        }
    }

    /// Starts a command.
    pub(super) fn take(&mut self, capsule: &Capsule) -> Result<(), End> {
        let entry = SubmissionQueueEntry::from_bytes(&capsule.entry);
        let cid = entry.cid();
        if self.queue.flow_control {
            self.queue.head = ((u32::from(self.queue.head) + 1) % self.queue.entries.max(1)) as u16;
        }
        let known = self.cids.contains(&Some(cid)) || self.held.contains(&cid);
        let room = self.slots.busy() + self.held.len() < self.queue.entries as usize;
        let place = self.slots.place().filter(|_| room);
        let Some(place) = place else {
            // More than its queue has entries.
            return Err(End::Fault(Fault::of(FatalErrorStatus::PduSequenceError)));
        };
        if known {
            self.slots.give_back(place);
            self.wire.state().receiver.consume(capsule);
            self.respond(cid, Status::CID_CONFLICT.answered(), 0);
            return Ok(());
        }
        if self.cids.len() <= place {
            self.cids.resize(place + 1, None);
            self.nsids.resize(place + 1, 0);
        }
        self.cids[place] = Some(cid);
        self.nsids[place] = entry.nsid();
        let pointer = match capsule.damaged {
            true => Err(Status::TRANSIENT_TRANSPORT_ERROR),
            false => Pointer::of(&entry, capsule.data.len()),
        };
        self.wire.state().begin(place, capsule.data.clone());
        let goes_on = self.begin(place, entry, pointer);
        let mut state = self.wire.state();
        state.begun(goes_on);
        state.receiver.consume(capsule);
        drop(state);
        self.settle()
    }

    /// Starts a command, or what it is a part of; says whether it goes on.
    fn begin(
        &mut self,
        place: usize,
        entry: SubmissionQueueEntry,
        pointer: Result<Pointer, Status>,
    ) -> bool {
        let qid = self.queue.qid;
        let pointer = match pointer {
            Ok(pointer) => pointer,
            Err(status) => {
                self.interrupt();
                self.complete_waiting(place, status);
                return false;
            }
        };
        let begin = Begin {
            place,
            entry,
            pointer,
        };
        if qid == 0 || entry.opcode() == FABRICS {
            self.interrupt();
            return self.start(place, Work::Admin(begin));
        }
        let now_ms = (self.now_ms)();
        let command = self.association.controller().io(now_ms, qid, &entry);
        let command = match command {
            Ok(command) => command,
            Err(status) => {
                self.interrupt();
                self.complete_waiting(place, status);
                return false;
            }
        };
        let mut fused = self.fuser.next(command, begin);
        loop {
            match fused {
                Fused::Wait => return true,
                Fused::One(command, begin) => return self.start(place, Work::Io(command, begin)),
                Fused::Both(first, second) => {
                    self.fused.push((first.1.place, place));
                    return self.start(place, Work::Fused(first, second));
                }
                Fused::Missing(first, (command, begin)) => {
                    self.complete_waiting(first.place, Status::ABORTED_MISSING_FUSED);
                    fused = self.fuser.next(command, begin);
                }
                Fused::Alone(begin) => {
                    self.complete_waiting(begin.place, Status::ABORTED_MISSING_FUSED);
                    return false;
                }
            }
        }
    }

    /// The first half of a fused operation, if one waits, will have no second.
    fn interrupt(&mut self) {
        if let Some(first) = self.fuser.interrupted() {
            self.complete_waiting(first.place, Status::ABORTED_MISSING_FUSED);
        }
    }

    pub(super) fn start(&mut self, place: usize, work: Work) -> bool {
        match self.slots.start(place, (self.begin)(work)) {
            Some(outcome) => {
                self.complete(place, outcome);
                false
            }
            None => true,
        }
    }
}
