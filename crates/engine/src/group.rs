//! Journal groups (docs/engine-format.md section 2): encoding, and checking what a device holds.

use bytes::Bytes;

use crate::codec::{Malformed, Reader, crc32c};
use crate::extent::{Extent, GRANULE_BYTES, Run};
use crate::keys::Table;
use crate::tables::{Memtable, SpaceChange};

const MAGIC: [u8; 4] = *b"FBGR";
/// The length of a group's header.
pub(crate) const HEADER_BYTES: usize = 72;

/// The length of a freed run in a record.
pub(crate) const ENCODED_RUN_BYTES: usize = 12;

/// Where the journal goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The segment that the next group is in.
    pub segment: u64,
    /// The number of the next group.
    pub group: u64,
    /// The link that the next group must have.
    pub link: u32,
    /// The smallest unused id.
    pub next_id: u64,
}

impl Position {
    /// Of a new store.
    pub const FIRST: Position = Position {
        segment: 1,
        group: 1,
        link: 0,
        next_id: 1,
    };

    pub fn encode(&self) -> [u8; 28] {
        let mut encoded = [0; 28];
        encoded[..8].copy_from_slice(&self.segment.to_le_bytes());
        encoded[8..16].copy_from_slice(&self.group.to_le_bytes());
        encoded[16..20].copy_from_slice(&self.link.to_le_bytes());
        encoded[20..].copy_from_slice(&self.next_id.to_le_bytes());
        encoded
    }

    pub fn decode(encoded: &[u8]) -> Result<Position, Malformed> {
        let mut from = Reader::new(encoded);
        Ok(Position {
            segment: from.u64()?,
            group: from.u64()?,
            link: from.u32()?,
            next_id: from.u64()?,
        })
    }
}

/// A group's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub segment: u64,
    pub group: u64,
    pub synced: u64,
    pub next_id: u64,
    pub payload_bytes: u64,
    pub records: u32,
    pub payload_crc: u32,
    pub link: u32,
    /// The store's [`mark`](crate::superblock::Geometry::mark).
    pub store: [u8; 8],
}

impl Header {
    /// The header's bytes and its CRC, which is the next group's link.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], u32) {
        let mut encoded = [0; HEADER_BYTES];
        encoded[..4].copy_from_slice(&MAGIC);
        encoded[8..16].copy_from_slice(&self.segment.to_le_bytes());
        encoded[16..24].copy_from_slice(&self.group.to_le_bytes());
        encoded[24..32].copy_from_slice(&self.synced.to_le_bytes());
        encoded[32..40].copy_from_slice(&self.next_id.to_le_bytes());
        encoded[40..48].copy_from_slice(&self.payload_bytes.to_le_bytes());
        encoded[48..52].copy_from_slice(&self.records.to_le_bytes());
        encoded[52..56].copy_from_slice(&self.payload_crc.to_le_bytes());
        encoded[56..60].copy_from_slice(&self.link.to_le_bytes());
        encoded[60..68].copy_from_slice(&self.store);
        let crc = crc32c(&encoded[8..]);
        encoded[4..8].copy_from_slice(&crc.to_le_bytes());
        (encoded, crc)
    }

    pub fn decode(encoded: &[u8; HEADER_BYTES]) -> Result<(Header, u32), Malformed> {
        let mut from = Reader::new(encoded);
        let magic = from.array::<4>()?;
        let crc = from.u32()?;
        if magic != MAGIC || (crc != crc32c(&encoded[8..]) && !cfg!(fuzzing)) {
            return Err(Malformed);
        }
        let header = Header {
            segment: from.u64()?,
            group: from.u64()?,
            synced: from.u64()?,
            next_id: from.u64()?,
            payload_bytes: from.u64()?,
            records: from.u32()?,
            payload_crc: from.u32()?,
            link: from.u32()?,
            store: from.array()?,
        };
        Ok((header, crc))
    }
}

/// Bytes that a group with this payload takes in its area.
pub(crate) fn group_bytes(payload_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + payload_bytes).next_multiple_of(GRANULE_BYTES as u64)
}

/// One change of the store, complete: replaying it needs no look-up.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub written: Vec<Extent>,
    pub freed: Vec<Run>,
    pub rows: Vec<(Table, Bytes, Option<Bytes>)>,
}

impl Record {
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.freed.is_empty() && self.rows.is_empty()
    }

    pub fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.rows.push((table, key, Some(value)));
    }

    pub fn remove(&mut self, table: Table, key: Bytes) {
        self.rows.push((table, key, None));
    }

    /// How long the encoding is.
    pub fn encoded_len(&self) -> usize {
        let written: usize = self.written.iter().map(Extent::encoded_len).sum();
        let rows: usize = self
            .rows
            .iter()
            .map(|(_, key, value)| 10 + key.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        12 + written + self.freed.len() * ENCODED_RUN_BYTES + rows
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; 4]);
        Extent::encode_all(&self.written, into);
        into.extend_from_slice(&(self.freed.len() as u32).to_le_bytes());
        for run in &self.freed {
            run.encode(into);
        }
        for (table, key, value) in &self.rows {
            let bytes = value.as_deref().unwrap_or_default();
            into.push(*table as u8);
            into.push(u8::from(value.is_some()));
            into.extend_from_slice(&(key.len() as u32).to_le_bytes());
            into.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            into.extend_from_slice(key);
            into.extend_from_slice(bytes);
        }
        let len = (into.len() - start - 4) as u32;
        into[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn decode(payload: &Bytes, from: &mut Reader<'_>) -> Result<Record, Malformed> {
        let mut from = Reader::new(from.string()?);
        let mut record = Record {
            written: Extent::decode_all(&mut from)?,
            ..Record::default()
        };
        for _ in 0..from.u32()? {
            record.freed.push(Run::decode(&mut from)?);
        }
        while !from.is_empty() {
            let table = Table::from_number(from.u8()?).ok_or(Malformed)?;
            let put = match from.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed),
            };
            let key_len = from.u32()? as usize;
            let value_len = from.u32()? as usize;
            let key = Reader::share(payload, from.take(key_len)?);
            let value = Reader::share(payload, from.take(value_len)?);
            if !put && !value.is_empty() {
                return Err(Malformed);
            }
            record.rows.push((table, key, put.then_some(value)));
        }
        Ok(record)
    }

    /// The records of a payload.
    pub fn decode_all(payload: &Bytes, count: u32) -> Result<Vec<Record>, Malformed> {
        let mut from = Reader::new(payload);
        let records = (0..count)
            .map(|_| Record::decode(payload, &mut from))
            .collect::<Result<_, _>>()?;
        if from.is_empty() {
            Ok(records)
        } else {
            Err(Malformed)
        }
    }

    /// Carries the change out on a memtable.
    pub fn apply(self, memtable: &mut Memtable) {
        for extent in &self.written {
            memtable.space.push(SpaceChange::Taken(extent.run()));
        }
        for run in self.freed {
            memtable.space.push(SpaceChange::Freed(run));
        }
        for (table, key, value) in self.rows {
            memtable.set(table, key, value);
        }
    }
}
