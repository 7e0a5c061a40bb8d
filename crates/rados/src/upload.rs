//! A value arriving.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut};
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    Away, Condition, ErrorKind, Etag, Meta, Result, Seal, Space, StoreError, StoreOptions, Stored,
    Upload, Usage, VersionId, Versioning, plan_store,
};

use crate::books::Room;
use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::{condition_failed, is_unreadable, too_large, unread};
use crate::heads::Seen;
use crate::held::Holding;
use crate::keeper::Task;
use crate::names::{self, Home};
use crate::plan::{Draft, present};
use crate::record::{Head, Layout, Segment, Value};
use crate::stripes::{Copied, PIECE_BYTES, Piece, Whole};
use crate::sys::Errno;
use crate::under_way::Named;

/// Pieces on their way at once.
pub(crate) const WRITES: usize = 8;
/// A value of unknown length says that it may become so long, then twice as long, and so on.
const FIRST_INTENT_BYTES: u64 = 64 << 20;
/// Up to this length a value is sent without looking at what is there.
const GUESSED_BYTES: u64 = 64 << 10;

type Writing = Pin<Box<dyn Future<Output = std::result::Result<u64, Errno>> + Send>>;

/// A value arriving in RADOS.
pub struct RadosUpload {
    core: Arc<Core>,
    namespace: Arc<Namespace>,
    named: Named,
    options: StoreOptions,
    /// Whether the value may be the data of its key's object.
    may_be_whole: bool,
    /// The version whose bytes come back, and under which name they were away.
    back: Option<(Option<VersionId>, Away)>,
    room: Option<Room>,
    digest: Digest,
    size: u64,
    failed: bool,
    piece: Piece,
    /// Pieces of a value that may still be one object.
    held: Vec<Whole>,
    /// Buffers taken for the rest of such a value.
    spare: Vec<BufMut>,
    striping: Option<Striping>,
}

struct Striping {
    /// The life of this gateway in which it began.
    life: u64,
    segment: Segment,
    written: u64,
    writing: VecDeque<Writing>,
    _holding: Holding,
}

/// The bytes of a value, all there.
pub(crate) struct Content {
    pub size: u64,
    pub crc64nvme: u64,
    pub layout: Layout,
    pub bufs: Vec<Buf>,
}

impl Content {
    /// Of a value whose bytes are to be elsewhere.
    pub fn away(meta: &Meta, away: Away) -> Content {
        Content {
            size: meta.size,
            crc64nvme: meta.crc64nvme,
            layout: Layout::Away(away),
            bufs: Vec::new(),
        }
    }
}

impl RadosUpload {
    pub(crate) async fn begin(
        core: &Arc<Core>,
        namespace: Arc<Namespace>,
        named: Named,
        options: StoreOptions,
    ) -> Result<RadosUpload> {
        if options.size.is_some_and(|size| size > VALUE_BYTES_MAX) {
            return Err(too_large());
        }
        let bounded = core.books.is_bounded(namespace.id);
        let mut held = Usage::default();
        if bounded || options.condition != Condition::None {
            let seen = match core.look(&namespace, &named).await {
                // It is replaced whatever it is.
                Err(error) if is_unreadable(&error) && options.condition == Condition::None => {
                    Seen::absent(0)
                }
                seen => seen?,
            };
            let head = seen.head.as_deref();
            let current = head.and_then(|head| head.current(core.now()));
            if !options.condition.holds(current.map(|value| &value.etag)) {
                return Err(condition_failed());
            }
            held = replaced(&namespace, &named, head);
        }
        let mut upload = RadosUpload::new(core, namespace, named, options);
        if bounded {
            upload.reserve(options.size.unwrap_or(0), held)?;
        }
        Ok(upload)
    }

    /// For bytes that come back to a value: usage counts them already.
    pub(crate) async fn begin_back(
        core: &Arc<Core>,
        namespace: Arc<Namespace>,
        named: Named,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<RadosUpload> {
        let (value, seen) = core.known(&namespace, &named, version).await?;
        if value.away() != Some(away) {
            return Err(StoreError::moved());
        }
        let current = seen.head.as_ref().and_then(|head| head.current.as_ref());
        let is_current = current.map(Value::version) == Some(value.version());
        let options = StoreOptions {
            size: Some(value.size),
            ..StoreOptions::default()
        };
        let mut upload = RadosUpload::new(core, namespace, named, options);
        upload.may_be_whole = is_current;
        upload.back = Some((version, away));
        Ok(upload)
    }

    fn new(
        core: &Arc<Core>,
        namespace: Arc<Namespace>,
        named: Named,
        options: StoreOptions,
    ) -> RadosUpload {
        RadosUpload {
            core: core.clone(),
            namespace,
            // Parts are taken over by what they are joined to: stripes can be, a key's object cannot.
            may_be_whole: named.space == Space::Objects,
            named,
            options,
            back: None,
            room: None,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            size: 0,
            failed: false,
            piece: Piece::default(),
            held: Vec::new(),
            spare: Vec::new(),
            striping: None,
        }
    }

    /// Makes room for a value of `size` bytes in place of what takes `held`.
    fn reserve(&mut self, size: u64, held: Usage) -> Result<()> {
        let growth = Usage::of(self.named.space, size).less(held);
        let books = &self.core.books;
        books.promise(self.namespace.id, growth, &mut self.room)
    }

    /// How long a value may be to be one object, as far as is known.
    fn whole_bytes_max(&self) -> u64 {
        match self.options.size {
            _ if !self.may_be_whole => 0,
            Some(size) if size <= u64::from(self.core.config.object_bytes) => size,
            Some(_) => 0,
            None => PIECE_BYTES as u64,
        }
    }

    async fn append(&mut self, buf: Buf) -> Result<()> {
        let size = self.size + buf.len() as u64;
        match self.options.size {
            Some(declared) if size > declared => return Err(too_large()),
            None if size > VALUE_BYTES_MAX => return Err(too_large()),
            None if self.room.is_some() => {
                // What is replaced was looked at when the upload began, and is again when it ends.
                self.reserve_more(size)?;
            }
            Some(_) | None => {}
        }
        self.digest.update(&buf);
        self.size = size;
        let mut rest = buf;
        while !rest.is_empty() {
            if self.piece.room() == 0 {
                self.end_piece().await?;
            }
            let now = self.piece.room().min(rest.len());
            self.piece.push(rest.slice(0..now));
            rest = rest.slice(now..rest.len());
        }
        if self.size > self.whole_bytes_max() && self.piece.room() == 0 {
            self.end_piece().await?;
        }
        Ok(())
    }

    /// An unknown length may replace something: only what is certainly more is refused before the end.
    fn reserve_more(&mut self, size: u64) -> Result<()> {
        let seen = self.core.heads.get(self.namespace.id, &self.named);
        let held = replaced(
            &self.namespace,
            &self.named,
            seen.as_ref().and_then(|seen| seen.head.as_deref()),
        );
        self.reserve(size, held)
    }

    async fn end_piece(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.piece).finish();
        if piece.len == 0 {
            return Ok(());
        }
        self.held.push(piece);
        if self.size > self.whole_bytes_max() {
            self.stripe().await?;
        }
        Ok(())
    }

    /// Sends the pieces that are there.
    async fn stripe(&mut self) -> Result<()> {
        if self.striping.is_none() {
            let id = self.core.number();
            self.striping = Some(Striping {
                life: self.core.pulse.life(),
                _holding: self.core.held.hold(id),
                segment: Segment {
                    id,
                    len: 0,
                    stripe_bytes: self.core.config.object_bytes,
                },
                written: 0,
                writing: VecDeque::new(),
            });
        }
        for piece in std::mem::take(&mut self.held) {
            let Some(striping) = &mut self.striping else {
                break;
            };
            let end = striping.written + piece.len as u64;
            if end > striping.segment.len {
                striping.segment.len = match self.options.size {
                    Some(size) => size.max(end),
                    None => end.max(2 * striping.segment.len).max(FIRST_INTENT_BYTES),
                };
                self.core
                    .intend(&self.namespace, &self.named, striping.segment)
                    .await?;
            }
            if striping.writing.len() >= WRITES {
                striping.wait().await?;
            }
            let sent =
                self.core
                    .write_piece(&self.namespace, striping.segment, striping.written, piece);
            striping.writing.push_back(Box::pin(sent.await));
            striping.written = end;
        }
        Ok(())
    }

    /// Everything that arrived, durable if it is striped.
    async fn content(&mut self) -> Result<Content> {
        self.end_piece().await?;
        let mut content = Content {
            size: self.size,
            crc64nvme: self.digest.finalize(),
            layout: Layout::Striped(Vec::new()),
            bufs: Vec::new(),
        };
        match &mut self.striping {
            Some(striping) => {
                while !striping.writing.is_empty() {
                    striping.wait().await?;
                }
                striping.segment.len = striping.written;
                content.layout = Layout::Striped(vec![striping.segment]);
            }
            None if !self.may_be_whole => {}
            None => {
                let held = std::mem::take(&mut self.held);
                let sums = held.iter().flat_map(|piece| piece.sums.iter().copied());
                content.layout = Layout::Inline(sums.collect());
                content.bufs = held.into_iter().flat_map(|piece| piece.bufs).collect();
            }
        }
        Ok(content)
    }

    /// Stripes that nobody will need: as many as were written, which may be far fewer than were announced.
    fn give_up(&mut self) {
        if let Some(striping) = self.striping.take() {
            let written = Segment {
                len: striping.written,
                ..striping.segment
            };
            self.core
                .task(Task::Discard(self.namespace.clone(), written));
        }
    }
}

impl Striping {
    async fn wait(&mut self) -> Result<()> {
        match self.writing.pop_front() {
            None => Ok(()),
            Some(writing) => {
                let written = writing.await;
                written
                    .map(drop)
                    .map_err(|errno| unread(errno, "a part of the value"))
            }
        }
    }
}

impl Upload for RadosUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        // A value that will be one object has all its buffers from the beginning: it waits for none while it holds others.
        if self.spare.is_empty() && self.size == 0 && self.whole_bytes_max() > PIECE_BYTES as u64 {
            self.spare = self.core.gather(self.whole_bytes_max() as usize).await;
            self.spare.reverse();
        }
        match self
            .spare
            .pop_if(|buf| buf.capacity() >= len.min(BLOCK_MAX_BYTES))
        {
            Some(buf) => Ok(buf),
            None => Ok(self.core.pool.take(len.min(BLOCK_MAX_BYTES)).await),
        }
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        let appended = self.append(buf).await;
        self.failed |= appended.is_err();
        appended
    }

    fn crc64nvme(&self) -> u64 {
        self.digest.finalize()
    }

    async fn commit(mut self, seal: Seal) -> Result<Stored> {
        let is_short = self.options.size.is_some_and(|size| size != self.size);
        // Too few that come back are told from others when they are compared.
        if self.failed || is_short && self.back.is_none() {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "not all bytes of the value arrived",
            ));
        }
        self.spare.clear();
        let content = self.content().await?;
        let known = self.core.namespace(&self.namespace.info().name);
        if known.is_ok_and(|known| known.id != self.namespace.id) {
            return Err(StoreError::no_namespace(&self.namespace.info().name));
        }
        // From here on the stripes may be referred to, even if this is not waited for.
        let striping = self.striping.take();
        let life = striping.as_ref().map(|striping| striping.life);
        let intents = striping.as_ref().map(|striping| striping.segment.id);
        let intents = intents.into_iter().collect();
        let core = self.core.clone();
        let (namespace, named) = (&self.namespace, &self.named);
        let stored = match self.back {
            Some((version, away)) => {
                core.take_back(namespace, named, version, away, content, intents, life)
                    .await
            }
            None => {
                let (condition, room) = (self.options.condition, self.room.take());
                core.put(
                    namespace, named, content, seal, condition, intents, life, room,
                )
                .await
            }
        };
        if let Err(error) = &stored
            && error.kind() != ErrorKind::OutcomeUnknown
        {
            self.striping = striping;
            self.give_up();
        }
        stored
    }
}

impl Drop for RadosUpload {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Core {
    /// Makes a value current.
    #[expect(clippy::too_many_arguments, reason = "everything that a commit knows")]
    async fn put(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        content: Content,
        seal: Seal,
        condition: Condition,
        intents: Vec<u128>,
        life: Option<u64>,
        room: Option<Room>,
    ) -> Result<Stored> {
        let guess = content.size <= GUESSED_BYTES
            && matches!(condition, Condition::None | Condition::IfAbsent);
        let put = Put {
            core: self,
            namespace,
            named,
            content,
            seal,
            condition,
            intents,
            life,
            room,
            copy: None,
            freed: Usage::default(),
            composition: None,
        };
        let (replaced, after) = self.change(namespace, named, guess, put).await?;
        stored(&after, replaced)
    }
}

/// A value being made current: asked again as often as the key changes meanwhile.
pub(crate) struct Put<'p> {
    pub core: &'p Arc<Core>,
    pub namespace: &'p Arc<Namespace>,
    pub named: &'p Named,
    pub content: Content,
    pub seal: Seal,
    pub condition: Condition,
    pub intents: Vec<u128>,
    /// The life of this gateway in which its stripes were written.
    pub life: Option<u64>,
    pub room: Option<Room>,
    /// The copy of the value that is replaced.
    pub copy: Option<Copied>,
    /// What becomes free by it elsewhere.
    pub freed: Usage,
    /// The composition that it is.
    pub composition: Option<u128>,
}

impl Decide for Put<'_> {
    type Answer = bool;

    fn is_unconditional(&self) -> bool {
        self.condition == Condition::None && self.composition.is_none()
    }

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<bool>> {
        let (core, namespace, named) = (self.core, self.namespace, self.named);
        let now = core.now();
        let head = seen.head.as_deref();
        let current = head.and_then(|head| head.current(now));
        if !self.condition.holds(current.map(|value| &value.etag)) {
            return Err(condition_failed());
        }
        let Some(view) = core.kept(namespace, named, seen, None).await? else {
            return Ok(Decision::Again);
        };
        let info = namespace.info();
        let versioning = match named.space {
            Space::Objects => info.config.versioning,
            Space::Staging => Versioning::Off,
        };
        let fresh = core.fresh(head.map_or(0, |head| head.last_seq));
        let plan = plan_store(versioning, present(head, &view, now), fresh);
        let keeps = plan.contains(&forebay_store::Change::KeepCurrent);
        let inline = current.filter(|value| keeps && matches!(value.layout, Layout::Inline(_)));
        let mut moved = None;
        if let Some(value) = inline {
            moved = core
                .moved_out(namespace, named, seen, value, &mut self.copy)
                .await?;
            if moved.is_none() {
                return Ok(Decision::Again);
            }
        }
        let Content {
            size, crc64nvme, ..
        } = self.content;
        let value = Value {
            seq: fresh.0,
            null: false,
            size,
            crc64nvme,
            modified: now,
            expires: info.config.expires(named.space, now, self.seal.expires),
            etag: self
                .seal
                .etag
                .unwrap_or_else(|| Etag::of_value(crc64nvme, size)),
            attributes: self.seal.attributes.clone(),
            layout: self.content.layout.clone(),
        };
        let replaced = current.is_some();
        let old = head.cloned().unwrap_or_else(|| new_head(named));
        let before = old.usage;
        let mut draft = Draft::begin(named.space, old, view, now);
        let intents = moved.iter().flatten().map(|segment| segment.id);
        let intents = self.intents.iter().copied().chain(intents).collect();
        draft.apply(&plan, Some(value), moved, fresh, now);
        let freed = self.freed;
        let after = draft.head.usage;
        let growth = after.less(before.plus(freed));
        core.books.promise(namespace.id, growth, &mut self.room)?;
        let mut step = Step::new(draft);
        step.bufs = self.content.bufs.clone();
        step.intents = intents;
        step.room = self.room.take();
        step.composition = self.composition;
        // The earlier of both: what was written in it must still be there.
        step.life = self.life.or(self.copy.as_ref().map(|copy| copy.life));
        Ok(Decision::Do(step, replaced))
    }
}

/// The answer to a value having been made current.
pub(crate) fn stored(after: &Seen, replaced: bool) -> Result<Stored> {
    let head = after.head.as_deref();
    let meta: Option<Meta> = head.and_then(|head| head.current.as_ref()).map(Value::meta);
    let meta = meta.ok_or_else(crate::error::not_found)?;
    Ok(Stored { meta, replaced })
}

/// The record of a key that was never there.
pub(crate) fn new_head(named: &Named) -> Head {
    let is_name = names::home(named.space, &named.key) == Home::Data;
    Head::new((!is_name).then(|| named.key.clone()))
}

/// What a new value makes free.
fn replaced(namespace: &Namespace, named: &Named, head: Option<&Head>) -> Usage {
    let versioning = match named.space {
        Space::Objects => namespace.info().config.versioning,
        Space::Staging => Versioning::Off,
    };
    let Some(value) = head.and_then(|head| head.current.as_ref()) else {
        return Usage::default();
    };
    let goes = match versioning {
        Versioning::Off => true,
        Versioning::Enabled => false,
        Versioning::Suspended => value.version() == VersionId::NULL,
    };
    match goes {
        true => Usage::of(named.space, value.size),
        false => Usage::default(),
    }
}
