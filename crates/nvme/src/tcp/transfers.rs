//! Data that was asked for by R2T, by the places of the commands that it is for.

use forebay_proto::nvme_tcp::fault::Fault;
use forebay_proto::nvme_tcp::pdu::offset;
use forebay_proto::nvme_tcp::{Data, R2T, Transfer};

use crate::target::TCP_QUEUE_ENTRIES_MAX;

/// Places that a tag can name, and the bits it does that with. The bits above tell the transfers of a place apart.
pub(super) const PLACES_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;
const GENERATIONS: u16 = u16::MAX >> PLACE_BITS;
const _: () = assert!(TCP_QUEUE_ENTRIES_MAX as usize <= PLACES_MAX);

#[derive(Default)]
struct Place {
    generation: u16,
    transfer: Option<Transfer>,
    damaged: bool,
    wants: bool,
    /// What comes is of no use any more.
    unwanted: bool,
}

/// All transfers of a queue.
#[derive(Default)]
pub(super) struct Transfers {
    places: Vec<Place>,
}

impl Transfers {
    /// Asks for data of the command in this place.
    pub(super) fn ask(&mut self, at: usize, cccid: u16, from: u32, bytes: u32) -> R2T {
        let place = self.place(at);
        // Never 0: no tag is.
        place.generation = place.generation % GENERATIONS + 1;
        let r2t = R2T {
            cccid,
            ttag: place.generation << PLACE_BITS | at as u16,
            offset: from,
            bytes,
        };
        place.transfer = Some(Transfer::asked(&r2t));
        place.damaged = false;
        place.unwanted = false;
        r2t
    }

    /// Takes the header of data; says which place it is for.
    ///
    /// # Errors
    /// When nobody asked for it.
    pub(super) fn accept(&mut self, data: &Data) -> Result<usize, Fault> {
        let at = usize::from(data.ttag) % PLACES_MAX;
        let place = self.places.get_mut(at);
        let transfer = place.and_then(|place| place.transfer.as_mut());
        // A transfer that has all its data is as unknown as one that never was.
        let open = transfer.filter(|open| open.ttag() == data.ttag && open.left() > 0);
        open.ok_or(Fault::field(offset::TTAG))?.accept(data)?;
        Ok(at)
    }

    /// What is still to come for this place is of no use; says whether anything is.
    pub(super) fn refuse(&mut self, at: usize) -> bool {
        let place = self.place(at);
        place.unwanted = true;
        let transfer = place.transfer.as_ref();
        transfer.is_some_and(|transfer| transfer.left() > 0)
    }

    /// Whether it is.
    pub(super) fn is_unwanted(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|place| place.unwanted)
    }

    /// How much data the host owes, in bytes.
    pub(super) fn owed(&self) -> u64 {
        let asked = self.places.iter().flat_map(|place| &place.transfer);
        asked.map(|transfer| u64::from(transfer.left())).sum()
    }

    /// Whether the command in this place sleeps until there is data for it.
    pub(super) fn wants(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|place| place.wants)
    }

    /// Says so.
    pub(super) fn set_wants(&mut self, at: usize, wants: bool) {
        self.place(at).wants = wants;
    }

    /// Data of this transfer did not match its digest.
    pub(super) fn damage(&mut self, at: usize) {
        self.place(at).damaged = true;
    }

    /// Whether any did not.
    pub(super) fn is_damaged(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|place| place.damaged)
    }

    fn place(&mut self, at: usize) -> &mut Place {
        if self.places.len() <= at {
            self.places.resize_with(at + 1, Place::default);
        }
        &mut self.places[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(r2t: &R2T, from: u32, bytes: u32, last: bool) -> Data {
        Data {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            offset: from,
            bytes,
            last,
            success: false,
        }
    }

    #[test]
    fn data_is_taken_once_and_only_as_it_was_asked_for() {
        let mut transfers = Transfers::default();
        let first = transfers.ask(3, 77, 0, 100);
        let second = transfers.ask(127, 78, 4096, 8);
        assert!(first.ttag != 0 && first.ttag != second.ttag);
        assert_eq!(transfers.accept(&data(&first, 0, 60, false)), Ok(3));
        assert_eq!(transfers.accept(&data(&second, 4096, 8, true)), Ok(127));
        assert!(transfers.owed() > 0);
        assert_eq!(transfers.accept(&data(&first, 60, 40, true)), Ok(3));
        assert_eq!(transfers.owed(), 0);
        let unknown = Err(Fault::field(offset::TTAG));
        assert_eq!(transfers.accept(&data(&first, 60, 40, true)), unknown);
        let mut never = second;
        for ttag in [0, 1, second.ttag ^ 0x80, u16::MAX] {
            never.ttag = ttag;
            assert_eq!(transfers.accept(&data(&never, 4096, 8, true)), unknown);
        }
        let other = Data {
            cccid: 78,
            ..data(&transfers.ask(3, 77, 0, 4), 0, 4, true)
        };
        assert_eq!(transfers.accept(&other), Err(Fault::field(offset::CCCID)));
    }

    #[test]
    fn tags_of_a_place_come_back_late_and_are_never_zero() {
        let mut transfers = Transfers::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..GENERATIONS {
            let ttag = transfers.ask(0, 1, 0, 4).ttag;
            assert!(ttag != 0 && seen.insert(ttag));
        }
        assert!(!seen.insert(transfers.ask(0, 1, 0, 4).ttag));
    }

    #[test]
    fn what_is_of_no_use_is_still_owed() {
        let mut transfers = Transfers::default();
        assert!(!transfers.refuse(0));
        let asked = transfers.ask(0, 1, 0, 10);
        assert!(!transfers.is_unwanted(0));
        assert_eq!(transfers.accept(&data(&asked, 0, 4, false)), Ok(0));
        assert!(transfers.refuse(0) && transfers.is_unwanted(0));
        assert_eq!(transfers.owed(), 6);
        assert_eq!(transfers.accept(&data(&asked, 4, 6, true)), Ok(0));
        assert!(!transfers.refuse(0));
        assert!(transfers.accept(&data(&asked, 4, 6, true)).is_err());
        transfers.ask(0, 1, 0, 10);
        assert!(!transfers.is_unwanted(0));
    }
}
