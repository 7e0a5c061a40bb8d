//! Admin commands: which there are, and what concerns them all.

use super::{AdminReply, Controller, ControllerKind, Effect, QueueName, Transport};
use crate::nvme::auth::MESSAGE_BYTES_MAX;
use crate::nvme::opcode::{self, Direction, admin, fabrics as fctype};
use crate::nvme::{PAGE_BYTES, Status, SubmissionQueueEntry, fabrics};

/// What a command comes to when all is well.
pub(super) enum Done {
    /// DW0 and DW1.
    Result(u64),
    /// Data for the host.
    Data(Vec<u8>),
    /// A result that the transport has to act on.
    Effect(Effect),
    /// Whatever else.
    Reply(AdminReply),
}

/// What an I/O controller on the host's own bus takes.
const PCIE_COMMANDS: &[u8] = &[
    admin::DELETE_IO_SQ,
    admin::CREATE_IO_SQ,
    admin::GET_LOG_PAGE,
    admin::DELETE_IO_CQ,
    admin::CREATE_IO_CQ,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::DOORBELL_BUFFER_CONFIG,
];
const FABRICS_COMMANDS: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    opcode::FABRICS,
];
/// A discovery controller has no namespaces and no I/O queues.
const DISCOVERY_COMMANDS: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    opcode::FABRICS,
];

impl Controller {
    /// How many bytes an admin or fabrics command takes from the host, by its fields; what the host offers beyond is not looked at.
    pub fn data_in_bytes(entry: &SubmissionQueueEntry) -> usize {
        match (entry.opcode(), fabrics::command_type(entry)) {
            (admin::SET_FEATURES, _) => super::features::data_in_bytes(entry),
            (opcode::FABRICS, fctype::CONNECT) => fabrics::Connect::DATA_BYTES,
            (opcode::FABRICS, fctype::AUTHENTICATION_SEND) => {
                (entry.cdw(11) as usize).min(MESSAGE_BYTES_MAX)
            }
            _ => 0,
        }
    }

    /// Answers a command of the admin queue, fabrics commands among them. `data_in` is what came from the host: at most
    /// [`data_in_bytes`](Controller::data_in_bytes).
    pub fn admin(
        &mut self,
        now_ms: u64,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> AdminReply {
        self.heard(now_ms);
        let done = match entry.opcode() {
            opcode::FABRICS if self.admin_commands().contains(&opcode::FABRICS) => {
                self.fabrics_command(0, entry, data_in)
            }
            _ => self.admin_command(entry, data_in),
        };
        self.reply(0, entry, done)
    }

    /// Answers a fabrics command of I/O queue `qid`, which is connected.
    pub fn fabrics(
        &mut self,
        now_ms: u64,
        qid: u16,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> AdminReply {
        self.heard(now_ms);
        let done = self.fabrics_command(qid, entry, data_in);
        self.reply(qid, entry, done)
    }

    fn reply(
        &mut self,
        qid: u16,
        entry: &SubmissionQueueEntry,
        done: Result<Done, Status>,
    ) -> AdminReply {
        let complete = |result, status, data, effect| AdminReply::Complete {
            result,
            status,
            data,
            effect,
        };
        let success = Status::SUCCESS;
        match done.and_then(|done| self.check_room(entry, done)) {
            Ok(Done::Result(result)) => complete(result, success, Vec::new(), Effect::None),
            Ok(Done::Data(data)) => complete(0, success, data, Effect::None),
            Ok(Done::Effect(effect)) => complete(0, success, Vec::new(), effect),
            Ok(Done::Reply(reply)) => reply,
            Err(status) => {
                let status = status.answered();
                self.logs.failed(qid, entry, status);
                complete(0, status, Vec::new(), Effect::None)
            }
        }
    }

    /// Over Fabrics the descriptor says how much the host has room for.
    fn check_room(&self, entry: &SubmissionQueueEntry, done: Done) -> Result<Done, Status> {
        if let (Done::Data(data), Transport::Tcp { .. }) = (&done, self.config.transport)
            && (entry.sgl().length as usize) < data.len()
        {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        Ok(done)
    }

    /// The opcodes this controller takes on its admin queue.
    pub(super) fn admin_commands(&self) -> &'static [u8] {
        match (&self.config.kind, self.config.transport) {
            (ControllerKind::Discovery, _) => DISCOVERY_COMMANDS,
            (ControllerKind::Io, Transport::Tcp { .. }) => FABRICS_COMMANDS,
            (ControllerKind::Io, Transport::Pcie { .. }) => PCIE_COMMANDS,
        }
    }

    fn admin_command(
        &mut self,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> Result<Done, Status> {
        self.check_authenticated(0)?;
        if !self.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        if !self.admin_commands().contains(&entry.opcode()) {
            return Err(Status::INVALID_OPCODE);
        }
        if entry.fuse() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let moves_data = opcode::direction(entry.opcode()) != Direction::None;
        let fabrics = self.is_over_fabrics();
        // Fabrics know no PRPs; on PCIe the admin queue takes nothing else.
        if moves_data && fabrics != (entry.psdt() == 1) {
            return Err(Status::INVALID_FIELD);
        }
        match entry.opcode() {
            admin::IDENTIFY => self.identify(entry).map(Done::Data),
            admin::GET_LOG_PAGE => self.get_log_page(entry).map(Done::Data),
            admin::SET_FEATURES => self.set_features(entry, data_in).map(Done::Result),
            admin::GET_FEATURES => self.get_features(entry),
            admin::ASYNC_EVENT_REQUEST => {
                self.events.request(entry.cid())?;
                Ok(Done::Reply(AdminReply::Held))
            }
            admin::KEEP_ALIVE => Ok(Done::Result(0)),
            admin::ABORT => Ok(self.abort(entry)),
            admin::DOORBELL_BUFFER_CONFIG => shadow_doorbells(entry),
            _ => self.queue_command(entry),
        }
    }

    fn abort(&self, entry: &SubmissionQueueEntry) -> Done {
        /// DW0 bit 0: the command was not aborted.
        const NOT_ABORTED: u64 = 1;
        let (sqid, cid) = (entry.cdw(10) as u16, (entry.cdw(10) >> 16) as u16);
        // Admin commands are answered at once, but for event requests, which hosts do not abort.
        match sqid != 0 && self.queues.stays(QueueName::Submission(sqid)) {
            true => Done::Reply(AdminReply::Abort { sqid, cid }),
            false => Done::Result(NOT_ABORTED),
        }
    }
}

fn shadow_doorbells(entry: &SubmissionQueueEntry) -> Result<Done, Status> {
    let (doorbells, event_indices) = (entry.prp1(), entry.prp2());
    let is_page = |address: u64| address != 0 && address.is_multiple_of(PAGE_BYTES as u64);
    match is_page(doorbells) && is_page(event_indices) && doorbells != event_indices {
        true => Ok(Done::Reply(AdminReply::ShadowDoorbells {
            doorbells,
            event_indices,
        })),
        false => Err(Status::INVALID_FIELD),
    }
}
