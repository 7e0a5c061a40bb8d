//! Segment headers (RFC 5041 section 4), whose second control byte belongs to RDMAP (RFC 5040 section 4.1).

use super::{Fault, rdmap::Opcode};

/// Bytes of a tagged header.
pub const TAGGED_BYTES: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_BYTES: usize = 18;
/// The queue of Send messages.
pub const QUEUE_SEND: u32 = 0;
/// The queue of Read Requests.
pub const QUEUE_READ_REQUEST: u32 = 1;
/// The queue of the Terminate message.
pub const QUEUE_TERMINATE: u32 = 2;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION_MASK: u8 = 0x03;
const DDP_VERSION: u8 = 1;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const RDMAP_VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;

/// The header of a segment that names its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// What the message is.
    pub opcode: Opcode,
    /// Whether this segment ends its message.
    pub last: bool,
    /// The buffer.
    pub stag: u32,
    /// Where in it, from its base.
    pub offset: u64,
}

/// The header of a segment that goes to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untagged {
    /// What the message is.
    pub opcode: Opcode,
    /// Whether this segment ends its message.
    pub last: bool,
    /// The STag to invalidate, for the opcodes that do; reserved (zero) else.
    pub invalidate: u32,
    /// The queue.
    pub queue: u32,
    /// Message sequence number: 1 for a queue's first message.
    pub msn: u32,
    /// Where in the message this segment begins.
    pub mo: u32,
}

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Names its place.
    Tagged(Tagged),
    /// Goes to a queue.
    Untagged(Untagged),
}

impl Header {
    /// Bytes of the header that begins with this control byte.
    pub fn bytes(control: u8) -> usize {
        if control & TAGGED != 0 {
            TAGGED_BYTES
        } else {
            UNTAGGED_BYTES
        }
    }

    /// Reads the header at the start of a ULPDU. Reserved bits are ignored, as RFC 5041 section 4.1 demands of receivers.
    ///
    /// # Errors
    /// [`Fault::Length`] when it is cut short, a version fault, or [`Fault::Opcode`] for an unknown opcode or one of the other model.
    pub fn parse(ulpdu: &[u8]) -> Result<Header, Fault> {
        let &[control, rdmap, ..] = ulpdu else {
            return Err(Fault::Length);
        };
        let tagged = control & TAGGED != 0;
        if control & DDP_VERSION_MASK != DDP_VERSION {
            return Err(if tagged {
                Fault::TaggedVersion
            } else {
                Fault::UntaggedVersion
            });
        }
        if rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION {
            return Err(Fault::RdmapVersion);
        }
        let opcode = Opcode::from_wire(rdmap & OPCODE_MASK).ok_or(Fault::Opcode)?;
        if opcode.is_tagged() != tagged {
            return Err(Fault::Opcode);
        }
        let last = control & LAST != 0;
        if tagged {
            let header = ulpdu.first_chunk::<TAGGED_BYTES>().ok_or(Fault::Length)?;
            Ok(Header::Tagged(Tagged {
                opcode,
                last,
                stag: u32_at(header, 2),
                offset: u64_at(header, 6),
            }))
        } else {
            let header = ulpdu.first_chunk::<UNTAGGED_BYTES>().ok_or(Fault::Length)?;
            Ok(Header::Untagged(Untagged {
                opcode,
                last,
                invalidate: u32_at(header, 2),
                queue: u32_at(header, 6),
                msn: u32_at(header, 10),
                mo: u32_at(header, 14),
            }))
        }
    }
}

impl Tagged {
    /// As sent.
    pub fn encode(&self) -> [u8; TAGGED_BYTES] {
        let mut out = [0; TAGGED_BYTES];
        out[0] = TAGGED | DDP_VERSION | if self.last { LAST } else { 0 };
        out[1] = RDMAP_VERSION | self.opcode.to_wire();
        out[2..6].copy_from_slice(&self.stag.to_be_bytes());
        out[6..14].copy_from_slice(&self.offset.to_be_bytes());
        out
    }
}

impl Untagged {
    /// As sent.
    pub fn encode(&self) -> [u8; UNTAGGED_BYTES] {
        let mut out = [0; UNTAGGED_BYTES];
        out[0] = DDP_VERSION | if self.last { LAST } else { 0 };
        out[1] = RDMAP_VERSION | self.opcode.to_wire();
        out[2..6].copy_from_slice(&self.invalidate.to_be_bytes());
        out[6..10].copy_from_slice(&self.queue.to_be_bytes());
        out[10..14].copy_from_slice(&self.msn.to_be_bytes());
        out[14..18].copy_from_slice(&self.mo.to_be_bytes());
        out
    }
}

/// The number at `at`, which the caller's fixed length holds.
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(field)
}

/// As [`u32_at`], of eight bytes.
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(field)
}
