//! The data file's first pages: what it is and where its parts lie (docs/engine-format.md section 1).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use forebay_io::File;

use crate::OpenError;
use crate::codec::{Malformed, Reader, crc32c};
use crate::extent::GRANULE_BYTES;
use crate::findings::Finding;
use crate::recover::failed;
use crate::replay::{is_of_medium, read_patiently};

const MAGIC: [u8; 8] = *b"FOREBAY1";
/// The format that this build reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
const READING: &str = "reading the data file";
const PAGE: u64 = GRANULE_BYTES as u64;
/// The smallest segment: room for one change with the longest key and attributes.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 1 << 32;

/// Where the parts of the data file lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub store: [u8; 16],
    pub segment_bytes: u64,
}

impl Geometry {
    /// Of a new store.
    pub fn new(segment_bytes: u64) -> Geometry {
        let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let mut store = [0; 16];
        for half in store.chunks_mut(8) {
            // Seeded by the system's randomness.
            half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
        Geometry {
            store,
            segment_bytes: segment_bytes.next_multiple_of(PAGE),
        }
    }

    /// What headers of the journal bear: nobody outside knows it, so that no value can be made to look like a header.
    pub fn mark(&self) -> [u8; 8] {
        let (mark, _) = self.store.split_at(8);
        mark.try_into().unwrap_or_default()
    }

    /// Where a segment's area begins.
    pub fn area(&self, segment: u64) -> u64 {
        2 * PAGE + (segment & 1) * self.segment_bytes
    }

    /// Where granule 0 lies.
    pub fn extents(&self) -> u64 {
        2 * PAGE + 2 * self.segment_bytes
    }

    /// The longest record. With a group that is not full yet, its header and what it says of usage, it fits a segment.
    pub fn record_bytes_max(&self) -> u64 {
        self.segment_bytes - self.segment_bytes / 8
    }

    /// While a record is shorter, it frees values at once: with what else may come into it, it still is not too long.
    pub fn freeing_bytes_max(&self) -> u64 {
        self.record_bytes_max() / 4
    }

    /// The longest row of the parts of a joined value: a record that frees some of them has room for the others' row.
    pub fn parts_bytes_max(&self) -> u64 {
        self.record_bytes_max() / 8
    }

    /// From so many bytes of payload on a group is full.
    pub fn group_bytes_soft_max(&self) -> usize {
        (self.segment_bytes / 16).min(1 << 20) as usize
    }

    /// Both copies.
    pub fn encode(&self) -> Vec<u8> {
        let mut encoded = Vec::with_capacity(2 * GRANULE_BYTES);
        encoded.extend_from_slice(&MAGIC);
        encoded.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        encoded.extend_from_slice(&[0; 4]);
        encoded.extend_from_slice(&self.store);
        encoded.extend_from_slice(&self.segment_bytes.to_le_bytes());
        let crc = crc32c(&encoded);
        encoded.extend_from_slice(&crc.to_le_bytes());
        encoded.resize(GRANULE_BYTES, 0);
        encoded.extend_from_within(..);
        encoded
    }

    /// The first good copy; `None` when both are all zero: the store was never finished.
    pub fn decode(pages: &[u8]) -> Result<Option<Geometry>, OpenError> {
        if pages.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut other = None;
        for page in pages.chunks(GRANULE_BYTES) {
            match decode_page(page) {
                Ok((FORMAT_VERSION, Some(geometry))) => return Ok(Some(geometry)),
                Ok((version, _)) => other = Some(version),
                Err(Malformed) => {}
            }
        }
        Err(match other {
            Some(found) => OpenError::Version { found },
            None => OpenError::NotAStore,
        })
    }
}

/// What is where a superblock should be.
#[derive(Debug)]
pub(crate) struct Superblock {
    pub geometry: Geometry,
    /// Where the other copy is not whole, in bytes of file data, and what is wrong with it.
    damaged: Option<(u64, Damage)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Damage {
    /// All zero: power failed when the store was made.
    Unfinished,
    Rotten,
    /// The device failed.
    Unreadable,
}

impl Superblock {
    /// Of a store that was just made.
    pub fn whole(geometry: Geometry) -> Superblock {
        Superblock {
            geometry,
            damaged: None,
        }
    }

    /// Reads both copies, of which either is enough; `None` when both are all zero.
    pub fn read<F: File>(data: &F) -> Result<Option<Superblock>, OpenError> {
        let len = data.len().map_err(failed(READING))?;
        let mut pages = vec![0; 2 * GRANULE_BYTES];
        let mut unreadable = None;
        for (at, page) in places().zip(pages.chunks_mut(GRANULE_BYTES)) {
            let there = len.saturating_sub(at).min(PAGE) as usize;
            match read_patiently(data, at, &mut page[..there]) {
                Err(error) if is_of_medium(&error) => {
                    page.fill(0);
                    unreadable = Some(error);
                }
                read => read.map_err(failed(READING))?,
            }
        }
        let decoded = match (Geometry::decode(&pages), unreadable) {
            // Nothing tells what was there.
            (Ok(None) | Err(OpenError::NotAStore), Some(error)) => {
                return Err(failed(READING)(error));
            }
            (decoded, unreadable) => decoded?.zip(Some(unreadable)),
        };
        let Some((geometry, unreadable)) = decoded else {
            return Ok(None);
        };
        let mut copies = places().zip(pages.chunks(GRANULE_BYTES));
        let damaged = copies.find(|(_, page)| decode_page(page).is_err());
        let damaged = damaged.map(|(at, page)| {
            let is_blank = page.iter().all(|byte| *byte == 0);
            let damage = match (unreadable, is_blank) {
                (Some(_), _) => Damage::Unreadable,
                (None, true) => Damage::Unfinished,
                (None, false) => Damage::Rotten,
            };
            (at, damage)
        });
        Ok(Some(Superblock { geometry, damaged }))
    }

    /// Writes a copy again that is not whole, and says what was wrong with it. A place that takes no writes is in nobody's way: the other
    /// copy is enough.
    pub fn mend<F: File>(&self, data: &F) -> Option<Finding> {
        let (at, damage) = self.damaged.as_ref()?;
        let copy = &self.geometry.encode()[..GRANULE_BYTES];
        let written = data.write_all_at(*at, copy);
        let outcome = match written.and_then(|()| data.sync_data()) {
            Ok(()) => "was written again".to_owned(),
            Err(error) => format!("cannot be written again ({error})"),
        };
        let damage = match damage {
            Damage::Unfinished => return None,
            Damage::Rotten => "was damaged",
            Damage::Unreadable => "could not be read",
        };
        let what =
            format!("the copy of the superblock at byte {at} of file data {damage}, and {outcome}");
        Some(Finding::of_nobody(what))
    }
}

/// Where the copies are.
fn places() -> impl Iterator<Item = u64> {
    (0..).step_by(GRANULE_BYTES)
}

fn decode_page(page: &[u8]) -> Result<(u32, Option<Geometry>), Malformed> {
    let mut from = Reader::new(page);
    if from.array::<8>()? != MAGIC {
        return Err(Malformed);
    }
    let version = from.u32()?;
    if version != FORMAT_VERSION && version != 0 && version < 1 << 16 {
        // Another version may lay out everything else in another way.
        return Ok((version, None));
    }
    from.u32()?;
    let geometry = Geometry {
        store: from.array()?,
        segment_bytes: from.u64()?,
    };
    let crc = from.u32()?;
    let legal = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&geometry.segment_bytes)
        && geometry.segment_bytes.is_multiple_of(PAGE);
    if (crc != crc32c(&page[..40]) && !cfg!(fuzzing)) || !legal {
        return Err(Malformed);
    }
    Ok((version, Some(geometry)))
}
