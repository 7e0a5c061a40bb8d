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
        // The next one is the other region's.
        stag: Stag(range.stag.0.wrapping_add(2)),
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

impl Case {
    /// What this range may not be used for. Each on a link of its own: the first may end it, and then nothing more is refused for the
    /// right reason.
    pub(super) fn refused(&self) -> impl Iterator<Item = Access> {
        let both = [Access::Read, Access::Write];
        both.into_iter()
            .filter(|access| self.both || !self.access.includes(*access))
    }
}

pub(super) async fn run<L: Link>(subject: Subject<L>, case: &Case, access: Access) {
    let lent = subject.expose(LEN as usize, case.access).await;
    let other = subject.expose(100, Access::ReadWrite).await;
    let range = (case.wrong)(lent.range(0, 100));
    assert_ne!(range.stag, other.exposure.stag, "{}", case.what);
    is_refused(&subject, range, access, case.what).await;
    // Where the peer checks, it places what comes before the first byte that it refuses.
    let may_be = range.stag == lent.exposure.stag && case.access.includes(access);
    let start = range.offset.wrapping_sub(lent.exposure.base).min(LEN);
    let place = if may_be { start } else { LEN } as usize;
    lent.memory.check_untouched_before(place);
    other.memory.check_untouched();
}

/// An old name, once more.
pub(super) async fn withdrawn<L: Link>(subject: Subject<L>, access: Access) {
    let lent = subject.expose(LEN as usize, Access::ReadWrite).await;
    let old = subject.expose(100, Access::ReadWrite).await;
    let gone = old.range(0, 100);
    subject.client.withdraw(old.exposure).await;
    is_refused(&subject, gone, access, "a withdrawn region").await;
    lent.memory.check_untouched();
    old.memory.check_untouched();
}

async fn is_refused<L: Link>(subject: &Subject<L>, range: RemoteRange, access: Access, what: &str) {
    let placed = subject.server.fence().await;
    let _placed = placed.expect("the link is well until then");
    assert!(subject.server.mapped(range, access).is_none(), "{what}");
    if access.writes() {
        refused_write(subject, range, what).await;
    } else {
        let into = subject.pool.take(4096).await;
        let read = subject.server.read(range, into).await;
        assert!(read.is_err(), "read: {what}");
    }
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
