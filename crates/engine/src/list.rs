//! List pages: a walk over table current, and for versions over table kept beside it.

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_store::listing::{Collapse, Visit};
use forebay_store::{
    After, Item, ListOptions, ListPage, NamespaceInfo, Result, Space, VersionId, VersionItem,
    VersionPage,
};

use crate::entry::Entry;
use crate::index::corrupt;
use crate::keys::{self, Table};
use crate::namespaces::not_empty;
use crate::view::{View, malformed};

/// Rows fetched by the first step after a seek, and at most.
const STEP_MIN: usize = 16;
const STEP_MAX: usize = 512;

/// The rows of one table in order of key, without those past their time.
struct Rows<'a> {
    view: View<'a>,
    table: Table,
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    step: usize,
    fetched: VecDeque<(Bytes, Entry)>,
}

impl Rows<'_> {
    async fn peek(&mut self) -> Result<Option<&(Bytes, Entry)>> {
        let mut again = false;
        while self.fetched.is_empty()
            && let Some(from) = self.from.take()
        {
            // There may be any number of rows that are not shown.
            if std::mem::replace(&mut again, true) {
                tokio::task::yield_now().await;
            }
            let scan = self
                .view
                .scan(self.table, &from, self.until.as_deref(), self.step)?;
            self.step = (self.step * 2).min(STEP_MAX);
            self.from = scan.next;
            for (key, encoded) in scan.rows {
                let entry = Entry::adopt(encoded).map_err(malformed)?;
                if !entry.is_expired(self.view.now) {
                    self.fetched.push_back((key, entry));
                }
            }
        }
        Ok(self.fetched.front())
    }

    async fn next(&mut self) -> Result<Option<(Bytes, Entry)>> {
        self.peek().await?;
        Ok(self.fetched.pop_front())
    }
}

/// How many rows to fetch first: all of the page, unless most may be hidden behind prefixes.
fn first_step(options: &ListOptions<'_>) -> usize {
    match options.delimiter {
        None => options.limit.saturating_add(1).clamp(STEP_MIN, STEP_MAX),
        Some(_) => STEP_MIN,
    }
}

fn current_rows<'a>(
    view: View<'a>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
    from: &[u8],
) -> Rows<'a> {
    let last = keys::current(namespace.id, options.space, options.prefix);
    Rows {
        view,
        table: Table::Current,
        from: Some(keys::current(namespace.id, options.space, from).to_vec()),
        until: keys::after_prefix(&last),
        step: first_step(options),
        fetched: VecDeque::new(),
    }
}

fn kept_rows<'a>(
    view: View<'a>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
    from: Vec<u8>,
) -> Rows<'a> {
    let last = keys::kept_from(namespace.id, options.prefix);
    Rows {
        view,
        table: Table::Kept,
        // Kept entries are of the objects space alone.
        from: (options.space == Space::Objects).then_some(from),
        until: keys::after_prefix(&last),
        step: first_step(options),
        fetched: VecDeque::new(),
    }
}

/// Refuses when a namespace holds anything that is not past its time. Of what is put there meanwhile it may see nothing.
pub(crate) async fn check_empty(view: View<'_>, namespace: &NamespaceInfo) -> Result<()> {
    let prefix = keys::namespace(namespace.id);
    // A kept entry that becomes current is met in one of them: without a value that is put none goes the other way.
    for table in [Table::Kept, Table::Current] {
        let mut rows = Rows {
            view,
            table,
            from: Some(prefix.to_vec()),
            until: keys::after_prefix(&prefix),
            step: STEP_MIN,
            fetched: VecDeque::new(),
        };
        if rows.peek().await?.is_some() {
            return Err(not_empty(&namespace.name));
        }
    }
    Ok(())
}

fn user_key(row_key: &Bytes) -> Bytes {
    row_key.slice(5..)
}

pub(crate) async fn list(
    view: View<'_>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
) -> Result<ListPage> {
    let mut page = ListPage::default();
    let mut collapse = Collapse::new(options);
    let mut seek = collapse.start();
    while let Some(from) = seek.take() {
        let mut rows = current_rows(view, namespace, options, &from);
        while let Some((row_key, entry)) = rows.next().await? {
            let key = user_key(&row_key);
            match collapse.visit(&key) {
                Visit::Item => {
                    let meta = entry.meta().map_err(malformed)?;
                    page.items.push(Item::Value(key, meta));
                }
                Visit::Prefix { prefix, seek: next } => {
                    page.items.push(Item::Prefix(key.slice_ref(prefix)));
                    seek = next;
                    break;
                }
                Visit::Full => {
                    page.more = true;
                    break;
                }
                Visit::End => break,
            }
        }
    }
    Ok(page)
}

/// Where a list of versions goes on amid the entries of a key.
struct Amid<'a> {
    key: &'a [u8],
    /// Entries with this sequence or a greater one come before.
    sequence: u64,
    /// Whether there are such entries.
    any: bool,
}

impl<'a> Amid<'a> {
    /// Behind `version`, as [`versions_before`](forebay_store::listing::versions_before) means it, without a look at every entry: they
    /// are in order of sequence, and any version but the null one is its entry's sequence.
    fn find(
        view: View<'_>,
        namespace: &NamespaceInfo,
        space: Space,
        key: &'a [u8],
        version: VersionId,
    ) -> Result<Amid<'a>> {
        let live = |entry: &Entry| !entry.is_expired(view.now);
        let kept_before = |sequence| match space {
            Space::Objects => view.kept_before(namespace.id, key, sequence),
            Space::Staging => Ok(None),
        };
        let current = view.current(namespace.id, space, key)?.filter(live);
        let null = match &current {
            Some(current) if current.version() == VersionId::NULL => Some(current.sequence()),
            _ if space == Space::Staging => None,
            _ => {
                let kept = view.kept(namespace.id, key, VersionId::NULL)?;
                kept.filter(live).map(|kept| kept.sequence())
            }
        };
        let sequence = match (version, null) {
            (VersionId::NULL, null) => null.unwrap_or(u64::MAX),
            // Of a version that is gone, a null version that is no older tells nothing, unless another entry is between them.
            (VersionId(version), Some(null))
                if null >= version
                    && kept_before(null)?.is_none_or(|older| older.sequence() < version) =>
            {
                null + 1
            }
            (VersionId(version), _) => version,
        };
        let newest = current.or(kept_before(u64::MAX)?);
        Ok(Amid {
            key,
            sequence,
            any: newest.is_some_and(|newest| newest.sequence() >= sequence),
        })
    }
}

/// Current and kept entries as one walk: keys ascending, within a key the newest first.
struct Versions<'a> {
    current: Rows<'a>,
    kept: Rows<'a>,
    /// The key shown last.
    last: Option<Bytes>,
}

/// One entry, and whether it is the newest of its key.
struct Shown {
    key: Bytes,
    entry: Entry,
    newest: bool,
}

impl<'a> Versions<'a> {
    /// From a key on.
    fn new(
        view: View<'a>,
        namespace: &NamespaceInfo,
        options: &ListOptions<'_>,
        from: &[u8],
    ) -> Versions<'a> {
        let kept = keys::kept_from(namespace.id, from);
        Versions {
            current: current_rows(view, namespace, options, from),
            kept: kept_rows(view, namespace, options, kept),
            last: None,
        }
    }

    /// From amid the entries of a key on.
    async fn amid(
        view: View<'a>,
        namespace: &NamespaceInfo,
        options: &ListOptions<'_>,
        amid: &Amid<'_>,
    ) -> Result<Versions<'a>> {
        let kept = keys::kept_before(namespace.id, amid.key, amid.sequence);
        let mut current = current_rows(view, namespace, options, amid.key);
        if let Some((key, entry)) = current.peek().await?
            && user_key(key) == amid.key
            && entry.sequence() >= amid.sequence
        {
            current.next().await?;
        }
        Ok(Versions {
            current,
            kept: kept_rows(view, namespace, options, kept),
            last: amid.any.then(|| Bytes::copy_from_slice(amid.key)),
        })
    }

    async fn next(&mut self) -> Result<Option<Shown>> {
        let current = self.current.peek().await?;
        let current = current.map(|(key, _)| user_key(key));
        let kept = match self.kept.peek().await? {
            None => None,
            Some((key, _)) => {
                let (key, _) = keys::split_kept(key).ok_or_else(|| corrupt("a key"))?;
                Some(Bytes::from(key))
            }
        };
        let (row, key) = match (current, kept) {
            (None, None) => return Ok(None),
            (Some(current), Some(kept)) if kept < current => (self.kept.next().await?, kept),
            (Some(current), _) => (self.current.next().await?, current),
            (None, Some(kept)) => (self.kept.next().await?, kept),
        };
        let newest = self.last.as_ref() != Some(&key);
        self.last = Some(key.clone());
        Ok(row.map(|(_, entry)| Shown { key, entry, newest }))
    }
}

pub(crate) async fn list_versions(
    view: View<'_>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
) -> Result<VersionPage> {
    let mut page = VersionPage::default();
    let mut collapse = Collapse::new(options);
    let amid = match options.after {
        After::Version(key, version) => {
            let space = options.space;
            Some(Amid::find(view, namespace, space, key, version)?)
        }
        After::Start | After::Key(_) | After::Prefix(_) => None,
    };
    let mut seek = collapse.start_of_versions();
    while let Some(from) = seek.take() {
        let mut versions = match &amid {
            Some(amid) if amid.key == from => {
                Versions::amid(view, namespace, options, amid).await?
            }
            _ => Versions::new(view, namespace, options, &from),
        };
        while let Some(Shown { key, entry, newest }) = versions.next().await? {
            match collapse.visit(&key) {
                Visit::Item if entry.is_marker() => page.items.push(VersionItem::Marker {
                    key,
                    version: entry.version(),
                    modified: entry.modified(),
                    latest: newest,
                }),
                Visit::Item => {
                    let current = view.current(namespace.id, options.space, &key)?;
                    let is_current =
                        current.is_some_and(|current| current.sequence() == entry.sequence());
                    page.items.push(VersionItem::Value {
                        meta: entry.meta().map_err(malformed)?,
                        key,
                        latest: newest && is_current,
                    });
                }
                Visit::Prefix { prefix, seek: next } => {
                    page.items.push(VersionItem::Prefix(key.slice_ref(prefix)));
                    seek = next;
                    break;
                }
                Visit::Full => {
                    page.more = true;
                    break;
                }
                Visit::End => break,
            }
        }
    }
    Ok(page)
}
