//! What a client asks of a device, and the device of its client.

use super::bytes::{put_u32, put_u64, u32_at, u64_at};
use super::{Command, DATA_BYTES_MAX, Malformed, Version, put_argsz, put_version};

const DMA_READ: u32 = 1;
const DMA_WRITE: u32 = 2;
const UNMAP_DIRTY_BITMAP: u32 = 1;
const UNMAP_ALL: u32 = 2;

const IRQ_DATA: u32 = 0x7;
const IRQ_DATA_NONE: u32 = 1;
const IRQ_DATA_BOOL: u32 = 2;
const IRQ_DATA_EVENTFD: u32 = 4;
const IRQ_ACTION: u32 = 0x38;
const IRQ_ACTION_MASK: u32 = 8;
const IRQ_ACTION_UNMASK: u32 = 16;
const IRQ_ACTION_TRIGGER: u32 = 32;

const MAP_BYTES: u32 = 32;
const UNMAP_BYTES: u32 = 24;
const INFO_BYTES: u32 = 16;
const REGION_INFO_BYTES: u32 = 32;
const SET_IRQS_BYTES: u32 = 20;
const ACCESS_BYTES: usize = 16;
const WRITES_BYTES: usize = 8;
const WRITE_BYTES: usize = 24;

/// Memory that the device may reach from now on; its file, if it has one, comes beside the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMap {
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// The address that the device knows it by.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// Memory that the device may no longer reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaUnmap {
    /// Whatever is mapped; address and size are zero then.
    pub all: bool,
    /// The address that the device knows it by.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// What comes with a [`SetIrqs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqData<'a> {
    /// Nothing: it is meant for each of them.
    None,
    /// A byte for each: whether it is meant.
    Bool(&'a [u8]),
    /// An eventfd for each, beside the message; no file at all takes away what there is.
    Eventfd,
}

/// What a [`SetIrqs`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqAction {
    /// No more interrupts for now.
    Mask,
    /// Interrupts again.
    Unmask,
    /// With eventfds: where interrupts go. Without: as if they had happened.
    Trigger,
}

/// Where interrupts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    /// What to do.
    pub action: IrqAction,
    /// What it is done with.
    pub data: IrqData<'a>,
    /// The kind of interrupt.
    pub index: u32,
    /// The first of them.
    pub start: u32,
    /// How many; none together with [`IrqData::None`] is the end of them all.
    pub count: u32,
}

/// A range of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Where it begins.
    pub offset: u64,
    /// The region.
    pub region: u32,
    /// Its length in bytes.
    pub count: u32,
}

impl Access {
    pub(super) fn parse(payload: &[u8]) -> Result<Access, Malformed> {
        let access = Access {
            offset: u64_at(payload, 0)?,
            region: u32_at(payload, 8)?,
            count: u32_at(payload, 12)?,
        };
        match access.count as usize {
            0..=DATA_BYTES_MAX => Ok(access),
            _ => Err(Malformed::TooLong("an access")),
        }
    }

    pub(super) fn put(self, out: &mut Vec<u8>) {
        put_u64(out, self.offset);
        put_u32(out, self.region);
        put_u32(out, self.count);
    }
}

/// An access with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadAccess<'a> {
    /// Which range.
    pub access: Access,
    /// As many bytes.
    pub data: &'a [u8],
}

/// The writes of a `REGION_WRITE_MULTI`, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writes<'a>(&'a [u8]);

impl<'a> Writes<'a> {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.0.len() / WRITE_BYTES) as u64
    }

    /// Each of them, of at most eight bytes; one that says more ends the rest.
    pub fn iter(&self) -> impl Iterator<Item = PayloadAccess<'a>> + use<'a> {
        self.0.chunks_exact(WRITE_BYTES).map_while(|entry| {
            let access = Access::parse(entry).ok()?;
            let data = entry.get(ACCESS_BYTES..)?.get(..access.count as usize)?;
            Some(PayloadAccess { access, data })
        })
    }
}

/// One request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first one.
    Version(Version),
    /// Memory to reach.
    DmaMap(DmaMap),
    /// Memory to let go.
    DmaUnmap(DmaUnmap),
    /// What kind of device it is.
    DeviceInfo,
    /// A region's size and form.
    RegionInfo {
        /// Bytes that the answer may have.
        room: u32,
        /// The region.
        index: u32,
    },
    /// How many interrupts of a kind there are.
    IrqInfo {
        /// The kind.
        index: u32,
    },
    /// Where interrupts go.
    SetIrqs(SetIrqs<'a>),
    /// Reads a region.
    RegionRead(Access),
    /// Writes a region.
    RegionWrite(PayloadAccess<'a>),
    /// Writes a region several times.
    RegionWriteMulti(Writes<'a>),
    /// Begin anew.
    DeviceReset,
}

impl<'a> Request<'a> {
    /// Reads the payload of a request. What follows the fields of a query is room for its answer and means nothing.
    ///
    /// # Errors
    /// When it is none that a device serves.
    pub fn parse(command: Command, payload: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let argsz = || match u32_at(payload, 0)? {
            bytes if bytes < INFO_BYTES => Err(Malformed::Truncated),
            bytes => Ok(bytes),
        };
        Ok(match command {
            Command::Version => Request::Version(Version::parse(payload)?),
            Command::DmaMap => Request::DmaMap(dma_map(payload)?),
            Command::DmaUnmap => Request::DmaUnmap(dma_unmap(payload)?),
            Command::DeviceGetInfo => {
                argsz()?;
                Request::DeviceInfo
            }
            Command::DeviceGetRegionInfo => Request::RegionInfo {
                room: argsz()?,
                index: u32_at(payload, 8)?,
            },
            Command::DeviceGetIrqInfo => {
                argsz()?;
                Request::IrqInfo {
                    index: u32_at(payload, 8)?,
                }
            }
            Command::DeviceSetIrqs => Request::SetIrqs(set_irqs(payload)?),
            Command::RegionRead => Request::RegionRead(Access::parse(payload)?),
            Command::RegionWrite => {
                let access = Access::parse(payload)?;
                let data = payload.get(ACCESS_BYTES..).unwrap_or_default();
                if data.len() != access.count as usize {
                    return Err(Malformed::Contradiction("the length of a write"));
                }
                Request::RegionWrite(PayloadAccess { access, data })
            }
            Command::RegionWriteMulti => {
                let count = u64_at(payload, 0)?;
                let entries = payload.get(WRITES_BYTES..).unwrap_or_default();
                let writes = Writes(entries);
                if count.checked_mul(WRITE_BYTES as u64) != Some(entries.len() as u64)
                    || writes.iter().count() as u64 != count
                {
                    return Err(Malformed::Contradiction("the number of writes"));
                }
                Request::RegionWriteMulti(writes)
            }
            Command::DeviceReset => Request::DeviceReset,
            Command::DeviceGetRegionIoFds => {
                return Err(Malformed::Unsupported("DEVICE_GET_REGION_IO_FDS"));
            }
            Command::DeviceFeature | Command::MigDataRead | Command::MigDataWrite => {
                return Err(Malformed::Unsupported("migration"));
            }
            Command::DmaRead | Command::DmaWrite => {
                return Err(Malformed::Unsupported("a device's request to a device"));
            }
        })
    }

    /// What it is about.
    #[must_use]
    pub fn command(&self) -> Command {
        match self {
            Request::Version(_) => Command::Version,
            Request::DmaMap(_) => Command::DmaMap,
            Request::DmaUnmap(_) => Command::DmaUnmap,
            Request::DeviceInfo => Command::DeviceGetInfo,
            Request::RegionInfo { .. } => Command::DeviceGetRegionInfo,
            Request::IrqInfo { .. } => Command::DeviceGetIrqInfo,
            Request::SetIrqs(_) => Command::DeviceSetIrqs,
            Request::RegionRead(_) => Command::RegionRead,
            Request::RegionWrite(_) => Command::RegionWrite,
            Request::RegionWriteMulti(_) => Command::RegionWriteMulti,
            Request::DeviceReset => Command::DeviceReset,
        }
    }

    /// Appends its payload.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Request::Version(version) => put_version(out, version),
            Request::DmaMap(map) => {
                put_argsz(out, MAP_BYTES);
                let readable = if map.readable { DMA_READ } else { 0 };
                let writable = if map.writable { DMA_WRITE } else { 0 };
                put_u32(out, readable | writable);
                for value in [map.offset, map.address, map.size] {
                    put_u64(out, value);
                }
            }
            Request::DmaUnmap(unmap) => {
                put_argsz(out, UNMAP_BYTES);
                put_u32(out, if unmap.all { UNMAP_ALL } else { 0 });
                put_u64(out, unmap.address);
                put_u64(out, unmap.size);
            }
            Request::DeviceInfo => put_words(out, [INFO_BYTES, 0, 0, 0]),
            Request::RegionInfo { room, index } => {
                put_words(out, [*room, 0, *index, 0, 0, 0, 0, 0]);
            }
            Request::IrqInfo { index } => put_words(out, [INFO_BYTES, 0, *index, 0]),
            Request::SetIrqs(set) => {
                let (data, bytes): (u32, &[u8]) = match set.data {
                    IrqData::None => (IRQ_DATA_NONE, &[]),
                    IrqData::Bool(bytes) => (IRQ_DATA_BOOL, bytes),
                    IrqData::Eventfd => (IRQ_DATA_EVENTFD, &[]),
                };
                let action = match set.action {
                    IrqAction::Mask => IRQ_ACTION_MASK,
                    IrqAction::Unmask => IRQ_ACTION_UNMASK,
                    IrqAction::Trigger => IRQ_ACTION_TRIGGER,
                };
                let argsz = SET_IRQS_BYTES.saturating_add(bytes.len() as u32);
                put_words(out, [argsz, data | action, set.index, set.start, set.count]);
                out.extend_from_slice(bytes);
            }
            Request::RegionRead(access) => access.put(out),
            Request::RegionWrite(write) => {
                write.access.put(out);
                out.extend_from_slice(write.data);
            }
            Request::RegionWriteMulti(writes) => {
                put_u64(out, writes.count());
                out.extend_from_slice(writes.0);
            }
            Request::DeviceReset => {}
        }
    }
}

/// Room that an answer about a region without capabilities needs.
pub(super) const REGION_INFO_ROOM: u32 = REGION_INFO_BYTES;

fn put_words<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    for word in words {
        put_u32(out, word);
    }
}

fn dma_map(payload: &[u8]) -> Result<DmaMap, Malformed> {
    let flags = u32_at(payload, 4)?;
    if flags & !(DMA_READ | DMA_WRITE) != 0 {
        return Err(Malformed::Number("what may be done with memory"));
    }
    let map = DmaMap {
        readable: flags & DMA_READ != 0,
        writable: flags & DMA_WRITE != 0,
        offset: u64_at(payload, 8)?,
        address: u64_at(payload, 16)?,
        size: u64_at(payload, 24)?,
    };
    if map.size == 0
        || map.address.checked_add(map.size).is_none()
        || map.offset.checked_add(map.size).is_none()
    {
        return Err(Malformed::Contradiction("a range of memory"));
    }
    Ok(map)
}

fn dma_unmap(payload: &[u8]) -> Result<DmaUnmap, Malformed> {
    let flags = u32_at(payload, 4)?;
    if flags & UNMAP_DIRTY_BITMAP != 0 {
        return Err(Malformed::Unsupported("a bitmap of dirty pages"));
    }
    if flags & !UNMAP_ALL != 0 {
        return Err(Malformed::Number("what is to be unmapped"));
    }
    let unmap = DmaUnmap {
        all: flags & UNMAP_ALL != 0,
        address: u64_at(payload, 8)?,
        size: u64_at(payload, 16)?,
    };
    let right = match unmap.all {
        true => unmap.address == 0 && unmap.size == 0,
        false => unmap.size != 0 && unmap.address.checked_add(unmap.size).is_some(),
    };
    if right {
        Ok(unmap)
    } else {
        Err(Malformed::Contradiction("a range of memory"))
    }
}

fn set_irqs(payload: &[u8]) -> Result<SetIrqs<'_>, Malformed> {
    let flags = u32_at(payload, 4)?;
    let (index, start, count) = (
        u32_at(payload, 8)?,
        u32_at(payload, 12)?,
        u32_at(payload, 16)?,
    );
    if start.checked_add(count).is_none() {
        return Err(Malformed::Contradiction("a range of interrupts"));
    }
    let action = match flags & IRQ_ACTION {
        IRQ_ACTION_MASK => IrqAction::Mask,
        IRQ_ACTION_UNMASK => IrqAction::Unmask,
        IRQ_ACTION_TRIGGER => IrqAction::Trigger,
        _ => return Err(Malformed::Number("what to do with interrupts")),
    };
    let data = match flags & IRQ_DATA {
        IRQ_DATA_NONE => IrqData::None,
        IRQ_DATA_BOOL => {
            let bytes = payload.get(SET_IRQS_BYTES as usize..).unwrap_or_default();
            if bytes.len() != count as usize {
                return Err(Malformed::Contradiction("the number of interrupts"));
            }
            IrqData::Bool(bytes)
        }
        IRQ_DATA_EVENTFD => IrqData::Eventfd,
        _ => return Err(Malformed::Number("what comes with interrupts")),
    };
    if flags & !(IRQ_ACTION | IRQ_DATA) != 0 {
        return Err(Malformed::Number("what to do with interrupts"));
    }
    Ok(SetIrqs {
        action,
        data,
        index,
        start,
        count,
    })
}
