//! What the fuzzers call for what is kept in the pool: one function, from raw bytes, with what must hold whatever they are. Without a
//! fuzzer the tests below replay `fuzz/corpus` through the same function.

use bytes::Bytes;

use crate::heads::record_of;
use crate::names;
use crate::namespaces::Registered;
use crate::notices;
use crate::orphans::{Bereft, Orphan};
use crate::record::{Entry, Head, Kept};
use crate::under_way::{Garbage, Intent, Pending, Sum, Taken};

/// A record: its kind, then its bytes (docs/rados.md sections 2 to 4). A record has one encoding.
pub fn record(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 12 {
        0 => again(bytes, Head::decode(bytes).ok().map(|head| head.encode())),
        1 => again(bytes, Kept::decode(bytes).ok().map(|kept| kept.encode())),
        2 => again(bytes, Entry::decode(bytes).ok().map(|entry| entry.encode())),
        3 => again(
            bytes,
            Pending::decode(bytes).ok().map(|pending| pending.encode()),
        ),
        4 => again(
            bytes,
            Intent::decode(bytes).ok().map(|intent| intent.encode()),
        ),
        5 => again(bytes, Taken::decode(bytes).ok().map(|taken| taken.encode())),
        6 => again(bytes, Sum::decode(bytes).ok().map(Sum::encode)),
        7 => again(
            bytes,
            Garbage::decode(bytes).ok().map(|garbage| garbage.encode()),
        ),
        8 => again(
            bytes,
            Registered::decode(bytes).ok().map(|found| found.encode()),
        ),
        9 => {
            let _ = notices::read(bytes);
            again(
                bytes,
                Orphan::decode(bytes).ok().map(|orphan| orphan.encode()),
            );
            again(
                bytes,
                Bereft::decode(bytes).ok().map(|bereft| bereft.encode()),
            );
        }
        10 => name(bytes),
        _ => xattrs(bytes),
    }
}

fn again(bytes: &[u8], encoded: Option<Vec<u8>>) {
    if let Some(encoded) = encoded {
        assert_eq!(encoded, bytes);
    }
}

/// Names of keys beside data.
fn name(bytes: &[u8]) {
    let _ = (names::numbered(bytes), names::garbage_id(bytes));
    let _ = (names::stray_id(bytes), names::stripe_of(bytes));
    let _ = names::expiring_entry(bytes);
    if let Some((space, key)) = names::entry_key(bytes) {
        assert_eq!(names::entry(space, &key), bytes);
    }
    assert!(bytes.is_empty() || names::just_before(bytes) < bytes.to_vec());
}

/// A record in the pieces that attributes hold: the number of pieces, then lengths and bytes.
fn xattrs(bytes: &[u8]) {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while let Some((len, more)) = rest.split_first() {
        let (piece, more) = more.split_at(usize::from(*len).min(more.len()));
        let name = match pieces.len() {
            0 => "forebay".to_owned(),
            number => format!("forebay.{number}"),
        };
        pieces.push((Bytes::from(name), Bytes::copy_from_slice(piece)));
        rest = more;
    }
    if let Some(record) = record_of(pieces) {
        let _ = Head::decode(&record);
    }
}

#[cfg(test)]
mod tests;
