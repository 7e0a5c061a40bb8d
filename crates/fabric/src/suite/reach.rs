use super::subject::{Subject, bufs};
use crate::{Access, Link, RemoteRange, Stag};

/// A range that may not be reached, given the right one, and what the region is exposed for.
pub(super) struct Case {
    what: &'static str,
    access: Access,
    wrong: fn(RemoteRange) -> RemoteRange,
    /// Both ways are wrong; else only the one that the access does not include.
    both: bool,
}

const LEN: u64 = 10_000;

const fn case(what: &'static str, wrong: fn(RemoteRange) -> RemoteRange) -> Case {
    Case {
        what,
        access: Access::ReadWrite,
        wrong,
        both: true,
    }
}

pub(super) const CASES: &[Case] = &[
    case("a name that was never given", |range| RemoteRange {
        stag: Stag(range.stag.0 ^ 0x5a5a_5a00),
        ..range
    }),
    case("a name beside the right one", |range| RemoteRange {
        stag: Stag(range.stag.0.wrapping_add(1)),
        ..range
    }),
    case("one byte more", |range| RemoteRange {
        offset: range.offset + LEN - 99,
        ..range
    }),
    case("the byte after the end", |range| RemoteRange {
        offset: range.offset + LEN,
        ..range
    }),
    case("the byte before the start, and around", |range| {
        RemoteRange {
            offset: range.offset.wrapping_sub(1),
            ..range
        }
    }),
    case("the largest offset", |range| RemoteRange {
        offset: u64::MAX,
        ..range
    }),
    case("an end that wraps around", |range| RemoteRange {
        offset: u64::MAX - 98,
        ..range
    }),
    Case {
        what: "reading what may be written",
        access: Access::Write,
        wrong: |range| range,
        both: false,
    },
    Case {
        what: "writing what may be read",
        access: Access::Read,
        wrong: |range| range,
        both: false,
    },
];

pub(super) async fn run<L: Link>(subject: Subject<L>, case: &Case) {
    let lent = subject.expose(LEN as usize, case.access).await;
    let other = subject.expose(100, Access::ReadWrite).await;
    let range = (case.wrong)(lent.range(0, 100));
    // An old name, once more: what was withdrawn.
    let old = subject.expose(100, Access::ReadWrite).await;
    let gone = old.range(0, 100);
    subject.client.withdraw(old.exposure).await;
    assert!(subject.server.mapped(gone, Access::Write).is_none());

    // A name may by chance be the other region's: then that one is what is reached.
    let reaches_other = range.stag == other.exposure.stag;
    if !reaches_other {
        for access in [Access::Read, Access::Write] {
            if case.both || !case.access.includes(access) {
                assert!(
                    subject.server.mapped(range, access).is_none(),
                    "{}",
                    case.what
                );
            }
        }
        if case.both || !case.access.reads() {
            let into = subject.pool.take(4096).await;
            let read = subject.server.read(range, into).await;
            assert!(read.is_err(), "read: {}", case.what);
        }
        if case.both || !case.access.writes() {
            refused_write(&subject, range, case.what).await;
        }
        lent.memory.check_untouched();
        other.memory.check_untouched();
    }
    refused_write(&subject, gone, "a withdrawn region").await;
    old.memory.check_untouched();
}

/// Either the call says so, or no proof of placement comes.
async fn refused_write<L: Link>(subject: &Subject<L>, range: RemoteRange, what: &str) {
    let written = subject.server.write(range, bufs(&[1; 100])).await;
    let placed = match written {
        Err(_) => false,
        Ok(()) => subject.server.fence().await.is_ok(),
    };
    assert!(!placed, "write: {what}");
}
