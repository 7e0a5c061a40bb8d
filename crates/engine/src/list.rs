//! List pages: a walk over table current, and for versions over table kept beside it.

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_store::listing::{Collapse, Visit, versions_before};
use forebay_store::{
    After, Item, ListOptions, ListPage, NamespaceInfo, Result, Space, VersionId, VersionItem,
    VersionPage,
};

use crate::entry::Entry;
use crate::index::corrupt;
use crate::keys::{self, Table};
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
    fn peek(&mut self) -> Result<Option<&(Bytes, Entry)>> {
        while self.fetched.is_empty()
            && let Some(from) = self.from.take()
        {
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

    fn next(&mut self) -> Result<Option<(Bytes, Entry)>> {
        self.peek()?;
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
    from: &[u8],
) -> Rows<'a> {
    let last = keys::kept_from(namespace.id, options.prefix);
    Rows {
        view,
        table: Table::Kept,
        // Kept entries are of the objects space alone.
        from: (options.space == Space::Objects).then(|| keys::kept_from(namespace.id, from)),
        until: keys::after_prefix(&last),
        step: first_step(options),
        fetched: VecDeque::new(),
    }
}

fn user_key(row_key: &Bytes) -> Bytes {
    row_key.slice(5..)
}

pub(crate) fn list(
    view: View<'_>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
) -> Result<ListPage> {
    let mut page = ListPage::default();
    let mut collapse = Collapse::new(options);
    let mut seek = collapse.start();
    while let Some(from) = seek.take() {
        let mut rows = current_rows(view, namespace, options, &from);
        while let Some((row_key, entry)) = rows.next()? {
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

impl Versions<'_> {
    fn next(&mut self) -> Result<Option<Shown>> {
        let current = self.current.peek()?.map(|(key, _)| user_key(key));
        let kept = match self.kept.peek()? {
            None => None,
            Some((key, _)) => {
                let (key, _) = keys::split_kept(key).ok_or_else(|| corrupt("a key"))?;
                Some(Bytes::from(key))
            }
        };
        let (row, key) = match (current, kept) {
            (None, None) => return Ok(None),
            (Some(current), Some(kept)) if kept < current => (self.kept.next()?, kept),
            (Some(current), _) => (self.current.next()?, current),
            (None, Some(kept)) => (self.kept.next()?, kept),
        };
        let newest = self.last.as_ref() != Some(&key);
        self.last = Some(key.clone());
        Ok(row.map(|(_, entry)| Shown { key, entry, newest }))
    }
}

pub(crate) fn list_versions(
    view: View<'_>,
    namespace: &NamespaceInfo,
    options: &ListOptions<'_>,
) -> Result<VersionPage> {
    let mut page = VersionPage::default();
    let mut collapse = Collapse::new(options);
    let mut pass = match options.after {
        After::Version(key, version) => passed_over(view, namespace, options.space, key, version)?,
        After::Start | After::Key(_) | After::Prefix(_) => 0,
    };
    let mut seek = collapse.start_of_versions();
    while let Some(from) = seek.take() {
        let mut versions = Versions {
            current: current_rows(view, namespace, options, &from),
            kept: kept_rows(view, namespace, options, &from),
            last: None,
        };
        while let Some(Shown { key, entry, newest }) = versions.next()? {
            if pass > 0
                && let After::Version(at, _) = options.after
                && at == key
            {
                pass -= 1;
                continue;
            }
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

/// How many entries of `key` come before the one after `version`.
fn passed_over(
    view: View<'_>,
    namespace: &NamespaceInfo,
    space: Space,
    key: &[u8],
    version: VersionId,
) -> Result<usize> {
    let mut versions = Vec::new();
    let current = view.current(namespace.id, space, key)?;
    versions.extend(
        current
            .filter(|entry| !entry.is_expired(view.now))
            .map(|entry| entry.version()),
    );
    if space == Space::Objects {
        let kept = view.newest_kept(namespace.id, key, usize::MAX)?;
        versions.extend(kept.iter().map(Entry::version));
    }
    Ok(versions_before(versions, version))
}
