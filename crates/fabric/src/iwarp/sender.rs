//! The sending direction: orders and answers become segments, and segments calls that gather them by reference.

use std::collections::VecDeque;
use std::{io, vec};

use forebay_io::socket::{Gather, PLACES_MAX, Parts};
use forebay_mem::{Buf, CopySite, count_copy};
use forebay_proto::iwarp::ddp::{TAGGED_BYTES, Tagged, UNTAGGED_BYTES};
use forebay_proto::iwarp::rdmap::{Opcode, READ_REQUEST_BYTES, ReadRequest};
use forebay_proto::iwarp::{Fault, Outbound, SendKind};

use super::fpdu::{Fpdu, PLACES_PER_FPDU, Payload, Piece, gone};
use super::orders::{Order, ReadOrder};
use super::receiver::LONG_BYTES;
use super::regions::Regions;
use super::spent::Spent;
use super::stall::Moved;
use super::wire::Wire;
use crate::{RemoteRange, Stag};

/// What is cut into segments ahead of the socket, and sent by one call.
const AHEAD_BYTES: usize = 1 << 20;
/// Segments likewise: of short ones that many take more memory than they are long. What is not cut counts as not answered, and a peer
/// may have few Read Requests that are not.
const AHEAD_SEGMENTS: usize = PLACES_MAX / PLACES_PER_FPDU;

/// A tagged message whose segments are being cut; no other may come between them.
enum Current {
    Write {
        stag: u32,
        offset: u64,
        left: u64,
        from: vec::IntoIter<Buf>,
        part: Buf,
        room: u32,
    },
    Answer {
        request: ReadRequest,
        done: u32,
    },
}

/// What sending led to, for the driver to pass on.
#[derive(Default)]
pub(super) struct Outcome {
    /// Room for writes that is free again.
    pub(super) room: usize,
    /// Room for messages that is free again.
    pub(super) talk: usize,
    /// Pinned memory was let go that somebody waits to withdraw.
    pub(super) released: bool,
    /// Memory of messages that are sent.
    pub(super) spent: Spent,
    /// Read Requests that were made, with the STags of their sinks.
    pub(super) issued: Vec<(u32, ReadOrder)>,
    /// How many Read Requests of the peer were answered.
    pub(super) answered: usize,
}

/// The sending direction of one link.
pub(super) struct Sender {
    outbound: Outbound,
    crc: bool,
    segment_bytes: usize,
    /// A responder sends nothing before the peer has.
    held: bool,
    responder: bool,
    /// What ends a link instead of a Terminate, as long as its peer was not answered.
    refusal: Option<Vec<u8>>,
    /// On the responder's side, messages of the peer that nothing was said to yet.
    owed: usize,
    orders: VecDeque<Order>,
    /// Read Requests of the peer.
    answers: VecDeque<ReadRequest>,
    answer_next: bool,
    current: Option<Current>,
    /// Reads that wait for others to be answered.
    reads: VecDeque<ReadOrder>,
    /// How many reads may be outstanding.
    ord: u16,
    outstanding: u16,
    /// Names sinks: any number will do, since only answers may name one and they come in order.
    sinks: u32,
    queue: VecDeque<Fpdu>,
    queue_bytes: usize,
    /// Bytes of a segment, a moving average.
    average: usize,
    /// Bytes of the first segment of the queue that are sent.
    sent: usize,
    /// Bytes that went so far.
    sent_bytes: u64,
    /// Reads that were asked for so far, and those that were answered.
    asked: u64,
    answered: u64,
    pub(super) outcome: Outcome,
}

impl Sender {
    pub(super) fn new(crc: bool, segment_bytes: usize, ord: u16, held: bool) -> Sender {
        Sender {
            outbound: Outbound::new(),
            crc,
            segment_bytes,
            held,
            responder: held,
            refusal: None,
            owed: 0,
            orders: VecDeque::new(),
            answers: VecDeque::new(),
            answer_next: false,
            current: None,
            reads: VecDeque::new(),
            ord,
            outstanding: 0,
            sinks: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            average: 0,
            sent: 0,
            sent_bytes: 0,
            asked: 0,
            answered: 0,
            outcome: Outcome::default(),
        }
    }

    /// Takes all of these orders.
    pub(super) fn take(&mut self, orders: &mut VecDeque<Order>) {
        if self.orders.is_empty() {
            std::mem::swap(&mut self.orders, orders);
        } else {
            self.orders.append(orders);
        }
    }

    /// The zero-length write that says that this side is ready to receive.
    pub(super) fn ready(&mut self) {
        self.push_tagged(Opcode::Write, 0, 0, true, Payload::None, 0);
    }

    /// As [`Sender::ready`], by a read of nothing.
    pub(super) fn ready_by_read(&mut self) {
        let from = RemoteRange {
            stag: Stag(0),
            offset: 0,
            len: 0,
        };
        self.reads.push_back(ReadOrder {
            from,
            into: None,
            answer: None,
        });
    }

    /// Drops all that is not sent.
    pub(super) fn clear(&mut self) {
        self.orders.clear();
        self.answers.clear();
        self.reads.clear();
        self.current = None;
        self.queue.clear();
        self.queue_bytes = 0;
        self.outcome = Outcome::default();
    }

    /// The peer waits for an answer, and would take this for a refusal.
    pub(super) fn refuses_with(&mut self, refusal: Vec<u8>) {
        self.refusal = Some(refusal);
    }

    /// The peer is answered.
    pub(super) fn welcomed(&mut self) {
        self.refusal = None;
    }

    /// The peer was heard: it may be sent to.
    pub(super) fn release(&mut self) {
        self.held = false;
    }

    /// The peer sent so many messages.
    pub(super) fn told(&mut self, messages: usize) {
        if self.responder {
            self.owed += messages;
        }
    }

    /// Whether the peer waits for us, and says nothing more before.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// A Read Request of the peer was accepted, and its source pinned.
    pub(super) fn answer(&mut self, request: ReadRequest) {
        self.answers.push_back(request);
    }

    /// One read was answered by the peer.
    pub(super) fn read_done(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.answered += 1;
    }

    /// How far it is, besides what was `received` of answers.
    pub(super) fn moved(&self, received: u64) -> Moved {
        // What may not be sent yet is not cut either, and waits for the peer, too.
        let held = self.held && self.is_behind();
        Moved {
            cut: self.sent_bytes + self.queue_bytes as u64 + u64::from(held),
            sent: self.sent_bytes,
            asked: self.asked,
            answered: self.answered,
            received,
        }
    }

    /// Whether the peer owes an answer.
    pub(super) fn awaits_answers(&self) -> bool {
        self.outstanding > 0 || !self.reads.is_empty()
    }

    /// Whether something is cut or ordered and not sent, or the driver does not know of a Read Request yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.queue.is_empty()
            || !self.orders.is_empty()
            || !self.answers.is_empty()
            || self.current.is_some()
            || !self.outcome.issued.is_empty()
            || self.outcome.answered > 0
    }

    /// Whether segments are long.
    pub(super) fn is_long(&self) -> bool {
        self.average >= LONG_BYTES
    }

    /// Whether some of a segment is sent and the rest is not.
    pub(super) fn is_amid(&self) -> bool {
        self.sent > 0
    }

    /// Cuts more segments, if there is anything to send; says whether there are any.
    ///
    /// # Errors
    /// When memory that the peer reads is gone.
    pub(super) fn prepare(&mut self, regions: &mut Regions) -> io::Result<bool> {
        if self.held {
            return Ok(false);
        }
        while self.queue_bytes < AHEAD_BYTES && self.queue.len() < AHEAD_SEGMENTS {
            if let Some(current) = self.current.take() {
                self.cut(current, regions)?;
            } else if self.outstanding < self.ord
                && let Some(read) = self.reads.pop_front()
            {
                self.request(read);
            } else if !self.begin() {
                break;
            }
        }
        Ok(!self.queue.is_empty())
    }

    /// Begins the next message; orders and answers take turns. False when there is none.
    fn begin(&mut self) -> bool {
        self.answer_next = !self.answer_next && !self.answers.is_empty();
        if (self.answer_next || self.orders.is_empty())
            && let Some(request) = self.answers.pop_front()
        {
            self.current = Some(Current::Answer { request, done: 0 });
            return true;
        }
        match self.orders.pop_front() {
            Some(Order::Write { to, from, room }) => {
                let left = from.iter().map(|part| part.len() as u64).sum();
                let mut from = from.into_iter();
                if let Some(part) = from.next() {
                    self.current = Some(Current::Write {
                        stag: to.stag.0,
                        offset: to.offset,
                        left,
                        from,
                        part,
                        room,
                    });
                }
            }
            Some(Order::Send { message, room }) => {
                self.owed = self.owed.saturating_sub(1);
                let mut sending = self.outbound.begin_send(SendKind::default());
                let head = Outbound::send(&mut sending, message.len(), true);
                let ulpdu_bytes = UNTAGGED_BYTES + message.len();
                self.push(&head, Payload::Message(message), ulpdu_bytes, room);
            }
            Some(Order::Read(read)) => self.reads.push_back(read),
            None => return false,
        }
        true
    }

    /// Cuts the next segment.
    fn cut(&mut self, current: Current, regions: &mut Regions) -> io::Result<()> {
        match current {
            Current::Write {
                stag,
                offset,
                left,
                mut from,
                part,
                room,
            } => {
                let bytes = part.len().min(self.segment_bytes);
                let rest = if bytes < part.len() {
                    Some(part.slice(bytes..part.len()))
                } else {
                    from.next()
                };
                let segment = part.slice(0..bytes);
                drop(part);
                let left = left - bytes as u64;
                let last = left == 0;
                if bytes > 0 || last {
                    let room = if last { room } else { 0 };
                    let payload = Payload::Bytes(segment);
                    self.push_tagged(Opcode::Write, stag, offset, last, payload, room);
                }
                if let Some(part) = rest.filter(|_| !last) {
                    self.current = Some(Current::Write {
                        stag,
                        offset: offset.wrapping_add(bytes as u64),
                        left,
                        from,
                        part,
                        room,
                    });
                }
            }
            Current::Answer { request, done } => {
                let left = request.bytes - done;
                let bytes = (left as usize).min(self.segment_bytes);
                let last = bytes == left as usize;
                let stag = request.source_stag;
                let offset = (request.source_offset as usize).wrapping_add(done as usize);
                let piece = Piece {
                    stag,
                    offset,
                    bytes,
                    last,
                };
                let payload = if request.bytes == 0 {
                    Payload::None
                } else if self.crc {
                    self.staged(&piece, regions)?
                } else {
                    Payload::Exposed(piece)
                };
                let to = request.sink_offset.wrapping_add(u64::from(done));
                self.push_tagged(
                    Opcode::ReadResponse,
                    request.sink_stag,
                    to,
                    last,
                    payload,
                    0,
                );
                if last {
                    self.outcome.answered += 1;
                } else {
                    let done = done + bytes as u32;
                    self.current = Some(Current::Answer { request, done });
                }
            }
        }
        Ok(())
    }

    /// A copy of exposed memory: a CRC is of the bytes that are sent, whatever becomes of the memory meanwhile.
    fn staged(&mut self, piece: &Piece, regions: &mut Regions) -> io::Result<Payload> {
        let mut copy = vec![0; piece.bytes];
        let memory = regions.memory(piece.stag).ok_or_else(gone)?;
        if !memory.read(piece.offset, &mut copy) {
            return Err(gone());
        }
        count_copy(CopySite::LinkStaging, piece.bytes);
        if piece.last {
            self.outcome.released |= regions.unpin(piece.stag);
        }
        Ok(Payload::Bytes(copy.into()))
    }

    fn request(&mut self, read: ReadOrder) {
        self.sinks = self.sinks.wrapping_add(1);
        self.outstanding += 1;
        self.asked += 1;
        let head = self.outbound.read_request(&ReadRequest {
            sink_stag: self.sinks,
            sink_offset: 0,
            bytes: read.from.len as u32,
            source_stag: read.from.stag.0,
            source_offset: read.from.offset,
        });
        let ulpdu_bytes = UNTAGGED_BYTES + READ_REQUEST_BYTES;
        self.push(&head, Payload::None, ulpdu_bytes, 0);
        self.outcome.issued.push((self.sinks, read));
    }

    fn push_tagged(
        &mut self,
        opcode: Opcode,
        stag: u32,
        offset: u64,
        last: bool,
        payload: Payload,
        room: u32,
    ) {
        let header = Tagged {
            opcode,
            last,
            stag,
            offset,
        };
        let bytes = payload.bytes();
        let head = Outbound::tagged(header, bytes);
        self.push(&head, payload, TAGGED_BYTES + bytes, room);
    }

    fn push(&mut self, head: &[u8], payload: Payload, ulpdu_bytes: usize, room: u32) {
        let fpdu = Fpdu::new(head, payload, ulpdu_bytes, room, self.crc);
        self.queue_bytes += fpdu.bytes();
        self.average = (3 * self.average + fpdu.bytes()) / 4;
        self.queue.push_back(fpdu);
    }

    /// Sends what is cut, as far as the socket takes it in one call. `None`: not all of it.
    ///
    /// # Errors
    /// The system's, or that exposed memory is gone.
    pub(super) fn flush(&mut self, wire: &Wire, regions: &mut Regions) -> io::Result<Option<()>> {
        if let Some(mut tls) = wire.tls() {
            tls.push(wire.tcp())?;
            self.gather(&mut tls.plain(), regions)?;
            let bytes = tls.plain_bytes();
            let whole = tls.send(wire.tcp())?;
            self.advance(bytes, regions);
            return Ok(whole.then_some(()));
        }
        let mut gather = Gather::new();
        self.gather(&mut gather, regions)?;
        let asked = gather.len();
        if asked == 0 {
            return Ok(Some(()));
        }
        let bytes = wire.send(gather)?;
        self.advance(bytes, regions);
        Ok((bytes == asked).then_some(()))
    }

    fn gather<'a>(&'a self, parts: &mut impl Parts<'a>, regions: &'a Regions) -> io::Result<()> {
        let mut skip = self.sent;
        for fpdu in self.queue.iter().take(AHEAD_SEGMENTS) {
            fpdu.gather(parts, skip, regions)?;
            skip = 0;
        }
        Ok(())
    }

    /// Lets go of what was sent.
    fn advance(&mut self, bytes: usize, regions: &mut Regions) {
        self.sent += bytes;
        self.sent_bytes += bytes as u64;
        self.queue_bytes -= bytes;
        while let Some(first) = self.queue.front() {
            let whole = first.bytes();
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            let Some(fpdu) = self.queue.pop_front() else {
                break;
            };
            let room = fpdu.room as usize;
            match fpdu.payload {
                Payload::Message(_) => self.outcome.talk += room,
                _ => self.outcome.room += room,
            }
            match fpdu.payload {
                Payload::Message(memory) => self.outcome.spent.keep(memory),
                Payload::Exposed(piece) if piece.last => {
                    self.outcome.released |= regions.unpin(piece.stag);
                }
                Payload::None | Payload::Bytes(_) | Payload::Exposed(_) => {}
            }
        }
    }

    /// Says in one last call why the stream ends; false when it is amid a segment, or the socket full.
    pub(super) fn terminate(
        &mut self,
        fault: Fault,
        segment: &[u8],
        ulpdu_bytes: usize,
        wire: &Wire,
    ) -> bool {
        if let Some(refusal) = &self.refusal {
            return wire.say(refusal);
        }
        if self.is_amid() {
            return false;
        }
        let mut last = Vec::new();
        Outbound::terminate(fault, segment, ulpdu_bytes, self.crc, &mut last);
        wire.say(&last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_ahead_is_bounded_however_short_it_is() {
        let mut sender = Sender::new(false, 1 << 16, 1, false);
        let mut regions = Regions::default();
        for sink_stag in 0..1000 {
            sender.answer(ReadRequest {
                sink_stag,
                sink_offset: 0,
                bytes: 0,
                source_stag: 0,
                source_offset: 0,
            });
        }
        assert!(sender.prepare(&mut regions).unwrap());
        assert_eq!(sender.queue.len(), AHEAD_SEGMENTS);
        assert_eq!(sender.outcome.answered, AHEAD_SEGMENTS);
        assert_eq!(sender.answers.len(), 1000 - AHEAD_SEGMENTS);
    }
}
