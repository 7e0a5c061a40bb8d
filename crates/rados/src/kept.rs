//! Older versions of a key, beside its object's data. There may be any number of them: nobody has them all in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_store::Result;

use crate::core::{Core, Namespace};
use crate::error::{malformed, shown, unread};
use crate::heads::Seen;
use crate::record::Kept;
use crate::sys::{Errno, Pairs, Read, ReadOp};
use crate::under_way::Named;

/// The newest are enough to decide about most changes.
const NEWEST: u64 = 4;
/// So many of them the rules ask for (see [`forebay_store::Present`]).
const DECIDING: usize = 2;
/// Of those that are looked through because some have expired, so many are had at once, and as many dropped by one change.
const HELD: usize = 256;
/// One change drops no more of them than such as have about so many segments together: the journal's entry of the change names them all.
const LET_GO: usize = 64 << 10;
/// The first look gives so many, and the following ones more or fewer, as far as one has about so many bytes.
const FIRST: u64 = 32;
const MOST: u64 = 512;
pub(crate) const LOOK_BYTES: usize = 1 << 20;

/// What is known of a key's kept versions: the newest, and what there is to know of the others.
#[derive(Debug, Default)]
pub(crate) struct KeptView {
    /// Newest first, without what has expired.
    pub list: Vec<Kept>,
    /// The null version, when it is not among these.
    pub null: Option<Kept>,
    /// What has expired and is to be dropped.
    pub expired: Vec<Kept>,
    /// Nothing of what is not here expires before.
    pub unseen_expires: Option<u64>,
}

impl KeptView {
    pub fn find(&self, seq: u64) -> Option<&Kept> {
        let all = self.list.iter().chain(&self.null);
        all.into_iter().find(|kept| kept.seq() == seq)
    }
}

/// A way through a key's kept versions, newest first, some at a time.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// The name of the last one that was passed.
    pub after: Vec<u8>,
    pub more: bool,
    next: u64,
}

impl Pages {
    /// Those that come after this name; after none all do.
    pub fn after(name: Vec<u8>) -> Pages {
        Pages {
            after: name,
            more: true,
            next: FIRST,
        }
    }

    /// Asks for the next ones.
    pub fn ask(&self, op: &mut ReadOp) {
        op.omap(&self.after, b"v", self.next);
    }

    /// Those that were asked for, undecoded.
    pub fn pass(&mut self, read: Read) -> Pairs {
        let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
        let bytes: usize = pairs.iter().map(|(_, value)| value.len()).sum();
        self.next = match bytes {
            0..=LOOK_BYTES if 2 * bytes <= LOOK_BYTES => (2 * self.next).min(MOST),
            0..=LOOK_BYTES => self.next,
            _ => (self.next / 2).max(1),
        };
        if let Some((last, _)) = pairs.last() {
            self.after = last.to_vec();
        }
        self.more = more && !pairs.is_empty();
        pairs
    }

    /// The next ones of a key that was seen, undecoded; `None` when the object has changed since.
    pub async fn next(
        &mut self,
        core: &Core,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
    ) -> Result<Option<Pairs>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = ReadOp::new(place);
        op.assert_version(seen.version);
        self.ask(&mut op);
        match core.access.read(place, &object, op, LOOK_BYTES).await {
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(None),
            Err(errno) => Err(unread(errno, &shown(&named.key))),
            Ok(read) => Ok(Some(self.pass(read))),
        }
    }
}

/// A search for kept versions that have expired. It goes on behind those that a change has dropped, for as long as nothing else changes the
/// key: however many there are, each is looked at once.
#[derive(Debug)]
pub(crate) struct Search {
    /// The object's version at which this holds.
    at: Option<u64>,
    pages: Pages,
    /// Those of a page that were not looked at yet.
    ahead: VecDeque<(Bytes, Bytes)>,
    /// The newest of those that have not expired.
    list: Vec<Kept>,
    /// Nothing of the others that were passed expires before.
    passed_expires: Option<u64>,
}

impl Search {
    pub fn new() -> Search {
        Search {
            at: None,
            pages: Pages::after(Vec::new()),
            ahead: VecDeque::new(),
            list: Vec::new(),
            passed_expires: None,
        }
    }

    /// What it has found was dropped, which gave the object this version.
    pub fn was_dropped(&mut self, version: u64) {
        self.at = self.has_more().then_some(version);
    }

    fn has_more(&self) -> bool {
        self.pages.more || !self.ahead.is_empty()
    }
}

impl Core {
    /// All kept versions of a head that was seen, newest first; `None` when the object has changed since. What is current and what is
    /// kept change places: only of one moment they are all that there is.
    pub async fn each_kept(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        mut each: impl FnMut(Kept),
    ) -> Result<Option<()>> {
        if seen.head.as_ref().is_none_or(|head| head.kept == 0) {
            return Ok(Some(()));
        }
        let mut pages = Pages::after(Vec::new());
        while pages.more {
            let Some(pairs) = pages.next(self, namespace, named, seen).await? else {
                return Ok(None);
            };
            for (_, value) in &pairs {
                each(decode(named, value)?);
            }
        }
        Ok(Some(()))
    }

    /// The names of kept versions, whatever the head says.
    pub async fn kept_names(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
    ) -> Result<Option<Vec<Bytes>>> {
        let mut names = Vec::new();
        let mut pages = Pages::after(Vec::new());
        while pages.more {
            let Some(pairs) = pages.next(self, namespace, named, seen).await? else {
                return Ok(None);
            };
            names.extend(pairs.into_iter().map(|(name, _)| name));
        }
        Ok(Some(names))
    }

    /// What a change has to know of the kept versions of a head that was seen; `None` when the object has changed since.
    pub async fn kept(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        also: Option<u64>,
    ) -> Result<Option<KeptView>> {
        let now = self.now();
        let Some(head) = seen.head.as_ref().filter(|head| head.kept > 0) else {
            return Ok(Some(KeptView::default()));
        };
        let is_due = head.expires_next.is_some_and(|at| at <= now);
        let mut view = KeptView::default();
        if is_due {
            let mut search = Search::new();
            let looked = self.find_expired(namespace, named, seen, now, &mut search, DECIDING);
            match looked.await? {
                Some(looked) => view = looked,
                None => return Ok(None),
            }
        }
        let wanted = head.kept_null.into_iter().chain(also).map(Kept::name);
        let wanted: Vec<Vec<u8>> = wanted.collect();
        if is_due && wanted.is_empty() {
            return Ok(Some(view));
        }
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = ReadOp::new(place);
        op.assert_version(seen.version);
        op.omap_keys(wanted.iter().map(Vec::as_slice));
        if !is_due {
            op.omap(b"", b"v", NEWEST);
        }
        let read = match self.access.read(place, &object, op, 0).await {
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => return Ok(None),
            Err(errno) => return Err(unread(errno, &shown(&named.key))),
            Ok(read) => read,
        };
        let mut looks = read.omap.into_iter();
        let (wanted, _) = looks.next().unwrap_or_default();
        if let Some((newest, more)) = looks.next() {
            for (_, value) in &newest {
                view.list.push(decode(named, value)?);
            }
            view.unseen_expires = head.expires_next.filter(|_| more);
        }
        for (_, value) in &wanted {
            let kept = decode(named, value)?;
            let is_same = |other: &Kept| other.seq() == kept.seq();
            if view.list.iter().chain(&view.expired).any(is_same) {
                continue;
            }
            // `also` may be asked for: it is found by its number all the same.
            match (kept.is_expired(now), Some(kept.seq()) == head.kept_null) {
                (true, _) => view.expired.push(kept),
                (false, true) => view.null = Some(kept),
                (false, false) => view.list.push(kept),
            }
        }
        view.list.sort_by_key(|kept| std::cmp::Reverse(kept.seq()));
        Ok(Some(view))
    }

    /// What there is to know for a change that drops what has expired and does nothing else; `None` when the object has changed since.
    pub async fn expired(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        now: u64,
        search: &mut Search,
    ) -> Result<Option<KeptView>> {
        if seen.head.as_ref().is_none_or(|head| head.kept == 0) {
            return Ok(Some(KeptView::default()));
        }
        self.find_expired(namespace, named, seen, now, search, 0)
            .await
    }

    /// Looks through kept versions because some have expired; no further than to as many of these as one change drops, and to so many
    /// `deciding` ones that are the newest without them: one of these may become current. Then the others are still due.
    async fn find_expired(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        now: u64,
        search: &mut Search,
        deciding: usize,
    ) -> Result<Option<KeptView>> {
        if search.at.take() != Some(seen.version) {
            *search = Search::new();
        }
        let mut expired: Vec<Kept> = Vec::new();
        let (mut segments, mut is_due) = (0, false);
        // The first that is left tells whether a marker hides the others.
        loop {
            let has_room = expired.len() < HELD && segments < LET_GO;
            if !has_room && search.list.len() >= deciding.max(1) {
                break;
            }
            if search.ahead.is_empty() && search.pages.more {
                let Some(pairs) = search.pages.next(self, namespace, named, seen).await? else {
                    return Ok(None);
                };
                search.ahead = pairs.into();
            }
            let Some((_, value)) = search.ahead.front() else {
                break;
            };
            let kept = decode(named, value)?;
            if kept.is_expired(now) {
                if has_room {
                    segments += kept.value().map_or(0, |value| value.segments().len());
                    expired.push(kept);
                } else if search.list.len() >= deciding {
                    break;
                } else {
                    is_due = true;
                }
            } else if search.list.len() < HELD {
                search.list.push(kept);
            } else {
                let expires = search.passed_expires.into_iter().chain(kept.expires());
                search.passed_expires = expires.min();
            }
            search.ahead.pop_front();
        }
        is_due |= search.has_more();
        Ok(Some(KeptView {
            list: search.list.clone(),
            null: None,
            expired,
            unseen_expires: match is_due {
                true => Some(now),
                false => search.passed_expires,
            },
        }))
    }
}

pub(crate) fn decode(named: &Named, value: &[u8]) -> Result<Kept> {
    Kept::decode(value).map_err(|_| malformed(&shown(&named.key)))
}
