//! A namespace's index: sorted entries in several objects, brought up to date after each change (`docs/rados.md` section 4).
//!
//! An entry is replaced only if it is the one that the change replaced; else the head is looked at, and what it says is entered. Together
//! with the entries their usage is counted, in the same operation: the counters always add up to what the entries say.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_store::{ErrorKind, Result, Space, StoreError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;

use crate::core::{Core, Namespace};
use crate::entries::{Counter, Replacing};
use crate::error::{unread, unwritten};
use crate::heads::Seen;
use crate::names;
use crate::record::Entry;
use crate::sys::{Errno, Guard, ReadOp, WriteOp};
use crate::under_way::{Garbage, Named, Sum};
use crate::waiting::Waiting;

pub(crate) use crate::waiting::Settle;

/// Entries that one operation replaces. Of keys and attributes as long as they may be they take some 1.5 MiB there.
const BATCH: usize = 128;
/// How often who waits for that looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a replaced entry is looked at again.
const ATTEMPTS: usize = 32;
/// Keys that are looked at at once.
const LOOKS: usize = 64;

/// One object of an index.
pub(crate) struct Shard {
    pub object: Vec<u8>,
    queue: Mutex<Queue>,
    /// What this gateway's changes add up to in this object. Held by whoever writes.
    counter: AsyncMutex<Counter>,
    /// Held by whoever looks at keys, which may take long.
    looking: AsyncMutex<()>,
}

#[derive(Default)]
struct Queue {
    waiting: Waiting,
    /// Keys that are gone, and what their entries say.
    gone: HashSet<(Named, Vec<u8>)>,
}

impl Shard {
    pub fn new(object: Vec<u8>) -> Shard {
        Shard {
            object,
            queue: Mutex::default(),
            counter: AsyncMutex::default(),
            looking: AsyncMutex::default(),
        }
    }

    /// Takes a change to be entered at the next [`flush`](Shard::flush).
    pub fn settle(&self, settle: Settle) {
        self.queue.lock().waiting.add(settle);
    }

    /// Lets nothing be entered for so long, as an object does whose storage daemons do not answer.
    #[cfg(test)]
    pub async fn hold(&self) -> impl Sized {
        self.counter.lock().await
    }

    /// How many changes wait, or are being entered.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Waits until one more change of a key may wait: the keeper enters what does.
    pub async fn has_room(&self, entry: &[u8], patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.queue.lock().waiting.is_full_for(entry) {
            if begun.elapsed() > patience {
                return Err(StoreError::new(
                    ErrorKind::Busy,
                    "the index is too far behind: the cluster does not answer",
                ));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Whether a change of a key waits.
    fn waits_for(&self, entry: &[u8]) -> bool {
        self.queue.lock().waiting.has(entry)
    }

    /// Enters what waits. What fails waits again, and keeps nothing else: what failed first is told in the end. If nothing failed, all is
    /// entered that waited before this was called, whoever took it.
    pub async fn flush(&self, core: &Core, namespace: &Namespace) -> Result<()> {
        let known = self.enter_known(core, namespace).await;
        let _only = self.looking.lock().await;
        known?;
        let begun = Instant::now();
        let mut left = self.queue.lock().waiting.take_unknown();
        let mut failed = None;
        let mut entering = FuturesUnordered::new();
        loop {
            // Keys that answer nobody cost an operation's patience each: the others are not to wait for many of those.
            while entering.len() < LOOKS
                && (failed.is_none() || begun.elapsed() < core.config.patience)
                && let Some(settle) = left.pop()
            {
                entering.push(async move {
                    let entered = self.enter_slowly(core, namespace, &settle).await;
                    (settle, entered)
                });
            }
            let Some((settle, entered)) = entering.next().await else {
                break;
            };
            let mut queue = self.queue.lock();
            queue.waiting.done(1);
            if let Err(error) = entered {
                queue.waiting.look_at(settle);
                failed.get_or_insert(error);
            }
        }
        let mut queue = self.queue.lock();
        queue.waiting.done(left.len());
        for settle in left {
            queue.waiting.look_at(settle);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Enters all that needs no look.
    async fn enter_known(&self, core: &Core, namespace: &Namespace) -> Result<()> {
        let mut counter = self.counter.lock().await;
        loop {
            let batch = self.queue.lock().waiting.take_known(BATCH);
            let taken = batch.len();
            if taken == 0 {
                return Ok(());
            }
            let entered = self.enter(core, namespace, &mut counter, batch).await;
            self.queue.lock().waiting.done(taken);
            entered?;
        }
    }

    /// These have to be looked at.
    fn look_at(&self, settles: impl Iterator<Item = Settle>) {
        let mut queue = self.queue.lock();
        settles.for_each(|settle| queue.waiting.look_at(settle));
    }

    async fn enter(
        &self,
        core: &Core,
        namespace: &Namespace,
        counter: &mut Counter,
        mut batch: Vec<(Vec<u8>, Settle)>,
    ) -> Result<()> {
        let all = batch.len();
        let mut step = all;
        while !batch.is_empty() {
            if let Err(error) = self.read_counter(core, namespace, counter).await {
                self.look_at(batch.into_iter().map(|(_, settle)| settle));
                return Err(error);
            }
            let now: Vec<(Vec<u8>, Settle)> = batch.drain(..step.min(batch.len())).collect();
            let mut after = counter.sum;
            let mut replacing = Replacing::new(namespace);
            for (name, settle) in &now {
                if let Some(entry) = &settle.after {
                    let before = settle.before.as_ref();
                    let found = before.map(Entry::encode).unwrap_or_default();
                    after = after.plus(replacing.replace(name, &found, before, entry));
                }
            }
            counter.replace(&mut replacing, names::counter(core.gateway), after);
            match core
                .access
                .write(&namespace.index, &self.object, replacing.finish(), None, 0)
                .await
            {
                Ok(_) => {
                    counter.replaced(after);
                    self.entered(core, namespace, now.into_iter().map(|(_, settle)| settle));
                }
                // Somebody else's change came between: one of these has to be looked at, or the counter.
                Err(Errno(libc::ECANCELED)) if now.len() > 1 => {
                    counter.stale = true;
                    batch.splice(0..0, now);
                    step = 1;
                }
                Err(Errno(libc::ECANCELED)) => {
                    counter.stale = true;
                    self.look_at(now.into_iter().map(|(_, settle)| settle));
                }
                // The namespace is gone, and its index with it.
                Err(Errno(libc::ENOENT)) => return Ok(()),
                Err(errno) => {
                    counter.stale = true;
                    let left = now.into_iter().chain(batch);
                    self.look_at(left.map(|(_, settle)| settle));
                    return Err(unwritten(errno, "the index"));
                }
            }
        }
        Ok(())
    }

    /// Looks at the head, and enters what it says.
    async fn enter_slowly(
        &self,
        core: &Core,
        namespace: &Namespace,
        settle: &Settle,
    ) -> Result<()> {
        let name = names::entry(settle.named.space, &settle.named.key);
        let mut counted_before = settle.counted;
        for _ in 0..ATTEMPTS {
            let mut op = ReadOp::new(&namespace.index);
            op.omap_keys([&name[..]]);
            let found = match core
                .access
                .read(&namespace.index, &self.object, op, 0)
                .await
            {
                Err(Errno(libc::ENOENT)) => return Ok(()),
                Err(errno) => return Err(unread(errno, "the index")),
                Ok(read) => read,
            };
            let found = found.omap.into_iter().next().unwrap_or_default().0;
            let found = found.into_iter().next().unwrap_or_default().1;
            let before = Entry::decode(&found).ok();
            // What may still be on its way is not to arrive when nobody looks any more.
            if settle.unsure {
                core.fence(namespace, &settle.named).await?;
            }
            let freed = settle.freed.iter().map(|segment| segment.id).collect();
            let looked = core.look_for(namespace, &settle.named, &freed);
            let (seen, referenced) = looked.await?;
            // Under a number that no entry had: else what somebody found before, who saw the key when it was there, would still hold.
            let gone = || Entry::of(core.fresh(0).0, None);
            let after = match &seen {
                Some(Seen {
                    version,
                    head: Some(head),
                    ..
                }) => Entry::of(*version, Some(head)),
                // Written by another hand meanwhile: whoever reads it next takes it over.
                Some(Seen { head: None, .. }) => before.clone().unwrap_or_else(gone),
                None => gone(),
            };
            let mut counter = self.counter.lock().await;
            self.read_counter(core, namespace, &mut counter).await?;
            let mut replacing = Replacing::new(namespace);
            let by = replacing.replace(&name, &found, before.as_ref(), &after);
            let counted = counter.sum.plus(by);
            counter.replace(&mut replacing, names::counter(core.gateway), counted);
            match core
                .access
                .write(&namespace.index, &self.object, replacing.finish(), None, 0)
                .await
            {
                Ok(_) => {
                    counter.replaced(counted);
                    core.books.changed(namespace.id, by.minus(counted_before));
                    // Where the journal does not hold the entry of a key that is gone, there may have been one since it was looked for.
                    if found.is_empty() && settle.ended.is_empty() && after.known.is_some() {
                        counted_before = Sum::default();
                        continue;
                    }
                    let freed = settle.freed.iter();
                    let freed = freed.filter(|segment| !referenced.contains(&segment.id));
                    let settle = Settle {
                        after: Some(after),
                        freed: freed.copied().collect(),
                        ..settle.clone()
                    };
                    self.entered(core, namespace, [settle]);
                    return Ok(());
                }
                // One of both is not what it was.
                Err(Errno(libc::ECANCELED)) => counter.stale = true,
                Err(Errno(libc::ENOENT)) => return Ok(()),
                Err(errno) => {
                    counter.stale = true;
                    return Err(unwritten(errno, "the index"));
                }
            }
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "the index entry is being changed all the time",
        ))
    }

    /// The index knows them: what one ends leaves the journal, and what it let go is entered there, in one step or before.
    fn entered(
        &self,
        core: &Core,
        namespace: &Namespace,
        settles: impl IntoIterator<Item = Settle>,
    ) {
        let until = core.grace_from_now();
        let mut groups = Vec::new();
        for settle in settles {
            // What a staged key has no more another one may have, to which it was joined: nothing was freed for certain.
            let are_strays = settle.unsure && settle.named.space == Space::Staging;
            let let_go = settle.freed.iter().map(|segment| {
                let name = match are_strays {
                    true => names::stray(until, segment.id),
                    false => names::garbage(until, segment.id),
                };
                (name, Garbage::of(*segment).encode())
            });
            groups.push((let_go.collect(), settle.ended.into_iter().collect()));
            if let Some(entry) = settle.after.filter(|entry| entry.known.is_none()) {
                self.found_gone(settle.named, entry.encode());
            }
        }
        namespace.journal.later_each(groups);
    }

    /// Removes the entries of keys that are gone. One stays as long as a change of its key is under way: what that change replaces would
    /// else look like nothing, and what it enters would outlive what came after it.
    pub async fn forget_gone(&self, core: &Core, namespace: &Namespace) -> Result<()> {
        let gone = std::mem::take(&mut self.queue.lock().gone);
        if gone.is_empty() {
            return Ok(());
        }
        let pending = match core.pending(namespace).await {
            Ok(pending) => pending,
            Err(error) => {
                self.queue.lock().gone.extend(gone);
                return Err(error);
            }
        };
        let (busy, mut gone): (Vec<_>, Vec<_>) = gone
            .into_iter()
            .partition(|(named, _)| pending.contains(named));
        self.queue.lock().gone.extend(busy);
        let _writer = self.counter.lock().await;
        let mut step = BATCH;
        while !gone.is_empty() {
            let now: Vec<_> = gone.drain(..step.min(gone.len())).collect();
            let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
            let mut entries = Vec::with_capacity(now.len());
            for (named, value) in &now {
                let name = names::entry(named.space, &named.key);
                if !entries.contains(&name) {
                    op.omap_equals(&name, value);
                    entries.push(name);
                }
            }
            op.omap_remove(entries.iter().map(Vec::as_slice));
            match core
                .access
                .write(&namespace.index, &self.object, op, None, 0)
                .await
            {
                Ok(_) => {}
                Err(Errno(libc::ECANCELED)) if now.len() > 1 => {
                    gone.splice(0..0, now);
                    step = 1;
                }
                // It is no longer gone, or somebody else has removed its entry.
                Err(Errno(libc::ECANCELED | libc::ENOENT)) => {}
                Err(errno) => {
                    self.queue.lock().gone.extend(now.into_iter().chain(gone));
                    return Err(unwritten(errno, "the index"));
                }
            }
        }
        Ok(())
    }

    /// Whether entries of gone keys wait to be removed.
    pub fn has_gone(&self) -> bool {
        !self.queue.lock().gone.is_empty()
    }

    /// Takes over the entry of a gone key that somebody else left.
    pub fn found_gone(&self, named: Named, value: Vec<u8>) {
        self.queue.lock().gone.insert((named, value));
    }

    /// Reads this gateway's counter, if what is remembered of it may not hold any more.
    async fn read_counter(
        &self,
        core: &Core,
        namespace: &Namespace,
        counter: &mut Counter,
    ) -> Result<()> {
        if !counter.stale {
            return Ok(());
        }
        let name = names::counter(core.gateway);
        let mut op = ReadOp::new(&namespace.index);
        op.omap_keys([&name[..]]);
        let read = match core
            .access
            .read(&namespace.index, &self.object, op, 0)
            .await
        {
            Err(Errno(libc::ENOENT)) => return Ok(()),
            Err(errno) => return Err(unread(errno, "the index")),
            Ok(read) => read,
        };
        let found = read.omap.first().and_then(|(pairs, _)| pairs.first());
        let found = found.map_or(&[][..], |(_, value)| value);
        self.counter_was_read(core, namespace, counter, found)
    }

    /// What somebody else took out of the counter is known to the books as others' from now on.
    fn counter_was_read(
        &self,
        core: &Core,
        namespace: &Namespace,
        counter: &mut Counter,
        stored: &[u8],
    ) -> Result<()> {
        let by = counter.read(stored);
        let by = by.map_err(|_| crate::error::malformed("a counter"))?;
        core.books.changed(namespace.id, by);
        Ok(())
    }

    /// Reads all counters: what other gateways' add up to, and whether this gateway's is still there.
    pub async fn recount(&self, core: &Core, namespace: &Namespace) -> Result<Sum> {
        let mut counter = self.counter.lock().await;
        let own = names::counter(core.gateway);
        let (mut others, mut stored) = (Sum::default(), Bytes::new());
        let each = |name: Bytes, value: Bytes| match name == own[..] {
            true => stored = value,
            false => others = others.plus(Sum::decode(&value).unwrap_or_default()),
        };
        core.keys(&namespace.index, &self.object, names::COUNTERS, each)
            .await?;
        self.counter_was_read(core, namespace, &mut counter, &stored)?;
        Ok(others)
    }
}

impl Core {
    /// Enters what waits in a namespace's index. It goes on when nobody waits for it any more: what a flush has taken out of its queue is
    /// known to nobody else.
    pub async fn settle(self: &Arc<Self>, namespace: &Arc<Namespace>) -> Result<()> {
        if namespace.shards.iter().all(|shard| shard.waiting() == 0) {
            return Ok(());
        }
        let (core, namespace) = (self.clone(), namespace.clone());
        let settling = tokio::spawn(async move { core.flush_all(&namespace).await });
        settling.await.unwrap_or_else(|error| {
            let error = StoreError::new(ErrorKind::OutcomeUnknown, error.to_string());
            Err(error)
        })
    }

    /// Writes what waits for the journal, now.
    pub async fn flush_journal(&self, namespace: &Namespace) -> std::result::Result<(), Errno> {
        self.access.in_time(namespace.journal.flush()).await
    }

    /// The same for these keys: that others cannot be entered is no affair of who has changed them.
    pub async fn settle_those(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        keys: &[Named],
    ) -> Result<()> {
        let settled = self.settle(namespace).await;
        let waits = |named: &Named| {
            let entry = names::entry(named.space, &named.key);
            namespace.shard(&entry).waits_for(&entry)
        };
        match settled {
            Err(error) if keys.iter().any(waits) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes the entries of keys that are gone, as far as no change of theirs is under way.
    pub async fn forget_gone(&self, namespace: &Namespace) -> Result<()> {
        let mut failed = None;
        for shard in namespace.shards.iter().filter(|shard| shard.has_gone()) {
            if let Err(error) = shard.forget_gone(self, namespace).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn flush_all(&self, namespace: &Namespace) -> Result<()> {
        let flushes = namespace.shards.iter().filter(|shard| shard.waiting() > 0);
        let flushes = flushes.map(|shard| shard.flush(self, namespace));
        let flushed = futures_util::future::join_all(flushes).await;
        // What was entered is to leave the journal whatever was not.
        let written = match self.flush_journal(namespace).await {
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "the journal")),
        };
        flushed.into_iter().chain([written]).collect()
    }
}
