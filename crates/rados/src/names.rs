//! Where things are: RADOS namespaces, objects in them, keys beside their data. `docs/rados.md` has the table.
//!
//! A forebay namespace `N` is the RADOS namespace `N` (or `BASE/N`), with an object for each key and nothing else in it. What is kept
//! besides has RADOS namespaces whose names hold `//`, which no forebay namespace's can.

use forebay_store::Space;
use sha2::{Digest, Sha256};

/// The RADOS namespaces of one forebay namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spaces {
    /// Current values, each under its key.
    pub data: String,
    /// Values whose keys no object name can hold, by a sum of the key.
    pub named: String,
    /// Staged values, by a sum of the key.
    pub staging: String,
    /// Stripes.
    pub stripes: String,
    /// The journal and the index.
    pub index: String,
}

/// How the RADOS namespace ends of values whose keys no object name can hold.
const NAMED: &str = "//named";

impl Spaces {
    pub fn new(base: &str, namespace: &str) -> Spaces {
        let data = match base {
            "" => namespace.to_owned(),
            base => format!("{base}/{namespace}"),
        };
        Spaces {
            named: format!("{data}{NAMED}"),
            staging: format!("{data}//staging"),
            stripes: format!("{data}//stripes"),
            index: format!("{data}//index"),
            data,
        }
    }
}

/// The forebay namespace whose current values are in a RADOS namespace.
pub(crate) fn namespace_of<'s>(base: &str, space: &'s str) -> Option<&'s str> {
    let name = match base {
        "" => space,
        base => space.strip_prefix(base)?.strip_prefix('/')?,
    };
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The forebay namespace whose values are there whose keys no object name can hold.
pub(crate) fn named_of<'s>(base: &str, space: &'s str) -> Option<&'s str> {
    namespace_of(base, space.strip_suffix(NAMED)?)
}

/// The RADOS namespace of what belongs to no forebay namespace.
pub(crate) fn registry(base: &str) -> String {
    format!("{base}//forebay")
}

/// Its objects: namespaces and tenants, and where changes are told.
pub(crate) const NAMESPACES: &[u8] = b"namespaces";
/// Told of every change of a value.
pub(crate) const CHANGES: &[u8] = b"changes";

/// Whose lock has who looks through the pool.
pub(crate) const ADOPTING: &[u8] = b"adopting";

/// Stripes of a namespace that was deleted, which are to be removed.
pub(crate) fn orphans(namespace: u32) -> Vec<u8> {
    format!("orphans.{namespace}").into_bytes()
}

/// The object that stands for a gateway: whoever lives holds its lock.
pub(crate) fn gateway(gateway: u64) -> Vec<u8> {
    format!("gateway.{gateway:016x}").into_bytes()
}

/// Which RADOS namespace a key's object is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Data,
    Named,
    Staging,
}

/// Where a key's object is.
pub(crate) fn home(space: Space, key: &[u8]) -> Home {
    match space {
        Space::Objects if !key.contains(&0) => Home::Data,
        Space::Objects => Home::Named,
        Space::Staging => Home::Staging,
    }
}

/// A key's object.
pub(crate) fn object(space: Space, key: &[u8]) -> (Home, Vec<u8>) {
    match home(space, key) {
        Home::Data => (Home::Data, key.to_vec()),
        home @ (Home::Named | Home::Staging) => (home, summed(key)),
    }
}

fn summed(key: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(key);
    digest.iter().flat_map(|byte| hex(*byte)).collect()
}

fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]
}

/// A stripe of a value.
pub(crate) fn stripe(id: u128, number: u64) -> Vec<u8> {
    format!("{id:032x}.{number}").into_bytes()
}

/// Which stripe has this name, and of what.
pub(crate) fn stripe_of(name: &[u8]) -> Option<(u128, u64)> {
    let (id, number) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let id = (id.len() == 32).then(|| u128::from_str_radix(id, 16).ok())??;
    Some((id, number.parse().ok()?))
}

/// A namespace's journal. The number is in the name, so that what is meant for a deleted namespace misses one made anew.
pub(crate) fn journal(namespace: u32) -> Vec<u8> {
    format!("{namespace}.journal").into_bytes()
}

/// A part of a namespace's index.
pub(crate) fn shard(namespace: u32, shard: u32) -> Vec<u8> {
    format!("{namespace}.shard.{shard}").into_bytes()
}

/// What a composition takes.
pub(crate) fn composition(transaction: u128) -> Vec<u8> {
    format!("compose.{transaction:032x}").into_bytes()
}

/// A key as names of RADOS can hold it, without NUL: 00 is 01 01, 01 is 01 02. Order and prefixes stay.
pub(crate) fn escape(key: &[u8], into: &mut Vec<u8>) {
    // As good as all keys have none of either.
    if key.iter().all(|byte| *byte > 1) {
        return into.extend_from_slice(key);
    }
    for byte in key {
        match byte {
            0 => into.extend_from_slice(&[1, 1]),
            1 => into.extend_from_slice(&[1, 2]),
            byte => into.push(*byte),
        }
    }
}

/// The key that was escaped; `None` when nothing gives this.
pub(crate) fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        key.push(match byte {
            0 => return None,
            1 => match bytes.next()? {
                1 => 0,
                2 => 1,
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some(key)
}

/// Sections of a shard: entries of the two spaces, counters, times.
pub(crate) const OBJECTS: u8 = b'o';
pub(crate) const STAGED: u8 = b's';
/// What each gateway's changes add up to.
pub(crate) const COUNTERS: &[u8] = b"c";
/// Keys by when something of theirs expires.
pub(crate) const EXPIRING: &[u8] = b"e";

/// The section of a space's entries.
pub(crate) fn section(space: Space) -> u8 {
    match space {
        Space::Objects => OBJECTS,
        Space::Staging => STAGED,
    }
}

/// A key's entry in its shard.
pub(crate) fn entry(space: Space, key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(1 + key.len());
    name.push(section(space));
    escape(key, &mut name);
    name
}

/// Space and key of an entry.
pub(crate) fn entry_key(name: &[u8]) -> Option<(Space, Vec<u8>)> {
    let (section, escaped) = name.split_first()?;
    let space = match *section {
        OBJECTS => Space::Objects,
        STAGED => Space::Staging,
        _ => return None,
    };
    Some((space, unescape(escaped)?))
}

/// A gateway's counter.
pub(crate) fn counter(gateway: u64) -> Vec<u8> {
    format!("c{gateway:016x}").into_bytes()
}

/// When something of an entry's expires.
pub(crate) fn expiring(at: u64, entry: &[u8]) -> Vec<u8> {
    let mut name = format!("e{at:016x}").into_bytes();
    name.extend_from_slice(entry);
    name
}

/// The time and the entry of such a name.
pub(crate) fn expiring_entry(name: &[u8]) -> Option<(u64, &[u8])> {
    let (at, entry) = name.strip_prefix(EXPIRING)?.split_at_checked(16)?;
    let at = u64::from_str_radix(std::str::from_utf8(at).ok()?, 16).ok()?;
    Some((at, entry))
}

/// Sections of a journal: values under way, changes under way, what may go, and what may be nobody's.
pub(crate) const INTENTS: &[u8] = b"i";
/// Changes that the index does not know yet.
pub(crate) const PENDING: &[u8] = b"p";
/// Stripes that nothing refers to any more.
pub(crate) const GARBAGE: &[u8] = b"g";
/// Stripes of which nobody knows whether something refers to them.
pub(crate) const STRAYS: &[u8] = b"s";

/// A value under way; its id begins with its gateway.
pub(crate) fn intent(id: u128) -> Vec<u8> {
    format!("i{id:032x}").into_bytes()
}

/// A change under way; its number begins with its gateway.
pub(crate) fn pending(transaction: u128) -> Vec<u8> {
    format!("p{transaction:032x}").into_bytes()
}

/// Stripes to be removed from a time on.
pub(crate) fn garbage(at: u64, id: u128) -> Vec<u8> {
    format!("g{at:016x}{id:032x}").into_bytes()
}

/// Stripes that are looked for from a time on.
pub(crate) fn stray(at: u64, id: u128) -> Vec<u8> {
    format!("s{at:016x}{id:032x}").into_bytes()
}

/// The number in the name of an intent or a change under way.
pub(crate) fn numbered(name: &[u8]) -> Option<u128> {
    let digits = std::str::from_utf8(name.get(1..33)?).ok()?;
    (name.len() == 33).then(|| u128::from_str_radix(digits, 16).ok())?
}

/// Time and id in the name of garbage.
pub(crate) fn garbage_id(name: &[u8]) -> Option<(u64, u128)> {
    timed_id(name.strip_prefix(GARBAGE)?)
}

/// Time and id in the name of strays.
pub(crate) fn stray_id(name: &[u8]) -> Option<(u64, u128)> {
    timed_id(name.strip_prefix(STRAYS)?)
}

fn timed_id(digits: &[u8]) -> Option<(u64, u128)> {
    let (at, id) = std::str::from_utf8(digits).ok()?.split_at_checked(16)?;
    let id = (id.len() == 32).then(|| u128::from_str_radix(id, 16).ok())??;
    Some((u64::from_str_radix(at, 16).ok()?, id))
}

/// Which gateway made a value or a change.
pub(crate) fn gateway_of(number: u128) -> u64 {
    (number >> 64) as u64
}

/// Which of so many shards has an entry.
pub(crate) fn shard_of(entry: &[u8], shards: u32) -> u32 {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, entry);
    (sum % u64::from(shards.max(1))) as u32
}

/// Where a listing begins so that it finds every name from `from` on: it begins after the name that this gives, and may see some
/// before `from`.
pub(crate) fn just_before(from: &[u8]) -> Vec<u8> {
    let mut name = from.to_vec();
    if let Some(last) = name.pop()
        && last > 1
    {
        name.push(last - 1);
        name.extend_from_slice(&[u8::MAX; 4]);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_keeps_order_and_comes_back() {
        let keys: [&[u8]; 9] = [
            b"\0",
            b"\0\0",
            b"\0\x01",
            b"\x01",
            b"\x01\0",
            b"\x01\x01\x02",
            b"\x02",
            b"a\0",
            b"a\x01",
        ];
        let escaped: Vec<Vec<u8>> = keys.iter().map(|key| entry(Space::Objects, key)).collect();
        assert!(escaped.is_sorted() && escaped.iter().all(|name| !name.contains(&0)));
        for (key, name) in keys.iter().zip(&escaped) {
            assert_eq!(entry_key(name), Some((Space::Objects, key.to_vec())));
            assert!(just_before(name) < *name);
        }
        assert_eq!(unescape(b"a\x01"), None);
        assert_eq!(unescape(b"\x01\x03"), None);
    }

    #[test]
    fn names_tell_what_they_hold() {
        let entry = entry(Space::Staging, b"k\0");
        assert_eq!(
            expiring_entry(&expiring(77, &entry)),
            Some((77, &entry[..]))
        );
        assert_eq!(numbered(&pending(7 << 64 | 9)), Some(7 << 64 | 9));
        assert_eq!(garbage_id(&garbage(5, 6)), Some((5, 6)));
        assert_eq!(garbage_id(b"g12"), None);
        assert_eq!(stray_id(&stray(5, 6)), Some((5, 6)));
        assert_eq!(stray_id(&garbage(5, 6)), None);
        assert_eq!(stripe_of(&stripe(7, 8)), Some((7, 8)));
        for wrong in [&b"7.8"[..], b"7", b"", &[b'0'; 33]] {
            assert_eq!(stripe_of(wrong), None);
        }
        assert_eq!(gateway_of(7 << 64 | 9), 7);
    }

    #[test]
    fn nothing_of_ours_lies_where_a_key_could() {
        let spaces = Spaces::new("base", "..");
        assert_eq!(spaces.data, "base/..");
        for other in [
            &spaces.named,
            &spaces.staging,
            &spaces.stripes,
            &spaces.index,
            &registry("base"),
            &registry(""),
        ] {
            assert!(other.contains("//"));
        }
        assert_eq!(namespace_of("base", &spaces.data), Some(".."));
        assert_eq!(namespace_of("", "bucket"), Some("bucket"));
        assert_eq!(named_of("base", &spaces.named), Some(".."));
        assert_eq!(named_of("", "bucket//named"), Some("bucket"));
        assert_eq!(named_of("", "bucket"), None);
        assert_eq!(named_of("", "//named"), None);
        for (base, not_data) in [
            ("base", &*spaces.stripes),
            ("base", "bases/n"),
            ("base", "base"),
            ("", "base/.."),
            ("", "bucket//index"),
            ("", ""),
        ] {
            assert_eq!(namespace_of(base, not_data), None, "{not_data}");
        }
        assert_eq!(
            object(Space::Objects, b"plain"),
            (Home::Data, b"plain".to_vec())
        );
        assert_eq!(object(Space::Objects, b"a\0b").0, Home::Named);
    }
}
