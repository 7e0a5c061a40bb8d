//! A value leaving.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use forebay_mem::{Buf, BufMut};
use forebay_store::{Body, ByteRange, ErrorKind, Meta, Object, Result, StoreError, VersionId};
use tokio::task::JoinHandle;

use crate::core::{Core, Namespace, Pinned};
use crate::error::{no_such_version, not_found, shown, unread};
use crate::heads::{LOOKS, Seen, changing};
use crate::pieces::{PieceAt, Pieces, WholeObject};
use crate::record::{BLOCK_BYTES, Kept, Layout, Value};
use crate::stripes::{blocks_of, checked};
use crate::sys::{Errno, ReadOp};
use crate::under_way::Named;

/// Read when nothing is known of a namespace's values.
const FIRST_BYTES: u64 = 64 << 10;
/// Pieces that are read at once.
pub(crate) const AHEAD: usize = 2;

/// The bytes of a value in RADOS.
pub struct RadosBody {
    pub(crate) ready: VecDeque<Buf>,
    pub(crate) pieces: Pieces,
    reading: Reading,
    pub(crate) core: Arc<Core>,
    pub(crate) namespace: Arc<Namespace>,
    _pinned: Option<Pinned>,
}

impl Body for RadosBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        if let Some(buf) = self.ready.pop_front() {
            return Ok(Some(buf));
        }
        self.read_ahead().await;
        if let Some(read) = self.reading.next().await {
            self.ready = read?;
        }
        Ok(self.ready.pop_front())
    }
}

/// Pieces that are being read, in order. Each by a task of its own, which goes on while a client is slow in asking for the next one: a read
/// that nobody polls would keep the room with the library that it has waited for, and send nothing.
#[derive(Default)]
struct Reading(VecDeque<JoinHandle<Result<VecDeque<Buf>>>>);

impl Reading {
    async fn next(&mut self) -> Option<Result<VecDeque<Buf>>> {
        let read = self.0.front_mut()?.await;
        self.0.pop_front();
        Some(read.unwrap_or_else(|error| Err(StoreError::new(ErrorKind::Io, error.to_string()))))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl RadosBody {
    /// Begins to read what comes next. Waits for memory only while nothing is being read: whoever has to wait holds none.
    async fn read_ahead(&mut self) {
        while self.reading.0.len() < AHEAD
            && let Some(piece) = self.pieces.front_mut()
        {
            let bufs = match self.reading.0.is_empty() {
                true => self.core.some(piece.room()).await,
                false => self.core.some_now(piece.room()),
            };
            if bufs.is_empty() {
                return;
            }
            let now = piece.split(room_of(&bufs));
            let (core, namespace) = (self.core.clone(), self.namespace.clone());
            let reading = async move { core.read_piece(&namespace, now, bufs).await };
            self.reading.0.push_back(tokio::spawn(reading));
        }
    }
}

impl Core {
    /// Retrieves: one look for values that are the data of their key's object.
    pub async fn retrieve(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<RadosBody>> {
        if version.is_none()
            && let Some(object) = self.retrieve_known(namespace, named, range).await?
        {
            return Ok(object);
        }
        for _ in 0..LOOKS {
            let ahead = match version {
                None => self.ahead(namespace, range),
                Some(_) => None,
            };
            let bufs = match &ahead {
                Some(ahead) => self.gather((ahead.end - ahead.start) as usize).await,
                None => Vec::new(),
            };
            let bytes = room_of(&bufs);
            let begin = ahead.map_or(0, |ahead| ahead.start);
            let read_ahead = |op: &mut ReadOp| op.read_all(begin, bufs);
            let (seen, read) = self.look_with(namespace, named, read_ahead, bytes).await?;
            let value = self.value(namespace, named, &seen, version).await?;
            let Some(value) = value else {
                continue;
            };
            let meta = value.meta();
            let wanted = range.resolve(meta.size).ok_or_else(|| {
                StoreError::new(
                    ErrorKind::RangeNotSatisfiable,
                    format!("the value has {} bytes", meta.size),
                )
            })?;
            if range == ByteRange::Full {
                namespace
                    .expected
                    .store(value.inline_bytes().max(1), Relaxed);
            }
            let data = read.map(|read| read.data).unwrap_or_default();
            let body = self
                .body(namespace, named, &seen, &value, wanted.clone(), begin, data)
                .await?;
            if let Some(body) = body {
                return Ok(Object {
                    meta,
                    range: wanted,
                    body,
                });
            }
        }
        Err(changing(&named.key))
    }

    /// The current value as it is remembered, and its checksums, if it is the data of its key's object and the object's version can be
    /// asserted.
    pub(crate) fn remembered<'s>(&self, seen: &'s Seen) -> Option<(&'s Value, &'s [u32])> {
        let head = seen.head.as_deref().filter(|_| seen.version > 0)?;
        let value = head.current(self.now())?;
        match &value.layout {
            Layout::Inline(sums) if value.size <= u64::from(self.config.object_bytes) => {
                Some((value, sums))
            }
            _ => None,
        }
    }

    /// The current value, if it is the data of its key's object and what is remembered of that still holds: the object's version says so in
    /// the look that reads the bytes, which then needs no record. `None` when it takes another way.
    async fn retrieve_known(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        range: ByteRange,
    ) -> Result<Option<Object<RadosBody>>> {
        let Some(seen) = self.heads.get(namespace.id, named) else {
            return Ok(None);
        };
        let Some((value, _)) = self.remembered(&seen) else {
            return Ok(None);
        };
        let wanted = range.resolve(value.size);
        // Where there is nothing to be read, nothing would say that it still holds.
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
            return Ok(None);
        };
        let read = self.body(
            namespace,
            named,
            &seen,
            value,
            wanted.clone(),
            0,
            Vec::new(),
        );
        let Some(body) = read.await? else {
            self.heads.forget(namespace.id, named);
            return Ok(None);
        };
        Ok(Some(Object {
            meta: value.meta(),
            range: wanted,
            body,
        }))
    }

    /// The bytes of one piece of a body, checked, in `bufs`, which have room for its blocks.
    async fn read_piece(
        &self,
        namespace: &Namespace,
        piece: PieceAt,
        bufs: Vec<BufMut>,
    ) -> Result<VecDeque<Buf>> {
        match piece {
            PieceAt::Stripe(segment, range) => {
                self.read_stripe(&namespace.stripes, segment, range, bufs)
                    .await
            }
            PieceAt::Inline(of, range) => self.read_inline(namespace, &of, range, bufs).await,
        }
    }

    /// Gives each buffer of a piece of a body, checked, to `each`; takes little memory at a time when there is little.
    pub async fn for_each_buf(
        &self,
        namespace: &Namespace,
        mut piece: PieceAt,
        mut each: impl FnMut(Buf) -> Result<()>,
    ) -> Result<()> {
        while piece.len() > 0 {
            let bufs = self.some(piece.room()).await;
            let now = piece.split(room_of(&bufs));
            let read = self.read_piece(namespace, now, bufs).await?;
            read.into_iter().try_for_each(&mut each)?;
        }
        Ok(())
    }

    /// What is kept of a value, and the look that found it.
    pub async fn known(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
    ) -> Result<(Value, Seen)> {
        for _ in 0..LOOKS {
            let seen = self.look(namespace, named).await?;
            if let Some(value) = self.value(namespace, named, &seen, version).await? {
                return Ok((value, seen));
            }
        }
        Err(changing(&named.key))
    }

    /// Metadata alone.
    pub async fn stat(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
    ) -> Result<Meta> {
        let (value, _) = self.known(namespace, named, version).await?;
        Ok(value.meta())
    }

    /// The current value, or one version, of what was seen; `None` when the object has changed since.
    pub async fn value(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        version: Option<VersionId>,
    ) -> Result<Option<Value>> {
        let now = self.now();
        let head = seen.head.as_deref();
        let current = head.and_then(|head| head.current(now));
        let Some(version) = version else {
            return current.cloned().map(Some).ok_or_else(|| {
                match head.and_then(|head| head.hidden_by()) {
                    Some(marker) => not_found().with_marker(marker),
                    None => self.hidden_after_expiry(head, now),
                }
            });
        };
        if let Some(current) = current.filter(|current| current.version() == version) {
            return Ok(Some(current.clone()));
        }
        let Some(head) = head else {
            return Err(no_such_version());
        };
        let seq = match version {
            VersionId::NULL => head.kept_null,
            VersionId(seq) => Some(seq).filter(|_| head.kept > 0),
        };
        let Some(seq) = seq else {
            return Err(no_such_version());
        };
        let Some(view) = self.kept(namespace, named, seen, Some(seq)).await? else {
            return Ok(None);
        };
        match view.find(seq).filter(|kept| kept.version() == version) {
            None => Err(no_such_version()),
            Some(Kept::Value(value)) => Ok(Some(value.clone())),
            Some(Kept::Marker { .. }) => Err(StoreError::new(
                ErrorKind::IsDeleteMarker,
                "the version is a delete marker",
            )
            .with_marker(version)),
        }
    }

    /// A current value that has expired is gone: a marker that is the newest of what is kept hides the rest.
    fn hidden_after_expiry(&self, head: Option<&crate::record::Head>, now: u64) -> StoreError {
        let expired = head.filter(|head| head.current.is_some() && head.current(now).is_none());
        match expired.and_then(|head| head.marker) {
            Some((_, true, _)) => not_found().with_marker(VersionId::NULL),
            Some((seq, false, _)) => not_found().with_marker(VersionId(seq)),
            None => not_found(),
        }
    }

    /// What is read along with the record, before anything is known of the value: whole blocks.
    fn ahead(&self, namespace: &Namespace, range: ByteRange) -> Option<Range<u64>> {
        let most = u64::from(self.config.object_bytes);
        let expected = match namespace.expected.load(Relaxed) {
            0 => FIRST_BYTES,
            bytes => bytes.next_power_of_two().min(most),
        };
        let (first, last) = match range {
            ByteRange::Full => (0, expected),
            ByteRange::From(first) => (first, first.checked_add(expected)?),
            ByteRange::Inclusive(first, last) => (first, last.checked_add(1)?),
            ByteRange::Suffix(_) => return None,
        };
        let begin = first / BLOCK_BYTES * BLOCK_BYTES;
        (first < last && begin < most).then(|| begin..last.min(most))
    }

    /// The body of a value that was seen; `None` when the object has changed since. `data` are bytes from `begin` on that came with it.
    #[expect(clippy::too_many_arguments, reason = "what one look gave")]
    async fn body(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        seen: &Seen,
        value: &Value,
        wanted: Range<u64>,
        begin: u64,
        data: Vec<BufMut>,
    ) -> Result<Option<RadosBody>> {
        let mut body = RadosBody {
            ready: VecDeque::new(),
            pieces: Pieces::default(),
            reading: Reading::default(),
            core: self.clone(),
            namespace: namespace.clone(),
            _pinned: None,
        };
        let sums = match &value.layout {
            Layout::Away(away) => return Err(StoreError::let_go(value.meta(), *away)),
            Layout::Striped(segments) => {
                body._pinned = Some(self.pins.pin(segments));
                body.pieces = Pieces::striped(segments, wanted, self.config.object_bytes);
                return Ok(Some(body));
            }
            Layout::Inline(_) if wanted.is_empty() => return Ok(Some(body)),
            Layout::Inline(sums) => sums,
        };
        // Only another hand writes such: it is read as it is asked for, and an error if that hand writes it again meanwhile.
        if value.size > u64::from(self.config.object_bytes) {
            let object = WholeObject {
                named: named.clone(),
                seq: value.seq,
                version: AtomicU64::new(seen.version),
                sums: sums.clone(),
                size: value.size,
                moved: OnceLock::new(),
            };
            body.pieces = Pieces::inline(object, wanted);
            return Ok(Some(body));
        }
        let Range { start: first, end } = blocks_of(&wanted, value.size);
        let (mut bufs, mut begin) = (data, begin);
        let came = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        let mut have = begin + came;
        if came == 0 || first < begin {
            bufs.clear();
            (begin, have) = (first, first);
        }
        if have < end {
            let mut rest = self.some_now((end - have) as usize);
            if (room_of(&rest) as u64) < end - have {
                // Whoever waits for buffers holds none: what came is read once more.
                drop((rest, std::mem::take(&mut bufs)));
                (begin, have) = (first, first);
                rest = self.gather((end - have) as usize).await;
            }
            let rest = self.read_rest(namespace, named, seen, have..end, rest);
            let Some(rest) = rest.await? else {
                return Ok(None);
            };
            bufs.extend(rest);
        }
        body.ready = checked(&named.key, bufs, begin..end, from(sums, begin), wanted)?;
        Ok(Some(body))
    }

    async fn read_rest(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        range: Range<u64>,
        bufs: Vec<BufMut>,
    ) -> Result<Option<Vec<BufMut>>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let len = (range.end - range.start) as usize;
        let mut op = ReadOp::new(place);
        op.assert_version(seen.version);
        op.read_all(range.start, bufs);
        match self.access.read(place, &object, op, len).await {
            Ok(read) => Ok(Some(read.data)),
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(None),
            Err(errno) => Err(unread(errno, &shown(&named.key))),
        }
    }

    async fn read_inline(
        &self,
        namespace: &Namespace,
        of: &WholeObject,
        range: Range<u64>,
        mut bufs: Vec<BufMut>,
    ) -> Result<VecDeque<Buf>> {
        let blocks = blocks_of(&range, of.size);
        let (place, object) = namespace.object(of.named.space, &of.named.key);
        let len = room_of(&bufs);
        for _ in 0..LOOKS {
            if let Some((segment, _)) = of.moved.get() {
                let read = self.read_stripe(&namespace.stripes, *segment, range, bufs);
                return read.await;
            }
            let mut op = ReadOp::new(place);
            op.assert_version(of.version.load(Relaxed));
            op.read_all(blocks.start, bufs);
            match self.access.read(place, &object, op, len).await {
                Ok(read) => {
                    let sums = from(&of.sums, blocks.start);
                    return checked(&of.named.key, read.data, blocks, sums, range);
                }
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => {}
                Err(errno) => return Err(unread(errno, &shown(&of.named.key))),
            }
            self.follow(namespace, of).await?;
            // Who waited for others here might wait for what itself holds.
            bufs = self.some_now(len);
            if room_of(&bufs) < len {
                break;
            }
        }
        Err(changing(&of.named.key))
    }

    /// Finds out where a value is that was not where it had been; an error when it is no more.
    async fn follow(&self, namespace: &Namespace, of: &WholeObject) -> Result<()> {
        let seen = self.look_raw(namespace, &of.named).await?;
        let now = seen.as_ref().and_then(|seen| {
            let value = seen.head.as_ref()?.current.as_ref()?;
            (value.seq == of.seq).then_some((seen.version, &value.layout))
        });
        match now {
            Some((version, Layout::Inline(sums))) if *sums == of.sums => {
                of.version.store(version, Relaxed);
                Ok(())
            }
            Some((_, Layout::Striped(segments))) if segments.len() == 1 => {
                let _ = of.moved.set((segments[0], self.pins.pin(segments)));
                Ok(())
            }
            _ => Err(StoreError::new(
                ErrorKind::Io,
                "the object was changed by another hand while it was read",
            )),
        }
    }
}

/// Bytes that buffers have room for.
fn room_of(bufs: &[BufMut]) -> usize {
    bufs.iter().map(BufMut::capacity).sum()
}

/// The sums of the blocks from `begin` on, of all of a value's.
fn from(sums: &[u32], begin: u64) -> &[u32] {
    sums.get((begin / BLOCK_BYTES) as usize..)
        .unwrap_or_default()
}
