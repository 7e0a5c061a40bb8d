//! The commands that are with the controller on one connection.

use std::time::Instant;

use forebay_proto::nvme::{CompletionQueueEntry, SglDescriptor};
use forebay_proto::nvme_tcp::Transfer;

use super::data::Data;
use super::slots::{Command, Completed, Reply};
use super::{Error, Result};

/// Bits of a command identifier that name the place; those above count how often the place was used, so that a late answer to an
/// earlier command is noticed.
const PLACE_BITS: u32 = 10;

/// One command.
pub(super) struct Flight {
    pub(super) command: Command,
    pub(super) cid: u16,
    /// The order in which commands were sent.
    number: u64,
    begun: Instant,
    /// Of payload to the controller: how much it has, or has asked for.
    pub(super) asked: u32,
    /// Not all of what it asked for last is laid out.
    pub(super) owed: bool,
    /// Of payload to the host: what may still come.
    pub(super) transfer: Option<Transfer>,
    /// The last of it has come.
    pub(super) last: bool,
    /// Its digest was wrong.
    pub(super) damaged: bool,
    /// How many pieces of it are on their way: the memory is not let go before.
    pub(super) pieces: u32,
    pub(super) completed: Option<CompletionQueueEntry>,
}

/// All of them, by place.
pub(super) struct Flights {
    places: Vec<Option<Flight>>,
    uses: Vec<u16>,
    count: usize,
    number: u64,
}

impl Flights {
    pub(super) fn new(depth: usize) -> Flights {
        Flights {
            places: (0..depth).map(|_| None).collect(),
            uses: vec![0; depth],
            count: 0,
            number: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Enters a command and gives its entry an identifier; `in_capsule` says that its payload goes with it.
    pub(super) fn begin(
        &mut self,
        at: u16,
        mut command: Command,
        in_capsule: bool,
        now: Instant,
    ) -> &mut Flight {
        let uses = &mut self.uses[usize::from(at)];
        *uses = uses.wrapping_add(1);
        let cid = *uses << PLACE_BITS | at;
        let bytes = command.data.len() as u32;
        let sgl = if in_capsule {
            SglDescriptor::in_capsule(bytes)
        } else {
            SglDescriptor::transport(bytes)
        };
        command.entry = command.entry.with_cid(cid).with_sgl(sgl);
        let transfer = match command.data {
            Data::In(_) => Some(Transfer::answer(cid, bytes)),
            Data::None | Data::Out(_) => None,
        };
        self.number += 1;
        self.count += 1;
        self.places[usize::from(at)].insert(Flight {
            command,
            cid,
            number: self.number,
            begun: now,
            asked: if in_capsule { bytes } else { 0 },
            owed: false,
            transfer,
            last: false,
            damaged: false,
            pieces: 0,
            completed: None,
        })
    }

    /// The place of a command identifier.
    pub(super) fn place(cid: u16) -> u16 {
        cid & ((1 << PLACE_BITS) - 1)
    }

    /// The place and command that a controller means.
    pub(super) fn of_cid(&mut self, cid: u16) -> Option<(u16, &mut Flight)> {
        let at = Flights::place(cid);
        let flight = self.places.get_mut(usize::from(at))?.as_mut()?;
        (flight.cid == cid && flight.completed.is_none()).then_some((at, flight))
    }

    pub(super) fn get(&self, at: u16) -> Option<&Flight> {
        self.places.get(usize::from(at))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u16) -> Option<&mut Flight> {
        self.places.get_mut(usize::from(at))?.as_mut()
    }

    /// Ends the command of this place, if it is completed and none of it is on its way any more.
    pub(super) fn end(&mut self, at: u16, association: u64) -> Option<Reply> {
        let place = self.places.get_mut(usize::from(at))?;
        let flight = place.take_if(|flight| flight.completed.is_some() && flight.pieces == 0)?;
        self.count -= 1;
        Some(flight.reply(association))
    }

    /// When the longest one under way began, of those that have an end.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let flights = self.places.iter().flatten();
        flights
            .filter(|flight| !flight.command.endless)
            .map(|flight| flight.begun)
            .min()
    }

    /// Takes all of them, in the order in which they were sent.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (u16, Command)> + use<> {
        self.count = 0;
        let mut all: Vec<_> = (0..)
            .zip(&mut self.places)
            .filter_map(|(at, place)| Some((at, place.take()?)))
            .collect();
        all.sort_by_key(|(_, flight): &(u16, Flight)| flight.number);
        all.into_iter().map(|(at, flight)| (at, flight.command))
    }
}

impl Flight {
    fn reply(self, association: u64) -> Reply {
        let outcome = self.outcome(association);
        let mut data = self.command.data;
        if let (Data::In(sink), Ok(completed)) = (&mut data, &outcome) {
            sink.finish(completed.received);
        }
        Reply { outcome, data }
    }

    fn outcome(&self, association: u64) -> Result<Completed> {
        let entry = self.completed.unwrap_or_default();
        if !entry.status.is_success() {
            return Err(Error::Status(entry.status));
        }
        if self.damaged {
            return Err(Error::Damaged);
        }
        if let Data::Out(source) = &self.command.data
            && u64::from(self.asked) < source.len()
        {
            return Err(Error::protocol(
                "a command succeeded whose payload was not asked for",
            ));
        }
        let received = self.transfer.map_or(0, |transfer| transfer.next());
        Ok(Completed {
            result: entry.result,
            received: received.into(),
            association,
        })
    }
}
