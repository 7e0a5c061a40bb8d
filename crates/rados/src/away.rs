//! Bytes of a value let go, and taken back: everything else of it stays, its layout changes.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_store::limits::check_back;
use forebay_store::{Away, Meta, Result, StoreError, Stored, VersionId};
use parking_lot::Mutex;

use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::heads::Seen;
use crate::record::{Layout, Value};
use crate::stripes::Copied;
use crate::under_way::Named;
use crate::upload::Content;

/// Names that are remembered for whoever keeps the bytes; older ones are left to its own comparing.
const FORGOTTEN: usize = 64 << 10;

/// Names of bytes elsewhere to which nothing refers any more, and since when, in milliseconds since 1970.
#[derive(Default)]
pub(crate) struct Forgotten(Mutex<VecDeque<(u64, Away)>>);

impl Forgotten {
    pub fn add(&self, now: u64, names: &[Away]) {
        if names.is_empty() {
            return;
        }
        let mut all = self.0.lock();
        all.extend(names.iter().map(|away| (now, *away)));
        let most = all.len().saturating_sub(FORGOTTEN);
        all.drain(..most);
    }

    /// Takes those that were forgotten by `until`.
    fn take(&self, until: u64) -> Vec<Away> {
        let mut all = self.0.lock();
        let old = all.partition_point(|(since, _)| *since <= until);
        all.drain(..old).map(|(_, away)| away).collect()
    }
}

impl Core {
    /// See [`forebay_store::Store::forgotten`]. Somebody at another gateway may be reading the bytes: then a name is told when the grace
    /// is over.
    pub fn forgotten(&self) -> Vec<Away> {
        let grace = match self.notices.is_alone() {
            true => 0,
            false => self.config.grace.as_millis() as u64,
        };
        match self.now().checked_sub(grace) {
            Some(until) => self.forgotten.take(until),
            None => Vec::new(),
        }
    }

    /// See [`forebay_store::Store::let_go`]. Of a long object of another hand the bytes go to stripes first, which whoever reads it finds, and go
    /// from there when this is asked for again.
    pub async fn let_go(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        seen: &Meta,
        away: Away,
    ) -> Result<()> {
        if seen.size > u64::from(self.config.object_bytes) {
            let spread = Spread {
                core: self,
                namespace,
                named,
                seen,
                copy: None,
            };
            let (was_spread, _) = self.change(namespace, named, false, spread).await?;
            if was_spread {
                return Err(StoreError::moved());
            }
        }
        let let_go = Relocate {
            core: self,
            namespace,
            named,
            version: Some(seen.version),
            is: Is::Seen(seen),
            content: Content::away(seen, away),
            intents: Vec::new(),
            // Whoever takes this gateway for dead may take the copy for nobody's, too.
            life: Some(self.pulse.life()),
        };
        self.change(namespace, named, false, let_go).await.map(drop)
    }

    /// The last step of taking bytes back: they are the value's, and it is still away as `away`.
    #[expect(clippy::too_many_arguments, reason = "everything that a commit knows")]
    pub async fn take_back(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
        away: Away,
        content: Content,
        intents: Vec<u128>,
        life: Option<u64>,
    ) -> Result<Stored> {
        let take_back = Relocate {
            core: self,
            namespace,
            named,
            version,
            is: Is::Away(away),
            content,
            intents,
            life,
        };
        let (meta, _) = self.change(namespace, named, false, take_back).await?;
        Ok(Stored {
            meta,
            replaced: true,
        })
    }
}

/// A value being moved to stripes that is one long object.
struct Spread<'s> {
    core: &'s Arc<Core>,
    namespace: &'s Arc<Namespace>,
    named: &'s Named,
    seen: &'s Meta,
    copy: Option<Copied>,
}

impl Decide for Spread<'_> {
    /// Whether it was one.
    type Answer = bool;

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<bool>> {
        let (core, namespace, named) = (self.core, self.namespace, self.named);
        let found = core.rewriting(namespace, named, seen, Some(self.seen.version));
        let Some((value, mut draft)) = found.await? else {
            return Ok(Decision::Again);
        };
        value.meta().check_seen(Some(self.seen))?;
        if !matches!(value.layout, Layout::Inline(_)) {
            return Ok(Decision::Leave(false));
        }
        let moved = core.moved_out(namespace, named, seen, &value, &mut self.copy);
        let Some(segments) = moved.await? else {
            return Ok(Decision::Again);
        };
        let intents = segments.iter().map(|segment| segment.id).collect();
        draft.relocate(value, Layout::Striped(segments));
        let mut step = Step::new(draft);
        step.intents = intents;
        step.life = self.copy.as_ref().map(|copy| copy.life);
        Ok(Decision::Do(step, true))
    }
}

/// What a value must be for its bytes to be moved.
enum Is<'m> {
    /// This, with its bytes here.
    Seen(&'m Meta),
    /// Away under this name.
    Away(Away),
}

/// The bytes of a value being moved: asked again as often as the key changes meanwhile.
struct Relocate<'r> {
    core: &'r Arc<Core>,
    namespace: &'r Arc<Namespace>,
    named: &'r Named,
    version: Option<VersionId>,
    is: Is<'r>,
    content: Content,
    intents: Vec<u128>,
    /// The life of this gateway in which stripes were written, or a copy was complete.
    life: Option<u64>,
}

impl Decide for Relocate<'_> {
    type Answer = Meta;

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<Meta>> {
        let found = self
            .core
            .rewriting(self.namespace, self.named, seen, self.version);
        let Some((value, mut draft)) = found.await? else {
            return Ok(Decision::Again);
        };
        let meta = value.meta();
        match self.is {
            Is::Seen(seen) => {
                meta.check_seen(Some(seen))?;
                if value.away().is_some() {
                    return Err(StoreError::moved());
                }
            }
            Is::Away(away) => {
                if value.away() != Some(away) {
                    return Err(StoreError::moved());
                }
                check_back(&meta, self.content.size, self.content.crc64nvme)?;
            }
        }
        // It became an older version while its bytes came, which has no object of its own: they are to come once more.
        let current = draft.head.current.as_ref().map(Value::version);
        if matches!(self.content.layout, Layout::Inline(_)) && current != Some(meta.version) {
            return Err(StoreError::moved());
        }
        draft.relocate(value, self.content.layout.clone());
        let mut step = Step::new(draft);
        step.bufs = self.content.bufs.clone();
        step.intents = self.intents.clone();
        step.life = self.life;
        Ok(Decision::Do(step, meta))
    }
}
