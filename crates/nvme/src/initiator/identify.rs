//! What a controller says of itself and of its namespaces, as far as a host here uses it (Base 2.0, section 5.17).

/// Bytes of every Identify data structure.
pub(super) const IDENTIFY_BYTES: usize = 4096;

/// CNS: Identify Namespace of the NVM command set.
pub(super) const CNS_NAMESPACE: u32 = 0x00;
/// CNS: Identify Controller.
pub(super) const CNS_CONTROLLER: u32 = 0x01;
/// CNS: active namespaces above the one in the command.
pub(super) const CNS_ACTIVE_NAMESPACES: u32 = 0x02;
/// CNS: namespace identification descriptors.
pub(super) const CNS_DESCRIPTORS: u32 = 0x03;
/// CNS: Identify Namespace of the command set in the command.
pub(super) const CNS_COMMAND_SET_NAMESPACE: u32 = 0x05;
/// CSI: keys and values.
pub(super) const CSI_KV: u8 = 1;

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
    /// The most commands that it takes from a queue; 0 when it does not say.
    pub(super) commands_max: u16,
    /// Asynchronous events that it may raise.
    pub(super) events: u32,
}

impl ControllerInfo {
    /// Of the data structure; `page_shift` is 12 + CAP.MPSMIN. `None` when it is too short.
    pub(super) fn parse(data: &[u8], page_shift: u32) -> Option<ControllerInfo> {
        let data: &[u8; IDENTIFY_BYTES] = data.first_chunk()?;
        let oncs = u16_at(data, 520);
        let mdts = u32::from(data[77]);
        let capsule_bytes = u64::from(u32_at(data, 1792)) * 16;
        let nqn = &data[768..1024];
        Some(ControllerInfo {
            serial: text(&data[4..24]),
            model: text(&data[24..64]),
            firmware: text(&data[64..72]),
            version: u32_at(data, 80),
            cntlid: u16_at(data, 78),
            subsystem: text(nqn),
            transfer_bytes_max: (mdts > 0)
                .then(|| 1u64.checked_shl(page_shift + mdts))
                .flatten(),
            volatile_write_cache: data[525] & 1 != 0,
            compare: oncs & 1 != 0,
            dataset_management: oncs & 1 << 2 != 0,
            write_zeroes: oncs & 1 << 3 != 0,
            discovery: data[111] == 2,
            in_capsule_bytes_max: capsule_bytes.saturating_sub(64),
            commands_max: u16_at(data, 514),
            events: u32_at(data, 92),
        })
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
    /// Whether it refuses changes.
    pub read_only: bool,
}

/// What names a namespace wherever it is seen, and its command set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Descriptors {
    pub(super) eui64: Option<[u8; 8]>,
    pub(super) nguid: Option<[u8; 16]>,
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) csi: Option<u8>,
}

impl Descriptors {
    pub(super) fn parse(data: &[u8]) -> Descriptors {
        let mut found = Descriptors::default();
        let mut rest = data;
        while let Some(([kind, len, _, _], behind)) = rest.split_first_chunk::<4>() {
            let Some(value) = behind.get(..usize::from(*len)).filter(|_| *len > 0) else {
                break;
            };
            match kind {
                1 => found.eui64 = value.try_into().ok(),
                2 => found.nguid = value.try_into().ok(),
                3 => found.uuid = value.try_into().ok(),
                4 => found.csi = value.first().copied(),
                _ => {}
            }
            rest = &behind[usize::from(*len)..];
        }
        found
    }
}

impl BlockInfo {
    /// `None` when it is not active, or not in a format that is spoken here (metadata, blocks of odd lengths).
    pub(super) fn parse(data: &[u8]) -> Option<BlockInfo> {
        let data: &[u8; IDENTIFY_BYTES] = data.first_chunk()?;
        let format = usize::from(data[26] & 0xf) | usize::from(data[26] >> 5 & 3) << 4;
        let at = 128 + 4 * format;
        let (metadata_bytes, shift) = (u16_at(data, at), data[at + 2]);
        let blocks = u64_at(data, 0);
        let spoken = metadata_bytes == 0 && (9..=16).contains(&shift);
        let fits = blocks > 0 && blocks.checked_mul(1 << shift).is_some();
        (spoken && fits && u64_at(data, 8) > 0).then(|| BlockInfo {
            block_bytes: 1 << shift,
            blocks,
            read_only: data[99] & 1 != 0,
        })
    }
}

impl KeyValueInfo {
    pub(super) fn parse(data: &[u8]) -> Option<KeyValueInfo> {
        let data: &[u8; IDENTIFY_BYTES] = data.first_chunk()?;
        let format = 72 + 16 * usize::from(data[29] & 0xf);
        Some(KeyValueInfo {
            key_bytes_max: u16_at(data, format),
            value_bytes_max: u32_at(data, format + 4),
            keys_max: u32_at(data, format + 8),
            capacity_bytes: u64_at(data, 0),
            used_bytes: u64_at(data, 16),
            read_only: data[43] & 1 != 0,
        })
    }
}

/// Padded with spaces, or ended by NUL.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(bytes).trim().to_owned()
}

pub(super) fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([data[at], data[at + 1]])
}

pub(super) fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from(u16_at(data, at)) | u32::from(u16_at(data, at + 2)) << 16
}

pub(super) fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from(u32_at(data, at)) | u64::from(u32_at(data, at + 4)) << 32
}
