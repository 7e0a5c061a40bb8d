//! One command, from its entry to its end.

use std::future::poll_fn;

use forebay_io::File;
use forebay_mem::Buf;
use forebay_proto::nvme::kv::{KeyAt, KvCommand, head};
use forebay_proto::nvme::{AdminReply, Controller, Effect, IoCommand, IoVerb, Status};
use forebay_store::Store;

use super::association::Association;
use super::payload::{Pointer, TcpPayload};
use super::wire::Wire;
use super::work::{Begin, Outcome, Then, Work};
use crate::target::{Payload, Target, held_bytes};

/// What the commands of a queue share.
pub(super) struct Queue<'a, S: Store, F: File> {
    pub(super) target: &'a Target<S, F>,
    pub(super) wire: &'a Wire,
    pub(super) association: &'a Association<S>,
    pub(super) qid: u16,
    pub(super) now_ms: fn() -> u64,
}

/// DW0 bit 0 of an Abort: the command was not aborted.
const NOT_ABORTED: u64 = 1;

impl<S: Store, F: File> Queue<'_, S, F> {
    /// Does it.
    pub(super) async fn serve(&self, work: Work) -> Outcome {
        match work {
            // These are seldom: they need no place in the future of every command.
            Work::Admin(begin) => Box::pin(self.admin(begin)).await,
            Work::Io(command, begin) => self.io(command, begin).await,
            Work::Fused(first, second) => Box::pin(self.fused(first, second)).await,
            Work::Aborted(place, nsid) => {
                poll_fn(|_| self.wire.poll_refused(place)).await;
                // What it changed may be with a device, and its host goes on without it: nothing of it may land after that.
                let session = &self.association.session;
                Box::pin(self.target.settled_in(session, nsid)).await;
                Outcome::status(Status::ABORT_REQUESTED)
            }
        }
    }

    async fn io(&self, command: IoCommand, begin: Begin) -> Outcome {
        let mut payload = match self.payload(&command, &begin) {
            Ok(payload) => payload,
            Err(status) => return Outcome::status(status.answered()),
        };
        // What came with the command is held anyway, and waits for no memory: that may be lent until something behind it has come.
        let held = match begin.pointer {
            Pointer::Capsule(_) => 0,
            pointer => held_bytes(&command, pointer.len()),
        };
        let memory = match held {
            0 => None,
            held => self.association.lending.lend(held).await,
        };
        let session = &self.association.session;
        let (status, result) = self.target.execute(session, &command, &mut payload).await;
        let reads = matches!(begin.pointer, Pointer::ToHost(_));
        // What is sent is held until it is gone; what a host has still to send goes nowhere.
        let memory = memory.filter(|_| reads);
        Outcome {
            result,
            last: payload.end().await,
            memory,
            // Elsewhere the result says how much there is.
            success_by_data: matches!(command.verb, IoVerb::Nvm(_)),
            ..Outcome::status(status)
        }
    }

    async fn fused(&self, first: (IoCommand, Begin), second: (IoCommand, Begin)) -> Outcome {
        let place = first.1.place;
        let both = |status: Status| Outcome {
            first: Some((place, status)),
            ..Outcome::status(status.answered())
        };
        let payloads = self
            .payload(&first.0, &first.1)
            .and_then(|one| Ok((one, self.payload(&second.0, &second.1)?)));
        let (mut one, mut other) = match payloads {
            Ok(payloads) => payloads,
            Err(status) => return both(status),
        };
        let bytes = first.1.pointer.len();
        let bytes = bytes.saturating_add(second.1.pointer.len());
        // What the host sends, and what it is compared with.
        let memory = self.association.lending.lend(bytes.saturating_mul(2)).await;
        let (first, second) = self
            .target
            .execute_fused(
                &self.association.session,
                (&first.0, &mut one),
                (&second.0, &mut other),
            )
            .await;
        drop(memory);
        one.end().await;
        other.end().await;
        Outcome {
            first: Some((place, first)),
            ..Outcome::status(second)
        }
    }

    /// The data of a command that moves what `command` says.
    fn payload(&self, command: &IoCommand, begin: &Begin) -> Result<TcpPayload<'_>, Status> {
        let head_bytes = match command.verb {
            IoVerb::Kv(
                KvCommand::Store {
                    key: KeyAt::Head, ..
                }
                | KvCommand::StorePart {
                    key: KeyAt::Head, ..
                }
                | KvCommand::ExtendedKey { .. },
            ) => head::BYTES_MAX as u64,
            _ => 0,
        };
        let bytes = u64::from(begin.pointer.len());
        if command.bytes_to_controller.max(command.bytes_to_host) > bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        let wanted = bytes.min(command.bytes_to_controller + head_bytes);
        Ok(self.begun(begin, wanted as u32))
    }

    fn begun(&self, begin: &Begin, wanted: u32) -> TcpPayload<'_> {
        let cid = begin.entry.cid();
        TcpPayload::new(self.wire, begin.place, cid, begin.pointer, wanted)
    }

    async fn admin(&self, begin: Begin) -> Outcome {
        let entry = &begin.entry;
        if let Pointer::ToHost(_) = begin.pointer {
            // What it answers is made when there is room for it: a host, which may be anybody, reads it when it likes.
            poll_fn(|_| self.wire.poll_room(begin.place)).await;
        }
        let data_bytes = Controller::data_in_bytes(entry) as u32;
        if data_bytes > begin.pointer.len() {
            return Outcome::status(Status::DATA_SGL_LENGTH_INVALID.answered());
        }
        let mut payload = self.begun(&begin, data_bytes);
        let data = match payload.receive_first(data_bytes).await {
            Ok(data) => data,
            Err(status) => {
                payload.end().await;
                return Outcome::status(status.answered());
            }
        };
        let now_ms = (self.now_ms)();
        let session = &self.association.session;
        let shows = !session.has_to_prove() || self.association.controller().is_authenticated();
        // Before anybody waits for the controller.
        let prepared = shows.then(|| self.target.prepare(session, entry)).flatten();
        let (reply, is_authenticated) = {
            let mut controller = self.association.controller();
            if let Some(prepared) = prepared {
                prepared.show(&mut controller);
            }
            let reply = match self.qid {
                0 => controller.admin(now_ms, entry, &data),
                qid => controller.fabrics(now_ms, qid, entry, &data),
            };
            (reply, controller.is_authenticated())
        };
        let mut outcome = Outcome::status(Status::SUCCESS);
        if is_authenticated && !session.authenticated() {
            // What was to tell it that it succeeded is kept back: no success without it, nor that it need not try again.
            outcome.status = Status::CONNECT_CONTROLLER_BUSY;
            outcome.then = Then::Disconnect;
            return outcome;
        }
        match reply {
            AdminReply::Complete {
                result,
                status,
                data,
                effect,
            } => {
                outcome.status = status;
                outcome.result = result;
                outcome.then = Then::Effect(effect);
                if effect == Effect::Reset {
                    // A host that finds CSTS.RDY cleared may begin anew at once.
                    self.association.reset();
                    self.association.settled().await;
                    // Until then a part of a value, or a result, could still be put there.
                    session.reset();
                }
                if let Err(status) = payload.send(Buf::from(data)).await {
                    outcome.status = status.answered();
                }
                outcome.last = payload.end().await;
            }
            AdminReply::Authenticate { qid } => {
                let asked = self.association.controller().authenticating(qid);
                match self.target.compute(asked).await {
                    Some(done) => {
                        let mut controller = self.association.controller();
                        controller.authenticated((self.now_ms)(), qid, done);
                    }
                    None => outcome.status = Status::INTERNAL_ERROR,
                }
            }
            AdminReply::Held => outcome.then = Then::Held,
            AdminReply::Abort { sqid, cid } => {
                if !self.association.abort(sqid, cid).await {
                    outcome.result = NOT_ABORTED;
                }
            }
            AdminReply::Disconnect => outcome.then = Then::Disconnect,
            // Refused before: these are for queues in the host's memory.
            AdminReply::CreateQueue(_)
            | AdminReply::DeleteQueue(_)
            | AdminReply::ShadowDoorbells { .. } => outcome.status = Status::INVALID_OPCODE,
        }
        outcome
    }
}
