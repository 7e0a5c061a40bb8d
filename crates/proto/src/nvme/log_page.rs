//! Log pages (Base 2.0, section 5.16).

use super::feature::fid;
use super::opcode::{self, Direction};
use super::page::Page;
use super::{Csi, Status, SubmissionQueueEntry};

/// Which log (LID).
pub mod lid {
    /// Supported Log Pages.
    pub const SUPPORTED_LOG_PAGES: u8 = 0x00;
    /// Error Information.
    pub const ERROR_INFORMATION: u8 = 0x01;
    /// SMART / Health Information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const COMMANDS_AND_EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access.
    pub const ANA: u8 = 0x0c;
    /// Feature Identifiers Supported and Effects.
    pub const FEATURES_AND_EFFECTS: u8 = 0x12;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// A parsed Get Log Page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID.
    pub lid: u8,
    /// RAE: the event that told of the log stays reported.
    pub retain_event: bool,
    /// How many bytes are wanted: 4 to 16 GiB.
    pub bytes: u64,
    /// From where on.
    pub offset: u64,
    /// CSI.
    pub csi: u8,
}

impl GetLogPage {
    /// # Errors
    /// [`Status::INVALID_FIELD`] for an offset that is not one of dwords or is an index, and for an index of UUIDs.
    pub fn parse(entry: &SubmissionQueueEntry) -> Result<GetLogPage, Status> {
        const UUID_INDEX: u32 = 0x7f;
        const OFFSET_TYPE: u32 = 1 << 23;
        let (cdw10, cdw14) = (entry.cdw(10), entry.cdw(14));
        let dwords = u64::from(cdw10 >> 16) | u64::from(entry.cdw(11) & 0xffff) << 16;
        let offset = entry.cdw64(12);
        if !offset.is_multiple_of(4) || cdw14 & (UUID_INDEX | OFFSET_TYPE) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok(GetLogPage {
            lid: cdw10 as u8,
            retain_event: cdw10 & 1 << 15 != 0,
            bytes: (dwords + 1) * 4,
            offset,
            csi: (cdw14 >> 24) as u8,
        })
    }

    /// The entry, without a data pointer; `bytes` is rounded up to dwords.
    pub fn entry(&self, cid: u16, nsid: u32) -> SubmissionQueueEntry {
        let dwords = (self.bytes.div_ceil(4).max(1) - 1) as u32;
        let retain = u32::from(self.retain_event) << 15;
        SubmissionQueueEntry::new(opcode::admin::GET_LOG_PAGE, cid, nsid)
            .with_cdw(10, u32::from(self.lid) | retain | dwords << 16)
            .with_cdw(11, dwords >> 16)
            .with_cdw(12, self.offset as u32)
            .with_cdw(13, (self.offset >> 32) as u32)
            .with_cdw(14, u32::from(self.csi) << 24)
    }
}

/// One line of the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorEntry {
    pub(crate) count: u64,
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    pub(crate) nsid: u32,
}

impl ErrorEntry {
    pub(crate) const BYTES: usize = 64;

    pub(crate) fn encode(&self) -> [u8; ErrorEntry::BYTES] {
        const NO_LOCATION: u16 = 0xffff;
        let mut entry = Page::<{ ErrorEntry::BYTES }>::zeroed();
        entry.put_u64(0, self.count);
        entry.put_u16(8, self.sqid);
        entry.put_u16(10, self.cid);
        entry.put_u16(12, self.status.wire() << 1);
        entry.put_u16(14, NO_LOCATION);
        entry.put_u32(24, self.nsid);
        entry.0
    }
}

/// What a controller counted, for the health log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Health {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) errors: u64,
}

impl Health {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // There is no sensor; tools that warn of heat or frost shall not.
        const ROOM_TEMPERATURE_K: u16 = 298;
        let units = |bytes: u64| bytes.div_ceil(512 * 1000);
        let mut page = Page::<512>::zeroed();
        page.put_u16(1, ROOM_TEMPERATURE_K);
        page.put_u8(3, 100);
        page.put_u8(4, 10);
        page.put_u64(32, units(self.bytes_read));
        page.put_u64(48, units(self.bytes_written));
        page.put_u64(64, self.reads);
        page.put_u64(80, self.writes);
        page.put_u64(176, self.errors);
        page.0.to_vec()
    }
}

/// One slot with this revision in it.
pub(crate) fn firmware_slot(firmware: &str) -> Vec<u8> {
    let mut page = Page::<512>::zeroed();
    page.put_u8(0, 1);
    page.put_ascii(8, 8, firmware);
    page.0.to_vec()
}

/// Which logs there are; none takes an index for an offset or a parameter.
pub(crate) fn supported_log_pages(has: impl Fn(u8) -> bool) -> Vec<u8> {
    const LSUPP: u32 = 1;
    of_each_identifier(|lid| if has(lid) { LSUPP } else { 0 })
}

/// Which features there are, and whose: setting one changes neither data nor capabilities.
pub(crate) fn features_and_effects(has: impl Fn(u8) -> bool) -> Vec<u8> {
    const FSUPP: u32 = 1;
    const OF_NAMESPACE: u32 = 1 << 20;
    const OF_CONTROLLER: u32 = 1 << 21;
    of_each_identifier(|fid| match fid {
        _ if !has(fid) => 0,
        fid::KEY_VALUE_CONFIGURATION => FSUPP | OF_NAMESPACE,
        _ => FSUPP | OF_CONTROLLER,
    })
}

fn of_each_identifier(of: impl Fn(u8) -> u32) -> Vec<u8> {
    let mut page = Page::<1024>::zeroed();
    for identifier in 0..=u8::MAX {
        page.put_u32(usize::from(identifier) * 4, of(identifier));
    }
    page.0.to_vec()
}

const CSUPP: u32 = 1;
const LBCC: u32 = 1 << 1;

/// Commands of an admin queue, and I/O commands of a command set but those of which `none` is true. Nothing but "supported" and "changes data" is said: any other bit
/// makes Linux rescan or complain.
pub(crate) fn commands_and_effects(admin: &[u8], csi: Csi, none: impl Fn(&u8) -> bool) -> Vec<u8> {
    const IO_AT: usize = 1024;
    let mut page = Page::<4096>::zeroed();
    for code in admin {
        page.put_u32(usize::from(*code) * 4, CSUPP);
    }
    for code in io_commands(csi).iter().filter(|code| !none(code)) {
        let changes = match csi {
            Csi::Kv => {
                // Functions read.
                let stores = opcode::direction(*code) == Direction::ToController;
                stores && *code != opcode::kv::EXECUTE_SUBMIT || *code == opcode::kv::DELETE
            }
            Csi::Nvm => matches!(
                *code,
                opcode::nvm::WRITE | opcode::nvm::WRITE_ZEROES | opcode::nvm::DATASET_MANAGEMENT
            ),
        };
        let bits = if changes { CSUPP | LBCC } else { CSUPP };
        page.put_u32(IO_AT + usize::from(*code) * 4, bits);
    }
    page.0.to_vec()
}

fn io_commands(csi: Csi) -> &'static [u8] {
    use opcode::{kv, nvm};
    match csi {
        Csi::Nvm => &[
            nvm::FLUSH,
            nvm::WRITE,
            nvm::READ,
            nvm::COMPARE,
            nvm::WRITE_ZEROES,
            nvm::DATASET_MANAGEMENT,
            nvm::VERIFY,
        ],
        Csi::Kv => &[
            kv::FLUSH,
            kv::STORE,
            kv::RETRIEVE,
            kv::LIST,
            kv::DELETE,
            kv::EXIST,
            kv::EXECUTE,
            kv::EXECUTE_SUBMIT,
            kv::EXECUTE_FETCH,
            kv::EXTENDED_KEY,
            kv::EXECUTE_INLINE,
            kv::STORE_PART,
            kv::RETRIEVE_RANGE,
        ],
    }
}
