//! Deciding about one value: storing, amending, deleting.

use forebay_io::Disk;
use forebay_store::{
    DeleteOptions, Deleted, Etag, Meta, NamespaceInfo, Result, Space, Stored, Usage, VersionId,
    answer_delete, growth_of_delete, makes_marker, plan_delete, plan_store,
};

use crate::cache::Piece;
use crate::command::{AmendCommand, Content, StoreCommand, Target};
use crate::draft::{Draft, Slot, amended};
use crate::entry::{Entry, Place};
use crate::extent::{GRANULE_BYTES, Run};
use crate::keys;
use crate::keys::Table;
use crate::usage::Reservation;
use crate::view::{Standing, malformed, unless_damaged, versioning};

use super::{Decider, slot};

impl<D: Disk> Decider<D> {
    pub(super) fn store(&mut self, command: &mut StoreCommand) -> Result<Stored> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let standing = self.view().present(&info, slot.space, slot.key)?;
        standing.check(command.condition)?;
        let mut draft = self.draft();
        let (place, packed) = self.place(&mut draft, &command.content)?;
        let meta = Meta {
            size: command.size,
            etag: command
                .seal
                .etag
                .unwrap_or_else(|| Etag::of_value(command.crc64nvme, command.size)),
            modified: self.now,
            version: VersionId::NULL,
            crc64nvme: command.crc64nvme,
            expires: info
                .config
                .expires(slot.space, self.now, command.seal.expires),
            attributes: std::mem::take(&mut command.seal.attributes),
        };
        let reservation = Some(&mut command.reservation);
        let stored = self.put(&info, slot, standing, draft, meta, place, reservation);
        self.packed(packed, &command.content, stored.is_ok());
        stored
    }

    /// Gives bytes that arrived their place; of those that the group's write takes along also which body and run it is.
    pub(super) fn place(
        &mut self,
        draft: &mut Draft,
        content: &Content,
    ) -> Result<(Place, Option<(u64, Run)>)> {
        match content {
            Content::Small(buf) => self.place_small(draft, buf),
            Content::Written(extents) => {
                let mut next_id = self.next_id;
                let place = draft.place_extents(extents.clone(), || {
                    next_id += 1;
                    next_id - 1
                });
                self.next_id = next_id;
                Ok((place, None))
            }
        }
    }

    /// What becomes of bytes that the group's write takes along, now that it is known whether the change happens.
    pub(super) fn packed(&mut self, packed: Option<(u64, Run)>, content: &Content, happens: bool) {
        let (Some((body, run)), Content::Small(buf)) = (packed, content) else {
            return;
        };
        if !happens {
            self.batch.unused.push(run);
        } else if self.core.cache.is_on() && buf.held_bytes() <= (2 * buf.len()).max(GRANULE_BYTES)
        {
            // A slice would keep the whole of a larger block.
            let piece = Piece {
                body,
                extent: 0,
                block: None,
            };
            self.batch.cached.push((piece, buf.clone()));
        }
    }

    /// Puts a changed entry where it stands, current or kept.
    pub(super) fn rewrite(
        &self,
        info: &NamespaceInfo,
        slot: Slot<'_>,
        changed: &Entry,
        draft: &mut Draft,
    ) -> Result<()> {
        let current = self.view().current(info.id, slot.space, slot.key)?;
        match current {
            Some(current) if current.sequence() == changed.sequence() => {
                let key = keys::current(info.id, slot.space, slot.key);
                draft
                    .record
                    .put(Table::Current, key, changed.encoded().clone());
            }
            Some(_) | None => draft.rewrite_kept(slot, changed),
        }
        Ok(())
    }

    /// Makes a value current under an unused version.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are one value on its way in"
    )]
    pub(super) fn put(
        &mut self,
        info: &NamespaceInfo,
        slot: Slot<'_>,
        standing: Standing,
        mut draft: Draft,
        mut meta: Meta,
        place: Place,
        reservation: Option<&mut Reservation>,
    ) -> Result<Stored> {
        let fresh = self.id();
        let plan = plan_store(
            versioning(info, slot.space),
            standing.present,
            VersionId(fresh),
        );
        let view = self.view();
        if let Some(expired) = &standing.expired {
            draft.drop_current(view, slot, expired)?;
        }
        draft.carry_out(view, slot, &plan, &standing, fresh, |version| {
            meta.version = version;
            Entry::value(fresh, &meta, &place)
        })?;
        self.settle(info, draft, reservation)?;
        Ok(Stored {
            meta,
            replaced: standing.current.is_some(),
        })
    }

    pub(super) fn amend(&mut self, command: &AmendCommand) -> Result<Meta> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let view = self.view();
        let entry = view.find(&info, slot.space, slot.key, command.version)?;
        let mut meta = entry.meta().map_err(malformed)?;
        meta.check_seen(command.seen.as_ref())?;
        meta.attributes = command.attributes.clone();
        let changed = amended(&entry, &meta)?;
        let mut draft = self.draft();
        self.rewrite(&info, slot, &changed, &mut draft)?;
        self.settle(&info, draft, None)?;
        Ok(meta)
    }

    pub(super) fn delete(&mut self, target: &Target, options: DeleteOptions) -> Result<Deleted> {
        let info = self.namespace(target)?;
        let slot = slot(target);
        let standing = self
            .view()
            .present_without(&info, slot.space, slot.key, options.version)?;
        standing.check(options.condition)?;
        let present = standing.present;
        let fresh = self.id();
        let versioning = versioning(&info, slot.space);
        let plan = plan_delete(versioning, present, options.version, VersionId(fresh));
        if makes_marker(&plan) {
            self.core.check_index_room()?;
        }
        let view = self.view();
        let marker = match options.version.filter(|_| slot.space == Space::Objects) {
            Some(version) => {
                let kept = view.kept(info.id, slot.key, version);
                let (kept, damaged) = unless_damaged(kept)?;
                let kept = kept.filter(|kept| !kept.is_expired(self.now));
                // What a damaged entry was is not known.
                let marker = kept.map(|kept| kept.is_marker());
                marker.or(damaged.map(|_| false))
            }
            None => None,
        };
        if let Some(version) = options.version {
            standing.check_version(versioning, version, marker.is_some())?;
        }
        let deleted = answer_delete(present, options.version, &plan, marker);
        let mut draft = self.draft();
        if makes_marker(&plan) {
            draft.exempt = Usage::MARKER.less(growth_of_delete(&plan));
        }
        if let Some(expired) = &standing.expired {
            draft.drop_current(view, slot, expired)?;
        }
        if options.version.is_none() || deleted.existed {
            draft.carry_out(view, slot, &plan, &standing, fresh, |version| {
                Entry::marker(fresh, version, self.now)
            })?;
        }
        self.settle(&info, draft, None)?;
        Ok(deleted)
    }
}
