//! What a controller says of itself and of its namespaces, as far as a host here uses it (Base 2.0, section 5.17).

use forebay_proto::nvme::identify::{
    Descriptors, IdentifyBlocks, IdentifyController, IdentifyKv, KvVendor,
};
use forebay_proto::nvme::property::Capabilities;

/// A controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// The NVMe version, as major << 16 | minor << 8 | tertiary.
    pub version: u32,
    /// The controller's identifier.
    pub cntlid: u16,
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The most payload of a command, in bytes; none when there is no bound.
    pub transfer_bytes_max: Option<u64>,
    /// Whether what was written may be lost before it is flushed.
    pub volatile_write_cache: bool,
    /// Whether it knows Compare.
    pub compare: bool,
    /// Whether it knows Dataset Management.
    pub dataset_management: bool,
    /// Whether it knows Write Zeroes.
    pub write_zeroes: bool,
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// Payload that may go with an I/O command, in bytes.
    pub in_capsule_bytes_max: u64,
    /// The most commands that are in flight of an I/O queue.
    pub commands_max: u16,
}

impl ControllerInfo {
    /// Of a controller with these capabilities; `None` when the data is too short.
    pub(super) fn decode(data: &[u8], capabilities: Capabilities) -> Option<ControllerInfo> {
        let told = IdentifyController::decode(data)?;
        // CAP.MPSMIN: the unit of MDTS.
        let page_shift = 12 + (capabilities.0 >> 48 & 0xf) as u32;
        let mdts = u32::from(told.mdts);
        let capsule_bytes = u64::from(told.command_capsule_16b) * 16;
        Some(ControllerInfo {
            serial: told.serial,
            model: told.model,
            firmware: told.firmware,
            version: told.version,
            cntlid: told.cntlid,
            subsystem: told.subnqn,
            transfer_bytes_max: (mdts > 0)
                .then(|| 1u64.checked_shl(page_shift + mdts))
                .flatten(),
            volatile_write_cache: told.write_cache & 1 != 0,
            compare: told.nvm_commands & 1 != 0,
            dataset_management: told.nvm_commands & 1 << 2 != 0,
            write_zeroes: told.nvm_commands & 1 << 3 != 0,
            discovery: told.controller_type == 2,
            in_capsule_bytes_max: capsule_bytes.saturating_sub(64),
            commands_max: commands_max(told.commands_max, capabilities),
        })
    }
}

/// A queue holds one command less than it has entries. A controller may take fewer (MAXCMD), or not say.
fn commands_max(told: u16, capabilities: Capabilities) -> u16 {
    let held = capabilities.queue_entries_max().saturating_sub(1).max(1);
    let held = u16::try_from(held).unwrap_or(u16::MAX);
    match told {
        0 => held,
        told => told.min(held),
    }
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its number on this controller.
    pub nsid: u32,
    /// Its UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
    /// Its NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// What it keeps.
    pub kind: NamespaceContent,
}

/// What a namespace keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceContent {
    /// Blocks.
    Block(BlockInfo),
    /// Keys and values.
    KeyValue(KeyValueInfo),
    /// Something else, of this command set.
    Other(u8),
}

/// A namespace of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// How many.
    pub blocks: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// A namespace of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyValueInfo {
    /// The longest key, in bytes, besides extended ones.
    pub key_bytes_max: u16,
    /// The longest value, in bytes.
    pub value_bytes_max: u32,
    /// The most keys; 0 without bound.
    pub keys_max: u32,
    /// What it may hold, in bytes.
    pub capacity_bytes: u64,
    /// What it holds, in bytes.
    pub used_bytes: u64,
    /// Our vendor commands that its controller knows.
    pub vendor: KvVendor,
}

impl NamespaceInfo {
    pub(super) fn new(nsid: u32, names: &Descriptors, kind: NamespaceContent) -> NamespaceInfo {
        NamespaceInfo {
            nsid,
            uuid: names.uuid,
            nguid: names.nguid,
            kind,
        }
    }
}

impl BlockInfo {
    /// `None` when it is not active, or not in a format that is spoken here (metadata, blocks of odd lengths).
    pub(super) fn decode(data: &[u8]) -> Option<BlockInfo> {
        let told = IdentifyBlocks::decode(data)?;
        let fits = told.blocks > 0 && told.blocks <= u64::MAX >> told.lba_shift;
        fits.then(|| BlockInfo {
            block_bytes: 1 << told.lba_shift,
            blocks: told.blocks,
            read_only: told.write_protected,
        })
    }
}

impl KeyValueInfo {
    pub(super) fn decode(data: &[u8]) -> Option<KeyValueInfo> {
        let told = IdentifyKv::decode(data)?;
        Some(KeyValueInfo {
            key_bytes_max: told.key_bytes_max,
            value_bytes_max: told.value_bytes_max,
            keys_max: told.keys_max,
            capacity_bytes: told.capacity_bytes,
            used_bytes: told.used_bytes,
            vendor: told.vendor,
        })
    }
}
