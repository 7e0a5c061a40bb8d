//! What gateways left that died: their changes are looked up and entered, their values under way are dropped.
//!
//! A gateway that died is registered, or a journal names it: one that left, and thought that nothing was left of it, may have been wrong.
//! Whether it lives its lock alone says, which it takes before it does anything.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{Result, StoreError};
use tokio::time::{MissedTickBehavior, interval};

use crate::core::{Core, Namespace};
use crate::error::{Parts, shown, unread, unwritten};
use crate::index::Settle;
use crate::names::{self, INTENTS, NAMESPACES, PENDING};
use crate::namespaces::GATEWAYS;
use crate::record::Entry;
use crate::sys::{Errno, Guard, Lease, ReadOp, WriteOp};
use crate::under_way::{Garbage, Intent, Named, Pending, Sum};

/// What a journal says of a value under way, and as what.
pub(crate) struct Said {
    name: Bytes,
    value: Bytes,
    number: u128,
    pub intent: Intent,
}

/// How often a counter is added that others add to meanwhile.
const FOLDS: usize = 8;

impl Core {
    /// Cleans up after gateways that died; after how many. One at a time of this gateway's does.
    pub async fn sweep(self: &Arc<Self>) -> Result<usize> {
        let _only = self.sweeping.lock().await;
        let mut parts = Parts::default();
        let mut gateways = self.registered_gateways().await?;
        for (name, namespace) in &self.snapshot().namespaces {
            match parts.done(name, self.under_way(namespace).await) {
                Some(Some(named)) => gateways.extend(named),
                Some(None) => drop(parts.done(name, self.end_deletion(namespace).await)),
                None => {}
            }
        }
        let dead = self.find_dead(&gateways, &mut parts).await;
        let mut swept = 0;
        for gateway in &dead {
            let done = parts.done("a gateway", self.sweep_gateway(*gateway).await);
            swept += usize::from(done.unwrap_or_default());
        }
        parts.end()?;
        Ok(swept)
    }

    /// Which of those that wrote something are dead.
    pub async fn dead_writers(
        &self,
        writers: &BTreeSet<u64>,
        parts: &mut Parts,
    ) -> Result<BTreeSet<u64>> {
        let _only = self.sweeping.lock().await;
        let registered = self.registered_gateways().await?;
        let dead = self.find_dead(writers, parts).await;
        // Asking made an object of those that nobody knew any more.
        for gateway in dead.difference(&registered) {
            parts.done("a gateway", self.forget_dead(*gateway).await);
        }
        Ok(dead)
    }

    async fn registered_gateways(&self) -> Result<BTreeSet<u64>> {
        let mut gateways = BTreeSet::new();
        let each = |name: Bytes, _| {
            let digits = name.strip_prefix(GATEWAYS);
            let gateway = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            gateways.extend(gateway.and_then(|text| u64::from_str_radix(text, 16).ok()));
        };
        self.keys(&self.registry, NAMESPACES, GATEWAYS, each)
            .await?;
        Ok(gateways)
    }

    /// Gateways that have something under way in a namespace, as its journal says; `None` when it has none any more.
    async fn under_way(&self, namespace: &Namespace) -> Result<Option<BTreeSet<u64>>> {
        let mut gateways = BTreeSet::new();
        let journal = namespace.journal.object();
        for section in [INTENTS, PENDING] {
            let each = |name: Bytes, _| {
                gateways.extend(names::numbered(&name).map(names::gateway_of));
            };
            if !self.keys(&namespace.index, journal, section, each).await? {
                return Ok(None);
            }
        }
        Ok(Some(gateways))
    }

    /// Whether something is left of this gateway that would have to be swept.
    pub async fn leaves_something(&self) -> Result<bool> {
        for namespace in self.snapshot().namespaces.values() {
            let mut shards = namespace.shards.iter();
            let waits = shards.any(|shard| shard.waiting() > 0 || shard.has_gone());
            if waits || !namespace.journal.is_idle() {
                return Ok(true);
            }
            let under_way = self.under_way(namespace).await?.unwrap_or_default();
            if under_way.contains(&self.gateway) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Which of these gateways are dead, this one aside. What they sent while they were alive may still be on its way when their lease is
    /// over: only after as long as an operation may take nothing of theirs arrives any more.
    async fn find_dead(&self, asked: &BTreeSet<u64>, parts: &mut Parts) -> BTreeSet<u64> {
        let mut dead = BTreeSet::new();
        let others = asked.iter().filter(|gateway| **gateway != self.gateway);
        for gateway in others {
            if parts.done("a gateway", self.take_over(*gateway).await) == Some(true) {
                dead.insert(*gateway);
            }
        }
        if !dead.is_empty() {
            tokio::time::sleep(self.access.patience()).await;
        }
        dead
    }

    /// Whether a gateway's lock is over. Taking it is the way to find out: the cluster's clock decides. It is held for long enough that its
    /// owner cannot come back while what it sent is waited for.
    async fn take_over(&self, gateway: u64) -> Result<bool> {
        let object = names::gateway(gateway);
        let cookie = format!("{:016x}", self.gateway);
        let lease = Lease::new(&self.registry, &object, cookie.as_bytes());
        let lease = lease.map_err(|errno| unread(errno, "a gateway"))?;
        let hold = self.config.lease + self.access.patience();
        let taken = tokio::task::spawn_blocking(move || lease.take(hold)).await;
        match taken {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Errno(libc::EBUSY | libc::EEXIST))) | Err(_) => Ok(false),
            Ok(Err(errno)) => Err(unread(errno, "a gateway")),
        }
    }

    /// Cleans up after a gateway whose lock is held; false when it came back meanwhile.
    async fn sweep_gateway(self: &Arc<Self>, gateway: u64) -> Result<bool> {
        let sweeping = async {
            let mut parts = Parts::default();
            for (name, namespace) in &self.snapshot().namespaces {
                parts.done(name, self.sweep_namespace(namespace, gateway).await);
            }
            parts.end()
        };
        let Some(swept) = self.while_held(gateway, sweeping).await? else {
            return Ok(false);
        };
        // As long as something is left of it, it stays known.
        swept?;
        self.forget_dead(gateway).await
    }

    /// Does something for as long as the lock of a dead gateway is held, which is renewed meanwhile: the index may be long, and keep
    /// silent for long. `None` when the gateway came back; what was cut short is begun anew by the next sweep.
    async fn while_held<T>(
        &self,
        gateway: u64,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        let mut renewal = interval(self.config.lease / 4);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                _ = renewal.tick() => {
                    if !self.take_over(gateway).await? {
                        return Ok(None);
                    }
                }
                done = &mut work => return Ok(Some(done)),
            }
        }
    }

    /// Forgets a gateway that nothing is left of; false when it came back meanwhile.
    async fn forget_dead(&self, gateway: u64) -> Result<bool> {
        let is_dead = self.take_over(gateway).await?;
        if is_dead {
            self.forget_gateway(gateway).await?;
        }
        Ok(is_dead)
    }

    async fn sweep_namespace(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        gateway: u64,
    ) -> Result<()> {
        let journal = namespace.journal.object();
        let mut pending = Vec::new();
        let of = |name: &Bytes| {
            names::numbered(name).filter(|number| names::gateway_of(*number) == gateway)
        };
        let each = |name: Bytes, value: Bytes| {
            if let (Some(number), Ok(found)) = (of(&name), Pending::decode(&value)) {
                pending.push((name, number, found));
            }
        };
        self.keys(&namespace.index, journal, PENDING, each).await?;
        let intents = self.intents_of(namespace, gateway).await?;
        let mut parts = Parts::default();
        for (name, number, found) in pending {
            if found.composes {
                let finished = self.finish_composition(namespace, &found.named, number);
                let finished = finished.await;
                if parts.done(&shown(&found.named.key), finished).is_none() {
                    continue;
                }
            }
            let entry = names::entry(found.named.space, &found.named.key);
            namespace.shard(&entry).settle(Settle {
                named: found.named,
                before: None,
                after: None,
                ended: [name.to_vec()].into(),
                freed: found.freed.into_iter().collect(),
                unsure: true,
                counted: Sum::default(),
            });
        }
        parts.done("the index", self.settle(namespace).await);
        for said in &intents {
            let dropped = self.drop_intent(namespace, said).await;
            parts.done(&shown(&said.intent.named.key), dropped);
        }
        parts.done("the index", self.find_gone(namespace).await);
        parts.done("counters", self.fold(namespace, gateway).await);
        let flushed = self.flush_journal(namespace).await;
        parts.done(
            "the journal",
            flushed.map_err(|errno| self.not_entered(namespace, errno)),
        );
        parts.end()
    }

    /// What the journal says of a gateway's values under way.
    async fn intents_of(&self, namespace: &Namespace, gateway: u64) -> Result<Vec<Said>> {
        let mut intents = Vec::new();
        let each = |name: Bytes, value: Bytes| {
            if let (Some(number), Ok(intent)) = (names::numbered(&name), Intent::decode(&value))
                && names::gateway_of(number) == gateway
            {
                intents.push(Said {
                    name,
                    value,
                    number,
                    intent,
                });
            }
        };
        let journal = namespace.journal.object();
        self.keys(&namespace.index, journal, INTENTS, each).await?;
        Ok(intents)
    }

    /// Values under way of this gateway's own that nobody here has any more: what became of a commit is not known, or nobody waited for
    /// it, or stripes could not be removed.
    pub async fn drop_left(&self, namespace: &Namespace) -> Result<()> {
        let mut parts = Parts::default();
        for said in self.left_intents(namespace).await? {
            let dropped = self.drop_intent(namespace, &said).await;
            parts.done(&shown(&said.intent.named.key), dropped);
        }
        parts.end()
    }

    pub(crate) async fn left_intents(&self, namespace: &Namespace) -> Result<Vec<Said>> {
        let mut intents = self.intents_of(namespace, self.gateway).await?;
        // Asked after they were read: whoever has one has it before the journal says so.
        intents.retain(|said| !self.held.has(said.number));
        Ok(intents)
    }

    /// A value under way that nobody writes any more is garbage, unless it arrived.
    async fn drop_intent(&self, namespace: &Namespace, said: &Said) -> Result<()> {
        let Intent { named, segment } = &said.intent;
        let ours = HashSet::from([segment.id]);
        let arrived = async || {
            let (_, referenced) = self.look_for(namespace, named, &ours).await?;
            Ok::<_, StoreError>(!referenced.is_empty())
        };
        let has_arrived = arrived().await? || {
            self.fence(namespace, named).await?;
            arrived().await?
        };
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
        // Somebody may have made it part of something else since.
        op.omap_equals(&said.name, &said.value);
        op.omap_remove([&said.name[..]]);
        if !has_arrived {
            let garbage = Garbage {
                segment: *segment,
                meant_for: Some(named.clone()),
            };
            let name = names::garbage(self.grace_from_now(), segment.id);
            op.omap_set([(&name[..], &garbage.encode()[..])]);
        }
        let journal = namespace.journal.object();
        let dropped = self.access.write(&namespace.index, journal, op, None, 0);
        match dropped.await {
            Ok(_) | Err(Errno(libc::ECANCELED | libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "the journal")),
        }
    }

    /// Adds what a gateway counted to what all that are gone have counted.
    pub async fn fold(&self, namespace: &Namespace, gateway: u64) -> Result<()> {
        let (of, all) = (names::counter(gateway), names::counter(0));
        for shard in &namespace.shards {
            for _ in 0..FOLDS {
                let mut op = ReadOp::new(&namespace.index);
                op.omap_keys([&of[..], &all[..]]);
                let read = match self
                    .access
                    .read(&namespace.index, &shard.object, op, 0)
                    .await
                {
                    Err(Errno(libc::ENOENT)) => return Ok(()),
                    Err(errno) => return Err(unread(errno, "the index")),
                    Ok(read) => read,
                };
                let found = read.omap.into_iter().next().unwrap_or_default().0;
                let value = |name: &[u8]| {
                    let pair = found.iter().find(|(found, _)| *found == name);
                    pair.map(|(_, value)| value.clone()).unwrap_or_default()
                };
                let (before, total) = (value(&of), value(&all));
                let Ok(sum) = Sum::decode(&before) else {
                    break;
                };
                let sum = sum.plus(Sum::decode(&total).unwrap_or_default());
                let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
                op.omap_equals(&of, &before);
                op.omap_equals(&all, &total);
                op.omap_remove([&of[..]]);
                op.omap_set([(&all[..], &sum.encode()[..])]);
                match self
                    .access
                    .write(&namespace.index, &shard.object, op, None, 0)
                    .await
                {
                    Ok(_) => break,
                    Err(Errno(libc::ECANCELED)) => {}
                    Err(Errno(libc::ENOENT)) => return Ok(()),
                    Err(errno) => return Err(unwritten(errno, "the index")),
                }
            }
        }
        Ok(())
    }

    /// Finds the entries of gone keys that nobody removes any more.
    async fn find_gone(&self, namespace: &Arc<Namespace>) -> Result<()> {
        for shard in &namespace.shards {
            for section in [names::OBJECTS, b's'] {
                let each = |name: Bytes, value: Bytes| {
                    let gone = Entry::decode(&value).is_ok_and(|entry| entry.known.is_none());
                    if let Some((space, key)) = names::entry_key(&name).filter(|_| gone) {
                        shard.found_gone(Named { space, key }, value.to_vec());
                    }
                };
                self.keys(&namespace.index, &shard.object, &[section], each)
                    .await?;
            }
        }
        self.forget_gone(namespace).await
    }

    /// Its name goes first: with the object its lock goes, and whoever takes that anew enters his name after it.
    async fn forget_gateway(&self, gateway: u64) -> Result<()> {
        self.forget_registered(&registered_name(gateway)).await?;
        let object = names::gateway(gateway);
        let mut op = WriteOp::new(&self.registry);
        op.remove();
        match self
            .access
            .write(&self.registry, &object, op, None, 0)
            .await
        {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "a gateway")),
        }
    }

    /// Forgets something in the registry.
    pub async fn forget_registered(&self, key: &[u8]) -> Result<()> {
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_remove([key]);
        self.write_registry(op).await
    }

    /// Enters this gateway among the living.
    pub async fn register(&self) -> Result<()> {
        let key = registered_name(self.gateway);
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_set([(&key[..], &[][..])]);
        self.write_registry(op).await
    }

    /// Leaves: there is nothing to be cleaned up.
    pub async fn unregister_gateway(&self) -> Result<()> {
        self.forget_gateway(self.gateway).await
    }
}

/// What the registry has of a gateway.
pub(crate) fn registered_name(gateway: u64) -> Vec<u8> {
    [GATEWAYS, format!("{gateway:016x}").as_bytes()].concat()
}
