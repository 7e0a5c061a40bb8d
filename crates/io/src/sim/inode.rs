//! One file: what a reader sees, what the medium holds, and what is between them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::content::Content;
use super::rng::Rng;
use super::space::Space;

/// What a device writes at once or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    /// As read by the running system.
    pub(super) current: Content,
    /// As on the medium.
    durable: Content,
    /// What separates the two, oldest first.
    pending: Vec<Pending>,
    pub(super) space: Space,
    /// Sectors that cannot be read before they are written, by their numbers.
    spoilt: BTreeSet<u64>,
    /// Sectors that cannot be written.
    worn: BTreeSet<u64>,
    /// Whether the directory entry is on the medium.
    pub(super) linked: bool,
}

#[derive(Debug, Clone)]
enum Pending {
    /// Whole sectors as they were after the write: a sector on the medium is one of its versions, never a mix.
    Write {
        offset: u64,
        image: Vec<u8>,
        len_after: u64,
    },
    SetLen(u64),
}

/// What becomes of pending changes at a failure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    Lost,
    Kept,
    /// Sector by sector.
    Torn,
}

impl Inode {
    pub(super) fn write(&mut self, offset: u64, from: &[u8]) {
        if from.is_empty() {
            return;
        }
        let end = offset + from.len() as u64;
        self.current.put(offset, from);
        self.current.extend_to(end);
        let first = offset - offset % SECTOR_BYTES;
        let written = sectors(offset, from.len());
        self.spoilt.retain(|sector| !written.contains(sector));
        let mut image = vec![0; (end.next_multiple_of(SECTOR_BYTES) - first) as usize];
        self.current.image(first, &mut image);
        let len_after = self.current.len();
        self.pending.push(Pending::Write {
            offset: first,
            image,
            len_after,
        });
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len != self.current.len() {
            self.current.set_len(len);
            self.space.cut(len);
            self.pending.push(Pending::SetLen(len));
        }
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &change, Fate::Kept, &mut Rng::new(0));
        }
    }

    /// A sync that failed: some of what it was to write is on the medium, the rest is taken for written and will never be,
    /// although readers still see it.
    pub(super) fn fail_sync(&mut self, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        scatter(&mut self.durable, pending, None, rng);
    }

    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        self.current.flip(offset, bit);
        self.durable.flip(offset, bit);
    }

    pub(super) fn spoil(&mut self, offset: u64) {
        self.spoilt.insert(offset / SECTOR_BYTES);
    }

    pub(super) fn wear(&mut self, offset: u64) {
        self.worn.insert(offset / SECTOR_BYTES);
    }

    /// Whether the medium takes these bytes.
    pub(super) fn is_writable(&self, offset: u64, len: usize) -> bool {
        len == 0 || self.worn.range(sectors(offset, len)).next().is_none()
    }

    /// Whether the medium gives these bytes.
    pub(super) fn is_readable(&self, offset: u64, len: usize) -> bool {
        len == 0 || self.spoilt.range(sectors(offset, len)).next().is_none()
    }

    /// The file as found after power loss.
    pub(super) fn crash(&self, all: Option<Fate>, rng: &mut Rng) -> Inode {
        let mut durable = self.durable.clone();
        scatter(&mut durable, self.pending.clone(), all, rng);
        let mut space = self.space.clone();
        space.cut(durable.len());
        Inode {
            current: durable.clone(),
            durable,
            pending: Vec::new(),
            space,
            spoilt: self.spoilt.clone(),
            worn: self.worn.clone(),
            linked: true,
        }
    }
}

/// The numbers of the sectors that hold these bytes.
fn sectors(offset: u64, len: usize) -> Range<u64> {
    offset / SECTOR_BYTES..offset.saturating_add(len as u64).div_ceil(SECTOR_BYTES)
}

/// Brings a subset of `pending` to the medium, in any order.
fn scatter(durable: &mut Content, mut pending: Vec<Pending>, all: Option<Fate>, rng: &mut Rng) {
    if all.is_none() && rng.coin() {
        rng.shuffle(&mut pending);
    }
    for change in pending {
        let fate = all.unwrap_or_else(|| match rng.below(3) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            _ => Fate::Torn,
        });
        apply(durable, &change, fate, rng);
    }
    // Sectors that came without their length are past the end.
    durable.set_len(durable.len());
}

fn apply(durable: &mut Content, change: &Pending, fate: Fate, rng: &mut Rng) {
    match (change, fate) {
        (_, Fate::Lost) => {}
        (Pending::SetLen(len), Fate::Kept) => durable.set_len(*len),
        (Pending::SetLen(len), Fate::Torn) => {
            if rng.coin() {
                durable.set_len(*len);
            }
        }
        (
            Pending::Write {
                offset,
                image,
                len_after,
            },
            Fate::Kept,
        ) => {
            durable.put(*offset, image);
            durable.extend_to(*len_after);
        }
        (
            Pending::Write {
                offset,
                image,
                len_after,
            },
            Fate::Torn,
        ) => {
            for (index, sector) in image.chunks(SECTOR_BYTES as usize).enumerate() {
                if rng.coin() {
                    durable.put(offset + index as u64 * SECTOR_BYTES, sector);
                }
            }
            if rng.coin() {
                durable.extend_to(*len_after);
            }
        }
    }
}
