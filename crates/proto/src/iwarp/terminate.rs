//! Why a stream is ended (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8, RFC 6581 section 9).

use std::fmt;

use super::ddp::{Header, UNTAGGED_BYTES};
use super::rdmap::READ_REQUEST_BYTES;

/// Bytes of the control field that begins a Terminate message.
pub const CONTROL_BYTES: usize = 4;
/// The longest Terminate message: control field, segment length, an untagged header and a Read Request's body.
pub const TERMINATE_BYTES_MAX: usize = CONTROL_BYTES + 2 + UNTAGGED_BYTES + READ_REQUEST_BYTES;

const HAS_LENGTH: u8 = 0x80;
const HAS_DDP_HEADER: u8 = 0x40;
const HAS_RDMAP_HEADER: u8 = 0x20;
/// The layer below DDP: what is wrong there is no segment's header.
const LAYER_MPA: u8 = 2;

/// What a peer did that ends its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// This side cannot go on.
    #[error("local catastrophic error")]
    Catastrophic,
    /// A Read Request names a buffer that does not exist.
    #[error("remote read: invalid STag")]
    ReadStag,
    /// A Read Request leaves its buffer.
    #[error("remote read: base or bounds violation")]
    ReadBounds,
    /// A Read Request of a buffer that allows none.
    #[error("remote read: access rights violation")]
    ReadAccess,
    /// A Read Request whose end is past 2^64.
    #[error("remote read: tagged offset wrap")]
    ReadWrap,
    /// A Send would invalidate what it may not.
    #[error("STag cannot be invalidated")]
    CannotInvalidate,
    /// Not version 1.
    #[error("RDMAP version")]
    RdmapVersion,
    /// Unknown, or not possible here.
    #[error("RDMAP opcode")]
    Opcode,
    /// The stream of messages makes no sense, or more reads are asked for at once than agreed.
    #[error("catastrophic error of the RDMAP stream")]
    Stream,
    /// The peer did nothing that another code tells.
    #[error("unspecified")]
    Unspecified,
    /// A tagged segment names a buffer that does not exist.
    #[error("tagged buffer: invalid STag")]
    TaggedStag,
    /// A tagged segment leaves its buffer.
    #[error("tagged buffer: base or bounds violation")]
    TaggedBounds,
    /// A tagged segment into a buffer that may not be written.
    #[error("tagged buffer: STag not associated with the stream")]
    TaggedAccess,
    /// A tagged segment whose end is past 2^64.
    #[error("tagged buffer: tagged offset wrap")]
    TaggedWrap,
    /// A tagged segment not of version 1.
    #[error("tagged buffer: DDP version")]
    TaggedVersion,
    /// Not the queue of this opcode.
    #[error("untagged buffer: queue number")]
    Queue,
    /// Not the next message.
    #[error("untagged buffer: message sequence number out of range")]
    Msn,
    /// Not the next byte of the message.
    #[error("untagged buffer: message offset")]
    Mo,
    /// The message is longer than the receiver takes.
    #[error("untagged buffer: message too long")]
    TooLong,
    /// An untagged segment not of version 1.
    #[error("untagged buffer: DDP version")]
    UntaggedVersion,
    /// The CRC does not fit the bytes.
    #[error("MPA CRC")]
    Crc,
    /// The FPDU's length cannot be.
    #[error("MPA length")]
    Length,
    /// An MPA request or reply frame that cannot be.
    #[error("MPA request or reply frame")]
    Frame,
    /// The peer wants to read deeper than this side answers.
    #[error("insufficient IRD")]
    InsufficientIrd,
    /// No ready-to-receive frame that both sides know.
    #[error("no matching RTR option")]
    NoRtr,
}

impl Fault {
    /// Its layer, error type and error code.
    pub fn code(self) -> Code {
        let (layer, etype, code) = match self {
            Fault::Catastrophic => (0, 0, 0),
            Fault::ReadStag => (0, 1, 0),
            Fault::ReadBounds => (0, 1, 1),
            Fault::ReadAccess => (0, 1, 2),
            Fault::ReadWrap => (0, 1, 4),
            Fault::CannotInvalidate => (0, 1, 9),
            Fault::RdmapVersion => (0, 2, 5),
            Fault::Opcode => (0, 2, 6),
            Fault::Stream => (0, 2, 7),
            Fault::Unspecified => (0, 2, 0xff),
            Fault::TaggedStag => (1, 1, 0),
            Fault::TaggedBounds => (1, 1, 1),
            Fault::TaggedAccess => (1, 1, 2),
            Fault::TaggedWrap => (1, 1, 3),
            Fault::TaggedVersion => (1, 1, 4),
            Fault::Queue => (1, 2, 1),
            Fault::Msn => (1, 2, 3),
            Fault::Mo => (1, 2, 4),
            Fault::TooLong => (1, 2, 5),
            Fault::UntaggedVersion => (1, 2, 6),
            Fault::Crc => (2, 0, 2),
            Fault::Length => (2, 0, 3),
            Fault::Frame => (2, 0, 4),
            Fault::InsufficientIrd => (2, 0, 6),
            Fault::NoRtr => (2, 0, 7),
        };
        Code { layer, etype, code }
    }

    /// The fault with this code.
    pub fn from_code(code: Code) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.code() == code)
    }

    /// Whether it is about the body of a Read Request.
    fn is_of_read_request(self) -> bool {
        matches!(
            self,
            Fault::ReadStag | Fault::ReadBounds | Fault::ReadAccess | Fault::ReadWrap
        )
    }

    const ALL: [Fault; 25] = [
        Fault::Catastrophic,
        Fault::ReadStag,
        Fault::ReadBounds,
        Fault::ReadAccess,
        Fault::ReadWrap,
        Fault::CannotInvalidate,
        Fault::RdmapVersion,
        Fault::Opcode,
        Fault::Stream,
        Fault::Unspecified,
        Fault::TaggedStag,
        Fault::TaggedBounds,
        Fault::TaggedAccess,
        Fault::TaggedWrap,
        Fault::TaggedVersion,
        Fault::Queue,
        Fault::Msn,
        Fault::Mo,
        Fault::TooLong,
        Fault::UntaggedVersion,
        Fault::Crc,
        Fault::Length,
        Fault::Frame,
        Fault::InsufficientIrd,
        Fault::NoRtr,
    ];
}

/// A fault as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// 0 RDMAP, 1 DDP, 2 MPA and below.
    pub layer: u8,
    /// Error type of the layer.
    pub etype: u8,
    /// Error code of the type.
    pub code: u8,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layer {} type {} code {}",
            self.layer, self.etype, self.code
        )?;
        match Fault::from_code(*self) {
            Some(fault) => write!(f, " ({fault})"),
            None => Ok(()),
        }
    }
}

/// A received Terminate message. It is fatal whatever it says: some stacks for little-endian machines swap the two halves of
/// its first byte, so the words are for people only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// As RFC 5040 lays the message out.
    pub code: Code,
    /// As the stacks with swapped halves mean it.
    pub swapped: Code,
}

impl Terminate {
    /// Reads the beginning of a message's payload; a truncated one says nothing.
    pub fn parse(payload: &[u8]) -> Option<Terminate> {
        let &[first, code, ..] = payload else {
            return None;
        };
        let (high, low) = (first >> 4, first & 0x0f);
        Some(Terminate {
            code: Code {
                layer: high,
                etype: low,
                code,
            },
            swapped: Code {
                layer: low,
                etype: high,
                code,
            },
        })
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if Fault::from_code(self.code).is_none() && Fault::from_code(self.swapped).is_some() {
            write!(f, ", or {}", self.swapped)?;
        }
        Ok(())
    }
}

/// The payload of a Terminate message for `fault`; `segment` is the offending one from its DDP header on, as far as it is
/// known, and `ulpdu_bytes` how long it said it was. It tells the headers that the fault is about: none of a fault of MPA, the body of
/// the Read Request with its header when that is refused, else the header of the segment.
pub fn encode(
    fault: Fault,
    segment: &[u8],
    ulpdu_bytes: usize,
    out: &mut [u8; TERMINATE_BYTES_MAX],
) -> usize {
    let Code { layer, etype, code } = fault.code();
    out[0] = layer << 4 | etype;
    out[1] = code;
    out[2] = 0;
    out[3] = 0;
    let header_bytes = segment.first().map(|control| Header::bytes(*control));
    let known = header_bytes.filter(|bytes| layer != LAYER_MPA && *bytes <= segment.len());
    let Some(mut told) = known else {
        return CONTROL_BYTES;
    };
    out[2] = HAS_LENGTH | HAS_DDP_HEADER;
    let whole = UNTAGGED_BYTES + READ_REQUEST_BYTES;
    if fault.is_of_read_request() && whole <= segment.len() {
        out[2] |= HAS_RDMAP_HEADER;
        told = whole;
    }
    out[4..6].copy_from_slice(&(ulpdu_bytes as u16).to_be_bytes());
    out[6..6 + told].copy_from_slice(&segment[..told]);
    6 + told
}
