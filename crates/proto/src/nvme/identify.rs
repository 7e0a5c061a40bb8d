//! Identify data (Base 2.0, section 5.17; NVM Command Set 1.0, section 4.1.5; Key Value Command Set 1.0, section 4.1.5).
//!
//! Each structure is 4096 bytes on the wire; what is not named here is zero.

use super::page::Page;
use super::{Csi, Namespace, NamespaceKind, ana};

/// The PCI vendor of devices that this project presents: the one under which virtual NVMe devices over vfio-user are known.
pub const PCI_VENDOR: u16 = 0x4e58;
/// Bytes of every structure.
pub const BYTES: usize = 4096;
/// The most namespaces in one list.
pub const LIST_ENTRIES_MAX: usize = BYTES / 4;

/// What to identify (CNS).
pub mod cns {
    /// A namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identification descriptors of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// A namespace, of its command set.
    pub const IO_NAMESPACE: u8 = 0x05;
    /// The controller, of a command set.
    pub const IO_CONTROLLER: u8 = 0x06;
    /// Active namespaces of a command set.
    pub const IO_ACTIVE_NAMESPACES: u8 = 0x07;
    /// A namespace, whatever its command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Combinations of command sets.
    pub const IO_COMMAND_SETS: u8 = 0x1c;
}

/// A page as it travels.
pub(crate) type Data = Page<BYTES>;

/// Identify Controller (CNS 01h).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdentifyController {
    /// VID and SSVID, of a PCI device.
    pub vendor: u16,
    /// SN.
    pub serial: String,
    /// MN.
    pub model: String,
    /// FR.
    pub firmware: String,
    /// CMIC: the subsystem may have several controllers.
    pub several_controllers: bool,
    /// CMIC: Asymmetric Namespace Access is reported; of all namespaces that there may be (MNAN).
    pub ana_reporting: bool,
    /// MDTS: a command moves at most 4096 times 2 to this power bytes; 0 no bound.
    pub mdts: u8,
    /// CNTLID.
    pub cntlid: u16,
    /// VER.
    pub version: u32,
    /// OAES.
    pub async_events: u32,
    /// CTRATT.
    pub attributes: u32,
    /// CNTRLTYPE: 1 I/O, 2 discovery.
    pub controller_type: u8,
    /// OACS.
    pub admin_commands: u16,
    /// ACL, zero's based.
    pub abort_limit_z: u8,
    /// AERL, zero's based.
    pub async_event_limit_z: u8,
    /// LPA.
    pub log_attributes: u8,
    /// ELPE, zero's based.
    pub error_entries_z: u8,
    /// KAS, in 100 ms; 0 where there is no Keep Alive.
    pub keep_alive_granularity: u16,
    /// SQES.
    pub submission_entry_sizes: u8,
    /// CQES.
    pub completion_entry_sizes: u8,
    /// MAXCMD.
    pub commands_max: u16,
    /// NN.
    pub namespaces_max: u32,
    /// ONCS.
    pub nvm_commands: u16,
    /// FUSES.
    pub fused: u16,
    /// VWC.
    pub write_cache: u8,
    /// SGLS.
    pub sgl_support: u32,
    /// SUBNQN.
    pub subnqn: String,
    /// IOCCSZ, in 16 bytes.
    pub command_capsule_16b: u32,
    /// IORCSZ, in 16 bytes.
    pub response_capsule_16b: u32,
    /// ICDOFF, in 16 bytes.
    pub in_capsule_offset_16b: u16,
    /// MSDBD.
    pub sgl_descriptors_max: u8,
    /// OFCS.
    pub fabrics_commands: u16,
}

/// CMIC: two or more controllers.
const CMIC_CONTROLLERS: u8 = 1 << 1;
/// CMIC: Asymmetric Namespace Access is reported.
const CMIC_ANA: u8 = 1 << 3;

/// FRMW: one slot, the first, read-only.
const FRMW_ONE_SLOT: u8 = 0x03;

impl IdentifyController {
    /// The wire's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Data::zeroed();
        page.put_u16(0, self.vendor);
        page.put_u16(2, self.vendor);
        page.put_ascii(4, 20, &self.serial);
        page.put_ascii(24, 40, &self.model);
        page.put_ascii(64, 8, &self.firmware);
        let controllers = u8::from(self.several_controllers) * CMIC_CONTROLLERS;
        let ana = u8::from(self.ana_reporting) * CMIC_ANA;
        page.put_u8(76, controllers | ana);
        page.put_u8(77, self.mdts);
        page.put_u16(78, self.cntlid);
        page.put_u32(80, self.version);
        page.put_u32(92, self.async_events);
        page.put_u32(96, self.attributes);
        page.put_u8(111, self.controller_type);
        page.put_u16(256, self.admin_commands);
        page.put_u8(258, self.abort_limit_z);
        page.put_u8(259, self.async_event_limit_z);
        page.put_u8(260, FRMW_ONE_SLOT);
        page.put_u8(261, self.log_attributes);
        page.put_u8(262, self.error_entries_z);
        page.put_u16(320, self.keep_alive_granularity);
        page.put_u8(512, self.submission_entry_sizes);
        page.put_u8(513, self.completion_entry_sizes);
        page.put_u16(514, self.commands_max);
        page.put_u32(516, self.namespaces_max);
        page.put_u16(520, self.nvm_commands);
        page.put_u16(522, self.fused);
        page.put_u8(525, self.write_cache);
        page.put_u32(536, self.sgl_support);
        page.put_terminated(768, 256, &self.subnqn);
        page.put_u32(1792, self.command_capsule_16b);
        page.put_u32(1796, self.response_capsule_16b);
        page.put_u16(1800, self.in_capsule_offset_16b);
        page.put_u8(1803, self.sgl_descriptors_max);
        page.put_u16(1804, self.fabrics_commands);
        if self.ana_reporting {
            page.put_u32(540, self.namespaces_max);
            ana::put_capabilities(&mut page);
        }
        page.0.to_vec()
    }

    /// `None` unless it is [`BYTES`] long.
    pub fn decode(bytes: &[u8]) -> Option<IdentifyController> {
        let page = Page::<BYTES>(bytes.try_into().ok()?);
        Some(IdentifyController {
            vendor: page.u16(0),
            serial: page.text(4, 20),
            model: page.text(24, 40),
            firmware: page.text(64, 8),
            several_controllers: page.u8(76) & CMIC_CONTROLLERS != 0,
            ana_reporting: page.u8(76) & CMIC_ANA != 0,
            mdts: page.u8(77),
            cntlid: page.u16(78),
            version: page.u32(80),
            async_events: page.u32(92),
            attributes: page.u32(96),
            controller_type: page.u8(111),
            admin_commands: page.u16(256),
            abort_limit_z: page.u8(258),
            async_event_limit_z: page.u8(259),
            log_attributes: page.u8(261),
            error_entries_z: page.u8(262),
            keep_alive_granularity: page.u16(320),
            submission_entry_sizes: page.u8(512),
            completion_entry_sizes: page.u8(513),
            commands_max: page.u16(514),
            namespaces_max: page.u32(516),
            nvm_commands: page.u16(520),
            fused: page.u16(522),
            write_cache: page.u8(525),
            sgl_support: page.u32(536),
            subnqn: page.text(768, 256),
            command_capsule_16b: page.u32(1792),
            response_capsule_16b: page.u32(1796),
            in_capsule_offset_16b: page.u16(1800),
            sgl_descriptors_max: page.u8(1803),
            fabrics_commands: page.u16(1804),
        })
    }
}

/// Identify Namespace of the NVM command set (CNS 00h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdentifyBlocks {
    /// NSZE, in blocks; 0 where there is no such namespace.
    pub blocks: u64,
    /// The length of a block is 2 to this power.
    pub lba_shift: u8,
    /// NSATTR bit 0.
    pub write_protected: bool,
    /// NGUID.
    pub nguid: [u8; 16],
}

/// DLFEAT: blocks that were deallocated read as zero, and Write Zeroes deallocates on demand.
const DLFEAT_ZEROES: u8 = 0x09;

impl IdentifyBlocks {
    /// The wire's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Data::zeroed();
        for at in [0, 8, 16] {
            page.put_u64(at, self.blocks);
        }
        page.put_u8(30, NMIC_SHARED);
        page.put_u8(33, DLFEAT_ZEROES);
        page.put_u32(92, ana::GROUP);
        page.put_u8(99, u8::from(self.write_protected));
        page.put(104, &self.nguid);
        page.put_u8(130, self.lba_shift);
        page.0.to_vec()
    }

    /// `None` unless it is [`BYTES`] long, without metadata and with blocks of a possible length.
    pub fn decode(bytes: &[u8]) -> Option<IdentifyBlocks> {
        let page = Page::<BYTES>(bytes.try_into().ok()?);
        let format = usize::from(page.u8(26) & 0xf) | usize::from(page.u8(26) >> 5 & 3) << 4;
        let at = 128 + format * 4;
        let lba_shift = page.u8(at + 2);
        let blocks = page.u64(0);
        let possible = page.u16(at) == 0 && (9..=16).contains(&lba_shift);
        (possible || blocks == 0).then(|| IdentifyBlocks {
            blocks,
            lba_shift,
            write_protected: page.u8(99) & 1 != 0,
            nguid: page.array16(104),
        })
    }
}

/// NMIC: several controllers may use the namespace.
const NMIC_SHARED: u8 = 1;

/// Identify Namespace of the KV command set (CNS 05h, CSI 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdentifyKv {
    /// NSZE, in bytes.
    pub capacity_bytes: u64,
    /// NUSE, in bytes.
    pub used_bytes: u64,
    /// NGUID.
    pub nguid: [u8; 16],
    /// KVKML of the first format.
    pub key_bytes_max: u16,
    /// KVVML of the first format.
    pub value_bytes_max: u32,
    /// MNKS of the first format; 0 no bound.
    pub keys_max: u32,
    /// What else the controller can do.
    pub vendor: KvVendor,
}

/// Vendor bytes of [`IdentifyKv`]: which of our commands the controller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvVendor {
    /// Store takes a time to live.
    pub ttl: bool,
    /// Keys of up to 255 bytes: at the head of a Store, and by Extended-key verbs.
    pub extended_keys: bool,
    /// Retrieve-range and Store-part.
    pub ranges: bool,
    /// The longest result of a function, in bytes; 0 where none are run.
    pub result_bytes_max: u32,
}

const VENDOR_AT: usize = 3840;
const VENDOR_MAGIC: u32 = u32::from_le_bytes(*b"FBKV");
const VENDOR_VERSION: u16 = 1;
const VENDOR_TTL: u16 = 1;
const VENDOR_EXTENDED_KEYS: u16 = 1 << 1;
const VENDOR_EXECUTE: u16 = 1 << 2;
const VENDOR_RANGES: u16 = 1 << 3;

impl IdentifyKv {
    /// The wire's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Data::zeroed();
        page.put_u64(0, self.capacity_bytes);
        page.put_u64(16, self.used_bytes);
        page.put_u8(26, NMIC_SHARED);
        page.put_u32(36, ana::GROUP);
        page.put(48, &self.nguid);
        page.put_u16(72, self.key_bytes_max);
        page.put_u32(76, self.value_bytes_max);
        page.put_u32(80, self.keys_max);
        let vendor = &self.vendor;
        let bits = [
            (vendor.ttl, VENDOR_TTL),
            (vendor.extended_keys, VENDOR_EXTENDED_KEYS),
            (vendor.result_bytes_max > 0, VENDOR_EXECUTE),
            (vendor.ranges, VENDOR_RANGES),
        ];
        let bits: u16 = bits.iter().map(|(set, bit)| u16::from(*set) * bit).sum();
        if bits != 0 {
            page.put_u32(VENDOR_AT, VENDOR_MAGIC);
            page.put_u16(VENDOR_AT + 4, VENDOR_VERSION);
            page.put_u16(VENDOR_AT + 6, bits);
            page.put_u32(VENDOR_AT + 8, super::kv::EXTENDED_KEY_BYTES_MAX as u32);
            page.put_u32(VENDOR_AT + 12, vendor.result_bytes_max);
        }
        page.0.to_vec()
    }

    /// `None` unless it is [`BYTES`] long.
    pub fn decode(bytes: &[u8]) -> Option<IdentifyKv> {
        let page = Page::<BYTES>(bytes.try_into().ok()?);
        let ours = page.u32(VENDOR_AT) == VENDOR_MAGIC && page.u16(VENDOR_AT + 4) == VENDOR_VERSION;
        let bits = if ours { page.u16(VENDOR_AT + 6) } else { 0 };
        Some(IdentifyKv {
            capacity_bytes: page.u64(0),
            used_bytes: page.u64(16),
            nguid: page.array16(48),
            key_bytes_max: page.u16(72),
            value_bytes_max: page.u32(76),
            keys_max: page.u32(80),
            vendor: KvVendor {
                ttl: bits & VENDOR_TTL != 0,
                extended_keys: bits & VENDOR_EXTENDED_KEYS != 0,
                ranges: bits & VENDOR_RANGES != 0,
                result_bytes_max: match bits & VENDOR_EXECUTE {
                    0 => 0,
                    _ => page.u32(VENDOR_AT + 12),
                },
            },
        })
    }
}

/// VER of the KV command set's Identify Controller: 1.0.
pub(crate) fn kv_controller() -> Vec<u8> {
    let mut page = Data::zeroed();
    page.put_u32(0, 0x0001_0000);
    page.0.to_vec()
}

/// Identify Namespace, whatever its command set (CNS 08h): shared and ready.
pub(crate) fn independent(namespace: &Namespace) -> Vec<u8> {
    const NSTAT_READY: u8 = 1;
    let mut page = Data::zeroed();
    page.put_u8(1, NMIC_SHARED);
    page.put_u32(4, ana::GROUP);
    let read_only = matches!(
        namespace.kind,
        NamespaceKind::Block {
            read_only: true,
            ..
        }
    );
    page.put_u8(8, u8::from(read_only));
    page.put_u8(14, NSTAT_READY);
    page.0.to_vec()
}

/// What identifies a namespace (CNS 03h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptors {
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// Command Set Identifier.
    pub csi: Option<u8>,
}

const NIDT_NGUID: u8 = 2;
const NIDT_UUID: u8 = 3;
const NIDT_CSI: u8 = 4;

impl Descriptors {
    pub(crate) fn of(namespace: &Namespace) -> Descriptors {
        Descriptors {
            nguid: Some(namespace.nguid),
            uuid: Some(namespace.uuid),
            csi: Some(namespace.csi() as u8),
        }
    }

    /// The wire's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Data::zeroed();
        let mut at = 0;
        let csi = self.csi.map(|csi| [csi]);
        let all: [(u8, Option<&[u8]>); 3] = [
            (NIDT_NGUID, self.nguid.as_ref().map(|id| &id[..])),
            (NIDT_UUID, self.uuid.as_ref().map(|id| &id[..])),
            (NIDT_CSI, csi.as_ref().map(|id| &id[..])),
        ];
        for (kind, id) in all {
            let Some(id) = id else { continue };
            page.put(at, &[kind, id.len() as u8]);
            page.put(at + 4, id);
            at += 4 + id.len();
        }
        page.0.to_vec()
    }

    /// What is found until the list ends or makes no sense.
    pub fn decode(bytes: &[u8]) -> Descriptors {
        let mut found = Descriptors::default();
        let mut rest = bytes;
        while let Some((&[kind, len, _, _], after)) = rest.split_first_chunk::<4>() {
            let Some(id) = after.get(..usize::from(len)).filter(|_| len > 0) else {
                break;
            };
            match kind {
                NIDT_NGUID => found.nguid = id.try_into().ok(),
                NIDT_UUID => found.uuid = id.try_into().ok(),
                NIDT_CSI => found.csi = id.first().copied(),
                _ => {}
            }
            rest = &after[usize::from(len)..];
        }
        found
    }
}

/// A list of numbers, ended by 0 unless it is full.
pub(crate) fn list(nsids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut page = Data::zeroed();
    for (at, nsid) in nsids.take(LIST_ENTRIES_MAX).enumerate() {
        page.put_u32(at * 4, nsid);
    }
    page.0.to_vec()
}

/// The numbers of a list of namespaces.
pub fn list_entries(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|chunk| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
        .take_while(|nsid| *nsid != 0)
}

/// Combinations of command sets (CNS 1Ch): one, of all there are.
pub(crate) fn io_command_sets() -> Vec<u8> {
    let mut page = Data::zeroed();
    page.put_u64(0, 1 << Csi::Nvm as u8 | 1 << Csi::Kv as u8);
    page.0.to_vec()
}
