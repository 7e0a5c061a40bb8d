//! What was executed, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{IoCommand, IoVerb, Status};

/// The names of the commands, as metrics have them.
const NAMES: [&str; 19] = [
    "flush",
    "store",
    "retrieve",
    "delete",
    "exist",
    "list",
    "extended_key",
    "retrieve_range",
    "store_part",
    "execute",
    "execute_submit",
    "execute_fetch",
    "execute_inline",
    "read",
    "write",
    "compare",
    "write_zeroes",
    "dataset_management",
    "verify",
];

/// Counts since the target was made.
#[derive(Debug, Default)]
pub(super) struct Counters {
    commands: [Ended; NAMES.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Ended {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

/// How many commands of one name have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Such as `store`.
    pub command: &'static str,
    /// Completed with success.
    pub succeeded: u64,
    /// Completed with another status.
    pub failed: u64,
}

/// What a target has executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// By command.
    pub commands: Vec<Counted>,
    /// Payload taken from hosts, in bytes: values stored and blocks written.
    pub received_bytes: u64,
    /// Payload given to hosts, in bytes: values retrieved and blocks read.
    pub sent_bytes: u64,
}

/// The payload of one command that ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl Counters {
    /// A command has ended; tells what it moved.
    pub(super) fn count(&self, command: &IoCommand, status: Status, result: u64) -> Moved {
        let Some(ended) = self.commands.get(index(&command.verb)) else {
            return Moved::default();
        };
        if !status.is_success() {
            ended.failed.fetch_add(1, Relaxed);
            return Moved::default();
        }
        ended.succeeded.fetch_add(1, Relaxed);
        let (received_bytes, sent_bytes) = match command.verb {
            IoVerb::Kv(KvCommand::Store { .. } | KvCommand::StorePart { .. })
            | IoVerb::Nvm(NvmCommand::Write { .. }) => (command.bytes_to_controller, 0),
            IoVerb::Nvm(NvmCommand::Read { .. }) => (0, command.bytes_to_host),
            // The result is the value's length, the buffer may be shorter.
            IoVerb::Kv(KvCommand::Retrieve { .. } | KvCommand::RetrieveByHead { .. }) => {
                (0, result.min(command.bytes_to_host))
            }
            IoVerb::Kv(KvCommand::RetrieveRange { offset, .. }) => {
                let behind = result.saturating_sub(offset);
                (0, behind.min(command.bytes_to_host))
            }
            _ => (0, 0),
        };
        if received_bytes > 0 {
            self.received_bytes.fetch_add(received_bytes, Relaxed);
        }
        if sent_bytes > 0 {
            self.sent_bytes.fetch_add(sent_bytes, Relaxed);
        }
        Moved {
            received_bytes,
            sent_bytes,
        }
    }

    pub(super) fn read(&self) -> Executed {
        let commands = NAMES
            .iter()
            .zip(&self.commands)
            .map(|(command, ended)| Counted {
                command,
                succeeded: ended.succeeded.load(Relaxed),
                failed: ended.failed.load(Relaxed),
            });
        Executed {
            commands: commands.collect(),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
        }
    }
}

/// Where a command stands in [`NAMES`].
fn index(verb: &IoVerb) -> usize {
    match verb {
        IoVerb::Kv(KvCommand::Flush) | IoVerb::Nvm(NvmCommand::Flush) => 0,
        IoVerb::Kv(KvCommand::Store { .. }) => 1,
        IoVerb::Kv(KvCommand::Retrieve { .. } | KvCommand::RetrieveByHead { .. }) => 2,
        IoVerb::Kv(KvCommand::Delete { .. }) => 3,
        IoVerb::Kv(KvCommand::Exist { .. }) => 4,
        IoVerb::Kv(KvCommand::List { .. }) => 5,
        IoVerb::Kv(KvCommand::ExtendedKey { .. }) => 6,
        IoVerb::Kv(KvCommand::RetrieveRange { .. }) => 7,
        IoVerb::Kv(KvCommand::StorePart { .. }) => 8,
        IoVerb::Kv(KvCommand::Execute { .. }) => 9,
        IoVerb::Kv(KvCommand::ExecuteSubmit { .. }) => 10,
        IoVerb::Kv(KvCommand::ExecuteFetch { .. }) => 11,
        IoVerb::Kv(KvCommand::ExecuteInline { .. }) => 12,
        IoVerb::Nvm(NvmCommand::Read { .. }) => 13,
        IoVerb::Nvm(NvmCommand::Write { .. }) => 14,
        IoVerb::Nvm(NvmCommand::Compare { .. }) => 15,
        IoVerb::Nvm(NvmCommand::WriteZeroes { .. }) => 16,
        IoVerb::Nvm(NvmCommand::DatasetManagement { .. }) => 17,
        IoVerb::Nvm(NvmCommand::Verify { .. }) => 18,
    }
}
