//! What the journal holds beyond the index: the chain of its groups, which of them count, and whether one is missing that must not.
//!
//! A chain ends where a group does not match. That is how a group looks that was being written when the store stopped; but also one
//! that was on stable storage, and rotted. Later groups tell the two apart: each says which group was durable when it was written.

use std::collections::{BTreeMap, HashMap};
use std::io;

use bytes::Bytes;
use forebay_io::File;
use forebay_store::{ErrorKind, StoreError};

use crate::Result;
use crate::allocator::Allocator;
use crate::codec::crc32c;
use crate::extent::{Extent, GRANULE_BYTES};
use crate::group::{HEADER_BYTES, Header, Position, Record, group_bytes};
use crate::recover::{OpenError, failed};
use crate::superblock::Geometry;

/// Bytes of the journal looked at in one step.
const LOOK_BYTES: u64 = 1 << 20;
const READING: &str = "reading the journal";

/// A group found in the journal.
pub(crate) struct Group {
    pub header: Header,
    pub link: u32,
    pub records: Vec<Record>,
}

/// Groups that follow one another, and where the next one was looked for in vain.
struct Chain {
    groups: Vec<Group>,
    /// The number that the next group would have.
    group: u64,
    segment: u64,
    offset: u64,
}

/// What all headers in the journal tell, wherever they are.
#[derive(Default)]
struct Witness {
    /// The greatest group number that was on stable storage.
    durable: u64,
    /// The greatest segment number.
    segment: u64,
}

/// The groups from `position` on that count.
///
/// # Errors
/// [`ErrorKind::Corrupt`] when one is missing that was on stable storage.
pub(crate) fn groups<F: File>(
    data: &F,
    geometry: &Geometry,
    space: &Allocator<F>,
    position: Position,
) -> Result<Vec<Group>, OpenError> {
    let chain = chain(data, geometry, position)?;
    let witness = witness(data, geometry, position)?;
    if witness.segment > position.segment + 1 {
        return Err(damaged(format!(
            "the index is older than the journal: it was written before segment {}, and the journal is at segment {}",
            position.segment, witness.segment
        )));
    }
    if witness.durable >= chain.group {
        return Err(damaged(format!(
            "group {} of the journal, due at byte {} of file data, is damaged, and groups up to {} had been acknowledged",
            chain.group,
            geometry.area(chain.segment) + chain.offset,
            witness.durable
        )));
    }
    let mut groups = chain.groups;
    let said = groups.last().map_or(0, |last| last.header.synced);
    let whole = groups.len();
    cut_unproven(data, space, said.max(witness.durable), &mut groups)?;
    if groups.len() < whole {
        let cut = whole - groups.len();
        tracing::warn!(cut, "extents of the last journal groups were not written");
    }
    Ok(groups)
}

fn damaged(what: String) -> OpenError {
    let message = format!(
        "{what}; opening the store would lose acknowledged changes, so nothing was changed: keep a copy of the directory and restore it \
         from a backup"
    );
    StoreError::new(ErrorKind::Corrupt, message).into()
}

fn chain<F: File>(data: &F, geometry: &Geometry, position: Position) -> Result<Chain, OpenError> {
    let mut chain = Chain {
        groups: Vec::new(),
        group: position.group,
        segment: position.segment,
        offset: 0,
    };
    let mut link = position.link;
    for segment in [position.segment, position.segment + 1] {
        let mut offset = 0;
        while let Some(found) = group_at(data, geometry, segment, offset)? {
            if found.header.group != chain.group || found.header.link != link {
                break;
            }
            link = found.link;
            offset += group_bytes(found.header.payload_bytes);
            chain.group += 1;
            (chain.segment, chain.offset) = (segment, offset);
            chain.groups.push(found);
        }
    }
    Ok(chain)
}

fn group_at<F: File>(
    data: &F,
    geometry: &Geometry,
    segment: u64,
    offset: u64,
) -> Result<Option<Group>, OpenError> {
    if offset + GRANULE_BYTES as u64 > geometry.segment_bytes {
        return Ok(None);
    }
    let at = geometry.area(segment) + offset;
    let mut head = [0; HEADER_BYTES];
    data.read_exact_at(at, &mut head).map_err(failed(READING))?;
    let Ok((header, link)) = Header::decode(&head) else {
        return Ok(None);
    };
    let room = geometry.segment_bytes - offset - HEADER_BYTES as u64;
    if header.segment != segment || header.payload_bytes > room {
        return Ok(None);
    }
    let mut payload = vec![0; header.payload_bytes as usize];
    data.read_exact_at(at + HEADER_BYTES as u64, &mut payload)
        .map_err(failed(READING))?;
    if crc32c(&payload) != header.payload_crc {
        let group = header.group;
        tracing::warn!(group, at, "a journal group does not match its checksum");
        return Ok(None);
    }
    let payload = Bytes::from(payload);
    let records = Record::decode_all(&payload, header.records)
        .map_err(|_| StoreError::new(ErrorKind::Corrupt, "a journal group breaks the format"))?;
    Ok(Some(Group {
        header,
        link,
        records,
    }))
}

/// Looks for headers in both areas, also where no chain leads. Numbers of segments never return, so that one from `position` on is no
/// relic; and a header says of which store it is, so that no value inside a group passes for one.
fn witness<F: File>(
    data: &F,
    geometry: &Geometry,
    position: Position,
) -> Result<Witness, OpenError> {
    let mut witness = Witness::default();
    let mut at = geometry.area(0);
    while at < geometry.extents() {
        let mut part = vec![0; LOOK_BYTES.min(geometry.extents() - at) as usize];
        data.read_exact_at(at, &mut part).map_err(failed(READING))?;
        let heads = part.chunks(GRANULE_BYTES).map(|page| page.first_chunk());
        for (header, _) in heads.flatten().flat_map(Header::decode) {
            if header.store == geometry.mark() && header.segment >= position.segment {
                witness.durable = witness.durable.max(header.synced);
                witness.segment = witness.segment.max(header.segment);
            }
        }
        at += part.len() as u64;
    }
    Ok(witness)
}

/// Cuts groups whose extents were still on their way when the power went: of those after `synced`, which need no proof.
fn cut_unproven<F: File>(
    data: &F,
    space: &Allocator<F>,
    synced: u64,
    groups: &mut Vec<Group>,
) -> Result<(), OpenError> {
    let tail = groups.partition_point(|group| group.header.group <= synced);
    let mut proven = HashMap::<u64, bool>::new();
    loop {
        // What a later group of the chain freed may have been reused since: it proves nothing, and is not needed.
        let mut live = BTreeMap::<u64, (usize, Extent)>::new();
        for (at, group) in groups.iter().enumerate().skip(tail) {
            for record in &group.records {
                for extent in &record.written {
                    live.insert(extent.start, (at, *extent));
                }
                for run in &record.freed {
                    let gone: Vec<u64> = live
                        .range(run.start..run.end())
                        .map(|(start, _)| *start)
                        .collect();
                    for start in gone {
                        live.remove(&start);
                    }
                }
            }
        }
        let mut first_bad = None::<usize>;
        for (start, (at, extent)) in &live {
            let good = match proven.get(start) {
                Some(good) => *good,
                None => {
                    let good = proves(data, space, extent)?;
                    proven.insert(*start, good);
                    good
                }
            };
            if !good {
                first_bad = Some(first_bad.map_or(*at, |first| first.min(*at)));
            }
        }
        match first_bad {
            None => return Ok(()),
            Some(at) => groups.truncate(at),
        }
        // Extents that a cut group had freed are live again, under the same starts.
        proven.clear();
    }
}

/// Whether an extent is what was to be written. Then it is written again: a sync that failed may have left it seen, but not on stable
/// storage, and the sync that follows would not bring it there.
fn proves<F: File>(data: &F, space: &Allocator<F>, extent: &Extent) -> Result<bool, OpenError> {
    let offset = space.offset(extent.start);
    let mut bytes = vec![0; extent.run().granules as usize * GRANULE_BYTES];
    match data.read_exact_at(offset, &mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(failed("reading the extents of the journal")(error)),
    }
    if extent.check(0, &bytes[..extent.bytes as usize]).is_err() {
        return Ok(false);
    }
    data.write_all_at(offset, &bytes)
        .map_err(failed("writing the extents of the journal again"))?;
    Ok(true)
}
