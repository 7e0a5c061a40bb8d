//! The sending direction: numbers messages, writes headers. Payload stays with the caller.

use super::ddp::{
    QUEUE_READ_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, TAGGED_BYTES, Tagged, UNTAGGED_BYTES, Untagged,
};
use super::fpdu::LENGTH_BYTES;
use super::rdmap::{IMMEDIATE_BYTES, Opcode, READ_REQUEST_BYTES, ReadRequest};
use super::terminate::{self, TERMINATE_BYTES_MAX};
use super::{Fault, fpdu};

/// Bytes of length field and tagged header.
pub const TAGGED_HEAD_BYTES: usize = LENGTH_BYTES + TAGGED_BYTES;
/// Bytes of length field and untagged header.
pub const UNTAGGED_HEAD_BYTES: usize = LENGTH_BYTES + UNTAGGED_BYTES;
/// Bytes of length field, untagged header and a Read Request's body.
pub const READ_REQUEST_HEAD_BYTES: usize = UNTAGGED_HEAD_BYTES + READ_REQUEST_BYTES;
/// Bytes of length field, untagged header and immediate data.
pub const IMMEDIATE_HEAD_BYTES: usize = UNTAGGED_HEAD_BYTES + IMMEDIATE_BYTES;
/// The longest head.
pub const HEAD_BYTES_MAX: usize = READ_REQUEST_HEAD_BYTES;

/// What a Send asks of the peer besides taking the message (RFC 5040 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendKind {
    /// To attend to it at once.
    pub solicited: bool,
    /// To end the use of this STag of its own.
    pub invalidate: Option<u32>,
}

/// A Send that was begun.
#[derive(Debug, Clone, Copy)]
pub struct Sending {
    kind: SendKind,
    msn: u32,
    mo: u32,
}

impl SendKind {
    fn opcode(self) -> Opcode {
        match (self.solicited, self.invalidate) {
            (false, None) => Opcode::Send,
            (false, Some(_)) => Opcode::SendInvalidate,
            (true, None) => Opcode::SendSolicited,
            (true, Some(_)) => Opcode::SendSolicitedInvalidate,
        }
    }
}

/// The sending direction of one stream. Each FPDU is a head made here, the caller's payload, and [`fpdu::Trailer`].
#[derive(Debug)]
pub struct Outbound {
    pub(super) sends: u32,
    read_requests: u32,
}

impl Outbound {
    /// Nothing sent yet.
    #[expect(
        clippy::new_without_default,
        reason = "a stream begins, it has no default"
    )]
    pub fn new() -> Outbound {
        Outbound {
            sends: 0,
            read_requests: 0,
        }
    }

    /// The head of a segment of an RDMA Write or Read Response with this much payload (at most [`fpdu::ULPDU_BYTES_MAX`] less
    /// [`TAGGED_BYTES`]).
    pub fn tagged(header: Tagged, payload_bytes: usize) -> [u8; TAGGED_HEAD_BYTES] {
        let mut head = [0; TAGGED_HEAD_BYTES];
        head[..LENGTH_BYTES].copy_from_slice(&length(TAGGED_BYTES + payload_bytes));
        head[LENGTH_BYTES..].copy_from_slice(&header.encode());
        head
    }

    /// Begins a Send.
    pub fn begin_send(&mut self, kind: SendKind) -> Sending {
        Sending {
            kind,
            msn: self.next_send(),
            mo: 0,
        }
    }

    /// The head of the next segment of a begun message.
    pub fn send(
        sending: &mut Sending,
        payload_bytes: usize,
        last: bool,
    ) -> [u8; UNTAGGED_HEAD_BYTES] {
        let header = Untagged {
            opcode: sending.kind.opcode(),
            last,
            invalidate: sending.kind.invalidate.unwrap_or(0),
            queue: QUEUE_SEND,
            msn: sending.msn,
            mo: sending.mo,
        };
        sending.mo = sending.mo.wrapping_add(payload_bytes as u32);
        untagged(&header, payload_bytes)
    }

    /// A whole message of immediate data but its trailer: behind a Write it tells, in eight bytes, what that was (RFC 7306 section 6).
    pub fn immediate(
        &mut self,
        data: [u8; IMMEDIATE_BYTES],
        solicited: bool,
    ) -> [u8; IMMEDIATE_HEAD_BYTES] {
        let header = Untagged {
            opcode: match solicited {
                false => Opcode::Immediate,
                true => Opcode::ImmediateSolicited,
            },
            last: true,
            invalidate: 0,
            queue: QUEUE_SEND,
            msn: self.next_send(),
            mo: 0,
        };
        let mut head = [0; IMMEDIATE_HEAD_BYTES];
        head[..UNTAGGED_HEAD_BYTES].copy_from_slice(&untagged(&header, IMMEDIATE_BYTES));
        head[UNTAGGED_HEAD_BYTES..].copy_from_slice(&data);
        head
    }

    /// Takes the next message sequence number of the Send queue.
    fn next_send(&mut self) -> u32 {
        self.sends = self.sends.wrapping_add(1);
        self.sends
    }

    /// A whole Read Request but its trailer.
    pub fn read_request(&mut self, request: &ReadRequest) -> [u8; READ_REQUEST_HEAD_BYTES] {
        self.read_requests = self.read_requests.wrapping_add(1);
        let header = Untagged {
            opcode: Opcode::ReadRequest,
            last: true,
            invalidate: 0,
            queue: QUEUE_READ_REQUEST,
            msn: self.read_requests,
            mo: 0,
        };
        let mut head = [0; READ_REQUEST_HEAD_BYTES];
        head[..UNTAGGED_HEAD_BYTES].copy_from_slice(&untagged(&header, READ_REQUEST_BYTES));
        head[UNTAGGED_HEAD_BYTES..].copy_from_slice(&request.encode());
        head
    }

    /// The whole FPDU of a Terminate message, the last thing that a stream sends; see [`terminate::encode`].
    pub fn terminate(
        fault: Fault,
        segment: &[u8],
        ulpdu_bytes: usize,
        crc: bool,
        out: &mut Vec<u8>,
    ) {
        let mut payload = [0; TERMINATE_BYTES_MAX];
        let payload_bytes = terminate::encode(fault, segment, ulpdu_bytes, &mut payload);
        let header = Untagged {
            opcode: Opcode::Terminate,
            last: true,
            invalidate: 0,
            queue: QUEUE_TERMINATE,
            msn: 1,
            mo: 0,
        };
        let start = out.len();
        out.extend_from_slice(&untagged(&header, payload_bytes));
        out.extend_from_slice(&payload[..payload_bytes]);
        let crc = crc.then(|| {
            let mut digest = fpdu::Crc::new();
            digest.update(&out[start..]);
            digest
        });
        let trailer = fpdu::Trailer::new(UNTAGGED_BYTES + payload_bytes, crc);
        out.extend_from_slice(trailer.as_bytes());
    }
}

fn untagged(header: &Untagged, payload_bytes: usize) -> [u8; UNTAGGED_HEAD_BYTES] {
    let mut head = [0; UNTAGGED_HEAD_BYTES];
    head[..LENGTH_BYTES].copy_from_slice(&length(UNTAGGED_BYTES + payload_bytes));
    head[LENGTH_BYTES..].copy_from_slice(&header.encode());
    head
}

fn length(ulpdu_bytes: usize) -> [u8; LENGTH_BYTES] {
    debug_assert!(ulpdu_bytes <= fpdu::ULPDU_BYTES_MAX);
    (ulpdu_bytes as u16).to_be_bytes()
}
