//! Changing a key: an entry in the journal, one operation on its object, and later the index (`docs/rados.md` section 4).

use std::sync::Arc;

use forebay_mem::{Buf, CopySite, count_copy};
use forebay_store::{Result, Space, StoreError, Usage};
use futures_util::future::join;

use crate::books::Room;
use crate::core::{Core, Namespace};
use crate::error::{is_certain, is_unreadable, shown, unknown, unread, unwritten};
use crate::heads::{CLAIM, LOOKS, Seen, changing, set_record};
use crate::index::Settle;
use crate::names;
use crate::plan::{Data, Draft};
use crate::pulse::swept;
use crate::record::{Head, Kept, Segment, Value};
use crate::sys::{Errno, Guard, WriteOp};
use crate::under_way::{Named, Pending, Sum};
use crate::upload::new_head;

/// What a caller decides about a key that was seen.
pub(crate) enum Decision<T> {
    /// There is nothing to do.
    Leave(T),
    /// The object has changed since parts of it were looked at.
    Again,
    /// This is to be done.
    Do(Box<Step>, T),
}

/// Who decides about a key: asked again as often as the key changes meanwhile.
pub(crate) trait Decide: Send {
    /// What the caller is told in the end.
    type Answer: Send;

    /// Whether it replaces or removes what is there whatever that is, also what nobody can read.
    fn is_unconditional(&self) -> bool {
        false
    }

    /// What is to be done with what was seen.
    fn decide(
        &mut self,
        seen: &Seen,
    ) -> impl Future<Output = Result<Decision<Self::Answer>>> + Send;
}

/// A change that was decided.
pub(crate) struct Step {
    pub draft: Draft,
    /// The data, when the draft writes it.
    pub bufs: Vec<Buf>,
    /// Values that are no longer under way when this has happened.
    pub intents: Vec<u128>,
    /// Room for what grows.
    pub room: Option<Room>,
    /// The composition that this is.
    pub composition: Option<u128>,
    /// The life of this gateway in which stripes of the value were written: in another they may have been swept.
    pub life: Option<u64>,
}

impl Step {
    pub fn new(mut draft: Draft) -> Box<Step> {
        draft.spare_what_stays();
        Box::new(Step {
            draft,
            bufs: Vec::new(),
            intents: Vec::new(),
            room: None,
            composition: None,
            life: None,
        })
    }
}

/// An entry of the journal, until the index knows what became of the change: dropping it unfinished lets the keeper find out.
pub(crate) struct Marked {
    core: Arc<Core>,
    namespace: Arc<Namespace>,
    named: Named,
    pub number: u128,
    /// What the journal says is let go, and in which life of this gateway; `None`: nothing was entered yet.
    entered: Option<(Vec<Segment>, u64)>,
    /// Whether the change was sent, and may have happened.
    sent: bool,
    /// Whether it is a composition: who composes ends the entry, when the sources are gone too.
    composes: bool,
    done: bool,
}

impl Marked {
    fn new(core: &Arc<Core>, namespace: &Arc<Namespace>, named: &Named, number: u128) -> Marked {
        Marked {
            core: core.clone(),
            namespace: namespace.clone(),
            named: named.clone(),
            number,
            entered: None,
            sent: false,
            composes: false,
            done: false,
        }
    }

    async fn enter(&mut self, freed: &[Segment], composes: bool) -> std::result::Result<(), Errno> {
        let life = self.core.pulse.life();
        if self
            .entered
            .as_ref()
            .is_some_and(|(entered, then)| entered == freed && *then == life)
        {
            return Ok(());
        }
        // Who swept an earlier life may only now remove the entry that it found.
        if self.entered.as_ref().is_some_and(|(_, then)| *then != life) && !composes {
            let old = std::mem::replace(&mut self.number, self.core.number());
            let old = names::pending(old);
            self.namespace.journal.later(Vec::new(), [old]);
        }
        let pending = Pending {
            named: self.named.clone(),
            composes,
            freed: freed.to_vec(),
        };
        self.composes = composes;
        self.entered = Some((freed.to_vec(), life));
        let entry = (names::pending(self.number), pending.encode());
        let entered = self.namespace.journal.enter(vec![entry]);
        self.core.access.in_time(entered).await
    }

    fn life(&self) -> u64 {
        self.entered.as_ref().map_or(0, |(_, life)| *life)
    }

    /// The entry, if it ends with the change.
    fn ended(&self) -> Option<Vec<u8>> {
        (!self.composes).then(|| names::pending(self.number))
    }

    /// Nothing has happened.
    pub fn cancel(mut self) {
        self.done = true;
        if self.entered.is_some() {
            self.namespace.journal.later(Vec::new(), self.ended());
            self.core.enter_soon(&self.namespace);
        }
    }

    /// It happened, or may have: the index is to look.
    fn find_out(&mut self, unsure: bool) {
        self.done = true;
        let Some((mut freed, _)) = self.entered.take() else {
            return;
        };
        if !self.sent {
            freed.clear();
        }
        let settle = Settle {
            named: self.named.clone(),
            before: None,
            after: None,
            ended: self.ended().into_iter().collect(),
            freed: freed.into_iter().collect(),
            unsure,
            counted: Sum::default(),
        };
        let entry = names::entry(self.named.space, &self.named.key);
        self.namespace.shard(&entry).settle(settle);
        self.core.enter_soon(&self.namespace);
    }

    /// It happened: `before` became `after`.
    fn finish(
        mut self,
        before: &Seen,
        after: &Seen,
        step: &Step,
        freed: Vec<Segment>,
        counted: Sum,
    ) {
        self.done = true;
        let intents = step.intents.iter().map(|id| names::intent(*id));
        let settle = Settle {
            named: self.named.clone(),
            before: before.entry(),
            after: after.entry(),
            ended: intents.chain(self.ended()).collect(),
            freed: freed.into_iter().collect(),
            unsure: false,
            counted,
        };
        let entry = names::entry(self.named.space, &self.named.key);
        self.namespace.shard(&entry).settle(settle);
        self.core.enter_soon(&self.namespace);
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        if !self.done {
            self.find_out(true);
            self.core.heads.forget(self.namespace.id, &self.named);
        }
    }
}

impl Core {
    /// Changes a key as `decide` says, which is asked again when the object has changed meanwhile. With `guess`, what is not remembered is
    /// taken for absent at first. Returns what `decide` said, and what there is now.
    pub async fn change<D: Decide>(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        guess: bool,
        mut decide: D,
    ) -> Result<(D::Answer, Seen)> {
        let entry = names::entry(named.space, &named.key);
        let shard = namespace.shard(&entry);
        shard.has_room(&entry, self.config.patience).await?;
        let _only = self.lock(namespace.id, named).await;
        // What a composition has a hand on is looked at, and waited for.
        let free = |seen: &Seen| {
            let composition = seen.head.as_ref().and_then(|head| head.composition);
            seen.claim.is_none() && composition.is_none()
        };
        let mut seen = match self.heads.get(namespace.id, named) {
            Some(seen) if free(&seen) => Some(Seen {
                remembered: true,
                ..seen
            }),
            Some(_) => None,
            None if guess => Some(Seen {
                remembered: true,
                ..Seen::absent(0)
            }),
            None => None,
        };
        let mut marked: Option<Marked> = None;
        let mut was_changed = false;
        for _ in 0..LOOKS {
            let now = match seen.take() {
                Some(seen) => seen,
                None => match self.look_free(namespace, named).await {
                    Err(error) if is_unreadable(&error) && decide.is_unconditional() => {
                        self.adopt(namespace, named, true).await?;
                        continue;
                    }
                    seen => seen?,
                },
            };
            let (step, answer) = match decide.decide(&now).await {
                // What was only remembered says nothing for certain.
                Err(_) | Ok(Decision::Leave(_)) if now.remembered => continue,
                Err(error) => {
                    if let Some(marked) = marked {
                        marked.cancel();
                    }
                    return Err(error);
                }
                Ok(Decision::Leave(answer)) => {
                    if let Some(marked) = marked {
                        marked.cancel();
                    }
                    return Ok((answer, now));
                }
                Ok(Decision::Again) => {
                    self.heads.forget(namespace.id, named);
                    continue;
                }
                Ok(Decision::Do(step, answer)) => (step, answer),
            };
            let number = step.composition;
            if number.is_some() && now.head.is_none() {
                // Once the composition is undone, nothing of it may come.
                seen = self.make_way(namespace, named).await?;
                continue;
            }
            let mut mark = match marked.take() {
                Some(mark) => mark,
                None => {
                    let number = number.unwrap_or_else(|| self.number());
                    Marked::new(self, namespace, named, number)
                }
            };
            // Who changed it meanwhile may have been one who took this gateway for dead, and stripes that came may have gone since.
            let must_prove = was_changed || step.life.is_some();
            let proving = async {
                match must_prove {
                    true => self.prove_alive().await,
                    false => Ok(()),
                }
            };
            let entering = mark.enter(&step.draft.freed, number.is_some());
            let (entered, proved) = join(entering, proving).await;
            let entered = entered.map_err(|errno| self.not_entered(namespace, errno));
            if let Err(error) = entered.and(proved) {
                mark.cancel();
                return Err(error);
            }
            // Between the entry and the change nobody may have swept it.
            if !self.pulse.is_alive_since(mark.life()) {
                if let Err(error) = self.pulse.wait(self.config.patience).await {
                    mark.cancel();
                    return Err(error);
                }
                marked = Some(mark);
                seen = Some(now);
                continue;
            }
            if step.life.is_some_and(|life| life != self.pulse.life()) {
                mark.cancel();
                return Err(swept());
            }
            match self.carry_out(namespace, named, &now, *step, mark).await {
                Carried::Done(after) => return Ok((answer, after)),
                Carried::Changed(mark) => {
                    self.heads.forget(namespace.id, named);
                    marked = Some(mark);
                    was_changed = true;
                }
                Carried::Failed(error) => return Err(error),
            }
        }
        Err(changing(&named.key))
    }

    /// Looks at a key that no composition has a hand on.
    async fn look_free(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
    ) -> Result<Seen> {
        let mut waited = std::time::Duration::from_millis(1);
        loop {
            let seen = self.look(namespace, named).await?;
            if !self.is_taken(namespace, &seen).await? {
                return Ok(seen);
            }
            if waited > self.config.patience {
                return Err(changing(&named.key));
            }
            tokio::time::sleep(waited).await;
            waited *= 2;
        }
    }

    /// Whether a composition that is not over has a hand on what was seen.
    pub async fn is_taken(&self, namespace: &Namespace, seen: &Seen) -> Result<bool> {
        let made_by = seen.head.as_ref().and_then(|head| head.composition);
        match seen.claim.or(made_by) {
            Some(number) => Ok(self.taken_by(namespace, number).await?.is_some()),
            None => Ok(false),
        }
    }

    async fn carry_out(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        seen: &Seen,
        mut step: Step,
        mut mark: Marked,
    ) -> Carried {
        let (place, object) = namespace.object(named.space, &named.key);
        let guard = match &seen.head {
            Some(_) => Guard::Version(seen.version),
            None => Guard::Absent,
        };
        let mut op = WriteOp::new(place).guard(guard);
        let stamp = self.seconds();
        let before = seen
            .head
            .as_ref()
            .map(|head| head.usage)
            .unwrap_or_default();
        let head = step.draft.finish().map(|head| Head {
            stamp,
            composition: step.composition,
            ..head
        });
        let bytes: usize = step.bufs.iter().map(|buf| buf.len()).sum();
        let mut pieces = 0;
        match &head {
            None => op.remove(),
            Some(head) => {
                match step.draft.data {
                    Data::Keep => {}
                    Data::Clear => op.clear(),
                    Data::Write => write_all(&mut op, &step.bufs),
                }
                pieces = set_record(&mut op, namespace, &head.encode(), seen.pieces);
                if seen.claim.is_some() {
                    op.remove_xattr(CLAIM);
                }
                let put = step.draft.put.iter();
                let put: Vec<_> = put
                    .filter(|kept| !step.draft.removed.contains(&kept.seq()))
                    .map(|kept| (Kept::name(kept.seq()), kept.encode()))
                    .collect();
                let removed: Vec<_> = step
                    .draft
                    .removed
                    .iter()
                    .map(|seq| Kept::name(*seq))
                    .collect();
                op.omap_remove(removed.iter().map(Vec::as_slice));
                op.omap_set(put.iter().map(|(name, value)| (&name[..], &value[..])));
            }
        }
        step.bufs.clear();
        let life = mark.life();
        let is_alive = || self.pulse.is_alive_since(life);
        mark.sent = true;
        let done = self
            .access
            .write_if(is_alive, place, &object, op, Some(stamp), bytes)
            .await;
        let Some(done) = done else {
            mark.sent = false;
            return Carried::Changed(mark);
        };
        let version = match done {
            Ok(version) => version,
            Err(Errno(libc::EEXIST | libc::ERANGE | libc::EOVERFLOW | libc::ENOENT)) => {
                mark.sent = false;
                return Carried::Changed(mark);
            }
            Err(errno) => {
                self.heads.forget(namespace.id, named);
                if is_certain(errno) {
                    mark.cancel();
                }
                return Carried::Failed(unwritten(errno, &shown(&named.key)));
            }
        };
        // What creates a key is not refused when it comes late: its stripes may have gone before it came.
        if seen.head.is_none()
            && step.life.is_some()
            && (self.prove_alive().await.is_err() || self.pulse.life() != life)
        {
            self.heads.forget(namespace.id, named);
            return Carried::Failed(unknown(swept()));
        }
        let after = Seen {
            version,
            pieces,
            claim: None,
            remembered: false,
            head: head.map(Arc::new),
        };
        let now = after
            .head
            .as_ref()
            .map(|head| head.usage)
            .unwrap_or_default();
        let counted = Sum::between(before, now);
        self.books
            .fulfilled(namespace.id, counted, step.room.take());
        match after.head {
            Some(_) => self.heads.put(namespace.id, named, after.clone()),
            None => self.heads.forget(namespace.id, named),
        }
        self.forgotten.add(self.now(), &step.draft.forgotten);
        let freed = std::mem::take(&mut step.draft.freed);
        mark.finish(seen, &after, &step, freed, counted);
        if named.space == Space::Objects {
            self.notices.changed(&namespace.info().name, &named.key);
        }
        Carried::Done(after)
    }

    /// Why the journal did not take an entry.
    pub fn not_entered(&self, namespace: &Namespace, errno: Errno) -> StoreError {
        match errno {
            Errno(libc::ENOENT) => self.gone(namespace),
            errno => unread(errno, "the journal"),
        }
    }

    /// Gives a foreign object the record of `value`; `None` when it changed meanwhile.
    pub async fn change_adopted(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
        seen: &Seen,
        value: Value,
    ) -> Result<Option<Seen>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let old = seen.head.as_deref().cloned();
        let unled = match &old {
            Some(_) => Vec::new(),
            // The new head counts none of them: one that is taken from its count later would let those kept since go for none.
            None => match self.kept_names(namespace, named, seen).await? {
                Some(names) => names,
                None => return Ok(None),
            },
        };
        let mut head = old.unwrap_or_else(|| new_head(named));
        let (freed, forgotten) = match head.current.take() {
            Some(value) => {
                head.usage = head.usage.less(Usage::of(named.space, value.size));
                (value.segments().to_vec(), value.away())
            }
            None => (Vec::new(), None),
        };
        head.usage = head.usage.plus(Usage::of(named.space, value.size));
        head.last_seq = value.seq;
        // Of what it replaces the time may stay: whoever finds nothing then corrects it.
        let expires = head.expires_next.into_iter().chain(value.expires);
        head.expires_next = expires.min();
        head.stamp = self.seconds();
        head.composition = None;
        head.current = Some(value);
        let mut mark = Marked::new(self, namespace, named, self.number());
        if let Err(errno) = mark.enter(&freed, false).await {
            mark.cancel();
            return Err(self.not_entered(namespace, errno));
        }
        let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
        let pieces = set_record(&mut op, namespace, &head.encode(), seen.pieces);
        // Another hand's keys beside its data are its own.
        let ours = Kept::name(0).len();
        let unled = unled.iter().map(|name| &name[..]);
        op.omap_remove(unled.filter(|name| name.len() == ours));
        mark.sent = true;
        let done = self
            .access
            .write(place, &object, op, Some(head.stamp), 0)
            .await;
        match done {
            Ok(version) => {
                mark.find_out(false);
                self.forgotten.add(self.now(), forgotten.as_slice());
                Ok(Some(Seen {
                    version,
                    head: Some(Arc::new(head)),
                    pieces,
                    claim: None,
                    remembered: false,
                }))
            }
            Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => {
                mark.cancel();
                Ok(None)
            }
            Err(errno) => {
                if is_certain(errno) {
                    mark.cancel();
                }
                Err(unwritten(errno, &shown(&named.key)))
            }
        }
    }
}

/// What became of an operation.
enum Carried {
    Done(Seen),
    /// The object is not what was seen; nothing happened.
    Changed(Marked),
    Failed(StoreError),
}

fn write_all(op: &mut WriteOp, bufs: &[Buf]) {
    match bufs {
        [] => op.write_full(&[]),
        [first, rest @ ..] => {
            op.write_full(first);
            let mut offset = first.len() as u64;
            for buf in rest {
                op.write(offset, buf);
                offset += buf.len() as u64;
            }
        }
    }
    let bytes = bufs.iter().map(|buf| buf.len()).sum();
    count_copy(CopySite::RadosWrite, bytes);
}
