//! Joining staged values without moving their bytes.

use std::collections::HashSet;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum_combine};
use forebay_io::Disk;
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    ErrorKind, Etag, Meta, NamespaceInfo, Result, Source, Space, StoreError, Stored, VersionId,
};

use crate::command::ComposeCommand;
use crate::draft::Slot;
use crate::entry::{Entry, Part, Place, encode_parts};
use crate::index::corrupt;
use crate::keys;
use crate::keys::Table;
use crate::view::malformed;

use super::{Decider, slot};

impl<D: Disk> Decider<D> {
    pub(super) fn compose(&mut self, command: ComposeCommand) -> Result<Stored> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let standing = self.view().present(&info, slot.space, slot.key)?;
        standing.check(command.condition)?;
        let mut draft = self.draft();
        let mut size = 0_u64;
        let mut crc64nvme = 0;
        let mut parts: Vec<Part> = Vec::with_capacity(command.sources.len());
        for (key, seen) in &command.sources {
            let staged = staged_slot(&info, key);
            let part = self.staged(&info, key)?;
            let meta = part.meta().map_err(malformed)?;
            let seen = seen.as_ref();
            Source { key, seen }.check(&meta)?;
            crc64nvme = checksum_combine(
                CrcAlgorithm::Crc64Nvme,
                crc64nvme,
                meta.crc64nvme,
                meta.size,
            );
            size = size.saturating_add(meta.size);
            match draft.take_staged(staged, &part)? {
                Place::Empty => {}
                Place::Joined(body) => {
                    draft.record.remove(Table::Layout, keys::body(body));
                    let layout = self.view().parts(body)?;
                    parts.extend(layout.ok_or_else(|| corrupt("a layout"))?);
                }
                place => parts.push((meta.size, place)),
            }
        }
        if size > VALUE_BYTES_MAX {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                "the values together are larger than a value may be",
            ));
        }
        if command.size.is_some_and(|declared| declared != size) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "the sources do not have the declared length together",
            ));
        }
        let mut gone: HashSet<&Bytes> = command.sources.iter().map(|(key, _)| key).collect();
        for key in &command.consumed {
            let staged = self.staged(&info, key)?;
            if gone.insert(key) {
                draft.drop_current(self.view(), staged_slot(&info, key), &staged)?;
            }
        }
        let place = match parts.pop() {
            None => Place::Empty,
            Some((_, only)) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                if encode_parts(&parts).len() as u64 > self.core.geometry.parts_bytes_max() {
                    return Err(StoreError::new(
                        ErrorKind::TooLarge,
                        "the values together are in more pieces than the journal has room to free",
                    ));
                }
                let body = self.id();
                draft.join(&parts, body)
            }
        };
        let meta = Meta {
            size,
            etag: command
                .seal
                .etag
                .unwrap_or_else(|| Etag::of_value(crc64nvme, size)),
            modified: self.now,
            version: VersionId::NULL,
            crc64nvme,
            expires: info
                .config
                .expires(slot.space, self.now, command.seal.expires),
            attributes: command.seal.attributes,
        };
        self.put(&info, slot, standing, draft, meta, place, None)
    }

    fn staged(&self, info: &NamespaceInfo, key: &[u8]) -> Result<Entry> {
        let staged = self.view().current(info.id, Space::Staging, key)?;
        let staged = staged.filter(|staged| !staged.is_expired(self.now));
        staged.ok_or_else(Source::missing)
    }
}

fn staged_slot<'k>(info: &NamespaceInfo, key: &'k [u8]) -> Slot<'k> {
    Slot {
        namespace: info.id,
        space: Space::Staging,
        key,
    }
}
