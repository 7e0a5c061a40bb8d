//! Lists: the parts of the index, merged; keys whose changes the index may not know yet are looked at.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_store::limits::LIST_ITEMS_MAX;
use forebay_store::listing::{Collapse, Visit, versions_before};
use forebay_store::{
    After, Item, ListOptions, ListPage, Meta, Result, Space, VersionId, VersionItem, VersionPage,
};
use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::core::{Core, Namespace};
use crate::error::{is_unreadable, malformed, unread};
use crate::heads::{LOOKS, changing};
use crate::kept::Pages;
use crate::names;
use crate::record::{Entry, Head, Kept, Known, Value};
use crate::sys::{Errno, Pairs, ReadOp};
use crate::under_way::Named;

/// Entries of one look at a part of the index.
const LEAST: u64 = 32;
const MOST: u64 = 1000;
/// A list finishes what this gateway has under way first, if it is more than this.
const UNDER_WAY: usize = 4;
/// It waits no longer for that: a key may not answer.
const SETTLING: Duration = Duration::from_secs(1);

/// What a list finds under a key.
struct At {
    /// As the index says; `None`: it knows nothing, or that the key is gone.
    known: Option<Known>,
    /// Whether that may not hold any more, or cannot be read: the key is to be looked at.
    unsure: bool,
}

impl At {
    /// The current value, if it has not expired.
    fn current(&self, now: u64) -> Option<&Meta> {
        let current = self.known.as_ref()?.current.as_ref();
        current.filter(|meta| meta.expires.is_none_or(|at| at > now))
    }
}

/// Where amid a key's versions a list goes on.
enum From {
    Start,
    /// Behind this one, which may be gone.
    Behind(VersionId),
    Amid(Pages),
}

impl From {
    fn pages(&self, head: &Head) -> Pages {
        match self {
            From::Start => Pages::after(Vec::new()),
            From::Behind(VersionId::NULL) => {
                let current = head.current.as_ref().filter(|current| current.null);
                let seq = current.map(|current| current.seq).or(head.kept_null);
                Pages::after(seq.map(Kept::name).unwrap_or_default())
            }
            From::Behind(version) => Pages::after(Kept::name(version.0)),
            From::Amid(pages) => pages.clone(),
        }
    }
}

/// Some of a key's versions.
#[derive(Default)]
struct Shown {
    items: Vec<VersionItem>,
    /// Whether some could not be read, and were passed over.
    passed_over: bool,
    /// Where the next ones are.
    rest: Option<Pages>,
}

/// A way through all parts of an index, in order of keys.
struct Walk<'w> {
    core: &'w Arc<Core>,
    namespace: &'w Arc<Namespace>,
    space: Space,
    filter: Vec<u8>,
    pending: BTreeSet<Vec<u8>>,
    parts: Vec<Part>,
    /// Keys before this are passed.
    from: Vec<u8>,
    page: u64,
}

struct Part {
    ahead: VecDeque<(Bytes, Bytes)>,
    after: Vec<u8>,
    more: bool,
}

impl<'w> Walk<'w> {
    async fn begin(
        core: &'w Arc<Core>,
        namespace: &'w Arc<Namespace>,
        options: &ListOptions<'_>,
        from: Vec<u8>,
    ) -> Result<Walk<'w>> {
        let own: usize = namespace.shards.iter().map(|shard| shard.waiting()).sum();
        if own > UNDER_WAY {
            // A help, no more: what is not entered the journal names, and it is looked at if it is asked for.
            if let Ok(Err(error)) = timeout(SETTLING, core.settle(namespace)).await {
                tracing::debug!(%error, "a list goes by the journal");
            }
            let flushed = core.flush_journal(namespace).await;
            flushed.map_err(|errno| core.not_entered(namespace, errno))?;
        }
        // Before the index: what is settled in between is seen there.
        let pending = core.pending(namespace).await?;
        let pending = pending
            .into_iter()
            .filter(|named| named.space == options.space && named.key.starts_with(options.prefix));
        let mut filter = vec![names::section(options.space)];
        names::escape(options.prefix, &mut filter);
        let parts = namespace.shards.len().max(1) as u64;
        let part = || Part {
            ahead: VecDeque::new(),
            after: Vec::new(),
            more: true,
        };
        Ok(Walk {
            core,
            namespace,
            space: options.space,
            filter,
            pending: pending.map(|named| named.key).collect(),
            parts: namespace.shards.iter().map(|_| part()).collect(),
            from,
            page: (options.limit.min(LIST_ITEMS_MAX) as u64 * 5 / 4 / parts + LEAST).min(MOST),
        })
    }

    /// The next key from `from` on, and what is there.
    async fn peek(&mut self) -> Result<Option<(Vec<u8>, At)>> {
        let mut from = vec![names::section(self.space)];
        names::escape(&self.from, &mut from);
        for part in &mut self.parts {
            while part.ahead.front().is_some_and(|(name, _)| *name < from[..]) {
                part.ahead.pop_front();
            }
        }
        loop {
            let empty = |part: &Part| part.ahead.is_empty() && part.more;
            if !self.parts.iter().any(empty) {
                break;
            }
            let (core, namespace, filter, page) =
                (self.core, self.namespace, &self.filter, self.page);
            let shards = namespace.shards.iter();
            let reads = self
                .parts
                .iter_mut()
                .zip(shards)
                .filter(|(part, _)| empty(part));
            let reads = reads.map(|(part, shard)| {
                let before = names::just_before(&from);
                if before > part.after {
                    part.after = before;
                }
                async {
                    let mut op = ReadOp::new(&namespace.index);
                    op.omap(&part.after, filter, page);
                    let read = core
                        .access
                        .read(&namespace.index, &shard.object, op, 0)
                        .await;
                    let read = read.map_err(|errno| match errno {
                        Errno(libc::ENOENT) => core.gone(namespace),
                        errno => unread(errno, "the index"),
                    })?;
                    let (pairs, more) = read.omap.into_iter().next().unwrap_or_default();
                    if let Some((last, _)) = pairs.last() {
                        part.after = last.to_vec();
                    }
                    part.more = more && !pairs.is_empty();
                    let pairs = pairs.into_iter().filter(|(name, _)| *name >= from[..]);
                    part.ahead.extend(pairs);
                    Ok::<_, forebay_store::StoreError>(())
                }
            });
            try_join_all(reads).await?;
        }
        let fronts = self.parts.iter().filter_map(|part| part.ahead.front());
        let first = fronts.min_by(|left, right| left.0.cmp(&right.0));
        let pending = self.pending.range(self.from.clone()..).next();
        let first = match first {
            Some((name, value)) => {
                let (_, key) = names::entry_key(name).ok_or_else(|| malformed("the index"))?;
                Some((key, value))
            }
            None => None,
        };
        let key = match (&first, pending) {
            (None, None) => return Ok(None),
            (Some((first, _)), Some(pending)) => first.min(pending).clone(),
            (Some((key, _)), None) | (None, Some(key)) => key.clone(),
        };
        let mut at = At {
            known: None,
            unsure: pending == Some(&key),
        };
        if let Some((_, value)) = first.filter(|(first, _)| *first == key) {
            match Entry::decode(value) {
                Ok(entry) => at.known = entry.known,
                Err(_) => at.unsure = true,
            }
        }
        Ok(Some((key, at)))
    }

    fn pass(&mut self, key: Vec<u8>) {
        self.from = key;
        self.from.push(0);
    }

    /// The current value's metadata, if there is one. Of a key whose record cannot be read that is what the index knows: whoever reads it
    /// finds that it cannot be read, and nobody is kept from the rest of the list.
    async fn current(&self, key: &[u8], at: &At) -> Result<Option<Meta>> {
        let now = self.core.now();
        let known = at.current(now);
        let elsewhere = |known: &Known| known.attributes_elsewhere;
        let is_whole = known.is_none() || !at.known.as_ref().is_some_and(elsewhere);
        if is_whole && !at.unsure {
            return Ok(known.cloned());
        }
        match self.core.look(self.namespace, &self.named(key)).await {
            Err(error) if is_unreadable(&error) => Ok(known.cloned()),
            seen => {
                let head = seen?.head;
                let current = head.as_deref().and_then(|head| head.current(now));
                Ok(current.map(Value::meta))
            }
        }
    }

    /// Some of a key's versions, newest first.
    async fn versions(&self, key: &Bytes, at: &At, from: &From) -> Result<Shown> {
        let current = at.current(self.core.now()).cloned();
        let current = current.filter(|meta| match from {
            From::Start => true,
            From::Behind(version) => versions_before([meta.version], *version) == 0,
            From::Amid(_) => false,
        });
        let current = current.map(|meta| VersionItem::Value {
            key: key.clone(),
            meta,
            latest: true,
        });
        let known = |passed_over| Shown {
            items: current.into_iter().collect(),
            passed_over,
            rest: None,
        };
        // Who looks for more looks at a later moment, at which what was current may be kept.
        let has_more = |known: &Known| known.kept > 0 || known.attributes_elsewhere;
        if !at.unsure && !at.known.as_ref().is_some_and(has_more) {
            return Ok(known(false));
        }
        match self.look_at_versions(key, from).await {
            Err(error) if is_unreadable(&error) => Ok(known(true)),
            looked => looked,
        }
    }

    async fn look_at_versions(&self, key: &Bytes, from: &From) -> Result<Shown> {
        let named = self.named(key);
        for _ in 0..LOOKS {
            let seen = self.core.look(self.namespace, &named).await?;
            let Some(head) = seen.head.as_deref() else {
                return Ok(Shown::default());
            };
            let mut pages = from.pages(head);
            let behind = pages.after.clone();
            pages.more = head.kept > 0;
            let pairs = match pages.more {
                true => pages.next(self.core, self.namespace, &named, &seen).await?,
                false => Some(Vec::new()),
            };
            if let Some(pairs) = pairs {
                let mut shown = self.shown(key, head, &behind, &pairs);
                shown.rest = pages.more.then_some(pages);
                return Ok(shown);
            }
        }
        Err(changing(key))
    }

    /// What there is of a key's current value and these kept ones, behind a name that one of these could have.
    fn shown(&self, key: &Bytes, head: &Head, behind: &[u8], pairs: &Pairs) -> Shown {
        let now = self.core.now();
        let value = |value: &Value, latest| VersionItem::Value {
            key: key.clone(),
            meta: value.meta(),
            latest,
        };
        let current = head.current(now);
        let first = current.filter(|current| Kept::name(current.seq)[..] > *behind);
        let mut shown = Shown {
            items: first
                .map(|current| value(current, true))
                .into_iter()
                .collect(),
            ..Shown::default()
        };
        let hides = |seq: u64| {
            let newest = head.marker.filter(|_| current.is_none());
            newest.is_some_and(|(newest, ..)| newest == seq)
        };
        for (_, record) in pairs {
            match Kept::decode(record) {
                Ok(kept) if kept.is_expired(now) => {}
                Ok(Kept::Value(older)) => shown.items.push(value(&older, false)),
                Ok(kept @ Kept::Marker { seq, modified, .. }) => {
                    shown.items.push(VersionItem::Marker {
                        key: key.clone(),
                        version: kept.version(),
                        modified,
                        latest: hides(seq),
                    });
                }
                Err(_) => shown.passed_over = true,
            }
        }
        shown
    }

    fn named(&self, key: &[u8]) -> Named {
        Named {
            space: self.space,
            key: key.to_vec(),
        }
    }
}

impl Core {
    /// See [`forebay_store::Store::list`].
    pub async fn list(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        options: ListOptions<'_>,
    ) -> Result<ListPage> {
        let mut page = ListPage::default();
        let mut collapse = Collapse::new(&options);
        let Some(from) = collapse.start() else {
            return Ok(page);
        };
        let mut walk = Walk::begin(self, namespace, &options, from).await?;
        while let Some((key, at)) = walk.peek().await? {
            let current = walk.current(&key, &at).await?;
            let Some(meta) = current else {
                walk.pass(key);
                continue;
            };
            match collapse.visit(&key) {
                Visit::Item => {
                    page.items.push(Item::Value(key.clone().into(), meta));
                    walk.pass(key);
                }
                Visit::Prefix { prefix, seek } => {
                    page.items
                        .push(Item::Prefix(Bytes::copy_from_slice(prefix)));
                    match seek {
                        Some(seek) => walk.from = seek,
                        None => break,
                    }
                }
                Visit::Full => {
                    page.more = true;
                    break;
                }
                Visit::End => break,
            }
        }
        Ok(page)
    }

    /// See [`forebay_store::Store::list_versions`].
    pub async fn list_versions(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        let mut page = VersionPage::default();
        let mut collapse = Collapse::new(&options);
        let Some(from) = collapse.start_of_versions() else {
            return Ok(page);
        };
        let mut walk = Walk::begin(self, namespace, &options, from).await?;
        'keys: while let Some((key, at)) = walk.peek().await? {
            let key = Bytes::from(key);
            let mut from = match options.after {
                After::Version(from, version) if from == key => From::Behind(version),
                _ => From::Start,
            };
            loop {
                let shown = walk.versions(&key, &at, &from).await?;
                if shown.passed_over {
                    page.passed_over.push(key.clone());
                }
                for item in shown.items {
                    match collapse.visit(&key) {
                        Visit::Item => page.items.push(item),
                        Visit::Prefix { prefix, seek } => {
                            page.items
                                .push(VersionItem::Prefix(Bytes::copy_from_slice(prefix)));
                            match seek {
                                Some(seek) => walk.from = seek,
                                None => break 'keys,
                            }
                            continue 'keys;
                        }
                        Visit::Full => {
                            page.more = true;
                            break 'keys;
                        }
                        Visit::End => break 'keys,
                    }
                }
                match shown.rest {
                    Some(rest) => from = From::Amid(rest),
                    None => break,
                }
            }
            walk.pass(key.to_vec());
        }
        Ok(page)
    }
}
