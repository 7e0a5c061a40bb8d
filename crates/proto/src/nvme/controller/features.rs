//! Set and Get Features.

use super::admin::Done;
use super::{Controller, ControllerKind, Transport};
use crate::nvme::feature::{self, EVENT_DISCOVERY, EVENT_NAMESPACES, fid};
use crate::nvme::{Csi, Status, SubmissionQueueEntry};

/// Values that hosts may set and that change nothing here.
#[derive(Debug, Default)]
pub(super) struct Kept {
    arbitration: u32,
    temperature_threshold: u32,
    error_recovery: u32,
    interrupt_coalescing: u32,
    write_atomicity_normal: u32,
}

/// How long a Host Identifier is: 8 bytes, or 16 with EXHID.
fn host_identifier_bytes(entry: &SubmissionQueueEntry) -> usize {
    if entry.cdw(11) & 1 != 0 { 16 } else { 8 }
}

pub(super) fn data_in_bytes(entry: &SubmissionQueueEntry) -> usize {
    match entry.cdw(10) as u8 {
        fid::HOST_IDENTIFIER => host_identifier_bytes(entry),
        _ => 0,
    }
}

/// WCE: the volatile write cache is on; it cannot be switched off.
const WRITE_CACHE_ENABLED: u32 = 1;
/// EDNEK: deleting a key that does not exist is an error; it cannot be switched off.
const ERROR_ON_DELETE: u32 = 1;

impl Controller {
    pub(super) fn set_features(
        &mut self,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> Result<u64, Status> {
        const SAVE: u32 = 1 << 31;
        let (cdw10, value) = (entry.cdw(10), entry.cdw(11));
        if cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_IDENTIFIER_NOT_SAVEABLE);
        }
        let feature = cdw10 as u8;
        self.check_feature(feature)?;
        if feature == fid::KEY_VALUE_CONFIGURATION {
            self.check_kv(entry.nsid())?;
        } else if !matches!(entry.nsid(), 0 | u32::MAX) {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
        }
        let unchangeable = |possible: bool| match possible {
            true => Ok(0),
            false => Err(Status::FEATURE_NOT_CHANGEABLE),
        };
        let kept = match feature {
            fid::ARBITRATION => &mut self.kept.arbitration,
            fid::TEMPERATURE_THRESHOLD => &mut self.kept.temperature_threshold,
            fid::ERROR_RECOVERY => &mut self.kept.error_recovery,
            fid::INTERRUPT_COALESCING => &mut self.kept.interrupt_coalescing,
            fid::WRITE_ATOMICITY_NORMAL => &mut self.kept.write_atomicity_normal,
            fid::ASYNC_EVENT_CONFIGURATION => {
                // Only what was announced is ever told; other bits are remembered for Get Features.
                self.events.enabled = value;
                return Ok(0);
            }
            // There is one power state.
            fid::POWER_MANAGEMENT => {
                return match value & 0x1f {
                    0 => Ok(0),
                    _ => Err(Status::INVALID_FIELD),
                };
            }
            fid::VOLATILE_WRITE_CACHE => return unchangeable(value & 1 == WRITE_CACHE_ENABLED),
            fid::KEY_VALUE_CONFIGURATION => return unchangeable(value & 1 == ERROR_ON_DELETE),
            fid::NUMBER_OF_QUEUES => return self.grant_queues(value),
            fid::INTERRUPT_VECTOR_CONFIGURATION => {
                self.check_vector(value)?;
                return Ok(0);
            }
            fid::KEEP_ALIVE_TIMER => return self.set_keep_alive(value),
            fid::IO_COMMAND_SET_PROFILE => {
                return match value & 0x1ff {
                    0 => Ok(0),
                    _ => Err(Status::IO_COMMAND_SET_COMBINATION_REJECTED),
                };
            }
            fid::HOST_IDENTIFIER => return self.set_host_identifier(entry, data_in),
            _ => return Err(Status::INVALID_FIELD),
        };
        *kept = value;
        Ok(0)
    }

    pub(super) fn get_features(&mut self, entry: &SubmissionQueueEntry) -> Result<Done, Status> {
        const SELECT: u32 = 7 << 8;
        let cdw10 = entry.cdw(10);
        // Neither defaults nor saved values can be asked for (ONCS bit 4).
        if cdw10 & SELECT != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let feature = cdw10 as u8;
        self.check_feature(feature)?;
        let value = match feature {
            fid::ARBITRATION => self.kept.arbitration,
            fid::POWER_MANAGEMENT => 0,
            fid::TEMPERATURE_THRESHOLD => self.kept.temperature_threshold,
            fid::ERROR_RECOVERY => self.kept.error_recovery,
            fid::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLED,
            fid::NUMBER_OF_QUEUES => self.queues_granted(),
            fid::INTERRUPT_COALESCING => self.kept.interrupt_coalescing,
            fid::INTERRUPT_VECTOR_CONFIGURATION => self.check_vector(entry.cdw(11))?,
            fid::WRITE_ATOMICITY_NORMAL => self.kept.write_atomicity_normal,
            fid::ASYNC_EVENT_CONFIGURATION => self.events.enabled,
            fid::KEEP_ALIVE_TIMER => self.config.kato_ms,
            fid::IO_COMMAND_SET_PROFILE => 0,
            fid::KEY_VALUE_CONFIGURATION => {
                self.check_kv(entry.nsid())?;
                ERROR_ON_DELETE
            }
            fid::HOST_IDENTIFIER => {
                let id = &self.config.host.id;
                return match (host_identifier_bytes(entry), self.config.transport) {
                    (16, _) => Ok(Done::Data(id.to_vec())),
                    (_, Transport::Pcie { .. }) => Ok(Done::Data(id[..8].to_vec())),
                    _ => Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT),
                };
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Done::Result(u64::from(value)))
    }

    fn check_feature(&self, feature: u8) -> Result<(), Status> {
        match self.has_feature(feature) {
            true => Ok(()),
            false => Err(Status::INVALID_FIELD),
        }
    }

    pub(super) fn has_feature(&self, feature: u8) -> bool {
        let pcie = matches!(self.config.transport, Transport::Pcie { .. });
        match feature {
            fid::ASYNC_EVENT_CONFIGURATION => true,
            // The life of a device's host is that of its client.
            fid::KEEP_ALIVE_TIMER => !pcie,
            _ if self.config.kind == ControllerKind::Discovery => false,
            // Fabrics raise no interrupts.
            fid::INTERRUPT_COALESCING | fid::INTERRUPT_VECTOR_CONFIGURATION => pcie,
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::TEMPERATURE_THRESHOLD
            | fid::ERROR_RECOVERY
            | fid::VOLATILE_WRITE_CACHE
            | fid::NUMBER_OF_QUEUES
            | fid::WRITE_ATOMICITY_NORMAL
            | fid::IO_COMMAND_SET_PROFILE
            | fid::KEY_VALUE_CONFIGURATION
            | fid::HOST_IDENTIFIER => true,
            _ => false,
        }
    }

    fn check_kv(&self, nsid: u32) -> Result<(), Status> {
        match self.visible(nsid)?.csi() {
            Csi::Kv => Ok(()),
            Csi::Nvm => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        }
    }

    fn check_vector(&self, value: u32) -> Result<u32, Status> {
        match self.config.transport {
            Transport::Pcie { vectors } if value & 0xffff < u32::from(vectors) => {
                Ok(value & 0x1_ffff)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn grant_queues(&mut self, value: u32) -> Result<u64, Status> {
        const ALL: u32 = 0xffff;
        let (submission_z, completion_z) = (value & ALL, value >> 16);
        if submission_z == ALL || completion_z == ALL {
            return Err(Status::INVALID_FIELD);
        }
        // How many queues there can be is settled before there are any.
        if !self.queues.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let wanted = submission_z.max(completion_z) as u16 + 1;
        self.queues.grant(wanted.min(self.config.io_queues_max));
        Ok(u64::from(self.queues_granted()))
    }

    fn queues_granted(&self) -> u32 {
        let granted = self.queues.granted();
        feature::queues(granted, granted)
    }

    fn set_keep_alive(&mut self, value: u32) -> Result<u64, Status> {
        if value == 0 && self.config.kind == ControllerKind::Io {
            return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID);
        }
        self.config.kato_ms = value;
        Ok(0)
    }

    fn set_host_identifier(
        &mut self,
        entry: &SubmissionQueueEntry,
        data_in: &[u8],
    ) -> Result<u64, Status> {
        // Over Fabrics it came with Connect.
        if matches!(self.config.transport, Transport::Tcp { .. }) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let len = host_identifier_bytes(entry);
        let id = data_in.get(..len).ok_or(Status::DATA_TRANSFER_ERROR)?;
        self.config.host.id = [0; 16];
        self.config.host.id[..len].copy_from_slice(id);
        Ok(0)
    }
}

const _: () = assert!(EVENT_NAMESPACES & EVENT_DISCOVERY == 0);
