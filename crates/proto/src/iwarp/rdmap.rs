//! Messages (RFC 5040 section 4, RFC 7306 section 6).

use super::ddp::{u32_at, u64_at};

/// Bytes of a Read Request's body, after its untagged header.
pub const READ_REQUEST_BYTES: usize = 28;
/// Bytes of an Immediate Data message.
pub const IMMEDIATE_BYTES: usize = 8;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// RDMA Write: tagged.
    Write,
    /// RDMA Read Request: queue 1.
    ReadRequest,
    /// RDMA Read Response: tagged.
    ReadResponse,
    /// Send: queue 0, as all kinds of Send.
    Send,
    /// Send with Invalidate.
    SendInvalidate,
    /// Send with Solicited Event.
    SendSolicited,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// Terminate: queue 2.
    Terminate,
    /// Immediate Data: queue 0.
    Immediate,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited,
}

impl Opcode {
    const ALL: [Opcode; 10] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
    ];

    /// The opcode of these four bits; `None` for those that are reserved or atomic operations.
    pub fn from_wire(bits: u8) -> Option<Opcode> {
        Opcode::ALL.get(usize::from(bits)).copied()
    }

    /// Its four bits.
    pub fn to_wire(self) -> u8 {
        self as u8
    }

    /// Whether its segments are tagged.
    pub fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// Whether it ends the use of an STag.
    pub fn invalidates(self) -> bool {
        matches!(
            self,
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
        )
    }

    /// Whether it asks for the receiver's attention.
    pub fn is_solicited(self) -> bool {
        matches!(
            self,
            Opcode::SendSolicited | Opcode::SendSolicitedInvalidate | Opcode::ImmediateSolicited
        )
    }
}

/// Asks for `bytes` of a source buffer to be written to a sink buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the requester wants them.
    pub sink_stag: u32,
    /// From which offset.
    pub sink_offset: u64,
    /// How many.
    pub bytes: u32,
    /// The responder's buffer.
    pub source_stag: u32,
    /// From which offset.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Reads the body.
    pub fn parse(body: &[u8; READ_REQUEST_BYTES]) -> ReadRequest {
        ReadRequest {
            sink_stag: u32_at(body, 0),
            sink_offset: u64_at(body, 4),
            bytes: u32_at(body, 12),
            source_stag: u32_at(body, 16),
            source_offset: u64_at(body, 20),
        }
    }

    /// As sent.
    pub fn encode(&self) -> [u8; READ_REQUEST_BYTES] {
        let mut out = [0; READ_REQUEST_BYTES];
        out[0..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        out[12..16].copy_from_slice(&self.bytes.to_be_bytes());
        out[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        out[20..28].copy_from_slice(&self.source_offset.to_be_bytes());
        out
    }
}
