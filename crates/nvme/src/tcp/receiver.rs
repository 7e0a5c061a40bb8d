//! The receiving direction of a queue: heads and capsules are received into a staging area, payload straight into its place.
//!
//! While PDUs are long, one call receives the rest of a PDU's payload into its place, and its digest with the next head into
//! staging. While they are short, one call receives many of them into staging, and their payload is copied: a call each would cost
//! more. A capsule is looked at when all of it is there.

use std::io;
use std::ops::Range;

use super::transfers::Transfers;
use crate::socket::{Socket, Told};
use forebay_mem::{CopySite, count_copy};
use forebay_proto::nvme_tcp::fault::Fault;
use forebay_proto::nvme_tcp::{
    Agreed, Crc32c, DIGEST_BYTES, Event, HEAD_BYTES_MAX, ICReq, Inbound, Progress, SQE_BYTES,
    TermReq, digest::digest,
};

/// In-capsule data that every command of the admin queue may have, in bytes.
pub(super) const ADMIN_CAPSULE_DATA_BYTES: usize = 8 << 10;
/// Room before a connection is initialized.
const FIRST_STAGING_BYTES: usize = 512;
/// PDUs with this much data on average are received straight into place.
const LONG_BYTES: usize = 16 << 10;
/// Behind the payload of a long PDU: its digest, a capsule, the next head.
const BETWEEN_BYTES: usize = 256;

/// What is next in the stream.
pub(super) enum Next {
    /// Nothing yet: more is to be received.
    More,
    /// Data for the command in this place, which takes it by [`Receiver::fill`].
    Data(usize),
    /// One PDU of data for this place is over.
    Over(usize),
    /// The host begins.
    ICReq(ICReq),
    /// A command, which is to be taken by [`Receiver::consume`].
    Capsule(Capsule),
    /// The host ends the connection.
    Terminated(TermReq),
}

/// A command in staging.
#[derive(Clone)]
pub(super) struct Capsule {
    pub(super) entry: [u8; SQE_BYTES],
    /// Where its data is in staging.
    pub(super) data: Range<usize>,
    /// Its data does not match its digest.
    pub(super) damaged: bool,
    end: usize,
}

/// How far [`Receiver::fill`] came.
pub(super) enum Filled {
    /// All the way.
    Whole,
    /// Something else must happen in the stream before.
    NotYet,
    /// The socket has nothing.
    Starved,
}

/// Data that is being received.
struct Current {
    place: usize,
    /// It is of no use any more.
    unwanted: bool,
    /// Bytes of data that are not in their place.
    left: usize,
    trailer_bytes: usize,
    crc: Option<Crc32c>,
}

/// The receiving direction of one queue.
pub(super) struct Receiver {
    inbound: Inbound,
    staging: Box<[u8]>,
    /// The bytes of staging that are not looked at yet.
    start: usize,
    end: usize,
    /// How many there must be before something can be made of them.
    need: usize,
    current: Option<Current>,
    /// Bytes of data of a PDU, a moving average.
    average: usize,
    received: u64,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            inbound: Inbound::controller(0),
            staging: vec![0; FIRST_STAGING_BYTES].into(),
            start: 0,
            end: 0,
            need: 0,
            current: None,
            average: 0,
            received: 0,
        }
    }

    /// The connection is initialized: room for capsules of an admin queue.
    pub(super) fn initialized(&mut self, agreed: &Agreed) {
        self.inbound.initialized(agreed);
        self.set_capsule_data_bytes_max(ADMIN_CAPSULE_DATA_BYTES, 0);
    }

    /// From now on commands may have this much data in their capsules; there is room for some that come together.
    pub(super) fn set_capsule_data_bytes_max(&mut self, bytes: usize, staging_bytes: usize) {
        self.inbound.set_capsule_data_bytes_max(bytes);
        let capsule_bytes = HEAD_BYTES_MAX + bytes + DIGEST_BYTES;
        let mut staging = vec![0; staging_bytes.max(capsule_bytes)];
        let staged = self.staged().len();
        staging[..staged].copy_from_slice(self.staged());
        self.staging = staging.into();
        (self.start, self.end) = (0, staged);
    }

    /// How much room there is for what comes together.
    pub(super) fn staging_bytes(&self) -> usize {
        self.staging.len()
    }

    fn staged(&self) -> &[u8] {
        &self.staging[self.start..self.end]
    }

    /// Bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The header of what [`Receiver::next`] refused.
    pub(super) fn offending(&self) -> &[u8] {
        self.inbound.offending(self.staged())
    }

    /// Whether the stream stands between two PDUs.
    pub(super) fn is_between(&self) -> bool {
        self.current.is_none() && self.staged().is_empty()
    }

    /// Looks at what is next.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn next(&mut self, transfers: &mut Transfers) -> Result<Next, Fault> {
        loop {
            if let Some(current) = &mut self.current {
                let staged = &self.staging[self.start..self.end];
                if current.unwanted {
                    let now = staged.len().min(current.left);
                    self.start += now;
                    current.left -= now;
                } else if current.left > 0 {
                    return Ok(Next::Data(current.place));
                }
                let staged = &self.staging[self.start..self.end];
                self.need = current.trailer_bytes.max(1);
                if current.left > 0 || staged.len() < current.trailer_bytes {
                    return Ok(Next::More);
                }
                let field = &staged[..current.trailer_bytes];
                let damaged = current.crc.is_some_and(|crc| crc.field() != field);
                self.start += current.trailer_bytes;
                let place = current.place;
                self.current = None;
                if damaged {
                    transfers.damage(place);
                }
                return Ok(Next::Over(place));
            }
            let staged = &self.staging[self.start..self.end];
            let pdu = match self.inbound.pdu(staged)? {
                Progress::Need(bytes) => {
                    self.need = bytes;
                    return Ok(Next::More);
                }
                Progress::Pdu(pdu) => pdu,
            };
            match pdu.event {
                Event::ICReq(request) => {
                    self.start += pdu.head_bytes;
                    return Ok(Next::ICReq(request));
                }
                Event::Terminate(request) => return Ok(Next::Terminated(request)),
                Event::CapsuleCmd(entry) => {
                    let data_end = pdu.head_bytes + pdu.data_bytes;
                    let end = data_end + pdu.trailer_bytes;
                    if staged.len() < end {
                        self.need = end;
                        return Ok(Next::More);
                    }
                    self.average = (3 * self.average + pdu.data_bytes) / 4;
                    let data = &staged[pdu.head_bytes..data_end];
                    let damaged = pdu.trailer_bytes > 0 && staged[data_end..end] != digest(data);
                    return Ok(Next::Capsule(Capsule {
                        entry,
                        data: self.start + pdu.head_bytes..self.start + data_end,
                        damaged,
                        end: self.start + end,
                    }));
                }
                Event::Data(data) => {
                    let place = transfers.accept(&data)?;
                    self.start += pdu.head_bytes;
                    self.average = (3 * self.average + pdu.data_bytes) / 4;
                    let unwanted = transfers.is_unwanted(place);
                    let checked = !unwanted && pdu.trailer_bytes > 0;
                    self.current = Some(Current {
                        place,
                        unwanted,
                        left: pdu.data_bytes,
                        trailer_bytes: pdu.trailer_bytes,
                        crc: checked.then(Crc32c::new),
                    });
                }
                // Only controllers send these: they were refused.
                Event::ICResp(_) | Event::CapsuleResp(_) | Event::R2T(_) => {}
            }
        }
    }

    /// The bytes of a capsule's data, until it is consumed.
    pub(super) fn capsule_data(&self, capsule: &Range<usize>) -> &[u8] {
        self.staging.get(capsule.clone()).unwrap_or(&[])
    }

    /// Goes on behind a capsule.
    pub(super) fn consume(&mut self, capsule: &Capsule) {
        self.start = capsule.end;
    }

    /// Whether the PDU being received has data for this place.
    pub(super) fn has_data(&self, place: usize) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|current| current.place == place && current.left > 0)
    }

    /// What is received for this place is of no use; says whether there is a PDU of that.
    pub(super) fn refuse(&mut self, place: usize) -> bool {
        let current = self.current.as_mut();
        let Some(current) = current.filter(|current| current.place == place) else {
            return false;
        };
        current.unwanted = true;
        current.crc = None;
        true
    }

    /// Places data for `place` behind the first `filled` bytes of `into`, until it is full.
    ///
    /// # Errors
    /// The system's, and the end of the stream.
    pub(super) fn fill(
        &mut self,
        socket: &Socket,
        place: usize,
        into: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<Filled> {
        loop {
            let current = self.current.as_mut();
            let Some(current) = current.filter(|current| current.place == place) else {
                return Ok(match *filled == into.len() {
                    true => Filled::Whole,
                    false => Filled::NotYet,
                });
            };
            if current.left == 0 {
                // Before its digest was compared, data is not there.
                return Ok(Filled::NotYet);
            }
            let room = &mut into[*filled..];
            if room.is_empty() {
                return Ok(Filled::Whole);
            }
            let now = room.len().min(current.left);
            let staged = (self.end - self.start).min(now);
            if staged > 0 {
                let from = &self.staging[self.start..self.start + staged];
                room[..staged].copy_from_slice(from);
                count_copy(CopySite::LinkStaging, staged);
                if let Some(crc) = &mut current.crc {
                    crc.update(from);
                }
                self.start += staged;
                current.left -= staged;
                *filled += staged;
                continue;
            }
            match self.call(socket, &mut room[..now], Told::Yes) {
                // Nothing of it was for us: others get a turn before more is looked at.
                Ok((0, true)) if self.start == self.end => return Ok(Filled::Starved),
                Ok((placed, _)) => *filled += placed,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Filled::Starved);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives into staging; says whether there may be more.
    ///
    /// # Errors
    /// The system's, and the end of the stream.
    pub(super) fn receive(&mut self, socket: &Socket) -> io::Result<bool> {
        Ok(self.call(socket, &mut [], Told::Yes)?.1)
    }

    /// As [`Receiver::receive`], before the system has told that there is anything.
    ///
    /// # Errors
    /// As there.
    pub(super) fn look(&mut self, socket: &Socket) -> io::Result<()> {
        self.call(socket, &mut [], Told::No).map(drop)
    }

    /// One call: into the place of the PDU being received, and what is behind it into staging. Says how many bytes were placed, and
    /// whether there may be more.
    fn call(&mut self, socket: &Socket, place: &mut [u8], told: Told) -> io::Result<(usize, bool)> {
        if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let asked_for_place = place.len();
        let behind = match &self.current {
            // What comes next is payload again, for which there is a place only later.
            Some(current) if asked_for_place > 0 && asked_for_place < current.left => 0,
            // Nobody wants what comes: the more of it at once, the better.
            Some(current) if current.unwanted => self.staging.len(),
            _ if self.average >= LONG_BYTES => {
                BETWEEN_BYTES.max(self.need.saturating_sub(self.end))
            }
            _ => self.staging.len(),
        };
        let room = &mut self.staging[self.end..];
        let behind = behind.min(room.len());
        let (received, more) = socket.receive(&mut *place, &mut room[..behind], told)?;
        self.received += received as u64;
        let placed = received.min(asked_for_place);
        if let Some(current) = &mut self.current {
            current.left -= placed;
            if let Some(crc) = &mut current.crc {
                crc.update(&place[..placed]);
            }
        }
        self.end += received - placed;
        Ok((placed, more))
    }
}
