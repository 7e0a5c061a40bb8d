//! The receiving direction: heads are read into a small staging area, payload straight into its place.
//!
//! While segments are long, one call receives the rest of a segment's payload into its place, and its trailer with the next head
//! into staging. While they are short, one call receives many of them into staging, and their payload is copied: a call each would
//! cost more.

use std::collections::VecDeque;
use std::io;

use forebay_io::socket::Scatter;
use forebay_mem::{CopySite, count_copy};
use forebay_proto::iwarp::ddp::TAGGED_BYTES;
use forebay_proto::iwarp::fpdu::{self, FPDU_BYTES_MAX, LENGTH_BYTES};
use forebay_proto::iwarp::rdmap::ReadRequest;
use forebay_proto::iwarp::terminate::Terminate;
use forebay_proto::iwarp::{Event, Fault, Inbound, Limits, Progress, Segment};

use super::orders::ReadOrder;
use super::regions::Regions;
use super::spent::Spent;
use super::wire::Wire;

/// Room for heads, and for short segments.
const STAGING_BYTES: usize = 64 << 10;
/// Room for whole segments that are checked before they are placed.
const CHECKED_STAGING_BYTES: usize = 2 * FPDU_BYTES_MAX;
/// Segments this long on average are received straight into place.
pub(super) const LONG_BYTES: usize = 16 << 10;
/// After the end of a long message: a trailer, a short message, the next head.
const BETWEEN_BYTES: usize = 256;
/// After a segment that another follows: the next tagged head.
const NEXT_HEAD_BYTES: usize = LENGTH_BYTES + TAGGED_BYTES;

/// Whether there was nothing now, or nothing for us.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Why nothing more is received.
pub(super) enum End {
    /// The peer broke the protocol.
    Fault(Fault),
    /// The peer ended the stream, and what it said of that.
    Terminated(Option<Terminate>),
    /// The peer has finished.
    Finished,
    /// The peer does not go on with what it has to take or to answer.
    Stalled,
    /// The connection broke, or memory vanished.
    Lost(io::Error),
}

/// Where payload goes.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    /// Exposed memory, pinned.
    Region {
        stag: u32,
        offset: usize,
    },
    /// The buffer of the oldest read, so far behind its filled bytes.
    Sink {
        offset: usize,
    },
    /// The message that is being received, from here.
    Message {
        offset: usize,
    },
}

/// A segment whose head was accepted.
struct Current {
    place: Place,
    payload_bytes: usize,
    placed: usize,
    trailer_bytes: usize,
    last: bool,
}

/// What receiving led to, for the driver to pass on.
#[derive(Default)]
pub(super) struct Outcome {
    /// Whole messages.
    pub(super) messages: Vec<Vec<u8>>,
    /// Read Requests of the peer, to be answered.
    pub(super) requests: Vec<ReadRequest>,
    /// How many reads were answered.
    pub(super) reads_done: usize,
    /// Pinned memory was let go that somebody waits to withdraw.
    pub(super) released: bool,
}

/// The receiving direction of one link.
pub(super) struct Receiver {
    inbound: Inbound,
    crc: bool,
    staging: Box<[u8]>,
    /// The bytes of staging that are not looked at yet.
    start: usize,
    end: usize,
    current: Option<Current>,
    /// Reads not yet answered, the oldest first.
    reads: VecDeque<ReadOrder>,
    message: Vec<u8>,
    /// Memory for the next messages.
    pub(super) spare: Spent,
    /// Bytes of a segment, a moving average.
    average: usize,
    /// Bytes of answers that came so far.
    received: u64,
    pub(super) outcome: Outcome,
}

impl Receiver {
    pub(super) fn new(limits: Limits, crc: bool) -> Receiver {
        let staging_bytes = if crc {
            CHECKED_STAGING_BYTES
        } else {
            STAGING_BYTES
        };
        Receiver {
            inbound: Inbound::new(limits),
            crc,
            staging: vec![0; staging_bytes].into(),
            start: 0,
            end: 0,
            current: None,
            reads: VecDeque::new(),
            message: Vec::new(),
            spare: Spent::default(),
            average: 0,
            received: 0,
            outcome: Outcome::default(),
        }
    }

    /// Bytes of answers that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Whether anything was received.
    pub(super) fn heard(&self) -> bool {
        self.inbound.heard()
    }

    /// Whether segments are long.
    pub(super) fn is_long(&self) -> bool {
        self.average >= LONG_BYTES
    }

    /// A read was requested of the peer.
    pub(super) fn expect(&mut self, sink_stag: u32, read: ReadOrder) {
        self.inbound
            .expect_response(sink_stag, read.from.len as u32);
        self.reads.push_back(read);
    }

    /// No read is answered any more.
    pub(super) fn forget_reads(&mut self) {
        self.reads.clear();
    }

    /// A Read Request of the peer is answered.
    pub(super) fn answered(&mut self) {
        self.inbound.answered();
    }

    /// Receives in one call what the socket has, and places it. `None`: there is no more now.
    pub(super) fn receive(
        &mut self,
        wire: &Wire,
        regions: &mut Regions,
    ) -> Result<io::Result<Option<()>>, End> {
        let (direct, received, more) = match self.call(wire, regions) {
            Ok(received) => received,
            Err(error) if is_passing(&error) => return Ok(Err(error)),
            Err(error) => return Err(End::Lost(error)),
        };
        if received == 0 {
            let whole = self.current.is_none() && self.start == self.end;
            let lost = || End::Lost(io::ErrorKind::UnexpectedEof.into());
            return Err(if whole { End::Finished } else { lost() });
        }
        let direct = direct.min(received);
        if let Some(current) = &mut self.current {
            current.placed += direct;
            if let Place::Sink { .. } = current.place {
                self.received += direct as u64;
            }
        }
        self.end += received - direct;
        self.digest(regions)?;
        Ok(Ok(more.then_some(())))
    }

    /// One call; says how much was asked for straight into place, what came, and whether there may be more now.
    fn call(&mut self, wire: &Wire, regions: &Regions) -> io::Result<(usize, usize, bool)> {
        let long = !self.crc && self.is_long();
        let mut scatter = Scatter::new();
        let mut behind = BETWEEN_BYTES;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(mut tls) = wire.tls() {
            let (received, more) = tls.receive(wire.tcp(), &mut self.staging[self.end..])?;
            return Ok((0, received, more));
        }
        if let Some(current) = &self.current
            && current.placed < current.payload_bytes
        {
            let (placed, left) = (current.placed, current.payload_bytes - current.placed);
            let fits = match current.place {
                Place::Region { stag, offset } => regions
                    .memory(stag)
                    .is_some_and(|memory| scatter.region(memory, offset + placed, left)),
                Place::Sink { offset } => self
                    .reads
                    .front_mut()
                    .and_then(|read| read.into.as_mut())
                    .and_then(|into| into.spare().get_mut(offset + placed..)?.get_mut(..left))
                    .is_some_and(|room| scatter.bytes(room)),
                Place::Message { offset } => self
                    .message
                    .get_mut(offset + placed..offset + placed + left)
                    .is_some_and(|room| scatter.bytes(room)),
                Place::Nowhere => false,
            };
            if !fits {
                return Err(io::Error::other("memory that the peer writes is gone"));
            }
            if !current.last {
                behind = NEXT_HEAD_BYTES;
            }
            behind += current.trailer_bytes;
        }
        let direct = scatter.len();
        let room = &mut self.staging[self.end..];
        let behind = if long {
            behind.min(room.len())
        } else {
            room.len()
        };
        scatter.bytes(&mut room[..behind]);
        let (received, more) = wire.receive(scatter)?;
        Ok((direct, received, more))
    }

    /// Looks at all of staging.
    fn digest(&mut self, regions: &mut Regions) -> Result<(), End> {
        loop {
            match self.current.take() {
                Some(mut current) => {
                    self.place_staged(&mut current, regions)?;
                    let done = current.placed == current.payload_bytes
                        && self.end - self.start >= current.trailer_bytes;
                    if !done {
                        self.current = Some(current);
                        return Ok(());
                    }
                    self.start += current.trailer_bytes;
                    self.finish(&current, regions);
                }
                None => {
                    let bytes = &self.staging[self.start..self.end];
                    if self.crc {
                        match fpdu::frame_bytes(bytes).and_then(|whole| bytes.get(..whole)) {
                            Some(frame) => fpdu::verify(frame).map_err(End::Fault)?,
                            None => return Ok(()),
                        }
                    }
                    match self.inbound.segment(bytes, regions).map_err(End::Fault)? {
                        Progress::Need(_) => return Ok(()),
                        Progress::Segment(segment) => self.begin(segment, regions)?,
                    }
                }
            }
        }
    }

    fn begin(&mut self, segment: Segment, regions: &mut Regions) -> Result<(), End> {
        let payload_bytes = segment.payload_bytes;
        self.start += segment.head_bytes;
        self.average = (3 * self.average + payload_bytes) / 4;
        let (place, last) = match segment.event {
            Event::Write { stag, offset, last } => {
                if payload_bytes > 0 {
                    regions.pin(stag);
                }
                // Checked: it is inside the memory.
                let offset = offset as usize;
                (Place::Region { stag, offset }, last)
            }
            Event::Response { offset, last } => {
                let offset = offset as usize;
                (Place::Sink { offset }, last)
            }
            Event::Send {
                offset,
                last,
                invalidate,
                ..
            } => {
                let offset = offset as usize;
                if offset == 0 {
                    self.message = self.spare.take();
                }
                self.message.resize(offset + payload_bytes, 0);
                if let Some(stag) = invalidate.filter(|_| last) {
                    regions.withdraw(stag);
                }
                (Place::Message { offset }, last)
            }
            Event::Immediate { data, .. } => {
                self.outcome.messages.push(data.to_vec());
                (Place::Nowhere, true)
            }
            Event::ReadRequest(request) => {
                if request.bytes > 0 {
                    regions.pin(request.source_stag);
                }
                self.outcome.requests.push(request);
                (Place::Nowhere, true)
            }
            Event::Ready => (Place::Nowhere, true),
            Event::Terminate(said) => return Err(End::Terminated(said)),
        };
        self.current = Some(Current {
            place,
            payload_bytes,
            placed: 0,
            trailer_bytes: segment.trailer_bytes,
            last,
        });
        Ok(())
    }

    /// Moves payload that came with the head to its place.
    fn place_staged(&mut self, current: &mut Current, regions: &Regions) -> Result<(), End> {
        let bytes = (self.end - self.start).min(current.payload_bytes - current.placed);
        if bytes == 0 {
            return Ok(());
        }
        let staged = &self.staging[self.start..self.start + bytes];
        let at = current.placed;
        let fits = match current.place {
            Place::Region { stag, offset } => {
                count_copy(CopySite::LinkStaging, bytes);
                regions
                    .memory(stag)
                    .is_some_and(|memory| memory.write(offset + at, staged))
            }
            Place::Sink { offset } => {
                count_copy(CopySite::LinkStaging, bytes);
                self.received += bytes as u64;
                self.reads
                    .front_mut()
                    .and_then(|read| read.into.as_mut())
                    .and_then(|into| into.spare().get_mut(offset + at..)?.get_mut(..bytes))
                    .map(|room| room.copy_from_slice(staged))
                    .is_some()
            }
            Place::Message { offset } => self
                .message
                .get_mut(offset + at..offset + at + bytes)
                .map(|room| room.copy_from_slice(staged))
                .is_some(),
            Place::Nowhere => false,
        };
        if !fits {
            let gone = io::Error::other("memory that the peer writes is gone");
            return Err(End::Lost(gone));
        }
        self.start += bytes;
        current.placed += bytes;
        Ok(())
    }

    /// A segment is all there.
    fn finish(&mut self, current: &Current, regions: &mut Regions) {
        match current.place {
            Place::Region { stag, .. } if current.payload_bytes > 0 => {
                self.outcome.released |= regions.unpin(stag);
            }
            Place::Sink { offset } if current.last => {
                let Some(mut read) = self.reads.pop_front() else {
                    return;
                };
                if let Some(into) = &mut read.into {
                    let filled = into.len() + offset + current.payload_bytes;
                    into.set_len(filled);
                }
                self.outcome.reads_done += 1;
                if let Some(answer) = read.answer {
                    // Whoever asked may have gone.
                    let _ = answer.send(read.into);
                }
            }
            Place::Message { .. } if current.last => {
                self.outcome
                    .messages
                    .push(std::mem::take(&mut self.message));
            }
            _ => {}
        }
    }

    /// The segment that a fault is about, from its DDP header on as far as it was received, and its length.
    pub(super) fn offending(&self) -> (&[u8], usize) {
        let bytes = &self.staging[self.start..self.end];
        match bytes.split_first_chunk::<LENGTH_BYTES>() {
            Some((length, segment)) => (segment, usize::from(u16::from_be_bytes(*length))),
            None => (&[], 0),
        }
    }
}
