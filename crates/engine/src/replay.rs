//! What the journal holds beyond the index: the chain of its groups, which of them count, and whether one is missing that must not.
//!
//! A chain ends where a group does not match. That is how a group looks that was being written when the store stopped; but also one
//! that was on stable storage, and rotted. Later groups tell the two apart: each says which group was durable when it was written.

use std::collections::{BTreeMap, HashSet};
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
/// Beyond, it is not some of the journal that cannot be read, but the device.
const LOST_PAGES_MAX: usize = 256;
const READING: &str = "reading the journal";

/// A group found in the journal.
pub(crate) struct Group {
    /// In bytes of file data.
    at: u64,
    header: Header,
    link: u32,
    payload: Bytes,
    pub records: Vec<Record>,
}

impl Group {
    /// Its pages.
    fn encode(&self) -> Vec<u8> {
        let (header, _) = self.header.encode();
        let mut pages = [&header[..], &self.payload].concat();
        pages.resize(pages.len().next_multiple_of(GRANULE_BYTES), 0);
        pages
    }

    /// Where the group behind it is, in a journal that goes on from `position`.
    fn next(&self, position: Position) -> Position {
        Position {
            group: self.header.group + 1,
            link: self.link,
            next_id: self.header.next_id,
            ..position
        }
    }
}

/// What there is to replay.
pub(crate) struct Replay {
    pub groups: Vec<Group>,
    /// Where the journal goes on behind them: in a segment that no group on the device is in, also none that was cut or lost.
    pub next: Position,
}

/// Groups that follow one another, and where the next one was looked for in vain.
struct Chain {
    groups: Vec<Group>,
    /// Behind the last of them.
    next: Position,
    /// Where the next group is due, in bytes of file data.
    due: u64,
    /// It ended because the device failed.
    unreadable: Option<io::Error>,
}

/// What all headers in the journal tell, wherever they are.
#[derive(Default)]
struct Witness {
    /// The greatest group number that was on stable storage.
    durable: u64,
    /// The greatest segment number.
    segment: u64,
    /// The smallest id that none of their groups gave.
    next_id: u64,
    /// Pages that the device failed to read, in bytes of file data, and why.
    lost: Vec<(u64, io::Error)>,
}

/// What there is to replay from `position` on. Groups before number `ahead` were on stable storage when the index said so. `lose_from`:
/// [`Config::lose_journal_from`](crate::Config::lose_journal_from).
///
/// # Errors
/// [`OpenError::Journal`] when a group is missing that was on stable storage, or may have been.
pub(crate) fn find<F: File>(
    data: &F,
    geometry: &Geometry,
    space: &Allocator<F>,
    position: Position,
    ahead: u64,
    lose_from: Option<u64>,
) -> Result<Replay, OpenError> {
    let mut chain = chain(data, geometry, position)?;
    let witness = witness(data, geometry, position)?;
    let lost = damage(&chain, &witness, position);
    let groups = &mut chain.groups;
    let whole = groups.len();
    let said = groups.last().map_or(0, |last| last.header.synced);
    let synced = said.max(witness.durable).max(ahead.saturating_sub(1));
    let unproven = cut_unproven(data, space, synced, groups)?;
    let last = groups.last().map_or(position, |last| last.next(position));
    // What cannot be proven comes before what is missing.
    let (lost, missing) = match unproven {
        Some(what) => (Some(what), last.group),
        None => (lost, chain.next.group),
    };
    if let Some(what) = lost {
        if lose_from != Some(missing) {
            return Err(OpenError::Journal {
                what,
                group: missing,
            });
        }
        tracing::error!(
            "{what}; as was asked for, the store opens as it was before group {missing}: what came after is lost"
        );
        // A device that cannot read a sector can often write it.
        for (at, _) in &witness.lost {
            data.write_all_at(*at, &[0; GRANULE_BYTES])
                .map_err(failed("writing over what cannot be read of the journal"))?;
        }
    }
    let groups = chain.groups;
    if groups.len() < whole {
        let cut = whole - groups.len();
        tracing::warn!(cut, "extents of the last journal groups were not written");
    }
    // A sync that failed may have left them seen, but not on stable storage, and the sync that follows would not bring them there.
    for group in groups.iter().filter(|group| group.header.group > synced) {
        data.write_all_at(group.at, &group.encode())
            .map_err(failed("writing the last groups of the journal again"))?;
    }
    let next = Position {
        segment: (position.segment + 3).max(witness.segment + 1),
        // No id comes twice, not even one that was lost.
        next_id: last.next_id.max(witness.next_id),
        ..last
    };
    Ok(Replay { groups, next })
}

/// What was lost that was on stable storage, or may have been.
fn damage(chain: &Chain, witness: &Witness, position: Position) -> Option<String> {
    let (group, due) = (chain.next.group, chain.due);
    if witness.segment > position.segment + 1 {
        return Some(format!(
            "the index is older than the journal: it was written before segment {}, and the journal is at segment {}",
            position.segment, witness.segment
        ));
    }
    if witness.durable >= group {
        return Some(format!(
            "group {group} of the journal, due at byte {due} of file data, is damaged, and groups up to {} had been acknowledged",
            witness.durable
        ));
    }
    let lost = witness.lost.first().map(|(at, error)| (*at, error));
    let (at, error) = lost.or(chain.unreadable.as_ref().map(|error| (due, error)))?;
    Some(format!(
        "the journal cannot be read at byte {at} of file data ({error}), and group {group} may have been acknowledged"
    ))
}

fn chain<F: File>(data: &F, geometry: &Geometry, position: Position) -> Result<Chain, OpenError> {
    let mut chain = Chain {
        groups: Vec::new(),
        next: position,
        due: geometry.area(position.segment),
        unreadable: None,
    };
    for segment in [position.segment, position.segment + 1] {
        let mut offset = 0;
        loop {
            let found = match group_at(data, geometry, segment, offset)? {
                Looked::Group(found) => found,
                Looked::Nothing => break,
                Looked::Unreadable(error) => {
                    chain.due = geometry.area(segment) + offset;
                    chain.unreadable = Some(error);
                    return Ok(chain);
                }
            };
            if found.header.group != chain.next.group || found.header.link != chain.next.link {
                break;
            }
            offset += group_bytes(found.header.payload_bytes);
            chain.due = geometry.area(segment) + offset;
            chain.next = found.next(position);
            chain.groups.push(found);
        }
    }
    Ok(chain)
}

enum Looked {
    Group(Group),
    Nothing,
    /// The device failed.
    Unreadable(io::Error),
}

fn group_at<F: File>(
    data: &F,
    geometry: &Geometry,
    segment: u64,
    offset: u64,
) -> Result<Looked, OpenError> {
    if offset + GRANULE_BYTES as u64 > geometry.segment_bytes {
        return Ok(Looked::Nothing);
    }
    let at = geometry.area(segment) + offset;
    let mut head = [0; HEADER_BYTES];
    if let Some(error) = read(data, at, &mut head)? {
        return Ok(Looked::Unreadable(error));
    }
    let Ok((header, link)) = Header::decode(&head) else {
        return Ok(Looked::Nothing);
    };
    let room = geometry.segment_bytes - offset - HEADER_BYTES as u64;
    if header.segment != segment || header.payload_bytes > room {
        return Ok(Looked::Nothing);
    }
    let mut payload = vec![0; header.payload_bytes as usize];
    if let Some(error) = read(data, at + HEADER_BYTES as u64, &mut payload)? {
        return Ok(Looked::Unreadable(error));
    }
    if crc32c(&payload) != header.payload_crc {
        let group = header.group;
        tracing::warn!(group, at, "a journal group does not match its checksum");
        return Ok(Looked::Nothing);
    }
    let payload = Bytes::from(payload);
    let records = Record::decode_all(&payload, header.records)
        .map_err(|_| StoreError::new(ErrorKind::Corrupt, "a journal group breaks the format"))?;
    Ok(Looked::Group(Group {
        at,
        header,
        link,
        payload,
        records,
    }))
}

/// Reads a part of the journal. That the medium has lost it is a finding; that there is no way to the device says nothing of the journal.
fn read<F: File>(data: &F, at: u64, into: &mut [u8]) -> Result<Option<io::Error>, OpenError> {
    match read_patiently(data, at, into) {
        Ok(()) => Ok(None),
        Err(error) if is_of_medium(&error) => Ok(Some(error)),
        Err(error) => Err(failed(READING)(error)),
    }
}

/// Reads a part of a file, a second time where the medium does not give it: what it failed once may be there.
pub(crate) fn read_patiently<F: File>(file: &F, at: u64, into: &mut [u8]) -> io::Result<()> {
    match file.read_exact_at(at, into) {
        Err(error) if is_of_medium(&error) => {
            tracing::warn!(at, %error, "a read failed, and is tried again");
            file.read_exact_at(at, into)
        }
        read => read,
    }
}

/// What Linux, and a namespace elsewhere, answers for a sector that cannot be read.
pub(crate) fn is_of_medium(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    const ENODATA: i32 = 61;
    const EILSEQ: i32 = 84;
    match error.raw_os_error() {
        Some(errno) => matches!(errno, EIO | ENODATA | EILSEQ),
        None => error.kind() == io::ErrorKind::Other,
    }
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
        if read(data, at, &mut part)?.is_some() {
            for (number, page) in part.chunks_mut(GRANULE_BYTES).enumerate() {
                let page_at = at + (number * GRANULE_BYTES) as u64;
                if let Some(error) = read(data, page_at, page)? {
                    if witness.lost.len() == LOST_PAGES_MAX {
                        return Err(failed(READING)(error));
                    }
                    page.fill(0);
                    witness.lost.push((page_at, error));
                }
            }
        }
        let heads = part.chunks(GRANULE_BYTES).map(|page| page.first_chunk());
        for (header, _) in heads.flatten().flat_map(Header::decode) {
            if header.store == geometry.mark() && header.segment >= position.segment {
                witness.durable = witness.durable.max(header.synced);
                witness.segment = witness.segment.max(header.segment);
                witness.next_id = witness.next_id.max(header.next_id);
            }
        }
        at += part.len() as u64;
    }
    Ok(witness)
}

/// Whether an extent is what was to be written.
enum Proof {
    Written,
    Unwritten,
    /// The device failed.
    Unreadable(io::Error),
}

/// Cuts groups whose extents were still on their way when the power went: of those after `synced`, which need no proof. Says what is in the
/// way where that cannot be told of one: it may have been acknowledged.
fn cut_unproven<F: File>(
    data: &F,
    space: &Allocator<F>,
    synced: u64,
    groups: &mut Vec<Group>,
) -> Result<Option<String>, OpenError> {
    let tail = groups.partition_point(|group| group.header.group <= synced);
    let mut proven = HashSet::<u64>::new();
    let mut unreadable = None;
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
        // One that was not written tells more than one that cannot be read.
        let mut first_bad = None::<(usize, Option<String>)>;
        for (at, extent) in live.values() {
            let is_beyond = match &first_bad {
                Some((first, None)) => first <= at,
                Some((first, Some(_))) => first < at,
                None => false,
            };
            if is_beyond || proven.contains(&extent.start) {
                continue;
            }
            match prove(data, space, extent)? {
                Proof::Written => drop(proven.insert(extent.start)),
                Proof::Unwritten => first_bad = Some((*at, None)),
                Proof::Unreadable(error) => {
                    let group = groups[*at].header.group;
                    let offset = space.offset(extent.start);
                    let what = format!(
                        "the extent at byte {offset} of file data cannot be read ({error}), and group {group} of the journal, which wrote it, \
                         may have been acknowledged"
                    );
                    first_bad = Some((*at, Some(what)));
                }
            }
        }
        let Some((at, what)) = first_bad else {
            return Ok(unreadable);
        };
        groups.truncate(at);
        unreadable = what.or(unreadable);
        // Extents that a cut group had freed are live again, under the same starts.
        proven.clear();
    }
}

/// Proves that an extent was written, and writes it again: a sync that failed may have left it seen, but not on stable storage, and the
/// sync that follows would not bring it there.
fn prove<F: File>(data: &F, space: &Allocator<F>, extent: &Extent) -> Result<Proof, OpenError> {
    let offset = space.offset(extent.start);
    let mut bytes = vec![0; extent.run().granules as usize * GRANULE_BYTES];
    match read_patiently(data, offset, &mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Proof::Unwritten),
        Err(error) if is_of_medium(&error) => return Ok(Proof::Unreadable(error)),
        Err(error) => return Err(failed("reading the extents of the journal")(error)),
    }
    if extent.check(0, &bytes[..extent.bytes as usize]).is_err() {
        return Ok(Proof::Unwritten);
    }
    data.write_all_at(offset, &bytes)
        .map_err(failed("writing the extents of the journal again"))?;
    Ok(Proof::Written)
}
