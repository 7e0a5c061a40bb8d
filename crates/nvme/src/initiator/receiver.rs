//! The receiving direction of a connection: heads are read into a small staging area, payload straight into its place.
//!
//! While PDUs are long, one call receives the rest of a PDU's payload into its place, and the next head into staging. While they are
//! short, one call receives many of them into staging, and their payload is copied: a call each would cost more.

use std::io;

use forebay_io::socket::Scatter;
use forebay_proto::nvme::CompletionQueueEntry;
use forebay_proto::nvme_tcp::fault::FatalErrorStatus;
use forebay_proto::nvme_tcp::pdu::offset;
use forebay_proto::nvme_tcp::{Agreed, Crc32c, Event, Fault, Inbound, Progress, R2T, TermReq};

use super::data::Data;
use super::flights::Flights;
use crate::socket::Socket;

/// Room for heads, and for short PDUs: a batch of 32 reads of 4 KiB.
const STAGING_BYTES: usize = 160 << 10;
/// PDUs this long on average are received straight into place.
const LONG_BYTES: usize = 16 << 10;
/// Behind the payload of a long PDU: its digest, a completion, the next head.
const BETWEEN_BYTES: usize = 256;
/// Where a CapsuleResp has its command identifier.
const CID_AT: u32 = 20;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The controller broke the protocol.
    Fault(Fault),
    /// The controller ended it, and why.
    Terminated(TermReq),
    /// The connection broke or was ended.
    Lost(io::Error),
    /// A command was not completed in time.
    Silent,
}

/// What receiving led to.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) completions: Vec<CompletionQueueEntry>,
    pub(super) requests: Vec<R2T>,
}

/// What one call came to.
struct Called {
    /// How much was asked for straight into place.
    direct: usize,
    received: usize,
    /// There may be more now.
    more: bool,
}

/// Data that is being received.
struct Current {
    at: u16,
    /// Where in the command's memory this PDU begins.
    offset: u64,
    data_bytes: usize,
    placed: usize,
    trailer_bytes: usize,
    /// What ends with this PDU.
    success: bool,
}

/// The receiving direction of one connection.
pub(super) struct Receiver {
    inbound: Inbound,
    staging: Box<[u8]>,
    /// The bytes of staging that are not looked at yet.
    start: usize,
    end: usize,
    current: Option<Current>,
    /// Bytes of payload of a PDU, a moving average.
    average: usize,
}

impl Receiver {
    pub(super) fn new(agreed: &Agreed) -> Receiver {
        let mut inbound = Inbound::host();
        inbound.initialized(agreed);
        Receiver {
            inbound,
            staging: vec![0; STAGING_BYTES].into(),
            start: 0,
            end: 0,
            current: None,
            average: 0,
        }
    }

    /// Receives in one call what the socket has, and places it. `None`: less than there was room for, so there is no more now.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        flights: &mut Flights,
        arrived: &mut Arrived,
    ) -> Result<io::Result<Option<()>>, End> {
        let Called {
            direct,
            received,
            more,
        } = match self.call(socket, flights) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Err(error)),
            Err(error) => return Err(End::Lost(error)),
        };
        if received == 0 && !more {
            return Err(End::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let direct = direct.min(received);
        if let Some(current) = &mut self.current {
            current.placed += direct;
        }
        self.end += received - direct;
        self.digest(flights, arrived)?;
        Ok(Ok(more.then_some(())))
    }

    /// One call. What comes out of TLS is for staging, whosever it is: it was moved once already.
    fn call(&mut self, socket: &Socket, flights: &mut Flights) -> io::Result<Called> {
        let long = self.average >= LONG_BYTES;
        let mut scatter = Scatter::new();
        if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(mut tls) = socket.tls() {
            let (received, more) = tls.receive(&mut self.staging[self.end..])?;
            return Ok(Called {
                direct: 0,
                received,
                more,
            });
        }
        let mut whole = true;
        if let Some(current) = &self.current
            && current.placed < current.data_bytes
        {
            let left = current.data_bytes - current.placed;
            let flight = flights.get_mut(current.at);
            let Some(Data::In(sink)) = flight.map(|flight| &mut flight.command.data) else {
                return Err(gone());
            };
            let from = current.offset + current.placed as u64;
            let added = sink.scatter(from, left, &mut scatter);
            if added == 0 {
                return Err(gone());
            }
            whole = added == left;
        }
        let direct = scatter.len();
        if whole {
            let room = &mut self.staging[self.end..];
            let behind = if long {
                BETWEEN_BYTES.min(room.len())
            } else {
                room.len()
            };
            scatter.bytes(&mut room[..behind]);
        }
        let asked = scatter.len();
        let received = scatter.receive(socket.tcp())?;
        Ok(Called {
            direct,
            received,
            more: received == asked,
        })
    }

    /// Looks at all of staging.
    fn digest(&mut self, flights: &mut Flights, arrived: &mut Arrived) -> Result<(), End> {
        loop {
            match self.current.take() {
                Some(mut current) => {
                    self.place_staged(&mut current, flights)?;
                    let done = current.placed == current.data_bytes
                        && self.end - self.start >= current.trailer_bytes;
                    if !done {
                        self.current = Some(current);
                        return Ok(());
                    }
                    self.finish(&current, flights, arrived);
                    self.start += current.trailer_bytes;
                }
                None => {
                    let bytes = &self.staging[self.start..self.end];
                    match self.inbound.pdu(bytes).map_err(End::Fault)? {
                        Progress::Need(_) => return Ok(()),
                        Progress::Pdu(pdu) => {
                            self.begin(&pdu, flights, arrived)?;
                            self.start += pdu.head_bytes;
                        }
                    }
                }
            }
        }
    }

    fn begin(
        &mut self,
        pdu: &forebay_proto::nvme_tcp::Pdu,
        flights: &mut Flights,
        arrived: &mut Arrived,
    ) -> Result<(), End> {
        match pdu.event {
            Event::CapsuleResp(bytes) => {
                let (entry, _) = CompletionQueueEntry::decode(&bytes);
                let (_, flight) = flights
                    .of_cid(entry.cid)
                    .ok_or(End::Fault(Fault::field(CID_AT)))?;
                flight.completed = Some(entry);
                arrived.completions.push(entry);
            }
            Event::R2T(request) => {
                if flights.of_cid(request.cccid).is_none() {
                    return Err(End::Fault(Fault::field(offset::CCCID)));
                }
                arrived.requests.push(request);
            }
            Event::Data(data) => {
                let unknown = End::Fault(Fault::field(offset::CCCID));
                let (at, flight) = flights.of_cid(data.cccid).ok_or(unknown)?;
                let transfer = flight.transfer.as_mut();
                // For a command that sends, or has none.
                let unasked = End::Fault(Fault::of(FatalErrorStatus::PduSequenceError));
                let transfer = transfer.filter(|_| !flight.last).ok_or(unasked)?;
                flight.last = transfer.accept(&data).map_err(End::Fault)?;
                self.average = (3 * self.average + pdu.data_bytes) / 4;
                self.current = Some(Current {
                    at,
                    offset: data.offset.into(),
                    data_bytes: pdu.data_bytes,
                    placed: 0,
                    trailer_bytes: pdu.trailer_bytes,
                    success: data.success,
                });
            }
            Event::Terminate(request) => return Err(End::Terminated(request)),
            Event::ICReq(_) | Event::ICResp(_) | Event::CapsuleCmd(_) => {
                let unexpected = Fault::of(FatalErrorStatus::PduSequenceError);
                return Err(End::Fault(unexpected));
            }
        }
        Ok(())
    }

    /// Moves payload that came with the head to its place.
    fn place_staged(&mut self, current: &mut Current, flights: &mut Flights) -> Result<(), End> {
        let bytes = (self.end - self.start).min(current.data_bytes - current.placed);
        if bytes == 0 {
            return Ok(());
        }
        let staged = &self.staging[self.start..self.start + bytes];
        let from = current.offset + current.placed as u64;
        let flight = flights.get_mut(current.at);
        let fits = match flight.map(|flight| &mut flight.command.data) {
            Some(Data::In(sink)) => sink.write(from, staged),
            _ => false,
        };
        if !fits {
            return Err(End::Lost(gone()));
        }
        self.start += bytes;
        current.placed += bytes;
        Ok(())
    }

    /// Payload of a PDU is all there, and its digest is next.
    fn finish(&mut self, current: &Current, flights: &mut Flights, arrived: &mut Arrived) {
        let Some(flight) = flights.get_mut(current.at) else {
            return;
        };
        if current.trailer_bytes > 0
            && let Data::In(sink) = &mut flight.command.data
        {
            let mut digest = Crc32c::new();
            let there = sink.show(current.offset, current.data_bytes, |bytes| {
                digest.update(bytes);
            });
            let behind = &self.staging[self.start..];
            flight.damaged |= !there || !behind.starts_with(&digest.field());
        }
        if current.success {
            let entry = CompletionQueueEntry {
                cid: flight.cid,
                ..CompletionQueueEntry::default()
            };
            flight.completed = Some(entry);
            arrived.completions.push(entry);
        }
    }

    /// The header that a fault is about.
    pub(super) fn offending(&self) -> &[u8] {
        self.inbound.offending(&self.staging[self.start..self.end])
    }
}

fn gone() -> io::Error {
    io::Error::other("memory that the controller's data is for is gone")
}
