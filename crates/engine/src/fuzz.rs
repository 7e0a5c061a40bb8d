//! What the fuzzers call for the formats on the device: one function a format, from raw bytes, with what must hold
//! whatever they are. Without a fuzzer the tests below replay `fuzz/corpus` through the same functions.
//!
//! Checksums are not compared under `cfg(fuzzing)`, else a fuzzer would see nothing behind them.

use bytes::Bytes;

use crate::codec::Reader;
use crate::entry::{Entry, Place, decode_parts, encode_parts};
use crate::extent::GRANULE_BYTES;
use crate::group::{HEADER_BYTES, Header, Position, Record, group_bytes};
use crate::keys::{self, Table};
use crate::namespaces::{
    decode_info, decode_quota_row, decode_usage, encode_info, encode_quota, encode_usage,
};
use crate::space::{CHUNK_GRANULES, Chunk};
use crate::superblock::Geometry;
use crate::tables::Memtable;

/// The first two pages of the data file (docs/engine-format.md section 1).
pub fn superblock(data: &[u8]) {
    let pages = &data[..data.len().min(2 * GRANULE_BYTES)];
    if let Ok(Some(geometry)) = Geometry::decode(pages) {
        let again = Geometry::decode(&geometry.encode());
        assert_eq!(again.ok().flatten(), Some(geometry));
        assert!(geometry.area(1) + geometry.segment_bytes <= geometry.extents());
        assert!(geometry.record_bytes_max() < geometry.segment_bytes);
    }
}

/// A journal group: a header, and its payload as long as there are bytes (section 2).
pub fn group(data: &[u8]) {
    let Some((head, payload)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Ok((header, _)) = Header::decode(head) else {
        return;
    };
    let (encoded, _) = header.encode();
    assert_eq!(
        Header::decode(&encoded).map(|(header, _)| header),
        Ok(header)
    );
    if header.payload_bytes != payload.len() as u64 {
        return;
    }
    assert!(group_bytes(header.payload_bytes) >= data.len() as u64);
    let payload = Bytes::copy_from_slice(payload);
    let Ok(records) = Record::decode_all(&payload, header.records) else {
        return;
    };
    let mut again = Vec::with_capacity(payload.len());
    let mut memtable = Memtable::default();
    for record in records {
        let start = again.len();
        record.encode(&mut again);
        assert_eq!(again.len() - start, record.encoded_len());
        for (table, key, value) in &record.rows {
            if let Some(value) = value {
                decode_row(*table, key, value);
            }
        }
        record.apply(&mut memtable);
    }
    assert_eq!(again, payload, "a record has one encoding");
}

/// A row of the index (section 3): number of the table, length of the key, key, value. Numbers past the tables' stand for
/// `space` and `state`.
pub fn row(data: &[u8]) {
    let mut from = Reader::new(data);
    let (Ok(number), Ok(key_len)) = (from.u8(), from.u8()) else {
        return;
    };
    let Ok(key) = from.take(usize::from(key_len)) else {
        return;
    };
    let value = Bytes::copy_from_slice(&data[2 + key.len()..]);
    match Table::from_number(number) {
        Some(table) => decode_row(table, key, &value),
        None if number.is_multiple_of(2) => {
            if let Ok(chunk) = Chunk::decode(&value) {
                assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk.clone()));
                assert!(chunk.taken().all(|(at, n)| at + n <= CHUNK_GRANULES));
            }
        }
        None => {
            if let Ok(position) = Position::decode(&value) {
                assert_eq!(Position::decode(&position.encode()), Ok(position));
            }
        }
    }
}

fn decode_row(table: Table, key: &[u8], value: &Bytes) {
    match table {
        Table::Current => {
            let _ = keys::split_current(key);
            entry(value);
        }
        Table::Kept => {
            if let (Some((user, sequence)), Some(namespace)) =
                (keys::split_kept(key), key.first_chunk::<4>())
            {
                let again = keys::kept(u32::from_be_bytes(*namespace), &user, sequence);
                assert_eq!(again, key);
            }
            entry(value);
        }
        Table::Layout => {
            if let Ok(parts) = decode_parts(value) {
                assert_eq!(decode_parts(&encode_parts(&parts)), Ok(parts));
            }
        }
        Table::Namespace => {
            if let Ok(info) = decode_info(key, value) {
                assert_eq!(decode_info(key, &encode_info(&info)), Ok(info));
            }
        }
        Table::Tenant => {
            if let Ok(quota) = decode_quota_row(value) {
                let again = encode_quota(quota);
                assert_eq!(decode_quota_row(&again), Ok(quota));
            }
        }
        Table::Usage => {
            if let Ok(usage) = decode_usage(value) {
                assert_eq!(decode_usage(&encode_usage(usage)), Ok(usage));
            }
        }
        Table::Expiry => {
            if let Some((expires, sequence)) = keys::split_expiry(key) {
                assert_eq!(keys::expiry(expires, sequence), key);
            }
            let _ = keys::split_current(value.get(8..).unwrap_or_default());
        }
        // The bytes themselves, and a number that is read where it is used.
        Table::Inline | Table::KeptNull => {}
    }
}

fn entry(value: &Bytes) {
    let Ok(entry) = Entry::adopt(value.clone()) else {
        return;
    };
    let (meta, place) = (entry.meta(), entry.place());
    assert_eq!(entry.etag().ok(), entry.etag().ok());
    if let (Ok(meta), Ok(place)) = (meta, place) {
        let again = Entry::value(entry.sequence(), &meta, &place);
        assert_eq!(again.meta(), Ok(meta));
        assert_eq!(again.place(), Ok(place.clone()));
        if let Place::Extents(_, extents) = place {
            assert!(extents.iter().all(|extent| extent.run().granules > 0));
        }
    }
}

#[cfg(test)]
mod tests;
