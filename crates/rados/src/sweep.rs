//! Cleaning up: what has expired, stripes that nothing refers to, and what gateways left that died.

use std::sync::Arc;

use bytes::Bytes;
use forebay_store::Result;

use crate::change::{Decide, Decision, Step};
use crate::core::{Core, Namespace};
use crate::error::{unread, unwritten};
use crate::heads::Seen;
use crate::index::Settle;
use crate::names::{self, GARBAGE, INTENTS, NAMESPACES, PENDING};
use crate::namespaces::{GATEWAYS, ORPHANS, decode_orphan};
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

    /// Cleans up after gateways that died: their changes are looked up and entered, their values under way are dropped.
    pub async fn sweep(self: &Arc<Self>) -> Result<usize> {
        let mut gateways = Vec::new();
        let mut orphans = Vec::new();
        let each = |name: Bytes, value: Bytes| {
            if let Some(digits) = name.strip_prefix(GATEWAYS) {
                let gateway = std::str::from_utf8(digits).ok();
                gateways.extend(gateway.and_then(|text| u64::from_str_radix(text, 16).ok()));
            } else if name.starts_with(ORPHANS) {
                orphans.push((name, value));
            }
        };
        self.keys(&self.registry, NAMESPACES, b"", each).await?;
        let mut swept = 0;
        for gateway in gateways {
            if gateway != self.gateway && self.is_dead(gateway).await? {
                let snapshot = self.snapshot();
                for namespace in snapshot.namespaces.values() {
                    self.sweep_namespace(namespace, gateway).await?;
                }
                self.forget_gateway(gateway).await?;
                swept += 1;
            }
        }
        for (name, value) in orphans {
            let Ok((namespace, segment)) = decode_orphan(&value) else {
                continue;
            };
            let by = names::gateway_of(segment.id);
            if self.pins.is_pinned(segment.id) || (by != self.gateway && !self.is_dead(by).await?) {
                continue;
            }
            let spaces = names::Spaces::new(&self.config.base, &namespace);
            let place = self.access.place(&spaces.stripes);
            let place = place.map_err(|errno| unread(errno, "orphans"))?;
            self.remove_stripes(&place, segment).await?;
            self.forget_registered(&name).await?;
            if by != self.gateway {
                self.forget_gateway(by).await?;
            }
        }
        Ok(swept)
    }

    /// Whether a gateway's lock is over. Taking it is the way to find out: the cluster's clock decides.
    async fn is_dead(&self, gateway: u64) -> Result<bool> {
        let object = names::gateway(gateway);
        let cookie = format!("{:016x}", self.gateway);
        let lease = Lease::new(&self.registry, &object, cookie.as_bytes());
        let lease = lease.map_err(|errno| unread(errno, "a gateway"))?;
        let hold = self.config.lease;
        let taken = tokio::task::spawn_blocking(move || lease.take(hold)).await;
        match taken {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Errno(libc::EBUSY | libc::EEXIST))) | Err(_) => Ok(false),
            Ok(Err(errno)) => Err(unread(errno, "a gateway")),
        }
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
