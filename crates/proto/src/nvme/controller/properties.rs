//! Registers and what writing them does (Base 2.0, sections 3.1.3 and 3.5).

use super::{ControllerConfig, Effect, Transport};
use crate::nvme::Status;
use crate::nvme::property::{Capabilities, Configuration, ControllerStatus, offset};

/// VS: 2.0.
pub(super) const VERSION: u32 = 0x0002_0000;

/// Where the host wants the admin queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminQueues {
    /// Entries of the submission queue: 1 to 4096.
    pub submission_entries: u32,
    /// Its address.
    pub submission_base: u64,
    /// Entries of the completion queue: 1 to 4096.
    pub completion_entries: u32,
    /// Its address.
    pub completion_base: u64,
}

#[derive(Debug)]
pub(super) struct Properties {
    fabrics: bool,
    cap: Capabilities,
    cc: Configuration,
    csts: ControllerStatus,
    aqa: u32,
    asq: u64,
    acq: u64,
}

/// CC's bits that have a meaning here.
const CC_BITS: u32 = 0x01ff_fff1;
/// Base addresses are those of pages.
const PAGE_MASK: u64 = !0xfff;
const AQA_BITS: u32 = 0x0fff_0fff;

impl Properties {
    pub(super) fn new(config: &ControllerConfig) -> Properties {
        Properties {
            fabrics: matches!(config.transport, Transport::Tcp { .. }),
            cap: Capabilities::new(config.queue_entries_max),
            cc: Configuration::default(),
            csts: ControllerStatus::default(),
            aqa: 0,
            asq: 0,
            acq: 0,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.csts.ready() && !self.csts.fatal() && !self.csts.shuts_down()
    }

    pub(super) fn configuration(&self) -> Configuration {
        self.cc
    }

    pub(super) fn admin_queues(&self) -> AdminQueues {
        AdminQueues {
            submission_entries: (self.aqa & 0xfff) + 1,
            submission_base: self.asq,
            completion_entries: (self.aqa >> 16 & 0xfff) + 1,
            completion_base: self.acq,
        }
    }

    pub(super) fn set_ready(&mut self) {
        if self.cc.enabled() {
            self.csts.0 |= ControllerStatus::READY;
        }
    }

    pub(super) fn set_failed(&mut self) {
        self.csts.0 |= ControllerStatus::FATAL;
    }

    pub(super) fn clear_ready(&mut self) {
        self.csts = ControllerStatus::default();
    }

    /// Complete, if the host asked for it.
    pub(super) fn shutdown_done(&mut self) {
        if self.csts.shuts_down() {
            self.csts.0 &= !ControllerStatus::SHUTDOWN_OCCURRING;
            self.csts.0 |= ControllerStatus::SHUTDOWN_COMPLETE;
        }
    }

    pub(super) fn read(&self, at: u32, size: u8) -> Result<u64, Status> {
        if self.fabrics {
            return match (at, size) {
                (offset::CAP, 8) => Ok(self.cap.0),
                (offset::VS, 4) => Ok(u64::from(VERSION)),
                (offset::CC, 4) => Ok(u64::from(self.cc.0)),
                (offset::CSTS, 4) => Ok(u64::from(self.csts.0)),
                _ => Err(Status::INVALID_FIELD),
            };
        }
        match size {
            4 if at.is_multiple_of(4) => Ok(u64::from(self.dword(at))),
            8 if at.is_multiple_of(8) => {
                Ok(u64::from(self.dword(at)) | u64::from(self.dword(at + 4)) << 32)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn dword(&self, at: u32) -> u32 {
        let half = |value: u64| (value >> (at % 8 * 8)) as u32;
        match at {
            0x00 | 0x04 => half(self.cap.0),
            offset::VS => VERSION,
            offset::CC => self.cc.0,
            offset::CSTS => self.csts.0,
            offset::AQA => self.aqa,
            0x28 | 0x2c => half(self.asq),
            0x30 | 0x34 => half(self.acq),
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, at: u32, size: u8, value: u64) -> Result<Effect, Status> {
        if self.fabrics {
            return match (at, size) {
                (offset::CC, 4) => self.configure(value as u32),
                _ => Err(Status::INVALID_FIELD),
            };
        }
        match size {
            4 if at.is_multiple_of(4) => self.write_dword(at, value as u32),
            8 if at.is_multiple_of(8) => {
                let low = self.write_dword(at, value as u32)?;
                let high = self.write_dword(at + 4, (value >> 32) as u32)?;
                Ok(if low == Effect::None { high } else { low })
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn write_dword(&mut self, at: u32, value: u32) -> Result<Effect, Status> {
        let place = |old: u64| {
            let shift = at % 8 * 8;
            (old & !(0xffff_ffff << shift) | u64::from(value) << shift) & PAGE_MASK
        };
        match at {
            offset::CC => return self.configure(value),
            // Where the admin queues are does not change under them.
            _ if self.cc.enabled() => {}
            offset::AQA => self.aqa = value & AQA_BITS,
            0x28 | 0x2c => self.asq = place(self.asq),
            0x30 | 0x34 => self.acq = place(self.acq),
            _ => {}
        }
        Ok(Effect::None)
    }

    fn configure(&mut self, value: u32) -> Result<Effect, Status> {
        let new = Configuration(value);
        let old = self.cc;
        let possible = value & !CC_BITS == 0
            && matches!(new.command_sets(), 0 | 6)
            && new.page_size() == 0
            && new.arbitration() == 0
            && new.shutdown() != 3;
        if !possible {
            if self.fabrics {
                return Err(Status::INVALID_FIELD);
            }
            // A device has no way to refuse a write: it stops working (section 3.1.3.5).
            if new.enabled() {
                self.set_failed();
            }
        }
        self.cc = new;
        if old.enabled() && !new.enabled() {
            if self.fabrics {
                self.clear_ready();
            }
            return Ok(Effect::Reset);
        }
        if new.shutdown() != 0 && old.shutdown() == 0 {
            self.csts.0 |= ControllerStatus::SHUTDOWN_OCCURRING;
            return Ok(Effect::Shutdown);
        }
        if new.enabled() && !old.enabled() && !self.csts.fatal() {
            self.csts = ControllerStatus::default();
            if self.fabrics {
                self.set_ready();
            }
            return Ok(Effect::Enable);
        }
        Ok(Effect::None)
    }
}
