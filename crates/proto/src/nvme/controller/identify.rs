//! Identify.

use super::{Controller, ControllerKind, Transport, properties};
use crate::nvme::feature::{EVENT_ANA, EVENT_DISCOVERY, EVENT_NAMESPACES};
use crate::nvme::identify::{
    self, Descriptors, IdentifyBlocks, IdentifyController, IdentifyKv, KvVendor, cns,
};
use crate::nvme::kv::KEY_BYTES_MAX;
use crate::nvme::{Csi, Namespace, NamespaceKind, PAGE_BYTES, Status, SubmissionQueueEntry};

/// KAS: 1 s.
pub(super) const KEEP_ALIVE_GRANULARITY_100MS: u16 = 10;
/// The least that a subsystem says it may have: numbers up to this answer as "not there" rather than as impossible.
const NAMESPACES_MIN: u32 = 1024;
/// A queue capsule's command and response, in 16 bytes.
const ENTRY_16B: u32 = 4;
const RESPONSE_16B: u32 = 1;

impl Controller {
    pub(super) fn identify(&self, entry: &SubmissionQueueEntry) -> Result<Vec<u8>, Status> {
        let cdw10 = entry.cdw(10);
        let nsid = entry.nsid();
        let csi_wire = (entry.cdw(11) >> 24) as u8;
        let cns = cdw10 as u8;
        if cns == cns::CONTROLLER {
            return Ok(self.identify_controller().encode());
        }
        if self.config.kind == ControllerKind::Discovery {
            return Err(Status::INVALID_FIELD);
        }
        let csi = || Csi::from_wire(csi_wire).ok_or(Status::INVALID_FIELD);
        match cns {
            // Of what is not there, or has no blocks, this structure says nothing.
            cns::NAMESPACE => Ok(match self.known(nsid)?.and_then(blocks) {
                Some(blocks) => blocks.encode(),
                None => zeroes(),
            }),
            cns::ACTIVE_NAMESPACES => self.active(nsid, None),
            cns::IO_ACTIVE_NAMESPACES => self.active(nsid, Some(csi()?)),
            cns::NAMESPACE_DESCRIPTORS => {
                let namespace = self.visible(nsid)?;
                Ok(Descriptors::of(namespace).encode())
            }
            cns::INDEPENDENT_NAMESPACE => Ok(identify::independent(self.visible(nsid)?)),
            cns::IO_NAMESPACE => {
                let csi = csi()?;
                let Some(namespace) = self.known(nsid)? else {
                    return Ok(zeroes());
                };
                match (csi, kv(namespace, self.config.result_bytes_max)) {
                    (Csi::Kv, Some(kv)) => Ok(kv.encode()),
                    // What NVM adds here (protection, streams) is not there.
                    (Csi::Nvm, None) => Ok(zeroes()),
                    _ => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
                }
            }
            cns::IO_CONTROLLER => Ok(match csi()? {
                Csi::Kv => identify::kv_controller(),
                Csi::Nvm => zeroes(),
            }),
            cns::IO_COMMAND_SETS => {
                let cntlid = (cdw10 >> 16) as u16;
                match cntlid == u16::MAX || cntlid == self.config.cntlid {
                    true => Ok(identify::io_command_sets()),
                    false => Err(Status::INVALID_CONTROLLER_IDENTIFIER),
                }
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The namespace of a number that may be one; `None` when there is none now.
    fn known(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        match nsid == 0 || nsid > self.namespaces_max() {
            true => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            false => Ok(self.visible(nsid).ok()),
        }
    }

    fn active(&self, above: u32, csi: Option<Csi>) -> Result<Vec<u8>, Status> {
        const ABOVE_MAX: u32 = u32::MAX - 2;
        if above > ABOVE_MAX {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        let namespaces = self.attached().filter(|namespace| {
            namespace.nsid > above && csi.is_none_or(|csi| csi == namespace.csi())
        });
        Ok(identify::list(namespaces.map(|namespace| namespace.nsid)))
    }

    /// The namespaces that the host sees.
    pub(super) fn attached(&self) -> impl Iterator<Item = &Namespace> {
        let namespaces = self.subsystem.namespaces.iter();
        namespaces.filter(|namespace| self.shows(namespace.csi()))
    }

    fn namespaces_max(&self) -> u32 {
        let last = self.subsystem.namespaces.last();
        last.map_or(0, |namespace| namespace.nsid)
            .max(NAMESPACES_MIN)
    }

    fn identify_controller(&self) -> IdentifyController {
        const CTRATT_HOST_ID_128: u32 = 1;
        const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
        const OACS_DOORBELLS: u16 = 1 << 8;
        const LPA_EFFECTS: u8 = 1 << 1;
        const LPA_EXTENDED: u8 = 1 << 2;
        const ONCS_COMPARE: u16 = 1;
        const ONCS_DSM: u16 = 1 << 2;
        const ONCS_WRITE_ZEROES: u16 = 1 << 3;
        const ONCS_VERIFY: u16 = 1 << 7;
        const FUSES_COMPARE_AND_WRITE: u16 = 1;
        // Present; Flush takes one namespace, not all of them.
        const VWC_PRESENT: u8 = 1 | 2 << 1;
        const SGLS_SUPPORTED: u32 = 1;
        const SGLS_OFFSET: u32 = 1 << 20;
        const SGLS_TRANSPORT: u32 = 1 << 21;
        const OFCS_DISCONNECT: u16 = 1;

        let config = &self.config;
        let io = config.kind == ControllerKind::Io;
        let base = IdentifyController {
            serial: self.subsystem.serial.clone(),
            model: self.subsystem.model.clone(),
            firmware: self.subsystem.firmware.clone(),
            mdts: mdts(config.transfer_bytes_max),
            cntlid: config.cntlid,
            version: properties::VERSION,
            async_events: if io {
                // No group ever changes its state; who reports groups has to offer the notices.
                EVENT_NAMESPACES | EVENT_ANA
            } else {
                EVENT_DISCOVERY
            },
            attributes: CTRATT_HOST_ID_128,
            controller_type: if io { 1 } else { 2 },
            abort_limit_z: 3,
            async_event_limit_z: super::events::OUTSTANDING_MAX as u8 - 1,
            log_attributes: LPA_EXTENDED | if io { LPA_EFFECTS } else { 0 },
            error_entries_z: super::logs::ERROR_ENTRIES as u8 - 1,
            submission_entry_sizes: 0x66,
            completion_entry_sizes: 0x44,
            commands_max: config.queue_entries_max.min(u32::from(u16::MAX)) as u16,
            subnqn: self.subsystem.nqn.clone(),
            ..IdentifyController::default()
        };
        let base = match io {
            false => base,
            true => IdentifyController {
                // Each host has its own. Linux takes this for leave to wait for a path, where it would fail what was in flight.
                several_controllers: true,
                ana_reporting: true,
                namespaces_max: self.namespaces_max(),
                nvm_commands: ONCS_COMPARE | ONCS_DSM | ONCS_WRITE_ZEROES | ONCS_VERIFY,
                fused: FUSES_COMPARE_AND_WRITE,
                write_cache: VWC_PRESENT,
                ..base
            },
        };
        match config.transport {
            Transport::Tcp { in_capsule_bytes } => IdentifyController {
                attributes: base.attributes | CTRATT_TRAFFIC_KEEP_ALIVE,
                keep_alive_granularity: KEEP_ALIVE_GRANULARITY_100MS,
                sgl_support: SGLS_SUPPORTED | SGLS_OFFSET | SGLS_TRANSPORT,
                command_capsule_16b: ENTRY_16B + in_capsule_bytes / 16,
                response_capsule_16b: RESPONSE_16B,
                sgl_descriptors_max: 1,
                fabrics_commands: OFCS_DISCONNECT,
                ..base
            },
            Transport::Pcie { .. } => IdentifyController {
                vendor: identify::PCI_VENDOR,
                admin_commands: OACS_DOORBELLS,
                sgl_support: SGLS_SUPPORTED,
                ..base
            },
        }
    }
}

fn zeroes() -> Vec<u8> {
    vec![0; identify::BYTES]
}

impl Controller {
    /// The most bytes that a command moves, as MDTS says it.
    pub(super) fn transfer_bytes_max(&self) -> u64 {
        match mdts(self.config.transfer_bytes_max) {
            0 => u64::MAX,
            mdts => (PAGE_BYTES as u64) << mdts,
        }
    }
}

/// Transfers of 4096 times 2 to this power bytes hold `bytes`.
fn mdts(bytes: u64) -> u8 {
    let pages = bytes.div_ceil(PAGE_BYTES as u64).max(1);
    pages
        .checked_next_power_of_two()
        .map_or(0, |pages| pages.ilog2() as u8)
}

fn blocks(namespace: &Namespace) -> Option<IdentifyBlocks> {
    match namespace.kind {
        NamespaceKind::Block {
            lba_shift,
            blocks,
            read_only,
        } => Some(IdentifyBlocks {
            blocks,
            lba_shift,
            write_protected: read_only,
            nguid: namespace.nguid,
        }),
        NamespaceKind::Kv { .. } => None,
    }
}

fn kv(namespace: &Namespace, result_bytes_max: u32) -> Option<IdentifyKv> {
    match namespace.kind {
        NamespaceKind::Kv {
            value_bytes_max,
            keys_max,
            capacity_bytes,
            used_bytes,
        } => Some(IdentifyKv {
            capacity_bytes,
            used_bytes,
            nguid: namespace.nguid,
            key_bytes_max: KEY_BYTES_MAX as u16,
            value_bytes_max,
            keys_max,
            vendor: KvVendor {
                ttl: true,
                extended_keys: true,
                ranges: true,
                result_bytes_max,
            },
        }),
        NamespaceKind::Block { .. } => None,
    }
}
