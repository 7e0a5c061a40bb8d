//! Cleaning up from time to time: after gateways that died, what has expired, stripes whose time is over.
//!
//! What cannot be cleaned up keeps nothing else: every gateway, namespace and key is tried each time. Each has a round of its own, so that
//! none waits for another. Where all of it is done at once gateways come first: what one has left open would keep a key from expiring.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_store::Result;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::{Parts, shown, unread, unwritten};
use crate::heads::Seen;
use crate::index::Shard;
use crate::kept::Search;
use crate::names::{self, GARBAGE};
use crate::plan::Draft;
use crate::record::Segment;
use crate::sys::{Errno, Guard, ReadOp, WriteOp};
use crate::under_way::{Garbage, Named};

/// Expired entries that one look gives.
const EXPIRED: u64 = 256;
/// Keys that are dropped at once.
const AT_ONCE: usize = 16;
/// Lines of garbage that one look gives.
const GARBAGE_LINES: u64 = 1024;
/// Values whose stripes are removed at once.
const COLLECTED: usize = 8;
/// For so long garbage of one namespace is removed before that of the next is.
const TURN: Duration = Duration::from_secs(5);

impl Core {
    /// Cleans everything up; after how many gateways that died.
    pub async fn clean(self: &Arc<Self>) -> Result<usize> {
        let mut parts = Parts::default();
        let swept = parts.done("what gateways left", self.sweep().await);
        parts.done("what has expired", self.tidy().await);
        parts.done("stripes", self.collect().await);
        parts.done("orphans", self.clear_orphans().await);
        parts.end()?;
        Ok(swept.unwrap_or_default())
    }

    /// Drops what has expired, and does what this gateway has left undone.
    pub async fn tidy(self: &Arc<Self>) -> Result<()> {
        let _only = self.cleaning.lock().await;
        let mut parts = Parts::default();
        for (name, namespace) in &self.snapshot().namespaces {
            parts.done(name, self.expire(namespace).await);
            parts.done(name, self.settle(namespace).await);
            parts.done(name, self.forget_gone(namespace).await);
            parts.done(name, self.drop_left(namespace).await);
        }
        parts.end()
    }

    /// Drops what has expired in a namespace.
    pub async fn expire(self: &Arc<Self>, namespace: &Arc<Namespace>) -> Result<()> {
        let mut parts = Parts::default();
        for shard in &namespace.shards {
            let expired = self.expire_in(namespace, shard, &mut parts).await;
            parts.done("a part of the index", expired);
        }
        parts.end()
    }

    async fn expire_in(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        shard: &Shard,
        parts: &mut Parts,
    ) -> Result<()> {
        let mut after = Vec::new();
        loop {
            let mut op = ReadOp::new(&namespace.index);
            op.omap(&after, names::EXPIRING, EXPIRED);
            let read = self.access.read(&namespace.index, &shard.object, op, 0);
            let read = match read.await {
                Err(Errno(libc::ENOENT)) => return Ok(()),
                Err(errno) => return Err(unread(errno, "the index")),
                Ok(read) => read,
            };
            let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
            let now = self.now();
            let mut due = Vec::new();
            let mut whole = true;
            for (name, _) in &pairs {
                let Some((at, entry)) = names::expiring_entry(name) else {
                    continue;
                };
                whole = at <= now;
                if !whole {
                    break;
                }
                due.extend(names::entry_key(entry).map(|(space, key)| Named { space, key }));
            }
            let drops = due.into_iter().map(|named| async move {
                let dropped = self.drop_expired(namespace, &named).await;
                (named, dropped)
            });
            let mut drops = stream::iter(drops).buffer_unordered(AT_ONCE);
            while let Some((named, dropped)) = drops.next().await {
                parts.done(&shown(&named.key), dropped);
            }
            match pairs.last() {
                Some((last, _)) if whole && more => after = last.to_vec(),
                _ => return Ok(()),
            }
        }
    }

    async fn drop_expired(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
    ) -> Result<()> {
        let seen = self.look(namespace, named).await?;
        // Nobody waits for this: it is dropped the next time.
        if self.is_taken(namespace, &seen).await? {
            return Ok(());
        }
        let mut expiry = Expiry {
            core: self,
            namespace,
            named,
            search: Search::new(),
        };
        let is_due = |seen: &Seen| {
            let next = seen.head.as_ref().and_then(|head| head.expires_next);
            next.is_some_and(|at| at <= self.now())
        };
        // One change drops no more than it can have in memory.
        loop {
            let (_, seen) = self.change(namespace, named, false, &mut expiry).await?;
            if !is_due(&seen) {
                return Ok(());
            }
            expiry.search.was_dropped(seen.version);
        }
    }

    /// Removes stripes whose time is over by now. Namespaces take turns: nobody's wait for all that one has let go.
    pub async fn collect(&self) -> Result<()> {
        let _only = self.collecting.lock().await;
        let until = self.now();
        let mut parts = Parts::default();
        let mut reached: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut ended = HashSet::new();
        loop {
            let snapshot = self.snapshot();
            let turns = snapshot.namespaces.iter();
            let turns = turns.filter(|(_, namespace)| !ended.contains(&namespace.id));
            let turns: Vec<_> = turns.collect();
            if turns.is_empty() {
                return parts.end();
            }
            for (name, namespace) in turns {
                let after = reached.entry(namespace.id).or_default();
                let turn = self.collect_some(namespace, after, until, TURN, &mut parts);
                let more = turn.await;
                let more = parts.done(name, more);
                if more != Some(true) {
                    ended.insert(namespace.id);
                }
                if more.is_some() {
                    let written = self.write_removed(namespace).await;
                    parts.done(name, written);
                }
            }
        }
    }

    /// Has the journal know what was removed: as few lines as there may be would wait for others, and be looked at again after a restart.
    async fn write_removed(&self, namespace: &Namespace) -> Result<()> {
        match self.flush_journal(namespace).await {
            // The namespace is gone.
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "the journal")),
        }
    }

    /// Removes a namespace's whose names come after this one, and that were due at `until`, for about `turn`, and at least one of them; whether
    /// there are more.
    pub async fn collect_some(
        &self,
        namespace: &Arc<Namespace>,
        after: &mut Vec<u8>,
        until: u64,
        turn: Duration,
        parts: &mut Parts,
    ) -> Result<bool> {
        let begun = Instant::now();
        let journal = namespace.journal.object();
        loop {
            let mut op = ReadOp::new(&namespace.index);
            op.omap(after, GARBAGE, GARBAGE_LINES);
            let read = match self.access.read(&namespace.index, journal, op, 0).await {
                Err(Errno(libc::ENOENT)) => return Ok(false),
                Err(errno) => return Err(unread(errno, "the journal")),
                Ok(read) => read,
            };
            let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
            let is_due = |name: &Bytes| names::garbage_id(name).is_none_or(|(at, _)| at <= until);
            let more = more && pairs.last().is_some_and(|(name, _)| is_due(name));
            let last = pairs.last().map(|(name, _)| name.to_vec());
            let due = pairs.into_iter().take_while(|(name, _)| is_due(name));
            let mut due = due.filter(|(name, _)| {
                names::garbage_id(name).is_some_and(|(_, id)| !self.pins.is_pinned(id))
            });
            let mut is_over = false;
            let mut removing = FuturesUnordered::new();
            loop {
                while !is_over
                    && removing.len() < COLLECTED
                    && let Some((name, value)) = due.next()
                {
                    *after = name.to_vec();
                    removing.push(self.collect_one(namespace, name, value));
                    is_over = begun.elapsed() >= turn;
                }
                let Some(removed) = removing.next().await else {
                    break;
                };
                parts.done("stripes", removed);
            }
            if due.next().is_some() {
                return Ok(true);
            }
            match last {
                Some(last) if more => *after = last,
                _ => return Ok(false),
            }
            if begun.elapsed() >= turn {
                return Ok(true);
            }
        }
    }

    async fn collect_one(
        &self,
        namespace: &Arc<Namespace>,
        name: Bytes,
        value: Bytes,
    ) -> Result<()> {
        if let Ok(garbage) = Garbage::decode(&value)
            && !self.remove_garbage(namespace, &name, garbage).await?
        {
            return Ok(());
        }
        namespace.journal.later(Vec::new(), [name.to_vec()]);
        Ok(())
    }

    /// Whether it is garbage no more.
    async fn remove_garbage(
        &self,
        namespace: &Arc<Namespace>,
        name: &[u8],
        garbage: Garbage,
    ) -> Result<bool> {
        let Garbage { segment, meant_for } = &garbage;
        if let Some(named) = meant_for {
            let ours = HashSet::from([segment.id]);
            let (_, referenced) = self.look_for(namespace, named, &ours).await?;
            if !referenced.is_empty() {
                // It arrived, and the index may not know.
                self.find_out(namespace, named.clone());
                return Ok(true);
            }
            // It may have arrived and been joined to another key before this looked: then its entry has gone. Or another gateway is
            // removing it: that one's entry stays until it has.
            if !self.condemn(namespace, name, &garbage).await? {
                return Ok(false);
            }
        }
        self.remove_stripes(&namespace.stripes, *segment).await?;
        Ok(true)
    }

    /// Says that stripes which may have arrived go in any case from now on; false when somebody took them out of the garbage before.
    async fn condemn(&self, namespace: &Namespace, name: &[u8], garbage: &Garbage) -> Result<bool> {
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
        op.omap_equals(name, &garbage.encode());
        op.omap_set([(name, &Garbage::of(garbage.segment).encode()[..])]);
        self.change_garbage(namespace, op).await
    }

    /// Takes what is to be joined out of the garbage, where it is if it came late; false when some of it goes already.
    pub async fn save(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        joined: &[Segment],
    ) -> Result<bool> {
        let joined: HashSet<u128> = joined.iter().map(|segment| segment.id).collect();
        let mut found = Vec::new();
        let each = |name: Bytes, value: Bytes| {
            if names::garbage_id(&name).is_some_and(|(_, id)| joined.contains(&id)) {
                found.push((name, value));
            }
        };
        let journal = namespace.journal.object();
        self.keys(&namespace.index, journal, GARBAGE, each).await?;
        if found.is_empty() {
            return Ok(true);
        }
        let mut arrived = Vec::new();
        for (_, value) in &found {
            match Garbage::decode(value).map(|garbage| garbage.meant_for) {
                Ok(None) => return Ok(false),
                Ok(Some(named)) => arrived.push(named),
                Err(_) => {}
            }
        }
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
        for (name, value) in &found {
            op.omap_equals(name, value);
        }
        op.omap_remove(found.iter().map(|(name, _)| &name[..]));
        let saved = self.change_garbage(namespace, op).await?;
        if saved {
            // The index may not know.
            arrived
                .into_iter()
                .for_each(|named| self.find_out(namespace, named));
        }
        Ok(saved)
    }

    /// Changes the journal; whether all was as the operation asserts.
    pub async fn change_garbage(&self, namespace: &Namespace, op: WriteOp) -> Result<bool> {
        let journal = namespace.journal.object();
        let changed = self.access.write(&namespace.index, journal, op, None, 0);
        match changed.await {
            Ok(_) => Ok(true),
            Err(Errno(libc::ECANCELED | libc::ENOENT)) => Ok(false),
            Err(errno) => Err(unwritten(errno, "the journal")),
        }
    }
}

/// Dropping what has expired.
struct Expiry<'e> {
    core: &'e Arc<Core>,
    namespace: &'e Arc<Namespace>,
    named: &'e Named,
    search: Search,
}

impl Decide for &mut Expiry<'_> {
    type Answer = ();

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<()>> {
        let Some(head) = seen.head.as_deref() else {
            return Ok(Decision::Leave(()));
        };
        let now = self.core.now();
        if head.expires_next.is_none_or(|at| at > now) {
            return Ok(Decision::Leave(()));
        }
        let (core, namespace, named) = (self.core, self.namespace, self.named);
        let found = core.expired(namespace, named, seen, now, &mut self.search);
        let Some(view) = found.await? else {
            return Ok(Decision::Again);
        };
        // Even if nothing is dropped the time is corrected.
        let draft = Draft::begin(named.space, head.clone(), view, now);
        Ok(Decision::Do(Step::new(draft), ()))
    }
}
