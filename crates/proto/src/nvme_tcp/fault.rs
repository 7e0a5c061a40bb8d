//! Why a connection is ended, and the PDU that says so (section 3.6.2.3 and 3.6.2.4).

use std::fmt;

use super::pdu::{PduType, TERM_HLEN};

/// The most bytes of the offending header that a termination request repeats.
pub const OFFENDING_BYTES_MAX: usize = 128;

/// Fatal Error Status (FES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalErrorStatus {
    /// A field of the header is wrong; the Fatal Error Information is its offset.
    InvalidPduHeaderField = 1,
    /// A PDU that must not come now, or not from there.
    PduSequenceError = 2,
    /// The header digest is not that of the header.
    HeaderDigestError = 3,
    /// Data outside of what was asked for.
    DataTransferOutOfRange = 4,
    /// More data in one PDU, or more requests for data, than was agreed.
    DataTransferLimitExceeded = 5,
    /// A parameter that is not supported; the Fatal Error Information is its offset.
    UnsupportedParameter = 6,
}

impl FatalErrorStatus {
    fn from_code(code: u16) -> Option<FatalErrorStatus> {
        Some(match code {
            1 => FatalErrorStatus::InvalidPduHeaderField,
            2 => FatalErrorStatus::PduSequenceError,
            3 => FatalErrorStatus::HeaderDigestError,
            4 => FatalErrorStatus::DataTransferOutOfRange,
            5 => FatalErrorStatus::DataTransferLimitExceeded,
            6 => FatalErrorStatus::UnsupportedParameter,
            _ => return None,
        })
    }
}

impl fmt::Display for FatalErrorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FatalErrorStatus::InvalidPduHeaderField => "Invalid PDU Header Field",
            FatalErrorStatus::PduSequenceError => "PDU Sequence Error",
            FatalErrorStatus::HeaderDigestError => "Header Digest Error",
            FatalErrorStatus::DataTransferOutOfRange => "Data Transfer Out of Range",
            FatalErrorStatus::DataTransferLimitExceeded => "Data Transfer Limit Exceeded",
            FatalErrorStatus::UnsupportedParameter => "Unsupported Parameter",
        })
    }
}

/// What the peer did that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// What kind of error.
    pub status: FatalErrorStatus,
    /// Fatal Error Information: the offset of the wrong field in the header, or 0.
    pub information: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            FatalErrorStatus::InvalidPduHeaderField | FatalErrorStatus::UnsupportedParameter => {
                write!(f, "{} at byte {}", self.status, self.information)
            }
            _ => self.status.fmt(f),
        }
    }
}

impl Fault {
    /// The field at this offset is wrong.
    pub const fn field(offset: u32) -> Fault {
        Fault {
            status: FatalErrorStatus::InvalidPduHeaderField,
            information: offset,
        }
    }

    /// The parameter at this offset is not supported.
    pub const fn unsupported(offset: u32) -> Fault {
        Fault {
            status: FatalErrorStatus::UnsupportedParameter,
            information: offset,
        }
    }

    /// A fault of a kind that names no field.
    pub const fn of(status: FatalErrorStatus) -> Fault {
        Fault {
            status,
            information: 0,
        }
    }

    /// Appends the PDU that tells the peer: `kind` is [`PduType::H2CTermReq`] or [`PduType::C2HTermReq`], `offending` the header at
    /// fault as far as it was received, of which as much is repeated as may be. It never carries a digest.
    pub fn encode(&self, kind: PduType, offending: &[u8], out: &mut Vec<u8>) {
        let offending = &offending[..offending.len().min(OFFENDING_BYTES_MAX)];
        out.extend_from_slice(&[kind as u8, 0, TERM_HLEN as u8, 0]);
        out.extend_from_slice(&((TERM_HLEN + offending.len()) as u32).to_le_bytes());
        out.extend_from_slice(&(self.status as u16).to_le_bytes());
        out.extend_from_slice(&self.information.to_le_bytes());
        out.extend_from_slice(&[0; TERM_HLEN - 14]);
        out.extend_from_slice(offending);
    }
}

/// What the peer says when it ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermReq {
    /// Fatal Error Status as it was sent.
    pub status: u16,
    /// Fatal Error Information.
    pub information: u32,
}

impl TermReq {
    /// The status, if it is a known one.
    pub fn known(&self) -> Option<FatalErrorStatus> {
        FatalErrorStatus::from_code(self.status)
    }
}

impl fmt::Display for TermReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let information = self.information;
        match self.known() {
            Some(status) => Fault {
                status,
                information,
            }
            .fmt(f),
            None => write!(f, "Fatal Error Status {:04x}h", self.status),
        }
    }
}
