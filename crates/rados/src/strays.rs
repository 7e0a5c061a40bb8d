//! Stripes that may be nobody's.
//!
//! A composition passes stripes from one key to another. So of those that a staged key has let go, or was to let go, no single key tells
//! whether somebody has them: the journal names them as strays, and when the grace is over the whole namespace is looked through for who
//! refers to them. Stripes that nothing refers to become strays, too, whatever left them there, when they are looked for.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use forebay_store::Result;
use futures_util::{StreamExt, stream};
use tokio::time::sleep;

use crate::codec::Malformed;
use crate::core::{Core, Namespace};
use crate::error::{Parts, malformed};
use crate::names::{self, GARBAGE, Home, INTENTS, PENDING, STRAYS};
use crate::pool::{BATCH, Names};
use crate::record::Segment;
use crate::sys::{Guard, WriteOp};
use crate::under_way::{Garbage, Intent, Named, Pending};

/// Of so many values stripes are looked for at once: of more in several turns.
const SOUGHT: usize = 256 << 10;
/// Strays that one operation enters, or takes.
const ENTERED: usize = 128;
/// Keys that are looked at at once.
const AT_ONCE: usize = 16;
/// So long who is served has the cluster to itself after each batch of names.
const PAUSE: Duration = Duration::from_millis(100);

/// A line of the journal for each of these, which are looked for when the grace is over.
pub(crate) fn lines(until: u64, strays: &[Segment]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    strays.iter().map(move |segment| {
        let name = names::stray(until, segment.id);
        (name, Garbage::of(*segment).encode())
    })
}

impl Core {
    /// Removes strays whose time is over and that nothing refers to. One at a time of this gateway's looks for them.
    pub async fn clear_strays(&self) -> Result<()> {
        let _only = self.clearing.lock().await;
        let mut parts = Parts::default();
        for (name, namespace) in &self.snapshot().namespaces {
            parts.done(name, self.clear_strays_of(namespace).await);
        }
        parts.end()
    }

    async fn clear_strays_of(&self, namespace: &Namespace) -> Result<()> {
        let strays = self.take_strays(namespace).await?;
        if strays.is_empty() {
            return Ok(());
        }
        let sought = strays.iter().map(|(_, segment)| segment.id).collect();
        let left = self.unreferenced(namespace, sought).await?;
        let mut parts = Parts::default();
        for (name, segment) in strays {
            if left.contains(&segment.id) {
                let removed = self.remove_stripes(&namespace.stripes, segment).await;
                if parts.done("stripes", removed).is_none() {
                    continue;
                }
            }
            namespace.journal.later(Vec::new(), [name]);
        }
        parts.end()
    }

    /// Takes strays whose time is over: others look at them only when the grace is over once more, and so does this gateway, should it fail.
    async fn take_strays(&self, namespace: &Namespace) -> Result<Vec<(Vec<u8>, Segment)>> {
        let now = self.now();
        let mut due = Vec::new();
        let each = |name: Bytes, value: Bytes| {
            if let Some((at, id)) = names::stray_id(&name)
                && at <= now
                && !self.pins.is_pinned(id)
                && due.len() < SOUGHT
                // A line that cannot be read stays, and what it names with it.
                && let Ok(garbage) = Garbage::decode(&value)
            {
                due.push((name, value, garbage.segment));
            }
        };
        let journal = namespace.journal.object();
        self.keys(&namespace.index, journal, STRAYS, each).await?;
        let until = self.grace_from_now();
        let mut taken = Vec::new();
        for some in due.chunks(ENTERED) {
            let strays: Vec<Segment> = some.iter().map(|(_, _, segment)| *segment).collect();
            let lines: Vec<_> = lines(until, &strays).collect();
            let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
            for (name, value, _) in some {
                op.omap_equals(name, value);
            }
            op.omap_remove(some.iter().map(|(name, ..)| &name[..]));
            op.omap_set(lines.iter().map(|(name, value)| (&name[..], &value[..])));
            if self.change_garbage(namespace, op).await? {
                let names = lines.into_iter().map(|(name, _)| name);
                taken.extend(names.zip(strays));
            }
        }
        Ok(taken)
    }

    /// Looks for stripes that nothing refers to, and calls them strays; of how many values.
    pub async fn find_strays(&self, namespace: &Namespace) -> Result<usize> {
        let mut found = 0;
        let mut after = None;
        loop {
            let stripes = self.stripes_after(namespace, after, SOUGHT).await?;
            let Some((last, _)) = stripes.last_key_value() else {
                return Ok(found);
            };
            after = Some(*last);
            let sought = stripes.keys().copied().collect();
            let mut left = self.unreferenced(namespace, sought).await?;
            let known = |name: Bytes, _| {
                if let Some((_, id)) = names::stray_id(&name) {
                    left.remove(&id);
                }
            };
            let journal = namespace.journal.object();
            self.keys(&namespace.index, journal, STRAYS, known).await?;
            let stripe_bytes = self.config.object_bytes;
            let strays = stripes.into_iter().filter(|(id, _)| left.contains(id));
            let strays: Vec<Segment> = strays
                .filter_map(|(id, number)| Segment::up_to(id, number, stripe_bytes))
                .collect();
            for some in strays.chunks(ENTERED) {
                let lines = lines(self.grace_from_now(), some).collect();
                let entered = self.access.in_time(namespace.journal.enter(lines)).await;
                entered.map_err(|errno| self.not_entered(namespace, errno))?;
            }
            found += strays.len();
        }
    }

    /// The first values that have stripes, of those after one, and for each the number of its last stripe.
    pub async fn stripes_after(
        &self,
        namespace: &Namespace,
        after: Option<u128>,
        most: usize,
    ) -> Result<BTreeMap<u128, u64>> {
        let mut stripes = BTreeMap::new();
        let mut names = Names::of(&namespace.stripes);
        while let Some(batch) = names.next().await? {
            let found = batch.iter().filter_map(|name| names::stripe_of(name));
            for (id, number) in found.filter(|(id, _)| after.is_none_or(|after| *id > after)) {
                let last: &mut u64 = stripes.entry(id).or_default();
                *last = number.max(*last);
                if stripes.len() > most {
                    stripes.pop_last();
                }
            }
        }
        Ok(stripes)
    }

    /// Which of these stripes nothing refers to, all of which were there before. What is under way becomes a staged value's or another's, and
    /// what is staged another's, and none goes the other way: who looks in this order meets each, whatever happens meanwhile. Where something
    /// cannot be read nobody can tell.
    async fn unreferenced(
        &self,
        namespace: &Namespace,
        mut sought: HashSet<u128>,
    ) -> Result<HashSet<u128>> {
        let journal = namespace.journal.object();
        for section in [INTENTS, PENDING, GARBAGE] {
            let mut is_readable = true;
            let each = |_, value: Bytes| match said(section, &value) {
                Ok(segments) => segments.iter().for_each(|segment| {
                    sought.remove(&segment.id);
                }),
                Err(Malformed) => is_readable = false,
            };
            let read = self.keys(&namespace.index, journal, section, each);
            if !read.await? {
                return Err(self.gone(namespace));
            }
            if !is_readable {
                return Err(malformed("a change under way"));
            }
        }
        for home in [Home::Staging, Home::Named, Home::Data] {
            let (_, place) = namespace.home(home);
            let mut names = Names::of(place);
            while !sought.is_empty()
                && let Some(batch) = names.next().await?
            {
                let is_whole = batch.len() == BATCH;
                let all = &sought;
                let looks = batch.into_iter().map(|object| async move {
                    self.referred_to(namespace, home, object, all).await
                });
                let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
                let mut referred = Vec::new();
                while let Some(found) = looks.next().await {
                    referred.extend(found?);
                }
                drop(looks);
                for id in referred {
                    sought.remove(&id);
                }
                if is_whole {
                    sleep(PAUSE).await;
                }
            }
        }
        // Of a namespace that was deleted meanwhile nothing is said: there may be another one under its name, of which all counts as nothing.
        self.check_there(namespace).await?;
        Ok(sought)
    }

    /// Which of these stripes an object refers to, whoever wrote it last.
    async fn referred_to(
        &self,
        namespace: &Namespace,
        home: Home,
        object: Vec<u8>,
        sought: &HashSet<u128>,
    ) -> Result<HashSet<u128>> {
        let (space, place) = namespace.home(home);
        let key = match home {
            Home::Data => Some(object),
            Home::Named | Home::Staging => self.key_of(place, &object).await?,
        };
        let Some(key) = key else {
            return Ok(HashSet::new());
        };
        let named = Named { space, key };
        let (_, referred) = self.look_for(namespace, &named, sought).await?;
        Ok(referred)
    }
}

/// What a line of the journal refers to.
fn said(section: &[u8], line: &[u8]) -> std::result::Result<Vec<Segment>, Malformed> {
    Ok(match section {
        INTENTS => vec![Intent::decode(line)?.segment],
        PENDING => Pending::decode(line)?.freed,
        _ => vec![Garbage::decode(line)?.segment],
    })
}
