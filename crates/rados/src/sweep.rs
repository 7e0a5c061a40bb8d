//! Cleaning up: what has expired, stripes that nothing refers to, and what gateways left that died.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::Result;

use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::{unread, unwritten};
use crate::heads::Seen;
use crate::index::Settle;
use crate::names::{self, GARBAGE, INTENTS, NAMESPACES, PENDING};
use crate::namespaces::{GATEWAYS, ORPHANS, Orphan};
use crate::plan::Draft;
use crate::record::Entry;
use crate::sys::{Errno, Guard, Lease, ReadOp, WriteOp};
use crate::under_way::{Intent, Named, Pending, Sum, decode_garbage, encode_garbage};

/// How often a counter is added that others add to meanwhile.
const FOLDS: usize = 8;
/// Expired entries that one look gives.
const EXPIRED: u64 = 256;

impl Core {
    /// Drops what has expired in a namespace.
    pub async fn expire(self: &Arc<Self>, namespace: &Arc<Namespace>) -> Result<()> {
        for shard in &namespace.shards {
            let mut after = Vec::new();
            loop {
                let mut op = ReadOp::new(&namespace.index);
                op.omap(&after, names::EXPIRING, EXPIRED);
                let read = match self
                    .access
                    .read(&namespace.index, &shard.object, op, 0)
                    .await
                {
                    Err(Errno(libc::ENOENT)) => return Ok(()),
                    Err(errno) => return Err(unread(errno, "the index")),
                    Ok(read) => read,
                };
                let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
                let now = self.now();
                let mut due = 0;
                for (name, _) in &pairs {
                    after = name.to_vec();
                    let Some((at, entry)) = names::expiring_entry(name) else {
                        continue;
                    };
                    if at > now {
                        break;
                    }
                    due += 1;
                    if let Some((space, key)) = names::entry_key(entry) {
                        self.drop_expired(namespace, &Named { space, key }).await?;
                    }
                }
                if due < pairs.len() || !more || pairs.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn drop_expired(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
    ) -> Result<()> {
        let expiry = Expiry {
            core: self,
            namespace,
            named,
        };
        self.change(namespace, named, false, expiry).await.map(drop)
    }

    /// Removes stripes whose time is over.
    pub async fn collect(&self, namespace: &Namespace) -> Result<()> {
        let mut due = Vec::new();
        let now = self.now();
        let journal = namespace.journal.object();
        let each = |name: Bytes, value: Bytes| {
            if let Some((at, id)) = names::garbage_id(&name)
                && at <= now
                && !self.pins.is_pinned(id)
            {
                due.push((name, value));
            }
        };
        self.keys(&namespace.index, journal, GARBAGE, each).await?;
        for (name, value) in due {
            if let Ok(segment) = decode_garbage(&value) {
                self.remove_stripes(&namespace.stripes, segment).await?;
            }
            namespace.journal.later(Vec::new(), [name.to_vec()]);
        }
        Ok(())
    }

    /// Cleans up after gateways that died: their changes are looked up and entered, their values under way are dropped. One at a time.
    pub async fn sweep(self: &Arc<Self>) -> Result<usize> {
        let _only = self.cleaning.lock().await;
        self.sweep_alone().await
    }

    /// The same, for whoever sees to it that nobody else of this gateway does it.
    pub async fn sweep_alone(self: &Arc<Self>) -> Result<usize> {
        let mut gateways = Vec::new();
        let mut orphans = Vec::new();
        let each = |name: Bytes, value: Bytes| {
            if let Some(digits) = name.strip_prefix(GATEWAYS) {
                let gateway = std::str::from_utf8(digits).ok();
                gateways.extend(gateway.and_then(|text| u64::from_str_radix(text, 16).ok()));
            } else if name.starts_with(ORPHANS)
                && let Ok(orphan) = Orphan::decode(&value)
            {
                orphans.push((name, orphan));
            }
        };
        self.keys(&self.registry, NAMESPACES, b"", each).await?;
        let orphans = self.orphaned(orphans).await?;
        let writers = orphans
            .iter()
            .map(|(_, orphan)| names::gateway_of(orphan.segment.id));
        let asked: BTreeSet<u64> = gateways.iter().copied().chain(writers).collect();
        let dead = self.find_dead(&asked).await?;
        let mut swept = 0;
        for gateway in gateways.iter().filter(|gateway| dead.contains(gateway)) {
            swept += usize::from(self.sweep_gateway(*gateway).await?);
        }
        for (name, orphan) in orphans {
            let by = names::gateway_of(orphan.segment.id);
            if by == self.gateway || dead.contains(&by) {
                self.remove_orphan(&name, &orphan).await?;
            }
        }
        // Asking made an object of those that nobody knew any more.
        for gateway in dead.iter().filter(|gateway| !gateways.contains(gateway)) {
            self.forget_gateway(*gateway).await?;
        }
        Ok(swept)
    }

    /// Those that nobody reads and whose namespace is gone. The others' records stay: whoever deletes the namespace in the end will have
    /// remembered no other.
    async fn orphaned(&self, found: Vec<(Bytes, Orphan)>) -> Result<Vec<(Bytes, Orphan)>> {
        let mut gone = HashMap::new();
        let mut orphans = Vec::new();
        for (name, orphan) in found {
            let of = (orphan.namespace.clone(), orphan.id);
            let is_gone = match gone.get(&of) {
                Some(known) => *known,
                None => self.is_orphaned(&orphan).await?,
            };
            gone.insert(of, is_gone);
            if is_gone && !self.pins.is_pinned(orphan.segment.id) {
                orphans.push((name, orphan));
            }
        }
        Ok(orphans)
    }

    async fn remove_orphan(&self, name: &[u8], orphan: &Orphan) -> Result<()> {
        let spaces = names::Spaces::new(&self.config.base, &orphan.namespace);
        let place = self.access.place(&spaces.stripes);
        let place = place.map_err(|errno| unread(errno, "orphans"))?;
        self.remove_stripes(&place, orphan.segment).await?;
        self.forget_registered(name).await
    }

    /// Which of these gateways are dead, this one aside. What they sent while they were alive may still be on its way when their lease is
    /// over: only after as long as an operation may take nothing of theirs arrives any more.
    async fn find_dead(&self, asked: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let mut dead = BTreeSet::new();
        let others = asked.iter().filter(|gateway| **gateway != self.gateway);
        for gateway in others {
            if self.take_over(*gateway).await? {
                dead.insert(*gateway);
            }
        }
        if !dead.is_empty() {
            tokio::time::sleep(self.access.patience()).await;
        }
        Ok(dead)
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
        let snapshot = self.snapshot();
        for namespace in snapshot.namespaces.values() {
            if !self.take_over(gateway).await? {
                return Ok(false);
            }
            self.sweep_namespace(namespace, gateway).await?;
        }
        self.forget_gateway(gateway).await?;
        Ok(true)
    }

    async fn sweep_namespace(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        gateway: u64,
    ) -> Result<()> {
        let journal = namespace.journal.object();
        let mut pending = Vec::new();
        let mut intents = Vec::new();
        let of = |name: &Bytes| {
            names::numbered(name).filter(|number| names::gateway_of(*number) == gateway)
        };
        let each = |name: Bytes, value: Bytes| {
            if let (Some(number), Ok(found)) = (of(&name), Pending::decode(&value)) {
                pending.push((name, number, found));
            }
        };
        self.keys(&namespace.index, journal, PENDING, each).await?;
        let each = |name: Bytes, value: Bytes| {
            if let (Some(_), Ok(found)) = (of(&name), Intent::decode(&value)) {
                intents.push((name, value, found));
            }
        };
        self.keys(&namespace.index, journal, INTENTS, each).await?;
        for (name, number, found) in pending {
            if found.composes {
                self.finish_composition(namespace, &found.named, number)
                    .await?;
            }
            let entry = names::entry(found.named.space, &found.named.key);
            namespace.shard(&entry).settle(Settle {
                named: found.named,
                before: None,
                after: None,
                ended: vec![name.to_vec()],
                freed: found.freed,
                unsure: true,
                counted: Sum::default(),
            });
        }
        self.settle(namespace).await?;
        for (name, value, found) in intents {
            let (_, referenced) = self.look_raw(namespace, &found.named).await?;
            let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
            // Somebody may have made it part of something else since.
            op.omap_equals(&name, &value);
            op.omap_remove([&name[..]]);
            if !referenced.contains(&found.segment.id) {
                let garbage = names::garbage(self.now(), found.segment.id);
                op.omap_set([(&garbage[..], &encode_garbage(&found.segment)[..])]);
            }
            match self
                .access
                .write(&namespace.index, journal, op, None, 0)
                .await
            {
                Ok(_) | Err(Errno(libc::ECANCELED | libc::ENOENT)) => {}
                Err(errno) => return Err(unwritten(errno, "the journal")),
            }
        }
        self.collect(namespace).await?;
        self.find_gone(namespace).await?;
        self.fold(namespace, gateway).await?;
        namespace
            .journal
            .flush()
            .await
            .map_err(|errno| unread(errno, "the journal"))
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
            shard.forget_gone(self, namespace).await?;
        }
        Ok(())
    }

    async fn forget_gateway(&self, gateway: u64) -> Result<()> {
        let object = names::gateway(gateway);
        let mut op = WriteOp::new(&self.registry);
        op.remove();
        match self
            .access
            .write(&self.registry, &object, op, None, 0)
            .await
        {
            Ok(_) | Err(Errno(libc::ENOENT)) => {}
            Err(errno) => return Err(unwritten(errno, "a gateway")),
        }
        let mut key = GATEWAYS.to_vec();
        key.extend_from_slice(format!("{gateway:016x}").as_bytes());
        self.forget_registered(&key).await
    }

    async fn forget_registered(&self, key: &[u8]) -> Result<()> {
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_remove([key]);
        self.write_registry(op).await
    }

    /// Enters this gateway among the living.
    pub async fn register(&self) -> Result<()> {
        let mut key = GATEWAYS.to_vec();
        key.extend_from_slice(format!("{:016x}", self.gateway).as_bytes());
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_set([(&key[..], &[][..])]);
        self.write_registry(op).await
    }

    /// Leaves: there is nothing to be cleaned up.
    pub async fn unregister_gateway(&self) -> Result<()> {
        self.forget_gateway(self.gateway).await
    }
}

/// Dropping what has expired.
struct Expiry<'e> {
    core: &'e Arc<Core>,
    namespace: &'e Arc<Namespace>,
    named: &'e Named,
}

impl Decide for Expiry<'_> {
    type Answer = ();

    async fn decide(&mut self, seen: &Seen) -> Result<Decision<()>> {
        let Some(head) = seen.head.as_deref() else {
            return Ok(Decision::Leave(()));
        };
        let now = self.core.now();
        if head.expires_next.is_none_or(|at| at > now) {
            return Ok(Decision::Leave(()));
        }
        let Some(view) = self
            .core
            .kept(self.namespace, self.named, seen, None)
            .await?
        else {
            return Ok(Decision::Again);
        };
        // Even if nothing is dropped the time is corrected.
        let draft = Draft::begin(self.named.space, head.clone(), view, now);
        Ok(Decision::Do(Step::new(draft), ()))
    }
}
