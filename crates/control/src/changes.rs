//! What happens to namespaces, told to those who watch.
//!
//! Namespaces change through every door, and the store offers their list, from memory, but no news. So the list is compared with what
//! it was: at once when a change was made here, once a second while somebody watches, and not at all while nobody does.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_store::{NamespaceInfo, Store};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::SYSTEM_NAMESPACE;

/// How often the list is compared while somebody watches.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// Changes that are remembered: a watcher that comes back after more begins anew.
const KEPT: usize = 1024;

/// Names a moment in the history of changes: a keyed hash of its number, so that it tells nobody how many others there were.
pub(crate) type Revision = [u8; 16];

/// What happened to a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Created,
    Changed,
    Removed,
}

/// A change.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) what: What,
    /// As it is, or as it was before it was removed.
    pub(crate) namespace: Arc<NamespaceInfo>,
}

/// Where a watcher stands.
#[derive(Debug)]
pub(crate) enum News {
    /// These changes came after the revision asked for.
    Since(Vec<Change>),
    /// That revision is not known: this is what there is now.
    Anew {
        present: Vec<Arc<NamespaceInfo>>,
        revision: Revision,
    },
}

/// The history of a store's namespaces since the server began.
pub(crate) struct Changes<S> {
    store: Arc<S>,
    history: Mutex<History>,
    latest: watch::Sender<Revision>,
}

struct History {
    seen: BTreeMap<String, Arc<NamespaceInfo>>,
    changes: VecDeque<Change>,
    names: Names,
    /// The revision before the oldest change that is kept.
    start: Revision,
    compared: Option<Instant>,
}

impl<S: Store> Changes<S> {
    pub(crate) fn new(store: Arc<S>) -> Changes<S> {
        let mut names = Names::default();
        let start = names.next();
        Changes {
            store,
            history: Mutex::new(History {
                seen: BTreeMap::new(),
                changes: VecDeque::new(),
                names,
                start,
                compared: None,
            }),
            latest: watch::Sender::new(start),
        }
    }

    /// Compares the list with what it was, unless that was done less than `age` ago.
    pub(crate) fn refresh(&self, age: Duration) {
        let mut history = self.history.lock();
        if history.compared.is_some_and(|then| then.elapsed() < age) {
            return;
        }
        history.compare(self.store.namespaces());
        let latest = history.latest();
        drop(history);
        self.latest.send_if_modified(|known| {
            let news = *known != latest;
            *known = latest;
            news
        });
    }

    /// What came after `seen`.
    pub(crate) fn since(&self, seen: Option<Revision>) -> News {
        let history = self.history.lock();
        let changes = &history.changes;
        let after = seen.and_then(|seen| match seen == history.start {
            true => Some(0),
            false => Some(changes.iter().position(|change| change.revision == seen)? + 1),
        });
        match after {
            Some(after) => News::Since(changes.range(after..).cloned().collect()),
            None => News::Anew {
                present: history.seen.values().cloned().collect(),
                revision: history.latest(),
            },
        }
    }

    /// Whether somebody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.latest.receiver_count() > 0
    }

    /// Wakes up at every change.
    pub(crate) fn latest(&self) -> watch::Receiver<Revision> {
        self.latest.subscribe()
    }
}

impl History {
    fn latest(&self) -> Revision {
        self.changes
            .back()
            .map_or(self.start, |change| change.revision)
    }

    fn compare(&mut self, now: Vec<Arc<NamespaceInfo>>) {
        let now: BTreeMap<String, Arc<NamespaceInfo>> = now
            .into_iter()
            .filter(|namespace| namespace.name != SYSTEM_NAMESPACE)
            .map(|namespace| (namespace.name.clone(), namespace))
            .collect();
        let before = std::mem::take(&mut self.seen);
        for (name, old) in &before {
            // A name that was removed and made again is another namespace.
            if now.get(name).is_none_or(|new| new.id != old.id) {
                self.push(What::Removed, old);
            }
        }
        for (name, new) in &now {
            match before.get(name).filter(|old| old.id == new.id) {
                None => self.push(What::Created, new),
                Some(old) if old.revision != new.revision => self.push(What::Changed, new),
                Some(_) => {}
            }
        }
        self.seen = now;
        self.compared = Some(Instant::now());
    }

    fn push(&mut self, what: What, namespace: &Arc<NamespaceInfo>) {
        // Nobody has seen what was before the first comparison.
        if self.compared.is_none() {
            return;
        }
        if self.changes.len() == KEPT
            && let Some(oldest) = self.changes.pop_front()
        {
            self.start = oldest.revision;
        }
        self.changes.push_back(Change {
            revision: self.names.next(),
            what,
            namespace: namespace.clone(),
        });
    }
}

#[derive(Default)]
struct Names {
    key: RandomState,
    made: u64,
}

impl Names {
    fn next(&mut self) -> Revision {
        self.made += 1;
        let half = |half: u8| u128::from(self.key.hash_one((self.made, half)));
        (half(0) << 64 | half(1)).to_be_bytes()
    }
}
