//! Get Log Page, and what the logs keep.

use std::collections::VecDeque;

use super::{Controller, ControllerKind};
use crate::nvme::log_page::{
    ErrorEntry, GetLogPage, Health, commands_and_effects, features_and_effects, firmware_slot, lid,
    supported_log_pages,
};
use crate::nvme::nvm::NvmCommand;
use crate::nvme::{Csi, IoCommand, IoVerb, Status, SubmissionQueueEntry, ana, identify};

/// Entries of the error log (ELPE + 1).
pub(super) const ERROR_ENTRIES: usize = 16;
/// A host that asks for more of a log than there is gets zeroes up to here.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Logs {
    errors: VecDeque<ErrorEntry>,
    pub(super) health: Health,
    /// Changed since the log was last read, in ascending order, each once.
    changed: Vec<u32>,
    /// The namespaces that the log of Asymmetric Namespace Access told last, and how often they were others than before.
    told: Vec<u32>,
    told_changes: u64,
}

impl Logs {
    pub(super) fn failed(&mut self, sqid: u16, entry: &SubmissionQueueEntry, status: Status) {
        self.health.errors += 1;
        self.errors.truncate(ERROR_ENTRIES - 1);
        self.errors.push_front(ErrorEntry {
            count: self.health.errors,
            sqid,
            cid: entry.cid(),
            status,
            nsid: entry.nsid(),
        });
    }

    pub(super) fn io(&mut self, command: &IoCommand) {
        // What is compared was read, and nothing was written.
        let compared = match command.verb {
            IoVerb::Nvm(NvmCommand::Compare { .. }) => command.bytes_to_controller,
            _ => 0,
        };
        let (read, written) = match compared {
            0 => (command.bytes_to_host, command.bytes_to_controller),
            compared => (compared, 0),
        };
        if written > 0 {
            self.health.writes += 1;
            self.health.bytes_written += written;
        } else if read > 0 {
            self.health.reads += 1;
            self.health.bytes_read += read;
        }
    }

    pub(super) fn namespace_changed(&mut self, nsid: u32) {
        if let Err(at) = self.changed.binary_search(&nsid) {
            // One more than fits says "too many" for ever after.
            if self.changed.len() <= identify::LIST_ENTRIES_MAX {
                self.changed.insert(at, nsid);
            }
        }
    }

    fn changed_list(&self) -> Vec<u8> {
        const TOO_MANY: u32 = u32::MAX;
        match self.changed.len() > identify::LIST_ENTRIES_MAX {
            true => identify::list([TOO_MANY].into_iter()),
            false => identify::list(self.changed.iter().copied()),
        }
    }

    fn ana(&mut self, attached: Vec<u32>, groups_only: bool) -> Vec<u8> {
        if self.told != attached {
            self.told = attached;
            self.told_changes += 1;
        }
        ana::log(&self.told, self.told_changes, groups_only)
    }

    fn error_log(&self) -> Vec<u8> {
        let mut log = Vec::with_capacity(ERROR_ENTRIES * ErrorEntry::BYTES);
        for entry in &self.errors {
            log.extend_from_slice(&entry.encode());
        }
        log.resize(ERROR_ENTRIES * ErrorEntry::BYTES, 0);
        log
    }
}

impl Controller {
    pub(super) fn get_log_page(&mut self, entry: &SubmissionQueueEntry) -> Result<Vec<u8>, Status> {
        let asked = GetLogPage::parse(entry)?;
        if !self.has_log(asked.lid) {
            return Err(Status::INVALID_LOG_PAGE);
        }
        let log = match asked.lid {
            lid::SUPPORTED_LOG_PAGES => supported_log_pages(|lid| self.has_log(lid)),
            lid::ERROR_INFORMATION => self.logs.error_log(),
            lid::HEALTH => {
                // Of the controller, not of one namespace (LPA bit 0).
                if !matches!(entry.nsid(), 0 | u32::MAX) {
                    return Err(Status::INVALID_FIELD);
                }
                self.logs.health.encode()
            }
            lid::FIRMWARE_SLOT => firmware_slot(&self.subsystem.firmware),
            lid::CHANGED_NAMESPACES => self.logs.changed_list(),
            lid::COMMANDS_AND_EFFECTS => {
                let csi = Csi::from_wire(asked.csi).ok_or(Status::INVALID_FIELD)?;
                let none = |code: &u8| !self.has_command(csi, *code);
                commands_and_effects(self.admin_commands(), csi, none)
            }
            lid::ANA => {
                let attached = self.attached().map(|namespace| namespace.nsid);
                let attached = attached.collect();
                let groups_only = entry.cdw(10) & ana::RETURN_GROUPS_ONLY != 0;
                self.logs.ana(attached, groups_only)
            }
            lid::FEATURES_AND_EFFECTS => features_and_effects(|fid| self.has_feature(fid)),
            lid::DISCOVERY => self.discovery.encode(),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let offset = usize::try_from(asked.offset).unwrap_or(usize::MAX);
        let rest = log
            .get(offset..)
            .filter(|rest| !rest.is_empty())
            .ok_or(Status::INVALID_FIELD)?;
        let wanted = usize::try_from(asked.bytes).unwrap_or(usize::MAX);
        let mut data = rest[..rest.len().min(wanted)].to_vec();
        data.resize(data.len().max(wanted.min(ANSWER_BYTES_MAX)), 0);
        self.check_log_room(entry, wanted)?;
        if !asked.retain_event {
            if asked.lid == lid::CHANGED_NAMESPACES {
                self.logs.changed.clear();
            }
            self.events.log_read(asked.lid);
        }
        Ok(data)
    }

    fn has_log(&self, lid: u8) -> bool {
        let kind = &self.config.kind;
        match lid {
            lid::SUPPORTED_LOG_PAGES | lid::ERROR_INFORMATION | lid::FEATURES_AND_EFFECTS => true,
            lid::HEALTH
            | lid::FIRMWARE_SLOT
            | lid::CHANGED_NAMESPACES
            | lid::COMMANDS_AND_EFFECTS
            | lid::ANA => *kind == ControllerKind::Io,
            lid::DISCOVERY => *kind == ControllerKind::Discovery,
            _ => false,
        }
    }

    /// A host that has no room for what it asks does not lose the event.
    fn check_log_room(&self, entry: &SubmissionQueueEntry, wanted: usize) -> Result<(), Status> {
        match self.is_over_fabrics() && (entry.sgl().length as usize) < wanted {
            true => Err(Status::DATA_SGL_LENGTH_INVALID),
            false => Ok(()),
        }
    }
}
