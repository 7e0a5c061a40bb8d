//! What a composition takes is claimed, and then removed or given back (`docs/rados.md` section 5).
//!
//! As long as a composition is not over, nobody else changes a value that it has claimed. Who makes sure that nothing comes late gives any
//! object another version, a claimed one too: so what is claimed is known by its claim, and not by its version.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use forebay_store::{Result, Space, StoreError, Usage};
use futures_util::{StreamExt, stream};

use crate::compose::AT_ONCE;
use crate::core::{Core, Namespace};
use crate::error::{is_certain, shown, unread, unwritten};
use crate::heads::{CLAIM, LOOKS, Seen, changing, set_record};
use crate::index::Settle;
use crate::names;
use crate::record::{Entry, Head, Segment};
use crate::sys::{Errno, Guard, WriteOp};
use crate::under_way::{Named, Sum};
use crate::upload::new_head;

/// What claiming came to.
pub(crate) enum Claims {
    All(Vec<(Named, Seen)>),
    /// Another composition has one, or it changed: everything is looked at again.
    Again,
}

impl Core {
    /// Claims what was seen for a composition.
    pub async fn claim(
        &self,
        namespace: &Arc<Namespace>,
        number: u128,
        taken: &BTreeMap<Vec<u8>, Seen>,
    ) -> Result<Claims> {
        let there = taken.iter().filter(|(_, seen)| seen.head.is_some());
        let there: Vec<_> = there
            .map(|(key, seen)| (key.clone(), seen.clone()))
            .collect();
        let claims = there.into_iter().map(|(key, seen)| async move {
            let named = staged(key);
            let stamp = seen.head.as_ref().map(|head| head.stamp);
            // The claim of one that is over says nothing any more.
            if self.is_taken(namespace, &seen).await? {
                return Ok(Err(named));
            }
            let (place, object) = namespace.object(named.space, &named.key);
            let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
            op.set_xattr(CLAIM, &number.to_le_bytes());
            let done = self.access.write(place, &object, op, stamp, 0).await;
            self.heads.forget(namespace.id, &named);
            match done {
                Ok(version) => Ok(Ok((named, seen, version))),
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(Err(named)),
                Err(errno) => Err(unwritten(errno, &shown(&named.key))),
            }
        });
        let claims: Vec<_> = stream::iter(claims)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut claimed = Vec::new();
        let mut again = false;
        let mut failed = None;
        for claim in claims {
            match claim {
                Ok(Ok((named, seen, version))) => claimed.push((named, seen, version)),
                Ok(Err(_)) => again = true,
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if again {
            for (named, seen, version) in claimed {
                self.unclaim(namespace, &named, version, &seen).await?;
            }
            return Ok(Claims::Again);
        }
        let claimed = claimed.into_iter();
        let claimed = claimed.map(|(named, seen, version)| (named, Seen { version, ..seen }));
        Ok(Claims::All(claimed.collect()))
    }

    async fn unclaim(
        &self,
        namespace: &Namespace,
        named: &Named,
        version: u64,
        seen: &Seen,
    ) -> Result<()> {
        let stamp = seen.head.as_ref().map(|head| head.stamp);
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = WriteOp::new(place).guard(Guard::Version(version));
        op.remove_xattr(CLAIM);
        match self.access.write(place, &object, op, stamp, 0).await {
            Ok(_) | Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(()),
            Err(errno) => Err(unwritten(errno, &shown(&named.key))),
        }
    }

    /// Gives everything back that a composition has claimed, and ends it.
    pub async fn undo(
        &self,
        namespace: &Arc<Namespace>,
        target: &Named,
        number: u128,
    ) -> Result<()> {
        for key in self.taken_by(namespace, number).await?.unwrap_or_default() {
            let named = staged(key);
            let seen = self.look_raw(namespace, &named).await?;
            if let Some(seen) = seen.filter(|seen| seen.claim == Some(number)) {
                self.unclaim(namespace, &named, seen.version, &seen).await?;
            }
        }
        self.clear_way(namespace, target).await?;
        self.unsay(namespace, number).await
    }

    /// Makes a record of a key that is not there, which has nothing; `None` when there is one by now. What is sent for the key from then
    /// on names a version: it can be refused when it comes late.
    pub async fn make_way(&self, namespace: &Namespace, named: &Named) -> Result<Option<Seen>> {
        let (place, object) = namespace.object(named.space, &named.key);
        let head = Head {
            stamp: self.seconds(),
            ..new_head(named)
        };
        let mut op = WriteOp::new(place).guard(Guard::Absent);
        let pieces = set_record(&mut op, namespace, &head.encode(), 0);
        let made = self.access.write(place, &object, op, Some(head.stamp), 0);
        match made.await {
            Ok(version) => Ok(Some(Seen {
                head: Some(Arc::new(head)),
                pieces,
                ..Seen::absent(version)
            })),
            Err(Errno(libc::EEXIST)) => Ok(None),
            Err(errno) => Err(unread(errno, &shown(&named.key))),
        }
    }

    /// Removes the record of a key that has nothing. Who still wants to put something there makes way anew.
    pub async fn clear_way(&self, namespace: &Namespace, named: &Named) -> Result<()> {
        let seen = self.look_raw(namespace, named).await?;
        let is_empty = |seen: &Seen| seen.head.as_ref().is_some_and(|head| head.is_empty());
        let Some(seen) = seen.filter(is_empty) else {
            return Ok(());
        };
        let (place, object) = namespace.object(named.space, &named.key);
        let mut op = WriteOp::new(place).guard(Guard::Version(seen.version));
        op.remove();
        match self.access.write(place, &object, op, None, 0).await {
            Ok(_) | Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => Ok(()),
            Err(errno) => Err(unwritten(errno, &shown(&named.key))),
        }
    }

    /// Removes what a composition has claimed, whose bytes belong to the target or are let go.
    pub async fn take_away(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        number: u128,
        claimed: &[(Named, Seen)],
        target: &Seen,
    ) -> Result<()> {
        let joined = segments(target).map(|segment| segment.id);
        let joined: &HashSet<u128> = &joined.collect();
        let removals = claimed.iter().cloned().map(|(named, seen)| async move {
            let removed = self.remove_claimed(namespace, number, &named, seen.version);
            if !removed.await? {
                self.find_out(namespace, named);
                return Ok(());
            }
            let head = seen.head.as_ref();
            let usage = head.map(|head| head.usage).unwrap_or_default();
            let counted = Sum::between(usage, Usage::default());
            self.books.changed(namespace.id, counted);
            let freed = segments(&seen).filter(|segment| !joined.contains(&segment.id));
            self.settle_staged(namespace, named, counted, freed.copied().collect());
            Ok::<_, StoreError>(())
        });
        // What the others let go is lost if they are given up with the one that failed.
        let mut removals = stream::iter(removals).buffer_unordered(AT_ONCE);
        let mut done = Ok(());
        while let Some(removed) = removals.next().await {
            done = done.and(removed);
        }
        done?;
        let keys = claimed.iter().map(|(named, _)| named.clone());
        let keys: Vec<Named> = keys.collect();
        self.settle_those(namespace, &keys).await
    }

    /// Removes one claimed value, whatever version it was given meanwhile; false when the claim is gone, and the value with it.
    async fn remove_claimed(
        &self,
        namespace: &Namespace,
        number: u128,
        named: &Named,
        mut version: u64,
    ) -> Result<bool> {
        let (place, object) = namespace.object(named.space, &named.key);
        for _ in 0..LOOKS {
            let mut op = WriteOp::new(place).guard(Guard::Version(version));
            op.remove();
            let done = self.access.write(place, &object, op, None, 0).await;
            self.heads.forget(namespace.id, named);
            match done {
                Ok(_) => return Ok(true),
                Err(Errno(libc::ENOENT)) => return Ok(false),
                Err(Errno(libc::ERANGE | libc::EOVERFLOW)) => {}
                Err(errno) if is_certain(errno) => return Err(unread(errno, &shown(&named.key))),
                Err(errno) => return Err(unwritten(errno, &shown(&named.key))),
            }
            let seen = self.look_raw(namespace, named).await?;
            match seen.filter(|seen| seen.claim == Some(number)) {
                Some(seen) => version = seen.version,
                None => return Ok(false),
            }
        }
        Err(changing(&named.key))
    }

    /// Lets the index find out what there is under a key.
    pub fn find_out(&self, namespace: &Arc<Namespace>, named: Named) {
        self.settle_staged(namespace, named, Sum::default(), Vec::new());
    }

    fn settle_staged(
        &self,
        namespace: &Arc<Namespace>,
        named: Named,
        counted: Sum,
        freed: Vec<Segment>,
    ) {
        let entry = names::entry(named.space, &named.key);
        namespace.shard(&entry).settle(Settle {
            named,
            before: None,
            after: None::<Entry>,
            ended: HashSet::new(),
            freed: freed.into_iter().collect(),
            unsure: false,
            counted,
        });
    }
}

pub(crate) fn staged(key: Vec<u8>) -> Named {
    Named {
        space: Space::Staging,
        key,
    }
}

/// Stripes of what is current.
pub(crate) fn segments(seen: &Seen) -> impl Iterator<Item = &Segment> {
    let current = seen.head.as_ref().and_then(|head| head.current.as_ref());
    current.map_or(&[][..], |value| value.segments()).iter()
}
