//! Taking over what other hands wrote before anybody asks for it: the whole pool is looked through, slowly, by one gateway at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_store::limits::check_key;
use forebay_store::{Result, Space, StoreError};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::core::{Core, Namespace};
use crate::error::{is_unreadable, shown, unread};
use crate::names::{self, ADOPTING};
use crate::pool::{Listing, names_in};
use crate::record::Entry;
use crate::sys::{ALL, Errno, Lease, ReadOp};
use crate::under_way::Named;

/// So long who is served has the cluster to itself after each of these.
const PAUSE: Duration = Duration::from_millis(100);

/// Of what cannot be read so many are named.
const NAMED_MAX: usize = 1000;

/// Names of objects, by the forebay namespace that they are in.
type Batch = HashMap<String, Found>;

#[derive(Default)]
struct Found {
    keys: Vec<Vec<u8>>,
    /// Objects whose names are no keys.
    named: Vec<Vec<u8>>,
}

/// Looks through the pool now and every so often, as the configuration says. Who has begun holds a lock until it is due again: nobody else
/// begins meanwhile.
pub(crate) async fn adopt_now_and_then(core: Arc<Core>) {
    let Some(period) = core.config.adopt else {
        return;
    };
    loop {
        let begun = Instant::now();
        match core.look_through(period).await {
            Ok(0) => {}
            Ok(adopted) => tracing::info!(adopted, "objects of other hands were taken over"),
            Err(error) => tracing::debug!(%error, "the pool was not looked through"),
        }
        sleep(period.saturating_sub(begun.elapsed())).await;
    }
}

/// What came of looking through a namespace.
#[derive(Debug, Default)]
pub struct Adopted {
    /// By how many values there are more.
    pub more: usize,
    /// What cannot be read, the first 1000 of it, each in words that name it. It kept nothing else from being looked at.
    pub unreadable: Vec<StoreError>,
    /// How much more cannot be read.
    pub unnamed: usize,
}

impl Adopted {
    fn unless_unreadable<T>(&mut self, done: Result<T>) -> Result<()> {
        match done {
            Err(error) if is_unreadable(&error) => {
                tracing::warn!(%error, "it is left as it is");
                match self.unreadable.len() < NAMED_MAX {
                    true => self.unreadable.push(error),
                    false => self.unnamed += 1,
                }
                Ok(())
            }
            done => done.map(drop),
        }
    }
}

impl Core {
    /// See [`RadosStore::adopt`](crate::RadosStore::adopt).
    pub async fn adopt_all(self: &Arc<Self>, namespace: &Arc<Namespace>) -> Result<Adopted> {
        let mut adopted = Adopted::default();
        let mut keys = names_in(namespace.data()).await?;
        let mut all_named = true;
        for object in names_in(namespace.named()).await? {
            match self.key_of(namespace.named(), &object).await {
                Ok(key) => keys.extend(key),
                failed => {
                    all_named = false;
                    adopted.unless_unreadable(failed)?;
                }
            }
        }
        for shard in &namespace.shards {
            let mut listed = HashSet::new();
            let each = |name: Bytes, value: Bytes| {
                let there = Entry::decode(&value).is_ok_and(|entry| entry.known.is_some());
                let key = names::entry_key(&name).filter(|_| there);
                listed.extend(key.map(|(_, key)| key));
            };
            let section = [names::OBJECTS];
            self.keys(&namespace.index, &shard.object, &section, each)
                .await?;
            keys.retain(|key| !listed.remove(key));
            // What is left was removed by another hand, or is new: the object tells.
            for key in listed {
                // The object that cannot be read may be this key's: looking would find nothing else.
                if !all_named && key.contains(&0) {
                    continue;
                }
                self.find_out(namespace, Named::object(key));
            }
        }
        let before = self.books.namespace(namespace.id).objects;
        keys.retain(|key| check_key(Space::Objects, key).is_ok());
        for key in keys {
            let entered = self.enter_unlisted(namespace, &Named::object(key)).await;
            adopted.unless_unreadable(entered)?;
        }
        adopted.unless_unreadable(self.settle(namespace).await)?;
        let after = self.books.namespace(namespace.id).objects;
        adopted.more = after.saturating_sub(before) as usize;
        Ok(adopted)
    }

    /// Takes over what no index has; how much. Nothing, if another gateway does it, or has done it less than `period` ago.
    async fn look_through(self: &Arc<Self>, period: Duration) -> Result<usize> {
        let mut due = Instant::now();
        let mut names = self.names_in_pool()?;
        let mut adopted = 0;
        loop {
            if due <= Instant::now() {
                if !self.take_turn(period).await? {
                    return Ok(adopted);
                }
                due = Instant::now() + period / 2;
            }
            let Some(batch) = names.next().await? else {
                return Ok(adopted);
            };
            for (name, found) in batch {
                if let Ok(namespace) = self.namespace(&name) {
                    let mut keys = found.keys;
                    for object in found.named {
                        match self.key_of(namespace.named(), &object).await {
                            Ok(key) => keys.extend(key),
                            Err(error) => {
                                tracing::debug!(%error, object = shown(&object), "it is left as it is");
                            }
                        }
                    }
                    adopted += self.adopt_unlisted(&namespace, keys).await?;
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn take_turn(&self, period: Duration) -> Result<bool> {
        let lease = self.turn().map_err(|errno| unread(errno, "a turn"))?;
        match spawn_blocking(move || lease.take(period)).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Errno(libc::EBUSY | libc::EEXIST))) | Err(_) => Ok(false),
            Ok(Err(errno)) => Err(unread(errno, "a turn")),
        }
    }

    /// Lets another gateway look through the pool, if it was this one's turn.
    pub async fn give_turn_back(&self) {
        if self.config.adopt.is_some()
            && let Ok(lease) = self.turn()
        {
            let _ = spawn_blocking(move || lease.release()).await;
        }
    }

    fn turn(&self) -> std::result::Result<Lease, Errno> {
        let cookie = format!("{:016x}", self.gateway);
        Lease::new(&self.registry, ADOPTING, cookie.as_bytes())
    }

    /// The names of all objects in which keys may be, in batches.
    fn names_in_pool(&self) -> Result<Listing<Batch>> {
        let pool = self.access.place(ALL);
        let pool = pool.map_err(|errno| unread(errno, "the pool"))?;
        let base = self.config.base.clone();
        Ok(Listing::by(pool, move |batch: &mut Batch, space, name| {
            let space = std::str::from_utf8(space).unwrap_or_default();
            let keys = names::namespace_of(&base, space);
            let Some(namespace) = keys.or_else(|| names::named_of(&base, space)) else {
                return false;
            };
            let found = batch.entry(namespace.to_owned()).or_default();
            let names = match keys {
                Some(_) => &mut found.keys,
                None => &mut found.named,
            };
            names.push(name.to_vec());
            true
        }))
    }

    /// Looks at those of these keys that the index does not have; how many there are.
    async fn adopt_unlisted(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        keys: Vec<Vec<u8>>,
    ) -> Result<usize> {
        let mut adopted = 0;
        for key in self.unlisted(namespace, keys).await? {
            let named = Named::object(key);
            match self.enter_unlisted(namespace, &named).await {
                Ok(there) => adopted += usize::from(there),
                Err(error) => {
                    tracing::debug!(%error, key = shown(&named.key), "an object was not taken over");
                }
            }
        }
        Ok(adopted)
    }

    /// Has the index know of a key that it does not have: takes its object over, or finds out what ours is. Whether there is one.
    pub(crate) async fn enter_unlisted(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: &Named,
    ) -> Result<bool> {
        let seen = self.look_raw(namespace, named).await?;
        if let Some(head) = seen.and_then(|seen| seen.head) {
            if head.is_empty() {
                self.clear_way(namespace, named).await?;
                return Ok(false);
            }
            self.find_out(namespace, named.clone());
            self.enter_soon(namespace);
            return Ok(true);
        }
        Ok(self.look(namespace, named).await?.head.is_some())
    }

    async fn unlisted(
        &self,
        namespace: &Arc<Namespace>,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>> {
        let shards = namespace.shards.len() as u32;
        let mut parts: Vec<HashMap<Vec<u8>, Vec<u8>>> = Vec::new();
        parts.resize_with(namespace.shards.len(), HashMap::new);
        for key in keys {
            if check_key(Space::Objects, &key).is_ok() {
                let entry = names::entry(Space::Objects, &key);
                parts[names::shard_of(&entry, shards) as usize].insert(entry, key);
            }
        }
        let mut unlisted = Vec::new();
        for (shard, mut keys) in namespace.shards.iter().zip(parts) {
            if keys.is_empty() {
                continue;
            }
            let mut op = ReadOp::new(&namespace.index);
            op.omap_keys(keys.keys().map(Vec::as_slice));
            let read = self.access.read(&namespace.index, &shard.object, op, 0);
            let read = match read.await {
                Err(Errno(libc::ENOENT)) => return Ok(Vec::new()),
                Err(errno) => return Err(unread(errno, "the index")),
                Ok(read) => read,
            };
            for (name, value) in read.omap.into_iter().next().unwrap_or_default().0 {
                if Entry::decode(&value).is_ok_and(|entry| entry.known.is_some()) {
                    keys.remove(&name[..]);
                }
            }
            unlisted.extend(keys.into_values());
        }
        Ok(unlisted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::malformed;

    #[test]
    fn all_that_cannot_be_read_is_counted_and_some_is_named() {
        let mut adopted = Adopted::default();
        for _ in 0..5000 {
            let looked: Result<()> = Err(malformed("a key"));
            adopted.unless_unreadable(looked).unwrap();
        }
        assert_eq!((adopted.unreadable.len(), adopted.unnamed), (1000, 4000));
    }
}
