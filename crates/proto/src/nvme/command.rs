//! I/O commands, checked and routed.

use super::kv::KvCommand;
use super::nvm::NvmCommand;
use super::{Csi, Namespace, NamespaceKind, Status, SubmissionQueueEntry};

/// Whether a command is half of a fused operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// No.
    #[default]
    None,
    /// Its first half: the next command of the queue must be the second.
    First,
    /// Its second half.
    Second,
}

/// What an I/O command asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoVerb {
    /// Of a namespace of keys and values.
    Kv(KvCommand),
    /// Of a namespace of blocks.
    Nvm(NvmCommand),
}

/// An I/O command whose fields were checked against its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCommand {
    /// The namespace.
    pub nsid: u32,
    /// Whether it is half of a fused operation.
    pub fuse: Fuse,
    /// What is asked.
    pub verb: IoVerb,
    /// How many bytes it moves to the controller by its own fields. Where a key stands at the head of the payload, the key is not
    /// counted. The transport's length must be at least this.
    pub bytes_to_controller: u64,
    /// How many bytes it moves to the host at most, by its own fields. The transport's length must be at least this.
    pub bytes_to_host: u64,
}

impl IoCommand {
    /// The command of an entry for `namespace`: its command set decides what the opcode means.
    ///
    /// # Errors
    /// The status to answer.
    pub fn parse(entry: &SubmissionQueueEntry, namespace: &Namespace) -> Result<IoCommand, Status> {
        let verb = match namespace.csi() {
            Csi::Kv => IoVerb::Kv(KvCommand::parse(entry, namespace)?),
            Csi::Nvm => IoVerb::Nvm(NvmCommand::parse(entry, namespace)?),
        };
        let fuse = match (entry.fuse(), verb) {
            (0, _) => Fuse::None,
            // Compare and Write is the only fused operation there is.
            (1, IoVerb::Nvm(NvmCommand::Compare { .. })) => Fuse::First,
            (2, IoVerb::Nvm(NvmCommand::Write { .. })) => Fuse::Second,
            _ => return Err(Status::INVALID_FIELD),
        };
        let (bytes_to_controller, bytes_to_host) = match verb {
            IoVerb::Kv(command) => (command.bytes_to_controller(), command.bytes_to_host()),
            IoVerb::Nvm(command) => {
                let lba_shift = match namespace.kind {
                    NamespaceKind::Block { lba_shift, .. } => lba_shift,
                    NamespaceKind::Kv { .. } => 0,
                };
                (
                    command.bytes_to_controller(lba_shift),
                    command.bytes_to_host(lba_shift),
                )
            }
        };
        Ok(IoCommand {
            nsid: namespace.nsid,
            fuse,
            verb,
            bytes_to_controller,
            bytes_to_host,
        })
    }
}
