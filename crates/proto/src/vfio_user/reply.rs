//! The payloads of answers.

use super::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::request::REGION_INFO_ROOM;
use super::{Access, DmaUnmap, IRQS, Malformed, PayloadAccess, REGIONS};

pub use super::dma::{parse_dma_read, parse_dma_written, put_dma_read, put_dma_written};

const DEVICE_RESET: u32 = 1;
const DEVICE_PCI: u32 = 2;
const REGION_READ: u32 = 1;
const REGION_WRITE: u32 = 2;
const REGION_MMAP: u32 = 4;
const REGION_CAPS: u32 = 8;
const IRQ_EVENTFD: u32 = 1;
const IRQ_NORESIZE: u32 = 8;

const CAPABILITY_SPARSE_MMAP: u16 = 1;
const CAPABILITY_HEADER_BYTES: usize = 8;
const AREA_BYTES: usize = 16;

/// A part of a region that can be mapped through a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where it begins in the region.
    pub offset: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// What a region is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Which.
    pub index: u32,
    /// Its length in bytes; none when the device has no such region.
    pub size: u64,
    /// The one part that can be mapped, and where that lies in the file beside the message, if there is one.
    pub mappable: Option<(Area, u64)>,
}

/// Appends what kind of device this is: a PCI one that can be reset.
pub fn put_device_info(out: &mut Vec<u8>) {
    for word in [16, DEVICE_RESET | DEVICE_PCI, REGIONS, IRQS] {
        put_u32(out, word);
    }
}

/// Reads it: how many regions and kinds of interrupt a PCI device has.
///
/// # Errors
/// When it is none, or another kind of device.
pub fn parse_device_info(payload: &[u8]) -> Result<(u32, u32), Malformed> {
    if u32_at(payload, 4)? & DEVICE_PCI == 0 {
        return Err(Malformed::Unsupported("another device than a PCI one"));
    }
    Ok((u32_at(payload, 8)?, u32_at(payload, 12)?))
}

/// Appends what a region is like. Its mappable part is told only to who has `room` for it; who has not is told how much it takes.
pub fn put_region(out: &mut Vec<u8>, region: &Region, room: u32) {
    let with_area = REGION_INFO_ROOM + (CAPABILITY_HEADER_BYTES + 8 + AREA_BYTES) as u32;
    let access = match region.size {
        0 => 0,
        _ => REGION_READ | REGION_WRITE,
    };
    let (argsz, flags, offset) = match region.mappable {
        Some((_, offset)) => (with_area, access | REGION_MMAP | REGION_CAPS, offset),
        None => (REGION_INFO_ROOM, access, 0),
    };
    let area = region
        .mappable
        .filter(|_| room >= with_area)
        .map(|(area, _)| area);
    let capabilities_at = if area.is_some() { REGION_INFO_ROOM } else { 0 };
    for word in [argsz, flags, region.index, capabilities_at] {
        put_u32(out, word);
    }
    put_u64(out, region.size);
    put_u64(out, offset);
    if let Some(area) = area {
        put_u16(out, CAPABILITY_SPARSE_MMAP);
        put_u16(out, 1);
        // The next capability, of which there is none; one area; reserved.
        for word in [0, 1, 0] {
            put_u32(out, word);
        }
        put_u64(out, area.offset);
        put_u64(out, area.size);
    }
}

/// Reads what a region is like; the second value is the room that the whole answer takes, when it was not given.
///
/// # Errors
/// When it is none.
pub fn parse_region(payload: &[u8]) -> Result<(Region, Option<u32>), Malformed> {
    let (argsz, flags) = (u32_at(payload, 0)?, u32_at(payload, 4)?);
    let mut region = Region {
        index: u32_at(payload, 8)?,
        size: u64_at(payload, 16)?,
        mappable: None,
    };
    let file_offset = u64_at(payload, 24)?;
    if flags & REGION_MMAP == 0 {
        return Ok((region, None));
    }
    if flags & REGION_CAPS == 0 {
        let whole = Area {
            offset: 0,
            size: region.size,
        };
        region.mappable = Some((whole, file_offset));
        return Ok((region, None));
    }
    let mut at = u32_at(payload, 12)? as usize;
    if at == 0 {
        return Ok((region, Some(argsz)));
    }
    // Each capability lies behind the one before it: the chain has an end.
    while at != 0 {
        let next = u32_at(payload, at.saturating_add(4))? as usize;
        if u16_at(payload, at)? == CAPABILITY_SPARSE_MMAP {
            let areas = at + CAPABILITY_HEADER_BYTES;
            if u32_at(payload, areas)? > 0 {
                let area = Area {
                    offset: u64_at(payload, areas + 8)?,
                    size: u64_at(payload, areas + 16)?,
                };
                let end = area.offset.checked_add(area.size);
                if end.is_none_or(|end| end > region.size) {
                    return Err(Malformed::Contradiction("a part of a region"));
                }
                region.mappable = Some((area, file_offset));
            }
            break;
        }
        if next != 0 && next <= at {
            return Err(Malformed::Contradiction("a chain of capabilities"));
        }
        at = next;
    }
    Ok((region, None))
}

/// Appends how many interrupts of a kind there are; they go to eventfds.
pub fn put_irq(out: &mut Vec<u8>, index: u32, count: u32) {
    let flags = match count {
        0 => 0,
        _ => IRQ_EVENTFD | IRQ_NORESIZE,
    };
    for word in [16, flags, index, count] {
        put_u32(out, word);
    }
}

/// Reads how many interrupts there are.
///
/// # Errors
/// When it is none.
pub fn parse_irq(payload: &[u8]) -> Result<u32, Malformed> {
    u32_at(payload, 12)
}

/// Appends an access: in front of what was read, or by itself after a write.
pub fn put_access(out: &mut Vec<u8>, access: Access) {
    access.put(out);
}

/// Reads what was read.
///
/// # Errors
/// When there are not as many bytes as it says.
pub fn parse_read(payload: &[u8]) -> Result<PayloadAccess<'_>, Malformed> {
    let access = Access::parse(payload)?;
    let data = payload.get(16..).unwrap_or_default();
    if data.len() != access.count as usize {
        return Err(Malformed::Contradiction("the length of a read"));
    }
    Ok(PayloadAccess { access, data })
}

/// Appends what was unmapped.
pub fn put_unmapped(out: &mut Vec<u8>, unmap: &DmaUnmap) {
    super::Request::DmaUnmap(*unmap).put(out);
}

/// Appends how many writes of several were done.
pub fn put_written(out: &mut Vec<u8>, count: u64) {
    put_u64(out, count);
}
