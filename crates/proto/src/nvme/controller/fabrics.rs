//! Fabrics commands of a connected queue, and I/O queues connecting.

use super::admin::Done;
use super::{AdminReply, Controller, ControllerKind, QueueName, Transport};
use crate::nvme::auth::{Authenticating, Names};
use crate::nvme::fabrics::{self, Connect, Property, Refused, Security, connect_at};
use crate::nvme::opcode::fabrics as fctype;
use crate::nvme::{Status, SubmissionQueueEntry};

/// The least entries of an admin queue.
const ADMIN_ENTRIES_MIN: u32 = 32;

impl Controller {
    /// Checks the Connect of an admin queue, before its controller is made.
    ///
    /// # Errors
    /// What to answer.
    pub fn check_admin_connect(connect: &Connect, queue_entries_max: u32) -> Result<(), Refused> {
        if connect.qid != 0 {
            return Err(Refused::in_command(connect_at::QID));
        }
        if connect.cntlid != fabrics::CNTLID_DYNAMIC {
            return Err(Refused::in_data(connect_at::CNTLID));
        }
        // Queues of more entries than announced are asked for by nobody who read CAP.
        let possible = ADMIN_ENTRIES_MIN..=queue_entries_max.max(ADMIN_ENTRIES_MIN);
        match possible.contains(&connect.entries) {
            true => Ok(()),
            false => Err(Refused::in_command(connect_at::SQSIZE)),
        }
    }

    /// An I/O queue joins this controller, which the Connect names.
    ///
    /// # Errors
    /// What to answer.
    pub fn connect_io(&mut self, connect: &Connect) -> Result<(), Refused> {
        let host = &self.config.host;
        let joinable = self.config.kind == ControllerKind::Io
            && matches!(self.config.transport, Transport::Tcp { .. });
        if !joinable || connect.subnqn != self.subsystem.nqn {
            return Err(Refused::in_data(connect_at::SUBNQN));
        }
        if connect.hostnqn != host.nqn || connect.host_id != host.id {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        self.check_authenticated(0)?;
        let cc = self.properties.configuration();
        let sizes = cc.submission_entry_size() == 6 && cc.completion_entry_size() == 4;
        if !self.is_ready() || !sizes {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        if connect.entries < 2 || connect.entries > self.config.queue_entries_max {
            return Err(Refused::in_command(connect_at::SQSIZE));
        }
        if connect.qid == 0 || connect.qid > self.queues.granted() {
            return Err(Refused::in_command(connect_at::QID));
        }
        match self.queues.connect(connect.qid) {
            true => Ok(()),
            false => Err(Status::INVALID_QUEUE_IDENTIFIER.into()),
        }
    }

    /// DW0 of a successful Connect: the controller's number, and whether the host has to prove who it is (ATR).
    pub fn connect_result(&self) -> u64 {
        const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
        let required = self.config.authentication.is_some();
        u64::from(self.config.cntlid) | if required { AUTHENTICATION_REQUIRED } else { 0 }
    }

    /// Fabrics: the connection of an I/O queue has ended, and nothing of it is in progress.
    pub fn disconnect_io(&mut self, qid: u16) {
        self.verifiers.remove(&qid);
        self.queues.remove(QueueName::Submission(qid));
    }

    pub(super) fn fabrics_command(
        &mut self,
        qid: u16,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> Result<Done, Status> {
        let command = fabrics::command_type(entry);
        match command {
            fctype::AUTHENTICATION_SEND => return self.authentication_send(qid, entry, data_in),
            fctype::AUTHENTICATION_RECEIVE => return self.authentication_receive(qid, entry),
            _ => self.check_authenticated(qid)?,
        }
        match (command, qid) {
            (fctype::PROPERTY_GET, 0) => {
                let property = Property::parse(entry)?;
                let value = self.properties.read(property.offset, property.size)?;
                Ok(Done::Result(value))
            }
            (fctype::PROPERTY_SET, 0) => {
                let property = Property::parse(entry)?;
                self.write_property(property.offset, property.size, property.value)
                    .map(Done::Effect)
            }
            (fctype::DISCONNECT, 1..) => match entry.cdw(10) as u16 {
                0 => Ok(Done::Reply(AdminReply::Disconnect)),
                _ => Err(Status::CONNECT_INCOMPATIBLE_FORMAT),
            },
            // A queue is connected once.
            (fctype::CONNECT, _) => Err(Status::COMMAND_SEQUENCE_ERROR),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn authentication_send(
        &mut self,
        qid: u16,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> Result<Done, Status> {
        let length = Security::parse(entry)?.length as usize;
        let message = data_in.get(..length).filter(|message| !message.is_empty());
        let message = message.ok_or(Status::INVALID_FIELD)?;
        if self.config.authentication.is_none() {
            // Where nothing is demanded there is nothing to prove with.
            return Err(Status::INVALID_OPCODE);
        }
        match self.verifiers.entry(qid).or_default().ask(message) {
            true => Ok(Done::Reply(AdminReply::Authenticate { qid })),
            false => Err(Status::COMMAND_SEQUENCE_ERROR),
        }
    }

    /// What is to be computed after [`AdminReply::Authenticate`].
    pub fn authenticating(&mut self, qid: u16) -> Option<Authenticating> {
        let demands = self.config.authentication.as_ref()?;
        let names = Names {
            host: &self.config.host.nqn,
            subsystem: &self.subsystem.nqn,
        };
        let verifier = self.verifiers.get_mut(&qid)?;
        verifier.lend(demands, names, self.config.random)
    }

    /// It was computed. The host has the usual time for what follows only from now on.
    pub fn authenticated(&mut self, now_ms: u64, qid: u16, done: Authenticating) {
        self.heard(now_ms);
        let Some(verifier) = self.verifiers.get_mut(&qid) else {
            return;
        };
        let before = verifier.is_proved();
        verifier.come_back(done);
        if qid == 0 && before && !verifier.is_proved() {
            self.unproved_ms = now_ms;
        }
    }

    fn authentication_receive(
        &mut self,
        qid: u16,
        entry: &SubmissionQueueEntry,
    ) -> Result<Done, Status> {
        let room = Security::parse(entry)?.length;
        if entry.sgl().length < room {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        let verifier = self.verifiers.get_mut(&qid);
        let message = verifier.and_then(|verifier| verifier.give(room as usize));
        message
            .map(Done::Data)
            .ok_or(Status::COMMAND_SEQUENCE_ERROR)
    }
}
