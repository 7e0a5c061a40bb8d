//! How an ordered walk over keys becomes a list page: the one place where prefix, delimiter and limit are decided.
//!
//! The walk itself is the store's. It puts its cursor on the first visible key at or after [`Collapse::start`] and shows each
//! key to [`Collapse::visit`], which says what to report and whether to step or to seek: a common prefix costs one seek,
//! however many keys it hides.

use crate::limits::LIST_ITEMS_MAX;
use crate::{After, ListOptions, VersionId};

/// What to do with the key under the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visit<'k> {
    /// Report it; step to the next key (or the next version of this one).
    Item,
    /// Report this common prefix; seek to the first key at or after `seek`. `None`: no key can follow.
    Prefix {
        /// The start of the key, delimiter included.
        prefix: &'k [u8],
        /// Inclusive lower bound of the keys that do not begin so.
        seek: Option<Vec<u8>>,
    },
    /// Do not report it: the page is full and more follows.
    Full,
    /// Do not report it: nothing that follows can belong to the list.
    End,
}

/// Turns visible keys, shown in ascending order, into the items of one page.
#[derive(Debug, Clone)]
pub struct Collapse<'a> {
    prefix: &'a [u8],
    delimiter: Option<&'a [u8]>,
    after: After<'a>,
    room: usize,
}

impl<'a> Collapse<'a> {
    /// Begins a page.
    pub fn new(options: &ListOptions<'a>) -> Collapse<'a> {
        Collapse {
            prefix: options.prefix,
            delimiter: options.delimiter.filter(|text| !text.is_empty()),
            after: options.after,
            room: options.limit.min(LIST_ITEMS_MAX),
        }
    }

    /// For a list of values: the inclusive lower bound of the keys to walk. `None`: the page is empty and last.
    pub fn start(&self) -> Option<Vec<u8>> {
        match self.after {
            After::Start => self.at_least(Vec::new()),
            After::Key(key) | After::Version(key, _) => self.at_least(next_key(key)),
            After::Prefix(prefix) => self.at_least(after_prefix(prefix)?),
        }
    }

    /// For a list of versions: as [`start`](Collapse::start), but on the key of [`After::Version`] itself, of which
    /// [`versions_before`] says how many entries to pass over.
    pub fn start_of_versions(&self) -> Option<Vec<u8>> {
        match self.after {
            After::Version(key, _) => self.at_least(key.to_vec()),
            _ => self.start(),
        }
    }

    /// Decides about the key under the cursor. For a list of versions, show each key once for each of its entries.
    pub fn visit<'k>(&mut self, key: &'k [u8]) -> Visit<'k> {
        let Some(rest) = key.strip_prefix(self.prefix) else {
            return Visit::End;
        };
        let Some(room) = self.room.checked_sub(1) else {
            return Visit::Full;
        };
        self.room = room;
        match self.delimiter.and_then(|delimiter| find(rest, delimiter)) {
            None => Visit::Item,
            Some(end) => {
                let prefix = &key[..self.prefix.len() + end];
                Visit::Prefix {
                    prefix,
                    seek: after_prefix(prefix),
                }
            }
        }
    }

    fn at_least(&self, bound: Vec<u8>) -> Option<Vec<u8>> {
        // A page of no items has no last item to continue after.
        (self.room > 0).then(|| bound.max(self.prefix.to_vec()))
    }
}

/// The smallest key greater than `key`.
pub fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The smallest key greater than every key that begins with `prefix`; `None` when there is no such key.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut bound = prefix[..=last].to_vec();
    bound[last] += 1;
    Some(bound)
}

/// How many of a key's entries, given newest first, a page that begins after `version` passes over.
pub fn versions_before(entries: impl IntoIterator<Item = VersionId>, version: VersionId) -> usize {
    let mut newer = 0;
    for (at, entry) in entries.into_iter().enumerate() {
        if entry == version {
            return at + 1;
        }
        // The null version tells nothing about age: it may be younger than a greater id.
        if version != VersionId::NULL && entry > version {
            newer = at + 1;
        }
    }
    newer
}

/// Where the first `needle` in `text` ends.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len())
        .position(|window| window == needle)
        .map(|at| at + needle.len())
}
