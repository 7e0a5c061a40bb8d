//! Reading namespaces and tenants' bounds into a snapshot, whenever somebody says that they changed, and every so often.
//!
//! What is new is opened beside that, by itself: as long as its index does not answer it is not there, and keeps no other news back.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::Result;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use crate::core::{Core, Namespace, Snapshot};
use crate::error::{Parts, unread};
use crate::keeper::REFRESH;
use crate::names::NAMESPACES;
use crate::namespaces::{NAMESPACE, PATIENCE, Registered, TENANT, read_quota};
use crate::record::begin;
use crate::sweep::registered_name;
use crate::sys::Errno;
use crate::under_way::Sum;

/// Namespaces that are opened at once.
const AT_ONCE: usize = 64;

impl Core {
    /// Reads namespaces and tenants anew, and opens what is new as far as that does not put off the next reading: whoever changes
    /// something counts on that.
    pub async fn reload(&self) -> Result<()> {
        let new = self.read_registry().await?;
        let names: Vec<String> = new.iter().map(|found| found.info.name.clone()).collect();
        let opened = timeout(REFRESH.saturating_sub(PATIENCE), self.open_new(new));
        opened.await.unwrap_or_else(|_| {
            let stuck = names.iter().find(|name| self.namespace(name).is_err());
            let stuck = stuck.map_or("a namespace", String::as_str);
            Err(unread(Errno(libc::ETIMEDOUT), stuck))
        })
    }

    /// The same for the first time: everything is opened, however long it takes.
    pub async fn load(&self) -> Result<()> {
        let new = self.read_registry().await?;
        self.open_new(new).await
    }

    /// Takes in what the registry says; the namespaces that are not open yet.
    async fn read_registry(&self) -> Result<Vec<Registered>> {
        let _one = self.reloading.lock().await;
        let mut registered = Vec::new();
        let mut tenants = Vec::new();
        let own = registered_name(self.gateway);
        let (mut others, mut is_known) = (0, false);
        let (old, mut kept, mut unknown) = (self.snapshot(), BTreeMap::new(), None);
        let unreadable = |what: &str| {
            tracing::warn!(
                what,
                "its record cannot be read: what was known of it holds"
            );
        };
        let each = |name: Bytes, value: Bytes| match name.first() {
            Some(&NAMESPACE) => match Registered::decode(&value) {
                Ok(found) => registered.push(found),
                Err(_) => {
                    let name = String::from_utf8_lossy(&name[1..]).into_owned();
                    unreadable(&name);
                    match old.namespaces.get(&name) {
                        Some(known) => drop(kept.insert(name, known.clone())),
                        None => unknown = Some(name),
                    }
                }
            },
            Some(&TENANT) => {
                let tenant = String::from_utf8_lossy(&name[1..]).into_owned();
                let quota = begin(&value).and_then(|mut reader| read_quota(&mut reader));
                let quota = quota.ok().or_else(|| {
                    unreadable(&tenant);
                    old.tenants.get(&tenant).copied()
                });
                tenants.extend(quota.map(|quota| (tenant, quota)));
            }
            Some(b'g') if name == own[..] => is_known = true,
            Some(b'g') => others += 1,
            _ => {}
        };
        self.keys(&self.registry, NAMESPACES, b"", each).await?;
        self.notices.set_alone(others == 0);
        if !is_known && !self.pulse.has_ended() {
            self.unknown.notify_one();
        }
        let ids = registered.iter().map(|found| found.info.id);
        let ids: HashSet<u32> = ids.chain(kept.values().map(|known| known.id)).collect();
        self.books.keep(|id| ids.contains(&id), &tenants);
        let mut snapshot = Snapshot {
            namespaces: kept,
            tenants: tenants.into_iter().collect(),
            unknown,
        };
        let mut new = Vec::new();
        for found in registered {
            let info = &found.info;
            // Before counters are read, which changes what this gateway's own add up to.
            self.books.open(info, None);
            let known = old.namespaces.get(&info.name);
            let Some(known) = known.filter(|known| known.id == info.id) else {
                new.push(found);
                continue;
            };
            if known.info().revision != info.revision {
                known.set_info(info.clone());
            }
            snapshot.namespaces.insert(info.name.clone(), known.clone());
        }
        self.replace_snapshot(snapshot);
        Ok(new)
    }

    async fn open_new(&self, new: Vec<Registered>) -> Result<()> {
        let opened = new.into_iter().map(|found| async move {
            let name = found.info.name.clone();
            (name, self.open_one(found).await)
        });
        let mut opened = stream::iter(opened).buffer_unordered(AT_ONCE);
        let mut parts = Parts::default();
        while let Some((name, opened)) = opened.next().await {
            parts.done(&name, opened);
        }
        parts.end()
    }

    /// Reads what a namespace's values add up to, and has it among those that there are.
    async fn open_one(&self, found: Registered) -> Result<()> {
        let Registered { info, shards } = found;
        let (name, id) = (info.name.clone(), info.id);
        let _only = self.opening(id).await;
        if self.namespace(&name).is_ok_and(|open| open.id == id) {
            return Ok(());
        }
        let opened = Namespace::open(&self.access, &self.config.base, info, shards);
        let opened = opened.map_err(|errno| unread(errno, &name))?;
        self.recount(&opened).await?;
        // It may have been changed or deleted meanwhile, and whoever did it may have been told that this gateway knows.
        let _one = self.reloading.lock().await;
        let now = self.registered(&name).await?;
        if let Some(now) = now.filter(|now| now.info.id == id) {
            self.books.open(&now.info, None);
            opened.set_info(now.info);
            self.add_namespace(name, Arc::new(opened));
        }
        Ok(())
    }

    /// Reads again what other gateways have counted.
    pub async fn recount(&self, namespace: &Namespace) -> Result<()> {
        let others = self.counted_by_others(namespace).await?;
        self.books.open(&namespace.info(), Some(others));
        Ok(())
    }

    async fn counted_by_others(&self, namespace: &Namespace) -> Result<Sum> {
        let shards = namespace.shards.iter();
        let counts = shards.map(|shard| shard.recount(self, namespace));
        let counts = try_join_all(counts).await?;
        Ok(counts.into_iter().fold(Sum::default(), Sum::plus))
    }
}
