//! The receiving direction: checks each segment's header before its payload is received, and says where the payload belongs.

use std::collections::VecDeque;

use super::ddp::{Header, QUEUE_READ_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, Tagged, Untagged};
use super::fpdu::{self, LENGTH_BYTES};
use super::mpa::Rtr;
use super::rdmap::{IMMEDIATE_BYTES, Opcode, READ_REQUEST_BYTES, ReadRequest};
use super::terminate::CONTROL_BYTES;
use super::{Fault, terminate::Terminate};

/// What a peer would do with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// RDMA Read.
    Read,
    /// RDMA Write.
    Write,
}

/// Why a peer may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// No such buffer on this stream.
    Stag,
    /// Not all inside the buffer.
    Bounds,
    /// The buffer does not allow it.
    Access,
}

/// The buffers that the peer of one stream may reach.
pub trait Regions {
    /// Whether it may do this with these bytes, which are not none and do not wrap around.
    ///
    /// # Errors
    /// The first of: no such STag, not this access, out of bounds.
    fn check(&self, stag: u32, offset: u64, bytes: u64, access: Access) -> Result<(), Protection>;

    /// Whether it may end the use of this STag.
    fn may_invalidate(&self, stag: u32) -> bool;
}

/// Bounds of what a peer may do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest message on the Send queue, in bytes.
    pub message_bytes: u32,
    /// Read Requests not yet answered.
    pub ird: u16,
    /// The frame that comes first, for a responder that agreed on one.
    pub rtr: Option<Rtr>,
}

/// What a segment is, and so where its payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Into a buffer that the peer may write; checked.
    Write {
        /// The buffer.
        stag: u32,
        /// Where in it.
        offset: u64,
        /// Whether the message ends.
        last: bool,
    },
    /// Into the sink of the oldest unanswered read.
    Response {
        /// How many bytes of it came before.
        offset: u32,
        /// Whether the read is answered.
        last: bool,
    },
    /// Onto the end of a message.
    Send {
        /// Which kind.
        opcode: Opcode,
        /// How many bytes of it came before.
        offset: u32,
        /// Whether the message ends.
        last: bool,
        /// The STag that the whole message ends the use of.
        invalidate: Option<u32>,
    },
    /// No payload: to be answered, see [`Inbound::answered`]; checked.
    ReadRequest(ReadRequest),
    /// No payload: a message of eight bytes.
    Immediate {
        /// The bytes.
        data: [u8; IMMEDIATE_BYTES],
        /// Whether it asks for attention.
        solicited: bool,
    },
    /// No payload: the peer is ready to receive.
    Ready,
    /// Nothing follows: the peer has ended the stream, and what it said if it said anything.
    Terminate(Option<Terminate>),
}

/// A segment whose header was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub event: Event,
    /// Bytes from the start of the FPDU to its payload.
    pub head_bytes: usize,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Bytes after it: pad and CRC.
    pub trailer_bytes: usize,
}

/// What the beginning of an FPDU tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Not enough; call again when there are this many bytes.
    Need(usize),
    /// Accepted: the next call is for the FPDU after it.
    Segment(Segment),
}

/// The receiving direction of one stream.
#[derive(Debug)]
pub struct Inbound {
    limits: Limits,
    pub(super) sends: u32,
    read_requests: u32,
    unanswered: u16,
    /// A write message that has not ended: its buffer and the next offset.
    write: Option<(u32, u64)>,
    /// A message on the Send queue that has not ended.
    send: Option<(Untagged, u32)>,
    /// Reads that the peer owes answers to, the oldest first.
    reads: VecDeque<Expected>,
    heard: bool,
}

#[derive(Debug)]
struct Expected {
    sink_stag: u32,
    bytes: u32,
    received: u32,
}

impl Inbound {
    /// Nothing received yet.
    pub fn new(limits: Limits) -> Inbound {
        Inbound {
            limits,
            sends: 0,
            read_requests: 0,
            unanswered: 0,
            write: None,
            send: None,
            reads: VecDeque::new(),
            heard: false,
        }
    }

    /// Whether anything was received: a responder may send from then on (RFC 5044 section 7.1.2).
    pub fn heard(&self) -> bool {
        self.heard
    }

    /// Says that a Read Request was sent for `bytes` to the start of a sink.
    pub fn expect_response(&mut self, sink_stag: u32, bytes: u32) {
        self.reads.push_back(Expected {
            sink_stag,
            bytes,
            received: 0,
        });
    }

    /// Says that one Read Request of the peer is answered: its last segment is about to be sent.
    pub fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Looks at the FPDU that begins at `bytes`. With CRCs in use, call it for whole FPDUs that passed [`fpdu::verify`].
    ///
    /// # Errors
    /// The stream is to be ended for this fault.
    pub fn segment(&mut self, bytes: &[u8], regions: &impl Regions) -> Result<Progress, Fault> {
        let Some(&[high, low, control]) = bytes.first_chunk::<{ LENGTH_BYTES + 1 }>() else {
            return Ok(Progress::Need(LENGTH_BYTES + 1));
        };
        let ulpdu_bytes = usize::from(u16::from_be_bytes([high, low]));
        let header_bytes = Header::bytes(control);
        if ulpdu_bytes < header_bytes {
            return Err(Fault::Length);
        }
        let Some(ulpdu) = bytes.get(LENGTH_BYTES..LENGTH_BYTES + header_bytes) else {
            return Ok(Progress::Need(LENGTH_BYTES + header_bytes));
        };
        let header = Header::parse(ulpdu)?;
        let payload_bytes = ulpdu_bytes - header_bytes;
        // What is part of the head here: bodies that are parsed rather than placed.
        let body_bytes = match header {
            Header::Untagged(header) => body_bytes(&header, payload_bytes)?,
            Header::Tagged(_) => 0,
        };
        let head_bytes = LENGTH_BYTES + header_bytes + body_bytes;
        let Some(body) = bytes.get(LENGTH_BYTES + header_bytes..head_bytes) else {
            return Ok(Progress::Need(head_bytes));
        };
        let payload_bytes = payload_bytes - body_bytes;
        let event = match header {
            Header::Tagged(header) if header.opcode == Opcode::Write => {
                self.write(&header, payload_bytes, regions)?
            }
            Header::Tagged(header) => self.response(&header, payload_bytes)?,
            Header::Untagged(header) => match header.opcode {
                Opcode::ReadRequest => self.read_request(&header, body, regions)?,
                Opcode::Terminate => Event::Terminate(Terminate::parse(body)),
                Opcode::Immediate | Opcode::ImmediateSolicited => self.immediate(&header, body)?,
                _ => self.send(&header, payload_bytes, regions)?,
            },
        };
        self.heard = true;
        Ok(Progress::Segment(Segment {
            event,
            head_bytes,
            payload_bytes,
            trailer_bytes: fpdu::pad_bytes(ulpdu_bytes) + fpdu::CRC_BYTES,
        }))
    }

    fn write(
        &mut self,
        header: &Tagged,
        payload_bytes: usize,
        regions: &impl Regions,
    ) -> Result<Event, Fault> {
        let bytes = payload_bytes as u64;
        let end = header.offset.checked_add(bytes).ok_or(Fault::TaggedWrap)?;
        if let Some((stag, next)) = self.write {
            if stag != header.stag {
                return Err(Fault::TaggedStag);
            }
            if next != header.offset {
                return Err(Fault::TaggedBounds);
            }
        }
        if bytes > 0 {
            regions
                .check(header.stag, header.offset, bytes, Access::Write)
                .map_err(|why| match why {
                    Protection::Stag => Fault::TaggedStag,
                    Protection::Bounds => Fault::TaggedBounds,
                    Protection::Access => Fault::TaggedAccess,
                })?;
        }
        self.write = (!header.last).then_some((header.stag, end));
        Ok(Event::Write {
            stag: header.stag,
            offset: header.offset,
            last: header.last,
        })
    }

    fn response(&mut self, header: &Tagged, payload_bytes: usize) -> Result<Event, Fault> {
        if self.write.is_some() {
            // Messages of the tagged model do not interleave.
            return Err(Fault::Opcode);
        }
        let read = self.reads.front_mut().ok_or(Fault::TaggedStag)?;
        if header.stag != read.sink_stag {
            return Err(Fault::TaggedStag);
        }
        let offset = read.received;
        if header.offset != u64::from(offset) {
            return Err(Fault::TaggedBounds);
        }
        let received = u32::try_from(payload_bytes)
            .ok()
            .and_then(|bytes| offset.checked_add(bytes))
            .filter(|received| *received <= read.bytes)
            .ok_or(Fault::TaggedBounds)?;
        if header.last != (received == read.bytes) {
            return Err(Fault::TaggedBounds);
        }
        read.received = received;
        if header.last {
            self.reads.pop_front();
        }
        Ok(Event::Response {
            offset,
            last: header.last,
        })
    }

    fn send(
        &mut self,
        header: &Untagged,
        payload_bytes: usize,
        regions: &impl Regions,
    ) -> Result<Event, Fault> {
        let offset = match &self.send {
            None => {
                self.next_send(header)?;
                0
            }
            Some((first, next)) => {
                if header.opcode != first.opcode || header.invalidate != first.invalidate {
                    return Err(Fault::Opcode);
                }
                if header.msn != first.msn {
                    return Err(Fault::Msn);
                }
                *next
            }
        };
        if header.mo != offset {
            return Err(Fault::Mo);
        }
        let next = u32::try_from(payload_bytes)
            .ok()
            .and_then(|bytes| offset.checked_add(bytes))
            .filter(|next| *next <= self.limits.message_bytes)
            .ok_or(Fault::TooLong)?;
        if self.limits.rtr == Some(Rtr::Send) && !self.heard {
            return if header.last && next == 0 {
                Ok(Event::Ready)
            } else {
                Err(Fault::NoRtr)
            };
        }
        let invalidate = header.opcode.invalidates().then_some(header.invalidate);
        if header.last && invalidate.is_some_and(|stag| !regions.may_invalidate(stag)) {
            return Err(Fault::CannotInvalidate);
        }
        self.send = (!header.last).then_some((*header, next));
        Ok(Event::Send {
            opcode: header.opcode,
            offset,
            last: header.last,
            invalidate,
        })
    }

    fn immediate(&mut self, header: &Untagged, body: &[u8]) -> Result<Event, Fault> {
        if self.send.is_some() {
            return Err(Fault::Opcode);
        }
        self.next_send(header)?;
        if header.mo != 0 {
            return Err(Fault::Mo);
        }
        let data = *body.first_chunk().ok_or(Fault::Length)?;
        Ok(Event::Immediate {
            data,
            solicited: header.opcode.is_solicited(),
        })
    }

    /// Takes the next message sequence number of the Send queue.
    fn next_send(&mut self, header: &Untagged) -> Result<(), Fault> {
        let next = self.sends.wrapping_add(1);
        if header.msn != next {
            return Err(Fault::Msn);
        }
        self.sends = next;
        Ok(())
    }

    fn read_request(
        &mut self,
        header: &Untagged,
        body: &[u8],
        regions: &impl Regions,
    ) -> Result<Event, Fault> {
        let next = self.read_requests.wrapping_add(1);
        if header.msn != next {
            return Err(Fault::Msn);
        }
        if header.mo != 0 {
            return Err(Fault::Mo);
        }
        if self.unanswered >= self.limits.ird {
            return Err(Fault::Stream);
        }
        let request = ReadRequest::parse(body.first_chunk().ok_or(Fault::Length)?);
        let bytes = u64::from(request.bytes);
        if request.source_offset.checked_add(bytes).is_none()
            || request.sink_offset.checked_add(bytes).is_none()
        {
            return Err(Fault::ReadWrap);
        }
        if bytes > 0 {
            regions
                .check(
                    request.source_stag,
                    request.source_offset,
                    bytes,
                    Access::Read,
                )
                .map_err(|why| match why {
                    Protection::Stag => Fault::ReadStag,
                    Protection::Bounds => Fault::ReadBounds,
                    Protection::Access => Fault::ReadAccess,
                })?;
        }
        self.read_requests = next;
        self.unanswered += 1;
        Ok(Event::ReadRequest(request))
    }
}

/// Checks queue and length of an untagged message; says how much of its payload is read as part of the head.
fn body_bytes(header: &Untagged, payload_bytes: usize) -> Result<usize, Fault> {
    let queue = match header.opcode {
        Opcode::ReadRequest => QUEUE_READ_REQUEST,
        Opcode::Terminate => QUEUE_TERMINATE,
        _ => QUEUE_SEND,
    };
    if header.queue != queue {
        return Err(Fault::Queue);
    }
    let exact = match header.opcode {
        Opcode::ReadRequest => READ_REQUEST_BYTES,
        Opcode::Immediate | Opcode::ImmediateSolicited => IMMEDIATE_BYTES,
        Opcode::Terminate => return Ok(payload_bytes.min(CONTROL_BYTES)),
        _ => return Ok(0),
    };
    if payload_bytes == exact && header.last {
        Ok(exact)
    } else if payload_bytes > exact {
        Err(Fault::TooLong)
    } else {
        Err(Fault::Length)
    }
}
