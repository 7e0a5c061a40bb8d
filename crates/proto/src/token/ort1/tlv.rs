//! The extensions of a payload: type (bit 7: critical), length, value.

use super::{OpenToken, Payload, take};
use crate::token::TokenError;

const DC_ENDPOINT: u8 = 0x81;
const SEGMENTS: u8 = 0x82;
const PROMISE: u8 = 0x03;
const MEMORY: u8 = 0x04;
const RAIL: u8 = 0x85;
const SLOT: u8 = 0x86;

/// Set in the types that may not be skipped.
const CRITICAL: u8 = 0x80;
/// The bytes of one further segment.
const SEGMENT_BYTES: usize = 16;
/// The most further segments.
pub const SEGMENTS_MAX: usize = 15;

/// The client's DC target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcEndpoint {
    /// The number of the target.
    pub dctn: u32,
    /// The global identifier of its port.
    pub gid: [u8; 16],
    /// The local identifier of its port.
    pub lid: u16,
    /// The number of its port.
    pub port: u8,
    /// Marks; none is defined yet.
    pub flags: u8,
    /// Which access key of the fabric.
    pub key_id: u32,
}

/// Memory behind the first segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Its remote key.
    pub remote_key: u32,
}

/// At most [`SEGMENTS_MAX`] segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    count: usize,
    items: [Segment; SEGMENTS_MAX],
}

impl Segments {
    /// These segments; `None` when there are too many.
    #[must_use]
    pub fn new(segments: &[Segment]) -> Option<Segments> {
        let mut items = [Segment::default(); SEGMENTS_MAX];
        items.get_mut(..segments.len())?.copy_from_slice(segments);
        Some(Segments {
            count: segments.len(),
            items,
        })
    }

    /// In the order in which they are filled or read.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.items.iter().take(self.count)
    }

    /// Whether the first segment is all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The checksum that the bytes to be stored will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// CRC-64/NVME.
    Crc64Nvme([u8; 8]),
    /// CRC-32C.
    Crc32C([u8; 4]),
    /// SHA-256.
    Sha256([u8; 32]),
}

/// What the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// An NVIDIA device's.
    Cuda,
    /// An AMD device's.
    Rocm,
    /// Another device's.
    Other,
}

/// A slot of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Its number.
    pub slot: u32,
    /// Its generation, so that a slot used again is another one.
    pub generation: u32,
}

pub(super) fn encode(token: &OpenToken, payload: &mut Payload) -> Result<(), TokenError> {
    if let Some(dc) = &token.dc {
        payload.put(&[DC_ENDPOINT, 28])?;
        payload.put(&dc.dctn.to_be_bytes())?;
        payload.put(&dc.gid)?;
        payload.put(&dc.lid.to_be_bytes())?;
        payload.put(&[dc.port, dc.flags])?;
        payload.put(&dc.key_id.to_be_bytes())?;
    }
    if !token.segments.is_empty() {
        // At most 15 segments of 16 bytes.
        payload.put(&[SEGMENTS, (token.segments.count * SEGMENT_BYTES) as u8])?;
        for segment in token.segments.iter() {
            payload.put(&segment.address.to_be_bytes())?;
            payload.put(&segment.length.to_be_bytes())?;
            payload.put(&segment.remote_key.to_be_bytes())?;
        }
    }
    match &token.promise {
        None => {}
        Some(Promise::Crc64Nvme(value)) => {
            payload.put(&[PROMISE, 9, 1])?;
            payload.put(value)?;
        }
        Some(Promise::Crc32C(value)) => {
            payload.put(&[PROMISE, 5, 2])?;
            payload.put(value)?;
        }
        Some(Promise::Sha256(value)) => {
            payload.put(&[PROMISE, 33, 3])?;
            payload.put(value)?;
        }
    }
    if let Some(kind) = token.memory {
        let number = match kind {
            MemoryKind::Host => 0,
            MemoryKind::Cuda => 1,
            MemoryKind::Rocm => 2,
            MemoryKind::Other => 3,
        };
        payload.put(&[MEMORY, 1, number])?;
    }
    if let Some(rail) = token.rail {
        payload.put(&[RAIL, 1, rail])?;
    }
    if let Some(slot) = &token.slot {
        payload.put(&[SLOT, 8])?;
        payload.put(&slot.slot.to_be_bytes())?;
        payload.put(&slot.generation.to_be_bytes())?;
    }
    Ok(())
}

/// Reads the extensions into `token`. The inner result says whether all critical ones are known.
pub(super) fn decode(
    mut rest: &[u8],
    token: &mut OpenToken,
) -> Result<Result<(), TokenError>, TokenError> {
    let malformed = TokenError::Malformed;
    let mut seen = [0u64; 4];
    let mut known = Ok(());
    while let [kind, length, later @ ..] = rest {
        let (value, after) = later
            .split_at_checked(usize::from(*length))
            .ok_or(malformed("an extension is cut short"))?;
        rest = after;
        let (word, bit) = (usize::from(kind >> 6), 1u64 << (kind & 63));
        if seen[word] & bit != 0 {
            return Err(malformed("an extension is there twice"));
        }
        seen[word] |= bit;
        let understood = match *kind {
            DC_ENDPOINT => read_dc(value, token),
            SEGMENTS => read_segments(value, token),
            PROMISE => read_promise(value, token),
            MEMORY => read_memory(value, token),
            RAIL => read_rail(value, token),
            SLOT => read_slot(value, token),
            kind if kind & CRITICAL != 0 => {
                known = Err(TokenError::Unsupported(
                    "a critical extension of the token is not known",
                ));
                continue;
            }
            _ => continue,
        };
        understood.ok_or(malformed("an extension does not follow its layout"))?;
    }
    match rest.is_empty() {
        true => Ok(known),
        false => Err(malformed("an extension is cut short")),
    }
}

fn read_dc(value: &[u8], token: &mut OpenToken) -> Option<()> {
    let mut rest: &[u8] = <&[u8; 28]>::try_from(value).ok()?;
    let dctn = u32::from_be_bytes(take(&mut rest));
    let gid = take(&mut rest);
    let lid = u16::from_be_bytes(take(&mut rest));
    let [port, flags] = take(&mut rest);
    let key_id = u32::from_be_bytes(take(&mut rest));
    token.dc = Some(DcEndpoint {
        dctn,
        gid,
        lid,
        port,
        flags,
        key_id,
    });
    (dctn != 0 && gid != [0; 16]).then_some(())
}

fn read_segments(value: &[u8], token: &mut OpenToken) -> Option<()> {
    let count = value.len() / SEGMENT_BYTES;
    if count == 0 || count > SEGMENTS_MAX || !value.len().is_multiple_of(SEGMENT_BYTES) {
        return None;
    }
    let mut rest = value;
    token.segments.count = count;
    for segment in token.segments.items.iter_mut().take(count) {
        segment.address = u64::from_be_bytes(take(&mut rest));
        segment.length = u32::from_be_bytes(take(&mut rest));
        segment.remote_key = u32::from_be_bytes(take(&mut rest));
    }
    Some(())
}

fn read_promise(value: &[u8], token: &mut OpenToken) -> Option<()> {
    token.promise = Some(match value {
        [1, value @ ..] => Promise::Crc64Nvme(value.try_into().ok()?),
        [2, value @ ..] => Promise::Crc32C(value.try_into().ok()?),
        [3, value @ ..] => Promise::Sha256(value.try_into().ok()?),
        _ => return None,
    });
    Some(())
}

fn read_memory(value: &[u8], token: &mut OpenToken) -> Option<()> {
    token.memory = Some(match value {
        [0] => MemoryKind::Host,
        [1] => MemoryKind::Cuda,
        [2] => MemoryKind::Rocm,
        [3] => MemoryKind::Other,
        _ => return None,
    });
    Some(())
}

fn read_rail(value: &[u8], token: &mut OpenToken) -> Option<()> {
    let [rail] = value else { return None };
    token.rail = Some(*rail);
    Some(())
}

fn read_slot(value: &[u8], token: &mut OpenToken) -> Option<()> {
    let mut rest: &[u8] = <&[u8; 8]>::try_from(value).ok()?;
    token.slot = Some(Slot {
        slot: u32::from_be_bytes(take(&mut rest)),
        generation: u32::from_be_bytes(take(&mut rest)),
    });
    Some(())
}
