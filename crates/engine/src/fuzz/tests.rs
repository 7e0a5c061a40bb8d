//! Seeds, made by the encoders themselves and kept under `fuzz/corpus`: a change of an encoding shows here as a changed
//! file. `FOREBAY_BLESS=1` writes them anew.

use std::fs;

use forebay_store::suite::{check_seed, corpus};
use forebay_store::{
    Attributes, Durability, Etag, Meta, NamespaceConfig, NamespaceInfo, Quota, Space, Usage,
    VersionId, Versioning,
};

use super::*;
use crate::codec::crc32c;
use crate::extent::{Extent, Run};

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 3] = [
    ("engine_superblock", superblock),
    ("engine_group", group),
    ("engine_row", row),
];

fn geometry() -> Geometry {
    Geometry {
        store: *b"a store of tests",
        segment_bytes: 1 << 20,
    }
}

fn meta(size: u64) -> Meta {
    Meta {
        size,
        etag: Etag::new("9a0364b9e99bb480dd25e1f0284c8555").unwrap(),
        modified: 1_700_000_000_000,
        version: VersionId(7),
        crc64nvme: 0xae8b_1486_0a79_9888,
        expires: Some(1_700_000_060_000),
        attributes: Attributes::builder()
            .set("content-type", "text/plain")
            .set("x-amz-meta-a", "1")
            .build()
            .unwrap(),
    }
}

fn extents() -> Vec<Extent> {
    vec![Extent::of(3, &vec![1; 100_000]), Extent::of(90, &[2; 4096])]
}

fn parts() -> Bytes {
    encode_parts(&[
        (0, Place::Empty),
        (9, Place::Inline(4)),
        (104_096, Place::Extents(5, extents())),
        (5 << 20, Place::Layout(6)),
    ])
}

fn namespace_info() -> NamespaceInfo {
    NamespaceInfo {
        name: "bucket".to_owned(),
        id: 2,
        created: 1_700_000_000_000,
        revision: 3,
        config: NamespaceConfig {
            tenant: "acme".to_owned(),
            quota: Quota {
                bytes: Some(1 << 30),
                objects: None,
            },
            ttl_ms: Some(60_000),
            durability: Durability::Relaxed { within_ms: 50 },
            versioning: Versioning::Suspended,
            attributes: Attributes::EMPTY,
        },
    }
}

fn stored() -> Record {
    let entry = Entry::value(11, &meta(104_096), &Place::Extents(5, extents()));
    let key = keys::current(2, Space::Objects, b"a/b");
    let mut record = Record {
        written: extents(),
        ..Record::default()
    };
    record.put(
        Table::Expiry,
        keys::expiry(1_700_000_060_000, 11),
        [&104_096_u64.to_le_bytes()[..], &key].concat().into(),
    );
    record.put(Table::Current, key, entry.encoded().clone());
    record.put(
        Table::Usage,
        Bytes::copy_from_slice(&keys::namespace(2)),
        encode_usage(Usage {
            objects: 1,
            bytes: 104_096,
        }),
    );
    record
}

fn replaced() -> Record {
    let mut record = Record {
        freed: vec![Run {
            start: 3,
            granules: 25,
        }],
        ..Record::default()
    };
    let marker = Entry::marker(12, VersionId(12), 1_700_000_001_000);
    record.put(
        Table::Kept,
        keys::kept(2, b"a\0b", 12),
        marker.encoded().clone(),
    );
    record.remove(Table::Current, keys::current(2, Space::Objects, b"a/b"));
    record.put(Table::Inline, keys::body(4), Bytes::from_static(b"inline"));
    record
}

fn group_of(records: &[Record]) -> Vec<u8> {
    let mut payload = Vec::new();
    for record in records {
        record.encode(&mut payload);
    }
    let header = Header {
        segment: 1,
        group: 5,
        synced: 3,
        next_id: 13,
        payload_bytes: payload.len() as u64,
        records: records.len() as u32,
        payload_crc: crc32c(&payload),
        link: 0x1234_5678,
        store: [0; 8],
    };
    [&header.encode().0[..], &payload].concat()
}

fn row_of(number: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[number, key.len() as u8], key, value].concat()
}

fn of_table(table: Table, key: &[u8], value: &[u8]) -> Vec<u8> {
    row_of(table as u8, key, value)
}

fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let both = geometry().encode();
    let mut first_lost = both.clone();
    first_lost[..GRANULE_BYTES].fill(0);
    let mut later_version = both.clone();
    for page in later_version.chunks_mut(GRANULE_BYTES) {
        page[8] = 2;
    }
    let inline = Entry::value(9, &meta(6), &Place::Inline(4));
    let joined = Entry::value(10, &meta(5 << 30), &Place::Joined(8));
    let marker = Entry::marker(12, VersionId(0), 1_700_000_001_000);
    let key = keys::current(2, Space::Objects, b"a/b");
    let staged = keys::current(2, Space::Staging, b"u\0a/b\0id");
    let mut chunk = Chunk::default();
    chunk.set(5, 70, true);
    let quota = encode_quota(namespace_info().config.quota);
    let usage = encode_usage(Usage {
        objects: 1,
        bytes: 2,
    });
    vec![
        ("engine_superblock", "both", both),
        ("engine_superblock", "first_lost", first_lost),
        ("engine_superblock", "later_version", later_version),
        ("engine_superblock", "unused", vec![0; 2 * GRANULE_BYTES]),
        (
            "engine_superblock",
            "one_page_only",
            geometry().encode()[..GRANULE_BYTES].to_vec(),
        ),
        ("engine_group", "empty", group_of(&[])),
        ("engine_group", "stored", group_of(&[stored()])),
        ("engine_group", "replaced", group_of(&[replaced()])),
        (
            "engine_group",
            "several",
            group_of(&[stored(), replaced(), Record::default()]),
        ),
        (
            "engine_group",
            "payload_cut",
            group_of(&[stored()])[..300].to_vec(),
        ),
        (
            "engine_row",
            "current_inline",
            of_table(Table::Current, &key, inline.encoded()),
        ),
        (
            "engine_row",
            "current_joined",
            of_table(Table::Current, &staged, joined.encoded()),
        ),
        (
            "engine_row",
            "kept_marker",
            of_table(Table::Kept, &keys::kept(2, b"a\0b", 12), marker.encoded()),
        ),
        (
            "engine_row",
            "kept_null",
            of_table(
                Table::KeptNull,
                &keys::kept_null(2, b"a"),
                &12_u64.to_le_bytes(),
            ),
        ),
        (
            "engine_row",
            "layout_parts",
            of_table(Table::Layout, &keys::body(8), &parts()),
        ),
        (
            "engine_row",
            "inline",
            of_table(Table::Inline, &keys::body(4), b"inline"),
        ),
        (
            "engine_row",
            "namespace",
            of_table(Table::Namespace, b"bucket", &encode_info(&namespace_info())),
        ),
        (
            "engine_row",
            "tenant",
            of_table(Table::Tenant, b"acme", &quota),
        ),
        (
            "engine_row",
            "usage",
            of_table(Table::Usage, &keys::namespace(2), &usage),
        ),
        (
            "engine_row",
            "expiry",
            of_table(
                Table::Expiry,
                &keys::expiry(1_700_000_060_000, 11),
                &[&6_u64.to_le_bytes()[..], &key].concat(),
            ),
        ),
        (
            "engine_row",
            "space_bitmap",
            row_of(10, &0_u64.to_be_bytes(), &chunk.encode()),
        ),
        (
            "engine_row",
            "space_all_taken",
            row_of(10, &1_u64.to_be_bytes(), &[1]),
        ),
        (
            "engine_row",
            "state_journal",
            row_of(9, b"journal", &Position::FIRST.encode()),
        ),
    ]
}

#[test]
fn seeds_are_what_the_encoders_write() {
    for (target, name, seed) in seeds() {
        check_seed(target, name, &seed);
    }
}

#[test]
fn every_seed_is_survived_whole_cut_and_flipped() {
    for (name, target) in TARGETS {
        for entry in fs::read_dir(corpus(name)).expect("a corpus for each target") {
            let mut seed = fs::read(entry.unwrap().path()).unwrap();
            target(&seed);
            for len in 0..seed.len().min(1024) {
                target(&seed[..len]);
                for bit in [1, 0x80] {
                    seed[len] ^= bit;
                    target(&seed);
                    seed[len] ^= bit;
                }
            }
        }
    }
}

/// What the names of the seeds say.
#[test]
fn seeds_decode() {
    let seed = |target: &str, name: &str| fs::read(corpus(target).join(name)).unwrap();
    for name in ["both", "first_lost"] {
        let found = Geometry::decode(&seed("engine_superblock", name));
        assert_eq!(found.ok().flatten(), Some(geometry()), "{name}");
    }
    assert!(Geometry::decode(&seed("engine_superblock", "later_version")).is_err());
    for (name, records) in [("empty", 0), ("stored", 1), ("several", 3)] {
        let bytes = seed("engine_group", name);
        let (head, payload) = bytes.split_first_chunk().unwrap();
        let (header, _) = Header::decode(head).unwrap();
        let payload = Bytes::copy_from_slice(payload);
        let decoded = Record::decode_all(&payload, header.records).unwrap();
        assert_eq!(decoded.len(), records, "{name}");
    }
}

/// A removal that carries a value would be a second encoding of the same change.
#[test]
fn a_removal_with_a_value_is_malformed() {
    let mut record = Record::default();
    record.put(Table::Inline, keys::body(4), Bytes::from_static(b"inline"));
    let mut payload = Vec::new();
    record.encode(&mut payload);
    let kind = payload.len() - b"inline".len() - 8 - 9;
    assert_eq!(payload[kind], 1);
    payload[kind] = 0;
    assert!(Record::decode_all(&payload.into(), 1).is_err());
}
