//! Data that was asked for by R2T, by the places of the commands that it is for.

use forebay_proto::nvme_tcp::fault::Fault;
use forebay_proto::nvme_tcp::pdu::offset;
use forebay_proto::nvme_tcp::{Data, FatalErrorStatus, R2T, Transfer};

/// Places that a tag can name, and the bits it does that with. The bits above tell the transfers of a place apart.
pub(super) const PLACES_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;
const GENERATIONS: u16 = u16::MAX >> PLACE_BITS;
/// Transfers of commands that are over, which the host goes on with: beyond, it has been given too many.
const ABANDONED_MAX: usize = PLACES_MAX;

#[derive(Default)]
struct Place {
    generation: u16,
    transfer: Option<Transfer>,
    damaged: bool,
    wants: bool,
}

/// All transfers of a queue.
#[derive(Default)]
pub(super) struct Transfers {
    places: Vec<Place>,
    abandoned: Vec<Transfer>,
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
        r2t
    }

    /// Takes the header of data; says which place it is for, `None` when its command is over.
    ///
    /// # Errors
    /// When nobody asked for it.
    pub(super) fn accept(&mut self, data: &Data) -> Result<Option<usize>, Fault> {
        let at = usize::from(data.ttag) % PLACES_MAX;
        let place = self.places.get_mut(at);
        let transfer = place.and_then(|place| place.transfer.as_mut());
        if let Some(transfer) = transfer.filter(|transfer| transfer.ttag() == data.ttag) {
            open(transfer)?.accept(data)?;
            return Ok(Some(at));
        }
        let mut abandoned = self.abandoned.iter();
        let at = abandoned.position(|transfer| transfer.ttag() == data.ttag);
        let at = at.ok_or(Fault::field(offset::TTAG))?;
        if self.abandoned[at].accept(data)? {
            self.abandoned.swap_remove(at);
        }
        Ok(None)
    }

    /// The command in this place is over. Data that was asked for will still come, and is of no use.
    ///
    /// # Errors
    /// When the host has been left with too many such requests.
    pub(super) fn abandon(&mut self, at: usize) -> Result<(), Fault> {
        let place = self.place(at);
        place.wants = false;
        let Some(transfer) = place.transfer.take() else {
            return Ok(());
        };
        if transfer.left() > 0 {
            if self.abandoned.len() == ABANDONED_MAX {
                return Err(Fault::of(FatalErrorStatus::DataTransferLimitExceeded));
            }
            self.abandoned.push(transfer);
        }
        Ok(())
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

/// A transfer that has all its data is as unknown as one that never was.
fn open(transfer: &mut Transfer) -> Result<&mut Transfer, Fault> {
    if transfer.left() == 0 {
        return Err(Fault::field(offset::TTAG));
    }
    Ok(transfer)
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
        assert_eq!(transfers.accept(&data(&first, 0, 60, false)), Ok(Some(3)));
        assert_eq!(
            transfers.accept(&data(&second, 4096, 8, true)),
            Ok(Some(127))
        );
        assert!(transfers.owed() > 0);
        assert_eq!(transfers.accept(&data(&first, 60, 40, true)), Ok(Some(3)));
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
    fn late_data_of_a_command_that_is_over_is_let_through_and_no_more_of_it() {
        let mut transfers = Transfers::default();
        let asked = transfers.ask(0, 1, 0, 10);
        assert_eq!(transfers.accept(&data(&asked, 0, 4, false)), Ok(Some(0)));
        transfers.abandon(0).unwrap();
        assert_eq!(transfers.owed(), 0);
        let again = transfers.ask(0, 1, 0, 10);
        assert_eq!(transfers.accept(&data(&asked, 4, 6, true)), Ok(None));
        assert!(transfers.accept(&data(&asked, 4, 6, true)).is_err());
        assert_eq!(transfers.accept(&data(&again, 0, 10, true)), Ok(Some(0)));
        transfers.abandon(0).unwrap();
        for _ in 0..ABANDONED_MAX {
            transfers.ask(0, 1, 0, 10);
            transfers.abandon(0).unwrap();
        }
        transfers.ask(0, 1, 0, 10);
        assert!(transfers.abandon(0).is_err());
    }
}
