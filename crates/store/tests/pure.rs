//! Properties of what has no state.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use bytes::Bytes;
use forebay_store::limits::{
    ATTRIBUTES_BYTES_MAX, ETAG_BYTES_MAX, LIST_ITEMS_MAX, NAMESPACE_BYTES_MAX, check_name,
};
use forebay_store::listing::{Collapse, Visit, after_prefix, next_key, versions_before};
use forebay_store::{
    After, Attributes, ByteRange, Change, Etag, ListOptions, Present, Space, VersionId, Versioning,
    plan_delete, plan_store,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn attributes_come_back(pairs in prop::collection::vec((".{0,20}", prop::collection::vec(any::<u8>(), 0..50)), 0..20)) {
        let mut wanted = std::collections::BTreeMap::new();
        let mut builder = Attributes::builder();
        for (name, value) in &pairs {
            builder.insert(name, value);
            wanted.insert(name.as_str(), value.as_slice());
        }
        let built = builder.build().unwrap();
        prop_assert!(built.iter().eq(wanted.iter().map(|(name, value)| (*name, *value))));
        prop_assert_eq!(&Attributes::decode(built.encoded().clone()).unwrap(), &built);
        prop_assert_eq!(&built.to_builder().build().unwrap(), &built);
        for (name, value) in &wanted {
            prop_assert_eq!(built.get(name), Some(*value));
        }
        prop_assert_eq!(built.is_empty(), wanted.is_empty());
    }

    #[test]
    fn hostile_attributes_are_refused_or_whole(encoded in prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..60)) {
        let encoded = Bytes::from(encoded);
        if let Some(decoded) = Attributes::decode(encoded.clone()) {
            let again = decoded.to_builder().build().unwrap();
            prop_assert_eq!(again.encoded(), &encoded);
        }
    }

    #[test]
    fn cut_attributes_are_refused(value in prop::collection::vec(any::<u8>(), 0..20), cut in 1..26_usize) {
        let whole = Attributes::builder().set("name", &value).build().unwrap();
        let encoded = whole.encoded();
        let cut = cut.min(encoded.len() - 1);
        prop_assert!(Attributes::decode(encoded.slice(..encoded.len() - cut)).is_none());
    }

    #[test]
    fn ranges_stay_inside(size in 0..1000_u64, first in edge(), last in edge()) {
        for range in [ByteRange::Full, ByteRange::From(first), ByteRange::Inclusive(first, last), ByteRange::Suffix(first)] {
            let offsets: Vec<u64> = (0..size).filter(|offset| match range {
                ByteRange::Full => true,
                ByteRange::From(first) => *offset >= first,
                ByteRange::Inclusive(first, last) => (first..=last).contains(offset),
                ByteRange::Suffix(count) => size - offset <= count,
            }).collect();
            match range.resolve(size) {
                Some(found) => prop_assert_eq!(found.collect::<Vec<_>>(), offsets),
                None => prop_assert!(offsets.is_empty() && range != ByteRange::Full),
            }
        }
    }

    #[test]
    fn etags_are_visible_text(text in ".{0,70}") {
        let legal = !text.is_empty() && text.len() <= ETAG_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        prop_assert_eq!(Etag::new(&text).map(|etag| etag.to_string()), legal.then_some(text));
    }

    #[test]
    fn made_etags_are_legal(crc in any::<u64>(), size in any::<u64>()) {
        let made = Etag::of_value(crc, size);
        prop_assert_eq!(Etag::new(made.as_str()), Some(made));
        prop_assert!(made.as_str().contains('-'));
    }

    #[test]
    fn successors_are_the_least(key in key(), other in key()) {
        prop_assert_eq!(other > key, other >= next_key(&key));
        match after_prefix(&key) {
            Some(bound) => prop_assert_eq!(other >= bound, other > key && !other.starts_with(&key)),
            None => prop_assert!(other <= key || other.starts_with(&key)),
        }
    }

    #[test]
    fn walks_collapse_as_a_scan_does(keys in prop::collection::btree_set(key(), 0..40), prefix in short(), delimiter in short(), after in key(), how in 0..3, limit in 0..12_usize) {
        let options = ListOptions {
            namespace: "n",
            space: Space::Objects,
            prefix: &prefix,
            delimiter: Some(&delimiter),
            after: match how { 0 => After::Start, 1 => After::Key(&after), _ => After::Prefix(&after) },
            limit,
        };
        prop_assert_eq!(walk(&keys, &options), scan(&keys, &options));
    }

    #[test]
    fn plans_keep_a_key_in_order(steps in prop::collection::vec((0..3_u8, 0..6_usize), 1..30)) {
        let mut key = Key::default();
        for (number, (what, nth)) in steps.into_iter().enumerate() {
            let fresh = VersionId(number as u64 + 1);
            // Off first, then as a namespace may go on.
            let versioning = match (number, nth % 2) {
                (0..3, _) => Versioning::Off,
                (_, 0) => Versioning::Enabled,
                _ => Versioning::Suspended,
            };
            let before = key.clone();
            match what {
                0 => {
                    key.apply(&plan_store(versioning, key.present(), fresh));
                    let stored = key.current.unwrap();
                    prop_assert_eq!(stored == fresh, versioning == Versioning::Enabled);
                }
                1 => {
                    key.apply(&plan_delete(versioning, key.present(), None, fresh));
                    prop_assert_eq!(key.current, None);
                }
                _ => if let Some(version) = key.pick(nth) {
                    key.apply(&plan_delete(versioning, key.present(), Some(version), fresh));
                    prop_assert!(!key.all().contains(&version), "it is gone");
                    prop_assert_eq!(key.all().len() + 1, before.all().len(), "and nothing else");
                },
            }
            let all = key.all();
            prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "versions are distinct");
            let newest_is_value = key.kept.last().is_some_and(|(_, marker)| !marker);
            prop_assert!(key.current.is_some() || !newest_is_value, "the newest value is current");
        }
    }
}

fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![0..1100_u64, Just(u64::MAX - 1), Just(u64::MAX)]
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(0),
        Just(b'/'),
        Just(b'a'),
        Just(b'b'),
        Just(0xfe),
        Just(0xff)
    ];
    prop::collection::vec(byte, 1..6)
}

fn short() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'/'), Just(b'a'), Just(0xff)];
    prop::collection::vec(byte, 0..3)
}

type Page = (Vec<(Vec<u8>, bool)>, bool);

/// As a store walks: step or seek as told.
fn walk(keys: &BTreeSet<Vec<u8>>, options: &ListOptions<'_>) -> Page {
    let mut items = Vec::new();
    let mut collapse = Collapse::new(options);
    let Some(mut from) = collapse.start() else {
        return (items, false);
    };
    while let Some(key) = keys.range(from.clone()..).next() {
        match collapse.visit(key) {
            Visit::Item => {
                items.push((key.clone(), false));
                from = next_key(key);
            }
            Visit::Prefix { prefix, seek } => {
                items.push((prefix.to_vec(), true));
                match seek {
                    Some(seek) => from = seek,
                    None => return (items, false),
                }
            }
            Visit::Full => return (items, true),
            Visit::End => return (items, false),
        }
    }
    (items, false)
}

/// As the contract reads: look at every key.
fn scan(keys: &BTreeSet<Vec<u8>>, options: &ListOptions<'_>) -> Page {
    let mut items: Vec<(Vec<u8>, bool)> = Vec::new();
    let delimiter = options.delimiter.unwrap_or_default();
    for key in keys {
        let begun = match options.after {
            After::Start => true,
            After::Key(after) | After::Version(after, _) => key.as_slice() > after,
            After::Prefix(after) => key.as_slice() > after && !key.starts_with(after),
        };
        if !begun || !key.starts_with(options.prefix) {
            continue;
        }
        let found = (options.prefix.len()..key.len())
            .find(|at| !delimiter.is_empty() && key[*at..].starts_with(delimiter));
        let item = match found {
            Some(at) => (key[..at + delimiter.len()].to_vec(), true),
            None => (key.clone(), false),
        };
        if items.last() != Some(&item) {
            items.push(item);
        }
    }
    let more = options.limit > 0 && items.len() > options.limit;
    items.truncate(options.limit);
    (items, more)
}

/// The entries of a key, the kept ones oldest first and with whether they are markers.
#[derive(Debug, Clone, Default)]
struct Key {
    current: Option<VersionId>,
    kept: Vec<(VersionId, bool)>,
}

impl Key {
    fn present(&self) -> Present {
        let mut newest = self.kept.iter().rev().copied();
        Present {
            current: self.current,
            kept_null: self
                .kept
                .iter()
                .any(|(version, _)| *version == VersionId::NULL),
            newest_kept: newest.next(),
            second_kept: newest.next(),
        }
    }

    fn all(&self) -> Vec<VersionId> {
        let kept = self.kept.iter().map(|(version, _)| *version);
        self.current.into_iter().chain(kept).collect()
    }

    fn pick(&self, nth: usize) -> Option<VersionId> {
        let all = self.all();
        all.get(nth % all.len().max(1)).copied()
    }

    fn apply(&mut self, plan: &[Change]) {
        for change in plan {
            match *change {
                Change::PutCurrent(version) => assert_eq!(self.current.replace(version), None),
                Change::KeepCurrent => self.kept.push((self.current.take().unwrap(), false)),
                Change::DropCurrent => assert!(self.current.take().is_some()),
                Change::DropKept(version) => self.kept.retain(|(kept, _)| *kept != version),
                Change::PutMarker(version) => self.kept.push((version, true)),
                Change::PromoteKept(version) => {
                    assert_eq!(self.kept.pop(), Some((version, false)));
                    assert_eq!(self.current.replace(version), None);
                }
            }
        }
    }
}

#[test]
fn attributes_are_bounded() {
    // Two length fields and one letter go with the value.
    let most = ATTRIBUTES_BYTES_MAX - 7;
    let largest = Attributes::builder()
        .set("n", vec![0; most])
        .build()
        .unwrap();
    assert_eq!(largest.encoded().len(), ATTRIBUTES_BYTES_MAX);
    assert!(
        Attributes::builder()
            .set("n", vec![0; most + 1])
            .build()
            .is_none()
    );
    let longer = [largest.encoded().as_ref(), &[1, 0, 0, 0, 0, 0, b'o']].concat();
    assert!(Attributes::decode(longer.into()).is_none());
    let name = "n".repeat(usize::from(u16::MAX) + 1);
    assert!(Attributes::builder().set(&name, "").build().is_none());
    assert!(Attributes::builder().set(&name[1..], "").build().is_some());
}

#[test]
fn attributes_ascend() {
    let pair = |name: u8| [1, 0, 0, 0, 0, 0, name];
    let decode = |names: [u8; 2]| Attributes::decode(names.map(pair).concat().into());
    assert!(decode([b'a', b'b']).is_some());
    assert!(decode([b'b', b'a']).is_none());
    assert!(decode([b'a', b'a']).is_none());
    assert!(decode([b'a', 0xff]).is_none());
}

#[test]
fn names_are_bounded() {
    let long = "n".repeat(NAMESPACE_BYTES_MAX);
    for legal in ["a", "..", "a.b-c_d", &long] {
        assert!(check_name(legal).is_ok(), "{legal:?}");
    }
    for illegal in ["", "a/b", " ", "\u{e9}", "\n", &format!("{long}n")] {
        assert!(check_name(illegal).is_err(), "{illegal:?}");
    }
}

#[test]
fn pages_are_bounded() {
    let options = ListOptions::of("n", Space::Objects);
    let mut collapse = Collapse::new(&options);
    for _ in 0..LIST_ITEMS_MAX {
        assert_eq!(collapse.visit(b"key"), Visit::Item);
    }
    assert_eq!(collapse.visit(b"key"), Visit::Full);
}

#[test]
fn a_version_list_goes_on_where_it_was() {
    let null = VersionId::NULL;
    let ids = [9, 7, 0, 4].map(VersionId);
    let passed = |version| versions_before(ids, version);
    assert_eq!(passed(VersionId(9)), 1);
    assert_eq!(passed(null), 3);
    assert_eq!(passed(VersionId(4)), 4);
    // Gone meanwhile.
    assert_eq!(passed(VersionId(8)), 1);
    assert_eq!(passed(VersionId(5)), 2);
    assert_eq!(passed(VersionId(10)), 0);
    assert_eq!(passed(VersionId(3)), 4);
    assert_eq!(versions_before([9, 7].map(VersionId), null), 0);
}
