//! One controller: the association of one host with one subsystem.

mod admin;
mod events;
mod fabrics;
mod features;
mod identify;
mod logs;
mod properties;
mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::auth::{Authentication, Verifier};
use super::discovery::DiscoveryLog;
use super::kv::KvCommand;
use super::{
    Csi, IoCommand, IoVerb, Namespace, NamespaceKind, Status, SubmissionQueueEntry, Subsystem,
};
use events::{Events, Notice};
use features::Kept;
use logs::Logs;
pub use properties::AdminQueues;
use properties::Properties;
use queues::Queues;

/// How its queues reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Fabrics over TCP.
    Tcp {
        /// Data that may follow a command in its capsule on an I/O queue, in bytes; a multiple of 16.
        in_capsule_bytes: u32,
    },
    /// Queues in the host's memory.
    Pcie {
        /// Interrupt vectors, 0 to this less one.
        vectors: u16,
    },
}

/// What a controller is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerKind {
    /// Namespaces.
    Io,
    /// Telling where subsystems are.
    Discovery,
}

/// Who the host is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostIdentity {
    /// HOSTNQN; empty where the transport knows none.
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
}

/// What is known of a controller when it is made.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// CNTLID: 0 to FFEFh.
    pub cntlid: u16,
    /// What it is for.
    pub kind: ControllerKind,
    /// How its queues reach the host.
    pub transport: Transport,
    /// Who the host is.
    pub host: HostIdentity,
    /// The most entries of a queue: 2 to 65536.
    pub queue_entries_max: u32,
    /// The most I/O queues, of each direction.
    pub io_queues_max: u16,
    /// The most bytes a command moves; MDTS is made from it, rounded up to a power of two.
    pub transfer_bytes_max: u64,
    /// The longest result of a function (the vendor's Execute commands), in bytes; 0: there are no such commands.
    pub result_bytes_max: u32,
    /// The host's Keep Alive Timeout, in milliseconds; 0 none.
    pub kato_ms: u32,
    /// What the host has to prove on each queue before anything else; `None`: nothing.
    pub authentication: Option<Authentication>,
    /// Fills bytes with random ones, fit for keys.
    pub random: fn(&mut [u8]),
}

/// What a transport has to do after a property was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// CC.EN became 1. On PCIe: set the admin queues up ([`Controller::admin_queues`]), then say
    /// [`enabled`](Controller::enabled) or [`failed`](Controller::failed). Over Fabrics it is ready already.
    Enable,
    /// CC.EN became 0: drop the I/O queues and what is in progress (on PCIe the admin queues, too, then say
    /// [`reset_done`](Controller::reset_done)).
    Reset,
    /// CC.SHN was written: finish and drop the I/O queues, then say [`shutdown_done`](Controller::shutdown_done).
    Shutdown,
}

/// The answer to an admin or fabrics command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminReply {
    /// Send `data` (empty unless the command succeeded and has some), then this completion.
    Complete {
        /// DW0 and DW1.
        result: u64,
        /// How it ended.
        status: Status,
        /// Controller-to-host data: what the host asked for and no more.
        data: Vec<u8>,
        /// What else the transport has to do, after the completion.
        effect: Effect,
    },
    /// No completion now: [`Controller::next_event`] gives it.
    Held,
    /// Try to cancel this command; then complete with status success and DW0 bit 0 clear if it was cancelled (it is completed with
    /// [`Status::ABORT_REQUESTED`]), set if not.
    Abort {
        /// The submission queue of the command.
        sqid: u16,
        /// Its identifier.
        cid: u16,
    },
    /// PCIe: make this queue, then complete. Where that fails, say [`Controller::undo_create`].
    CreateQueue(QueueRequest),
    /// PCIe: end this queue (commands in progress of a submission queue are aborted), say [`Controller::deleted`], then complete with
    /// success.
    DeleteQueue(QueueName),
    /// PCIe: use these pages as doorbells of all I/O queues from now on.
    ShadowDoorbells {
        /// Where the host writes doorbells.
        doorbells: u64,
        /// Where the controller says when it wants to be told.
        event_indices: u64,
    },
    /// Fabrics: compute what [`Controller::authenticating`] gives for this queue, where that keeps nobody waiting; give it to
    /// [`Controller::authenticated`], then complete with success.
    Authenticate {
        /// The queue.
        qid: u16,
    },
    /// Fabrics: complete with success, then close this I/O queue's connection.
    Disconnect,
}

/// Names a queue of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueName {
    /// A submission queue.
    Submission(u16),
    /// A completion queue.
    Completion(u16),
}

/// A queue that the host wants made. Its fields were checked, but not its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRequest {
    /// A submission queue.
    Submission {
        /// Its number: 1 or more.
        qid: u16,
        /// The completion queue it uses, which exists.
        cqid: u16,
        /// How many entries.
        entries: u32,
        /// Where, in the host's memory.
        base: u64,
    },
    /// A completion queue.
    Completion {
        /// Its number: 1 or more.
        qid: u16,
        /// How many entries.
        entries: u32,
        /// Where, in the host's memory.
        base: u64,
        /// Its interrupt vector, if it raises any.
        vector: Option<u16>,
    },
}

/// A held command that is completed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The Asynchronous Event Request's identifier.
    pub cid: u16,
    /// DW0 of its completion; the status is success.
    pub result: u64,
}

/// One controller. Its admin queue and its I/O queues share it.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    subsystem: Arc<Subsystem>,
    discovery: Arc<DiscoveryLog>,
    properties: Properties,
    queues: Queues,
    events: Events,
    logs: Logs,
    kept: Kept,
    verifiers: BTreeMap<u16, Verifier>,
    /// Since when its host has not proved who it is.
    unproved_ms: u64,
    heard_ms: u64,
}

impl Controller {
    /// A disabled controller that shows `subsystem`, at `now_ms` of any clock that never goes back.
    pub fn new(now_ms: u64, config: ControllerConfig, subsystem: Arc<Subsystem>) -> Controller {
        Controller {
            properties: Properties::new(&config),
            queues: Queues::new(config.io_queues_max),
            config,
            subsystem,
            discovery: Arc::default(),
            events: Events::default(),
            logs: Logs::default(),
            kept: Kept::default(),
            verifiers: BTreeMap::new(),
            unproved_ms: now_ms,
            heard_ms: now_ms,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// What it shows.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Whether it takes commands: CSTS.RDY is set and the controller is not shut down.
    pub fn is_ready(&self) -> bool {
        self.properties.is_ready()
    }

    /// Reads a property of 4 or 8 bytes. On PCIe halves of 8-byte properties can be read, and what does not exist reads as zero.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] when there is no such property of that size.
    pub fn read_property(&self, offset: u32, size: u8) -> Result<u64, Status> {
        self.properties.read(offset, size)
    }

    /// Writes a property of 4 or 8 bytes. On PCIe what cannot be written is left as it is.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] when there is no such property of that size that can be written, or the value is not possible.
    pub fn write_property(&mut self, offset: u32, size: u8, value: u64) -> Result<Effect, Status> {
        let effect = self.properties.write(offset, size, value)?;
        if effect == Effect::Reset {
            self.queues.reset();
            self.events.reset();
            self.kept = Kept::default();
            self.verifiers.retain(|qid, _| *qid == 0);
        }
        Ok(effect)
    }

    /// PCIe: where the host wants the admin queues.
    pub fn admin_queues(&self) -> AdminQueues {
        self.properties.admin_queues()
    }

    /// PCIe: the admin queues work; CSTS.RDY is set.
    pub fn enabled(&mut self) {
        self.properties.set_ready();
    }

    /// PCIe: the controller cannot go on; CSTS.CFS is set until it is reset.
    pub fn failed(&mut self) {
        self.properties.set_failed();
    }

    /// Reset: nothing is in progress any more; CSTS.RDY is cleared.
    pub fn reset_done(&mut self) {
        self.properties.clear_ready();
    }

    /// Shutdown: the I/O queues are gone; CSTS.SHST says complete.
    pub fn shutdown_done(&mut self) {
        self.properties.shutdown_done();
    }

    /// Checks an I/O command of queue `qid` and finds its namespace. Counts as a sign of life.
    ///
    /// # Errors
    /// The status to answer.
    pub fn io(
        &mut self,
        now_ms: u64,
        qid: u16,
        entry: &SubmissionQueueEntry,
    ) -> Result<IoCommand, Status> {
        self.heard(now_ms);
        let command = self.io_command(qid, entry);
        match command {
            Ok(command) => {
                self.logs.io(&command);
                Ok(command)
            }
            Err(status) => {
                let status = status.answered();
                self.logs.failed(qid, entry, status);
                Err(status)
            }
        }
    }

    fn io_command(&self, qid: u16, entry: &SubmissionQueueEntry) -> Result<IoCommand, Status> {
        self.check_authenticated(qid)?;
        if !self.is_ready() || qid == 0 {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let command = IoCommand::parse(entry, self.visible(entry.nsid())?)?;
        let moved = command.bytes_to_controller.max(command.bytes_to_host);
        if matches!(command.verb, IoVerb::Nvm(_)) && moved > self.transfer_bytes_max() {
            return Err(Status::INVALID_FIELD);
        }
        if let IoVerb::Kv(KvCommand::RetrieveByHead { .. }) = command.verb
            && self.is_over_fabrics()
        {
            return Err(Status::INVALID_KEY_SIZE);
        }
        if let IoVerb::Kv(verb) = &command.verb
            && let Some(result_bytes) = verb.result_bytes()
        {
            let both_ways = matches!(verb, KvCommand::Execute { .. });
            if !self.executes(both_ways) {
                return Err(Status::INVALID_OPCODE);
            }
            if result_bytes > self.config.result_bytes_max {
                return Err(Status::INVALID_VALUE_SIZE);
            }
        }
        Ok(command)
    }

    /// Whether there are commands that run functions, and such whose data goes both ways: fabrics have none.
    fn executes(&self, both_ways: bool) -> bool {
        self.config.result_bytes_max > 0 && !(both_ways && self.is_over_fabrics())
    }

    /// Where the data of one command goes one way.
    fn is_over_fabrics(&self) -> bool {
        matches!(self.config.transport, Transport::Tcp { .. })
    }

    /// Whether this controller has a command that its command set may have.
    fn has_command(&self, csi: Csi, code: u8) -> bool {
        use super::opcode::kv;
        match (csi, code) {
            (Csi::Kv, kv::EXECUTE) => self.executes(true),
            (Csi::Kv, kv::EXECUTE_SUBMIT | kv::EXECUTE_FETCH | kv::EXECUTE_INLINE) => {
                self.executes(false)
            }
            _ => true,
        }
    }

    /// Shows another state of the subsystem: the host is told what changed.
    pub fn set_subsystem(&mut self, subsystem: Arc<Subsystem>) {
        let old = std::mem::replace(&mut self.subsystem, subsystem);
        let new = self.subsystem.clone();
        let differs = |a: &Subsystem, namespace: &Namespace| {
            a.namespace(namespace.nsid)
                .is_none_or(|other| !looks_same(other, namespace))
        };
        let changed = old.namespaces.iter().filter(|old| differs(&new, old));
        let added = new.namespaces.iter().filter(|new| differs(&old, new));
        for namespace in changed.chain(added) {
            self.logs.namespace_changed(namespace.nsid);
            self.events.raise(Notice::Namespaces);
        }
    }

    /// Discovery: shows this log. If it tells the host something new, the host is told so, and finds the log's generation.
    pub fn set_discovery(&mut self, log: Arc<DiscoveryLog>) {
        if log.entries != self.discovery.entries {
            self.events.raise(Notice::Discovery);
            self.discovery = log;
        }
    }

    /// A held Asynchronous Event Request that is completed now. To be asked until there is none, after commands and changes.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.next()
    }

    /// When the association ends for want of a sign of life, unless there was one since: after twice the timeout that the host set;
    /// `None`: never. Over Fabrics a host is given up after two minutes on a discovery controller, which anybody gets, whatever timeout it
    /// set; so is one that does not prove who it is.
    pub fn keep_alive_deadline_ms(&self) -> Option<u64> {
        const DISCOVERY_IDLE_MS: u64 = 120_000;
        const AUTHENTICATION_MS: u64 = 120_000;
        // The host fetches the answer that says why before the association ends.
        const FAREWELL_MS: u64 = 100;
        if self.check_authenticated(0).is_err() {
            let until = self.unproved_ms.saturating_add(AUTHENTICATION_MS);
            let failed = self.verifiers.get(&0).is_some_and(Verifier::is_failed);
            return Some(match failed {
                true => until.min(self.heard_ms.saturating_add(FAREWELL_MS)),
                false => until,
            });
        }
        let granularity_ms = u64::from(identify::KEEP_ALIVE_GRANULARITY_100MS) * 100;
        let kato_ms = u64::from(self.config.kato_ms).next_multiple_of(granularity_ms);
        // It is a whole interval without a command that counts, and the last command may be at the begin of the one before: there are hosts
        // that say nothing for nearly as long as one and take themselves to be in time.
        let patience_ms = 2 * kato_ms;
        let idle_ms = match (patience_ms, &self.config.kind) {
            (0, ControllerKind::Io) => return None,
            (0, ControllerKind::Discovery) => DISCOVERY_IDLE_MS,
            (patience_ms, ControllerKind::Discovery) => patience_ms.min(DISCOVERY_IDLE_MS),
            (patience_ms, ControllerKind::Io) => patience_ms,
        };
        Some(self.heard_ms.saturating_add(idle_ms))
    }

    fn heard(&mut self, now_ms: u64) {
        self.heard_ms = self.heard_ms.max(now_ms);
    }

    /// Whether the host chose to see namespaces of this command set (CC.CSS).
    fn shows(&self, csi: Csi) -> bool {
        match self.properties.configuration().command_sets() {
            0 => csi == Csi::Nvm,
            6 => true,
            _ => false,
        }
    }

    fn visible(&self, nsid: u32) -> Result<&Namespace, Status> {
        self.subsystem
            .namespace(nsid)
            .filter(|namespace| self.shows(namespace.csi()))
            .ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)
    }

    /// Whether the host had to prove who it is, and has.
    pub fn is_authenticated(&self) -> bool {
        self.config.authentication.is_some() && self.check_authenticated(0).is_ok()
    }

    /// Nothing is answered on a queue before the host has proved who it is there.
    fn check_authenticated(&self, qid: u16) -> Result<(), Status> {
        let proved = self.verifiers.get(&qid).is_some_and(Verifier::is_proved);
        match self.config.authentication.is_none() || proved {
            true => Ok(()),
            false => Err(Status::AUTHENTICATION_REQUIRED),
        }
    }
}

/// Whether a host has nothing to learn from the difference. How full a namespace is it finds out when it asks.
fn looks_same(a: &Namespace, b: &Namespace) -> bool {
    let without_use = |namespace: &Namespace| {
        let mut namespace = namespace.clone();
        if let NamespaceKind::Kv { used_bytes, .. } = &mut namespace.kind {
            *used_bytes = 0;
        }
        namespace
    };
    without_use(a) == without_use(b)
}
