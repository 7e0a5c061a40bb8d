//! Replays the corpus, and holds the records to their layout.

use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::suite::{check_seed, corpus};
use forebay_store::{
    Attributes, Away, Etag, NamespaceConfig, NamespaceInfo, Space, Usage, Versioning,
};

use super::record;
use crate::names;
use crate::namespaces::Registered;
use crate::orphans::{Bereft, Orphan};
use crate::record::{Entry, Head, Kept, Layout, Segment, Value};
use crate::under_way::{Garbage, Intent, Named, Pending, Sum, Taken};

/// Seeds, made by the encoders themselves and kept under `fuzz/corpus`: a change of an encoding shows here as a changed file.
/// `FOREBAY_BLESS=1` writes them anew.
#[test]
fn seeds_are_what_is_encoded_and_are_read() {
    for (name, kind, encoded) in samples() {
        check_seed("rados_record", name, &[&[kind][..], &encoded].concat());
    }
    for file in std::fs::read_dir(corpus("rados_record")).unwrap() {
        record(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

#[test]
fn every_beginning_and_every_flipped_bit_is_refused_or_read() {
    for (_, kind, encoded) in samples() {
        let mut data = vec![kind];
        data.extend_from_slice(&encoded);
        record(&data);
        for len in 0..encoded.len() {
            record(&data[..=len]);
        }
        for bit in 8..data.len() * 8 {
            let mut flipped = data.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            record(&flipped);
        }
    }
}

#[test]
fn records_come_back() {
    let (head, kept) = (head(), kept());
    assert_eq!(Head::decode(&head.encode()), Ok(head.clone()));
    for kept in kept {
        assert_eq!(Kept::decode(&kept.encode()), Ok(kept));
    }
    let entry = Entry::of(7, Some(&head));
    assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    let gone = Entry::of(9, None);
    assert_eq!(Entry::decode(&gone.encode()), Ok(gone));
    assert!(Head::decode(&[2]).is_err(), "another format");
}

#[test]
fn absurd_numbers_are_refused() {
    let is_refused = |absurd: &dyn Fn(&mut Head)| {
        let mut head = head();
        absurd(&mut head);
        Head::decode(&head.encode()).is_err()
    };
    let longest = segment_of(2 * VALUE_BYTES_MAX);
    assert!(Garbage::decode(&Garbage::of(longest).encode()).is_ok());
    // Nothing can come after them.
    assert!(is_refused(&|head| head.last_seq = u64::MAX));
    assert!(is_refused(&|head| head.kept_null = Some(u64::MAX)));
    assert!(is_refused(&|head| head.marker = Some((u64::MAX, false, 0))));
    assert!(is_refused(&|head| head.usage.bytes = u64::MAX));
    for size in [VALUE_BYTES_MAX + 1, u64::MAX] {
        for layout in [
            Layout::Away(Away(1)),
            Layout::Striped(vec![segment_of(size)]),
        ] {
            let absurd = Value {
                size,
                ..value(layout)
            };
            assert!(Kept::decode(&Kept::Value(absurd.clone()).encode()).is_err());
            assert!(is_refused(&|head| head.current = Some(absurd.clone())));
        }
    }
    let absurd = segment_of(u64::MAX);
    assert!(Garbage::decode(&Garbage::of(absurd).encode()).is_err());
    let intent = Intent {
        named: Named::object(b"k".to_vec()),
        segment: absurd,
    };
    assert!(Intent::decode(&intent.encode()).is_err());
    let orphan = Orphan {
        namespace: "ns".to_owned(),
        segment: absurd,
        id: None,
    };
    assert!(Orphan::decode(&orphan.encode()).is_err());
}

#[test]
fn what_is_said_of_orphans_is_not_taken_for_something_else() {
    let bereft = Bereft {
        namespace: "ns".to_owned(),
        id: 7,
    };
    assert_eq!(Bereft::decode(&bereft.encode()), Ok(bereft.clone()));
    assert!(Orphan::decode(&bereft.encode()).is_err());
    for id in [None, Some(7)] {
        let orphan = Orphan {
            namespace: "ns".to_owned(),
            segment: segment_of(5 << 20),
            id,
        };
        assert!(Bereft::decode(&orphan.encode()).is_err());
    }
}

fn value(layout: Layout) -> Value {
    Value {
        seq: 1 << 40,
        null: true,
        size: 70_000,
        crc64nvme: 0x1234,
        modified: 1_700_000_000_000,
        expires: Some(1_800_000_000_000),
        etag: Etag::of_value(0x1234, 70_000),
        attributes: Attributes::builder()
            .set("content-type", "text/plain")
            .build()
            .unwrap(),
        layout,
    }
}

fn segment() -> Segment {
    segment_of(70_000)
}

fn segment_of(len: u64) -> Segment {
    Segment {
        id: 5 << 64 | 9,
        len,
        stripe_bytes: 4 << 20,
    }
}

fn head() -> Head {
    Head {
        stamp: 1_700_000_000,
        last_seq: 1 << 41,
        usage: Usage {
            objects: 2,
            bytes: 140_000,
        },
        expires_next: Some(1_800_000_000_000),
        kept: 2,
        kept_null: Some(7),
        marker: Some((9, false, 1_700_000_000_001)),
        composition: Some(3 << 64 | 1),
        key: Some(b"a\0b".to_vec()),
        current: Some(value(Layout::Inline(vec![1, 2]))),
    }
}

fn kept() -> [Kept; 3] {
    let marker = Kept::Marker {
        seq: 9,
        null: false,
        modified: 5,
    };
    [
        Kept::Value(value(Layout::Striped(vec![segment()]))),
        Kept::Value(value(Layout::Away(Away(2 << 96 | 7)))),
        marker,
    ]
}

fn samples() -> Vec<(&'static str, u8, Vec<u8>)> {
    let named = Named {
        space: Space::Staging,
        key: b"upload/1".to_vec(),
    };
    let pending = Pending {
        named: named.clone(),
        composes: true,
        freed: vec![segment()],
    };
    let intent = Intent {
        named,
        segment: segment(),
    };
    let garbage = Garbage {
        segment: segment(),
        meant_for: Some(intent.named.clone()),
    };
    let taken = Taken {
        keys: vec![b"upload/1".to_vec(), b"upload/2".to_vec()],
    };
    let counter = Sum {
        objects: -1,
        bytes: 70_000,
    };
    let namespace = Registered {
        info: NamespaceInfo {
            name: "bucket".to_owned(),
            id: 2,
            created: 1_700_000_000_000,
            revision: 3,
            config: NamespaceConfig {
                tenant: "acme".to_owned(),
                ttl_ms: Some(60_000),
                versioning: Versioning::Suspended,
                ..NamespaceConfig::default()
            },
        },
        shards: 8,
    };
    let entry = names::entry(Space::Objects, b"a\0b\x01");
    let [value, away, marker] = kept();
    vec![
        ("head", 0, head().encode()),
        ("kept_value", 1, value.encode()),
        ("kept_away", 1, away.encode()),
        ("kept_marker", 1, marker.encode()),
        ("entry", 2, Entry::of(7, Some(&head())).encode()),
        ("entry_gone", 2, Entry::of(9, None).encode()),
        ("pending", 3, pending.encode()),
        ("intent", 4, intent.encode()),
        ("taken", 5, taken.encode()),
        ("counter", 6, counter.encode()),
        ("garbage", 7, Garbage::of(segment()).encode()),
        ("garbage_meant_for", 7, garbage.encode()),
        ("namespace", 8, namespace.encode()),
        ("name_entry", 10, entry.clone()),
        ("name_expiring", 10, names::expiring(77, &entry)),
        ("name_garbage", 10, names::garbage(77, 5)),
        ("pieces", 11, b"\x04\x06\0\0\0\x03abc\x03def".to_vec()),
    ]
}
