//! Looking at keys' objects: records in attributes, and objects that another hand wrote.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{ErrorKind, Result, Space, StoreError, Versioning};

use crate::core::{Core, Namespace};
use crate::error::{malformed, shown, unread, unwritten};
use crate::kept::{LOOK_BYTES, Pages, decode};
use crate::names::{self, Home};
use crate::record::{Entry, Head, Value};
use crate::sys::{Errno, Guard, Read, ReadOp, WriteOp};
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

    /// The value that its record calls current.
    fn current(&self) -> Option<&Value> {
        self.head.as_ref().and_then(|head| head.current.as_ref())
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
    /// Of a namespace that had this name before, where no other hand writes.
    Former(Seen),
}

impl Found {
    /// What was seen, if its record can be read, and whether it is ours. Whoever takes over what is not lets go what the record calls
    /// current, and keeps what it has besides.
    fn readable(self, named: &Named) -> Result<(Seen, bool)> {
        match self {
            Found::Ours(seen) => Ok((seen, true)),
            Found::Foreign(seen, ..) | Found::Former(seen) => Ok((seen, false)),
            Found::Unreadable(..) => Err(malformed(&shown(&named.key))),
        }
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
            Some((Found::Foreign(..) | Found::Unreadable(..) | Found::Former(_), _)) => {
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

    /// What is there, as it is. An object of another hand has no head.
    pub async fn look_raw(&self, namespace: &Namespace, named: &Named) -> Result<Option<Seen>> {
        let (seen, _) = self.look_for(namespace, named, &HashSet::new()).await?;
        Ok(seen)
    }

    /// The same, and which of these stripes it refers to: all that it has for as long as this looks, however often it changes meanwhile. A
    /// version is current or it is kept, and that under its own number: so the record is read with each part of what is kept.
    pub async fn look_for(
        &self,
        namespace: &Namespace,
        named: &Named,
        stripes: &HashSet<u128>,
    ) -> Result<(Option<Seen>, HashSet<u128>)> {
        let mut referred = HashSet::new();
        let Some((found, _)) = self.find(namespace, named, |_| {}, 0).await? else {
            return Ok((None, referred));
        };
        let (mut seen, is_ours) = found.readable(named)?;
        let mut look_at = |value: &Value| {
            let ids = value.segments().iter().map(|segment| segment.id);
            referred.extend(ids.filter(|id| stripes.contains(id)));
        };
        seen.current().into_iter().for_each(&mut look_at);
        let mut pages = Pages::after(Vec::new());
        pages.more = !stripes.is_empty() && seen.head.as_ref().is_some_and(|head| head.kept > 0);
        while pages.more {
            let page = |op: &mut ReadOp| pages.ask(op);
            let Some((found, read)) = self.find(namespace, named, page, LOOK_BYTES).await? else {
                break;
            };
            let (now, _) = found.readable(named)?;
            now.current().into_iter().for_each(&mut look_at);
            for (_, kept) in pages.pass(read) {
                decode(named, &kept)?
                    .value()
                    .into_iter()
                    .for_each(&mut look_at);
            }
        }
        if !is_ours {
            seen.head = None;
        }
        Ok((Some(seen), referred))
    }

    /// Once this is done nothing comes any more of what was sent for the object before: who sent it named a version that the object no longer
    /// has. Of an object that is not there nothing can be said for certain.
    pub async fn fence(&self, namespace: &Namespace, named: &Named) -> Result<()> {
        let (place, object) = namespace.object(named.space, &named.key);
        for _ in 0..LOOKS {
            let (version, time) = match self.find(namespace, named, |_| {}, 0).await? {
                None => return Ok(()),
                Some((
                    Found::Ours(seen)
                    | Found::Foreign(seen, ..)
                    | Found::Unreadable(seen, ..)
                    | Found::Former(seen),
                    read,
                )) => (seen.version, read.stat.map(|(_, time)| time)),
            };
            let mut op = WriteOp::new(place).guard(Guard::Version(version));
            op.set_xattr(FENCE, &self.gateway.to_le_bytes());
            match self.access.write(place, &object, op, time, 0).await {
                Ok(_) => return Ok(()),
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
        let is_key = names::home(named.space, &named.key) == Home::Data;
        let found = match ours {
            true => Found::Ours(seen),
            false if !is_ours && !is_key => Found::Former(seen),
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
        let is_key = names::home(named.space, &named.key) == Home::Data;
        for _ in 0..LOOKS {
            let found = self.find(namespace, named, |_| {}, 0).await?;
            let (seen, size, time) = match found.map(|(found, _)| found) {
                None => return Ok(Seen::absent(0)),
                Some(Found::Ours(seen)) => return Ok(seen),
                Some(Found::Former(seen)) => {
                    // It was not of a later one: this one is still there.
                    self.check_there(namespace).await?;
                    self.remove_former(namespace, named, seen.version).await?;
                    continue;
                }
                Some(Found::Foreign(seen, size, time)) if is_key || unreadable => {
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

    /// Removes what came for a namespace that is gone, if it is still that.
    async fn remove_former(
        &self,
        namespace: &Namespace,
        named: &Named,
        version: u64,
    ) -> Result<()> {
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = WriteOp::new(place).guard(Guard::Version(version));
        op.remove();
        match self.access.write(place, &object, op, None, 0).await {
            Ok(_) | Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(()),
            Err(errno) => Err(unwritten(errno, &shown(&named.key))),
        }
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

    /// The key of an object that is not named by it; `None` when there is none, or it is another hand's.
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
        let Some(record) = joined(&mut read.xattrs).0 else {
            return Ok(None);
        };
        let key = Head::decode(&record).ok().and_then(|head| head.key);
        key.map(Some).ok_or_else(|| malformed(&shown(object)))
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
