//! Bytes of a value let go, and taken back: its entry stays, its place changes.

use forebay_io::Disk;
use forebay_store::limits::check_back;
use forebay_store::{Away, Meta, Result, StoreError, Stored};

use crate::command::{TakeBackCommand, Target};
use crate::entry::{Entry, Place};
use crate::view::malformed;

use super::{Decider, slot};

impl<D: Disk> Decider<D> {
    pub(super) fn let_go(&mut self, target: &Target, seen: &Meta, away: Away) -> Result<()> {
        let info = self.namespace(target)?;
        let slot = slot(target);
        let view = self.view();
        let entry = view.find(&info, slot.space, slot.key, Some(seen.version))?;
        let meta = entry.meta().map_err(malformed)?;
        meta.check_seen(Some(seen))?;
        let place = entry.place().map_err(malformed)?;
        if let Place::Away(_) = place {
            return Err(StoreError::moved());
        }
        let mut draft = self.draft();
        draft.free(view, slot, &entry)?;
        let changed = Entry::value(entry.sequence(), &meta, &Place::Away(away));
        self.rewrite(&info, slot, &changed, &mut draft)?;
        self.settle(&info, draft, None)
    }

    pub(super) fn take_back(&mut self, command: &TakeBackCommand) -> Result<Stored> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let view = self.view();
        let entry = view.find(&info, slot.space, slot.key, command.version)?;
        let place = entry.place().map_err(malformed)?;
        if place != Place::Away(command.away) {
            return Err(StoreError::moved());
        }
        let meta = entry.meta().map_err(malformed)?;
        check_back(&meta, command.size, command.crc64nvme)?;
        let mut draft = self.draft();
        draft.free(view, slot, &entry)?;
        let (place, packed) = self.place(&mut draft, &command.content)?;
        let changed = Entry::value(entry.sequence(), &meta, &place);
        let settled = self
            .rewrite(&info, slot, &changed, &mut draft)
            .and_then(|()| self.settle(&info, draft, None));
        self.packed(packed, &command.content, settled.is_ok());
        settled.map(|()| Stored {
            meta,
            replaced: true,
        })
    }
}
