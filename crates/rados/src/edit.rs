//! Changes of a key that bring no bytes: deleting, and other attributes.

use std::sync::Arc;

use forebay_store::{
    Attributes, Change, Condition, DeleteOptions, Deleted, Meta, Plan, Present, Result, Space,
    Usage, VersionId, Versioning, answer_delete, growth_of_delete, plan_delete,
};

use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::condition_failed;
use crate::heads::Seen;
use crate::kept::KeptView;
use crate::plan::{Draft, present};
use crate::record::{Layout, Value};
use crate::stripes::Copied;
use crate::under_way::Named;
use crate::upload::new_head;

impl Core {
    /// See [`forebay_store::Store::delete`].
    pub async fn delete(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        let delete = Delete {
            core: self,
            namespace,
            named,
            options,
            copy: None,
        };
        let deleted = self.change(namespace, named, false, delete).await;
        deleted.map(|(deleted, _)| deleted)
    }

    /// See [`forebay_store::Store::amend`].
    pub async fn amend(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        let amend = Amend {
            core: self,
            namespace,
            named,
            version,
            seen,
            attributes,
        };
        let amended = self.change(namespace, named, false, amend).await;
        amended.map(|(meta, _)| meta)
    }
}

struct Delete<'d> {
    core: &'d Arc<Core>,
    namespace: &'d Arc<Namespace>,
    named: &'d Named,
    options: DeleteOptions,
    /// The copy of the value that is kept.
    copy: Option<Copied>,
}

impl Decide for Delete<'_> {
    type Answer = Deleted;

    fn is_unconditional(&self) -> bool {
        self.options.version.is_none() && self.options.condition == Condition::None
    }

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<Deleted>> {
        let (core, namespace, named) = (self.core, self.namespace, self.named);
        let DeleteOptions { version, condition } = self.options;
        let now = core.now();
        let head = seen.head.as_deref();
        let current = head.and_then(|head| head.current(now));
        if !condition.holds(current.map(|value| &value.etag)) {
            return Err(condition_failed());
        }
        let also = version.filter(|version| *version != VersionId::NULL);
        let also = also.map(|version| version.0);
        let Some(view) = core.kept(namespace, named, seen, also).await? else {
            return Ok(Decision::Again);
        };
        let versioning = match named.space {
            Space::Objects => namespace.info().config.versioning,
            Space::Staging => Versioning::Off,
        };
        let fresh = core.fresh(head.map_or(0, |head| head.last_seq));
        let there = present(head, &view, now);
        let mut plan = plan_delete(versioning, there, version, fresh);
        let answer = answer(&view, there, version, &plan);
        if version.is_some() && !answer.existed {
            plan.clear();
        }
        if plan.is_empty() {
            return Ok(Decision::Leave(answer));
        }
        let keeps = plan.contains(&Change::KeepCurrent);
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
        let intents = moved.iter().flatten().map(|segment| segment.id).collect();
        let old = head.cloned().unwrap_or_else(|| new_head(named));
        let mut draft = Draft::begin(named.space, old, view, now);
        draft.apply(&plan, None, moved, fresh, now);
        let growth = growth_of_delete(&plan);
        let mut room = None;
        if growth != Usage::default() {
            core.books.promise(namespace.id, growth, &mut room)?;
        }
        let mut step = Step::new(draft);
        step.room = room;
        step.intents = intents;
        step.life = self.copy.as_ref().map(|copy| copy.life);
        Ok(Decision::Do(step, answer))
    }
}

/// What a caller is told of a delete that goes by a plan.
fn answer(view: &KeptView, there: Present, version: Option<VersionId>, plan: &Plan) -> Deleted {
    let marker = version.and_then(|version| {
        let mut all = view.list.iter().chain(&view.null);
        let kept = all.find(|kept| kept.version() == version)?;
        Some(kept.is_marker())
    });
    answer_delete(there, version, plan, marker)
}

struct Amend<'a> {
    core: &'a Arc<Core>,
    namespace: &'a Arc<Namespace>,
    named: &'a Named,
    version: Option<VersionId>,
    seen: Option<&'a Meta>,
    attributes: Attributes,
}

impl Decide for Amend<'_> {
    type Answer = Meta;

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<Meta>> {
        let (core, namespace, named) = (self.core, self.namespace, self.named);
        let found = core.rewriting(namespace, named, seen, self.version);
        let Some((mut value, mut draft)) = found.await? else {
            return Ok(Decision::Again);
        };
        value.meta().check_seen(self.seen)?;
        value.attributes = self.attributes.clone();
        let meta = value.meta();
        draft.rewrite(value);
        Ok(Decision::Do(Step::new(draft), meta))
    }
}

impl Core {
    /// One value of a key, and a change of it alone to begin with; `None` when the object has changed since it was seen.
    pub async fn rewriting(
        &self,
        namespace: &Namespace,
        named: &Named,
        seen: &Seen,
        version: Option<VersionId>,
    ) -> Result<Option<(Value, Draft)>> {
        let Some(value) = self.value(namespace, named, seen, version).await? else {
            return Ok(None);
        };
        let Some(head) = seen.head.as_deref() else {
            return Ok(None);
        };
        let Some(view) = self.kept(namespace, named, seen, None).await? else {
            return Ok(None);
        };
        let now = self.now();
        let draft = Draft::begin(named.space, head.clone(), view, now);
        // It may have ended since it was looked for: then it is dropped by this change, and looked for once more.
        Ok((!value.is_expired(now)).then_some((value, draft)))
    }
}
