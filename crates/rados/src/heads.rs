//! Looking at keys' objects: records in attributes, kept versions beside the data, and objects that another hand wrote.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{ErrorKind, Result, Space, StoreError, Versioning};

use crate::core::{Core, Namespace};
use crate::error::{malformed, shown, unread, unwritten};
use crate::names;
use crate::record::{Entry, Head, Kept, Value};
use crate::sys::{Errno, Guard, Pairs, Read, ReadOp, WriteOp};
use crate::under_way::{Named, Pending};

/// The attribute with a key's record; what does not fit follows in `forebay.1`, `forebay.2` ...
const RECORD: &[u8] = b"forebay";
/// The attribute with the number of the record's namespace: one made anew under a name has another.
const NAMESPACE: &[u8] = b"forebay.namespace";
/// Bytes of a record in one attribute: what every object store of Ceph's takes.
const PIECE_BYTES: usize = 32 << 10;
/// The attribute of a staged value that a composition takes.
pub(crate) const CLAIM: &[u8] = b"forebay.claim";
/// The attribute that says who made sure last that nothing arrives late.
const FENCE: &[u8] = b"forebay.fence";
/// Kept versions in one look.
const KEPT_PAGE: u64 = 512;
/// Of these, the newest are enough to decide about most changes.
const KEPT_NEWEST: u64 = 4;
/// How often an object that changes all the time is looked at again.
pub(crate) const LOOKS: usize = 64;

/// An object as it was at a moment; the absence of one is this, too.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The object's version. Of what is not there: that of its removal, or 0 when that is not known.
    pub version: u64,
    pub head: Option<Arc<Head>>,
    /// How many attributes hold the record.
    pub pieces: usize,
    /// The composition that takes this staged value.
    pub claim: Option<u128>,
    /// Remembered or guessed, not looked at just now.
    pub remembered: bool,
}

impl Seen {
    pub fn absent(version: u64) -> Seen {
        Seen {
            version,
            head: None,
            pieces: 0,
            claim: None,
            remembered: false,
        }
    }

    /// What the index says of it.
    pub fn entry(&self) -> Option<Entry> {
        match (&self.head, self.version) {
            (None, 0) => None,
            (Some(head), _) if head.is_empty() => None,
            (head, version) => Some(Entry::of(version, head.as_deref())),
        }
    }
}

/// An object that was looked at.
enum Found {
    Ours(Seen),
    /// Written by another hand: its length and time, and the record of this namespace that it may have had before.
    Foreign(Seen, u64, i64),
    /// Its record does not follow its format: the same, without that.
    Unreadable(Seen, u64, i64),
}

/// What is known of a key's kept versions: all, or the newest.
#[derive(Debug, Default)]
pub(crate) struct KeptView {
    /// Newest first, without what has expired.
    pub list: Vec<Kept>,
    /// The null version, when it is not among these.
    pub null: Option<Kept>,
    /// What has expired and is to be dropped.
    pub expired: Vec<Kept>,
    /// Whether these are all.
    pub whole: bool,
}

impl KeptView {
    pub fn find(&self, seq: u64) -> Option<&Kept> {
        let all = self.list.iter().chain(&self.null);
        all.into_iter().find(|kept| kept.seq() == seq)
    }
}

impl Core {
    /// Looks at a key's object, and takes it over if another hand wrote it.
    pub async fn look(self: &Arc<Self>, namespace: &Arc<Namespace>, named: &Named) -> Result<Seen> {
        let (seen, _) = self.look_with(namespace, named, |_| {}, 0).await?;
        Ok(seen)
    }

    /// The same, asking for more in the same look; `None` when there is no object.
    pub async fn look_with(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        more: impl FnOnce(&mut ReadOp),
        bytes: usize,
    ) -> Result<(Seen, Option<Read>)> {
        let found = self.find(namespace, named, more, bytes).await?;
        let (seen, read) = match found {
            None => (Seen::absent(0), None),
            Some((Found::Ours(seen), read)) => (seen, Some(read)),
            Some((Found::Foreign(..) | Found::Unreadable(..), _)) => {
                let seen = Box::pin(self.adopt(namespace, named, false)).await?;
                // What was read along was read before.
                (seen, None)
            }
        };
        match &seen.head {
            Some(_) => self.heads.put(namespace.id, named, seen.clone()),
            None => self.heads.forget(namespace.id, named),
        }
        Ok((seen, read))
    }

    /// What is there, as it is, and the ids of all stripes that it refers to. An object of another hand has no head.
    pub async fn look_raw(
        &self,
        namespace: &Namespace,
        named: &Named,
    ) -> Result<(Option<Seen>, HashSet<u128>)> {
        for _ in 0..LOOKS {
            let (mut seen, is_ours) = match self.find(namespace, named, |_| {}, 0).await? {
                None => return Ok((None, HashSet::new())),
                Some((Found::Ours(seen), _)) => (seen, true),
                // Whoever takes it over lets go what the record calls current, and keeps what it has besides.
                Some((Found::Foreign(seen, ..), _)) => (seen, false),
                Some((Found::Unreadable(..), _)) => return Err(malformed(&shown(&named.key))),
            };
            let Some(kept) = self.all_kept(namespace, named, &seen).await? else {
                continue;
            };
            let current = seen.head.as_ref().and_then(|head| head.current.as_ref());
            let values = kept.iter().filter_map(Kept::value).chain(current);
            let segments = values.flat_map(Value::segments);
            let referenced = segments.map(|segment| segment.id).collect();
            if !is_ours {
                seen.head = None;
            }
            return Ok((Some(seen), referenced));
        }
        Err(changing(&named.key))
    }

    /// The same, once nothing comes any more of what was sent for the object before: who sent it named a version that the object no longer
    /// has. Of an object that is not there nothing can be said for certain.
    pub async fn look_fenced(
        &self,
        namespace: &Namespace,
        named: &Named,
    ) -> Result<(Option<Seen>, HashSet<u128>)> {
        let (place, object) = namespace.object(named.space, &named.key);
        for _ in 0..LOOKS {
            let (version, time) = match self.find(namespace, named, |_| {}, 0).await? {
                None => return Ok((None, HashSet::new())),
                Some((
                    Found::Ours(seen) | Found::Foreign(seen, ..) | Found::Unreadable(seen, ..),
                    read,
                )) => (seen.version, read.stat.map(|(_, time)| time)),
            };
            let mut op = WriteOp::new(place).guard(Guard::Version(version));
            op.set_xattr(FENCE, &self.gateway.to_le_bytes());
            match self.access.write(place, &object, op, time, 0).await {
                Ok(_) => return self.look_raw(namespace, named).await,
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => {}
                Err(errno) => return Err(unwritten(errno, &shown(&named.key))),
            }
        }
        Err(changing(&named.key))
    }

    async fn find(
        &self,
        namespace: &Namespace,
        named: &Named,
        more: impl FnOnce(&mut ReadOp),
        bytes: usize,
    ) -> Result<Option<(Found, Read)>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = ReadOp::new(place);
        op.xattrs();
        op.stat();
        more(&mut op);
        let mut read = match self.access.read(place, &object, op, bytes).await {
            Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(errno) => return Err(unread(errno, &shown(&named.key))),
            Ok(read) => read,
        };
        let (record, pieces) = joined(&mut read.xattrs);
        let attribute = |wanted: &[u8]| {
            let found = read.xattrs.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| &value[..])
        };
        // One from before the number was kept is taken for this namespace's.
        let is_ours = attribute(NAMESPACE).is_none_or(|id| id == namespace.id.to_le_bytes());
        let record = record.filter(|_| is_ours);
        let head = record.as_deref().map(Head::decode).transpose();
        let is_readable = head.is_ok();
        let head = head.unwrap_or_default().map(Arc::new);
        let claim = attribute(CLAIM).and_then(|claim| claim.try_into().ok());
        let (size, time) = read.stat.unwrap_or_default();
        let ours = head
            .as_ref()
            .is_some_and(|head| head.stamp == time && head.inline_bytes() == size);
        let seen = Seen {
            version: read.version,
            head,
            pieces,
            claim: claim.map(u128::from_le_bytes),
            remembered: false,
        };
        let found = match ours {
            true => Found::Ours(seen),
            false if !is_readable => Found::Unreadable(seen, size, time),
            false => Found::Foreign(seen, size, time),
        };
        Ok(Some((found, read)))
    }

    /// Takes an object over that another hand wrote: reads it once, sums it, and gives it a record. Its data stays. With `unreadable` also
    /// one whose record nobody can read: what that let be known of stripes and older versions is lost, and frees nothing.
    pub async fn adopt(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        unreadable: bool,
    ) -> Result<Seen> {
        // Else it may be a value of the namespace that has this name now.
        self.check_there(namespace).await?;
        let is_named = !named.key.contains(&0) && named.space == Space::Objects;
        for _ in 0..LOOKS {
            let found = self.find(namespace, named, |_| {}, 0).await?;
            let (seen, size, time) = match found.map(|(found, _)| found) {
                None => return Ok(Seen::absent(0)),
                Some(Found::Ours(seen)) => return Ok(seen),
                Some(Found::Foreign(seen, size, time)) if is_named || unreadable => {
                    (seen, size, time)
                }
                Some(Found::Unreadable(seen, size, time)) if unreadable => (seen, size, time),
                Some(Found::Foreign(..) | Found::Unreadable(..)) => {
                    return Err(malformed(&shown(&named.key)));
                }
            };
            let Some(value) = self
                .sum_foreign(namespace, named, &seen, size, time)
                .await?
            else {
                continue;
            };
            let adopted = self.change_adopted(namespace, named, &seen, value).await?;
            if let Some(adopted) = adopted {
                return Ok(adopted);
            }
        }
        Err(changing(&named.key))
    }

    /// The value that a foreign object is; `None` when it changed meanwhile.
    async fn sum_foreign(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        size: u64,
        time: i64,
    ) -> Result<Option<Value>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let mut sums = crate::sums::Sums::default();
        let mut offset = 0;
        while offset < size {
            let len = (size - offset).min(forebay_mem::BLOCK_MAX_BYTES as u64);
            let buf = self.one_more(len as usize).await;
            let mut op = ReadOp::new(place);
            op.assert_version(seen.version);
            op.read(offset, buf);
            let read = match self.access.read(place, &object, op, len as usize).await {
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => return Ok(None),
                Err(errno) => return Err(unread(errno, &shown(&named.key))),
                Ok(read) => read,
            };
            let Some(buf) = read.data.first().filter(|buf| !buf.is_empty()) else {
                return Ok(None);
            };
            let len = (buf.len() as u64).min(size - offset);
            sums.update(&buf[..len as usize]);
            offset += len;
        }
        let last = seen.head.as_ref().map_or(0, |head| head.last_seq);
        let taken = seen
            .head
            .as_ref()
            .is_some_and(|head| head.kept_null.is_some());
        let crc64nvme = sums.crc64nvme();
        let config = &namespace.info().config;
        Ok(Some(Value {
            seq: self.fresh(last).0,
            null: config.versioning == Versioning::Off || !taken,
            size,
            crc64nvme,
            modified: u64::try_from(time).unwrap_or(0).saturating_mul(1000),
            expires: config.expires(named.space, self.now(), None),
            etag: forebay_store::Etag::of_value(crc64nvme, size),
            attributes: forebay_store::Attributes::EMPTY,
            layout: crate::record::Layout::Inline(sums.into_blocks()),
        }))
    }

    /// The key of an object that is not named by it.
    pub async fn key_of(
        &self,
        place: &Arc<crate::sys::Place>,
        object: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let mut op = ReadOp::new(place);
        op.xattrs();
        let mut read = match self.access.read(place, object, op, 0).await {
            Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(errno) => return Err(unread(errno, &shown(object))),
            Ok(read) => read,
        };
        let (record, _) = joined(&mut read.xattrs);
        let head = record.and_then(|record| Head::decode(&record).ok());
        Ok(head.and_then(|head| head.key))
    }

    /// All kept versions of a head that was seen, newest first; `None` when the object has changed since. What is current and what is
    /// kept change places: only of one moment they are all that there is.
    pub async fn all_kept(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
    ) -> Result<Option<Vec<Kept>>> {
        if seen.head.as_ref().is_none_or(|head| head.kept == 0) {
            return Ok(Some(Vec::new()));
        }
        let Some(pairs) = self.kept_pairs(namespace, named, seen).await? else {
            return Ok(None);
        };
        let decoded = pairs.iter().map(|(_, value)| Kept::decode(value));
        let all: std::result::Result<Vec<Kept>, _> = decoded.collect();
        all.map(Some).map_err(|_| malformed(&shown(&named.key)))
    }

    /// The names and records of kept versions, whatever the head says.
    pub async fn kept_pairs(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
    ) -> Result<Option<Pairs>> {
        let mut all = Pairs::new();
        let (place, object) = namespace.object(named.space, &named.key);
        let mut after = Vec::new();
        loop {
            let mut op = ReadOp::new(place);
            op.assert_version(seen.version);
            op.omap(&after, b"v", KEPT_PAGE);
            let read = match self.access.read(place, &object, op, 0).await {
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => return Ok(None),
                Err(errno) => return Err(unread(errno, &shown(&named.key))),
                Ok(read) => read,
            };
            let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
            let last = pairs.last().map(|(name, _)| name.to_vec());
            all.extend(pairs);
            match last.filter(|_| more) {
                Some(last) => after = last,
                None => return Ok(Some(all)),
            }
        }
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
            return Ok(Some(KeptView {
                whole: true,
                ..KeptView::default()
            }));
        };
        let whole =
            head.expires_next.is_some_and(|at| at <= now) || u64::from(head.kept) <= KEPT_NEWEST;
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = ReadOp::new(place);
        op.assert_version(seen.version);
        op.omap(b"", b"v", if whole { KEPT_PAGE } else { KEPT_NEWEST });
        let wanted = head.kept_null.into_iter().chain(also).map(Kept::name);
        let wanted: Vec<Vec<u8>> = wanted.collect();
        op.omap_keys(wanted.iter().map(Vec::as_slice));
        let read = match self.access.read(place, &object, op, 0).await {
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => return Ok(None),
            Err(errno) => return Err(unread(errno, &shown(&named.key))),
            Ok(read) => read,
        };
        let decode = |value: &Bytes| Kept::decode(value).map_err(|_| malformed(&shown(&named.key)));
        let mut view = KeptView {
            whole,
            ..KeptView::default()
        };
        let mut found = Vec::new();
        let mut looks = read.omap.into_iter();
        let (newest, more) = looks.next().unwrap_or_default();
        if whole && more {
            match self.all_kept(namespace, named, seen).await? {
                Some(all) => found = all,
                None => return Ok(None),
            }
        } else {
            for (_, value) in &newest {
                found.push(decode(value)?);
            }
        }
        for (_, value) in looks.next().unwrap_or_default().0 {
            let kept = decode(&value)?;
            if found.iter().all(|other| other.seq() != kept.seq()) {
                view.null = Some(kept.clone());
                // `also` may be asked for: it is found by its number all the same.
                if Some(kept.seq()) != head.kept_null {
                    view.null = None;
                    found.push(kept);
                }
            }
        }
        found.sort_by_key(|kept| std::cmp::Reverse(kept.seq()));
        (view.expired, view.list) = found.into_iter().partition(|kept| kept.is_expired(now));
        Ok(Some(view))
    }

    /// Keys whose changes the index may not know yet.
    pub async fn pending(&self, namespace: &Namespace) -> Result<BTreeSet<Named>> {
        let mut keys = BTreeSet::new();
        let mut compositions = Vec::new();
        let mut broken = false;
        let journal = namespace.journal.object();
        let each = |name: Bytes, value: Bytes| match Pending::decode(&value) {
            Ok(pending) => {
                if pending.composes
                    && let Some(number) = names::numbered(&name)
                {
                    compositions.push(number);
                }
                keys.insert(pending.named);
            }
            Err(_) => broken = true,
        };
        let there = self
            .keys(&namespace.index, journal, names::PENDING, each)
            .await?;
        if !there {
            return Err(self.gone(namespace));
        }
        if broken {
            return Err(malformed("a change under way"));
        }
        for number in compositions {
            for key in self.taken_by(namespace, number).await?.unwrap_or_default() {
                keys.insert(Named {
                    space: Space::Staging,
                    key,
                });
            }
        }
        Ok(keys)
    }
}

pub(crate) fn changing(key: &[u8]) -> StoreError {
    StoreError::new(
        ErrorKind::Busy,
        format!("{} is being changed all the time", shown(key)),
    )
}

/// The record in an object's attributes, and how many of them it takes.
fn joined(xattrs: &mut [(Bytes, Bytes)]) -> (Option<Vec<u8>>, usize) {
    let piece = |name: &[u8]| xattrs.iter().find(|(found, _)| found == name);
    let Some((_, first)) = piece(RECORD) else {
        return (None, 0);
    };
    let Some((len, first)) = first.split_first_chunk::<4>() else {
        return (Some(Vec::new()), 1);
    };
    let len = u32::from_le_bytes(*len) as usize;
    let mut record = first.to_vec();
    let mut pieces = 1;
    while record.len() < len
        && let Some((_, next)) = piece(&piece_name(pieces))
    {
        record.extend_from_slice(next);
        pieces += 1;
    }
    if record.len() != len {
        record.clear();
    }
    (Some(record), pieces)
}

fn piece_name(number: usize) -> Vec<u8> {
    format!("forebay.{number}").into_bytes()
}

/// Sets a record of a namespace in place of one that took `before` attributes; how many this one takes.
pub(crate) fn set_record(
    op: &mut WriteOp,
    namespace: &Namespace,
    record: &[u8],
    before: usize,
) -> usize {
    op.set_xattr(NAMESPACE, &namespace.id.to_le_bytes());
    let (first, rest) = record.split_at(record.len().min(PIECE_BYTES));
    op.set_xattr(
        RECORD,
        &[&(record.len() as u32).to_le_bytes()[..], first].concat(),
    );
    let mut pieces = 1;
    for piece in rest.chunks(PIECE_BYTES) {
        op.set_xattr(&piece_name(pieces), piece);
        pieces += 1;
    }
    for old in pieces..before {
        op.remove_xattr(&piece_name(old));
    }
    pieces
}

/// What a record in attributes is read back as, for tests and fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn record_of(mut xattrs: Vec<(Bytes, Bytes)>) -> Option<Vec<u8>> {
    joined(&mut xattrs).0
}
